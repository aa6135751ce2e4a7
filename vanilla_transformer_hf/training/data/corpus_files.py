"""Readers of parallel text in files: two plain ones, TSV, CSV and JSON lines, as rows of a source and a target."""

import csv
import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from ...common.lines import read_lines
from .column_names import SIDES, Names, find_columns, is_header


# Half of an emoji, as a program leaves that cuts texts in UTF-16.
HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def kind_of(path: str) -> str:
    """The ending of a file's name in lower case, without that of compression: .tsv of train.TSV.gz."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def _read_text(path: str, keep_ends: bool = False) -> Iterator[str]:
    """
    The lines of a text file.

    Raises:
        ValueError: As `read_lines`, or a line has a NUL character, as every line of UTF-16 without a byte-order mark.
    """
    for number, line in enumerate(read_lines(path, keep_ends), start=1):
        if "\0" in line:
            raise ValueError(
                f"{path}, line {number}: a NUL character, which text does not have; is the file UTF-16? Convert it to "
                "UTF-8."
            )
        yield line


def text_pairs(source: str, target: str) -> Iterator[dict[str, str]]:
    """Pairs of two plain-text files, line by line."""
    source_lines, target_lines = _read_text(source), _read_text(target)
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


def tsv_pairs(path: str, names: Names) -> Iterator[dict[str, str]]:
    """
    Pairs of a tab-separated file: of the named columns, or of the first two if the first line is not a header. Quotes
    are text, unless the header's names are in quotes.
    """
    lines = enumerate(_read_text(path), start=1)
    width, positions = 0, [0, 1]
    for number, line in lines:
        cells = line.split("\t")
        if number == 1:
            width = max(len(cells), 2)
            # Named columns must exist; language codes need not be column names.
            if any(len(side) == 1 for side in names) or is_header(cells, names):
                if '"' in line:
                    yield from csv_pairs(path, names, delimiter="\t")
                    return
                positions = [cells.index(name) for name in _columns_of_header(path, cells, names)]
                continue
        if len(cells) != width:
            guess = "a tab is missing" if len(cells) < width else "there is a tab inside a text"
            raise ValueError(f"{path}, line {number}: {len(cells)} columns, but {width} expected; perhaps {guess}.")
        yield {side: cells[position] for side, position in zip(SIDES, positions)}


def _columns_of_header(path: str, cells: list[str], names: Names) -> list[str]:
    try:
        return find_columns(f"{path}, line 1", cells, names)
    except ValueError as error:
        raise ValueError(
            f"{error} (If line 1 is a pair of texts, put a line before it: source, a tab, target.)"
        ) from None


def csv_pairs(path: str, names: Names, delimiter: str = ",") -> Iterator[dict[str, str]]:
    """Pairs of a file with a header, separated by commas or another delimiter; quotes as in RFC 4180."""
    reader = csv.DictReader(_read_text(path, keep_ends=True), strict=True, delimiter=delimiter)
    try:
        columns = find_columns(path, list(reader.fieldnames or []), names)
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(
                    f"{path}, line {reader.line_num}: the number of columns differs from the header's "
                    f"{len(reader.fieldnames or [])}."
                )
            yield {side: row[column] for side, column in zip(SIDES, columns)}
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error


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


# Endings of files that hold both sides -> the reader of their rows.
ROW_READERS = {".tsv": tsv_pairs, ".csv": csv_pairs, ".jsonl": json_pairs, ".json": json_pairs}
