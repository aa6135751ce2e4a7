"""
Access to every file of a checkpoint: a named file must be a regular file in the checkpoint's folder, and not a link
out of it. Also the readers of texts, JSON and YAML.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ...common import files, lines, settings
from ..source import ConversionError


LARGEST_VOCABULARY = 32 * 2**20  # bytes
MOST_TOKENS = 1_000_000


def named(folder: Path, name: object) -> Path:
    """
    The path in `folder` of a file or folder that a checkpoint names; its directory is ignored, and it need not exist.

    Raises:
        ConversionError: The name is not a file name, or it is that of a link out of the folder.
    """
    try:
        return files.beside(folder, name)
    except ValueError as error:
        raise ConversionError(str(error)) from error


def checked(path: Path) -> Path:
    """
    The path of a file that is about to be read.

    Raises:
        FileNotFoundError: The file does not exist.
        ConversionError: It is not a regular file, or it is a link out of its folder.
    """
    try:
        return files.regular_file(path)
    except ValueError as error:
        raise ConversionError(str(error)) from error


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ConversionError:
        raise
    except ValueError as error:
        raise ConversionError(str(error)) from error


def read_bounded(path: Path) -> bytes:
    """
    The bytes of a vocabulary or of a subword model.

    Raises:
        FileNotFoundError: The file does not exist.
        ConversionError: The file may not be read, or is too large.
    """
    with _refusals():
        return settings.read_bounded(checked(path), LARGEST_VOCABULARY)


def read_lines(path: Path) -> Iterator[str]:
    """
    The lines of a text file, as `common.lines.decode_lines` gives them.

    Raises:
        FileNotFoundError: The file does not exist.
        ConversionError: The file may not be read, is too large, or is not UTF-8 text.
    """
    with _refusals():
        yield from lines.decode_lines(io.BytesIO(read_bounded(path)), path)


def read_text(path: Path) -> str:
    """
    Raises:
        ConversionError: The file may not be read, is too large for settings, or is not UTF-8 text.
    """
    with _refusals():
        return settings.read_text(checked(path))


def read_json(path: Path, kind: type = dict) -> Any:
    """
    The content of a JSON file, which is a `kind`.

    Raises:
        ConversionError: The file is not readable, is too large, is not JSON, or has another content.
    """
    try:
        with _refusals():
            content = settings.read_json(checked(path), LARGEST_VOCABULARY)
    except OSError as error:
        raise ConversionError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, kind):
        raise ConversionError(f"{path} does not hold a JSON object")
    return content


def parse_yaml(text: str, where: str, loader: Any = yaml.SafeLoader, most: int = settings.MOST_VALUES) -> dict:
    """
    Raises:
        ConversionError: The text is not YAML, or not of names with values.
    """
    with _refusals():
        content = settings.parse_yaml(text, where, loader, most)
    if not isinstance(content, dict):
        raise ConversionError(f"{where} does not hold names with values")
    return content


def read_yaml(path: Path) -> dict:
    """
    Raises:
        ConversionError: As `read_text` and `parse_yaml`.
    """
    return parse_yaml(read_text(path), str(path))


def read_yaml_words(path: Path) -> dict[str, str]:
    """
    A vocabulary in YAML, with all words as text: YAML would parse `no` and `1_000` as other values.

    Raises:
        ConversionError: As `parse_yaml`.
    """
    with _refusals():
        text = read_bounded(path).decode("utf-8")
    return parse_yaml(text, str(path), getattr(yaml, "CBaseLoader", yaml.BaseLoader), most=2 * MOST_TOKENS)
