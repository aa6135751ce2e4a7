"""Scores of given translations, against the model's own logits and loss."""

import math

import pytest
import torch
from counting_model import SIZES, SOURCES, TARGETS
from transformers import MarianConfig, MarianMTModel

from vanilla_transformer_hf import Translator, VanillaTransformerTokenizer
from vanilla_transformer_hf.translation.text.tally import Tally
from vanilla_transformer_hf.translation.text.texts import TextError


PAIRS = list(zip(SOURCES, TARGETS))[:7]


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(SOURCES, TARGETS, vocab_size=300, show_progress=False)


@pytest.fixture
def translator(tiny_model, tokenizer):
    return Translator(tiny_model(vocab_size=len(tokenizer)), tokenizer)


@pytest.fixture
def marian(tokenizer):
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    return Translator(MarianMTModel(MarianConfig(vocab_size=len(tokenizer), **SIZES, **special)), tokenizer)


@pytest.mark.parametrize("model", ["translator", "marian"])
def test_log_probabilities_are_those_of_the_loss(model, request):
    translator = request.getfixturevalue(model)
    for source, target in PAIRS:
        score = translator.score(source, target)
        batch = translator.tokenizer(source, text_target=target, return_tensors="pt")
        loss = translator.model(**batch).loss.item()
        assert len(score.tokens) == batch["labels"].shape[1]
        assert score.tokens[-1] == "</s>"
        assert -score.log_probability / len(score.tokens) == pytest.approx(loss, abs=1e-5)
        assert score.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
        assert sum(score.token_log_probabilities) == pytest.approx(score.log_probability)


@pytest.mark.parametrize("limits", [{}, {"batch_size": 2}, {"batch_tokens": 10}, {"batch_tokens": 1}])
def test_batches_change_nothing(translator, limits):
    alone = [translator.score(*pair).token_log_probabilities for pair in PAIRS]
    for one, other in zip(alone, translator.score(*zip(*PAIRS), **limits), strict=True):
        assert one == pytest.approx(other.token_log_probabilities, abs=1e-5)


def test_the_score_of_a_translation_is_that_of_its_search(translator):
    best = translator.translate("one two", num_beams=3, length_penalty=0.0, max_new_tokens=9, return_scores=True)
    ids = torch.tensor([translator.tokenizer.convert_tokens_to_ids(best.tokens)])
    source = translator.tokenizer("one two", return_tensors="pt")["input_ids"]
    start = torch.zeros(1, 1, dtype=torch.long)
    logits = translator.model(source, decoder_input_ids=torch.cat((start, ids[:, :-1]), 1)).logits
    assert best.score == pytest.approx(logits.log_softmax(-1).gather(-1, ids[..., None]).sum().item(), abs=1e-4)


def test_pairs_of_sentences_are_taken_one_by_one_or_whole(translator):
    source, target = "one two. three.", "zwei. drei."
    parts = translator.score(["one two.", "three."], ["zwei.", "drei."])
    always = translator.score(source, target, split_sentences="always")
    assert always.tokens == parts[0].tokens + parts[1].tokens and always == translator.score(source, target)
    never = translator.score(source, target, split_sentences="never")
    assert len(never.tokens) == len(translator.tokenizer(text_target=target)["input_ids"]) == len(always.tokens) - 1
    whole = translator.align(source, target, split_sentences="never").weights
    assert whole[0, 2] > 0 == translator.align(source, target).weights[0, 2]
    with pytest.raises(ValueError, match="split_sentences='some': must be one of"):
        translator.score(source, target, split_sentences="some")


def test_empty_texts_have_the_score_of_their_end(translator):
    for pair in (("", ""), ("one", ""), ("", "eins")):
        score = translator.score(*pair)
        assert len(score.tokens) == len(translator.tokenizer(text_target=pair[1])["input_ids"])
        assert math.isfinite(score.log_probability)


def test_what_cannot_be_scored_is_refused(translator, caplog):
    with pytest.raises(ValueError, match="sources and targets differ in number: 2 and 1"):
        translator.score(["one", "two"], ["eins"])
    with pytest.raises(ValueError, match="either two texts or two lists"):
        translator.score("one", ["eins"])
    with pytest.raises(TypeError, match="cannot translate int '5'"):
        translator.score(["one"], [5])
    translator.max_source_length = 4
    with pytest.raises(ValueError, match=r"'one two three four five'… has \d+ tokens and at most 4"):
        translator.score("one two three four five", "eins")
    with pytest.raises(ValueError, match="too_long='split': must be one of 'error', 'truncate'"):
        translator.score("one two three four five", "eins", too_long="split")
    score = translator.score("one two three four five", "eins", too_long="truncate")
    assert score == translator.score("one two three", "eins", too_long="truncate")
    assert caplog.messages[0] == "1 over-long line truncated to the first 4 source or 1023 target tokens"


def test_white_space_and_lines_of_pairs(translator):
    pair = ("one two three", "eins zwei")
    expected = translator.score(*pair)
    for form in (" {}", "{}\n", "\u00a0{}\t", "\ufeff{}"):
        assert translator.score(form.format(pair[0]), form.format(pair[1])) == expected
    other = translator.score("four", "vier")
    both = translator.score(f"{pair[0]}\n\nfour", f" {pair[1]}\r\nvier ")
    assert both.tokens == expected.tokens + other.tokens
    assert both.log_probability == pytest.approx(expected.log_probability + other.log_probability, rel=1e-5)
    alignment = translator.align(f"{pair[0]}\n\nfour", f" {pair[1]}\r\nvier ")
    assert alignment.source_words == ["one", "two", "three", "four"]
    assert alignment.target_words == ["eins", "zwei", "vier"]
    torch.testing.assert_close(alignment.weights[:2, :3], translator.align(*pair).weights)
    assert not alignment.weights[2, :3].any() and not alignment.weights[:2, 3:].any()
    tally = Tally()
    list(translator.score_stream([(f"{pair[0]}\n\nfour", "eins zwei\nvier"), pair], tally=tally))
    assert tally.sentences == 2
    translator.max_source_length = 8
    with pytest.raises(TextError) as error:
        list(translator.score_stream([("one\ntwo", "eins\nzwei"), ("one " * 20, "eins")]))
    assert error.value.place == 1
