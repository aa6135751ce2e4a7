"""Tokens as text that can be seen: blanks and line feeds have signs, and bytes are joined to letters."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..translation.text.texts import token_reader
from .results import Piece


# What decoding gives for bytes that are not a whole letter.
CUT = "\N{REPLACEMENT CHARACTER}"
# Tokens that a letter may be cut into, with those of its neighbours.
MOST_PARTS = 8
SIGNS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"}
# They join letters and pictures, and are seen by what they do.
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


def visible(text: str) -> str:
    """A text in which every character can be seen: "⏎" for a line break, "U+200B" for one without width."""
    if not text.strip(" "):
        return SIGNS[" "] * max(1, len(text))
    inner = text.strip(" ")
    return inner if inner.isalnum() else "".join(sign(one, is_alone=len(inner) == 1) for one in inner)


def sign(character: str, is_alone: bool) -> str:
    """What is shown for a character."""
    if character in SIGNS:
        return SIGNS[character] if character != " " else " "
    is_seen = unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp", "Zs")
    is_seen = is_seen or (character in JOINERS and not is_alone)
    return character if is_seen else f"U+{ord(character):04X}"


class PieceReader:
    """Tokens of a tokenizer as pieces; `special` are ids of its special tokens."""

    def __init__(self, tokenizer: Any, special: set[int]):
        self.tokenizer, self.special = tokenizer, special
        self.read_raw = token_reader(tokenizer)
        self._pieces: dict[tuple[bool, int | None, int], Piece] = {}

    def piece(self, context: Sequence[int], index: int, is_source: bool = False) -> Piece:
        """The piece `index` behind the tokens `context`."""
        before = context[-1] if context else None
        key = (is_source, before, index)
        if key not in self._pieces:
            self._pieces[key] = self._read(before, index, self._decoder(is_source))
        found = self._pieces[key]
        return self._joined(found, context, is_source) if CUT in found.text and not found.special else found

    def pieces(self, ids: Sequence[int], is_source: bool = False, context: Sequence[int] = ()) -> list[Piece]:
        """The tokens of these ids behind `context`; all those that make a letter have its text."""
        whole = [*context, *ids]
        start = len(context)
        found = [self.piece(whole[:place], whole[place], is_source) for place in range(start, len(whole))]
        for place, last in enumerate(found):
            for part in range(1, last.parts):
                if (earlier := place - last.parts + part) >= 0:
                    found[earlier] = replace(found[earlier], text=last.text, part=part, parts=last.parts)
        return found

    def _decoder(self, is_source: bool) -> Callable[[list[int]], str]:
        tokenizer = self.tokenizer
        return getattr(tokenizer, "decode_source", tokenizer.decode) if is_source else tokenizer.decode

    def _read(self, before: int | None, index: int, decode: Callable[[list[int]], str]) -> Piece:
        """A piece by itself."""
        special, continues = index in self.special, False
        if not (special or before is None or before in self.special):
            start = decode([before])
            continues = not decode([before, index])[len(start) :][:1].isspace()
        text = decode([index])
        return Piece(index, text if special else visible(text), special, continues, 1, 1)

    def _joined(self, piece: Piece, context: Sequence[int], is_source: bool) -> Piece:
        """A piece of bytes as the letter that it ends, or, if it ends none, as its bytes."""
        decode = self._decoder(is_source)
        for count in range(1, min(MOST_PARTS, len(context) + 1)):
            before = [*context[len(context) - count :]]
            if self.special & {*before}:
                break
            if CUT not in (text := decode([*before, piece.id])):
                return replace(piece, text=visible(text), part=count + 1, parts=count + 1)
        if is_source:
            return piece
        (raw,) = self.read_raw([self.tokenizer.convert_ids_to_tokens(piece.id)])
        return replace(piece, text=visible(raw))
