"""Catalogues of gettext (.po): untranslated messages get a fuzzy translation, left out until somebody has read it."""

import re
from collections.abc import Sequence
from typing import Any

from ...common.catalogues import read_catalogue
from .accelerators import with_accelerator, without_accelerator
from .document import Document, Reading
from .inline import Piece, Text, as_string
from .strings import string_pieces


PLURALS = re.compile(r"nplurals\s*=\s*([1-9])")


def read_po(content: bytes, reading: Reading) -> Document:
    file = read_catalogue(content, reading.name)
    if not len(file):
        raise ValueError(f"{reading.name}: has no messages")
    plurals = PLURALS.search(file.metadata.get("Plural-Forms", ""))
    count = int(plurals[1]) if plurals else 2
    mark = file.metadata.get("X-Accelerator-Marker", "").strip()
    messages = [
        _Message(entry, count, mark)
        for entry in file
        if not entry.obsolete and not any(form.strip() for form in (entry.msgstr, *entry.msgstr_plural.values()))
    ]

    def write(found: Sequence[Sequence[Piece]], language: str | None) -> bytes:
        place = 0
        for message in messages:
            message.fill(found[place : place + len(message.segments)])
            place += len(message.segments)
        file.metadata["Content-Type"] = "text/plain; charset=UTF-8"
        file.metadata.setdefault("Content-Transfer-Encoding", "8bit")
        if language and not file.metadata.get("Language"):
            file.metadata["Language"] = language
        return f"{file}".rstrip("\n").encode() + b"\n"

    return Document([segment for message in messages for segment in message.segments], write)


class _Message:
    """A message of polib without a translation, its number of plural forms, and its mark of accelerators, if any."""

    def __init__(self, entry: Any, count: int, mark: str):
        self._entry, self._count = entry, count
        singular = [] if entry.msgid_plural and count == 1 else [entry.msgid]
        plural = [entry.msgid_plural] if entry.msgid_plural else []
        self.segments, self._accelerators = list[Text](), []
        for text in (*singular, *plural):
            pieces, writing = string_pieces([Piece("text", text)], entry.flags)
            pieces, accelerator = without_accelerator(pieces, mark)
            self.segments.append(Text(pieces, writing))
            self._accelerators.append(accelerator)

    def fill(self, found: Sequence[Sequence[Piece]]) -> None:
        """Set the translation."""
        texts = [
            as_string(with_accelerator(pieces, accelerator) if accelerator else pieces)
            for pieces, accelerator in zip(found, self._accelerators, strict=True)
        ]
        if self._entry.msgid_plural:
            forms = [texts[0], *[texts[-1]] * (self._count - 1)]
            self._entry.msgstr_plural = dict(enumerate(forms))
        else:
            self._entry.msgstr = texts[0]
        if "fuzzy" not in self._entry.flags:
            self._entry.flags.append("fuzzy")
