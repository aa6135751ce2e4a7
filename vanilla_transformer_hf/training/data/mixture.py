"""Which pairs of several corpora an epoch has: by rates, or by a temperature of their sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Mixture:
    """
    The rows of each epoch, for corpora that stand one after the other in one table.

    Each corpus has the same number of rows in every epoch. They are taken from one shuffled pass through the corpus
    after the other, so that no pair is seen more than once more often than another. Rows depend on the seed and the
    epoch alone, not on processes and workers, so that a run can be continued anywhere.

    Args:
        names: The names of the corpora.
        sizes: Their numbers of pairs.
        counts: The numbers of pairs of each in an epoch.
        seed: Seed of the order.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    seed: int = 0

    @classmethod
    def by_rates(cls, sizes: dict[str, int], rates: dict[str, float], seed: int) -> "Mixture":
        """Pairs in these rates; an epoch ends when the corpus that is used up first has been seen once."""
        passes = min(sizes[name] / rates[name] for name in sizes)
        counts = [max(1, min(sizes[name], round(passes * rates[name]))) for name in sizes]
        return cls(tuple(sizes), tuple(sizes.values()), tuple(counts), seed)

    @classmethod
    def by_temperature(cls, sizes: dict[str, int], temperature: float, seed: int) -> "Mixture":
        """Pairs in the rates n^(1/T) for corpora of n pairs (Arivazhagan et al. 2019, arXiv 1907.05019)."""
        weights = np.asarray([size ** (1 / temperature) for size in sizes.values()])
        counts = np.maximum(1, np.rint(weights / weights.sum() * sum(sizes.values())).astype(int))
        return cls(tuple(sizes), tuple(sizes.values()), tuple(counts.tolist()), seed)

    def rows(self, epoch: int) -> np.ndarray:
        """The numbers of an epoch's rows (N,), corpus by corpus."""
        starts = np.cumsum((0, *self.sizes[:-1]))
        return np.concatenate([start + self._drawn(place, epoch) for place, start in enumerate(starts)])

    def _drawn(self, place: int, epoch: int) -> np.ndarray:
        """Rows of one corpus, counted from 0: a stretch of its shuffled passes."""
        size, count = self.sizes[place], self.counts[place]
        first, begin = divmod(epoch * count, size)
        passes = range(first, (epoch * count + count - 1) // size + 1)
        order = [np.random.default_rng([self.seed, place, number]).permutation(size) for number in passes]
        drawn: np.ndarray = np.concatenate(order)[begin : begin + count]
        return drawn

    def sentences(self) -> list[str]:
        """How often an epoch sees each corpus, a sentence each."""
        total = sum(self.counts)
        return [
            f"{name}: {count:,} of the {total:,} pairs of an epoch ({count / total:.1%}), from {size:,}, so each is "
            f"seen {count / size:.3g} times."
            for name, size, count in zip(self.names, self.sizes, self.counts)
        ]


def check_rates(rates: Sequence[float | None], temperature: float | None) -> None:
    """Check the rates of all training corpora, None for those without one."""
    given = [rate for rate in rates if rate is not None]
    if given and len(given) < len(rates):
        raise ValueError("corpora: some have a rate and others none; give all of them one, or none.")
    if any(not 0 < rate < float("inf") for rate in given):
        raise ValueError(f"corpora: rate={min(given):g} is not a rate: expected a number above 0.")
    if temperature is not None and given:
        raise ValueError(f"corpus_temperature={temperature:g} and rates of corpora exclude each other: remove one.")
    if temperature is not None and not 1 <= temperature < float("inf"):
        raise ValueError(f"corpus_temperature={temperature:g} is not a temperature: expected 1 or more.")
