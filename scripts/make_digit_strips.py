"""
Write a corpus of handwritten digits, strips joined from the images that scikit-learn has:

    python scripts/make_digit_strips.py outputs/digit-strips-data

The folder receives train, validation and test, of different images; each has PNG files and texts.tsv.
"""

from pathlib import Path

from vanilla_transformer_hf.common.command_line import make_parser, run
from vanilla_transformer_hf.training.recognition.digit_strips import write_digit_strips
from vanilla_transformer_hf.training.recognition.spoken_digits import WORDS


def main() -> None:
    """Read the arguments and write the corpus."""
    parser = make_parser("make_digit_strips.py", __doc__)
    parser.add_argument("folder", type=Path, help="receives the corpus")
    parser.add_argument("--language", choices=WORDS, default="en", help="language of the words (default: en)")
    parser.add_argument("--train_size", type=int, default=24000, help="strips to train on (default: 24000)")
    parser.add_argument("--test_size", type=int, default=500, help="strips of each other part (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (default: 0)")
    arguments = parser.parse_args()
    write_digit_strips(**vars(arguments))


if __name__ == "__main__":
    run(main, "make_digit_strips.py")
