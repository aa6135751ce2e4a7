"""Limits, scores and settings of the search of a batch."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from counting_model import MIXED, SIZES
from transformers import MarianConfig, MarianMTModel, pipeline

from vanilla_transformer_hf import MinimumRisk, VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.translation.search import token_translator
from vanilla_transformer_hf.translation.translator import Translator


@pytest.mark.parametrize("length_penalty", [None, 0.0, 0.6])
def test_n_best_scores_are_those_of_beam_search(translator, length_penalty):
    options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": length_penalty}
    best = translator.translate("four five one", return_scores=True, **options)
    scores = [candidate.score for candidate in best]
    assert scores == sorted(scores, reverse=True)
    assert best[0] == "eins fünf vier"
    inputs = translator.tokenizer("four five one", return_tensors="pt")
    options = {name: value for name, value in options.items() if value is not None}
    limits = {"max_new_tokens": 50, "output_hidden_states": True, "output_scores": True}
    limits["return_dict_in_generate"] = True
    expected = translator.model.generate(**inputs, **options, **limits).sequences_scores
    assert scores == pytest.approx(expected.tolist(), abs=1e-4)


def test_what_generate_would_return_changes_nothing(translator):
    plain = translator.translate(MIXED)
    for asked in (True, False):
        assert translator.translate(MIXED, return_dict_in_generate=asked) == plain
        inputs = translator.tokenizer(["one two"], return_tensors="pt")
        found = translator.generate(**inputs, return_dict_in_generate=asked)
        assert torch.equal(found["sequences"], translator.generate(**inputs)["sequences"])


@pytest.mark.parametrize("penalty", ["power", "gnmt"])
def test_scores_of_a_search_and_of_a_second_pass_are_the_same(translator, monkeypatch, penalty):
    """Beam search tells its scores; greedy search, and models of other kinds, need the pass."""
    options = {"length_penalty": 0.6, "length_penalty_type": penalty, "return_scores": True}
    beams = {"num_beams": 3, "num_return_sequences": 3}
    told = translator.translate(MIXED, **beams, **options)
    passes = []
    score = token_translator.score_sequences
    monkeypatch.setattr(token_translator, "score_sequences", lambda *a, **k: passes.append(1) or score(*a, **k))
    assert translator.translate(MIXED, **beams, **options) == told
    assert not passes
    search = translator.model.generate_stream
    silent = lambda *a, **k: (SimpleNamespace(sequences=found.sequences) for found in search(*a, **k))  # noqa: E731
    monkeypatch.setattr(translator.model, "generate_stream", silent)
    computed = translator.translate(MIXED, **beams, **options)
    assert passes and computed == told
    for one, other in zip(itertools.chain(*told), itertools.chain(*computed), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)


def test_score_of_greedy_search_follows_the_length_penalty(translator):
    plain = translator.translate("four five one", num_beams=1, length_penalty=0.0, return_scores=True)
    length = len(plain.tokens)
    for kind, divisor in (("power", length**0.6), ("gnmt", ((5 + length) / 6) ** 0.6)):
        options = {"length_penalty": 0.6, "length_penalty_type": kind}
        score = translator.search.length_penalty(options)(torch.tensor(length))
        assert float(score) == pytest.approx(divisor)
    found = translator.translate("four five one", num_beams=1, length_penalty=0.6, return_scores=True)
    assert found.score == pytest.approx(plain.score / length**0.6, abs=1e-5)


def test_length_limit_is_source_plus_50_where_nobody_gives_one(translator, generated, monkeypatch):
    endless = {"suppress_tokens": [0, 1], "num_beams": 1}
    texts = ["two", "four five"]
    lengths = [len(ids) for ids in translator.tokenizer(texts)["input_ids"]]
    found = translator.translate(texts, **endless)
    assert [len(one.tokens) for one in found] == [length + 50 for length in lengths], "for each its own"
    assert not any(name.startswith("max") for name in generated[-1])
    for given in ({"max_new_tokens": 7}, {"max_length": 9}, {"max_extra_tokens": 3}):
        translator.translate("two", **given)
        limits = {name: value for name, value in generated[-1].items() if name.startswith("max")}
        assert limits == given
    monkeypatch.setattr(translator.search, "has_own_options", False)  # a model of another kind
    translator.translate(["two", "four five"])
    longest = len(translator.tokenizer("four five")["input_ids"])
    assert (generated[-1]["max_new_tokens"], "max_extra_tokens" in generated[-1]) == (longest + 50, False)
    monkeypatch.setattr(translator.model.generation_config, "max_length", 30)
    translator.translate("two")
    assert "max_new_tokens" not in generated[-1]


def test_search_follows_generation_config(translator, monkeypatch):
    monkeypatch.setattr(translator.model.generation_config, "num_beams", 4)
    assert len(translator.translate("two", num_return_sequences=3)) == 3
    with pytest.raises(ValueError, match=r"num_return_sequences=2: needs num_beams of at least 2, not 1"):
        translator.translate("two", num_beams=1, num_return_sequences=2)


@pytest.mark.parametrize("option", ["coverage_penalty", "diversity_penalty"])
def test_what_ranks_hypotheses_is_no_option_of_one(translator, option, monkeypatch):
    """They had no effect; a saved one is for the searches that have beams."""
    for one in ({"num_beams": 1}, {"mbr": MinimumRisk(2)}):
        with pytest.raises(
            ValueError, match=f"{option}=0.5: needs num_beams of at least 2, or mbr's candidates 'beam'"
        ):
            translator.translate("two", **one, **{option: 0.5})
    monkeypatch.setattr(translator.model.generation_config, option, 0.5, raising=False)
    assert translator.translate("two", num_beams=1) == translator.translate("two", num_beams=1, **{option: 0.0})


def test_marian_model_translates_too(translator):
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    marian = MarianMTModel(MarianConfig(vocab_size=len(translator.tokenizer), **SIZES, **special)).eval()
    theirs = Translator(marian, translator.tokenizer)
    best = theirs.translate(MIXED, num_beams=3, num_return_sequences=3, max_new_tokens=5, return_scores=True)
    assert best[2] == ["", "", ""]
    for candidates in best:
        scores = [candidate.score for candidate in candidates]
        assert scores == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    translate = pipeline("translation", model=marian, tokenizer=translator.tokenizer)
    assert translate("two", max_new_tokens=5)[0]["translation_text"] == theirs.translate("two", max_new_tokens=5)


def test_greedy_scores_of_what_came_to_its_limit_do_not_depend_on_the_batch(translator):
    options = {"num_beams": 1, "max_extra_tokens": 1, "return_scores": True, "bad_words_ids": [[1]]}
    texts = ["one", "five two one three four two", "one two"]
    for text, found in zip(texts, translator.translate(texts, **options)):
        assert found.score == pytest.approx(translator.translate(text, **options).score, abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_learned_positions_end_a_translation(translator, num_beams):
    sizes = {**SIZES, "position_encoding": "learned", "max_position_embeddings": 16}
    config = VanillaTransformerConfig(vocab_size=len(translator.tokenizer), **sizes)
    short = Translator(VanillaTransformerForConditionalGeneration(config), translator.tokenizer)
    for options in ({}, {"max_new_tokens": 200}, {"max_extra_tokens": 90}):
        (found,) = short.translate(["one two three"], num_beams=num_beams, bad_words_ids=[[0], [1]], **options)
        assert len(found.tokens) == 16
    short.max_source_length = 17
    with pytest.raises(ValueError, match="max_source_length=17: the model has 16 positions"):
        short.translate("one")
