"""
Texts with HTML markup: what is translated of them, and their tags in the translation.

Markup stays character by character as it is, well-formed or not. It is cut by one regular expression that reads as
HTML5 does and never backtracks: html.parser takes 49 seconds for 50,000 hostile characters, and lxml repairs, which
moves tags and drops text behind `</body>`.
"""

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import torch

from ..results import Translation


# The rest of a text belongs to what it does not close, so that all of it is read once.
TOKEN = re.compile(
    r"""(?P<comment><!--(?:-?>|.*?(?:--!?>|\Z))|<[!?][^>]*+(?:>|\Z)|</[^a-zA-Z][^>]*+(?:>|\Z))
    |<(?P<end>/)?(?P<name>[a-zA-Z][^\s/>]*+)
     (?:[^=>]|=\s*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))?+)*+(?:>|\Z)
    |(?P<text>(?:[^<]|<(?![a-zA-Z/!?])|<(?=/\Z))++)""",
    re.VERBOSE | re.DOTALL,
)
NO_TRANSLATION = re.compile(
    r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:["'][^"']*)?(?<![\w-])notranslate(?![\w-])""", re.IGNORECASE
)
# Elements whose content is no markup.
RAW = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
# Elements inside a sentence; all others end it.
INLINE = {
    *(
        "a",
        "abbr",
        "acronym",
        "b",
        "bdi",
        "bdo",
        "big",
        "cite",
        "code",
        "data",
        "del",
        "dfn",
        "em",
        "font",
        "i",
        "img",
    ),
    *(
        "ins",
        "kbd",
        "mark",
        "math",
        "q",
        "ruby",
        "s",
        "samp",
        "small",
        "span",
        "strike",
        "strong",
        "sub",
        "sup",
        "svg",
    ),
    *("time", "tt", "u", "var", "wbr"),
}
# Elements whose content is kept.
KEPT = {"code", "kbd", "math", "ruby", "samp", "svg", "tt", "var", *RAW} - {"title"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# What links show that is no language: addresses, @names, #tags, notes.
NAME = re.compile(r"(https?://|www\.|[@#])\S+|[^\s@]++@(?:[^\s.]*+\.)++\w+|\[\S{1,4}\]")
# The number of a character, without zeros before it; html.unescape raises where it has 4,300 digits.
NUMBER, MOST_DIGITS = re.compile(r"&#0*+([0-9]++);?"), 4000
SPACE = " \t\n\r\f"
MARKS = ".,;:!?…)]}»”’\"'、。，；：！？）"
OPENING_MARKS = "([{«„“‘\"'¿¡（"
# Elements inside each other, and words or tags of a sentence, for whose tags places are looked for by attention.
MOST_NESTED, MOST_WORDS = 50, 400

# Sources and translations -> attention of target words to source words (target words, source words); None: unknown.
Align = Callable[[Sequence[tuple[str, str]]], Sequence[torch.Tensor | None]]


class Translatable(Protocol):
    """A text whose sentences are translated one by one."""

    @property
    def sentences(self) -> Sequence[Any]:
        """What is translated, each with its `text` and the `nodes` in it."""

    def render(self, translations: Sequence[str], weights: Sequence[torch.Tensor | None]) -> str:
        """The text with the translations of its sentences; `weights` as in `Places`."""


class Token(NamedTuple):
    """
    A tag, a comment or text, as it stands.

    Attributes:
        raw: All its characters.
        kind: "text", "start", "end" or "comment".
        name: Of a tag, in lower case.
    """

    raw: str
    kind: str
    name: str = ""


def tokens_of(text: str) -> Iterator[Token]:
    """The tags and texts of a text, which together are the text."""
    place = 0
    while found := TOKEN.match(text, place):
        place = found.end()
        name = (found["name"] or "").lower()
        kind = "end" if found["end"] else "start" if name else "comment" if found["comment"] else "text"
        yield Token(found[0], kind, name)
        if kind == "start" and name in RAW:
            closing = re.compile(rf"</{name}(?=[\s/>])|\Z", re.IGNORECASE).search(text, place)
            end = len(text) if closing is None else closing.start()
            if end > place:
                yield Token(text[place:end], "text")
            place = end


@dataclass
class Node:
    """
    An element inside a sentence, or what is kept there.

    Attributes:
        opening, closing: The tags; of what is kept, `opening` is all of it.
        start, end: Where its text is in that of the sentence.
        children: The nodes inside.
        has_space: Whether there is white space before and behind what is kept.
        first: Index of its first token in the sentence.
    """

    opening: str
    closing: str = ""
    start: int = 0
    end: int = 0
    children: list["Node"] = field(default_factory=list)
    is_kept: bool = False
    has_space: tuple[bool, bool] = (False, False)
    first: int = 0


class Sentence:
    """Text between two tags that end sentences: what the model reads, and the tags in it."""

    def __init__(self) -> None:
        self.text, self.nodes, self.raw = "", list[Node](), list[str]()
        self._edges = ("", "")  # white space around it
        self._open = list[Node]()
        self._has_space = False

    @property
    def is_translated(self) -> bool:
        """Whether there is a letter in it."""
        return any(map(str.isalpha, self.text))

    @property
    def _siblings(self) -> list[Node]:
        return self._open[-1].children if self._open else self.nodes

    def add_text(self, raw: str) -> None:
        """Add text; white space reaches the model as single spaces."""
        before = self._edges[0] if self.raw else raw[: len(raw) - len(raw.lstrip(SPACE))]
        self._edges = (before, raw[len(raw.rstrip(SPACE)) :])
        self.raw.append(raw)
        text = re.sub(f"[{SPACE}]+", " ", unescape(raw))
        kept, end = self._siblings[-1] if self._siblings else None, len(self.text)
        if kept is not None and kept.is_kept and kept.start == end:
            kept.has_space = (kept.has_space[0], text.startswith(" "))
            if text[:1] in MARKS:
                self.text = self.text.removesuffix(" ")
                for node in takewhile(lambda node: node.is_kept and node.start == end, reversed(self._siblings)):
                    node.start = node.end = len(self.text)
        if not self.text or self.text.endswith(" "):
            text = text.removeprefix(" ") if text != " " else ""
            self._has_space |= not text
        self.text += text
        self._has_space = text.endswith(" ") if text else self._has_space

    def add_kept(self, raw: str) -> None:
        """Add what stays as it is."""
        self._add_tag(raw)
        self._keep(raw, len(self.raw) - 1)

    def _add_tag(self, raw: str) -> None:
        self.raw.append(raw)
        self._edges = (self._edges[0], "" if raw else self._edges[1])

    def _keep(self, raw: str, first: int) -> None:
        place = len(self.text)
        space = self._has_space or self.text.endswith(" ")
        self._siblings.append(Node(raw, "", place, place, is_kept=True, has_space=(space, False), first=first))
        self._has_space = False

    def open(self, raw: str, name: str) -> None:
        """Begin an element."""
        if len(self._open) == MOST_NESTED:
            return self.add_kept(raw)
        node = Node(raw, name, start=len(self.text), first=len(self.raw))
        self._siblings.append(node)
        self._open.append(node)
        self._add_tag(raw)

    def close(self, raw: str, name: str) -> None:
        """End the last element of this name; a tag that ends none stays where it is."""
        places = [place for place, node in enumerate(self._open) if node.closing == name]
        if not places:
            return self.add_kept(raw)
        while len(self._open) > places[-1]:
            self._end(self._open.pop(), raw if len(self._open) == places[-1] else "")
        return None

    def _end(self, node: Node, raw: str) -> None:
        self._add_tag(raw)
        node.closing, text = raw, self.text[node.start :]
        if not text.strip() or NAME.fullmatch(text.strip()):
            siblings = self._siblings
            siblings.pop()  # it: what came behind it is inside of it
            self.text = self.text[: node.start]
            self._keep("".join(self.raw[node.first :]), node.first)
            self._has_space = text.endswith(" ")
            siblings[-1].has_space = (siblings[-1].has_space[0] or text.startswith(" "), False)
            return
        node.start += len(text) - len(text.lstrip())
        node.end = len(self.text.rstrip())

    def finish(self) -> None:
        """End the elements without an end tag, and the text."""
        while self._open:
            self._end(self._open.pop(), "")
        self.text = self.text.rstrip(" ")

    def render(self, translation: str, weights: torch.Tensor | None) -> str:
        """The translation with the tags, placed by the attention of its words to those of the text."""
        before, after = self._edges
        if not self.nodes:
            return before + _escape(translation) + after
        words = max(len(self.text.split()), len(translation.split()))
        if max(words, _count(self.nodes)) > MOST_WORDS:
            places: Places | PlacesInOrder = PlacesInOrder(self.text, translation)
        else:
            places = Places(self.text, translation, weights)
        return before + places.render(self.nodes, (0, len(places.source)), (0, len(translation))) + after


class RenderedPlaces:
    """
    A translation with the elements of its text; where these are is said by the classes below.

    Args:
        source, target: The text and its translation.
    """

    def __init__(self, source: str, target: str):
        self.source, self.target = source, target
        self._sources, self._targets = (
            [found.span() for found in re.finditer(r"\S+", side)] for side in (source, target)
        )

    def _range(
        self, node: Node, source: tuple[int, int], target: tuple[int, int], taken: Sequence[tuple[int, int]]
    ) -> tuple[int, int]:
        """The characters of the translation that are those of an element; outside of `taken`."""
        raise NotImplementedError

    def _place(self, node: Node, source: tuple[int, int], target: tuple[int, int]) -> int:
        """Where what is kept stands in the translation."""
        raise NotImplementedError

    def render(self, nodes: Sequence[Node], source: tuple[int, int], target: tuple[int, int]) -> str:
        """The translation's characters `target`, which are those of the text's `source`, with these nodes."""
        taken = list[tuple[int, int]]()
        placed = list[tuple[int, int, int, Node]]()
        for order, node in enumerate(nodes):
            if not node.is_kept:
                start, end = self._range(node, source, target, taken)
                taken.append((start, end))
                placed.append((start, end, order, node))
        taken.sort()
        for order, node in enumerate(nodes):
            if node.is_kept:
                place = self._place(node, source, target)
                before = bisect_left(taken, (place, 0)) - 1
                if before >= 0 and taken[before][1] > place:  # inside of an element: behind it
                    place = taken[before][1]
                placed.append((place, place, order, node))
        # Elements of one place come in their order; those that end where another begins come first.
        out, done = "", target[0]
        for start, end, _, node in sorted(placed, key=lambda each: (each[0], each[1] != each[0] and 1, each[2])):
            out += _escape(self.target[done:start])
            if node.is_kept:
                out = _with_spaces(out, node, self.target[start : target[1]])
            else:
                inner = self.render(node.children, (node.start, node.end), (start, end))
                out += node.opening + inner + node.closing
            done = end
        return out + _escape(self.target[done : target[1]])


class PlacesInOrder(RenderedPlaces):
    """
    Where the elements of a long text are: words count as being in the same order. It takes time that grows with the
    length and the number of elements alone.

    Args:
        source, target: The text and its translation.
    """

    def __init__(self, source: str, target: str):
        super().__init__(source, target)
        self._starts = [start for start, _ in self._sources]

    def _rows(self, first: int, last: int) -> tuple[int, int]:
        """The first word of the translation at the place of these words of the text, and the one behind the last."""
        rows, columns = len(self._targets), len(self._sources)
        return -(-first * rows // columns), -(-(last + 1) * rows // columns)

    def _range(
        self, node: Node, source: tuple[int, int], target: tuple[int, int], taken: Sequence[tuple[int, int]]
    ) -> tuple[int, int]:
        least = max(target[0], taken[-1][1] if taken else 0)
        column = bisect_right(self._starts, node.start) - 1
        first, behind = self._rows(column, bisect_left(self._starts, node.end) - 1)
        if first >= behind:
            return least, least
        start = min(target[1], max(least, self._targets[first][0]))
        return start, min(target[1], max(start, self._targets[behind - 1][1]))

    def _place(self, node: Node, source: tuple[int, int], target: tuple[int, int]) -> int:
        column = bisect_left(self._starts, node.start) - 1
        _, behind = self._rows(0, column) if column >= 0 else (0, 0)
        place = self._targets[behind - 1][1] if behind else 0
        return min(target[1], max(target[0], place))


class Places(RenderedPlaces):
    """
    Where the elements of a text are, by attention.

    Args:
        source, target: The text and its translation.
        weights: Attention of target words to source words; None: the order is taken to be the same.
    """

    def __init__(self, source: str, target: str, weights: torch.Tensor | None):
        super().__init__(source, target)
        if weights is None or weights.shape != (len(self._targets), len(self._sources)):
            weights = _diagonal(len(self._targets), len(self._sources))
        weights = weights.float() / weights.float().sum(dim=1, keepdim=True).clamp(min=1e-9)
        self._nearest = weights.argmax(dim=1).tolist() if weights.numel() else []
        sums = torch.zeros(len(self._targets), len(self._sources) + 1)
        sums[:, 1:] = weights.cumsum(dim=1)
        self._sums = sums

    def _range(
        self, node: Node, source: tuple[int, int], target: tuple[int, int], taken: Sequence[tuple[int, int]]
    ) -> tuple[int, int]:
        """The characters of the translation that are those of an element; outside of `taken`."""
        is_whole = not (self.source[source[0] : node.start] + self.source[node.end : source[1]]).strip()
        if is_whole and not taken:
            return target
        columns = [place for place, (start, end) in enumerate(self._sources) if start < node.end and end > node.start]
        rows = [
            place
            for place, (start, end) in enumerate(self._targets)
            if start < target[1] and end > target[0] and not any(start < last and end > first for first, last in taken)
        ]
        if not rows or not columns:
            place = max([target[0], *(end for _, end in taken)])
            return place, place
        shares = (self._sums[:, columns[-1] + 1] - self._sums[:, columns[0]]).tolist()
        first, last = _best_run(rows, shares)
        start, end = max(target[0], self._targets[first][0]), min(target[1], self._targets[last][1])
        # Marks around the words belong to the element where it has some in the text.
        if self.source[node.end - 1] not in MARKS:
            end = max(len(self.target[:end].rstrip(MARKS)), start + 1)
        if self.source[node.start] not in OPENING_MARKS:
            start = min(end - len(self.target[start:end].lstrip(OPENING_MARKS)), end - 1)
        return start, end

    def _place(self, node: Node, source: tuple[int, int], target: tuple[int, int]) -> int:
        """Where what is kept stands in the translation: behind the word before it, or before one that it touches."""
        if not self.source[source[0] : node.start].strip():
            return target[0]
        if not self.source[node.start : source[1]].strip():
            return target[1]
        is_before = node.has_space[0] and not node.has_space[1] and self.source[node.start] not in MARKS
        words = [place for place, (start, end) in enumerate(self._sources) if start < node.start]
        column = min(words[-1] + 1 if is_before else words[-1], len(self._sources) - 1)
        rows = [
            place
            for place, (start, end) in enumerate(self._targets)
            if start < target[1] and end > target[0] and self._nearest[place] == column
        ]
        if not rows:
            last = [end for place, (_, end) in enumerate(self._targets) if self._nearest[place] < column]
            return min(max([target[0], *last]), target[1])
        if is_before:
            return max(target[0], self._targets[rows[0]][0])
        end = min(target[1], self._targets[rows[-1]][1])
        return max(target[0], len(self.target[:end].rstrip(MARKS)) if self.source[node.start] in MARKS else end)


def _count(nodes: Sequence[Node]) -> int:
    """The number of elements, with those inside."""
    return sum(1 + _count(node.children) for node in nodes)


def _diagonal(rows: int, columns: int) -> torch.Tensor:
    """Each word attends to the one at its place, (rows, columns)."""
    weights = torch.zeros(rows, columns)
    for row in range(rows if columns else 0):
        weights[row, row * columns // rows] = 1
    return weights


def _best_run(rows: Sequence[int], shares: Sequence[float]) -> tuple[int, int]:
    """
    The first and last of those neighbouring rows whose shares beyond a half have the largest sum; the row with the
    largest share if none has a half.
    """
    best, run = (shares[rows[0]] - 0.5, rows[0], rows[0]), (0.0, rows[0])
    for before, row in zip([None, *rows], rows):
        total, first = run if run[0] > 0 and before == row - 1 else (0.0, row)
        run = (total + shares[row] - 0.5, first)
        if run[0] > best[0]:
            best = (run[0], run[1], row)
    return best[1], best[2]


def _with_spaces(left: str, node: Node, right: str) -> str:
    """A text with what is kept at its end, and the white space that there was around it."""
    before = " " if node.has_space[0] and left and not left[-1].isspace() else ""
    is_apart = node.has_space[1] and right and not right[0].isspace() and right[0] not in MARKS
    return left + before + node.opening + (" " if is_apart else "")


def unescape(text: str) -> str:
    """A text with its character references replaced, whatever numbers they have."""
    if len(text) > MOST_DIGITS:
        text = NUMBER.sub(lambda found: "&#x110000;" if len(found[1]) > 7 else f"&#{found[1]};", text)
    return html.unescape(text)


def _escape(text: str) -> str:
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")


class MarkupText:
    """
    A text with markup.

    Args:
        text: HTML, a page or a piece of one.

    Attributes:
        sentences: What is translated; attributes, code, scripts, comments, and elements with `translate="no"` or of
            the class `notranslate` are not.
    """

    def __init__(self, text: str):
        self._parts = list[str | Sentence]()
        self._sentence = Sentence()
        self._read([*tokens_of(text)])
        self.sentences = [part for part in self._parts if isinstance(part, Sentence)]

    def render(self, translations: Sequence[str], weights: Sequence[torch.Tensor | None]) -> str:
        """The text with the translations of its sentences; `weights` as in `Places`."""
        given = iter(zip(translations, weights, strict=True))
        return "".join(part if isinstance(part, str) else part.render(*next(given)) for part in self._parts)

    def _read(self, tokens: list[Token]) -> None:
        place, in_pre = 0, 0
        while place < len(tokens):
            token = tokens[place]
            is_inline = token.name in INLINE
            end = end_of_kept(tokens, place)
            raw = "".join(each.raw for each in tokens[place:end])
            is_closed = raw.endswith(">") and (end == place + 1 or tokens[end - 1][1:] == ("end", token.name))
            if token.kind != "text" and not is_closed:  # it reaches to the end of the text
                self._end_sentence(raw)
            elif token.kind == "comment" or (is_inline and (end > place + 1 or token.name in VOID)):
                self._sentence.add_kept(raw)
            elif token.kind == "text" and in_pre:
                for line in raw.splitlines(keepends=True):
                    self._sentence.add_text(line)
                    self._end_sentence("")
            elif token.kind == "text":
                self._sentence.add_text(raw)
            elif is_inline and token.kind == "start":
                self._sentence.open(raw, token.name)
            elif is_inline:
                self._sentence.close(raw, token.name)
            else:
                self._end_sentence(raw)
                if token.name == "pre":
                    in_pre = max(0, in_pre + (1 if token.kind == "start" else -1))
            place = end
        self._end_sentence("")

    def _end_sentence(self, raw: str) -> None:
        self._sentence.finish()
        self._parts.append(self._sentence if self._sentence.is_translated else "".join(self._sentence.raw))
        self._parts.append(raw)
        self._sentence = Sentence()


def end_of_kept(tokens: Sequence[Token], place: int) -> int:
    """The index behind an element whose content is kept, or behind the token if it begins none."""
    token = tokens[place]
    if token.kind != "start" or token.name in VOID or (token.raw.endswith("/>") and token.name not in INLINE):
        return place + 1
    if token.name not in KEPT and not NO_TRANSLATION.search(token.raw):
        return place + 1
    depth = 0
    for index in range(place, len(tokens)):
        if tokens[index].name == token.name:
            depth += 1 if tokens[index].kind == "start" else -1
            if depth == 0:
                return index + 1
    return len(tokens)


def with_translations(
    texts: Sequence[Translatable], translations: Sequence[Sequence[Translation]], n_best: int, align: Align
) -> list[list[Translation]]:
    """
    The n-best lists of texts with markup.

    Args:
        texts: The texts, such as [`MarkupText`]s.
        translations: The n-best list of each of their sentences.
        n_best: The length of each list.
        align: Is called for the alignment of words, where a sentence has tags.
    """
    sentences = [sentence for text in texts for sentence in text.sentences]
    pairs = [(sentence, one) for sentence, found in zip(sentences, translations, strict=True) for one in found]
    asked = [
        place
        for place, (sentence, one) in enumerate(pairs)
        if sentence.nodes and one.strip() and max(len(sentence.text.split()), len(one.split())) <= MOST_WORDS
    ]
    weights: list[torch.Tensor | None] = [None] * len(pairs)
    aligned = align([(pairs[place][0].text, str(pairs[place][1])) for place in asked]) if asked else []
    for place, found in zip(asked, aligned, strict=True):
        weights[place] = found
    results, first = list[list[Translation]](), 0
    for text in texts:
        last = first + n_best * len(text.sentences)
        results.append([])
        for own in (slice(first + rank, last, n_best) for rank in range(n_best)):
            ones = [one for _, one in pairs[own]]
            whole = Translation(text.render(ones, weights[own]), is_complete=all(one.is_complete for one in ones))
            whole.is_suspicious = any(one.is_suspicious for one in ones)
            results[-1].append(whole)
        first = last
    return results


def aligner(translator: Any, source_prefix: str | None = None) -> Align:
    """
    The alignment by a translator's model, in the layer before its last (Garg et al. 2019, arXiv 1909.02074); with one
    that has none, words keep their order.

    Args:
        translator: A [`Translator`].
        source_prefix: What stands before each source, such as the tag of the target language.
    """

    layer = max(-2, -getattr(translator.model.config, "decoder_layers", 2))

    def align(pairs: Sequence[tuple[str, str]]) -> Sequence[torch.Tensor | None]:
        sources = [f"{source_prefix or ''}{source}" for source, _ in pairs]
        try:
            found = translator.align(sources, [target for _, target in pairs], layer=layer, too_long="truncate")
        except ValueError:
            return [None] * len(pairs)
        return [each.weights[:, -len(source.split()) :] for each, (source, _) in zip(found, pairs)]

    return align
