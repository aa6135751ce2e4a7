"""Real and synthetic pairs as one training text, in a rate that is stated."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from ...common.checksums import digest_of_all
from ...common.lines import read_lines
from ..arguments import DataArguments
from ..checkpoints.record import find_data_sums
from ..data.corpora import load_corpora
from ..data.corpus import iterate_texts
from .records import columns_of, is_made_with, write_json, write_pairs


PAIRS, RECORD = "pairs.jsonl", "pairs.json"
Pairs = Callable[[], Iterator[tuple[str, str]]]


def parse_rate(text: str) -> tuple[int, int] | None:
    """`1:4` as (1, 4): one real pair for four synthetic ones; "natural": None, each once."""
    if text == "natural":
        return None
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"rate={text!r}: expected two whole numbers such as 1:4, real to synthetic pairs, or natural")
    return int(parts[0]), int(parts[1])


def amounts(real: int, synthetic: int, rate: tuple[int, int] | None) -> tuple[int, int]:
    """How many pairs of each kind the training text has: all of both, and some again to have the rate."""
    if rate is None:
        return real, synthetic
    # The least multiple of the rate with all pairs of both kinds.
    times = max(real / rate[0], synthetic / rate[1])
    return max(real, round(times * rate[0])), max(synthetic, round(times * rate[1]))


def write_mixed(data: DataArguments, synthetic: tuple[Path, Path], rate: tuple[int, int] | None, folder: Path) -> Path:
    """Write the recipe's pairs and synthetic ones as JSON lines, evenly mixed; an equal earlier file is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    data = replace(data, streaming=False)
    corpus = load_corpora(data)["train"]
    output, record = folder / PAIRS, folder / RECORD
    settings = {
        "real": {name: value for name, value in find_data_sums(data, {"train": corpus}).items() if "train" in name},
        "synthetic": [digest_of_all(path) for path in synthetic],
        "rate": rate,
        "columns": list(columns_of(data)),
    }
    if not is_made_with(record, settings, [output]):
        count = sum(1 for _ in read_lines(synthetic[1]))
        sizes = amounts(len(corpus), count, rate)
        record.unlink(missing_ok=True)
        kinds: tuple[Pairs, Pairs] = (
            lambda: zip(iterate_texts(corpus, "source"), iterate_texts(corpus, "target")),
            lambda: zip(read_lines(synthetic[0]), read_lines(synthetic[1]), strict=True),
        )
        write_pairs(output, evenly(again(kinds[0]), again(kinds[1]), *sizes), columns_of(data))
        write_json(record, {"real_pairs": len(corpus), "synthetic_pairs": count, "lines": sizes, "settings": settings})
    print(f"training text: {in_words(record)}: {output}", flush=True)
    return output


def in_words(record: Path) -> str:
    """The numbers of pairs in a mixed text, and how often each occurs in it."""
    known: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    parts = []
    for kind, count, lines in zip(
        ("real", "synthetic"), (known["real_pairs"], known["synthetic_pairs"]), known["lines"]
    ):
        times = "" if lines == count else f" (each {lines / count:.3g} times)"
        parts.append(f"{count:,} {kind} pairs{times}")
    return " and ".join(parts)


def again(read: Pairs) -> Iterator[tuple[str, str]]:
    """The pairs over and over."""
    return chain.from_iterable(each() for each in repeat(read))


def evenly(first: Iterator[Any], second: Iterator[Any], count: int, others: int) -> Iterator[Any]:
    """`count` items of the first and `others` of the second, evenly mixed."""
    total, taken = count + others, 0
    for place in range(1, total + 1):
        if taken < place * count // total:
            taken += 1
            yield next(first)
        else:
            yield next(second)
