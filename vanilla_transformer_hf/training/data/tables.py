"""Pairs of texts in the rows of a table, whose first row may hold the names of its columns."""

from collections.abc import Iterable, Iterator

from .column_names import SIDES, Names, find_columns, is_header


Cells = list[str]


def header_positions(where: str, cells: Cells, names: Names) -> list[int] | None:
    """The places of the source and target column, if the first row of a table holds names; None if it is a pair."""
    # Named columns must exist; language codes need not be column names.
    if not (any(len(side) == 1 for side in names) or is_header(cells, names)):
        return None
    try:
        return [cells.index(name) for name in find_columns(where, cells, names)]
    except ValueError as error:
        raise ValueError(
            f"{error} (If line 1 is a pair of texts, put a line before it: source, a tab, target.)"
        ) from None


def table_pairs(path: str, rows: Iterable[tuple[int, Cells]], names: Names) -> Iterator[dict[str, str]]:
    """Pairs of numbered rows: of the named columns, or of the first two if the first row is not a header."""
    width, positions = 0, [0, 1]
    for number, cells in rows:
        if not width:
            width, found = max(len(cells), 2), header_positions(f"{path}, line {number}", cells, names)
            if found is not None:
                positions = found
                continue
        if len(cells) != width:
            guess = "a tab is missing" if len(cells) < width else "there is a tab inside a text"
            raise ValueError(f"{path}, line {number}: {len(cells)} columns, but {width} expected; perhaps {guess}.")
        yield {side: cells[position] for side, position in zip(SIDES, positions)}
