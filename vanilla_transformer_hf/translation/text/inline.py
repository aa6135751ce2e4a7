"""
Texts with codes inside, such as tags, formats, notes and variables: what the model reads of them, and where the codes
stand in its translation.

A text is a row of pieces. Those between two that end a sentence are a sentence: the model gets its words, and each
code finds its place in the translation beside the words that it had. What stands between two words, spaces and codes,
is written as it was wherever the same codes meet there again, and a word that the model leaves as it is stays byte for
byte; so a translation that changes nothing gives back the text.
"""

import html
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from .places import CLOSING, MOST_WORDS, Places


# White space, and words; HTML names some of its white space.
RUNS = re.compile(r"\s+|\S+")
_SPACE_OF_HTML = (
    r"\s|&(?:nbsp|ensp|emsp|thinsp|#(?:9|10|13|32|160|8201|8239)|#[xX](?:9|[aA]|[dD]|20|[aA]0|2009|202[fF]));"
)
RUNS_OF_HTML = re.compile(rf"(?:{_SPACE_OF_HTML})+|(?:(?!{_SPACE_OF_HTML}).)+", re.DOTALL)
# White space that shows, which models would lose: it is kept, and ends a sentence.
WIDE_SPACE = re.compile(r"([ \t\n\r]{3,})")
# The same of texts in which line breaks and tabs show, too. (Of at most two characters, behind the first alternative.)
LINES = re.compile(r"([ \t\n\r]{3,}| ?[\t\n\r]+ ?)")
# Codes of strings that show as white space, beside entities such as &nbsp;.
SPACES = ("\\n", "\\N", "\\h", "\\t", "\\r")
# What links show that is no language: addresses, @names, #tags, notes.
NAME = re.compile(r"(?:https?://|www\.|[@#])\S+|[^\s@]++@(?:[^\s.]*+\.)++\w+|\[\S{1,4}\]")
# Pairs of codes inside each other; the ends of deeper ones stand alone.
MOST_PAIRS = 50

Kind = Literal["text", "alone", "ending", "begin", "end"]


class Piece(NamedTuple):
    """
    A part of a text.

    Attributes:
        kind: "alone": a code inside a sentence; "ending": one that ends it; "begin" and "end" of a pair.
        value: A text, or a code; of white space that is kept, and of codes of strings, a `str`.
        key: Of a pair: what its two ends have in common.
        is_element: Of a pair: whether it encloses the text as an element does, and not by two codes that stand alone
            where they are no pair.
        is_space: Of a code that is no string: whether it shows as white space.
    """

    kind: Kind
    value: Any
    key: Any = None
    is_element: bool = False
    is_space: bool = False


class Choice(NamedTuple):
    """A code with texts of its own, such as the branches of a plural: strings, and [`Text`]s."""

    parts: list[Any]


class Writing(NamedTuple):
    """How characters stand in a text: what the text means, and how words are written in it."""

    read: Callable[[str], str] = str
    write: Callable[[str], str] = str
    runs: re.Pattern[str] = RUNS


# The number of a character, without zeros before it; html.unescape raises where it has 4,300 digits.
NUMBER, MOST_DIGITS = re.compile(r"&#0*+([0-9]++);?"), 4000


def unescape(text: str) -> str:
    """A text with its character references replaced, whatever numbers they have."""
    if len(text) > MOST_DIGITS:
        text = NUMBER.sub(lambda found: "&#x110000;" if len(found[1]) > 7 else f"&#{found[1]};", text)
    return html.unescape(text)


def as_html(text: str) -> str:
    """A text with its characters of markup written as entities."""
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")


PLAIN = Writing()
HTML = Writing(unescape, as_html, RUNS_OF_HTML)


def apart(pieces: Iterable[Piece], pattern: re.Pattern[str], kind: Kind) -> Iterator[Piece]:
    """Pieces in which what a pattern finds in the texts is a piece of its own."""
    text = ""
    for piece in (*pieces, None):
        if piece is not None and piece.kind == "text":
            text += piece.value
            continue
        done = 0
        for found in pattern.finditer(text):
            if done < found.start():
                yield Piece("text", text[done : found.start()])
            yield Piece(kind, found[0])
            done = found.end()
        if done < len(text):
            yield Piece("text", text[done:])
        text = ""
        if piece is not None:
            yield piece


@dataclass(eq=False)
class Node:
    """
    A code inside a sentence, or two around some of its words.

    Attributes:
        pieces: The code, or the first of two; of an element without words, all that is in it.
        last: The last of two; None: the code is kept where it stands.
        children: What is between the two.
        start, end: Where that is in the text of the sentence; of what is kept, both are its place.
        has_space: Whether there is white space before and behind what is kept.
        is_space: Whether it shows as white space.
        text: Of a pair: the text inside.
    """

    pieces: list[Piece]
    last: Piece | None = None
    children: list["Node | Piece"] = field(default_factory=list)
    start: int = 0
    end: int = 0
    has_space: tuple[bool, bool] = (False, False)
    is_space: bool = False
    text: str = ""

    @property
    def nodes(self) -> list["Node"]:
        """The codes between the two."""
        return [child for child in self.children if isinstance(child, Node)]


class Mark(NamedTuple):
    """An end of a node, as it stands between words: 0 the first, 1 the last."""

    node: Node
    side: int

    @property
    def pieces(self) -> list[Piece]:
        """What is written for it."""
        return [self.node.last] if self.side and self.node.last is not None else self.node.pieces


class Gap(NamedTuple):
    """What stands between two words: white space and marks; and what the model gets for it, a space or nothing."""

    items: list[str | Mark]
    shown: str = ""

    @property
    def marks(self) -> list[Mark]:
        """The marks in it."""
        return [item for item in self.items if isinstance(item, Mark)]


def nested(pieces: Sequence[Piece]) -> list[Node | Piece]:
    """
    The pieces of a sentence as codes inside each other. Ends without the other one in this sentence, and those that
    cross another pair, stand alone.
    """
    stack = [list[Node | Piece]()]
    open_ = list[Piece]()

    def dissolve(count: int) -> None:
        """Let the first ends of the innermost pairs stand alone."""
        for piece in reversed(open_[len(open_) - count :]):
            inner = stack.pop()
            alone = piece if piece.is_element else piece._replace(kind="alone")
            stack[-1] += [Node([alone]), *inner]
        del open_[len(open_) - count :]

    for piece in pieces:
        if piece.kind == "text":
            stack[-1].append(piece)
        elif piece.kind == "begin" and (len(open_) < MOST_PAIRS or piece.is_element):
            open_.append(piece)
            stack.append([])
        elif piece.kind == "end":
            depth = next((place for place, one in enumerate(reversed(open_)) if one.key == piece.key), None)
            if depth is None and piece.is_element:  # of an element that began in a sentence before
                dissolve(len(open_))
            if depth is None or (depth and not piece.is_element):
                stack[-1].append(Node([piece if piece.is_element else piece._replace(kind="alone")]))
                continue
            dissolve(depth)
            inner, begin = stack.pop(), open_.pop()
            stack[-1].append(_pair(begin, inner, piece))
        else:
            alone = piece if piece.kind == "alone" else piece._replace(kind="alone")
            is_space = piece.is_space or (isinstance(piece.value, str) and _is_space(piece.value))
            stack[-1].append(Node([alone], is_space=is_space))
    dissolve(len(open_))
    return stack[0]


def _is_space(code: str) -> bool:
    return bool(code) and (code in SPACES or unescape(code).isspace())


def _pair(begin: Piece, inner: list[Node | Piece], end: Piece) -> Node:
    """A pair; one around no words, or around an address or a name, is one code that is kept."""
    text = "".join(each.value if isinstance(each, Piece) else each.text or " " * each.is_space for each in inner)
    shown = unescape(text).strip()
    pair = Node([begin], end, inner, text=text)
    is_kept = not shown or NAME.fullmatch(shown)
    return Node([*_flat([pair])], is_space=bool(text) and not shown) if is_kept else pair


def _flat(items: Iterable[Node | Piece]) -> Iterator[Piece]:
    """The pieces of nested codes, in their order."""
    for item in items:
        if isinstance(item, Piece):
            yield item
        else:
            yield from item.pieces
            yield from _flat(item.children)
            if item.last is not None:
                yield item.last


class Sentence:
    """
    Text between two codes that end sentences.

    Args:
        pieces: Its pieces.
        writing: How its characters are written.

    Attributes:
        text: What the model reads.
        nodes: The codes in it.
    """

    def __init__(self, pieces: Sequence[Piece], writing: Writing):
        self.text, items = "", nested(pieces)
        self.nodes = [item for item in items if isinstance(item, Node)]
        self._writing = writing
        self._gap = list[str | Mark]()
        self._gaps = dict[Mark, Gap]()  # by the marks in them
        self._first: Gap | None = None
        self._word = ""
        # As they stand: words, and what is between two words without marks.
        self._words, self._spaces = defaultdict[str, list[str]](list), defaultdict[tuple[str, str], list[str]](list)
        self._read(items)
        self._last = self._end_gap("")
        self._first = self._first or self._last

    @property
    def is_translated(self) -> bool:
        """Whether there is a letter in it."""
        return any(map(str.isalpha, self.text))

    def _read(self, items: Iterable[Node | Piece]) -> None:
        for item in items:
            if isinstance(item, Node):
                self._gap.append(Mark(item, 0))
                if item.last is not None:
                    self._read(item.children)
                    self._gap.append(Mark(item, 1))
                continue
            for run in self._writing.runs.findall(item.value):
                word = self._writing.read(run) or run
                if word.isspace():
                    self._gap.append(run)
                    continue
                gap = self._end_gap(word)
                self._first = self._first or gap
                if not gap.marks and gap.items:
                    self._spaces[self._word.lower(), word.lower()].append("".join(map(str, gap.items)))
                self._words[word].append(run)
                self._word = word
                self.text += gap.shown + word

    def _end_gap(self, word: str) -> Gap:
        """Place the marks before the next word."""
        items, self._gap = self._gap, []
        spaces = [isinstance(item, str) or item.node.is_space for item in items]
        kept = any(isinstance(item, Mark) and item.node.last is None for item in items)
        is_edge = not self.text or not word
        shown = " " if any(spaces) and not is_edge and not (kept and word[0] in CLOSING) else ""
        gap = Gap(items, shown)
        before, behind = len(self.text), len(self.text + shown)
        first = spaces.index(True) if any(spaces) else len(items)
        last = len(items) - 1 - spaces[::-1].index(True) if any(spaces) else -1
        for place, item in enumerate(items):
            if not isinstance(item, Mark):
                continue
            self._gaps[item] = gap
            node = item.node
            if item.side:
                node.end = before
            elif node.last is not None:
                node.start = behind
            else:
                node.has_space = (first < place, last > place)
                node.start = node.end = behind if node.has_space == (True, False) else before
        return gap

    @property
    def count(self) -> int:
        """The number of codes."""
        return len({mark.node for mark in self._gaps})

    def render(self, translation: str, weights: torch.Tensor | None) -> list[Piece]:
        """The pieces of the translation, with the codes; `weights` as in [`Places`]."""
        translation = translation.strip()
        places = Places(self.text, translation, weights if self.count <= MOST_WORDS else None)
        write = self._writing.write
        words = {word: iter(each) for word, each in self._words.items() if any(raw != write(word) for raw in each)}
        spaces = {words: iter(each) for words, each in self._spaces.items()}
        out, gap, left = list[Piece](), list[str | Mark](), ""

        def between(right: str) -> None:
            if left and right and not any(isinstance(item, Mark) for item in gap):
                items: list[str | Mark] = (
                    [next(spaces.get((left.lower(), right.lower()), iter(())), " ")] if gap else []
                )
            else:
                items = self._between(left, gap, right)
            for item in items:
                out.extend([Piece("text", item)] if isinstance(item, str) else item.pieces)
            gap.clear()

        for item in places.order(self.nodes):
            if isinstance(item, tuple):
                gap.append(Mark(*item))
                continue
            for run in RUNS.findall(item):
                if run.isspace():
                    gap.append(" ")
                    continue
                between(run)
                out.append(Piece("text", next(words.get(run, iter(())), None) or write(run)))
                left = run
        between("")
        return out

    def _between(self, left: str, gap: Sequence[str | Mark], right: str) -> list[str | Mark]:
        """What is written between two words, or at an edge, where there are these spaces and marks."""
        marks = [item for item in gap if isinstance(item, Mark)]
        if marks:
            known = self._gaps[marks[0]]
            is_there = (known is self._first) == (not left) and (known is self._last) == (not right)
            if is_there and known.marks == marks and bool(known.shown) == (len(marks) < len(gap)):
                return known.items
        items, brings_space = list[str | Mark](), any(mark.node.is_space for mark in marks)
        if not left and self._first is not None and self._first.items and isinstance(self._first.items[0], str):
            items.append(self._first.items[0])
        has_space = may_space = False
        for item in gap:
            if isinstance(item, str):
                has_space = True
                continue
            before, behind = item.node.has_space
            if (has_space or may_space or before) and left and not brings_space:
                items.append(" ")
            items.append(item)
            has_space, may_space, left = False, behind, left or "-"
        if right and not brings_space and (has_space or (may_space and right[0] not in CLOSING)):
            items.append(" ")
        if not right and self._last.items and isinstance(self._last.items[-1], str):
            items.append(self._last.items[-1])
        return items


class TooManyCharactersError(ValueError):
    """The texts of a document have more characters than may be read."""


_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


@contextmanager
def at_most_characters(most: int) -> Iterator[None]:
    """
    Within, texts may have so many characters together.

    Raises:
        TooManyCharactersError: They have more; it is raised as soon as one is read that is too much.
    """
    token = _left.set([most, most])
    try:
        yield
    finally:
        _left.reset(token)


def count_characters(text: str) -> None:
    """Count a text that is read; see `at_most_characters`."""
    if (left := _left.get()) is not None:
        left[0] -= len(text)
        if left[0] < 0:
            raise TooManyCharactersError(f"more than {left[1]:,} characters, which it may have")


class Text:
    """
    A text whose sentences are translated one by one.

    Args:
        pieces: Its pieces.
        writing: How its characters are written.

    Attributes:
        sentences: What is translated, those of the branches of a [`Choice`] behind the one that has it.
    """

    def __init__(self, pieces: Iterable[Piece], writing: Writing = PLAIN):
        self._parts = list[tuple[Sentence | None, list[Piece]]]()
        self.sentences = list[Sentence]()
        segment = list[Piece]()
        for piece in (*pieces, Piece("ending", "")):
            if piece.kind != "ending":
                segment.append(piece)
                continue
            sentence = Sentence(segment, writing) if any(each.kind == "text" for each in segment) else None
            if sentence is not None and not sentence.is_translated:
                sentence = None
            if sentence is not None:
                count_characters(sentence.text)
                self.sentences.append(sentence)
            for choice in _choices(segment):
                self.sentences += [each for text in choice.parts if isinstance(text, Text) for each in text.sentences]
            self._parts += [(sentence, segment), (None, [piece] if piece.value != "" else [])]
            segment = []

    def render(self, translations: Sequence[str], weights: Sequence[torch.Tensor | None]) -> list[Piece]:
        """The pieces of the text with the translations of its sentences; `weights` as in [`Places`]."""
        merged = list[Piece]()
        for piece in self._render(iter(zip(translations, weights, strict=True))):
            if piece.kind == "text" and merged and merged[-1].kind == "text":
                merged[-1] = Piece("text", merged[-1].value + piece.value)
            else:
                merged.append(piece)
        return merged

    def _render(self, given: Iterator[tuple[str, torch.Tensor | None]]) -> Iterator[Piece]:
        for sentence, pieces in self._parts:
            found = pieces if sentence is None else sentence.render(*next(given))
            branches = {
                id(choice): [
                    piece
                    for part in choice.parts
                    for piece in (part._render(given) if isinstance(part, Text) else [Piece("text", part)])
                ]
                for choice in _choices(pieces)
            }
            for piece in found:
                yield from branches[id(piece.value)] if isinstance(piece.value, Choice) else [piece]


def _choices(pieces: Iterable[Piece]) -> Iterator[Choice]:
    return (piece.value for piece in pieces if isinstance(piece.value, Choice))


def as_string(pieces: Iterable[Piece]) -> str:
    """The string of pieces whose codes are strings."""
    return "".join(piece.value for piece in pieces)
