"""Strings of programs and subtitles as pieces: tags, and what else a pattern calls a code."""

import re
from collections.abc import Iterable

from ..text.markup import VOID, Token, end_of_kept, tokens_of
from .inline import Pair, Piece, without_crossings


# Tags that end a sentence; others, such as <b> and <file>, are inside one.
ENDING = re.compile(r"p|br|hr|div|li|[uod]l|d[td]|h[1-6]|table|t[rdh]|pre|blockquote|section")


def string_pieces(text: str, codes: re.Pattern[str]) -> list[Piece]:
    """The pieces of a string with tags; each line is one or more sentences."""
    tokens, pieces, place = _tokens_around(text, codes), list[Piece](), 0
    while place < len(tokens):
        token, end = tokens[place], end_of_kept(tokens, place)
        raw = "".join(each.raw for each in tokens[place:end])
        if token.kind == "text":
            pieces += _split(raw, codes)
        elif ENDING.fullmatch(token.name):
            pieces.append(Piece("ending", raw))
        elif end > place + 1 or token.kind == "comment" or token.name in VOID or raw.endswith("/>"):
            pieces.append(Piece("alone", raw))
        else:
            pieces.append(Piece("begin" if token.kind == "start" else "end", raw, token.name))
        place = end
    return without_crossings(pieces)


def _tokens_around(text: str, codes: re.Pattern[str]) -> list[Token]:
    """Tags and texts; what looks like a tag in Ruby's %<name>s is none."""
    ends = {found.start(): found.end() for found in codes.finditer(text) if found[0].startswith("%<")}
    tokens, done = list[Token](), 0
    for start, end in ends.items():
        tokens += [*tokens_of(text[done:start]), Token(text[start:end], "text")]
        done = end
    return [*tokens, *tokens_of(text[done:])]


def _split(text: str, codes: re.Pattern[str]) -> Iterable[Piece]:
    for line in re.split(r"(\n)", text):
        if line == "\n":
            yield Piece("ending", line)
            continue
        done = 0
        for found in codes.finditer(line):
            yield Piece("text", line[done : found.start()])
            yield Piece("alone", found[0])
            done = found.end()
        yield Piece("text", line[done:])


def as_string(pieces: Iterable[Piece]) -> str:
    """The string of these pieces."""
    return "".join(_raw(piece) for piece in pieces)


def _raw(piece: Piece) -> str:
    if isinstance(piece.value, Pair):
        return str(piece.value.first if piece.kind == "begin" else piece.value.last)
    return str(piece.value)
