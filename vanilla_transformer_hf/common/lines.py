"""Text files, line by line: only `\\n` and `\\r\\n` end a line, so that U+2028 or U+0085 never split a sentence."""

import codecs
import gzip
import logging
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


logger = logging.getLogger(__name__)

LONGEST_LINE = 16 * 2**20  # bytes
# Names under which a shell passes pipes, such as those of `<(zcat file)`.
PIPES_OF_THE_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")

# Treatment of bytes that are not UTF-8 -> the `errors` of `bytes.decode`, and the word for it in warnings.
ON_BAD_BYTES = {"error": ("strict", ""), "replace": ("replace", "replaced by U+FFFD"), "skip": ("ignore", "left out")}
# Encodings of text that files have. Python has others, of which some take the square of the time (punycode, idna).
ENCODINGS = re.compile(
    "utf-?(8|16)|(us-)?ascii|iso|latin|windows|cp[0-9]|koi8|s(hift[-_]?)?jis|euc|gb|big5|tis|mac|johab", re.IGNORECASE
)


def text_encoding(name: str) -> str:
    """An encoding that a file declares, if it is one of text; else a LookupError."""
    if ENCODINGS.match(name) is None:
        raise LookupError(f"{name[:40]} is not an encoding of text that is read")
    return name


def decode_lines(
    lines: Iterable[bytes], name: str | os.PathLike, keep_ends: bool = False, on_bad_bytes: str = "error"
) -> Iterator[str]:
    """The lines of UTF-8 text without a byte-order mark and, unless `keep_ends`, without their ends."""
    # Bytes that are not UTF-8 are an error, or with a warning that counts the lines become U+FFFD or are skipped.
    errors, what_happened = ON_BAD_BYTES[on_bad_bytes]
    first_bad = bad = 0
    for number, line in enumerate(bounded_lines(lines, name), start=1):
        if not keep_ends:
            line = line.removesuffix(b"\n").removesuffix(b"\r")
        begin = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
        try:
            text = line[begin:].decode("utf-8")
        except UnicodeDecodeError as error:
            if errors == "strict":
                advice = "convert the file to UTF-8"
                if number == 1 and line.startswith(b"PK\3\4"):
                    advice = "it is an archive, such as a workbook: save its text"
                raise ValueError(
                    f"{name}, line {number}: not valid UTF-8 (byte 0x{line[begin + error.start]:02x} at position "
                    f"{begin + error.start}); {advice}"
                ) from error
            text = line[begin:].decode("utf-8", errors)
            first_bad, bad = first_bad or number, bad + 1
        yield text
    if bad:
        where = f"line {first_bad}" if bad == 1 else f"{bad:,} lines, the first is line {first_bad}"
        logger.warning("%s: not valid UTF-8 in %s; these bytes were %s", name, where, what_happened)


@contextmanager
def naming_damaged_gzip(name: str | os.PathLike) -> Iterator[None]:
    """Name the file in errors of gzip."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{name}: not a complete gzip file ({error})") from error


def bounded_lines(lines: Iterable[bytes], name: str | os.PathLike) -> Iterator[bytes]:
    """The lines of an open file or of a list, of limited length."""
    read = getattr(lines, "readline", None)
    found = lines if read is None else iter(lambda: read(LONGEST_LINE + 1), b"")
    with naming_damaged_gzip(name):
        for number, line in enumerate(found, start=1):
            if len(line) > LONGEST_LINE:
                raise ValueError(
                    f"{name}, line {number}: longer than the {LONGEST_LINE:,} bytes that a line may have; is it "
                    "a text with one sentence per line?"
                )
            yield line


def open_input(path: str | os.PathLike) -> BinaryIO:
    """A file to read bytes from (`.gz`: compressed)."""
    is_odd = not (stat.S_ISREG(mode := os.stat(path).st_mode) or stat.S_ISDIR(mode))
    if is_odd and not os.path.abspath(path).startswith((*PIPES_OF_THE_SHELL, os.devnull)):
        raise ValueError(f"{path} is not a regular file: read a pipe from standard input")
    return gzip.open(path, "rb") if Path(path).suffix.lower() == ".gz" else open(path, "rb")  # type: ignore[return-value]


def read_lines(path: str | os.PathLike, keep_ends: bool = False) -> Iterator[str]:
    """The lines of a UTF-8 text file (`.gz`: compressed), as `decode_lines` gives them."""
    with open_input(path) as file:
        yield from decode_lines(file, path, keep_ends)
