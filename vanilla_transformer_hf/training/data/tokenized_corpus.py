"""Parallel text as token ids: the filter of pairs, and the table or stream of their ids."""

import json
import unicodedata
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import datasets
import numpy as np
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from ...common.choices import TooLongToTrain
from ...common.column_names import SIDES
from ...common.white_space import normalize_space


# Rows of a block of a tokenized table. Opening a table reads and keeps metadata of each block: with the library's
# blocks of 1000 rows, a corpus of ten million pairs would be in memory before training begins.
BLOCK_ROWS = 20_000

# Values of the column "verdict" of a pair. From EMPTY on, pairs are left out.
KEPT, TRUNCATED, EMPTY, TOO_LONG, UNEVEN, DUPLICATE = range(6)
VERDICTS = {
    TRUNCATED: "truncated to the longest allowed",
    EMPTY: "with an empty side left out",
    TOO_LONG: "too long and left out",
    UNEVEN: "of too different lengths left out",
    DUPLICATE: "that occurred before left out",
}


@dataclass
class CorpusFilter:
    """Which pairs of a corpus are used."""

    max_source_length: int  # in tokens, the end of sentence included
    max_target_length: int
    too_long: TooLongToTrain  # what happens to a pair with a longer one
    max_length_ratio: float | None = None  # most tokens of the longer side for one of the shorter
    drop_duplicates: bool = False  # keep the first of equal pairs only

    def judge(self, source: list[int], target: list[int]) -> int:
        """The verdict on a pair of token ids; both are empty lists if a side has no text."""
        if not source:
            return EMPTY
        is_long = len(source) > self.max_source_length or len(target) > self.max_target_length
        if is_long and self.too_long == "drop":
            return TOO_LONG
        lengths = sorted((len(source), len(target)))
        if self.max_length_ratio is not None and lengths[1] > self.max_length_ratio * lengths[0]:
            return UNEVEN
        return TRUNCATED if is_long else KEPT


@dataclass
class TokenizedCorpus:
    """Token ids of a corpus, and the numbers of pairs that were truncated or left out, by verdict."""

    # Columns of `data`: `input_ids` and `labels` (lists of int, end of sentence included), `length` (the longer of the
    # two), `line` (row number in the corpus, from 0), and the texts if requested.

    data: datasets.Dataset
    verdicts: dict[int, int]

    def __str__(self) -> str:
        return self.in_words("pairs")

    def in_words(self, unit: str) -> str:
        """The numbers of what is used and of what is not; `unit` is what is counted, such as "pairs"."""
        parts = [
            f"{self.verdicts[verdict]:,} {text}" for verdict, text in VERDICTS.items() if verdict in self.verdicts
        ]
        return "; ".join([f"{len(self.data):,} {unit}", *parts])


def truncate(ids: list[int], limit: int) -> list[int]:
    """At most `limit` token ids. The last is the end of sentence: it stays when the sentence is truncated."""
    return ids if len(ids) <= limit else ids[: limit - 1] + ids[-1:]


def _tokenize_batch(
    batch: dict[str, list[Any]], lines: list[int], tokenizer: Any, rules: CorpusFilter, keep_text: bool
) -> dict[str, list[Any]]:
    """Token ids of a batch of pairs, and the verdict on each; those left out have no ids."""
    texts = [[normalize_space(text or "") for text in batch[side]] for side in SIDES]
    # References in the form in which translations are written.
    if form := getattr(tokenizer, "init_kwargs", {}).get("unicode_normalization"):
        texts = [[unicodedata.normalize(form, text) for text in side] for side in texts]
    full = [row for row, (source, target) in enumerate(zip(*texts)) if source and target]
    columns: dict[str, list[Any]] = {name: [[] for _ in lines] for name in ("input_ids", "labels")}
    # Tokenizers raise an error for an empty list.
    if full:
        sources, targets = ([side[row] for row in full] for side in texts)
        # verbose=False: texts that are too long are counted here, and need no warning.
        encoded = (
            tokenizer(sources, verbose=False)["input_ids"],
            tokenizer(text_target=targets, verbose=False)["input_ids"],
        )
        for name, sentences in zip(columns, encoded):
            for row, ids in zip(full, sentences):
                columns[name][row] = ids
    verdicts = [rules.judge(source, target) for source, target in zip(columns["input_ids"], columns["labels"])]
    for name, limit in (("input_ids", rules.max_source_length), ("labels", rules.max_target_length)):
        columns[name] = [
            [] if verdict >= EMPTY else truncate(ids, limit) for verdict, ids in zip(verdicts, columns[name])
        ]
    columns |= {"line": lines, "verdict": verdicts}
    columns["length"] = [max(len(ids), len(out)) for ids, out in zip(columns["input_ids"], columns["labels"])]
    if rules.drop_duplicates:
        columns["hash"] = [_hash(source, target) for source, target in zip(*texts)]
    return columns | (dict(zip(SIDES, texts)) if keep_text else {})


def _hash(source: str, target: str) -> int:
    text = f"{len(source)} {source}{target}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True)


def _identity(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """The settings that determine the ids of a text; the object's hash would change with its last padding."""
    names = ("backend_tokenizer", "source_backend_tokenizer")
    backends = [getattr(tokenizer, name) for name in names if hasattr(tokenizer, name)]
    if not backends:  # a Python tokenizer, which has no further settings
        return [{"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab(), "settings": str(tokenizer)}]
    listed = {name: getattr(tokenizer, name, None) for name in ("listed_pieces", "source_listed_pieces")}
    return [listed, *(json.loads(each.to_str()) | {"padding": None, "truncation": None} for each in backends)]


def tokenize_corpus(
    corpus: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    rules: CorpusFilter,
    *,
    keep_text: bool = False,
    num_proc: int | None = None,
) -> TokenizedCorpus:
    """Tokenize a corpus in `num_proc` processes into a cached, memory-mapped table of the pairs that `rules` keep."""
    kinds = {"line": "int64", "verdict": "int8", "length": "int32"}
    kinds |= {"hash": "int64"} if rules.drop_duplicates else {}
    kinds |= dict.fromkeys(SIDES, "string") if keep_text else {}
    features = {name: datasets.List(datasets.Value("int32")) for name in ("input_ids", "labels")}
    features |= {name: datasets.Value(kind) for name, kind in kinds.items()}
    data = corpus.map(
        _tokenize_batch,
        with_indices=True,
        batched=True,
        fn_kwargs={"tokenizer": tokenizer, "rules": rules, "keep_text": keep_text},
        remove_columns=corpus.column_names,
        features=datasets.Features(features),
        writer_batch_size=BLOCK_ROWS,
        num_proc=num_proc,
        # Tables of versions that did not normalise white space have another fingerprint.
        new_fingerprint=Hasher.hash((corpus._fingerprint, _identity(tokenizer), rules, kinds, "normalized")),
        desc="Tokenizing",
    )
    verdicts = _column(data, "verdict").astype(np.int8)
    if rules.drop_duplicates:
        hashes = _column(data, "hash")
        again = np.ones(len(hashes), dtype=bool)
        again[np.unique(hashes, return_index=True)[1]] = False
        verdicts[again & (verdicts < EMPTY)] = DUPLICATE
    counts = {int(verdict): int(count) for verdict, count in zip(*np.unique(verdicts, return_counts=True))}
    kept = np.flatnonzero(verdicts < EMPTY)
    data = data.remove_columns({"verdict", "hash"} & set(data.column_names))
    result = TokenizedCorpus(data if len(kept) == len(data) else data.select(kept), counts)
    if len(kept) == 0:
        raise ValueError(f"no sentence pair is left of the {len(corpus):,} pairs of this corpus: {result}.")
    return result


def _column(data: datasets.Dataset, name: str) -> np.ndarray:
    values: np.ndarray = data.data.column(name).to_numpy()
    return values


def tokenize_stream(
    corpus: datasets.IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    rules: CorpusFilter,
    *,
    keep_text: bool = False,
) -> datasets.IterableDataset:
    """Tokenize a stream of pairs while it is read; the columns are those of `TokenizedCorpus`."""
    if rules.drop_duplicates:
        raise ValueError("drop_duplicates is not possible with streaming: remove one of them.")
    settings = {"tokenizer": tokenizer, "rules": rules, "keep_text": keep_text}
    stream = corpus.map(
        _tokenize_batch, with_indices=True, batched=True, fn_kwargs=settings, remove_columns=corpus.column_names
    )
    return stream.filter(_is_used, input_columns="verdict").remove_columns("verdict")


def _is_used(verdict: int) -> bool:
    return verdict < EMPTY
