"""Noise in synthetic sources (Edunov et al. 2018, arXiv 1808.09381, section 3.1, after Lample et al. 2018)."""

import random
from dataclasses import dataclass


# What replaces a word; a token of the tokenizer of the model that learns it.
BLANK = "<blank>"


@dataclass(frozen=True)
class Noise:
    """
    Words are dropped, replaced by `BLANK`, and moved; a text without spaces is one word.

    Args:
        drop, replace: Probabilities of a word.
        shuffle: Places that a word may move; 0: none.
        seed: That of the random numbers, which depend on it and on the number of the line alone.
    """

    drop: float = 0.1
    replace: float = 0.1
    shuffle: int = 3
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("drop", "replace"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}_words={getattr(self, name)}: must be at least 0 and less than 1")
        if self.shuffle < 0:
            raise ValueError(f"shuffle_words={self.shuffle}: must be at least 0")

    def __call__(self, text: str, number: int) -> str:
        """The text of the line of this number with noise; never empty, unless the text is."""
        draw = random.Random(f"{self.seed} {number} {text}")
        words = text.split()
        kept = [word for word in words if draw.random() >= self.drop] or words[:1]
        replaced = [BLANK if draw.random() < self.replace else word for word in kept]
        # Sorted by their places, each moved by up to `shuffle`: a word passes no more than so many others.
        places = [place + draw.uniform(0, self.shuffle + 1 if self.shuffle else 0) for place in range(len(replaced))]
        return " ".join(replaced[place] for place in sorted(range(len(replaced)), key=places.__getitem__))
