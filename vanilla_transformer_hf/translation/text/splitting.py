"""Splitting of texts into lines and sentences, and of sentences that are too long at clauses, words, characters."""

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from ...common.white_space import (
    LINE_ENDS,
    Span,
    line_spans,
    normalize_space,
    strip_spans,
    without_invisible,
    word_starts,
)


if TYPE_CHECKING:
    from .glossary import Term


Count = Callable[[Sequence[str]], list[int]]

# Marks that end a sentence wherever they stand: Chinese and Japanese, Indic, Arabic and Urdu, Armenian, Ethiopic,
# Khmer, Burmese, Mongolian, and double ones.
NEED_NO_SPACE = "。！？｡।॥؟۔։።፧፨។៕။᠃᠉‼⁇⁈⁉‽"
CLOSING = r"\"'”’“‘»›«‹)\]}」』）】》〉］"
OPENING = "\"'“‘„‚«‹»›([{「『（【《〈［¿¡–—- "
SENTENCE_ENDS = re.compile(
    rf"(?<=[.!?…])[{CLOSING}]*(?:\s»(?=\s))?\s+"  # French has a space before »
    rf"|[{LINE_ENDS}]\s*"
    rf"|(?<=[{NEED_NO_SPACE}])[{CLOSING}]*\s*"
)
ANY_END = re.compile(rf"[.!?…{NEED_NO_SPACE}{LINE_ENDS}]")
# A quotation mark on its own, as tokenized texts have it, also with Moses' escapes: it may open or close.
LONE_QUOTE = re.compile(r"(?:[\"'”’]|&quot;|&apos;)(?:\s|$)")
# An initial (J.), or the end of an abbreviation with dots (U.S., z.B.).
INITIAL = re.compile(r"(?:.*[.-])?[^\W\d_]")
# Dr., Mt., Nr., bzw.; but TV and DVD are words.
NO_VOWEL = re.compile(r"[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ][b-df-hj-np-tv-xz]{1,3}")
# Languages with words that have no vowel, such as Czech "vlk".
SYLLABIC_CONSONANTS = frozenset(("bs", "cs", "hr", "mk", "sk", "sl", "sr"))
# Languages that write no ordinals with a full stop ("3." for "third"), so that a number may end a sentence.
NO_ORDINALS = frozenset(
    ("ar", "bg", "ca", "el", "en", "es", "fr", "gl", "he", "hi", "it", "ja", "ko", "nl", "pt", "ro")
)
# More characters than the longest abbreviation has.
LONGEST_WORD = 32
# Where a sentence that is too long is split, best first; finally between characters.
BREAKS = (
    re.compile(r"(?<=[;:؛—–])\s+|(?<=[；：])"),
    re.compile(r"(?<=[,،])\s+|(?<=[、，])"),
    re.compile(r"\s+"),
)


@dataclass
class Part:
    """A part of a text that goes through the model at once: a line, a sentence, or a part of a longer one."""

    text: str  # The characters, with white space as the model gets it (`normalize_space`)
    ids: list[int] = field(default_factory=list)  # Their token ids, special tokens included
    first_word: int = 0  # Index, by white space, of the whole text's word in which the part begins
    before: str | None = ""  # White space before its translation, if it begins a line; None if it continues one
    after: str = ""  # White space after the translation of the text's last part
    is_cut: bool = False  # Whether it is a part of a longer sentence or line that the model does not take at once
    # Indices of the text's words, such as a language tag, that also stand before the part's own
    repeated: range = range(0)
    tags: str = ""  # The language tags with which it begins, and the white space behind them
    # What is copied in place of a translation: a line or sentence without letters; None if the part is translated
    copied: str | None = None
    # prefix, phrases: Target token ids of what its translation must begin with and contain
    prefix: list[int] = field(default_factory=list)
    phrases: list[list[int]] = field(default_factory=list)
    # Of a glossary: term, translation as it is read back, and its target ids; without ids, it cannot be required
    terms: "list[tuple[Term, str, list[int]]]" = field(default_factory=list)
    known: str | None = None  # The translation of a memory, which is taken in place of a search


def split_parts(
    text: str,
    language: str | None = None,
    in_sentences: bool = False,
    known: Callable[[str], str | None] = lambda text: None,
) -> tuple[list[Part], str]:
    """The lines of a text, or their sentences, each with the white space before it, and that after the last."""
    # Lines whose translation is `known` stay whole.
    spans = list[tuple[int, Span]]()  # where the line begins, and the line or sentence
    for first, last in line_spans(text):
        is_split = in_sentences and known(text[first:last]) is None
        within = sentences(text[first:last], language) if is_split else [(0, last - first)]
        spans += [(first, (first + start, first + end)) for start, end in within]
    starts = word_starts(text) if len(spans) > 1 else []
    parts, seen = list[Part](), 0
    for first, (start, end) in spans:
        before = without_invisible(text[seen:start]) if start == first else None
        first_word = bisect_right(starts, start) - 1 if starts else 0
        line = normalize_space(text[start:end])
        parts.append(Part(line, first_word=first_word, before=before, known=known(line)))
        seen = end
    return parts, without_invisible(text[seen:])


def pair_parts(
    pair: tuple[str, str], languages: tuple[str | None, str | None], in_sentences: bool
) -> list[tuple[Part, Part]]:
    """Lines, or sentences, of a text with those of its translation: one pair of all where their numbers differ."""
    choices = (True, False) if in_sentences else (False,)
    for choice in choices:
        source, target = (split_parts(*side, choice)[0] for side in zip(pair, languages))
        # Sentences pair up within their lines.
        if [each.before is None for each in source] == [each.before is None for each in target] and source:
            return list(zip(source, target))
    whole = (Part(normalize_space(text)) for text in pair)
    return [(next(whole), next(whole))]


def split_text(
    text: str, limit: int, count: Count, part_limit: int | None = None, language: str | None = None
) -> list[Span]:
    """The spans of a text's sentences, and of as few parts of about equal length as possible of longer ones."""
    # Longer than `limit` tokens. Models are trained on sentences, so each is a part of its own, however short.
    # `part_limit` is for parts of longer ones: a model has seen few sentences as long as the longest, and drops text
    # from parts of that length. The time is linear.
    limits = (limit, limit if part_limit is None else part_limit)
    return [*_fitting(text, [[span] for span in sentences(text, language)], -1, limits, count)]


def sentences(text: str, language: str | None = None) -> list[Span]:
    """Start and end of the sentences of a text, without white space around; a line break always ends a sentence."""
    # A sentence ends only where the mark is unambiguous: not after abbreviations (those of Moses for the language, by
    # sacremoses), initials and ordinals, nor where a quotation continues in lower case. Of an unknown language, words
    # without a vowel count as abbreviations, short numbers as ordinals. The time is linear.
    if ANY_END.search(text, 0, len(text) - 1) is None:  # nearly all lines; this takes a tenth of the time
        return strip_spans(text, [(0, len(text))])
    spans, start, seen, has_words, is_lower = list[Span](), 0, 0, False, text.islower()
    for found in SENTENCE_ENDS.finditer(text):
        has_words = has_words or any(map(str.isalnum, text[seen : found.end()]))
        seen = found.end()
        if spans and not has_words:  # marks on their own belong to the sentence before them
            spans[-1] = (spans[-1][0], seen)
            start = seen
        elif has_words and _ends_sentence(text, found, start=start, language=language, is_lower=is_lower):
            spans.append((start, seen))
            start, has_words = seen, False
    if spans and not any(map(str.isalnum, text[start:])):
        start = spans.pop()[0]
    return strip_spans(text, [*spans, (start, len(text))])


def _ends_sentence(text: str, found: re.Match[str], start: int, language: str | None, is_lower: bool) -> bool:
    """Whether a match of `SENTENCE_ENDS` is one; in a text that `is_lower`, lower case does not continue it."""
    if any(end in found[0] for end in LINE_ENDS):
        return True
    place = found.start() - 1
    mark, before = text[place], text[place - 1 : place]
    if mark in NEED_NO_SPACE:
        return True
    following = text[found.end() : found.end() + 8].lstrip(OPENING)[:1]
    goes_on = following.islower() and not is_lower
    is_closed = not found[0].isspace()
    if LONE_QUOTE.match(text, found.end()):  # it may close what ends here
        return False
    if mark == "…" or before == ".":
        return not following.islower()
    if is_closed or mark == "!" or before.isspace():  # a space also before the mark: tokenized text
        return not goes_on
    if mark == "?":
        return True
    return not _is_abbreviation(
        text[max(start, place - LONGEST_WORD) : place],
        following,
        language=language,
        goes_on=goes_on,
        is_lower=is_lower,
    )


def _is_abbreviation(before: str, following: str, language: str | None, goes_on: bool, is_lower: bool) -> bool:
    """Whether the full stop between these belongs to the word before it; the other arguments are above."""
    previous, word = ["", "", *before.split()][-2:]
    word = word.lstrip(OPENING)
    if word.isdecimal():
        is_item = before.strip(OPENING) == word  # the number of an item of a list: the sentence has begun with it
        return is_item or goes_on or (len(word) <= 2 and language not in NO_ORDINALS)
    if INITIAL.fullmatch(word):
        return east_asian_width(word[-1]) not in "WF"  # of scripts without initials
    listed = abbreviations(language)
    known = listed.get(word, listed.get(word.capitalize()) if is_lower else None)
    if known is not None and known != NUMERIC_ONLY:
        return True
    if following.isdecimal() or goes_on:  # No. 5, Fig. 3, pp. 4; Fire Dept. engine, max. speed
        return known is not None or len(word) <= (5 if word[:1].isupper() else 3)
    has_unit = previous[-1:].isdecimal()  # 5 km.
    return NO_VOWEL.fullmatch(word) is not None and not has_unit and language not in SYLLABIC_CONSONANTS


NUMERIC_ONLY = "#NUMERIC_ONLY#"


@cache
def abbreviations(language: str | None) -> dict[str, str]:
    """Words after which a full stop does not end a sentence: Moses' list of a language, or none."""
    # Those that need a number after them have `NUMERIC_ONLY`.
    from sacremoses.corpus import NonbreakingPrefixes  # takes half a second, and few texts need it

    known = NonbreakingPrefixes()
    if language not in known.available_langs.values():
        return {}
    lines = (line.strip().partition(" #") for line in known.words(language))
    return {word: f"#{condition}" if condition else "" for word, _, condition in lines}


def _fitting(text: str, groups: list[list[Span]], level: int, limits: tuple[int, int], count: Count) -> Iterator[Span]:
    """Spans within the limits: neighbours are merged while they fit, longer ones are split at the next level."""
    # The first of the `limits` is for sentences (level -1), the second for their parts.
    most, limit = limits[min(level + 1, 1)], limits[1]
    spans = [(group[0][0], group[-1][1]) for group in groups]
    for group, (start, end), size in zip(groups, spans, count([text[start:end] for start, end in spans])):
        if size <= most or end - start < 2:
            yield start, end
        elif len(group) > 1:  # a text's tokens may differ from the concatenated tokens of its parts
            middle = len(group) // 2
            yield from _fitting(text, [group[:middle], group[middle:]], level, limits, count)
        elif found := _pieces(text, start, end=end, level=level + 1):
            pieces, deeper = found
            sizes = count([text[left:right] for left, right in pieces])
            yield from _fitting(text, _packed(pieces, sizes, limit), deeper, limits, count)
        else:
            parts = min(end - start, -(-size // limit))
            ends = [start + (end - start) * part // parts for part in range(parts + 1)]
            yield from _fitting(text, [[span] for span in itertools.pairwise(ends)], level, limits, count)


def _pieces(text: str, start: int, end: int, level: int) -> tuple[list[Span], int] | None:
    """The spans between possible breaks, and the level of these breaks: the first one from `level` on that occurs."""
    for deeper in range(level, len(BREAKS)):
        ends = [found.end() for found in BREAKS[deeper].finditer(text, start, end) if found.end() < end]
        if ends:
            return strip_spans(text, [*itertools.pairwise([start, *ends, end])]), deeper
    return None


def _packed(pieces: Sequence[Span], sizes: Sequence[int], limit: int) -> list[list[Span]]:
    """Group neighbouring spans into as few groups of at most `limit` tokens as possible, of about equal size."""
    aim = sum(sizes) / max(1, -(-sum(sizes) // limit))
    groups, used, before = list[list[Span]](), 0, 0
    for piece, size in zip(pieces, sizes, strict=True):
        if not groups or used + size > limit or before + size / 2 > aim * len(groups):
            groups.append([])
            used = 0
        groups[-1].append(piece)
        used, before = used + size, before + size
    return groups
