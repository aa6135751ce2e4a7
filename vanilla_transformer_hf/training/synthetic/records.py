"""What files were made with, so that a later run continues or keeps them, or reports what has changed."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...common.files import open_output
from ...common.settings import read_object
from ..arguments import DataArguments
from ..checkpoints.record import changed_names


def begin(
    record: Path, settings: dict[str, Any], made: Sequence[Path], instead: str, inputs: Sequence[Path] = ()
) -> None:
    """Record as JSON the settings that files depend on, before the first of the files, `made`, is begun."""
    # `instead` says what to do if they were made with other settings; `inputs`, which are written after the record,
    # are removed where nothing is made of them yet.
    known = read_object(record, {}) if record.is_file() else None
    now = json.loads(json.dumps(settings))
    # Translations that were begun have a journal beside them (`ResumableOutput`).
    begun = [*made, *(path.with_name(f"{path.name}.partial.json") for path in made)]
    if known is not None and any(path.is_file() for path in begun):
        if changed := changed_names(now, known):
            raise ValueError(
                f"{record.parent} has translations that were made with another {' and '.join(changed)}: {instead}, or "
                f"delete {record.parent}"
            )
        return
    for path in inputs:  # of a run that went no further, perhaps with other settings
        path.unlink(missing_ok=True)
    write_json(record, settings)


def is_made_with(record: Path, settings: dict[str, Any], made: Sequence[Path]) -> bool:
    """Whether all these files exist, and the record, which is written after them, has these settings."""
    if not (record.is_file() and all(path.is_file() for path in made)):
        return False
    return bool(read_object(record, {}).get("settings") == json.loads(json.dumps(settings)))


def columns_of(data: DataArguments) -> tuple[str, str]:
    """Names of source and target in JSON lines, as the recipe expects them."""
    return data.source_column or "source", data.target_column or "target"


def write_pairs(path: Path, pairs: Iterable[tuple[str, str]], columns: tuple[str, str]) -> None:
    """Write pairs as JSON lines with these columns, completely or not at all."""
    with open_output(path) as file:
        for pair in pairs:
            file.write(json.dumps(dict(zip(columns, pair)), ensure_ascii=False).encode() + b"\n")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file completely or not at all."""
    with open_output(path) as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
