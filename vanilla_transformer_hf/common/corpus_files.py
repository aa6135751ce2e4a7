"""Readers of pairs in two plain files, TSV, CSV, Excel's text and JSON lines; `unit_files` has translators' own."""

import codecs
import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from .column_names import (
    SIDES,
    MissingColumnError,
    Names,
    are_names_of_sides,
    find_columns,
    header_positions,
    names_of,
    table_pairs,
)
from .lines import LONGEST_LINE, decode_lines, naming_damaged_gzip, open_input
from .unit_files import UNIT_READERS, Row


# Half of an emoji, as a program leaves that cuts texts in UTF-16.
HALF_CHARACTER = re.compile("[\ud800-\udfff]")
# What separates the cells of a CSV file; Excel takes semicolons where the comma is in numbers.
DELIMITERS = ",;\t"
UNKNOWN_LANGUAGES = (
    "The model does not record its languages: add src_lang and tgt_lang, such as en and de, to its "
    "tokenizer_config.json, or name columns source and target."
)


def kind_of(path: str) -> str:
    """The ending of a file's name in lower case, without that of compression: .tsv of train.TSV.gz."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def _read_text(path: str, keep_ends: bool = False) -> Iterator[str]:
    """The lines of a text file: UTF-8, or UTF-16 with a byte-order mark, as Excel writes "Unicode text"."""
    with open_input(path) as file:
        lines = _recoded(file, path) if _byte_order(file, path) else file
        for number, line in enumerate(decode_lines(lines, path, keep_ends), start=1):
            if "\0" in line:
                raise ValueError(
                    f"{path}, line {number}: a NUL character, which text does not have; is the file UTF-16? Convert "
                    "it to UTF-8."
                )
            yield line


def _byte_order(file: Any, path: str) -> bytes:
    """The byte-order mark of UTF-16 with which an open file begins, if it has one; nothing is taken from the file."""
    with naming_damaged_gzip(path):
        begin = file.peek(2)[:2]
    return begin if begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else b""


def _recoded(file: Any, path: str) -> Iterator[bytes]:
    """The lines of a UTF-16 file in UTF-8."""
    text, number = io.TextIOWrapper(file, encoding="utf-16", newline="\n"), 0
    try:
        while line := text.readline(LONGEST_LINE + 1):
            number += 1
            yield line.encode()
    except UnicodeError as error:
        raise ValueError(f"{path}: not valid UTF-16 after line {number} ({error}).") from error


def text_pairs(source: str, target: str, names: Names) -> Iterator[dict[str, str]]:
    """Pairs of two plain-text files, line by line."""
    source_lines, target_lines = _read_text(source), _read_text(target)
    counts = dict.fromkeys(SIDES, 0)
    for pair in zip_longest(source_lines, target_lines):
        if counts == {"source": 0, "target": 0} and None not in pair and are_names_of_sides(pair, names):
            raise ValueError(
                f"{source}, line 1: {pair[0]!r}, with {pair[1]!r} in {target}, is a header and not a pair of texts; "
                "remove this line from both files."
            )
        for side, line in zip(SIDES, pair):
            counts[side] += line is not None
        if None not in pair:
            yield dict(zip(SIDES, pair))
    if counts["source"] != counts["target"]:
        raise ValueError(
            f"source and target differ in length: {source} has {counts['source']} lines, "
            f"{target} has {counts['target']} lines."
        )


def tsv_pairs(path: str, names: Names) -> Iterator[dict[str, str]]:
    """Pairs of the named columns of a tab-separated file, or of the first two without a header; quotes are text."""
    lines = _read_text(path)
    first = next(lines, None)
    if first is None:
        return
    if '"' in first and header_positions(f"{path}, line 1", first.split("\t"), names):
        yield from csv_pairs(path, names, "\t")
        return
    yield from table_pairs(path, enumerate((line.split("\t") for line in chain([first], lines)), start=1), names)


def excel_pairs(path: str, names: Names) -> Iterator[dict[str, str]]:
    """Pairs of Excel's "Unicode text": tabs, and quotes as in RFC 4180; a header or none."""
    reader = csv.reader(_read_text(path, keep_ends=True), strict=True, delimiter="\t")
    with _naming_line(path, reader):
        yield from table_pairs(path, ((reader.line_num, cells) for cells in reader if cells), names)


def csv_pairs(path: str, names: Names, delimiter: str | None = None) -> Iterator[dict[str, str]]:
    """Pairs of a file with a header, separated by commas, semicolons or tabs, as Excel does; quotes as in RFC 4180."""
    lines, before = _read_text(path, keep_ends=True), 0
    header = next(lines, "")
    if named := re.fullmatch(r"sep=(.)\s*", header):  # Excel's own first line
        delimiter, header, before = named[1], next(lines, ""), 1
    if delimiter is None:
        with _naming_line(path, csv.reader([]), 1):
            delimiter = _delimiter(path, header, names)
    reader = csv.DictReader(chain([header], lines), strict=True, delimiter=delimiter)
    with _naming_line(path, reader.reader, before):
        columns = find_columns(f"{path}, line {before + 1}, its header", list(reader.fieldnames or []), names)
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(
                    f"{path}, line {reader.line_num + before}: the number of columns differs from the header's "
                    f"{len(reader.fieldnames or [])}."
                )
            yield {side: row[column] for side, column in zip(SIDES, columns)}


@contextmanager
def _naming_line(path: str, reader: Any, before: int = 0) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        reason = str(error).partition(" - ")[0]  # without Python's advice to programmers
        raise ValueError(f"{path}, line {reader.line_num + before}: {reason}.") from error


def _delimiter(path: str, header: str, names: Names) -> str:
    """The delimiter with which a header has the columns that are looked for; else the one with the most columns."""
    split = {each: next(csv.reader([header], delimiter=each), []) for each in DELIMITERS}
    for each, cells in split.items():
        with suppress(ValueError):
            find_columns(path, cells, names)
            return each
    return max(split, key=lambda each: len(split[each]))


def json_pairs(path: str, names: Names) -> Iterator[dict[str, str]]:
    """Pairs of a JSON-lines file, flat or nested under "translation"."""
    columns: list[str] | None = None
    for number, line in enumerate(_read_text(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also for numbers with too many digits and too deep nesting
            raise ValueError(f"{path}, line {number}: not JSON ({error}); one object per line is expected.") from error
        if isinstance(row, dict) and isinstance(row.get("translation"), dict):
            row = row["translation"]
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: a {type(row).__name__}, but one object per line is expected.")
        columns = columns or find_columns(f"{path}, line {number}", list(row), names)
        for column in columns:
            if not isinstance(text := row.get(column), str):
                raise ValueError(f"{path}, line {number}: {column!r} is {text!r}, but text is expected.")
            if HALF_CHARACTER.search(text):
                raise ValueError(
                    f"{path}, line {number}: {column!r} has half of a character ({ascii(text)[:80]}), which is not "
                    "valid Unicode; remove it."
                )
        yield {side: row[column] for side, column in zip(SIDES, columns)}


# Endings of files that hold both sides -> the reader of their rows. A row is a pair, or the reason why a unit is none.
ROW_READERS: dict[str, Callable[[str, Names], Iterator[Row]]] = {
    ".tsv": tsv_pairs,
    ".csv": csv_pairs,
    ".jsonl": json_pairs,
    ".json": json_pairs,
    **UNIT_READERS,
}


def holds_both_sides(path: str) -> bool:
    """Whether a file holds source and target texts, by its ending and, for Excel's text, its first bytes."""
    return kind_of(path) == ".parquet" or find_reader(path) is not None


def find_reader(path: str) -> Callable[[str, Names], Iterator[Row]] | None:
    """The reader of a file that holds both sides, by its ending and, for Excel's text, its first bytes."""
    if kind_of(path) in (".txt", ".tsv") and os.path.isfile(path):  # Excel's names of UTF-16 with tabs, and others'
        with open_input(path) as file:
            if _byte_order(file, path):
                return excel_pairs
    return ROW_READERS.get(kind_of(path))


def read_pairs(path: str, languages: tuple[str | None, str | None]) -> Iterator[tuple[str, str]]:
    """The pairs of a file that holds both sides in these languages; units that are none are left out."""
    if (reader := find_reader(path)) is None:
        raise ValueError(f"{path}: not a file of both sides, such as {', '.join(ROW_READERS)}.")
    rows = reader(path, names_of(None, None, *languages))
    try:
        yield from ((row["source"], row["target"]) for row in rows if isinstance(row, dict))
    except MissingColumnError as error:
        if None not in languages:
            raise
        raise ValueError(f"{path}: which side is the source? {UNKNOWN_LANGUAGES}") from error
