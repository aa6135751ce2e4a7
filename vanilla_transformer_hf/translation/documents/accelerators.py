"""
Accelerators of menus and buttons: the mark before the letter of a key, as in "_File" of GTK and "&File" of Qt. Models
get the text without the mark; the translation has it before the same letter where it has that letter.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from .inline import Piece


# Without a header that names the mark: one mark before the first letter of a word, in a text as short as a label. None
# begins an entity such as &eacute;.
NO_ENTITY = r"(?!#?\w{1,31};)"
LABEL = re.compile(rf"(?<![\w&_])(?P<mark>[_&])(?=[^\W\d_]){NO_ENTITY}")
MOST_CHARACTERS = 60
# What ends a label, behind the key in parentheses.
ENDING = re.compile(r"(?<![\s.:…。：])[\s.:…。：]*+\Z")
# Scripts whose translations name the key in parentheses: "文件(&F)".
NO_KEYS = ("CJK ", "HIRAGANA", "KATAKANA", "HANGUL")


@dataclass(frozen=True)
class Accelerator:
    """The mark and the letter behind it; their word, the letter's place in it, and how many such words are before."""

    mark: str
    letter: str
    word: str = ""
    place: int = 0
    number: int = 0


def without_accelerator(pieces: Sequence[Piece], mark: str = "") -> tuple[list[Piece], Accelerator | None]:
    """A text without its accelerator, and that; None if there is not exactly one."""
    # Without a catalogue's `mark` it is "_" or "&" at the beginning of a word.
    pattern = re.compile(rf"(?P<mark>{re.escape(mark)})(?=\w){NO_ENTITY}") if mark else LABEL
    matches = [
        (place, match)
        for place, piece in enumerate(pieces)
        if piece.kind == "text"
        for match in pattern.finditer(piece.value)
    ]
    length = sum(len(piece.value) for piece in pieces if piece.kind == "text")
    if len(matches) != 1 or (not mark and length > MOST_CHARACTERS):
        return [*pieces], None
    ((place, match),) = matches
    text = pieces[place].value
    plain = text[: match.start()] + text[match.end() :]
    found = [*pieces]
    found[place] = pieces[place]._replace(value=plain)
    words = [word for word in _words(plain) if word.start() <= match.start() < word.end()]
    if not words:
        return found, Accelerator(match["mark"], text[match.end()])
    alike = [each for piece in found[:place] if piece.kind == "text" for each in _words(piece.value)]
    alike += [each for each in _words(plain) if each.start() < words[0].start()]
    number = sum(each[0].lower() == words[0][0].lower() for each in alike)
    where = match.start() - words[0].start()
    return found, Accelerator(match["mark"], text[match.end()], words[0][0].lower(), where, number)


def _words(text: str) -> list[re.Match[str]]:
    return [*re.finditer(r"\w+", text)]


def with_accelerator(pieces: Sequence[Piece], accelerator: Accelerator) -> list[Piece]:
    """Pieces of a translation with the mark; as they are where they have no letter."""
    number = 0
    for place, piece in enumerate(pieces):
        for word in _words(piece.value) if piece.kind == "text" else ():
            if word[0].lower() != accelerator.word:
                continue
            if number == accelerator.number:  # the word stayed
                return _with(pieces, place, word.start() + accelerator.place, accelerator.mark)
            number += 1
    letter = re.escape(accelerator.letter)
    for pattern in (rf"(?<!\w){letter}", letter):
        if at := _first(pieces, re.compile(pattern, re.IGNORECASE)):
            return _with(pieces, *at, accelerator.mark)
    text = "".join(piece.value for piece in pieces if piece.kind == "text")
    if any(unicodedata.name(character, "").startswith(NO_KEYS) for character in text):
        # The key stands behind the last words.
        place = max(place for place, piece in enumerate(pieces) if piece.kind == "text" and piece.value.strip())
        end = ENDING.search(pieces[place].value)
        cut = end.start() if end else len(pieces[place].value)
        return _with(pieces, place, cut, f"({accelerator.mark}{accelerator.letter.upper()})")
    at = _first(pieces, re.compile(r"[^\W\d_]"))
    return _with(pieces, *at, accelerator.mark) if at else [*pieces]


def _first(pieces: Sequence[Piece], pattern: re.Pattern[str]) -> tuple[int, int] | None:
    """The piece with the first match in a text, and where that begins."""
    found = ((place, pattern.search(piece.value)) for place, piece in enumerate(pieces) if piece.kind == "text")
    return next(((place, match.start()) for place, match in found if match), None)


def _with(pieces: Sequence[Piece], place: int, at: int, added: str) -> list[Piece]:
    """The pieces with something put into a text."""
    text = pieces[place].value
    return [*pieces[:place], pieces[place]._replace(value=text[:at] + added + text[at:]), *pieces[place + 1 :]]
