"""Text and pages as documents."""

import codecs
import re
from collections.abc import Sequence

from ...common.lines import text_encoding
from .document import Document, PlainText, Reading
from .inline import count_characters
from .markup import MarkupText


MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# A line with its end: of Unix, Windows, or old Macs.
LINE = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n)|[^\r\n]++")
LINE_ENDS = re.compile(r"(\r\n|\r|\n)")
# Bytes in which a page says its encoding, and how it does.
HEAD, CHARSET = 1024, re.compile(rb"""<meta[^<>]*charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)


def decode(content: bytes, reading: Reading, declared: str | None = None) -> tuple[str, str]:
    """A file's text and encoding: of its byte-order mark or `reading`, else UTF-8, else the one that it declares."""
    if reading.encoding is not None and not content.startswith((*MARKS,)):
        try:
            return content.decode(reading.encoding, reading.on_bad_bytes), reading.encoding
        except UnicodeDecodeError as error:
            raise ValueError(f"{reading.name}, byte {error.start + 1:,}: not {reading.encoding}") from None
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding, reading.on_bad_bytes), encoding
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1:,}"
    try:
        return content.decode(text_encoding(declared or "")), declared or ""
    except (LookupError, UnicodeError):
        raise ValueError(
            f"{reading.name}, {where}: not {encoding[:6].upper()}; name its encoding, such as cp1252 (--encoding, the "
            "field encoding), or see --on_bad_bytes"
        ) from None


def checked_encoding(name: str | None) -> str | None:
    """The name of an encoding."""
    try:
        b"a".decode(name or "utf-8", "replace")
    except LookupError:
        raise ValueError(f"encoding {name}: not an encoding of text: expected a name such as cp1252") from None
    return name


def read_text(content: bytes, reading: Reading) -> Document:
    """A text, line by line."""
    text, encoding = decode(content, reading)
    count_characters(text)
    parts = [*LINE_ENDS.split(text), ""]  # lines, each with the one behind it

    def write(found: Sequence[str], language: str | None) -> bytes:
        lines = (part for line, end in zip(found, parts[1::2], strict=True) for part in (line, end))
        return "".join(lines).encode("utf-8" if reading.encoding else encoding)

    return Document([PlainText(line) for line in parts[::2]], write)


def read_page(content: bytes, reading: Reading) -> Document:
    """A page of HTML; it is written in its encoding."""
    found = CHARSET.search(content[:HEAD])
    text, encoding = decode(content, reading, found[1].decode() if found else None)
    return Document([MarkupText(text)], lambda found, _: "".join(found).encode(encoding, "xmlcharrefreplace"))
