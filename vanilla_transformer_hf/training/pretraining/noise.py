"""
Noise that an encoder–decoder learns to undo: functions of token ids, and a table with a row for each.

A text is its token ids without the end of sentence; a rate is the share of its tokens that are changed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


IGNORED = -100  # label of tokens that have none, as in transformers
# Of the tokens that MASS chooses, these shares are masked and replaced by any token; the others stay, as in BERT.
MASKED, REPLACED = 0.8, 0.1


@dataclass(frozen=True)
class NoiseTokens:
    """The token ids that noise puts into texts."""

    end: int  # of a sentence
    start: int  # what the decoder begins with
    mask: int = -1  # for noise that has none
    sentinels: Sequence[int] = ()  # the marks of spans, in order
    words: Sequence[int] | np.ndarray = ()  # all other ids, from which a random one is taken
    sentence_ends: frozenset[int] = frozenset()  # ids that end a sentence inside a text


class NoisyText(NamedTuple):
    """Ids of the encoder, labels, and the decoder's input where it is not the shifted labels; each with its end."""

    source: list[int]
    labels: list[int]
    decoder_input: list[int] | None = None


Rng = np.random.Generator
# (random numbers, text, tokens, rate, mean length of a span) -> the noisy text
Corrupt = Callable[[Rng, list[int], NoiseTokens, float, float], NoisyText]


def place_spans(rng: Rng, length: int, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Random places (start, stop) for spans of these lengths, with tokens between them; what has none is left out."""
    lengths = list(lengths)
    while len(lengths) > length - sum(lengths) + 1:  # places are before, between and behind the tokens that stay
        lengths.pop()
    rng.shuffle(lengths)
    places = np.sort(rng.choice(length - sum(lengths) + 1, size=len(lengths), replace=False)).tolist()
    spans, before = [], 0
    for place, size in zip(places, lengths):
        spans.append((place + before, place + before + size))
        before += size
    return spans


def changed_tokens(length: int, rate: float) -> int:
    """How many tokens of a text are changed: at least one, if it has any."""
    return min(length, max(1, round(rate * length))) if length else 0


def with_marks(text: Sequence[int], spans: Sequence[tuple[int, int]], marks: Sequence[int]) -> list[int]:
    """The text, in which each span is one mark."""
    found, before = [], 0
    for (start, stop), mark in zip(spans, marks):
        found += [*text[before:start], mark]
        before = stop
    return [*found, *text[before:]]


def spans_behind_marks(text: Sequence[int], spans: Sequence[tuple[int, int]], marks: Sequence[int]) -> list[int]:
    """The spans alone, a mark before each and one behind the last: what T5 predicts."""
    found: list[int] = []
    for (start, stop), mark in zip(spans, marks):
        found += [mark, *text[start:stop]]
    return [*found, marks[len(spans)]]


def infill(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Text infilling of BART (Lewis et al. 2020, arXiv 1910.13461); the whole text is predicted."""
    # Spans, whose lengths are from a Poisson distribution, are one mask each, also spans of no token.
    lengths, total = list[int](), changed_tokens(len(text), rate)
    while (missing := total - sum(lengths)) > 0:
        lengths.append(min(int(rng.poisson(mean)), missing))
    spans = place_spans(rng, len(text), lengths)
    noisy = with_marks(text, spans, [tokens.mask] * len(spans))
    return NoisyText([*noisy, tokens.end], [*text, tokens.end])


def permute(rng: Rng, text: list[int], tokens: NoiseTokens) -> list[int]:
    """The sentences of a text in a random order (BART); a text of one sentence stays as it is."""
    bounds = [place + 1 for place, token in enumerate(text[:-1]) if token in tokens.sentence_ends]
    sentences = [text[start:stop] for start, stop in zip([0, *bounds], [*bounds, len(text)])]
    return [token for number in rng.permutation(len(sentences)) for token in sentences[number]]


def infill_permuted(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Sentences in a random order, then text infilling: what BART is trained with."""
    source = infill(rng, permute(rng, text, tokens), tokens, rate, mean).source
    return NoisyText(source, [*text, tokens.end])


def mask(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Token masking of BART: single tokens are masked, and the whole text is predicted."""
    chosen = set(rng.choice(len(text), size=changed_tokens(len(text), rate), replace=False).tolist())
    noisy = [tokens.mask if place in chosen else token for place, token in enumerate(text)]
    return NoisyText([*noisy, tokens.end], [*text, tokens.end])


def delete(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Token deletion of BART: single tokens are left out, and the whole text is predicted."""
    chosen = set(rng.choice(len(text), size=changed_tokens(len(text), rate), replace=False).tolist())
    noisy = [token for place, token in enumerate(text) if place not in chosen]
    return NoisyText([*noisy, tokens.end], [*text, tokens.end])


def predict_fragment(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """MASS (Song et al. 2019, arXiv 1905.02450): one fragment is masked, token by token, and predicted."""
    # The decoder sees of the text only the fragment's tokens before the one that it predicts, at their positions.
    size = changed_tokens(len(text), rate)
    first = int(rng.integers(len(text) - size + 1))
    draws, others = rng.random(size), rng.choice(tokens.words, size=size).tolist()
    source, labels = [*text, tokens.end], [IGNORED] * (len(text) + 1)
    decoder_input = [tokens.start, *[tokens.mask] * len(text)]
    for number, place in enumerate(range(first, first + size)):
        labels[place] = text[place]
        if draws[number] < MASKED:
            source[place] = tokens.mask
        elif draws[number] < MASKED + REPLACED:
            source[place] = others[number]
        if number:
            decoder_input[place] = text[place - 1]
    return NoisyText(source, labels, decoder_input)


def predict_spans(rng: Rng, text: list[int], tokens: NoiseTokens, rate: float, mean: float) -> NoisyText:
    """Span corruption of T5 (Raffel et al. 2020, arXiv 1910.10683): spans are a sentinel each."""
    # Predicted are the spans, each behind its sentinel, and one more sentinel.
    # There are total / mean of them, of random lengths of at least 1.
    lengths, total = list[int](), changed_tokens(len(text), rate)
    if total:
        count = min(max(1, round(total / mean)), total)
        bounds = np.sort(rng.choice(total - 1, size=count - 1, replace=False) + 1).tolist()
        lengths = [stop - start for start, stop in zip([0, *bounds], [*bounds, total])][: len(tokens.sentinels) - 1]
    spans = place_spans(rng, len(text), lengths)
    noisy = with_marks(text, spans, tokens.sentinels)
    return NoisyText([*noisy, tokens.end], [*spans_behind_marks(text, spans, tokens.sentinels), tokens.end])


@dataclass(frozen=True)
class Noise:
    """A kind of noise: what it does to a text, and the tokens that it needs."""

    corrupt: Corrupt
    rate: float  # the share of tokens that is changed, as in its paper
    span_length: float | None  # the mean length of a span, likewise; None without spans of random lengths
    about: str  # for a model's card
    has_mask: bool = True
    has_sentinels: bool = False


# `noise` of a recipe -> what it is.
NOISES: dict[str, Noise] = {
    "infilling": Noise(infill, 0.3, 3.0, "text infilling as in BART"),
    "infilling_permuted": Noise(infill_permuted, 0.3, 3.0, "text infilling and permuted sentences as in BART"),
    "masking": Noise(mask, 0.15, None, "token masking as in BART"),
    "deletion": Noise(delete, 0.15, None, "token deletion as in BART", has_mask=False),
    "mass": Noise(predict_fragment, 0.5, None, "prediction of a fragment as in MASS"),
    "spans": Noise(predict_spans, 0.15, 3.0, "span corruption as in T5", has_mask=False, has_sentinels=True),
}


def most_sentinels(longest: int, rate: float, mean: float) -> int:
    """The sentinels that a text of `longest` tokens needs, the one behind the last span included."""
    return max(1, math.ceil(changed_tokens(longest, rate) / mean)) + 1
