"""Position schemes against the implementations of transformers."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_pairs
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention, T5LayerNorm

from vanilla_transformer_hf import VanillaTransformerConfig
from vanilla_transformer_hf.model.config.position_schemes import POSITION_SCHEMES
from vanilla_transformer_hf.model.config.stacks import StackSizes
from vanilla_transformer_hf.model.modeling_vanilla_transformer import NORMS, POSITION_ENCODINGS


def scheme_of(name, is_causal=False, heads=4, layers=1, **fields):
    """A position scheme as the stacks of a model make it; the encoder's unless `is_causal`."""
    sizes = {"encoder_attention_heads": heads, "decoder_attention_heads": heads}
    sizes |= {"encoder_layers": layers, "decoder_layers": layers}
    config = VanillaTransformerConfig(position_encoding=name, **sizes, **fields)
    return POSITION_ENCODINGS[name](config, StackSizes(config, "decoder" if is_causal else "encoder"))


def test_the_config_and_the_schemes_agree_on_which_are_relative():
    assert {name: row.is_relative for name, row in POSITION_SCHEMES.items()} == {
        name: POSITION_ENCODINGS[name].is_relative for name in POSITION_SCHEMES
    }


def test_rotary_of_halves_is_llamas():
    states, positions = torch.randn(2, 4, 9, 16), torch.arange(3, 12)[None]
    embedding = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=64, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
        )
    )
    cosines, sines = embedding(states, positions)
    expected, _ = apply_rotary_pos_emb(states, states, cosines, sines)
    found = scheme_of("rotary_halves", d_model=64, rotary_base=500.0).rotary_at(positions)(states)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_rotary_of_neighbours_is_gptjs():
    states, positions = torch.randn(2, 4, 9, 16), torch.arange(3, 12)[None]
    angles = positions[0, :, None].float() * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    expected = apply_pairs(states.transpose(1, 2), angles.sin()[None], angles.cos()[None]).transpose(1, 2)
    found = scheme_of("rotary", d_model=64).rotary_at(positions)(states)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 8, 12, 16])
def test_alibi_is_mpts(heads):
    """MPT adds m · (j - (S - 1)) for each key j, which is the same for softmax: a constant for each query."""
    expected = build_mpt_alibi_tensor(heads, 7)  # (1, H, 1, S)
    expected = expected.reshape(heads, 7)
    found = scheme_of("alibi", d_model=48, heads=heads).bias(torch.tensor([[6]]), torch.arange(7)[None])[0, :, 0]
    torch.testing.assert_close(found, expected.float(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("buckets, longest", [(32, 128), (8, 20)])
def test_buckets_are_t5s(is_causal, buckets, longest):
    distances = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(distances, not is_causal, buckets, longest)
    bias = scheme_of("t5_bias", is_causal, relative_buckets=buckets, max_relative_distance=longest)
    assert torch.equal(bias.buckets(distances), expected)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_rms_norm_is_t5s_and_the_authors_differs_for_small_inputs(scale):
    states = torch.randn(5, 32) * scale
    norm, author, t5 = NORMS["rms_norm"](32, 1e-6), NORMS["rms_norm_author"](32, 1e-6), T5LayerNorm(32, 1e-6)
    torch.testing.assert_close(norm(states), t5(states), atol=1e-5, rtol=0)
    expected = states / (states.square().mean(dim=-1, keepdim=True).sqrt() + 1e-6)
    torch.testing.assert_close(author(states), expected, atol=1e-6, rtol=0)
    assert torch.allclose(norm(states), author(states), atol=1e-3) == (scale == 1.0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gates_are_those_of_x_transformers(is_causal):
    library = pytest.importorskip("x_transformers.x_transformers", reason="a test dependency")
    theirs = library.DataDependentAlibi(32, 4, causal=is_causal, bias_init=0.3)
    ours = scheme_of("gated_alibi", is_causal, d_model=32, layers=3)
    linear, states = theirs.to_forget_gates[0], torch.randn(2, 9, 32)
    with torch.no_grad():
        ours.weight[1].copy_(linear.weight)
        ours.gate_bias[1].copy_(linear.bias)
        position_bias = ours.layer_biases(torch.arange(9)[None], None)[1]
        mask = torch.full((9, 9), torch.finfo().min).triu(1) if is_causal else torch.zeros(9, 9)
        keys = position_bias.kept_keys(torch.zeros(2, 4, 9, 8), states)
        found = position_bias.scores(torch.zeros(2, 4, 9, 8), keys, mask[None, None], 1.0)
        expected = theirs(states)
    seen = mask.expand_as(found) == 0
    torch.testing.assert_close(found[seen], expected[seen], atol=1e-5, rtol=0)


@torch.no_grad()
def test_gates_hide_nothing_of_padding():
    """What a query does not see has no gate between it and a key, wherever it stands."""
    scheme, states = scheme_of("gated_alibi", d_model=32), torch.randn(1, 7, 32)
    scheme.draw()
    scheme.gate_bias.zero_()
    kept = torch.tensor([True, True, False, False, True, False, True])
    (position_bias,) = scheme.layer_biases(torch.arange(7)[None], None)
    query = torch.zeros(1, 4, 7, 8)
    mask = torch.where(kept, 0.0, torch.finfo().min).expand(1, 1, 7, 7)
    found = position_bias.scores(query, position_bias.kept_keys(query, states), mask, 1.0)[:, :, kept][..., kept]
    alone = torch.zeros(1, 4, 4, 8)
    keys = position_bias.kept_keys(alone, states[:, kept])
    expected = position_bias.scores(alone, keys, torch.zeros(1, 1, 4, 4), 1.0)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_network_of_distances_is_that_of_x_transformers():
    library = pytest.importorskip("x_transformers.x_transformers", reason="a test dependency")
    ours = scheme_of("distance_mlp", d_model=32)
    theirs = library.DynamicPositionBias(ours.width, heads=4, depth=2, log_distance=True)
    linears = [module for module in theirs.modules() if isinstance(module, torch.nn.Linear)]
    with torch.no_grad():
        for linear, mine in zip(linears, ours.maps, strict=True):
            mine.load_state_dict(linear.state_dict())
        places = torch.arange(7)[None]
        torch.testing.assert_close(ours.bias(places, places)[0], theirs(7, 7), atol=1e-6, rtol=0)


def test_hierarchical_positions_end_with_a_clear_error():
    """Their equations are in `tests/reference.py`; the first n are those that were trained."""
    scheme = scheme_of("hierarchical", d_model=8, heads=2, max_position_embeddings=5, hierarchical_alpha=0.4)
    scheme.draw()
    torch.testing.assert_close(scheme(torch.zeros(1, 5, 8), torch.arange(5)[None])[0], scheme.weight.detach())
    assert scheme.longest == 25
    with pytest.raises(IndexError, match="position 25 lies outside 0 to 24, the 25 of this model: cut the text, or"):
        scheme(torch.zeros(1, 1, 8), torch.tensor([[25]]))
