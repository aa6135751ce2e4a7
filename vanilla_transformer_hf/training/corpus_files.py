"""Readers of parallel text in files: two plain ones, TSV, CSV and JSON lines, as rows of a source and a target."""

import csv
import json
from collections.abc import Iterator
from itertools import zip_longest

from ..common.files import read_lines


SIDES = ("source", "target")
Names = tuple[tuple[str, ...], ...]  # possible column names of each side


def text_pairs(source: str, target: str) -> Iterator[dict[str, str]]:
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


def tsv_pairs(path: str, names: Names) -> Iterator[dict[str, str]]:
    """Pairs of a tab-separated file: of the named columns, or of the first two if the first line names none."""
    positions = [0, 1]
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        # Named columns must exist; language codes need not be column names.
        is_header = any(len(side) == 1 for side in names) or all(set(side) & set(cells) for side in names)
        if number == 1 and is_header:
            positions = [cells.index(name) for name in find_columns(path, cells, names)]
            continue
        if len(cells) <= max(positions):
            raise ValueError(f"{path}, line {number}: {len(cells)} columns, at least {max(positions) + 1} expected.")
        yield {side: cells[position] for side, position in zip(SIDES, positions)}


def csv_pairs(path: str, names: Names) -> Iterator[dict[str, str]]:
    """Pairs of a comma-separated file with a header; quotes as in RFC 4180."""
    reader = csv.DictReader(read_lines(path, keep_ends=True), strict=True)
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
    for number, line in enumerate(read_lines(path), start=1):
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
            if not isinstance(row.get(column), str):
                raise ValueError(f"{path}, line {number}: {column!r} is {row.get(column)!r}, but text is expected.")
        yield {side: row[column] for side, column in zip(SIDES, columns)}


ROW_READERS = {".tsv": tsv_pairs, ".csv": csv_pairs, ".jsonl": json_pairs, ".json": json_pairs}


def find_columns(where: str, columns: list[str], names: Names) -> list[str]:
    """The source and the target column: for each side, the first of its `names` that is among `columns`."""
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
