"""
Documents by the ending of their name: text, pages, subtitles, office documents, XLIFF and PO.

A document is read from bytes and written to bytes; nothing of it is on the disk, and nothing is loaded from elsewhere.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any

import torch

from ..results import Translation
from .inline import Text, at_most_characters
from .markup import MarkupText
from .places import Align, find_weights


EXTRA = "pip install 'vanilla_transformer_hf[documents]'"
# Bytes of all parts of an office document without compression.
LARGEST_UNPACKED = 512 * 2**20


@dataclass
class PlainText:
    """A text without markup, translated as a whole."""

    text: str  # The text
    nodes: Sequence[object] = ()

    @property
    def sentences(self) -> Sequence["PlainText"]:
        return [self] if self.text.strip() else []

    def render(self, translations: Sequence[str], weights: Sequence[torch.Tensor | None]) -> str:
        """Its translation."""
        return translations[0] if translations else self.text


@dataclass
class Document:
    segments: Sequence[Text | MarkupText | PlainText]  # What is translated
    # What the segments render with their translations, and the code of their language, which some formats say -> the
    # translated document
    write: Callable[[Sequence[Any], str | None], bytes]

    @property
    def texts(self) -> list[str]:
        """What reaches the model."""
        return [sentence.text for segment in self.segments for sentence in segment.sentences]

    def translated(
        self, translations: Sequence[Sequence[Translation]], align: Align, language: str | None = None
    ) -> bytes:
        """The document with its texts' translations, of each list the first, into the language of this code."""
        best = [str(each[0]) for each in translations]
        sentences = [sentence for segment in self.segments for sentence in segment.sentences]
        weights = find_weights([*zip(sentences, best, strict=True)], align)
        rendered, first = list[Any](), 0
        for segment in self.segments:
            last = first + len(segment.sentences)
            rendered.append(segment.render(best[first:last], weights[first:last]))
            first = last
        return self.write(rendered, language)


@dataclass(frozen=True)
class Reading:
    """How a document is read."""

    name: str  # Of the file, for messages
    on_bad_bytes: str = "strict"  # What is done with bytes of text that are not UTF-8: "strict", "replace" or "ignore"
    # That of text, subtitles and pages; None: UTF-8, or what a page or a byte-order mark says. The translation is
    # UTF-8, but for pages.
    encoding: str | None = None
    most_bytes: int = LARGEST_UNPACKED  # Of all parts of an archive together
    most_characters: int = sys.maxsize  # Of all texts together; they are counted while they are read


# The ending of a name -> the module of its reader here, the function, and the library that it needs.
READERS: dict[str, tuple[str, str, str | None]] = {
    ".txt": ("plain", "read_text", None),
    ".html": ("plain", "read_page", None),
    ".htm": ("plain", "read_page", None),
    ".srt": ("subtitles", "read_subtitles", None),
    ".docx": ("office", "read_docx", "lxml"),
    ".odt": ("office", "read_odt", "lxml"),
    ".xlf": ("xliff", "read_xliff", "lxml"),
    ".xliff": ("xliff", "read_xliff", "lxml"),
    ".po": ("po", "read_po", "polib"),
}


def readable_endings() -> list[str]:
    """The endings whose libraries are installed."""
    return [ending for ending, (_, _, needed) in READERS.items() if needed is None or find_spec(needed)]


def read_document(content: bytes, reading: Reading, ending: str | None = None) -> Document:
    """A document from the bytes of its file; its kind is that of `ending`, or of the ending of its name."""
    if (ending := ending or PurePath(reading.name).suffix.lower()) not in READERS:
        raise ValueError(f"{reading.name[-60:]!r} is not a document: expected {', '.join(READERS)}")
    module, function, _ = READERS[ending]
    if module not in ("plain", "subtitles") and (reading.encoding or reading.on_bad_bytes != "strict"):
        raise ValueError(
            f"{reading.name} says its encoding itself: leave out --encoding (the field) and --on_bad_bytes"
        )
    try:
        reader: Callable[[bytes, Reading], Document] = getattr(
            importlib.import_module(f".{module}", __package__), function
        )
        with at_most_characters(reading.most_characters):
            return reader(content, reading)
    except ModuleNotFoundError as error:
        raise ValueError(f"{reading.name}: {error.name}, which reads it, is not installed: {EXTRA}") from error
