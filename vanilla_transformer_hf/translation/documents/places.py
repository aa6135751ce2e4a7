"""Where the codes of a text stand in its translation: beside the words that come from theirs."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch

from ...model.tokenizer.failures import TokenizerError


if TYPE_CHECKING:
    from .inline import Node


CLOSING = ".,;:!?…)]}»”’、。，；：！？）"
MARKS = f"{CLOSING}\"'"
OPENING_MARKS = "([{«„“‘\"'¿¡（"
# Words and codes of a sentence up to which the codes are placed by attention.
MOST_WORDS = 400

# Sources and translations -> attention of target words to source words (target words, source words); None: unknown.
Align = Callable[[Sequence[tuple[str, str]]], Sequence[torch.Tensor | None]]
Span = tuple[int, int]


class Places:
    """A translation with the codes of its text, by attention to source words."""

    # Without, and where it is the text, words keep their order, which takes time that grows with the length and the
    # number of codes alone.

    def __init__(self, source: str, target: str, weights: torch.Tensor | None):
        self._source, self._target = source, target
        self._sources, self._targets = (
            [each.span() for each in re.finditer(r"\S+", side)] for side in (source, target)
        )
        self._starts, self._ends = [start for start, _ in self._sources], [end for _, end in self._sources]
        self._target_starts, self._target_ends = ([each[side] for each in self._targets] for side in (0, 1))
        self._sums: torch.Tensor | None = None  # attention of each word to those before a word of the source
        rows, columns = len(self._targets), len(self._sources)
        if weights is None or weights.shape != (rows, columns) or not weights.numel() or source == target:
            self._nearest = [row * columns // rows for row in range(rows)] if columns else []
        else:
            weights = weights.float() / weights.float().sum(dim=1, keepdim=True).clamp(min=1e-9)
            self._nearest = weights.argmax(dim=1).tolist()
            self._sums = torch.zeros(rows, columns + 1)
            self._sums[:, 1:] = weights.cumsum(dim=1)

    def order(self, nodes: Sequence["Node"]) -> list[Any]:
        """The translation's text and, as pairs of a code and its side (0, 1), the codes, in their order."""
        return self._order(nodes, (0, len(self._source)), (0, len(self._target)))

    def _order(self, nodes: Sequence["Node"], source: Span, target: Span) -> list[Any]:
        """The characters `target` of the translation, which are those of the text's `source`, with these codes."""
        taken = list[Span]()
        placed = list[tuple[int, bool, int, int, Any]]()
        for number, node in enumerate(nodes):
            if node.last is not None:
                start, end = self._range(node, source, target, taken)
                taken.append((start, end))
                placed.append((start, end > start, number, end, node))
        taken.sort()
        for number, node in enumerate(nodes):
            if node.last is None:
                place = self._place(node, source, target)
                before = bisect_left(taken, (place, 0)) - 1
                if before >= 0 and taken[before][1] > place:  # inside of a pair: behind it
                    place = taken[before][1]
                placed.append((place, False, number, place, node))
        # Codes of one place come in their order; those that end where another begins come first.
        out, done = list[Any](), target[0]
        for start, _, _, end, node in sorted(placed, key=lambda each: each[:3]):
            out += [self._target[done:start], (node, 0)]
            if node.last is not None:
                out += [*self._order(node.nodes, (node.start, node.end), (start, end)), (node, 1)]
            done = max(done, end)
        return [*out, self._target[done : target[1]]]

    def _has_words(self, start: int, end: int) -> bool:
        """Whether there is a word, or a part of one, between two places of the text."""
        first = bisect_right(self._ends, start)
        return first < len(self._starts) and self._starts[first] < end

    def _rows(self, span: Span) -> range:
        """The words of the translation in a part of it."""
        first = bisect_right(self._target_starts, span[0]) - 1
        if first < 0 or self._targets[first][1] <= span[0]:
            first += 1
        return range(first, bisect_left(self._target_starts, span[1]))

    def _of_columns(self, first: int, last: int, rows: range, taken: Sequence[Span]) -> tuple[int, int] | None:
        """The first and last of the words of the translation that come from these words of the text."""
        if self._sums is None:
            begin = bisect_left(self._nearest, first, rows.start, rows.stop)
            end = bisect_right(self._nearest, last, rows.start, rows.stop)
            return (begin, end - 1) if begin < end else None
        hidden = bytearray(len(self._targets))
        for start, end in taken:
            begin, stop = bisect_left(self._target_starts, start), bisect_right(self._target_ends, end)
            hidden[begin:stop] = b"\1" * (stop - begin)
        free = [row for row in rows if not hidden[row]]
        if not free:
            return None
        shares = (self._sums[:, last + 1] - self._sums[:, first]).tolist()
        # Neighbouring ones whose shares beyond a half sum to most; else that of the largest.
        best, run = (shares[free[0]] - 0.5, free[0], free[0]), (0.0, free[0])
        for before, row in zip([None, *free], free):
            total, first = run if run[0] > 0 and before == row - 1 else (0.0, row)
            run = (total + shares[row] - 0.5, first)
            if run[0] > best[0]:
                best = (run[0], run[1], row)
        return best[1], best[2]

    def _range(self, node: "Node", source: Span, target: Span, taken: Sequence[Span]) -> Span:
        """The characters of the translation that are those of a pair; outside of `taken`."""
        is_whole = not self._has_words(source[0], node.start) and not self._has_words(node.end, source[1])
        if is_whole and not taken:
            return target
        first = bisect_right(self._ends, node.start)
        last = bisect_left(self._starts, node.end) - 1
        rows = self._of_columns(first, last, self._rows(target), taken)
        if rows is None:
            place = max([target[0], *(end for _, end in taken[-1:])]) if self._sums is None else target[0]
            return place, place
        start = self._within(first, rows[0], node.start, is_end=False)
        end = self._within(last, rows[1], node.end, is_end=True)
        if start >= end:  # a part of a word that has become another
            start, end = self._targets[rows[0]][0], self._targets[rows[1]][1]
        start, end = max(start, target[0]), min(end, target[1])
        for other in taken if self._sums is not None else taken[-1:]:
            if start < other[1] and other[0] < end:
                start, end = max(
                    (start, max(start, other[0])), (min(end, other[1]), end), key=lambda one: one[1] - one[0]
                )
        return start, max(start, end)

    def _within(self, column: int, row: int, place: int, is_end: bool) -> int:
        """The place in a word of the translation that is `place` in a word of the text: the edge of a pair."""
        source, target = self._source[slice(*self._sources[column])], self._target[slice(*self._targets[row])]
        offset, whole = place - self._sources[column][0], len(source)
        found = _counterpart(source, target, offset) if 0 < offset < whole else None
        if found is None and is_end:  # marks belong to the pair where it has some in the text
            found = len(target) if self._source[place - 1] in MARKS else max(len(target.rstrip(MARKS)), 1)
        elif found is None:
            has_mark = self._source[place] in OPENING_MARKS
            found = 0 if has_mark else min(len(target) - len(target.lstrip(OPENING_MARKS)), len(target) - 1)
        return self._targets[row][0] + found

    def _place(self, node: "Node", source: Span, target: Span) -> int:
        """Where what is kept stands: behind the word before it, in front of one that it touches, or inside of one."""
        if not self._has_words(source[0], node.start):
            return target[0]
        if not self._has_words(node.start, source[1]):
            return target[1]
        touches_next = node.has_space == (True, False)
        # The word that ends here or has this place inside; the next one, if it is touched and begins here.
        column = bisect_left(self._starts, node.start) - 1
        is_inside = self._ends[column] > node.start
        if touches_next and not is_inside:
            column += 1
        rows = self._rows(target)
        if self._sums is None:
            found = self._of_columns(column, column, rows, ())
        else:
            near = [row for row in rows if self._nearest[row] == column]
            found = (near[0], near[-1]) if near else None
        if found is None:
            before = (
                [row for row in rows if self._nearest[row] < column]
                if self._sums is not None
                else range(rows.start, bisect_left(self._nearest, column, rows.start, rows.stop))
            )
            place = self._targets[before[-1]][1] if before else target[0]
        elif touches_next and not is_inside:
            place = self._targets[found[0]][0]
        else:
            word = self._target[slice(*self._targets[found[1]])]
            offset = None
            if is_inside:
                own = self._source[slice(*self._sources[column])]
                offset = _counterpart(own, word, node.start - self._sources[column][0])
            place = self._targets[found[1]][0] + (len(word) if offset is None else offset)
        return min(max(place, target[0]), target[1])


def _counterpart(source: str, target: str, offset: int) -> int | None:
    """The place in a word that is `offset` in another: behind or before the same letters, or as many marks."""
    left, right = source[:offset].lower(), source[offset:].lower()
    if target.lower().startswith(left):
        return min(offset, len(target))
    if target.lower().endswith(right):
        return max(len(target) - len(right), 0)
    if not any(map(str.isalnum, right)):
        return len(target) - min(len(right), len([*takewhile(_is_mark, reversed(target))]))
    if not any(map(str.isalnum, left)):
        return min(len(left), len([*takewhile(_is_mark, target)]))
    return None


def _is_mark(character: str) -> bool:
    return not character.isalnum()


def find_weights(pairs: Sequence[tuple[Any, str]], align: Align) -> list[torch.Tensor | None]:
    """Attention of translations to their sentences, by `align`, where these have codes to be placed by it."""
    asked = [
        place
        for place, (sentence, one) in enumerate(pairs)
        if sentence.nodes
        and one.strip()
        and one != sentence.text
        and max(len(sentence.text.split()), len(one.split()), sentence.count) <= MOST_WORDS
    ]
    weights: list[torch.Tensor | None] = [None] * len(pairs)
    aligned = align([(pairs[place][0].text, str(pairs[place][1])) for place in asked]) if asked else []
    for place, found in zip(asked, aligned, strict=True):
        weights[place] = found
    return weights


def aligner(translator: Any, source_prefix: str | None = None) -> Align:
    """The alignment by a translator's model, in the layer before its last (Garg et al. 2019, arXiv 1909.02074)."""
    # With a model that has none, words keep their order.

    layer = max(-2, -getattr(translator.model.config, "decoder_layers", 2))

    def align(pairs: Sequence[tuple[str, str]]) -> Sequence[torch.Tensor | None]:
        sources = [f"{source_prefix or ''}{source}" for source, _ in pairs]
        try:
            found = translator.align(sources, [target for _, target in pairs], layer=layer, too_long="truncate")
        except TokenizerError:
            raise
        except ValueError:
            return [None] * len(pairs)
        return [each.weights[:, -len(source.split()) :] for each, (source, _) in zip(found, pairs)]

    return align
