"""transformers' `generate()` without its surprises: padding with id 0, and the encoder outputs of a caller."""

import copy

import pytest
import torch
from transformers import GenerationMixin

from vanilla_transformer_hf import (
    RecurrentSeq2SeqConfig,
    RecurrentSeq2SeqForConditionalGeneration,
    VanillaTransformerForConditionalGeneration,
)


OPTIONS = {
    "ours": {},
    "transformers'": {"return_dict_in_generate": True, "output_hidden_states": True},
    "its sentences' limits": {"max_extra_tokens": 3, "return_dict_in_generate": True, "output_hidden_states": True},
}


def ending(model):
    """The model, most of whose translations end early."""
    with torch.no_grad():
        model.lm_head.bias[model.config.eos_token_id] += 4
    return model


@pytest.fixture(params=["transformer", "recurrent"])
def model(request, decided_model):
    if request.param == "transformer":
        return ending(decided_model())
    sizes = {"vocab_size": 99, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    model = RecurrentSeq2SeqForConditionalGeneration(RecurrentSeq2SeqConfig(**sizes)).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    return model


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("loop", OPTIONS)
def test_sequences_that_have_ended_are_padded(model, source, loop, beams):
    options, pad = dict(OPTIONS[loop]), model.config.pad_token_id
    assert pad == 0
    if isinstance(model, RecurrentSeq2SeqForConditionalGeneration):
        options.pop("max_extra_tokens", None)
    found = model.generate(**source, num_beams=beams, max_new_tokens=30, **options)
    rows = getattr(found, "sequences", found)[:, 1:]
    ended = (rows == model.config.eos_token_id).cumsum(dim=1)
    behind = (ended - (rows == model.config.eos_token_id).long()).bool()
    assert behind.any() or isinstance(model, RecurrentSeq2SeqForConditionalGeneration)
    assert (rows[behind] == pad).all()


def test_continuous_batching_is_an_error_instead_of_empty_results(model):
    with pytest.raises(NotImplementedError, match="has no paged cache for continuous batching: call generate"):
        model.generate_batch([[3, 4, 5]], max_new_tokens=3)


class Untouched(VanillaTransformerForConditionalGeneration):
    """Our model with transformers' own beam search."""

    _beam_search = GenerationMixin._beam_search


def test_no_other_id_differs_from_transformers(decided_model, source):
    model = ending(decided_model())
    twin = Untouched(model.config).eval()
    twin.load_state_dict(model.state_dict())
    options = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 30}
    ours, theirs = (each.generate(**source, **options) for each in (model, twin))
    differs = ours != theirs
    assert differs.any() and (ours[differs] == 0).all() and (theirs[differs] == model.config.eos_token_id).all()


def test_encoder_outputs_of_the_caller_stay_as_they_are(model, source):
    outputs = model.get_encoder()(**source)
    before = copy.copy(outputs)
    options = {"attention_mask": source["attention_mask"].clone(), "num_beams": 3, "max_new_tokens": 5}
    found = model.generate(encoder_outputs=outputs, **options)
    assert torch.equal(found, model.generate(**source, num_beams=3, max_new_tokens=5))
    assert torch.equal(found, model.generate(encoder_outputs=outputs, **options))
    assert all(outputs[name] is before[name] for name in before)
    assert torch.equal(options["attention_mask"], source["attention_mask"])
