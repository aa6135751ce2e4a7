"""Linformer attention: equal to the package linformer, and blind to padding."""

import pytest
import torch
from counting_model import SOURCES, TARGETS

from vanilla_transformer_hf import Translator, VanillaTransformerConfig, VanillaTransformerTokenizer
from vanilla_transformer_hf.model.modeling_vanilla_transformer import ATTENTION_TYPES
from vanilla_transformer_hf.translation.pictures.attention_maps import attention_maps


FIELDS = {"encoder_attention_type": "linformer", "linformer_k": 5, "max_position_embeddings": 24}
CROSS = {**FIELDS, "cross_attention_type": "linformer"}


@pytest.mark.parametrize("length", [3, 24])
@torch.no_grad()
def test_outputs_are_those_of_the_package_linformer(length):
    linformer = pytest.importorskip("linformer")
    config = VanillaTransformerConfig(vocab_size=9, d_model=16, encoder_attention_heads=2, **FIELDS)
    config._attn_implementation = "sdpa"
    ours = ATTENTION_TYPES["linformer"](config, 16, 16, 2)
    theirs = linformer.LinformerSelfAttention(16, 24, k=5, heads=2, dim_head=8)
    for name, their in (("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v"), ("out_proj", "to_out")):
        getattr(theirs, their).weight.copy_(getattr(ours, name).weight)
    theirs.to_out.bias.zero_()
    theirs.proj_k.copy_(ours.length_projection.t())
    theirs.proj_v.copy_(ours.length_projection.t())
    states = torch.randn(2, length, 16)
    torch.testing.assert_close(ours(states, None)[0], theirs(states), atol=1e-5, rtol=0)


@pytest.mark.parametrize("fields", [FIELDS, CROSS], ids=["encoder", "cross"])
def test_weights_of_sums_are_not_taken_for_those_of_pieces(fields, tiny_model):
    """Not even of a source with as many pieces as there are sums."""
    tokenizer = VanillaTransformerTokenizer.train(SOURCES, TARGETS, vocab_size=275, show_progress=False)
    count = len(tokenizer(["one two"])["input_ids"][0])
    model = tiny_model(**{**fields, "linformer_k": count}, vocab_size=len(tokenizer))
    with pytest.raises(ValueError, match="weights of sums over the source, not of its tokens"):
        attention_maps(model, tokenizer, "one two", "zwei eins")
    translator = Translator(model, tokenizer)
    if fields is CROSS:
        with pytest.raises(ValueError, match=rf"attends to {count} sums over the source.*there is no alignment"):
            translator.align(["one two"], ["zwei eins"])
    else:
        assert translator.align(["one two"], ["zwei eins"])[0].weights.shape == (2, 2)


def test_longer_sequences_and_a_penalty_of_coverage_are_refused(tiny_model):
    model, target = tiny_model(**FIELDS), torch.ones(1, 2, dtype=torch.long)
    assert model.get_encoder().longest == 24 and model.get_decoder().longest is None
    assert tiny_model(cross_attention_type="linformer").get_encoder().longest == 1024
    with pytest.raises(ValueError, match="25 positions, and Linformer attention has max_position_embeddings=24"):
        model(torch.ones(1, 25, dtype=torch.long), decoder_input_ids=target)
    with pytest.raises(ValueError, match="coverage_penalty: not possible with cross_attention_type='linformer'"):
        tiny_model(**CROSS).generate(torch.ones(1, 3, dtype=torch.long), num_beams=2, coverage_penalty=0.2)
