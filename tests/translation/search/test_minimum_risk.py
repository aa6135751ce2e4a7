"""Minimum Bayes risk: the candidate with the greatest mean utility, sentence by sentence."""

import pytest
import torch
from counting_model import SOURCES, TARGETS
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from vanilla_transformer_hf import ConstrainedText, MinimumRisk, Translator
from vanilla_transformer_hf.translation.search import token_translator
from vanilla_transformer_hf.translation.search.minimum_risk import UTILITIES
from vanilla_transformer_hf.translation.search.sampling import SampledToken
from vanilla_transformer_hf.translation.streams.work import LineWork
from vanilla_transformer_hf.translation.text.glossary import Glossary


TEXTS = ["ein Hund läuft", "ein Hund rennt.", "der Hund läuft", "", "Katzen", "ein Hund läuft", "x", "der Hund  läuft"]
METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}


@pytest.mark.parametrize("utility", METRICS)
def test_the_best_is_that_of_a_brute_force(utility):
    table = [[METRICS[utility].sentence_score(one, [other]).score for other in TEXTS] for one in TEXTS]
    torch.testing.assert_close(torch.tensor(UTILITIES[utility](TEXTS, TEXTS)), torch.tensor(table), atol=1e-4, rtol=0)
    sums = [sum(row) for row in table]
    risk = MinimumRisk(utility=utility)
    repeated = [place for place, text in enumerate(TEXTS) if text in TEXTS[:place]]
    others = [place for place in range(len(TEXTS)) if place not in repeated]
    assert risk.ranked(TEXTS) == [*sorted(others, key=lambda place: -round(sums[place], 3)), *repeated]
    assert risk.ranked(["Katzen", "ein Hund", "ein Hund"]) == [1, 0, 2], "as often as they were found"
    assert risk.ranked(["", ""]) == [0, 1]


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("candidates", ["epsilon", "top_k", "beam"])
def test_a_sentence_has_its_translation_whatever_stands_beside_it(translator, candidates, quantization):
    if quantization:
        translator = Translator(translator.model, translator.tokenizer, quantization=quantization)
    # So hot that the model is unsure.
    hot = {} if candidates == "beam" else {"temperature": 6.0}
    mbr = MinimumRisk(6, candidates=candidates, **hot)
    alone = [translator.translate(text, mbr=mbr) for text in SOURCES[:6]]
    assert translator.translate([*reversed(SOURCES[:6]), "", SOURCES[0]], mbr=mbr) == [*alone[::-1], "", alone[0]]
    torch.manual_seed(99)
    scored = translator.translate(SOURCES[:6], mbr=mbr, return_scores=True)
    assert scored == alone and all(one.score <= 0 for one in scored)


def test_the_seed_decides_what_is_drawn_and_many_samples_find_what_was_learned(translator):
    found = {
        tuple(translator.translate(SOURCES[:6], mbr=MinimumRisk(2, temperature=9.0, epsilon=0.0, seed=seed)))
        for seed in (1, 1, 2)
    }
    assert len(found) == 2
    assert translator.translate(SOURCES[:6], mbr=MinimumRisk(130)) == TARGETS[:6], "more than are drawn at once"


def test_int8_draws_from_the_probabilities_of_int8(translator):
    """Samples of the likeliest token are its greedy search, and their scores its own, beside other ones in float32."""
    rounded = Translator(translator.model, translator.tokenizer, quantization="int8")
    greedy, mbr = (MinimumRisk(16, candidates="top_k", top_k=k, temperature=4.0) for k in (1, 3))
    expected = rounded.translate(SOURCES[:30], num_beams=1, return_scores=True)
    found = rounded.translate(SOURCES[:30], mbr=greedy, return_scores=True)
    scores = pytest.approx([one.score for one in expected], abs=1e-5)
    assert found == expected and [one.score for one in found] == scores
    assert [one.score for one in translator.translate(SOURCES[:30], mbr=greedy, return_scores=True)] != scores
    for candidates in (mbr, MinimumRisk(6, candidates="beam")):
        assert rounded.translate(SOURCES[:9], mbr=candidates) == rounded.translate(SOURCES[:9], mbr=candidates)


def test_tokens_below_epsilon_are_never_drawn():
    scores = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(2000, -1)
    for epsilon, most in ((0.2, 2), (0.6, 1)):
        drawn = SampledToken(epsilon=epsilon, generator=torch.Generator().manual_seed(1))(None, scores).argmax(dim=-1)
        assert set(drawn.tolist()) == set(range(most))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 1}, "samples=1: must be at least 2"),
        ({"utility": "comet"}, "utility='comet': must be one of 'chrf', 'bleu'"),
        ({"candidates": "beam", "seed": 3}, "seed=3: has no effect on candidates 'beam'"),
        ({"top_k": 3}, "top_k=3: has no effect on candidates 'epsilon'"),
        ({"epsilon": 1.0}, "epsilon=1.0: must be at least 0 and less than 1"),
    ],
)
def test_what_is_out_of_range_or_has_no_effect_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MinimumRisk(**options)


@pytest.mark.parametrize("candidates", ["epsilon", "beam"])
def test_the_best_of_many_begin_with_the_best_and_are_different(translator, candidates):
    mbr = MinimumRisk(
        12, candidates=candidates, **({} if candidates == "beam" else {"temperature": 9.0, "epsilon": 0.0})
    )
    lists = translator.translate([*SOURCES[:3], ""], mbr=mbr, num_return_sequences=3, return_scores=True)
    assert [each[0] for each in lists] == translator.translate([*SOURCES[:3], ""], mbr=mbr)
    assert [len({*each}) for each in lists] == [3, 3, 3, 1] and all(len(each) == 3 for each in lists)
    with pytest.raises(ValueError, match=r"num_return_sequences=13: minimum risk has 12 candidates \(samples\)"):
        translator.translate("one", mbr=mbr, num_return_sequences=13)


def test_as_many_as_candidates_are_all_of_them(translator):
    """For programs that choose among them themselves; as often as they were found."""
    mbr = MinimumRisk(20, candidates="top_k", top_k=2, temperature=2.0)
    found = translator.translate(SOURCES[:8], mbr=mbr, num_return_sequences=20)
    different = [len({*each}) for each in found]
    assert [len(each) for each in found] == [20] * 8 and 8 < sum(different) < 160, "some are found twice"
    assert [len({*each[:count]}) for each, count in zip(found, different)] == different, "those stand at the end"


def test_of_samples_those_alone_are_scored_that_are_taken(translator, monkeypatch):
    """Once for each source; samples of the likeliest token have the text and the score of greedy search."""
    scored, score = [], token_translator.score_sequences

    def counted(*args, sequences, **options):
        scored.append(tuple(sequences.shape[:2]))
        return score(*args, sequences=sequences, **options)

    greedy = translator.translate(SOURCES[:4], num_beams=1, return_scores=True)
    monkeypatch.setattr(token_translator, "score_sequences", counted)
    found = translator.translate(SOURCES[:4], mbr=MinimumRisk(6, candidates="top_k", top_k=1), return_scores=True)
    assert scored == [(1, 1)] * 4 and found == greedy
    assert [one.score for one in found] == pytest.approx([one.score for one in greedy], abs=1e-4)


def test_samples_refuse_what_only_beams_can_contain_before_anything_is_searched(translator, monkeypatch):
    samples, beams = MinimumRisk(4), MinimumRisk(4, candidates="beam")
    phrase, message = (
        ConstrainedText(SOURCES[0], phrases=[TARGETS[0].split()[0]]),
        "choose candidates 'beam', not 'epsi",
    )
    with pytest.raises(ValueError, match=f"required_phrases: samples are not made to contain phrases; {message}"):
        translator.translate([phrase], mbr=samples)
    assert translator.translate(phrase, mbr=beams)
    with pytest.raises(ValueError, match=f"constraints: samples .* {message}"):
        LineWork("translate", options={"mbr": samples}, constraints=True)
    assert LineWork("translate", options={"mbr": beams}, constraints=True).constraints
    without = translator.translate(SOURCES[:2], mbr=beams)
    monkeypatch.setattr(translator, "glossary", Glossary([("a term that no text has", "x")]))
    with pytest.raises(ValueError, match=f"glossary: samples .* {message}"):
        translator.translate(SOURCES[:2], mbr=samples)
    assert translator.translate(SOURCES[:2], mbr=beams) == without


@pytest.mark.parametrize("option", ["num_beams", "do_sample", "batch_size"])
def test_what_minimum_risk_decides_is_refused(translator, option):
    with pytest.raises(ValueError, match=f"{option}=2: minimum risk"):
        translator.translate("one", mbr=MinimumRisk(2), **{option: 2})


def test_a_run_is_continued_only_with_the_same_candidates():
    works = [LineWork("translate", options={"mbr": MinimumRisk(8, seed=seed)}).settings for seed in (1, 1, 2)]
    assert works[0] == works[1] != works[2]
