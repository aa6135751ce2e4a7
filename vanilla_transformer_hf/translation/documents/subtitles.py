"""
Subtitles (SubRip, .srt): what one speaker says in a subtitle is one text, whose translation has as many lines.

Numbers, times and what is damaged stay character by character. The libraries that read subtitles take minutes for
hostile files of some hundred kilobytes (srt 3.5), or guess encodings (pysrt); a file is read by its lines here.
"""

import re
from collections.abc import Iterator, Sequence

from .document import Document, Reading
from .inline import Piece, Text, as_string
from .markup import string_tags, tokens_of
from .plain import LINE, decode
from .variables import PROSE, without_variables


# As programs write times, and as people do: with spaces, with another arrow, or without hours.
TIME = r"-?\d++[ \t]*+(?:[:.,;][ \t]*+\d++[ \t]*+){1,4}"
TIMES = re.compile(rf"[^\r\n]*-->|[ \t]*+{TIME}(?:-[ \t]?-?[ \t]?>|[–—→]>?)[ \t]*+{TIME}")
# What stands before the words of a speaker: tags and positions such as {\an8}, and a dash.
SPEAKER = re.compile(r"((?:\{[^{}\r\n]*\}|<[^<>\r\n]*>|[ \t])*+)([-\u2010-\u2015\u2212][ \t]*+)")
CODES = (*PROSE, "escape")


def read_subtitles(content: bytes, reading: Reading) -> Document:
    text, encoding = decode(content, reading)
    lines = LINE.findall(text)
    if text.strip() and not any(map(TIMES.match, lines)):
        raise ValueError(f"{reading.name}: no subtitles found: expected times such as 00:00:01,000 --> 00:00:02,000")
    parts = [*_parts(lines)]

    def write(found: Sequence[Sequence[Piece]], language: str | None) -> bytes:
        given = iter(found)
        lines = (part if isinstance(part, str) else part.lines(as_string(next(given))) for part in parts)
        return "".join(lines).encode("utf-8" if reading.encoding else encoding)

    return Document([part.segment for part in parts if isinstance(part, _Spoken)], write)


def _parts(lines: Sequence[str]) -> Iterator["str | _Spoken"]:
    """Lines that stay, and what speakers say: lines behind times, up to the number or times of the next subtitle."""
    spoken, is_inside = list[str](), False
    for line, behind in zip(lines, [*lines[1:], ""]):
        is_times = TIMES.match(line) is not None
        is_number = line.strip("\ufeff \t\r\n").isdecimal() and TIMES.match(behind) is not None
        if spoken and (is_number or is_times or not line.strip() or SPEAKER.match(line)):
            yield _Spoken(spoken)
            spoken = []
        is_inside = is_times or (is_inside and not is_number)
        if is_inside and not is_times and line.strip():
            spoken.append(line)
        else:
            yield line
    if spoken:
        yield _Spoken(spoken)


class _Spoken:
    """What a speaker says in a subtitle, as its lines."""

    def __init__(self, lines: list[str]):
        self._count, self._raw = len(lines), "".join(lines)
        self._break, self._end = (line[len(line.rstrip("\r\n")) :] for line in (lines[0], lines[-1]))
        pieces, text = list[Piece](), self._raw
        if found := SPEAKER.match(text):
            pieces, text = [*string_tags(found[1]), Piece("ending", found[2])], text[found.end() :]
        self.segment = Text(without_variables([*pieces, *string_tags(text)], CODES))

    def lines(self, translation: str) -> str:
        """The lines of a translation; those of a text that stays as it is stay, too."""
        if translation == self._raw:
            return translation
        text = re.sub(r"(?<![ \t])[ \t]*+[\r\n][ \t\r\n]*+", " ", translation.rstrip())
        return self._break.join(balanced_lines(text, self._count)) + self._end


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
