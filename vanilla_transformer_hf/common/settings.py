"""
Settings in JSON and YAML as plain values. Files may come from untrusted sources, so costly content is refused before
it is parsed: special files, sizes beyond a few MiB, deep nesting (C parsers recurse), YAML's anchors (which multiply),
and text that cannot be encoded again.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any


LARGEST = 4 * 2**20  # bytes of a settings file
DEEPEST = 50
LARGEST_LOG = 256 * 2**20  # bytes of a file with an entry for each logged step
MOST_VALUES = 200_000  # of a YAML file, each of which takes its parser some 10 µs

_JSON_BRACKETS = re.compile(r'"(?:[^"\\]|\\.?)*+"?|([\[{])|([\]}])', re.DOTALL)


def read_bounded(path: str | os.PathLike, largest: int = LARGEST) -> bytes:
    """The bytes of a regular file."""
    # Do not block on a pipe without a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is not a regular file")
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"{path} is larger than the {largest:,} bytes that such a file may have")
    return content


def read_text(path: str | os.PathLike, largest: int = LARGEST) -> str:
    """The text of a file."""
    try:
        return read_bounded(path, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start:,}") from error


def parse_json(text: str, where: str | os.PathLike) -> Any:
    """The value of a JSON text; `where` names it in messages."""
    if text.count("[") + text.count("{") > DEEPEST:
        depth = 0
        for match in _JSON_BRACKETS.finditer(text):
            depth += (match[1] is not None) - (match[2] is not None)
            if depth > DEEPEST:
                raise ValueError(f"{where} is nested more than {DEEPEST} deep")
    try:
        content = json.loads(text)
        if re.search(r"\\u[dD][89a-fA-F]", text):
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} holds a lone surrogate, which is not a character") from error
    except ValueError as error:
        raise ValueError(f"{where} cannot be read as JSON: {error}") from error
    return content


def read_json(path: str | os.PathLike, largest: int = LARGEST) -> Any:
    """The value of a JSON file."""
    return parse_json(read_text(path, largest), path)


def read_object(
    path: str | os.PathLike, fields: Mapping[str, type | tuple[type, ...]], largest: int = LARGEST
) -> dict[str, Any]:
    """The value of a JSON file that is an object and has `fields`, each of its type."""
    value = read_json(path, largest)
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: expected a JSON object, got {_kind(value)}")
    for name, types in fields.items():
        found = value.get(name)
        if not isinstance(found, types) or (isinstance(found, bool) and types is int):
            allowed = " or ".join(each.__name__ for each in (types if isinstance(types, tuple) else (types,)))
            raise ValueError(f"{path} is damaged: expected {name} to be {allowed}, got {_kind(found)}")
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def parse_yaml(text: str, where: str | os.PathLike, loader: Any = None, most: int = MOST_VALUES) -> Any:
    """The value of a YAML text, read by a loader that creates plain values only; `where` names it in messages."""
    import yaml  # whose import takes a twentieth of a short command

    try:
        depth = 0
        # Events are read one at a time without recursion, so that errors are found before the loader recurses.
        for number, event in enumerate(yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if getattr(event, "anchor", None) is not None:
                raise ValueError(f"{where} has an anchor or alias ({event.anchor}); write the value out")
            if depth > DEEPEST:
                raise ValueError(f"{where} is nested more than {DEEPEST} deep")
            if number > 2 * most:
                raise ValueError(f"{where} has more than {most:,} values")
            if re.fullmatch(r"[-+]?\d[\d_:.]{1000,}", getattr(event, "value", "")):
                raise ValueError(f"{where} has a number of {len(event.value):,} digits")
        try:
            return yaml.load(text, loader or yaml.SafeLoader)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:  # as of "!!int x"
            raise ValueError(f"{where} has a value that does not fit its tag: {error}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not YAML: {' '.join(str(error).split())}") from error


def read_yaml(path: str | os.PathLike, loader: Any = None, largest: int = LARGEST) -> Any:
    """The value of a YAML file."""
    return parse_yaml(read_text(Path(path), largest), path, loader)
