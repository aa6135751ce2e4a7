"""
Text files, line by line: only `\\n` and `\\r\\n` end a line, so that what Unicode calls a line separator inside a
sentence (U+2028, U+0085, …) never splits one; and a file takes its name when it is whole.
"""

import codecs
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def decode_lines(lines: Iterable[bytes], name: str | os.PathLike, keep_ends: bool = False) -> Iterator[str]:
    """
    The lines of UTF-8 text, such as an open binary file, without their ends unless `keep_ends`.

    A byte-order mark at the start is dropped.

    Raises:
        ValueError: A line is not UTF-8, or a gzip file is not complete; the message names the file.
    """
    try:
        for number, line in enumerate(lines, start=1):
            if not keep_ends:
                line = line.removesuffix(b"\n").removesuffix(b"\r")
            begin = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
            try:
                text = line[begin:].decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{name}, line {number}: not valid UTF-8 (byte 0x{line[begin + error.start]:02x} at position "
                    f"{begin + error.start}); convert the file to UTF-8"
                ) from error
            yield text
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{name}: not a complete gzip file ({error})") from error


def open_input(path: str | os.PathLike) -> BinaryIO:
    """
    A file to read bytes from (`.gz`: compressed).

    Raises:
        OSError: It cannot be read.
    """
    return gzip.open(path, "rb") if Path(path).suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]


def read_lines(path: str | os.PathLike, keep_ends: bool = False) -> Iterator[str]:
    """
    The lines of a UTF-8 text file (`.gz`: compressed), as `decode_lines` gives them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is not UTF-8, or the file is not a complete gzip file.
    """
    with open_input(path) as file:
        yield from decode_lines(file, path, keep_ends)


@contextmanager
def open_output(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """
    A new file that takes its name when it is whole: until then it is called `path` + ".partial".

    On an exception the partial file is removed. What is no regular file, such as a pipe, is written to directly.

    Raises:
        OSError: The file cannot be written.
    """
    path = Path(path).resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
