"""What the subcommands write when they have measured: numbers as JSON, and pictures."""

import json
from collections.abc import Iterable
from typing import Any

from vanilla_transformer_hf.common.files import open_output, refuse_overwriting, write_text


def check_outputs(outputs: Iterable[str | None], inputs: Iterable[str | None] = ()) -> None:
    """Before anything is measured: the files of options that are given can be written."""
    for path in filter(None, outputs):
        refuse_overwriting(path, list(filter(None, inputs)))


def write_json(path: str | None, numbers: Any) -> None:
    """Write the numbers to the file of --json, if it is given."""
    if path:
        write_text(path, json.dumps(numbers, indent=1) + "\n")


def write_picture(path: Any, figure: Any, dpi: int = 100) -> None:
    """Write a figure as PNG."""
    with open_output(path) as file:
        figure.savefig(file, format="png", dpi=dpi)


def in_turns(works: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """The seconds that each of these calls returns, one after the other in so many rounds after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            seconds[name].append(work())
    return {name: found[1:] for name, found in seconds.items()}
