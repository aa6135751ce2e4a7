"""
Write a corpus of handwritten digits, strips joined from the images that scikit-learn has:

    python scripts/make_digit_strips.py outputs/digit-strips-data

The folder receives train, validation and test, of different images; each has PNG files and texts.tsv.

A corpus of handwritten digits: strips of three to eight, joined from the images of 8 by 8 pixels that scikit-learn
brings with it (`sklearn.datasets.load_digits`, 1,797 of them; nothing is downloaded), and their words.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vanilla_transformer_hf.common.command_line import make_parser, run
from vanilla_transformer_hf.common.files import new_folder
from vanilla_transformer_hf.translation.recognition import TEXTS_FILE


WORDS = {
    "en": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "de": ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
}
FEWEST, MOST = 3, 8  # digits of a strip
HEIGHT, WIDTH = 10, 80  # of the longest strip: eight digits and the pixels between them
# Of ten images of a digit that follow each other, those of each role.
PLACES = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}


def bend(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """
    An image (8, 8) that is turned by up to 9 degrees, slanted, stretched by up to a twelfth and moved by up to a third
    of a pixel: as the same hand might have written it another time.
    """
    from scipy.ndimage import affine_transform  # scikit-learn brings it

    angle, slant = rng.uniform(-0.15, 0.15, size=2)
    sizes = np.exp(rng.uniform(-0.08, 0.08, size=2))
    turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turned @ np.array([[1, slant], [0, 1]]) @ np.diag(sizes)
    middle = np.array([3.5, 3.5])
    moved = rng.uniform(-0.3, 0.3, size=2)
    bent: np.ndarray = affine_transform(image, matrix, middle - matrix @ middle + moved, order=1)
    return bent


def join(images: Sequence[np.ndarray] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images (8, 8) side by side, each up to two pixels lower and up to two pixels from the next: (10, W)."""
    strip = np.zeros((HEIGHT, WIDTH))
    end = 0
    for image in images:
        left = end + int(rng.integers(0, 3))
        left = min(left, WIDTH - 8)
        top = int(rng.integers(0, HEIGHT - 7))
        strip[top : top + 8, left : left + 8] = image
        end = left + 8
    return strip[:, :end]


def split(classes: np.ndarray) -> dict[str, np.ndarray]:
    """
    Role -> the indices of its images. Of the images of each digit, in their order, those at the role's places in ten:
    the order of all of them goes through the digits, so that every tenth image would be of few.
    """
    places = np.empty_like(classes)
    for digit in np.unique(classes):
        places[classes == digit] = np.arange(np.sum(classes == digit)) % 10
    return {role: np.flatnonzero(np.isin(places, of_role)) for role, of_role in PLACES.items()}


def write_digit_strips(folder: Path, *, language: str, train_size: int, test_size: int, seed: int) -> None:
    """Write the folders train, validation and test, of images that the others do not have."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError("the digits come with scikit-learn: pip install 'vanilla_transformer_hf[demo]'") from error
    digits = load_digits()
    for number, (role, chosen) in enumerate(split(digits.target).items()):
        rng = np.random.default_rng([seed, number])
        with new_folder(folder / role) as unfinished:
            _write_part(
                unfinished,
                images=digits.images[chosen],
                classes=digits.target[chosen],
                words=WORDS[language],
                size=train_size if role == "train" else test_size,
                rng=rng,
                is_training=role == "train",
            )


def _write_part(
    folder: Path,
    images: np.ndarray,
    classes: np.ndarray,
    words: Sequence[str],
    size: int,
    rng: np.random.Generator,
    is_training: bool,
) -> None:
    """Write `size` strips; every other digit of those to train on is bent."""
    from PIL import Image

    lines = []
    for number in range(size):
        chosen = rng.integers(0, len(images), size=int(rng.integers(FEWEST, MOST + 1)))
        level = rng.uniform(0.8, 1.0)
        digits = [bend(image, rng) if is_training and rng.random() < 0.5 else image for image in images[chosen] / 16]
        strip = join(digits, rng) * level
        name = f"{number:05d}.png"
        Image.fromarray((255 * strip).round().astype(np.uint8)).save(folder / name)
        lines.append(f"{name}\t{' '.join(words[digit] for digit in classes[chosen])}\n")
    (folder / TEXTS_FILE).write_text("".join(lines), encoding="utf-8", newline="\n")


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
