"""
Texts with codes inside, such as formats and footnotes, as the markup that `MarkupText` reads: `<span 3>…</span>` is a
pair of codes, `<img 4>` one that stands alone, `<br 5>` one that ends a sentence; the numbers are indices of codes.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..text.markup import tokens_of, unescape


# White space that shows, which models would lose: it is kept, and ends a sentence.
WIDE_SPACE = re.compile(r"([ \t\n\r]{3,})")

# Pairs of codes inside each other; with the elements around text fewer than `MarkupText` keeps as pairs.
MOST_PAIRS = 10

Kind = Literal["text", "alone", "ending", "begin", "end"]


class Piece(NamedTuple):
    """
    A part of a text.

    Attributes:
        kind: "alone": a code inside a sentence; "ending": one that ends it; "begin" and "end" of a pair.
        value: A text, or a code.
        key: Of a pair: what its two ends have in common.
        is_element: Of a pair: whether it encloses the text as an element does, and not by two codes that stand alone
            where they are no pair.
    """

    kind: Kind
    value: Any
    key: Any = None
    is_element: bool = False


@dataclass(frozen=True)
class Pair:
    """Two codes around a text."""

    first: Any
    last: Any


def without_crossings(pieces: Sequence[Piece]) -> list[Piece]:
    """
    Pieces in which pairs are nested: codes without their other end, and those that cross another pair, stand alone.
    Both ends of a pair hold its `Pair`.
    """
    found = [*pieces]
    open_ = list[int]()
    for place, piece in enumerate(pieces):
        if piece.kind == "begin" and (piece.is_element or len(open_) < MOST_PAIRS):
            open_.append(place)
        elif piece.kind == "begin":
            found[place] = Piece("alone", piece.value)
        elif piece.kind == "end":
            first = next((each for each in reversed(open_) if pieces[each].key == piece.key), None)
            inner = [] if first is None else open_[open_.index(first) + 1 :]
            if first is None or (not piece.is_element and inner):
                found[place] = Piece("alone", piece.value)
                continue
            for each in inner:  # codes whose other end is outside of this element
                found[each] = Piece("alone", pieces[each].value)
            del open_[open_.index(first) :]
            pair = pieces[first].value if piece.is_element else Pair(pieces[first].value, piece.value)
            found[first] = found[place] = piece._replace(value=pair)
            found[first] = found[first]._replace(kind="begin")
    for place in open_:
        found[place] = Piece("alone", pieces[place].value)
    return found


def as_markup(pieces: Sequence[Piece]) -> tuple[str, list[Any]]:
    """The markup of nested pieces, and the codes that its numbers mean."""
    out, codes = list[str](), list[Any]()
    for piece in pieces:
        if piece.kind == "text":
            for place, text in enumerate(WIDE_SPACE.split(piece.value)):
                if place % 2:
                    out.append(f"<br {len(codes)}>")
                    codes.append(text)
                else:
                    out.append(html.escape(text, quote=False))
            continue
        if piece.kind == "end":
            out.append("</span>")
            continue
        name = {"begin": "span", "alone": "img", "ending": "br"}[piece.kind]
        out.append(f"<{name} {len(codes)}>")
        codes.append(piece.value)
    return "".join(out), codes


def from_markup(markup: str, codes: Sequence[Any]) -> Iterator[Piece]:
    """The pieces of a translated markup, in their order; white space that was kept is text again."""
    open_ = list[Any]()
    kinds: dict[str, Kind] = {"span": "begin", "img": "alone", "br": "ending"}
    for token in tokens_of(markup):
        if token.kind == "text":
            yield Piece("text", unescape(token.raw))
        elif token.kind == "end":
            yield Piece("end", open_.pop())
        else:
            code = codes[int(token.raw[len(token.name) + 2 : -1])]
            if token.name == "span":
                open_.append(code)
            is_space = token.name == "br" and isinstance(code, str)
            yield Piece("text" if is_space else kinds[token.name], code)
