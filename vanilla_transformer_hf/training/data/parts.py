"""Several corpora in one run: what a recipe says of each, languages and tags, and which pairs an epoch has."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...common.column_names import SIDES
from ..arguments import DataArguments


ROLES = ("train", "validation", "test")
# What a corpus of its own may say; for the rest it has what the recipe says.
CORPUS_FIELDS = (
    *(f"{role}_{what}" for role in ROLES for what in (*SIDES, "split")),
    *(f"{side}_{what}" for side in SIDES for what in ("lang", "column")),
    "dataset_config_name",
)
RATE = "rate"
# Names of the corpora of a run with corrections.
CORRECTIONS, REPLAYED = "corrections", "text"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def check_corpora(corpora: Any, where: str) -> dict[str, dict[str, Any]]:
    """The corpora of a recipe, or of a file that it names: name -> fields."""
    if not isinstance(corpora, Mapping) or not corpora:
        raise ValueError(f"{where}: expected a mapping of names of corpora to their fields.")
    for name, fields in corpora.items():
        if not NAME.fullmatch(str(name)):
            raise ValueError(f"{where}: {name!r} is not a name of a corpus: expected letters, digits, _ and -.")
        if not isinstance(fields, Mapping):
            raise ValueError(f"{where}: {name} is not a mapping of fields to values.")
        for field, value in fields.items():
            if field not in (*CORPUS_FIELDS, RATE):
                raise ValueError(
                    f"{where}: {name} has a field {field!r}; a corpus has {RATE}, {', '.join(CORPUS_FIELDS)}."
                )
            kind, expected = (int | float, "a number") if field == RATE else (str, "text")
            if not isinstance(value, kind) or value is True:
                raise ValueError(f"{where}: {name}: {field} is {value!r}: expected {expected}.")
    return {str(name): dict(fields) for name, fields in corpora.items()}


def add_corrections(data: DataArguments) -> None:
    """Put the corrections beside the text of the recipe, which is repeated, as corpora that are both scored."""
    # Their languages are those of the recipe.
    texts = {name: found for name in CORPUS_FIELDS if not name.endswith("_lang") and (found := getattr(data, name))}
    own = {"train_source": data.corrections, "validation_source": data.corrections, RATE: 1}
    data.corpora = {CORRECTIONS: own, REPLAYED: {**texts, RATE: data.replay}}
    for role in ROLES:
        for side in SIDES:
            setattr(data, f"{role}_{side}", None)


def _fields(data: DataArguments) -> dict[str, dict[str, Any]]:
    corpora: Any = data.corpora  # a name of a file only before the recipe is read
    # In the order of their names: another order in a recipe is the same run.
    return dict(sorted((corpora or {}).items()))


def corpus_parts(data: DataArguments) -> dict[str, DataArguments]:
    """Name of a corpus -> its arguments; empty if there is one, which the recipe itself names."""
    return {
        name: replace(data, corpora=None, **{field: value for field, value in fields.items() if field != RATE})
        for name, fields in _fields(data).items()
    }


def rates_of(data: DataArguments) -> dict[str, float | None]:
    """Name of a training corpus -> its rate."""
    return {name: fields.get(RATE) for name, fields in _fields(data).items() if fields.get("train_source")}


def new_tags(data: DataArguments) -> list[str]:
    """The target languages of several corpora, as tags of the sources, if there are several and no tags yet."""
    languages = dict.fromkeys(part.target_lang for part in corpus_parts(data).values() if part.target_lang)
    return list(languages) if len(languages) > 1 and not data.target_lang_tags else []


def refuse_several(data: DataArguments, reader: str) -> None:
    """Raise `ValueError` if the recipe has several corpora, because `reader` reads one."""
    if data.corrections:  # which `add_corrections` has put among the corpora
        raise ValueError(f"corrections: {reader} reads one training corpus and no corrections; remove them.")
    if data.corpora:
        raise ValueError(f"corpora: {reader} reads one training corpus; name it by train_source, without corpora.")


@dataclass(frozen=True)
class Mixture:
    """The rows of each epoch, for corpora that stand one after the other in one table."""

    # Each corpus has the same number of rows in every epoch. They are taken from one shuffled pass through the corpus
    # after the other, so that no pair is seen more than once more often than another. Rows depend on the seed and the
    # epoch alone, not on processes and workers, so that a run can be continued anywhere.

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # of whole corpora, in pairs
    counts: tuple[int, ...]  # of each in an epoch
    seed: int = 0  # of the order

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
        drawn, start = list[np.ndarray](), 0
        # Of each a stretch of its shuffled passes.
        for place, (size, count) in enumerate(zip(self.sizes, self.counts)):
            first, begin = divmod(epoch * count, size)
            passes = range(first, (epoch * count + count - 1) // size + 1)
            order = [np.random.default_rng([self.seed, place, number]).permutation(size) for number in passes]
            drawn.append(start + np.concatenate(order)[begin : begin + count])
            start += size
        return np.concatenate(drawn)

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
