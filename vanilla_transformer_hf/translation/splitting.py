"""
Splitting of texts that are too long for a model: at ends of lines and sentences, else at clauses, words, characters.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence


Span = tuple[int, int]
Count = Callable[[Sequence[str]], list[int]]

# Sentence marks after which Chinese, Japanese and Hindi have no space.
NEED_NO_SPACE = "。！？｡।"
SENTENCE_ENDS = re.compile(rf"(?<=[.!?…])[\"'”’»)\]]*\s+|\n\s*|(?<=[{NEED_NO_SPACE}])[\"'”’»)\]」』）]*")
# After these a full stop does not end a sentence: initials, abbreviations without a vowel (Dr., St., Nr.), ordinals
# (3.).
ABBREVIATION = re.compile(r"(?:^|[\s.(\"'“„«])(?:[^\W\d_]|[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{2,4}|\d{1,2})\.$")
# Where a sentence that is too long is split, best first; finally between characters.
BREAKS = (
    re.compile(r"(?<=[;:؛—–])\s+|(?<=[；：])"),
    re.compile(r"(?<=[,،])\s+|(?<=[、，])"),
    re.compile(r"\s+"),
)


def split_text(text: str, limit: int, count: Count, part_limit: int | None = None) -> list[Span]:
    """
    Split a text into its sentences, and sentences that are too long into as few parts of about equal length as
    possible.

    Models are trained on sentences, so each is a part of its own, however short. The time is linear in the length of
    the text.

    Args:
        text: Of any length.
        limit: Maximum number of tokens of a sentence.
        count: A function from texts to their numbers of tokens.
        part_limit: Maximum number of tokens of a part of a longer sentence; `limit`, if not given. A model has seen
            few sentences as long as the longest, and drops text from parts of that length.

    Returns:
        Start and end of the parts, in order; together they cover the whole text except for white space.
    """
    limits = (limit, limit if part_limit is None else part_limit)
    return [*_fitting(text, [[span] for span in sentences(text)], -1, limits, count)]


def sentences(text: str) -> list[Span]:
    """
    Start and end of the sentences of a text, without surrounding white space; a line break always ends a
    sentence.
    """
    spans, start, seen, has_words = list[Span](), 0, 0, False
    for found in SENTENCE_ENDS.finditer(text):
        has_words = has_words or any(map(str.isalnum, text[seen : found.end()]))
        seen = found.end()
        if spans and not has_words:  # marks on their own belong to the sentence before them
            spans[-1] = (spans[-1][0], seen)
            start = seen
        elif has_words and _ends_sentence(text, found):
            spans.append((start, seen))
            start, has_words = seen, False
    if spans and not any(map(str.isalnum, text[start:])):
        start = spans.pop()[0]
    return _stripped(text, [*spans, (start, len(text))])


def _ends_sentence(text: str, found: re.Match[str]) -> bool:
    """Whether a possible end of a sentence is one; a lower-case letter may follow, as in lower-cased texts."""
    if "\n" in found[0]:
        return True
    place = found.start() - 1
    mark, before = text[place], text[place - 1 : place]
    if mark != "." or before.isspace():  # a space also before the mark: tokenized text
        return True
    return ABBREVIATION.search(text[max(0, place - 6) : place + 1]) is None


def _fitting(text: str, groups: list[list[Span]], level: int, limits: tuple[int, int], count: Count) -> Iterator[Span]:
    """
    Spans within the limits: neighbouring spans are merged while they fit, and longer ones are split at the next level.
    The first of the `limits` is for sentences (level -1), the second for their parts.
    """
    most, limit = limits[min(level + 1, 1)], limits[1]
    spans = [(group[0][0], group[-1][1]) for group in groups]
    for group, (start, end), size in zip(groups, spans, count([text[start:end] for start, end in spans])):
        if size <= most or end - start < 2:
            yield start, end
        elif len(group) > 1:  # a text's tokens may differ from the concatenated tokens of its parts
            middle = len(group) // 2
            yield from _fitting(text, [group[:middle], group[middle:]], level, limits, count)
        elif found := _pieces(text, start, end, level + 1):
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
            return _stripped(text, [*itertools.pairwise([start, *ends, end])]), deeper
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


def _stripped(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans without white space at their ends; empty ones are removed."""
    found = []
    for start, end in spans:
        part = text[start:end]
        start, end = end - len(part.lstrip()), start + len(part.rstrip())
        if start < end:
            found.append((start, end))
    return found
