"""Caches by the names of every release of transformers, in every model, and through every loop of transformers."""

import copy

import pytest
import torch

from vanilla_transformer_hf import (
    RecurrentSeq2SeqConfig,
    RecurrentSeq2SeqForConditionalGeneration,
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForImageTextToText,
    VanillaTransformerForSpeechSeq2Seq,
)
from vanilla_transformer_hf.model.releases import CACHE


IDS = torch.tensor([[7, 8, 9, 10], [11, 12, 13, 14]])
SMALL = {"vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
SIZES = {**SMALL, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}
IMAGES = {"image_height": 4, "image_width": 16, "patch_height": 4, "patch_width": 4, "num_channels": 1}


def config(**fields):
    return VanillaTransformerConfig(**SIZES, encoder_ffn_dim=16, decoder_ffn_dim=16, **fields)


# Each kind of model, and its source.
KINDS = {
    "encoder-decoder": lambda: (VanillaTransformerForConditionalGeneration(config()), {"input_ids": IDS}),
    "speech": lambda: (VanillaTransformerForSpeechSeq2Seq(config(front_end="speech")), {"input_features": FRAMES}),
    "image": lambda: (
        VanillaTransformerForImageTextToText(config(front_end="image", **IMAGES)),
        {"pixel_values": PIXELS},
    ),
    "decoder alone": lambda: (VanillaTransformerForCausalLM(config(is_encoder_decoder=False, is_decoder=True)), {}),
    "recurrent": lambda: (
        RecurrentSeq2SeqForConditionalGeneration(RecurrentSeq2SeqConfig(**SMALL)),
        {"input_ids": IDS},
    ),
}
FRAMES, PIXELS = torch.randn(2, 16, 80), torch.randn(2, 1, 4, 16)


@pytest.fixture(params=KINDS)
def parts(request):
    """A model, what is given of the source, and the name of the target ids."""
    model, source = KINDS[request.param]()
    return model.eval(), source, "decoder_input_ids" if source else "input_ids"


def with_past(name, model, source, ids):
    """Logits of the last two of four tokens, after a cache that a call before made."""
    made = getattr(model(**source, **{ids: IDS[:, :2]}, use_cache=True), CACHE)
    return model(**source, **{ids: IDS[:, 2:], name: made}).logits


@torch.no_grad()
@pytest.mark.parametrize("part", ["head", "model", "decoder"])
def test_a_cache_is_taken_under_both_names(parts, part):
    head, source, ids = parts
    whole = head(**source, **{ids: IDS}).logits[:, 2:]
    for name in ("cache", "past_key_values"):
        torch.testing.assert_close(with_past(name, head, source, ids), whole, atol=1e-5, rtol=1e-5)
    inner = {"head": head, "model": head.model, "decoder": head.get_decoder()}[part]
    made = getattr(head(**source, **{ids: IDS}, use_cache=True), CACHE)
    given = {**source, ids: IDS}
    if part == "decoder":
        states = torch.zeros(2, 3, 16)
        given = {"input_ids": IDS, **({"encoder_hidden_states": states} if source else {})}
    with pytest.raises(ValueError, match=r"state_of_next_year holds a cache.*transformers \d"):
        inner(**given, state_of_next_year=made)
    with pytest.raises(ValueError, match="cache and past_key_values are two caches with tokens"):
        inner(**given, cache=made, past_key_values=copy.deepcopy(made))


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    "options", [{"do_sample": True}, {"output_scores": True}, {"repetition_penalty": 1.2}], ids=str
)
def test_transformers_loops_keep_the_past(parts, options, beams):
    model, source, _ = parts
    model.lm_head.weight.mul_(4)  # clear differences
    found = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        settings = {"num_beams": beams, "max_new_tokens": 6, "return_dict_in_generate": True, **options}
        found.append(model.generate(**source or {"input_ids": IDS}, use_cache=use_cache, **settings).sequences)
    assert torch.equal(*found)


def test_checkpointed_layers_take_no_cache():
    model, _ = KINDS["decoder alone"]()
    cache = getattr(model(IDS[:, :2], use_cache=True), CACHE)
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="gradient checkpointing is not possible with a cache"):
        model.train()(IDS[:, 2:], cache=cache)
