"""
Subtitles (SubRip, .srt): the lines of a subtitle are one text, whose translation has as many lines.

Numbers, times and what is damaged stay character by character. The libraries that read subtitles take minutes for
hostile files of some hundred kilobytes (srt 3.5), or guess encodings (pysrt); a file is read by its lines here.
"""

import re
from collections.abc import Iterator, Sequence

from ..text.markup import MarkupText, tokens_of
from .document import Document, Reading
from .inline import as_markup, from_markup
from .plain import decode
from .strings import as_string, string_pieces


TIME = r"\d+:\d\d?:\d\d?(?:[,.]\d{1,9})?"
TIMES = re.compile(rf"\s*{TIME}\s*-->\s*{TIME}.*")
# Positions and styles, such as {\an8}, line breaks of a program, and the dash before what a speaker says.
CODES = re.compile(r"\{[^{}]*\}|\\[Nnh]|^[-\u2010–—]\s*")
# Lines of two speakers.
DIALOGUE = re.compile(r"\s*+(?:\{[^{}]*\}|<[^<>]*>)*+\s*+[-\u2010–—]")


def read_subtitles(content: bytes, reading: Reading) -> Document:
    """
    Raises:
        ValueError: It is neither UTF-8 nor UTF-16 with a byte-order mark.
    """
    text, encoding = decode(content, reading)
    parts = [*_parts(text.split("\n"))]
    cues = [_Cue(lines) for lines, is_text in parts if is_text]

    def write(found: Sequence[str], language: str | None) -> bytes:
        given = iter(zip(cues, found, strict=True))
        lines = list[str]()
        for own, is_text in parts:
            if is_text:
                cue, markup = next(given)
                own = cue.lines(markup)
            lines += own
        return "\n".join(lines).encode(encoding)

    return Document([cue.segment for cue in cues], write)


def _parts(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Lines in their order, and whether they are the text of a subtitle: what follows times, until an empty line."""
    kept, text, is_inside = list[str](), list[str](), False
    for line in lines:
        if TIMES.fullmatch(line) or (is_inside and not line.strip()):
            if text:
                yield kept, False
                yield text, True
                kept, text = [], []
            is_inside = bool(line.strip())
            kept.append(line)
        elif is_inside:
            text.append(line)
        else:
            kept.append(line)
    yield kept, False
    if text:
        yield text, True


class _Cue:
    """
    The text of a subtitle.

    Args:
        lines: Its lines.
    """

    def __init__(self, lines: list[str]):
        self._count, self._end = len(lines), "\r" if lines[0].endswith("\r") else ""
        is_dialogue = all(DIALOGUE.match(line) for line in lines)
        text = ("\n" if is_dialogue else " ").join(line.rstrip() for line in lines)
        markup, self._codes = as_markup(string_pieces(text, CODES))
        self.segment, self._is_dialogue = MarkupText(markup), is_dialogue

    def lines(self, markup: str) -> list[str]:
        """The lines of its translation."""
        text = as_string(from_markup(markup, self._codes))
        lines = text.split("\n") if self._is_dialogue else balanced_lines(text, self._count)
        return [line + self._end for line in lines]


def balanced_lines(text: str, count: int) -> list[str]:
    """A text in so many lines of about the same length, or fewer; lines end at spaces outside of tags."""
    spaces, shown = list[tuple[int, int]](), 0  # their places, in the text and without its tags
    place = 0
    for token in tokens_of(text):
        if token.kind == "text":
            spaces += [(place + at, shown + at) for at, letter in enumerate(token.raw) if letter == " "]
            shown += len(token.raw)
        place += len(token.raw)
    lines, first, index = list[str](), 0, 0
    for number in range(1, count):
        goal = shown * number / count
        while index + 1 < len(spaces) and abs(spaces[index + 1][1] - goal) <= abs(spaces[index][1] - goal):
            index += 1
        if index >= len(spaces):
            break
        lines.append(text[first : spaces[index][0]])
        first, index = spaces[index][0] + 1, index + 1
    return [*lines, text[first:]]
