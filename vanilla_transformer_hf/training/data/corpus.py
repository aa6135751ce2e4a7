"""Parallel text from files, saved folders and the Hub.

A corpus is a `datasets.Dataset` with the string columns "source" and "target", memory-mapped from disk.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import pyarrow
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher

from ...common.column_names import SIDES, Names, find_columns, names_of
from ...common.corpus_files import ROW_READERS, find_reader, kind_of, text_pairs
from ...common.unit_files import Row
from ...common.white_space import normalize_space


logger = logging.getLogger(__name__)

Corpus: TypeAlias = datasets.Dataset | datasets.IterableDataset
# Part of the name of what is kept of a file: another number where the readers give other rows.
READERS = 5
TEXT_PAIR = datasets.Features({side: datasets.Value("string") for side in SIDES})


def _rows(
    reader: Callable[..., Iterator[Row]], arguments: dict[str, Any], notes: str = ""
) -> Iterator[dict[str, str]]:
    """The pairs of a reader; how many units have no pair is reported, and kept in the file `notes`, if any."""
    path, is_empty, left_out = next(iter(arguments.values())), True, Counter[str]()
    for row in reader(**arguments):
        if isinstance(row, str):
            left_out[row] += 1
            continue
        is_empty = False
        yield row
    note = "; ".join(f"{count:,} {reason}" for reason, count in sorted(left_out.items()))
    if is_empty:
        units = f" ({note})" if note else ""
        raise ValueError(f"{path}: the corpus is empty, it holds no sentence pair{units}.")
    if notes and note:
        Path(notes).parent.mkdir(parents=True, exist_ok=True)
        Path(notes).write_text(note, encoding="utf-8")
    elif note:
        _tell(path, note)


def _tell(path: str, note: str) -> None:
    logger.warning("%s: units left out: %s.", path, note)


def from_rows(reader: Callable[..., Iterator[Row]], paths: list[str], streaming: bool, **arguments: Any) -> Corpus:
    """The Arrow file of a row reader, written once per state of its files, or the stream of its rows."""
    rows: dict[str, Any] = {"reader": reader, "arguments": arguments}
    if streaming:
        return datasets.IterableDataset.from_generator(_rows, features=TEXT_PAIR, gen_kwargs=rows)
    states = [(os.path.abspath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    fingerprint = Hasher.hash((READERS, reader.__name__, states, arguments))
    # The rows are read once, and what is left out is reported in every run.
    rows["notes"] = str(Path(datasets.config.HF_DATASETS_CACHE, "vanilla_transformer_hf", f"{fingerprint}.txt"))
    try:
        corpus = datasets.Dataset.from_generator(_rows, features=TEXT_PAIR, gen_kwargs=rows, fingerprint=fingerprint)
    except DatasetGenerationError as error:
        # The builder wraps the reader's error; the reader's own message is the useful one.
        if isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        raise
    with suppress(FileNotFoundError):
        _tell(paths[0], Path(rows["notes"]).read_text(encoding="utf-8"))
    return corpus


def _from_table(table: Corpus, where: str, names: Names) -> Corpus:
    """The two text columns of a `datasets` table, flat or under "translation"; missing texts become empty."""
    if table.features is None:
        raise ValueError(f"{where}: the stream does not state its columns.")
    features: Any = table.features
    nested: Any = features.get("translation")
    if is_nested := isinstance(nested, datasets.Translation | dict):
        text = datasets.Value("string")
        features = nested if isinstance(nested, dict) else dict.fromkeys(nested.languages, text)
    columns = find_columns(where, list(features), names)
    for name in columns:
        if getattr(features[name], "dtype", None) not in ("string", "large_string", "string_view"):
            raise ValueError(f"{where}: column {name!r} holds {features[name]}, but text is expected.")
    if isinstance(table, datasets.IterableDataset):
        fields = {"columns": columns, "is_nested": is_nested}
        return table.map(_to_sides, fn_kwargs=fields, remove_columns=list(table.features), features=TEXT_PAIR)
    if is_nested:
        table = table.select_columns("translation").flatten()
        columns = [f"translation.{name}" for name in columns]
    table = table.select_columns(columns).rename_columns(dict(zip(columns, SIDES))).cast(TEXT_PAIR)
    for name, side in zip(columns, SIDES):
        try:
            table.data.column(side).validate(full=True)
        except pyarrow.ArrowInvalid as error:  # Parquet files of some writers hold other bytes than UTF-8
            raise ValueError(f"{where}: column {name!r} is not valid UTF-8 ({error}).") from error
    if any(table.data.column(side).null_count for side in SIDES):
        table = table.map(lambda batch: {side: [text or "" for text in batch[side]] for side in SIDES}, batched=True)
    return table


def _to_sides(row: dict[str, Any], columns: list[str], is_nested: bool) -> dict[str, str]:
    texts = (row["translation"] or {}) if is_nested else row
    return {side: texts.get(column) or "" for side, column in zip(SIDES, columns)}


def hub_id(name: str | None) -> str | None:
    """The name of a model or a text if it may be a repository on the Hub, and no file or folder here."""
    return None if not name or Path(name).exists() else name


def has_splits(source: str) -> bool:
    """Whether a text is in a folder that `datasets` saved with splits, or may be on the Hub."""
    return hub_id(source) is not None or Path(source, datasets.config.DATASETDICT_JSON_FILENAME).is_file()


def _load_hub_or_folder(source: str, split: str, config_name: str | None, streaming: bool) -> Corpus:
    """A split of a folder that `save_to_disk` wrote, or of a dataset on the Hub."""
    if not os.path.isdir(source):
        try:
            return datasets.load_dataset(source, config_name, split=split, streaming=streaming)
        except (FileNotFoundError, datasets.exceptions.DatasetNotFoundError) as error:
            raise FileNotFoundError(
                f"{source}: no such file or folder here, and no such dataset on the Hub."
            ) from error
        except ConnectionError as error:
            raise ConnectionError(
                f"{source}: no such file or folder here, and the Hub, where it may be a dataset, cannot be reached."
            ) from error
    try:
        loaded = datasets.load_from_disk(source)
    except FileNotFoundError as error:
        raise ValueError(f"{source} is not a folder that `datasets` saved.") from error
    if not isinstance(loaded, datasets.Dataset):
        if split not in loaded:
            raise ValueError(f"{source}: no split {split!r}; there are: {', '.join(loaded)}.")
        loaded = loaded[split]
    return loaded.to_iterable_dataset() if streaming else loaded


def _reader_of_rows(
    source: str, target: str | None, names: Names
) -> tuple[Callable[..., Iterator[Row]], dict[str, Any]] | None:
    """The reader of the rows of one or two files, with its arguments; None for what the library `datasets` reads."""
    kind = kind_of(source)
    for path in filter(None, (source, target)):
        if (target or kind in (*ROW_READERS, ".parquet", ".gz")) and not os.path.isfile(path):
            raise FileNotFoundError(f"{path}: no such file.")
    if target and kind in (*ROW_READERS, ".parquet"):
        raise ValueError(f"{source} holds both sides, and {target} is given, too: leave one of the two out.")
    if target:
        return text_pairs, {"source": source, "target": target, "names": names}
    reader = find_reader(source)
    return None if reader is None else (reader, {"path": source, "names": names})


def load_parallel_text(
    source: str,
    target: str | None = None,
    *,
    split: str = "train",
    config_name: str | None = None,
    streaming: bool = False,
    **named: str | None,
) -> Corpus:
    """Parallel text as a memory-mapped dataset with the columns "source" and "target", or as a stream of its rows."""
    # `source` is a plain-text file, whose line i is translated by line i of `target`, or without that a file of both
    # sides (`ROW_READERS`, .parquet, Excel's text), a folder that `datasets` saved, or the id of a dataset on the Hub,
    # of which `split` and `config_name` are a part; text files may be .gz. Columns, also under "translation", are
    # those that are `named`, by the arguments of `names_of`, else those of the languages, else "source" and "target",
    # in any spelling; a TSV file may have no header: the first two then.
    names = names_of(**named)
    if (given := _reader_of_rows(source, target, names)) is not None:
        corpus = from_rows(given[0], [source, target] if target else [source], streaming, **given[1])
    elif kind_of(source) == ".parquet":
        try:
            table = datasets.load_dataset("parquet", data_files=source, split="train", streaming=streaming)
        except (pyarrow.ArrowInvalid, DatasetGenerationError) as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            raise ValueError(f"{source}: not a Parquet file, or a damaged one ({reason}).") from error
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


def iterate_rows(
    source: str, target: str | None = None, *, split: str = "train", **named: str | None
) -> Iterator[Row]:
    """The pairs of a corpus, read by `load_parallel_text`'s arguments, and for each unit that is none the reason."""
    if (given := _reader_of_rows(source, target, names_of(**named))) is not None:
        yield from given[0](**given[1])
    else:
        yield from load_parallel_text(source, split=split, streaming=True, **named)


def iterate_pairs(source: str, **names: Any) -> Iterator[tuple[str, str]]:
    """The pairs of a corpus that holds both sides, with single spaces; at its end, a warning counts other units."""
    for row in _rows(iterate_rows, {"source": source, **names}):
        yield normalize_space(row["source"]), normalize_space(row["target"])


def iterate_texts(corpus: datasets.Dataset, side: str, batch_size: int = 1000) -> Iterator[str]:
    """Yield the "source" or "target" sentences of a corpus, as a model gets them, a batch in memory at a time."""
    for batch in corpus.select_columns(side).iter(batch_size):
        yield from (normalize_space(text or "") for text in batch[side])
