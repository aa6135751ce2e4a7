"""
Write a corpus of spoken digits, joined from the recordings of the free-spoken-digit-dataset:

    python scripts/make_spoken_digits.py recordings.tar.gz outputs/spoken-digits-data --left_out theo
    python scripts/make_spoken_digits.py recordings.tar.gz outputs/spoken-digits-german --language de

The folder receives train, validation, test (the official test recordings) and, of the speaker who is left out, unseen;
each has WAV files and texts.tsv.

A corpus of spoken digits: strings of three to eight, joined from recordings of single digits by one speaker each, and
their words in English or German.

The recordings are those of the free-spoken-digit-dataset: `{digit}_{speaker}_{number}.wav`, 8 kHz, in a folder or a
tar archive. Its official test recordings are those with the numbers 0 to 4.
"""

import re
import tarfile
import tempfile
import wave
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vanilla_transformer_hf.common.command_line import make_parser, run
from vanilla_transformer_hf.common.files import new_folder
from vanilla_transformer_hf.common.recordings import read_recording
from vanilla_transformer_hf.translation.recognition import TEXTS_FILE


WORDS = {
    "en": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "de": ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
}
RATE = 8000
NAME = re.compile(r"(\d)_(.+)_(\d+)")
# Role -> the numbers of its recordings; of the speaker who is left out, `unseen` has all.
NUMBERS = {"train": range(8, 50), "validation": range(5, 8), "test": range(5)}
FEWEST, MOST = 3, 8
# Strings to train on have one digit or more, and those of each length together as many digits: of the short ones a
# model learns the words, and then where each begins.
TRAINING_LENGTHS = np.arange(1, MOST + 1)
TRAINING_SHARES = 1 / TRAINING_LENGTHS / (1 / TRAINING_LENGTHS).sum()
Digits = dict[str, list[tuple[int, int, np.ndarray]]]  # speaker -> digit, number and samples of each recording


def read_digits(source: Path) -> Digits:
    """The recordings of single digits."""
    found: Digits = defaultdict(list)
    with tempfile.TemporaryDirectory() as unpacked:
        if not source.is_dir():
            try:
                with tarfile.open(source) as archive:
                    archive.extractall(unpacked, filter="data")
            except tarfile.TarError as error:
                raise ValueError(f"{source} is not a tar archive, nor a folder of recordings") from error
        for path in sorted((source if source.is_dir() else Path(unpacked)).rglob("*.wav")):
            if (name := NAME.fullmatch(path.stem)) is None:
                continue
            digit, speaker, number = name.groups()
            samples, rate = read_recording(path)
            if rate != RATE:
                raise ValueError(f"{path.name} in {source} has {rate:,} samples per second: expected {RATE:,}")
            if not samples.any():
                raise ValueError(f"{path.name} in {source} is silent: expected a spoken digit")
            found[speaker].append((int(digit), int(number), samples))
    if not found:
        raise ValueError(f"{source} has no recordings such as 7_jackson_32.wav")
    return {speaker: sorted(found[speaker], key=lambda each: each[:2]) for speaker in sorted(found)}


def change_speed(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """
    Samples (N) played up to an eighth faster or slower, at another pitch and of another length: Ko et al. 2015, "Audio
    Augmentation for Speech Recognition".
    """
    faster = rng.uniform(7 / 8, 9 / 8)
    played: np.ndarray = np.interp(np.arange(0, len(samples) - 1, faster), np.arange(len(samples)), samples)
    return played


def join(recordings: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Recordings behind each other, at a level that varies, with silence of up to 0.2 seconds around each."""
    level = rng.uniform(0.3, 1.0)
    parts = []
    for samples in recordings:
        parts += [np.zeros(rng.integers(0, RATE // 5)), samples / np.abs(samples).max() * rng.uniform(0.7, 1.0)]
    whole = level * np.concatenate([*parts, np.zeros(rng.integers(0, RATE // 5))])
    noisy: np.ndarray = whole + rng.normal(scale=10 ** rng.uniform(-4, -2.5), size=len(whole))
    return noisy


def write_wave(path: Path, samples: np.ndarray, rate: int) -> None:
    """Write samples (N) from -1 to 1 as a WAV file of 16 bits; those beyond are cut off."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def write_spoken_digits(
    source: Path, folder: Path, *, language: str, left_out: str | None, train_size: int, test_size: int, seed: int
) -> None:
    """Write the folders train, validation, test and, of the speaker who is left out, unseen."""
    digits = read_digits(source)
    if left_out is not None and left_out not in digits:
        raise ValueError(f"left_out={left_out}: must be one of {', '.join(digits)}")
    known = {speaker: rows for speaker, rows in digits.items() if speaker != left_out}
    if not known:
        raise ValueError(f"left_out={left_out}: {source} has no other speaker")
    parts: dict[str, tuple[Digits, int]] = {}
    for role, numbers in NUMBERS.items():
        rows = {speaker: [row for row in all_of if row[1] in numbers] for speaker, all_of in known.items()}
        if none := [speaker for speaker, found in rows.items() if not found]:
            raise ValueError(
                f"{source} has no recordings of {none[0]} with a number from {numbers[0]} to {numbers[-1]}, those of "
                f"the folder {role}"
            )
        parts[role] = rows, train_size if role == "train" else test_size
    if left_out is not None:
        parts["unseen"] = {left_out: digits[left_out]}, test_size
    for place, (role, (rows, size)) in enumerate(parts.items()):
        with new_folder(folder / role) as unfinished:
            rng = np.random.default_rng([seed, place])
            _write_part(unfinished, rows, WORDS[language], size, rng, is_training=role == "train")


def _write_part(
    folder: Path, rows: Digits, words: Sequence[str], size: int, rng: np.random.Generator, is_training: bool
) -> None:
    """Strings until there are `size`, each recording about as often as the others; to train on, of another speed."""
    speakers, lines = list(rows), []
    order: dict[str, list[int]] = {speaker: [] for speaker in speakers}
    for number in range(size):
        speaker = speakers[number % len(speakers)]
        chosen = []
        count = rng.choice(TRAINING_LENGTHS, p=TRAINING_SHARES) if is_training else rng.integers(FEWEST, MOST + 1)
        for _ in range(count):
            if not order[speaker]:
                order[speaker] = rng.permutation(len(rows[speaker])).tolist()
            chosen.append(rows[speaker][order[speaker].pop()])
        name = f"{number:05d}_{speaker}.wav"
        digits = [change_speed(samples, rng) if is_training else samples for *_, samples in chosen]
        write_wave(folder / name, join(digits, rng), RATE)
        lines.append(f"{name}\t{' '.join(words[digit] for digit, *_ in chosen)}\n")
    (folder / TEXTS_FILE).write_text("".join(lines), encoding="utf-8", newline="\n")


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
