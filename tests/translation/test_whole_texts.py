"""Texts longer than those of training, in one piece: only with attention whose cost grows with n."""

import pytest
import torch
from counting_model import SIZES

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.translation.translator import Translator


LONG = " ".join(["one two three four five"] * 40)
KINDS = {
    "window": {"encoder_attention_type": "window", "attention_window": 4},
    "performer": {"encoder_attention_type": "performer"},
    "lsh": {"encoder_attention_type": "lsh", "lsh_chunk": 16},
}


@pytest.fixture
def opened(opened_translator):
    """`opened(**fields)`: a translator with an untrained model of these fields, and with limits of 20 tokens."""

    def opened(**fields):
        torch.manual_seed(0)
        config = {"vocab_size": len(opened_translator.tokenizer), **SIZES, **fields}
        model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**config))
        translator = Translator(model, opened_translator.tokenizer)
        translator.max_source_length = 20
        return translator

    return opened


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_translated_in_one_piece(opened, kind, caplog):
    translator = opened(**KINDS[kind])
    encoded = translator.tokenizer(LONG, return_tensors="pt")
    assert encoded["input_ids"].shape[1] > translator.model.config.max_position_embeddings
    options = {"max_new_tokens": 12, "num_beams": 1, "suppress_tokens": translator.tokenizer.all_special_ids}
    expected = translator.model.generate(**encoded, **options)[0, 1:]
    lengths = []
    translator.model.get_encoder().register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    found = translator.translate(["one", LONG], too_long="whole", **options)[1]
    assert translator.tokenizer.convert_tokens_to_ids(found.tokens) == expected.tolist()
    assert max(lengths) == encoded["input_ids"].shape[1]
    assert caplog.messages[0] == "1 over-long line passed through the model whole, with more than 20 tokens"


def test_saved_limits_of_length_are_not_those_of_whole_texts(opened):
    translator = opened(**KINDS["window"])
    translator.model.generation_config.max_length = 10
    encoded = translator.tokenizer(LONG, return_tensors="pt")
    options = {"num_beams": 1, "suppress_tokens": translator.tokenizer.all_special_ids}
    translation = translator.translate(LONG, too_long="whole", **options)
    # 50 tokens more than the source, as of each other text; all are used, because no translation may end.
    assert len(translation.tokens) == encoded["input_ids"].shape[1] + 50
    assert not translation.is_complete
    assert len(translator.translate(LONG, too_long="whole", max_new_tokens=7, **options).tokens) == 7
    assert len(translator.translate("one", too_long="split", **options).tokens) < 10


def test_scores_of_whole_texts(opened):
    translator = opened(**KINDS["window"])
    source = translator.tokenizer(LONG, return_tensors="pt")
    labels = translator.tokenizer(text_target=LONG, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        loss = translator.model(**source, labels=labels).loss
    score = translator.score(LONG, LONG, too_long="whole")
    assert score.log_probability == pytest.approx(-loss.item() * labels.shape[1], rel=1e-5)
    with pytest.raises(ValueError, match="go through the model at once"):
        translator.score(LONG, LONG)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({}, "the encoder's attention is 'full', whose cost grows with the square"),
        ({"encoder_attention_type": "synthesizer_random"}, "is 'synthesizer_random', whose cost"),
        ({"encoder_attention_type": "linformer"}, "and the model has 64 positions: it cannot go through"),
        ({**KINDS["window"], "cross_attention_type": "linformer"}, "and the model has 64 positions"),
        ({**KINDS["window"], "position_encoding": "learned"}, "and the model has 64 positions"),
    ],
)
def test_what_cannot_be_whole_is_refused_by_name(opened, fields, message):
    translator = opened(**fields)
    with pytest.raises(ValueError, match=message):
        translator.translate(LONG, too_long="whole")
    with pytest.raises(ValueError, match=message):
        translator.score(LONG, "eins", too_long="whole")


@pytest.mark.parametrize("beams", [1, 2])
def test_texts_are_as_long_as_every_model_of_an_ensemble_takes_them(opened, beams):
    """A member with fewer positions ended in a traceback, on the source's side and on the target's."""
    wide, narrow = (opened(position_encoding="learned", max_position_embeddings=size) for size in (64, 16))
    both = Translator(wide.model, wide.tokenizer, ensemble=[narrow.model])
    never = {"suppress_tokens": both.tokenizer.all_special_ids}
    found = both.translate(LONG, num_beams=beams, **never)
    assert both.max_source_length == 16
    assert not found.is_complete
    limit = both.translate("one", num_beams=beams, max_new_tokens=40, **never)
    assert len(limit.tokens) == 16


def test_every_model_of_an_ensemble_must_take_whole_texts(opened):
    local, full = opened(**KINDS["window"]), opened()
    local.ensemble = [full.model]
    with pytest.raises(ValueError, match="attention is 'full'"):
        local.translate(LONG, too_long="whole")
