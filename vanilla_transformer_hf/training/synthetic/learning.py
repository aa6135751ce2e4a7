"""The recipe of a model that learns synthetic pairs beside real ones: one training text, in a stated rate."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from ...common.checksums import digest_of_all
from ...common.lines import read_lines
from ...common.opening import open_tokenizer
from ..arguments import DataArguments
from ..checkpoints.resume import find_data_sums
from ..data.cleaning import key_of_pair
from ..data.corpora import load_corpora
from ..data.corpus import hub_id, iterate_texts
from ..data.parts import refuse_several
from .synthetic_text import BLANK, Side, SyntheticText
from .translations import columns_of, is_made_with, write_json, write_pairs


PAIRS, RECORD = "pairs.jsonl", "pairs.json"
Pairs = Callable[[], Iterator[tuple[str, str]]]
Rate = tuple[int, int] | None  # of real and synthetic pairs; None: each once


def parse_rate(text: str) -> Rate:
    """`1:4` as (1, 4): one real pair for four synthetic ones; "natural": None, each once."""
    if text == "natural":
        return None
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"rate={text!r}: expected two whole numbers such as 1:4, real to synthetic pairs, or natural")
    return int(parts[0]), int(parts[1])


def amounts(real: int, synthetic: int, rate: Rate) -> tuple[int, int]:
    """How many pairs of each kind the training text has: all of both, and some again to have the rate."""
    if rate is None:
        return real, synthetic
    # The least multiple of the rate with all pairs of both kinds.
    times = max(real / rate[0], synthetic / rate[1])
    return max(real, round(times * rate[0])), max(synthetic, round(times * rate[1]))


def write_mixed(data: DataArguments, corpus: Any, synthetic: tuple[Path, Path], rate: Rate, folder: Path) -> Path:
    """Write the recipe's pairs and synthetic ones as JSON lines, evenly mixed; an equal earlier file is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    output, record = folder / PAIRS, folder / RECORD
    settings = {
        "real": {name: value for name, value in find_data_sums(data, {"train": corpus}).items() if "train" in name},
        "synthetic": [digest_of_all(path) for path in synthetic],
        "rate": rate,
        "columns": list(columns_of(data)),
        "drop_duplicates": data.drop_duplicates,
    }
    if not is_made_with(record, settings, [output]):
        if data.drop_duplicates:
            rows = dict[int, int]()
            for row, pair in enumerate(zip(iterate_texts(corpus, "source"), iterate_texts(corpus, "target"))):
                rows.setdefault(key_of_pair(*pair), row)
            corpus = corpus.select(list(rows.values()))
        count = sum(1 for _ in read_lines(synthetic[1]))
        sizes = amounts(len(corpus), count, rate)
        record.unlink(missing_ok=True)
        kinds: tuple[Pairs, Pairs] = (
            lambda: zip(iterate_texts(corpus, "source"), iterate_texts(corpus, "target")),
            lambda: zip(read_lines(synthetic[0]), read_lines(synthetic[1]), strict=True),
        )
        write_pairs(output, evenly(again(kinds[0]), again(kinds[1]), *sizes), columns_of(data))
        write_json(record, {"real_pairs": len(corpus), "synthetic_pairs": count, "lines": sizes, "settings": settings})
    known: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    parts = []
    for kind, lines in zip(("real", "synthetic"), known["lines"]):
        count = known[f"{kind}_pairs"]
        times = "" if lines == count else f" (each {lines / count:.3g} times)"
        parts.append(f"{count:,} {kind} pairs{times}")
    print(f"training text: {' and '.join(parts)}: {output}", flush=True)
    return output


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


def languages_of(model: str, side: Side, data: DataArguments | None) -> tuple[str, str]:
    """The languages of source and target: the recipe's, or those of the model's tokenizer."""
    known = open_tokenizer(model).init_kwargs
    of_model = known.get("src_lang"), known.get("tgt_lang")
    found = of_model if side == "source" else of_model[::-1]
    if data is None:
        return found[0] or "source", found[1] or "target"
    wanted = data.source_lang, data.target_lang
    for ours, theirs in zip(wanted, found):
        if ours and theirs and ours != theirs:
            needed = wanted if side == "source" else wanted[::-1]
            raise ValueError(
                f"{model} translates from {of_model[0]} to {of_model[1]}: this recipe and text of its {side} "
                f"language need a model from {needed[0]} to {needed[1]}; --reverse trains one by the same recipe"
            )
    return wanted[0] or found[0] or "source", wanted[1] or found[1] or "target"


def read_real(data: DataArguments, side: Side) -> tuple[Any, list[str]]:
    """The recipe's training pairs, and the texts on this side of its other text, which must not be learned."""
    refuse_several(data, "back-translate")
    if not data.train_source:
        raise ValueError("train_source is not given: name the real pairs that synthetic ones are mixed with")
    corpora = load_corpora(replace(data, streaming=False))
    real = corpora.pop("train")
    return real, [text for corpus in corpora.values() for text in iterate_texts(corpus, side)]


def fields_of_pairs(
    data: DataArguments, real: Any, wanted: SyntheticText, files: tuple[Path, Path], rate: Rate, folder: Path
) -> dict[str, Any]:
    """Write a recipe's pairs mixed with synthetic ones; returns its fields to train on them, without train_target."""
    fields: dict[str, Any] = {"train_source": str(write_mixed(data, real, files, rate, folder))}
    fields["corpus_name"] = data.corpus_name or hub_id(data.train_source)  # a file is not named after its data set
    if rate is not None:  # which repeats pairs: those that the text had twice are left out before
        fields["drop_duplicates"] = False
    known = [*(data.source_tags or ()), *(f"<2{language}>" for language in data.target_lang_tags or ())]
    new = wanted.tag.split()  # and what noise puts in the place of words
    new += [BLANK] if wanted.noise is not None and wanted.noise.replace else []
    if tags := [*(data.source_tags or ()), *(tag for tag in new if tag not in known and wanted.side == "target")]:
        fields["source_tags"] = tags
    return fields


def about(wanted: SyntheticText, rate: Rate, texts: Sequence[str]) -> str:
    """A sentence on the synthetic text for the card of the model that has learned it."""
    names = " and ".join(Path(text).name for text in texts)
    model = hub_id(wanted.search.model) or Path(wanted.search.model).name
    how = "natural amounts" if rate is None else f"the rate {rate[0]} real to {rate[1]} synthetic"
    made = "sources" if wanted.side == "target" else "targets"
    tagged = f", marked {wanted.tag}" if wanted.tag and wanted.side == "target" else ""
    return f"Trained on synthetic text, too: {model} translated {names} into {made}{tagged}; {how}."
