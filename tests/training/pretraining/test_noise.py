"""Noise of denoising: what the papers define, told anew, and what transformers documents."""

import inspect
import re
from itertools import pairwise

import numpy as np
import pytest
from transformers import T5ForConditionalGeneration

from vanilla_transformer_hf.training.data.collators import IGNORED_LABEL
from vanilla_transformer_hf.training.pretraining.denoising import (
    NOISES,
    NoiseTokens,
    most_sentinels,
    permute,
    place_spans,
    spans_behind_marks,
    with_marks,
)


MASK, END, START, POINT = 2, 1, 0, 9
SENTINELS = list(range(200, 240))
TOKENS = NoiseTokens(
    end=END, start=START, mask=MASK, sentinels=SENTINELS, words=np.arange(300, 400), sentence_ends=frozenset({POINT})
)
TEXTS = [list(range(10, 10 + length)) for length in (0, 1, 2, 3, 7, 40, 150)]


def corrupt(name, text, seed=0, rate=None, span_length=None):
    noise = NOISES[name]
    rng = np.random.default_rng(seed)
    return noise.corrupt(rng, text, TOKENS, rate or noise.rate, span_length or noise.span_length or 1.0)


def cases(name):
    for text in TEXTS:
        for seed in range(40):
            for rate in (None, 0.01, 1.0):
                yield text, corrupt(name, text, seed, rate)


def test_infilling_replaces_spans_by_one_mask_each_and_predicts_all():
    for text, noisy in cases("infilling"):
        assert noisy.labels == [*text, END] and noisy.source[-1] == END and noisy.decoder_input is None
        pattern = "".join(".*" if token == MASK else re.escape(chr(token)) for token in noisy.source)
        assert re.fullmatch(pattern, "".join(map(chr, noisy.labels)), re.DOTALL), "the rest stays, in order"
        assert (MASK, MASK) not in zip(noisy.source, noisy.source[1:]), "between two spans is a token"


def test_infilling_has_the_rate_and_the_lengths_of_bart():
    text = list(range(1000, 1400))
    found = [corrupt("infilling", text, seed).source[:-1] for seed in range(200)]
    kept = np.mean([sum(token != MASK for token in source) for source in found])
    masks = np.mean([source.count(MASK) for source in found])
    assert kept == 280, "30 % of 400 are masked"
    assert masks == pytest.approx(120 / 3, rel=0.05), "the mean of a Poisson distribution with λ = 3"
    # Spans of length 0 put a mask between two tokens that are both kept: e^-3 of all spans.
    inserted = [
        sum(
            before != MASK and token == MASK and behind == before + 1
            for before, token, behind in zip(source, source[1:], source[2:])
        )
        for source in found
    ]
    assert np.mean(inserted) / masks == pytest.approx(np.exp(-3), rel=0.15)


def test_sentences_are_permuted_and_all_there():
    text = [10, 11, POINT, 12, POINT, POINT, 13, 14]
    seen = {tuple(permute(np.random.default_rng(seed), text, TOKENS)) for seed in range(60)}
    sentences = [(10, 11, POINT), (12, POINT), (POINT,), (13, 14)]
    assert len(seen) > 15 and all(sorted(each) == sorted(text) for each in seen)
    for each in seen:
        assert all(f"{s}"[1:-1].rstrip(",") in f"{each}" for s in sentences), "inside they are as before"
    assert permute(np.random.default_rng(0), [10, 11, POINT], TOKENS) == [10, 11, POINT]
    noisy = corrupt("infilling_permuted", text)
    assert noisy.labels == [*text, END] and MASK in noisy.source


def test_masking_and_deletion_change_single_tokens():
    for text, noisy in cases("masking"):
        assert noisy.labels == [*text, END] and len(noisy.source) == len(noisy.labels)
        assert all(new in (old, MASK) for new, old in zip(noisy.source, noisy.labels))
    for text, noisy in cases("deletion"):
        assert noisy.labels == [*text, END]
        rest = iter(noisy.labels)
        assert all(token in rest for token in noisy.source), "what is left is in order"
    text = list(range(1000, 1100))
    assert corrupt("masking", text).source.count(MASK) == 15 and len(corrupt("deletion", text).source) == 86


def test_mass_predicts_a_fragment_of_which_the_decoder_sees_what_precedes():
    for text, noisy in cases("mass"):
        places = [place for place, label in enumerate(noisy.labels) if label != IGNORED_LABEL]
        assert places == list(range(places[0], places[-1] + 1)) if places else not text
        whole = [*text, END]
        assert len(noisy.source) == len(noisy.labels) == len(noisy.decoder_input) == len(whole)
        for place, token in enumerate(whole):
            in_fragment = place in places
            assert noisy.labels[place] == (token if in_fragment else IGNORED_LABEL)
            if not in_fragment:
                assert noisy.source[place] == token
            # Figure 1 of the paper: a token of the text is in the decoder's input where the next one is predicted.
            seen = in_fragment and place - 1 in places
            assert noisy.decoder_input[place] == (START if place == 0 else whole[place - 1] if seen else MASK)


def test_mass_masks_half_of_a_text_and_of_this_as_bert():
    text = list(range(1000, 1100))
    found = [corrupt("mass", text, seed) for seed in range(300)]
    assert all(sum(label != IGNORED_LABEL for label in noisy.labels) == 50 for noisy in found)
    masked = np.mean([noisy.source.count(MASK) for noisy in found]) / 50
    other = np.mean([sum(300 <= token < 400 for token in noisy.source) for noisy in found]) / 50
    assert masked == pytest.approx(0.8, abs=0.02) and other == pytest.approx(0.1, abs=0.02)
    starts = {next(i for i, label in enumerate(noisy.labels) if label != IGNORED_LABEL) for noisy in found}
    assert min(starts) < 3 and max(starts) > 47


def test_spans_are_those_that_transformers_documents():
    """The example of `T5ForConditionalGeneration`: "The cute dog walks in the park"."""
    example = inspect.getdoc(T5ForConditionalGeneration.forward)
    source, target = re.findall(r'tokenizer\("([^"]*<extra_id_0>[^"]*)"', example)[:2]
    marks = [f"<extra_id_{number}>" for number in range(3)]
    words, spans = ["The", "cute", "dog", "walks", "in", "the", "park"], [(1, 3), (5, 6)]
    assert " ".join(with_marks(words, spans, marks)) == source
    assert " ".join(spans_behind_marks(words, spans, marks)) == target


def test_spans_give_back_the_text_and_have_the_rate_of_t5():
    for text, noisy in cases("spans"):
        spans, current = {}, None
        for token in noisy.labels[:-1]:
            if token in SENTINELS:
                current = spans.setdefault(token, [])
            else:
                current.append(token)
        assert list(spans) == SENTINELS[: len(spans)] and not spans[SENTINELS[len(spans) - 1]], "one behind the last"
        restored = [part for token in noisy.source for part in spans.get(token, [token])]
        assert restored == [*text, END] and noisy.labels[-1] == END
    text = list(range(1000, 1200))
    source = corrupt("spans", text).source
    assert sum(token in SENTINELS for token in source) == 10 and len(source) == 200 - 30 + 10 + 1


def test_there_are_enough_sentinels_for_the_longest_text():
    for rate, mean, longest in [(0.15, 3.0, 256), (0.5, 1.0, 60), (1.0, 4.0, 9), (0.01, 3.0, 5)]:
        text = list(range(1000, 1000 + longest))
        tokens = NoiseTokens(end=END, start=START, sentinels=SENTINELS[: most_sentinels(longest, rate, mean)])
        noisy = NOISES["spans"].corrupt(np.random.default_rng(0), text, tokens, rate, mean)
        assert noisy.labels[-2] in tokens.sentinels


def test_spans_are_placed_evenly_and_not_beside_each_other():
    counts = np.zeros(10)
    for seed in range(2000):
        spans = place_spans(np.random.default_rng(seed), 10, [2, 1])
        assert all(first[1] < second[0] for first, second in pairwise(spans))
        for start, stop in spans:
            counts[start:stop] += 1
    assert counts.sum() == 3 * 2000 and counts.min() > 0.5 * counts.max()
    assert place_spans(np.random.default_rng(0), 2, [0] * 9) == [(0, 0), (1, 1), (2, 2)]
