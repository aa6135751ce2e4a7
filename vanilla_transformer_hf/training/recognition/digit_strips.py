"""
A corpus of handwritten digits: strips of three to eight, joined from the images of 8 by 8 pixels that scikit-learn
brings with it (`sklearn.datasets.load_digits`, 1,797 of them; nothing is downloaded), and their words.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...common.files import new_folder
from ...translation.recognition import TEXTS_FILE
from .spoken_digits import FEWEST, MOST, WORDS


HEIGHT, WIDTH = 10, 80  # of the longest strip: eight digits and the pixels between them
# Of ten images that follow each other, those of each role.
PLACES = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}


def join(images: Sequence[np.ndarray] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images (8, 8) side by side, each up to two pixels lower and one to two pixels from the next: (10, W)."""
    strip = np.zeros((HEIGHT, WIDTH))
    end = 0
    for image in images:
        left = end + int(rng.integers(0, 3))
        left = min(left, WIDTH - 8)
        top = int(rng.integers(0, HEIGHT - 7))
        strip[top : top + 8, left : left + 8] = image
        end = left + 8
    return strip[:, :end]


def write_digit_strips(folder: Path, *, language: str, train_size: int, test_size: int, seed: int) -> None:
    """
    Write the folders train, validation and test, of images that the others do not have.

    Raises:
        ValueError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError(
            "the digits come with scikit-learn: pip install 'vanilla_transformer_hf[recognition]'"
        ) from error
    digits = load_digits()
    for number, (role, places) in enumerate(PLACES.items()):
        chosen = [index for index in range(len(digits.target)) if index % 10 in places]
        rng = np.random.default_rng([seed, number])
        with new_folder(folder / role) as unfinished:
            _write_part(
                unfinished,
                images=digits.images[chosen],
                classes=digits.target[chosen],
                words=WORDS[language],
                size=train_size if role == "train" else test_size,
                rng=rng,
            )


def _write_part(
    folder: Path, images: np.ndarray, classes: np.ndarray, words: Sequence[str], size: int, rng: np.random.Generator
) -> None:
    from PIL import Image

    lines = []
    for number in range(size):
        chosen = rng.integers(0, len(images), size=int(rng.integers(FEWEST, MOST + 1)))
        strip = join(images[chosen] / 16 * rng.uniform(0.8, 1.0), rng)
        name = f"{number:05d}.png"
        Image.fromarray((255 * strip).round().astype(np.uint8)).save(folder / name)
        lines.append(f"{name}\t{' '.join(words[digit] for digit in classes[chosen])}\n")
    (folder / TEXTS_FILE).write_text("".join(lines), encoding="utf-8", newline="\n")
