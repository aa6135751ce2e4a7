"""
Write a corpus of spoken digits, joined from the recordings of the free-spoken-digit-dataset:

    python scripts/make_spoken_digits.py recordings.tar.gz outputs/spoken-digits-data --left_out theo
    python scripts/make_spoken_digits.py recordings.tar.gz outputs/spoken-digits-german --language de

The folder receives train, validation, test (the official test recordings) and, of the speaker who is left out, unseen;
each has WAV files and texts.tsv.
"""

from pathlib import Path

from vanilla_transformer_hf.common.command_line import make_parser, run
from vanilla_transformer_hf.training.recognition.spoken_digits import WORDS, write_spoken_digits


def main() -> None:
    """Read the arguments and write the corpus."""
    parser = make_parser("make_spoken_digits.py", __doc__)
    parser.add_argument("recordings", type=Path, help="folder or tar archive of {digit}_{speaker}_{number}.wav, 8 kHz")
    parser.add_argument("folder", type=Path, help="receives the corpus")
    parser.add_argument("--language", choices=WORDS, default="en", help="language of the words (default: en)")
    parser.add_argument("--left_out", metavar="SPEAKER", help="speaker who is not trained on; in the folder unseen")
    parser.add_argument("--train_size", type=int, default=8000, help="strings to train on (default: 8000)")
    parser.add_argument("--test_size", type=int, default=400, help="strings of each other part (default: 400)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (default: 0)")
    arguments = parser.parse_args()
    write_spoken_digits(arguments.recordings, **{k: v for k, v in vars(arguments).items() if k != "recordings"})


if __name__ == "__main__":
    run(main, "make_spoken_digits.py")
