"""LSH attention: equal to its equations pair by pair, to transformers' Reformer in one bucket, blind to the future."""

import math

import pytest
import torch
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.attention.lsh import LshAttention
from vanilla_transformer_hf.model.modeling_vanilla_transformer import ATTENTION_TYPES


SIZES = {"lsh_buckets": 4, "lsh_rounds": 2, "lsh_chunk": 3}
FIELDS = {"encoder_attention_type": "lsh", "decoder_attention_type": "lsh", **SIZES}


@pytest.fixture(autouse=True)
def chunks(monkeypatch):
    """Chunks also for short sequences."""
    monkeypatch.setattr(LshAttention, "_is_short", lambda self, length: False)


def attention(is_causal, kernel="sdpa", **fields):
    config = VanillaTransformerConfig(vocab_size=9, d_model=16, encoder_attention_heads=2, **{**FIELDS, **fields})
    config._attn_implementation = kernel
    return ATTENTION_TYPES["lsh"](config, 16, 16, 2, is_causal=is_causal).eval()


def by_pairs(module, states, padding, is_causal):
    """One sentence (S, D), one pair of tokens after the other, in plain numbers."""
    config, length = module.config, len(states)
    found = []
    for head in range(2):
        rows = slice(8 * head, 8 * head + 8)
        queries, values = states @ module.q_proj.weight[rows].T, states @ module.v_proj.weight[rows].T
        keys = queries / queries.norm(dim=1, keepdim=True)
        counts = torch.zeros(length, length, dtype=torch.double)
        for rotation in module.rotations.double():
            turned = keys @ rotation
            buckets = torch.cat((turned, -turned), dim=1)[:, : config.lsh_buckets].argmax(dim=1).tolist()
            members = {b: [i for i in range(length) if buckets[i] == b and padding[i]] for b in set(buckets)}
            for i in range(length):
                for j in members[buckets[i]] if padding[i] else []:
                    mine, its = (members[buckets[i]].index(each) // config.lsh_chunk for each in (i, j))
                    counts[i, j] += mine - its in (0, 1) and not (is_causal and j > i)
        scores = queries @ keys.T
        scores.fill_diagonal_(-1e5)
        weights = (scores.exp() * counts).nan_to_num()
        alone = weights.sum(1) == 0
        weights[alone] = torch.eye(length, dtype=torch.double)[alone]
        found.append(weights / weights.sum(1, keepdim=True) @ values)
    return torch.cat(found, dim=1) @ module.out_proj.weight.T


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("fields", [{}, {"lsh_buckets": 1}, {"lsh_rounds": 3, "lsh_chunk": 1}], ids=str)
def test_outputs_and_gradients_are_those_of_the_pairs(kernel, is_causal, fields):
    module = attention(is_causal, kernel, **fields).double()
    states = torch.randn(3, 19, 16, dtype=torch.double, requires_grad=True)
    padding = torch.ones(3, 19, dtype=torch.long)
    padding[0, :4], padding[1, 15:] = 0, 0
    mask = module.mask(states, padding, None, False)
    found, _ = module(states, mask)
    expected = torch.stack([by_pairs(module, *each, is_causal) for each in zip(states, padding)])
    real, direction = padding.bool(), torch.randn(16, dtype=torch.double)
    torch.testing.assert_close(found[real], expected[real], atol=1e-9, rtol=0)
    gradients = [torch.autograd.grad((each[real] @ direction).sum(), states)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-8, rtol=0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_short_sequences_are_computed_whole_and_give_the_same(is_causal, monkeypatch):
    module, states = attention(is_causal).double(), torch.randn(2, 40, 16, dtype=torch.double, requires_grad=True)
    mask, found = module.mask(states, None, None, False), []
    for short in (False, True):
        monkeypatch.setattr(LshAttention, "_is_short", lambda *_, short=short: short)
        output, weights = module(states, mask)
        found.append((output.detach(), torch.autograd.grad(output.square().sum(), states)[0]))
        assert weights is None
        monkeypatch.setattr(LshAttention, "_in_chunks", None)  # from now on not called
    torch.testing.assert_close(*found, atol=1e-9, rtol=0)


def test_short_is_where_chunks_have_more_pairs_than_all_tokens(monkeypatch):
    monkeypatch.undo()
    module = attention(False, lsh_buckets=32, lsh_rounds=2, lsh_chunk=64)
    # 900² = 810,000 and 2 rounds of (14 + 33) 64 slots with 128 keys = 770,048.
    assert [module._is_short(length) for length in (512, 768, 900, 1024)] == [True, True, False, False]


@torch.no_grad()
def test_one_bucket_is_what_reformer_computes_in_one_chunk():
    theirs = LSHSelfAttention(
        ReformerConfig(
            hidden_size=16, num_attention_heads=2, attention_head_size=8, lsh_attn_chunk_length=16, is_decoder=False,
            attn_layers=["lsh"], lsh_attention_probs_dropout_prob=0.0, num_buckets=2,
        ),
        layer_idx=0,
    ).eval()  # fmt: skip
    ours = attention(False, lsh_buckets=1, lsh_chunk=16, lsh_rounds=1)
    ours.q_proj.weight.copy_(theirs.query_key.weight)
    ours.v_proj.weight.copy_(theirs.value.weight)
    ours.out_proj.weight.copy_(torch.eye(16))
    ours, theirs, states = ours.double(), theirs.double(), torch.randn(2, 16, 16).double()
    expected = theirs(states).hidden_states
    torch.testing.assert_close(ours(states, ours.mask(states, None, None, False))[0], expected, atol=1e-5, rtol=0)


def test_rotations_repeat_and_are_saved(tiny_config, tmp_path):
    def rotations(**fields):
        model = VanillaTransformerForConditionalGeneration(tiny_config(**FIELDS, **fields))
        return model, model.get_encoder().layers[0].self_attn.rotations

    (model, first), (_, again), (_, other) = rotations(), rotations(), rotations(lsh_seed=3)
    assert torch.equal(first, again) and not torch.equal(first, other)
    first.mul_(2)
    model.save_pretrained(tmp_path)
    opened = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(opened.get_encoder().layers[0].self_attn.rotations, first)


def test_time_grows_with_the_length(monkeypatch):
    """No tensor has n² numbers: twice the length makes none more than about twice as large."""
    largest = []
    matmul = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b: largest.append(found := matmul(a, b)) or found)
    for length in (512, 1024):
        module, states = attention(True, lsh_buckets=8, lsh_chunk=16), torch.randn(1, length, 16)
        module(states, module.mask(states, None, None, False))
    half = len(largest) // 2
    sizes = [max(each.numel() for each in part) for part in (largest[:half], largest[half:])]
    assert sizes[1] < 2.1 * sizes[0] and sizes[1] < 1024**2 / 2


def test_bucket_sizes_are_bounded():
    """Even if all tokens fall into one bucket, there are slots for them."""
    module = attention(False, lsh_buckets=4, lsh_chunk=4)
    states = torch.randn(1, 1, 16).expand(1, 21, 16)
    found = module(states, module.mask(states, None, None, False))[0]
    value = states @ module.v_proj.weight.T @ module.out_proj.weight.T
    torch.testing.assert_close(found, value, atol=1e-5, rtol=0)
    assert math.isfinite(found.sum())
