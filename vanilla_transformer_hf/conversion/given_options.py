"""Options that are given with the command, and those that neither a checkpoint nor the command gives."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .source import ConversionError, Source


def parse_option(text: str) -> tuple[str, Any]:
    """The name and the value of "NAME=VALUE"; the value is JSON (8, true, 1e-6, null), or else text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not an option: expected NAME=VALUE, such as nhead=8")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def with_options(found: Source, given: Mapping[str, Any]) -> Source:
    """The checkpoint with options in place of its own; dots stand between sections ("model.encoder.num_heads")."""
    options = found.options
    for option, value in given.items():
        if option not in found.settable:
            known = f"expected one of {', '.join(found.settable)}" if found.settable else "its files hold them all"
            raise ConversionError(f"{option!r} is not an option of {found.name} that --set changes: {known}")
        options = _changed(options, option.split("."), value)
    return found.with_options(options)


def _changed(options: Any, path: list[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    options = options if isinstance(options, dict) else {}
    return {**options, first: _changed(options.get(first), rest, value) if rest else value}


def ask(path: Path, guessed: Mapping[str, Any], can_be_shown: bool = True):
    """An error with a line for each option that the files lack and on which the outputs depend."""
    # `can_be_shown`: by a reference.
    if not guessed:
        return
    lines = [f"{name}: {_shown(value)} is usual" for name, value in guessed.items()]
    raise ConversionError(
        f"the files of {path} do not give these options, and the outputs depend on them:\n  "
        + "\n  ".join(lines)
        + "\ngive each as it was in training, in a YAML file beside the weights or with the command, such as "
        f"{shlex.join(set_options(guessed))}"
        + ("; or give --reference, outputs of the model that show them" if can_be_shown else "")
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def set_options(values: Mapping[str, Any]) -> list[str]:
    """The words of a command line that give these options."""
    return [word for name, value in values.items() for word in ("--set", f"{name}={_shown(value)}")]


def unstated_notes(guessed: Mapping[str, Any], defaulted: Mapping[str, Any], reference: str | None) -> list[str]:
    """A line for each option that the files do not give."""
    confirmed = f"the default, with which the logits of {reference} are the same"
    return [
        *(f"{name}={_shown(value)}: not in the files; {confirmed}" for name, value in guessed.items()),
        *(f"{name}={_shown(value)}: not in the files; the default" for name, value in defaulted.items()),
    ]
