"""
Messages of ICU (and Java), such as `{count, plural, one {# dog} other {# dogs}}`: branches are texts of their own.

In these messages an apostrophe quotes: one that a translation brings is doubled, as the format wants it.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from .inline import Choice, Piece, Text, Writing, with_letters


# Java's choice, whose branches have two kinds of quotes in each other, is kept as it is.
BRANCHES = re.compile(r"\{\s*[^\s{},]{1,99}\s*,\s*(?:plural|select|selectordinal|choice)\s*,")
# A code inside a message that is read as one string.
CODE = "\0"
MESSAGE, BRANCH = (
    Writing(
        lambda word: with_letters(word.replace("''", "'")),
        lambda word, marks=marks: re.sub(f"([{marks}])", r"'\1'", word.replace("'", "''")),  # type: ignore[misc]
    )
    for marks in ("{}", "{}#")
)


class _Message:
    """The pieces of a message, from the parser's tokens."""

    def __init__(self, pieces: Sequence[Piece], branch: Callable[[list[Piece]], Text]):
        self._codes, self._branch = deque(piece for piece in pieces if piece.kind != "text"), branch
        text = "".join(piece.value if piece.kind == "text" else CODE for piece in pieces)
        if text.count(CODE) != len(self._codes):
            raise SyntaxError("zero bytes in the text")
        from pyicumessageformat import Parser

        self._tokens, self._place = list[dict[str, str]](), 0
        try:  # a message without "other" is none for ICU, and one to translate nevertheless
            Parser({"require_other": False}).parse(text, self._tokens)
        except ValueError as error:  # an offset of thousands of digits
            raise SyntaxError(f"{error}") from error
        if "".join(token["text"] for token in self._tokens) != text:
            raise SyntaxError("characters that the parser leaves out")

    def read(self) -> Iterator[Piece]:
        """The pieces up to the end, or that of a branch."""
        while self._place < len(self._tokens):
            token = self._tokens[self._place]
            if token["text"] == "}" and token["type"] == "syntax":
                return
            if token["type"] == "syntax":
                yield self._argument()
                continue
            self._place += 1
            if token["type"] == "hash":
                yield Piece("alone", "#")
                continue
            for number, text in enumerate(token["text"].split(CODE)):
                if number:
                    yield self._codes.popleft()
                yield Piece("text", text)

    def _argument(self) -> Piece:
        """An argument, with its branches if it has some."""
        parts: list[str | Text] = ["{"]
        while True:
            self._place += 1
            token = self._tokens[self._place]
            if CODE in token["text"]:
                raise SyntaxError("a code where none can be")
            parts.append(token["text"])
            if token["type"] == "syntax" and token["text"] == "{":
                self._place += 1
                parts.append(self._branch([*self.read()]))
                parts.append("}")
            elif token["type"] == "syntax" and token["text"] == "}":
                self._place += 1
                has_branches = any(isinstance(part, Text) for part in parts)
                return Piece("alone", Choice(parts) if has_branches else "".join(map(str, parts)))


def icu_pieces(
    pieces: Sequence[Piece], branch: Callable[[list[Piece]], Text], is_declared: bool = False
) -> list[Piece] | None:
    """The pieces of a message of ICU, with branches or declared; of a damaged one [`all_kept`]; None: it is none."""
    text = "".join(piece.value for piece in pieces if piece.kind == "text")
    if BRANCHES.search(text) is None and not (is_declared and "{" in text):
        return None
    try:
        return [*_Message(pieces, branch).read()]
    except SyntaxError:
        return all_kept(pieces)


def all_kept(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of a message, of which the text stays from its first argument on."""
    text = "".join(piece.value for piece in pieces if piece.kind == "text")
    found, kept = BRANCHES.search(text), list[Piece]()
    left = found.start() if found else text.find("{")
    for piece in pieces:
        if piece.kind == "text":
            kept += [Piece("text", piece.value[:left]), Piece("alone", piece.value[left:])]
            left = max(0, left - len(piece.value))
        else:
            kept.append(piece)
    return kept
