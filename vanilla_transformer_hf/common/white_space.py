"""
White space in the texts of users: where lines end, what stands at their edges, and how a line is given to a model; and
what JSON and arguments of commands can hold that is no character.

Tokenizers that keep every character, as ours did, turn a second space or a no-break space into tokens that a model has
hardly seen. Training, translation, scoring and the explorer therefore read texts through `normalize_space`.
"""

import argparse
import re


# Characters without width or meaning for a model: soft hyphen, zero-width space, byte order mark, word joiner and
# invisible operators, marks of direction. Joiners (U+200C, U+200D) belong to words and emoji: they stay.
INVISIBLE = "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
_INVISIBLE = re.compile(f"[{INVISIBLE}]+")
# The ends of lines of `str.splitlines`.
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
LINE_END = re.compile(f"\r\n|[{LINE_ENDS}]")
# All white space of Unicode, which ends with U+3000, and `INVISIBLE`.
EDGES = "".join(each for each in [*map(chr, range(0x3001)), "\ufeff"] if each.isspace() or _INVISIBLE.match(each))

Span = tuple[int, int]


def normalize_space(text: str) -> str:
    """A text without white space at its edges, with single spaces inside, and without invisible characters."""
    return " ".join(without_invisible(text).split())


def without_invisible(text: str) -> str:
    """A text without the characters of `INVISIBLE`."""
    return _INVISIBLE.sub("", text)


def strip_spans(text: str, spans: list[Span]) -> list[Span]:
    """The spans of a text without white space and invisible characters at their ends; empty ones are removed."""
    found = []
    for start, end in spans:
        part = text[start:end]
        start, end = end - len(part.lstrip(EDGES)), start + len(part.rstrip(EDGES))
        if start < end:
            found.append((start, end))
    return found


def line_spans(text: str) -> list[Span]:
    """Start and end of the lines of a text, without white space at their ends; empty lines are left out."""
    if text.splitlines() == [text]:  # nearly all texts; a fraction of the time of the pattern
        return strip_spans(text, [(0, len(text))])
    spans, start = list[Span](), 0
    for found in LINE_END.finditer(text):
        spans.append((start, found.start()))
        start = found.end()
    return strip_spans(text, [*spans, (start, len(text))])


def word_starts(text: str) -> list[int]:
    """Where the words of a text begin, as white space separates them; words that are invisible do not count."""
    return [found.start() for found in re.finditer(r"\S+", text) if found[0].strip(EDGES)]


def as_text(text: str) -> str:
    """Text of characters: lone surrogates become their escapes."""
    return text.encode(errors="backslashreplace").decode()


def text_argument(text: str) -> str:
    """An argument of a command that is a text: `type=` of `add_argument`."""
    if as_text(text) != text:
        raise argparse.ArgumentTypeError(f"'{as_text(text)[:60]}' is not UTF-8: write it in this encoding")
    return text
