"""The files of a checkpoint, each a regular file in its folder and no link out of it; readers of text, JSON, YAML."""

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ...common import files, lines, settings
from ..source import ConversionError


LARGEST_VOCABULARY = 32 * 2**20  # bytes
MOST_TOKENS = 1_000_000

Call = TypeVar("Call", bound=Callable[..., Any])


def _for_the_user(call: Call) -> Call:
    """The function, whose ValueErrors are lines for the user: `convert` takes other ones for signs of damage."""

    @functools.wraps(call)
    def reads(*arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except ConversionError:
            raise
        except ValueError as error:
            raise ConversionError(str(error)) from error

    return reads  # type: ignore[return-value]


# The path in a folder of a file or folder that a checkpoint names; its directory is ignored, and it need not exist.
named = _for_the_user(files.beside)
# The path of a file that is about to be read: a regular file, and no link out of its folder.
checked = _for_the_user(files.regular_file)


@_for_the_user
def read_bounded(path: Path) -> bytes:
    """The bytes of a vocabulary or of a subword model."""
    return settings.read_bounded(checked(path), LARGEST_VOCABULARY)


@_for_the_user
def read_lines(path: Path) -> list[str]:
    """The lines of a text file, as `common.lines.decode_lines` gives them."""
    return list(lines.decode_lines(io.BytesIO(read_bounded(path)), path))


@_for_the_user
def read_text(path: Path) -> str:
    return settings.read_text(checked(path))


@_for_the_user
def read_json(path: Path, kind: type = dict) -> Any:
    """The content of a JSON file, which is a `kind`."""
    try:
        content = settings.read_json(checked(path), LARGEST_VOCABULARY)
    except OSError as error:
        raise ConversionError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, kind):
        raise ConversionError(f"{path} does not hold a JSON object")
    return content


@_for_the_user
def parse_yaml(text: str, where: str, loader: Any = None, most: int = settings.MOST_VALUES) -> dict:
    """Names with values."""
    content = settings.parse_yaml(text, where, loader, most)
    if not isinstance(content, dict):
        raise ConversionError(f"{where} does not hold names with values")
    return content


def read_yaml(path: Path) -> dict:
    return parse_yaml(read_text(path), str(path))


@_for_the_user
def read_yaml_words(path: Path) -> dict[str, str]:
    """A vocabulary in YAML, with all words as text: YAML would parse `no` and `1_000` as other values."""
    text = read_bounded(path).decode("utf-8")
    return parse_yaml(text, str(path), getattr(yaml, "CBaseLoader", yaml.BaseLoader), most=2 * MOST_TOKENS)
