"""
The way to every file of a checkpoint: what another file names lies beside it, is no link out of its folder, and is a
regular file. Then the readers of texts, JSON and YAML.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ...common import files
from ..key_table import ConversionError


def named(folder: Path, name: object) -> Path:
    """
    The path, which may not exist, of a file or folder that a checkpoint names: in `folder`, whatever path it states.

    Raises:
        ConversionError: The name is not the name of a file, or that of a link out of the folder.
    """
    try:
        return files.beside(folder, name)
    except ValueError as error:
        raise ConversionError(str(error)) from error


def checked(path: Path) -> Path:
    """
    The path of a file that is about to be read.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: It is not a regular file, or it is a link out of its folder.
    """
    try:
        return files.regular_file(path)
    except ValueError as error:
        raise ConversionError(str(error)) from error


def read_lines(path: Path) -> Iterator[str]:
    """
    The lines of a text file, as `common.files.read_lines` gives them.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: The file may not be read, or it is not UTF-8 text.
    """
    try:
        yield from files.read_lines(checked(path))
    except ValueError as error:
        raise ConversionError(str(error)) from error


def read_text(path: Path) -> str:
    """
    Raises:
        ConversionError: The file is no UTF-8 text.
    """
    try:
        return checked(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path} is no UTF-8 text ({error}); copy it again") from error


def read_json(path: Path, kind: type = dict) -> Any:
    """
    Raises:
        ConversionError: There is no such file, or it holds no JSON of that kind, an object unless told otherwise.
    """
    try:
        content = json.loads(checked(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConversionError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, kind):
        raise ConversionError(f"{path} holds no JSON object")
    return content


def parse_yaml(text: str, where: str, loader: Any = yaml.SafeLoader) -> dict[str, Any]:
    """
    Raises:
        ConversionError: The text is no YAML, or not of names with values.
    """
    try:
        content = yaml.load(text, loader)  # all loaders in use build plain values only
    except yaml.YAMLError as error:
        raise ConversionError(f"{where} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{where} holds no names with values")
    return content


def read_yaml(path: Path, loader: Any = yaml.SafeLoader) -> dict[str, Any]:
    """
    Raises:
        ConversionError: The file is no UTF-8 text, no YAML, or not of names with values.
    """
    return parse_yaml(read_text(path), str(path), loader)
