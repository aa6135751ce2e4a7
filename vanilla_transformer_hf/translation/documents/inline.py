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
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Literal, NamedTuple

import torch

from .places import CLOSING, MOST_WORDS, Places


# White space, and words; HTML names some of its white space.
RUNS = re.compile(r"\s+|\S+")
PLAIN_RUNS = re.compile(r"^\s+|\s+\Z|\S+(?:\s+\S+)*+")
ODD_SPACE = re.compile(r"\s\s|[^\S ]")
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
    """A part of a text."""

    kind: Kind  # "alone": a code inside a sentence; "ending": one that ends it; "begin" and "end" of a pair
    value: Any  # a text, or a code; of white space that is kept, and of codes of strings, a `str`
    key: Any = None  # of a pair: what its two ends have in common
    # Of a pair: whether it encloses the text as an element does, and not by two codes that stand alone where they are
    # no pair.
    is_element: bool = False
    is_space: bool = False  # of a code that is no string: whether it shows as white space


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


ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{1,31});")


def unescape(text: str) -> str:
    """A text with its character references replaced, whatever numbers they have."""
    if len(text) > MOST_DIGITS:
        text = NUMBER.sub(lambda found: "&#x110000;" if len(found[1]) > 7 else f"&#{found[1]};", text)
    return html.unescape(text)


def with_letters(text: str) -> str:
    """A text whose character references of letters, such as &eacute;, are these, and no others."""

    def shown(found: re.Match[str]) -> str:
        letter = html.unescape(found[0])
        return letter if letter.isalpha() else found[0]

    return ENTITY.sub(shown, text) if "&" in text else text


PLAIN, STRING = Writing(), Writing(with_letters)
HTML = Writing(unescape, lambda text: html.escape(text, quote=False).replace("\xa0", "&nbsp;"), RUNS_OF_HTML)


def apart(
    pieces: Iterable[Piece], pattern: re.Pattern[str], kind: Kind, signs: Sequence[str] = ("",)
) -> Iterator[Piece]:
    """Pieces in which what a pattern finds in the texts, where there is one of these signs, is a piece of its own."""
    text = ""
    for piece in chain(pieces, [None]):
        if piece is not None and piece.kind == "text":
            text += piece.value
            continue
        done = 0
        for found in pattern.finditer(text) if any(sign in text for sign in signs) else ():
            if done < found.start():
                yield Piece("text", text[done : found.start()])
            yield Piece(kind, found[0])
            done = found.end()
        if done < len(text):
            yield Piece("text", text[done:])
        text = ""
        if piece is not None:
            yield piece


@dataclass(eq=False, slots=True)
class Node:
    """A code inside a sentence, or two around some of its words."""

    pieces: Sequence[Piece]  # The code, or the first of two; of an element without words, all that is in it
    last: Piece | None = None  # The last of two; None: the code is kept where it stands
    children: Sequence["Node | Piece"] = ()  # What is between the two
    # start, end: Where that is in the text of the sentence; of what is kept, both are its place
    start: int = 0
    end: int = 0
    has_space: tuple[bool, bool] = (False, False)  # Whether there is white space before and behind what is kept
    has_letter: tuple[bool, bool] = (False, False)  # Whether the words beside it end and begin with letters or digits
    is_space: bool = False  # Whether it shows as white space
    text: str = ""  # Of a pair: the text inside
    gaps: tuple["Gap", ...] = ()  # What is around the code, or the first of two, and what is around the last

    @property
    def nodes(self) -> list["Node"]:
        """The codes between the two."""
        return [child for child in self.children if isinstance(child, Node)]


class Mark(NamedTuple):
    """An end of a node, as it stands between words: 0 the first, 1 the last."""

    node: Node
    side: int

    @property
    def pieces(self) -> Sequence[Piece]:
        """What is written for it."""
        return (self.node.last,) if self.side and self.node.last is not None else self.node.pieces


class Gap(NamedTuple):
    """What stands between two words, or at an edge of a sentence: white space and marks."""

    # And what the model gets for it, a space or nothing; and whether a word is before and behind it.

    items: list[str | Mark]
    shown: str
    is_inside: tuple[bool, bool]


def nested(pieces: Sequence[Piece]) -> list[Node | Piece]:
    """A sentence's pieces as codes inside each other; ends without the other, or across a pair, stand alone."""
    stack = [list[Node | Piece]()]
    open_ = list[Piece]()

    def dissolve(count: int) -> None:
        """Let the first ends of the innermost pairs stand alone."""
        for piece in reversed(open_[len(open_) - count :]):
            inner = stack.pop()
            alone = piece if piece.is_element else piece._replace(kind="alone")
            stack[-1] += [Node((alone,)), *inner]
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
                stack[-1].append(Node((piece if piece.is_element else piece._replace(kind="alone"),)))
                continue
            dissolve(depth)
            inner, begin = stack.pop(), open_.pop()
            text = "".join(
                each.value if isinstance(each, Piece) else each.text or " " * each.is_space for each in inner
            )
            shown = unescape(text).strip()
            pair = Node((begin,), piece, inner, text=text)
            if not shown or NAME.fullmatch(shown):  # around no words, or an address or a name: one code that is kept
                pair = Node((*_flat([pair]),), is_space=bool(text) and not shown)
            stack[-1].append(pair)
        else:
            alone = piece if piece.kind == "alone" else piece._replace(kind="alone")
            code = piece.value if isinstance(piece.value, str) else ""
            is_space = piece.is_space or code in SPACES or unescape(code).isspace()
            stack[-1].append(Node((alone,), is_space=is_space))
    dissolve(len(open_))
    return stack[0]


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
    """Text between two codes that end sentences: `text` is what the model reads, `nodes` are the codes in it."""

    # `count` is their number, with those inside of others.

    __slots__ = ("_edges", "_gap", "_is_plain", "_length", "_runs", "_texts", "_writing", "count", "nodes", "text")

    def __init__(self, pieces: Sequence[Piece], writing: Writing):
        items = nested(pieces)
        self.nodes = [item for item in items if isinstance(item, Node)]
        self._writing = writing
        self._gap, self.count = list[str | Mark](), 0
        self._texts, self._length = list[str](), 0
        # White space, None where there are marks, behind it what the model gets, and the same as it stands.
        self._runs, self._is_plain = list[tuple[str | None, str, str]](), True
        self._edges = "", ""  # white space around it
        self._read(items)
        self._add("", "")
        self.text = "".join(self._texts)
        if self._is_plain:
            self._runs.clear()
        del self._gap, self._texts

    def _read(self, items: Iterable[Node | Piece]) -> None:
        read, write, runs = self._writing
        for item in items:
            if isinstance(item, Node):
                self.count += 1
                self._gap.append(Mark(item, 0))
                if item.last is not None:
                    self._read(item.children)
                    self._gap.append(Mark(item, 1))
                continue
            raw = item.value
            if ODD_SPACE.search(raw) is None and read(raw) == write(raw) == raw:  # all of it at once
                if words := raw.strip(" "):
                    self._gap += [" "] * raw.startswith(" ")
                    self._add(words, words)
                self._gap += [" "] * raw.endswith(" ")
                continue
            for run in runs.findall(raw):
                word = read(run) or run
                if word.isspace():
                    self._gap.append(run)
                else:
                    self._is_plain &= run == write(word)
                    self._add(word, run)

    def _add(self, words: str, raw: str) -> None:
        """Add words, none at the end, and place the marks before them."""
        items, shown, space = self._gap, "", None
        if not self._length:
            self._edges = (items[0] if items and isinstance(items[0], str) else "", "")
        if not words:
            self._edges = (self._edges[0], items[-1] if items and isinstance(items[-1], str) else "")
        if not items:
            space = ""
        elif not any(isinstance(item, Mark) for item in items):
            space, shown = "".join(map(str, items)), " " if self._length and words else ""
            items.clear()
        else:
            shown, self._gap = self._end_gap(items, words), []
        self._runs.append((space, words, raw))
        self._is_plain &= space in (None, "", " ")
        self._texts += [shown, words]
        self._length += len(shown) + len(words)

    def _end_gap(self, items: list[str | Mark], word: str) -> str:
        """Place marks; the space, or nothing, that the model gets for what stands before a word."""
        marks = [item for item in items if isinstance(item, Mark)]
        spaces = [place for place, item in enumerate(items) if isinstance(item, str) or item.node.is_space]
        has_kept = any(mark.node.last is None for mark in marks)
        is_inside = bool(self._length), bool(word)
        shown = " " if spaces and all(is_inside) and not (has_kept and word[0] in CLOSING) else ""
        gap = Gap(items, shown, is_inside)
        before, behind = self._length, self._length + len(shown)
        for place, item in enumerate(items):
            if not isinstance(item, Mark):
                continue
            node = item.node
            node.gaps = (*node.gaps, gap)
            if item.side:
                node.end = before
            elif node.last is not None:
                node.start = behind
            else:
                node.has_space = (bool(spaces) and spaces[0] < place, bool(spaces) and spaces[-1] > place)
                node.has_letter = (self._texts[-1][-1:].isalnum() if self._length else False, word[:1].isalnum())
                node.start = node.end = behind if node.has_space == (True, False) else before
        return shown

    def _as_they_stand(self) -> tuple[dict[str, Iterator[str]], dict[tuple[str, str], Iterator[str]]]:
        """The words of the text, and the white space between two, as they stand, in their order."""
        words, spaces = defaultdict[str, list[str]](list), defaultdict[tuple[str, str], list[str]](list)
        left = ""
        for space, text, raw in self._runs:
            for number, word in enumerate(text.split(" ") if text == raw else [text]):
                if number or space:
                    spaces[left.lower(), word.lower()].append(" " if number else space or "")
                words[word].append(word if text == raw else raw)
                left = word
        return {word: iter(each) for word, each in words.items()}, {pair: iter(each) for pair, each in spaces.items()}

    def render(self, translation: str, weights: torch.Tensor | None) -> list[Piece]:
        """The pieces of the translation, with the codes; `weights` as in [`Places`]."""
        translation, order = translation.strip(), [translation.strip()]
        if self.nodes:
            weights = weights if self.count <= MOST_WORDS else None
            order = Places(self.text, translation, weights).order(self.nodes)
        words, spaces = self._as_they_stand()
        out, gap, left = list[Piece](), list[str | Mark](), ""

        def between(right: str) -> None:
            items: Sequence[str | Mark] = gap
            if not (left and right) or any(isinstance(item, Mark) for item in gap):
                items = self._between(left, gap, right)
            elif gap:
                items = [next(spaces.get((left.lower(), right.lower()), iter(())), " ")]
            for item in items:
                out.extend([Piece("text", item)] if isinstance(item, str) else item.pieces)
            gap.clear()

        for item in order:
            if isinstance(item, tuple):
                gap.append(Mark(*item))
                continue
            for run in RUNS.findall(item) if words else PLAIN_RUNS.findall(item):
                if run.isspace():
                    gap.append(" ")
                    continue
                between(run)
                out.append(Piece("text", next(words.get(run, iter(())), None) or self._writing.write(run)))
                left = run
        between("")
        return out

    def _between(self, left: str, gap: Sequence[str | Mark], right: str) -> list[str | Mark]:
        """What is written between two words, or at an edge, where there are these spaces and marks."""
        marks = [item for item in gap if isinstance(item, Mark)]
        if marks:
            known = marks[0].node.gaps[marks[0].side]
            is_same = [item for item in known.items if isinstance(item, Mark)] == marks
            is_beside_words = known.is_inside == (bool(left), bool(right))
            has_as_much_space = bool(known.shown) == (len(marks) < len(gap))
            touches = _would_touch(known.items[0], 0, left[-1:]) or _would_touch(known.items[-1], 1, right[:1])
            if is_same and is_beside_words and has_as_much_space and not touches:
                return known.items
        items, brings_space = list[str | Mark](), any(mark.node.is_space for mark in marks)
        if not left and self._edges[0]:
            items.append(self._edges[0])
        has_space = may_space = False
        for item in gap:
            if isinstance(item, str):
                has_space = True
                continue
            before, behind = item.node.has_space
            before |= _would_touch(item, 0, left[-1:])
            behind |= _would_touch(item, 1, right[:1])
            if (has_space or may_space or before) and left and not brings_space:
                items.append(" ")
            items.append(item)
            has_space, may_space, left = False, behind, "-"
        if right and not brings_space and (has_space or (may_space and right[0] not in CLOSING)):
            items.append(" ")
        if not right and self._edges[1]:
            items.append(self._edges[1])
        return items


class TooManyCharactersError(ValueError):
    """The texts of a document have more characters than may be read."""


_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


@contextmanager
def at_most_characters(most: int) -> Iterator[None]:
    """Within, texts may have so many characters together."""
    token = _left.set([most, most])
    try:
        yield
    finally:
        _left.reset(token)


def count_characters(text: str, texts: int = 0) -> None:
    """Count a text that is read, and look whether there is room for `texts` more; see `at_most_characters`."""
    if (left := _left.get()) is not None:
        left[0] -= len(text)
        if left[0] < texts:
            raise TooManyCharactersError(f"more than {left[1]:,} characters, which it may have")


def _would_touch(item: str | Mark, side: int, character: str) -> bool:
    """Whether a code would stand beside a letter where it had none, as where the quotes around it are gone."""
    if not isinstance(item, Mark) or item.node.last is not None:
        return False
    return character.isalnum() and not item.node.has_letter[side]


class Text:
    """A text whose sentences are translated one by one; those of a [`Choice`] come behind the one that has it."""

    def __init__(self, pieces: Iterable[Piece], writing: Writing = PLAIN):
        # What stays, or a sentence, and the branches in it.
        self._parts = list[tuple[Sentence | None, list[Piece], list[Choice]]]()
        self.sentences = list[Sentence]()
        segment, texts = list[Piece](), 0
        for piece in chain(pieces, [Piece("ending", "")]):
            if piece.kind != "ending":
                segment.append(piece)
                if piece.kind == "text" and not piece.value.isspace():
                    texts += 1
                    count_characters("", texts)
                continue
            texts = 0
            sentence = Sentence(segment, writing) if any(each.kind == "text" for each in segment) else None
            choices = [each.value for each in segment if isinstance(each.value, Choice)]
            if sentence is not None and any(map(str.isalpha, sentence.text)):
                count_characters(sentence.text)
                self.sentences.append(sentence)
                self._parts += [(sentence, [], choices), (None, [piece], [])]
            else:
                self._parts.append((None, [*segment, piece], choices))
            branches = (part for choice in choices for part in choice.parts if isinstance(part, Text))
            self.sentences += [each for text in branches for each in text.sentences]
            segment = []

    def render(self, translations: Sequence[str], weights: Sequence[torch.Tensor | None]) -> list[Piece]:
        """The pieces of the text with the translations of its sentences; `weights` as in [`Places`]."""
        found = self._render(iter(zip(translations, weights, strict=True)))
        rows = groupby(found, lambda piece: piece.kind == "text")
        return [piece for is_text, row in rows for piece in ([Piece("text", as_string(row))] if is_text else row)]

    def _render(self, given: Iterator[tuple[str, torch.Tensor | None]]) -> Iterator[Piece]:
        for sentence, pieces, choices in self._parts:
            found = pieces if sentence is None else sentence.render(*next(given))
            branches = {
                id(choice): [
                    piece
                    for part in choice.parts
                    for piece in (part._render(given) if isinstance(part, Text) else [Piece("text", part)])
                ]
                for choice in choices
            }
            for piece in found:
                if isinstance(piece.value, Choice):
                    yield from branches[id(piece.value)]
                elif piece.value != "":
                    yield piece


def as_string(pieces: Iterable[Piece]) -> str:
    """The string of pieces whose codes are strings."""
    return "".join(piece.value for piece in pieces)
