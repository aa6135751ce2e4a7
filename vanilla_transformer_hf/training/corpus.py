"""Parallel text to token ids: readers for every file format, tokenization and the batch collator.

A corpus is a `datasets.Dataset` with the string columns "source" and "target", memory-mapped from disk.
"""

import csv
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import numpy as np
import torch
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from ..common.files import read_lines
from ..model.generation_vanilla_transformer import check_token_ids
from .recipe import TooLong


IGNORED_LABEL = -100
SIDES = ("source", "target")
Corpus: TypeAlias = datasets.Dataset | datasets.IterableDataset
Names = tuple[tuple[str, ...], ...]  # the names that the column of each side may have
TEXT_PAIR = datasets.Features({side: datasets.Value("string") for side in SIDES})


def _text_pairs(source: str, target: str) -> Iterator[dict[str, str]]:
    """Pairs of two plain-text files, line by line."""
    source_lines, target_lines = read_lines(source), read_lines(target)
    counts = dict.fromkeys(SIDES, 0)
    for pair in zip_longest(source_lines, target_lines):
        for side, line in zip(SIDES, pair):
            counts[side] += line is not None
        if None not in pair:
            yield dict(zip(SIDES, pair))
    if counts["source"] != counts["target"]:
        raise ValueError(
            f"source and target differ in length: {source} has {counts['source']} lines, "
            f"{target} has {counts['target']} lines."
        )


def _tsv_pairs(path: str, names: Names) -> Iterator[dict[str, str]]:
    """Pairs of a tab-separated file: of the named columns, or of the first two if the first line names none."""
    positions = [0, 1]
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        # Columns that were asked for must be there; language codes may also stand over no column at all.
        is_header = any(len(side) == 1 for side in names) or all(set(side) & set(cells) for side in names)
        if number == 1 and is_header:
            positions = [cells.index(name) for name in _find_columns(path, cells, names)]
            continue
        if len(cells) <= max(positions):
            raise ValueError(f"{path}, line {number}: {len(cells)} columns, at least {max(positions) + 1} expected.")
        yield {side: cells[position] for side, position in zip(SIDES, positions)}


def _csv_pairs(path: str, names: Names) -> Iterator[dict[str, str]]:
    """Pairs of a comma-separated file with a header; quotes as in RFC 4180."""
    reader = csv.DictReader(read_lines(path, keep_ends=True), strict=True)
    try:
        columns = _find_columns(path, list(reader.fieldnames or []), names)
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(
                    f"{path}, line {reader.line_num}: the number of columns differs from the header's "
                    f"{len(reader.fieldnames or [])}."
                )
            yield {side: row[column] for side, column in zip(SIDES, columns)}
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error


def _json_pairs(path: str, names: Names) -> Iterator[dict[str, str]]:
    """Pairs of a JSON-lines file, flat or nested under "translation"."""
    columns: list[str] | None = None
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error}); one object per line is expected.") from error
        if isinstance(row, dict) and isinstance(row.get("translation"), dict):
            row = row["translation"]
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: a {type(row).__name__}, but one object per line is expected.")
        columns = columns or _find_columns(f"{path}, line {number}", list(row), names)
        for column in columns:
            if not isinstance(row.get(column), str):
                raise ValueError(f"{path}, line {number}: {column!r} is {row.get(column)!r}, but text is expected.")
        yield {side: row[column] for side, column in zip(SIDES, columns)}


ROW_READERS = {".tsv": _tsv_pairs, ".csv": _csv_pairs, ".jsonl": _json_pairs, ".json": _json_pairs}


def _find_columns(where: str, columns: list[str], names: Names) -> list[str]:
    """The source and the target column among `columns`: the first of each side's `names` that is there."""
    found = []
    for side, candidates in zip(SIDES, names):
        present = [name for name in candidates if name in columns]
        if not present:
            wanted = " or ".join(repr(name) for name in dict.fromkeys(candidates))
            raise ValueError(f"{where}: no column {wanted} for the {side} text; there are: {', '.join(columns)}.")
        found.append(present[0])
    if found[0] == found[1]:
        raise ValueError(f"{where}: source and target are the same column {found[0]!r}.")
    return found


def _rows(reader: Callable[..., Iterator[dict[str, str]]], arguments: dict[str, Any]) -> Iterator[dict[str, str]]:
    pair = None
    for pair in reader(**arguments):
        yield pair
    if pair is None:
        raise ValueError(f"{next(iter(arguments.values()))}: the corpus is empty, it holds no sentence pair.")


def _from_rows(
    reader: Callable[..., Iterator[dict[str, str]]], paths: list[str], streaming: bool, **arguments: Any
) -> Corpus:
    """The Arrow file of a row reader, written once per state of the files it reads; or the stream of its rows."""
    rows: dict[str, Any] = {"reader": reader, "arguments": arguments}
    if streaming:
        return datasets.IterableDataset.from_generator(_rows, features=TEXT_PAIR, gen_kwargs=rows)
    states = [(os.path.abspath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    try:
        return datasets.Dataset.from_generator(
            _rows,
            features=TEXT_PAIR,
            gen_kwargs=rows,
            fingerprint=Hasher.hash((reader.__name__, states, arguments)),
        )
    except DatasetGenerationError as error:
        # The builder wraps what the reader says; the reader's own line is the one that helps.
        if isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        raise


def _from_table(table: Corpus, where: str, names: Names) -> Corpus:
    """The two text columns of a `datasets` table, flat or nested under "translation"; nothing is copied."""
    if table.features is None:
        raise ValueError(f"{where}: a stream that does not say which columns it has.")
    features: Any = table.features
    if "translation" in features:
        features = features["translation"]
        if isinstance(features, datasets.Translation):
            features = dict.fromkeys(features.languages, datasets.Value("string"))
    columns = _find_columns(where, list(features), names)
    for name in columns:
        if getattr(features[name], "dtype", None) not in ("string", "large_string"):
            raise ValueError(f"{where}: column {name!r} holds {features[name]}, but text is expected.")
    if isinstance(table, datasets.IterableDataset):
        return table.map(
            _to_sides, fn_kwargs={"columns": columns}, remove_columns=list(table.features), features=TEXT_PAIR
        )
    if "translation" in table.features:
        table = table.select_columns("translation").flatten()
        columns = [f"translation.{name}" for name in columns]
    return table.select_columns(columns).rename_columns(dict(zip(columns, SIDES))).cast(TEXT_PAIR)


def _to_sides(row: dict[str, Any], columns: list[str]) -> dict[str, str]:
    row = row.get("translation", row)
    return {side: row[column] for side, column in zip(SIDES, columns)}


def _load_hub_or_folder(source: str, split: str, config_name: str | None, streaming: bool) -> Corpus:
    """A split of a folder that `save_to_disk` wrote, or of a dataset on the Hub."""
    if not os.path.isdir(source):
        try:
            return datasets.load_dataset(source, config_name, split=split, streaming=streaming)
        except (FileNotFoundError, datasets.exceptions.DatasetNotFoundError) as error:
            raise FileNotFoundError(
                f"{source}: no such file or folder here, and no such dataset on the Hub."
            ) from error
    try:
        loaded = datasets.load_from_disk(source)
    except FileNotFoundError as error:
        raise ValueError(f"{source}: a folder that `datasets` did not save.") from error
    if not isinstance(loaded, datasets.Dataset):
        if split not in loaded:
            raise ValueError(f"{source}: no split {split!r}; there are: {', '.join(loaded)}.")
        loaded = loaded[split]
    return loaded.to_iterable_dataset() if streaming else loaded


def load_parallel_text(
    source: str,
    target: str | None = None,
    *,
    split: str = "train",
    config_name: str | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    streaming: bool = False,
) -> Corpus:
    """
    Load parallel text as a memory-mapped dataset with the columns "source" and "target", or as a stream of its rows.

    Args:
        source: With `target`: a plain-text file, one sentence per line. Without: a file that holds both sides (`.tsv`,
            `.csv`, `.jsonl`, `.json` of one object per line, `.parquet`), a folder saved by `datasets`, or the id of
            a dataset on the Hub. Text files may be compressed (`.gz`).
        target: The plain-text file whose line i translates line i of `source`.
        split, config_name: Which part of a saved folder or of a Hub dataset.
        source_column, target_column: Column names, or languages under a "translation" column; if not given, the
            language codes, then "source" and "target". A TSV file may have no header: the first two columns then.
        source_lang, target_lang: Language codes.
        streaming: Read the rows when they are asked for; nothing is stored.

    Raises:
        FileNotFoundError: No such file, folder or dataset.
        ValueError: Files of different length, invalid UTF-8, a missing column, no pair at all, or `target` given for a
            file that holds both sides.
    """
    names = tuple(
        (column,) if column else (lang or side, side)
        for column, lang, side in zip((source_column, target_column), (source_lang, target_lang), SIDES)
    )
    suffixes = Path(source).suffixes
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])
    for path in filter(None, (source, target)):
        if (target or kind in (*ROW_READERS, ".parquet", ".gz")) and not os.path.isfile(path):
            raise FileNotFoundError(f"{path}: no such file.")
    if target and kind in (*ROW_READERS, ".parquet"):
        raise ValueError(f"{source} holds both sides, and {target} is given, too: leave one of the two out.")
    if target:
        corpus = _from_rows(_text_pairs, [source, target], streaming, source=source, target=target)
    elif kind in ROW_READERS:
        corpus = _from_rows(ROW_READERS[kind], [source], streaming, path=source, names=names)
    elif kind == ".parquet":
        table = datasets.load_dataset("parquet", data_files=source, split="train", streaming=streaming)
        corpus = _from_table(table, source, names)
    elif os.path.isfile(source):
        raise ValueError(
            f"{source}: one file of a pair, or an unknown format; name the file with the translations too, or give "
            f"one of {', '.join(ROW_READERS)}, .parquet."
        )
    else:
        corpus = _from_table(_load_hub_or_folder(source, split, config_name, streaming), source, names)
    if isinstance(corpus, datasets.Dataset) and len(corpus) == 0:
        raise ValueError(f"{source}: the corpus is empty, it holds no sentence pair.")
    return corpus


# Rows of a tokenized table that are written together. Opening a table reads something of each block, and keeps it: in
# blocks of the library's 1000 rows, a corpus of ten million pairs would be in memory before training begins.
BLOCK_ROWS = 20_000

# What became of a pair, as the column "verdict" says it. From EMPTY on, pairs are left out.
KEPT, CUT, EMPTY, TOO_LONG, UNEVEN, DUPLICATE = range(6)
VERDICTS = {
    CUT: "cut to the longest allowed",
    EMPTY: "with an empty side left out",
    TOO_LONG: "too long and left out",
    UNEVEN: "of too different lengths left out",
    DUPLICATE: "that occurred before left out",
}


@dataclass
class CorpusFilter:
    """
    Which pairs of a corpus are used.

    Args:
        max_source_length, max_target_length: Most tokens of a sentence, the end of sentence included.
        too_long: What happens to a pair with a longer one: "drop" it, or "cut" its end off.
        max_length_ratio: Most tokens of the longer side for one of the shorter; None: any.
        drop_duplicates: Keep the first of equal pairs only.
    """

    max_source_length: int
    max_target_length: int
    too_long: TooLong
    max_length_ratio: float | None = None
    drop_duplicates: bool = False

    @property
    def limits(self) -> tuple[int, int]:
        return self.max_source_length, self.max_target_length

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
        return CUT if is_long else KEPT


@dataclass
class TokenizedCorpus:
    """
    Token ids of a corpus, and what became of its pairs: how many were cut or left out, by verdict.

    Columns of `data`: `input_ids` and `labels` (lists of int, end of sentence included), `length` (the longer of the
    two), `line` (row number in the corpus, from 0), and the texts if they were asked for.
    """

    data: datasets.Dataset
    verdicts: dict[int, int]

    def __str__(self) -> str:
        parts = [
            f"{self.verdicts[verdict]:,} {text}" for verdict, text in VERDICTS.items() if verdict in self.verdicts
        ]
        return "; ".join([f"{len(self.data):,} pairs", *parts])


def cut(ids: list[int], limit: int) -> list[int]:
    """At most `limit` token ids. The last is the end of sentence: it stays when the sentence is cut."""
    return ids if len(ids) <= limit else ids[: limit - 1] + ids[-1:]


def _tokenize_batch(
    batch: dict[str, list], lines: list[int], tokenizer: Any, rules: CorpusFilter, keep_text: bool
) -> dict[str, list]:
    """Token ids of a batch of pairs, and the verdict on each; those left out have no ids."""
    texts = [[text or "" for text in batch[side]] for side in SIDES]
    full = [row for row, (source, target) in enumerate(zip(*texts)) if source.strip() and target.strip()]
    columns: dict[str, list] = {name: [[] for _ in lines] for name in ("input_ids", "labels")}
    # Tokenizers refuse an empty list.
    if full:
        sources, targets = ([side[row] for row in full] for side in texts)
        # Not verbose: what is too long is counted here, and needs no warning of the host's.
        encoded = (
            tokenizer(sources, verbose=False)["input_ids"],
            tokenizer(text_target=targets, verbose=False)["input_ids"],
        )
        for name, sentences in zip(columns, encoded):
            for row, ids in zip(full, sentences):
                columns[name][row] = ids
    verdicts = [rules.judge(source, target) for source, target in zip(columns["input_ids"], columns["labels"])]
    for name, limit in zip(("input_ids", "labels"), rules.limits):
        columns[name] = [[] if verdict >= EMPTY else cut(ids, limit) for verdict, ids in zip(verdicts, columns[name])]
    columns |= {"line": lines, "verdict": verdicts}
    columns["length"] = [max(len(ids), len(out)) for ids, out in zip(columns["input_ids"], columns["labels"])]
    if rules.drop_duplicates:
        columns["hash"] = [_hash(source, target) for source, target in zip(*texts)]
    return columns | (dict(zip(SIDES, texts)) if keep_text else {})


def _hash(source: str, target: str) -> int:
    text = f"{len(source)} {source}{target}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True)


def _identity(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """What decides the ids of a text. A hash of the object would change with the padding of its last call."""
    names = ("backend_tokenizer", "source_backend_tokenizer")
    backends = [getattr(tokenizer, name) for name in names if hasattr(tokenizer, name)]
    if not backends:  # one in Python, which has no more to tell of itself
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
    """
    Tokenize a corpus in `num_proc` processes into a cached, memory-mapped table, without what `rules` refuse.

    Args:
        keep_text: Keep the columns "source" and "target".

    Raises:
        ValueError: No pair is left.
    """
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
        new_fingerprint=Hasher.hash((corpus._fingerprint, _identity(tokenizer), rules, kinds)),
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
    return data.data.column(name).to_numpy()


def tokenize_stream(
    corpus: datasets.IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    rules: CorpusFilter,
    *,
    keep_text: bool = False,
) -> datasets.IterableDataset:
    """
    Tokenize a stream of pairs while it is read; the columns are those of `TokenizedCorpus`.

    Raises:
        ValueError: `rules` ask for duplicates to be dropped, which would have to be remembered.
    """
    if rules.drop_duplicates:
        raise ValueError(
            "drop_duplicates: a stream is too long to remember its pairs; do without, or without streaming."
        )
    settings = {"tokenizer": tokenizer, "rules": rules, "keep_text": keep_text}
    stream = corpus.map(
        _tokenize_batch, with_indices=True, batched=True, fn_kwargs=settings, remove_columns=corpus.column_names
    )
    return stream.filter(_is_used, input_columns="verdict").remove_columns("verdict")


def _is_used(verdict: int) -> bool:
    return verdict < EMPTY


def vocabulary_sizes(model_or_tokenizer: PreTrainedModel | PreTrainedTokenizerBase) -> tuple[int, int]:
    """Sizes of the source and of the target vocabulary."""
    is_tokenizer = isinstance(model_or_tokenizer, PreTrainedTokenizerBase)
    holder: Any = model_or_tokenizer if is_tokenizer else model_or_tokenizer.config
    target_size = len(holder) if is_tokenizer else holder.vocab_size
    return getattr(holder, "source_vocab_size", None) or target_size, target_size


@dataclass
class TranslationCollator(DataCollatorForSeq2Seq):
    """
    Pads a batch to its longest sentence and refuses ids that the model has no embedding for.

    `__call__` returns `input_ids`, `attention_mask` (B, S) and `labels` (B, T), padded with -100, and `line` (B,)
    where the pairs have one; the decoder input is left to the model, which shifts the labels itself.

    Raises:
        ValueError: An id lies outside its vocabulary; the message names both.
    """

    source_vocab_size: int = 0
    target_vocab_size: int = 0

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, torch.Tensor]:
        pairs = [{name: feature[name] for name in ("input_ids", "labels")} for feature in features]
        batch = super().__call__(pairs, return_tensors)
        check_token_ids(batch["input_ids"], self.source_vocab_size, "input_ids")
        labels = batch["labels"]
        check_token_ids(labels[labels != IGNORED_LABEL], self.target_vocab_size, "labels")
        if "line" in features[0]:
            batch["line"] = torch.tensor([feature["line"] for feature in features])
        return batch


def iterate_texts(corpus: datasets.Dataset, side: str, batch_size: int = 1000) -> Iterator[str]:
    """Yield the "source" or "target" sentences of a corpus, a batch in memory at a time."""
    for batch in corpus.select_columns(side).iter(batch_size):
        yield from batch[side]
