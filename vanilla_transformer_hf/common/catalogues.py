"""Catalogues of gettext (.po), read by polib: dates and other fields of headers may be written in any way."""

import re

import polib

from .lines import text_encoding


CHARSET = re.compile(rb"charset=([\w.:-]+)")
LINE_END = re.compile(r"\r\n|\r|\n")


class _Text(str):
    """A text whose lines end as gettext's do: polib takes `splitlines`, which also ends them at other characters."""

    def splitlines(self, keepends: bool = False) -> list[str]:
        return LINE_END.split(self)


def read_catalogue(content: bytes, name: str) -> polib.POFile:
    """The messages of a catalogue of this name, for errors."""
    encoding = found[1].decode() if (found := CHARSET.search(content[: 2**16])) else "utf-8"
    encoding = "utf-8" if encoding.upper() == "CHARSET" else encoding  # of a template
    try:
        text = content.decode(text_encoding(encoding)).removeprefix("\ufeff")
        # polib opens the file of this name if there is one: no name begins with the end of a line.
        return polib.pofile(_Text(f"\n{text}"))
    except (LookupError, UnicodeError, OSError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{name}: not a gettext catalogue, or a damaged one ({reason}).") from error
