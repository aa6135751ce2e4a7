"""Encoders that pool: equal to the plain equations, blind to padding, and the decoder sees the short output."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from counting_model import SOURCES, TARGETS

from vanilla_transformer_hf import (
    Translator,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForTokenClassification,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.model.attention.pooling import PoolingAttention, pool


FIELDS = {"encoder_layers": 4, "encoder_pooling": [1, 2]}


def attend(weights, layer, queries, states, heads):
    """Multi-head attention of one sentence in plain products."""
    query, key, value = (
        (x @ weights[f"{layer}.self_attn.{name}_proj.weight"].T).unflatten(-1, (heads, -1)).transpose(0, 1)
        for name, x in zip("qkv", (queries, states, states))
    )
    found = (query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])).softmax(-1) @ value
    return found.transpose(0, 1).flatten(1) @ weights[f"{layer}.self_attn.out_proj.weight"].T


def means(states):
    """Of each two rows; the last row alone where it has no partner."""
    return torch.stack([states[start : start + 2].mean(0) for start in range(0, len(states), 2)])


@pytest.mark.parametrize("position", ["post", "pre"])
@pytest.mark.parametrize("length", [1, 6, 11])
@torch.no_grad()
def test_outputs_are_those_of_the_equations(tiny_model, position, length):
    model = tiny_model(**FIELDS, encoder_norm_position=position).double()
    weights, encoder = model.model.encoder.state_dict(), model.get_encoder()
    ids = torch.randint(4, 99, (1, length))
    states = encoder.embed(encoder.embed_tokens(ids), torch.arange(length)[None])[0]

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    for number in range(4):
        layer = f"layers.{number}"
        short = means(states) if number in (1, 3) else states
        first, second = f"{layer}.self_attn_layer_norm", f"{layer}.final_layer_norm"

        def inner(x, layer=layer):
            hidden = F.relu(x @ weights[f"{layer}.fc1.weight"].T + weights[f"{layer}.fc1.bias"])
            return hidden @ weights[f"{layer}.fc2.weight"].T + weights[f"{layer}.fc2.bias"]

        if position == "post":
            states = norm(first, short + attend(weights, layer, short, states, 4))
            states = norm(second, states + inner(states))
        else:
            states = short + attend(weights, layer, norm(first, short), norm(first, states), 4)
            states = states + inner(norm(second, states))
    states = norm("layer_norm", states) if position == "pre" else states
    found = encoder(ids).last_hidden_state[0]
    assert len(found) == math.ceil(math.ceil(length / 2) / 2)
    torch.testing.assert_close(found, states, atol=1e-10, rtol=0)
    masked = encoder(ids, torch.ones_like(ids)).last_hidden_state[0]
    torch.testing.assert_close(masked[: len(states)], states, atol=1e-10, rtol=0)


def test_pairs_are_counted_from_the_first_token():
    states = torch.arange(5.0)[None, :, None]
    assert pool(states, None).flatten().tolist() == [0.5, 2.5, 4]
    for padding, expected, kept in (
        ([1, 1, 1, 1, 1], [0.5, 2.5, 4], [1, 1, 1]),
        ([0, 1, 1, 1, 0], [0, 1.5, 3], [0, 1, 1]),
        ([0, 0, 1, 1, 1], [0, 2.5, 4], [0, 1, 1]),
        ([1, 1, 0, 0, 0], [0.5, 0, 0], [1, 0, 0]),
    ):
        mask = torch.tensor([padding])
        assert pool(states, mask).flatten().tolist() == expected
        assert PoolingAttention.pooled_padding(mask).tolist() == [kept]


@pytest.mark.parametrize("head", [VanillaTransformerForMaskedLM, VanillaTransformerForTokenClassification])
def test_heads_of_single_tokens_are_refused(tiny_config, head):
    with pytest.raises(ValueError, match=f"{head.__name__} with encoder_pooling=.*a state of each token"):
        head(tiny_config(**FIELDS))


def test_nothing_takes_means_for_pieces(tiny_model):
    tokenizer = VanillaTransformerTokenizer.train(SOURCES, TARGETS, vocab_size=275, show_progress=False)
    model = tiny_model(**FIELDS, vocab_size=len(tokenizer))
    with pytest.raises(ValueError, match="there is no alignment"):
        Translator(model, tokenizer).align(["one two"], ["zwei eins"])
    with pytest.raises(ValueError, match=r"coverage_penalty: not possible with .* encoder_pooling"):
        Translator(copy.deepcopy(model), tokenizer).translate(["one"], num_beams=2, coverage_penalty=0.2)
