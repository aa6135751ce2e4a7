"""What a run's text does not allow it to learn or to measure; `trainer/progress.py` warns of runs too short."""

from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc

from ..common.column_names import SIDES
from .data.collators import vocabulary_sizes
from .data.parts import CORRECTIONS
from .pretraining.denoising import DENOISING
from .recipe import RunArguments


# A token that is seen so many times, or more, can be learned; and the share of others that is no reason to say so. On
# 6,644 pairs English-Yoruba, 4 % of 4,000 tokens are rarer, 9 % of 8,000, and 34 % of 16,000; on 29,000 captions, 7 %
# of 8,000 and 27 % of 16,000.
SEEN, RARE_SHARE = 5, 0.08
# Pairs: BLEU of fewer differs by several points between samples of the same text (Koehn 2004).
FEWEST_SCORED = 300
IDENTICAL_SHARE = 0.5
# Of the sources of a held-out text, those that stand in the training text. Of the seven African languages of MAFAND-MT
# as published, 0 to 2 %, but 38 % of the English–Zulu test text.
KNOWN_SHARE = 0.01
SAMPLE = 100_000  # pairs at the beginning that are compared


def find_doubts(run: RunArguments, tokenizer: Any, corpora: dict[str, Any], data: dict[str, Any]) -> Iterator[str]:
    """Warnings about the text of a run, each with what to do; `corpora` are texts by role, `data` is tokenized."""
    if isinstance(train := data["train"], datasets.Dataset):
        if run.data.task != DENOISING:  # whose pairs are a text and itself
            # A rate of synthetic pairs, which the tags mark, repeats the real ones.
            yield from _doubts_of_pairs(corpora, run.data.drop_duplicates or bool(run.data.source_tags))
        if run.model.begins_with is None:
            yield from _doubts_of_vocabulary(tokenizer, train, are_pairs=run.data.task != DENOISING)
    for role, validation in data.items():
        name, _, part = role.partition(".")
        if name == "validation" and part != CORRECTIONS and len(validation) < FEWEST_SCORED:
            unit = "texts" if run.data.task == DENOISING else "pairs"
            yield (
                f"the {role} text has {len(validation):,} {unit}: scores of so few differ by several points by "
                f"chance, and so does the choice of a checkpoint; take {FEWEST_SCORED:,} or more."
            )


def _doubts_of_pairs(corpora: dict[str, Any], may_repeat: bool) -> Iterator[str]:
    """Of training pairs that teach to copy, are there again and again, or have sources of a held-out text."""
    # Of each text among the first 100,000.
    sample = _beginning(corpora["train"])
    source, target = (sample.column(side) for side in SIDES)
    copies = pc.sum(pc.equal(source, target)).as_py() or 0
    if copies >= IDENTICAL_SHARE * len(sample):
        yield (
            f"{copies:,} of {len(sample):,} training pairs have the same text on both sides: the model will learn to "
            "copy; vanilla-transformer clean leaves them out."
        )
    distinct = len(sample.group_by(list(SIDES)).aggregate([]))
    if not may_repeat and len(sample) - distinct >= IDENTICAL_SHARE * len(sample):
        yield (
            f"only {distinct:,} of {len(sample):,} training pairs are different: an epoch shows each several times; "
            "if no rate of back-translation wants this, drop_duplicates leaves the others out."
        )
    train = source.unique()
    for role, corpus in corpora.items():
        # Corrections are scored to see whether they are learned.
        if role in ("train", f"validation.{CORRECTIONS}") or not isinstance(corpus, datasets.Dataset):
            continue
        known = pc.sum(pc.is_in(_beginning(corpus).column("source"), value_set=train)).as_py() or 0
        if known and known >= KNOWN_SHARE * len(corpus):
            yield (
                f"{known:,} of {len(corpus):,} {role} pairs have a source that stands in the training text, too: "
                "their scores are not those of unseen text; vanilla-transformer clean --held_out leaves such training "
                "pairs out."
            )


def _beginning(corpus: datasets.Dataset) -> Any:
    table = corpus.select(range(min(len(corpus), SAMPLE))).with_format("arrow")[:]
    return table.from_pydict({side: pc.utf8_normalize(table.column(side), "NFC") for side in SIDES})


def _doubts_of_vocabulary(tokenizer: Any, train: datasets.Dataset, are_pairs: bool) -> Iterator[str]:
    sizes = vocabulary_sizes(tokenizer)
    has_two = bool(getattr(tokenizer, "source_vocab_size", None))
    counts = [_count(train, column, size) for column, size in zip(("input_ids", "labels"), sizes)]
    if has_two:
        sides = {"source ": counts[0], "target ": counts[1]}
    else:  # a text of denoising is both sides of its pair
        sides = {"": counts[0] + counts[1] if are_pairs else counts[1]}
    for side, seen in sides.items():
        # A byte is a token of its own, so that every text can be written, and special tokens have their own use; what
        # is never seen is a part of longer tokens.
        name_of = (
            tokenizer.source_backend_tokenizer.id_to_token if side == "source " else tokenizer.convert_ids_to_tokens
        )
        names, special = [name_of(index) for index in range(len(seen))], set(tokenizer.all_special_tokens)
        is_learned = np.array([name is not None and len(name) > 1 and name not in special for name in names])
        is_learned &= seen > 0
        rare, total = int((seen[is_learned] < SEEN).sum()), int(is_learned.sum())
        if rare > RARE_SHARE * total:
            yield (
                f"{rare:,} of {total:,} {side}tokens are seen fewer than {SEEN} times in the training text, too few "
                f"to learn them; lower vocab_size to, say, {len(seen) - rare:,} or less."
            )


def _count(data: datasets.Dataset, column: str, size: int) -> np.ndarray:
    """How often each id is in a column of a tokenized corpus, in which pairs that are left out are empty."""
    counts = np.zeros(size, dtype=np.int64)
    for chunk in data.data.column(column).chunks:
        counts += np.bincount(chunk.flatten().to_numpy(zero_copy_only=False), minlength=size)[:size]
    return counts
