"""
Texts with HTML markup: what is translated of them, and their tags in the translation.

Markup stays character by character as it is, well-formed or not. It is cut by one regular expression that reads as
HTML5 does and never backtracks: html.parser takes 49 seconds for 50,000 hostile characters, and lxml repairs, which
moves tags and drops text behind `</body>`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch

from ..results import Translation
from .icu import BRANCHES, all_kept, icu_pieces
from .inline import HTML, LINES, Piece, Text, apart, as_string
from .places import Align, find_weights
from .variables import PROSE, pattern_of, without_variables


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
    *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font"),
    *("i", "img", "ins", "kbd", "mark", "math", "q", "ruby", "s", "samp", "small", "span", "strike", "strong"),
    *("sub", "sup", "svg", "time", "tt", "u", "var", "wbr"),
}
# Elements whose content is kept.
KEPT = {"code", "kbd", "math", "ruby", "samp", "svg", "tt", "var", *RAW} - {"title"}
# Variables that look like tags: Ruby's %<name>s, %<PRIu64>, <%= name %>.
LIKE_TAGS = pattern_of(("ruby", "printf", "brackets"))
# Tags that end a sentence in strings of programs; others there, such as <b> and <file>, are inside one.
STRING_ENDING = re.compile(r"p|br|hr|div|li|[uod]l|d[td]|h[1-6]|table|t[rdh]|pre|blockquote|section")
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Token(NamedTuple):
    """A tag, a comment or text, as it stands."""

    raw: str  # all its characters
    kind: str  # "text", "start", "end" or "comment"
    name: str = ""  # of a tag, in lower case


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


class MarkupText:
    """HTML, a page or a piece of one, whose `sentences` are translated."""

    # Attributes, code, scripts, comments, and elements with `translate="no"` or of the class `notranslate` are not.

    def __init__(self, text: str):
        pieces = _pieces(tokens_of(text))
        if BRANCHES.search(text):  # ICU's, as in templates of Angular
            pieces = _with_branches(pieces)
        self._text = Text(without_variables(pieces, PROSE), HTML)
        self.sentences = self._text.sentences

    def render(self, translations: Sequence[str], weights: Sequence[torch.Tensor | None]) -> str:
        """The text with the translations of its sentences; `weights` as in [`Places`]."""
        return as_string(self._text.render(translations, weights))


def _with_branches(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Pieces in which the messages of ICU, each between two tags that end sentences, are read."""
    segment = list[Piece]()
    for piece in chain(pieces, [Piece("ending", "")]):
        if piece.kind != "ending":
            segment.append(piece)
            continue
        try:
            found = icu_pieces(segment, lambda inner: Text(without_variables(inner, PROSE), HTML))
        except ModuleNotFoundError:  # pages need no library: the message stays
            found = all_kept(segment)
        yield from segment if found is None else found
        yield piece
        segment = []


def _pieces(tokens: Iterator[Token]) -> Iterator[Piece]:
    """The pieces of a page, one sentence after the other, so that its characters are counted while it is read."""
    in_pre = 0
    for token in tokens:
        is_inline, element = token.name in INLINE, kept_element(token, tokens)
        raw = "".join(each.raw for each in element)
        is_closed = raw.endswith(">") and (len(element) == 1 or element[-1][1:] == ("end", token.name))
        if token.kind == "text":
            yield from apart([Piece("text", raw)], LINES, "ending") if in_pre else [Piece("text", raw)]
        elif not is_closed:  # it reaches to the end of the text
            yield Piece("ending", raw)
        elif token.kind == "comment" or (is_inline and (len(element) > 1 or token.name in VOID)):
            yield Piece("alone", raw)
        elif is_inline:
            yield Piece("begin" if token.kind == "start" else "end", raw, token.name)
        else:
            yield Piece("ending", raw)
            if token.name == "pre":
                in_pre = max(0, in_pre + (1 if token.kind == "start" else -1))


def kept_element(token: Token, tokens: Iterator[Token]) -> list[Token]:
    """The tokens of an element whose content is kept, from its first one on, or that token alone if it begins none."""
    found, depth = [token], 1
    if token.kind != "start" or token.name in VOID or (token.raw.endswith("/>") and token.name not in INLINE):
        return found
    if token.name not in KEPT and not NO_TRANSLATION.search(token.raw):
        return found
    for each in tokens:
        found.append(each)
        if each.name == token.name:
            depth += 1 if each.kind == "start" else -1
        if depth == 0:
            break
    return found


def string_tags(text: str) -> Iterator[Piece]:
    """The pieces of a string of a program, or a subtitle, with tags."""
    if "<" not in text:
        yield Piece("text", text)
        return
    tokens, done = list[Token](), 0
    for found in LIKE_TAGS.finditer(text):
        if "<" in found[0]:
            tokens += [*tokens_of(text[done : found.start()]), Token(found[0], "text")]
            done = found.end()
    tokens += tokens_of(text[done:])
    rest = iter(tokens)
    for token in rest:
        element = kept_element(token, rest)
        raw = "".join(each.raw for each in element)
        if token.kind == "text":
            yield Piece("text", raw)
        elif STRING_ENDING.fullmatch(token.name):
            yield Piece("ending", raw)
        elif len(element) > 1 or token.kind == "comment" or token.name in VOID or raw.endswith("/>"):
            yield Piece("alone", raw)
        else:
            yield Piece("begin" if token.kind == "start" else "end", raw, token.name)


def with_translations(
    texts: Sequence[MarkupText], translations: Sequence[Sequence[Translation]], n_best: int, align: Align
) -> list[list[Translation]]:
    """The n-best lists of texts with markup from those of their sentences; `align` is called where one has tags."""
    sentences = [sentence for text in texts for sentence in text.sentences]
    pairs = [(sentence, one) for sentence, found in zip(sentences, translations, strict=True) for one in found]
    weights = find_weights(pairs, align)
    results, first = list[list[Translation]](), 0
    for text in texts:
        last = first + n_best * len(text.sentences)
        results.append([])
        for own in (slice(first + rank, last, n_best) for rank in range(n_best)):
            ones = [one for _, one in pairs[own]]
            whole = Translation(text.render(ones, weights[own]), is_complete=all(one.is_complete for one in ones))
            whole.is_suspicious = any(one.is_suspicious for one in ones)
            whole.missing_terms = [term for one in ones for term in one.missing_terms]
            whole.near_matches = [near for one in ones for near in one.near_matches]
            results[-1].append(whole)
        first = last
    return results
