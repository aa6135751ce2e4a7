"""Kinds of local attention: the outputs of full attention under a mask that is written down pair by pair."""

import math

import pytest
import torch
from host_search import same

from vanilla_transformer_hf import VanillaTransformerConfig
from vanilla_transformer_hf.model.attention import local as local_attention
from vanilla_transformer_hf.model.attention.local import Blocks
from vanilla_transformer_hf.model.modeling_vanilla_transformer import ATTENTION_TYPES
from vanilla_transformer_hf.model.search.incremental_decoder import ROOM, IncrementalDecoder


# Kind and size -> whether the token at position i sees that at j, outside of the decoder.
KINDS = {
    "window": ({"attention_window": 3}, lambda i, j: abs(i - j) <= 3),
    "blocks": ({"attention_block": 4}, lambda i, j: abs(i // 4 - j // 4) <= 1),
    "chunk": ({"attention_block": 5}, lambda i, j: i // 5 == j // 5),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def local_model(tiny_model):
    def build(kind, **more):
        fields = {"encoder_attention_type": kind, "decoder_attention_type": kind, **KINDS[kind][0]}
        return tiny_model(**fields, **more)

    return build


def padding(lengths, sides, longest):
    rows = [[1] * length + [0] * (longest - length) for length in lengths]
    return torch.tensor([row[::-1] if side == "left" else row for row, side in zip(rows, sides)])


@every_kind
@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("length, implementation", [(3, "sdpa"), (21, "sdpa"), (21, "eager")])
def test_outputs_and_gradients_are_those_of_full_attention_under_the_mask(
    kind, is_causal, length, implementation, same_gradients
):
    fields, sees = KINDS[kind]
    config = VanillaTransformerConfig(vocab_size=9, d_model=16, d_k=4, d_v=6, encoder_attention_heads=2, **{
        "encoder_attention_type": kind, **fields})  # fmt: skip
    config._attn_implementation = implementation
    torch.manual_seed(1)
    module = ATTENTION_TYPES[kind](config, 16, 16, 2, is_causal).double()
    states = torch.randn(3, length, 16, dtype=torch.double, requires_grad=True)
    real = padding([length, length - 2, length - 1], ["right", "left", "right"], length)
    mask = module.mask(states, real, None, False)
    assert isinstance(mask, Blocks) == (length > 5 and implementation == "sdpa")
    found, shares = module(states, mask)

    allowed = torch.zeros(3, 1, length, length, dtype=torch.bool)
    for row, starts in enumerate([0, 2, 0]):
        for i in range(length):
            for j in range(length):
                seen = sees(i - starts, j - starts) and (j <= i or not is_causal)
                allowed[row, 0, i, j] = seen and bool(real[row, j])
    query, key, value = module.project(states, module.roles)
    scores = (query @ key.transpose(2, 3) / math.sqrt(4)).masked_fill(~allowed, -1e9)
    expected = module.out_proj((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(-2))

    counts = real.bool()
    if implementation == "eager":
        assert not shares.masked_select(~allowed & counts[:, None, :, None]).any()
    torch.testing.assert_close(found[counts], expected[counts], atol=1e-10, rtol=0)
    same_gradients(found[counts], expected[counts], states, module.q_proj.weight, module.v_proj.weight)


@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("kind, summary", [*((kind, "none") for kind in KINDS), ("chunk", "mean")])
def test_a_few_blocks_at_a_time_give_the_outputs_of_all_at_once(kind, summary, is_causal, monkeypatch):
    calls, fused = [], local_attention.fused
    monkeypatch.setattr(
        local_attention, "fused", lambda *args, **more: calls.append(len(args[0])) or fused(*args, **more)
    )
    fields = {"encoder_attention_type": kind, "chunk_summary": summary, **KINDS[kind][0]}
    config = VanillaTransformerConfig(vocab_size=9, d_model=16, encoder_attention_heads=2, **fields)
    config._attn_implementation = "sdpa"
    module = ATTENTION_TYPES[kind](config, 16, 16, 2, is_causal).double()
    states = torch.randn(3, 21, 16, dtype=torch.double)
    real = padding([21, 19, 20], ["right", "left", "right"], 21)
    expected = module(states, module.mask(states, real, None, False))[0]
    assert len(calls) == 1
    with torch.no_grad():
        found = module(states, module.mask(states, real, None, False))[0]
    assert len(calls) > 3 and max(calls[1:]) < calls[0]
    torch.testing.assert_close(found[real.bool()], expected[real.bool()], atol=1e-12, rtol=0)


@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_summaries_of_chunks_are_means_of_keys_and_values(is_causal, implementation, same_gradients):
    fields = {"encoder_attention_type": "chunk", "attention_block": 5, "chunk_summary": "mean"}
    config = VanillaTransformerConfig(vocab_size=9, d_model=16, encoder_attention_heads=2, **fields)
    config._attn_implementation = implementation
    torch.manual_seed(1)
    module = ATTENTION_TYPES["chunk"](config, 16, 16, 2, is_causal).double()
    states = torch.randn(3, 17, 16, dtype=torch.double, requires_grad=True)
    real = padding([17, 13, 15], ["right", "left", "right"], 17)
    found = module(states, module.mask(states, real, None, False))[0]

    expected = []
    for row in range(3):
        query, key, value = (part[0] for part in module.project(states[row, real[row].bool()][None], module.roles))
        for i in range(query.shape[1]):
            first = i // 5 * 5
            own = slice(first, i + 1 if is_causal else first + 5)
            keys, values = (
                torch.cat(
                    [*(part[:, m : m + 5].mean(1, keepdim=True) for m in range(0, first, 5)), part[:, own]], dim=1
                )
                for part in (key, value)
            )
            weights = (torch.einsum("hd,hjd->hj", query[:, i], keys) / math.sqrt(8)).softmax(dim=-1)
            expected.append(module.out_proj(torch.einsum("hj,hjd->hd", weights, values).flatten()))
    found, expected = found[real.bool()], torch.stack(expected)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    same_gradients(found, expected, states, module.k_proj.weight)


SCHEMES = {
    **{"t5_bias": {"relative_buckets": 8, "max_relative_distance": 6}, "alibi": {}},
    **{"shaw": {"max_relative_distance": 3}, "gated_alibi": {}, "distance_mlp": {}},
}


@pytest.mark.parametrize(
    "kind, scheme",
    [*(("window", scheme) for scheme in SCHEMES), ("blocks", "t5_bias"), ("chunk", "shaw"), ("blocks", "gated_alibi")],
)
def test_scores_of_distances_are_added_in_blocks(kind, scheme, local_model, monkeypatch):
    """Logits and gradients in float64 are those under the mask of all pairs, with padding on either side."""
    model = local_model(kind, position_encoding=scheme, **SCHEMES[scheme]).double()
    source, real = torch.randint(4, 99, (3, 19)), padding([19, 15, 12], ["left", "left", "right"], 19)
    target, own = torch.randint(4, 99, (3, 17)), padding([17, 11, 14], ["left", "left", "right"], 17)
    inputs = {"decoder_input_ids": target, "decoder_attention_mask": own}
    blocks, found = [], []
    attend = Blocks.attend
    monkeypatch.setattr(Blocks, "attend", lambda self, *states: blocks.append(self) or attend(self, *states))
    for largest in (0, 99):  # in blocks, and as one product
        monkeypatch.setattr(local_attention, "DENSE", largest)
        model.zero_grad()
        logits = model(source, real, **inputs).logits[own.bool()]
        logits.square().sum().backward()
        grads = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        found.append((logits.detach(), grads))
        assert len(blocks) == model.config.encoder_layers + model.config.decoder_layers
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-10, rtol=0)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-9, rtol=1e-9)
    assert all(gradient.any() for name, gradient in found[0][1].items() if "embed_positions" in name)


@pytest.mark.parametrize("kind, scheme", [("window", "t5_bias"), ("window", "gated_alibi"), ("chunk", "shaw")])
@torch.no_grad()
def test_search_with_scores_of_distances(kind, scheme, local_model):
    model = local_model(kind, position_encoding=scheme, **SCHEMES[scheme])
    source = {"input_ids": torch.randint(4, 99, (3, 19)), "attention_mask": padding([19, 12, 15], ["left"] * 3, 19)}
    same(model, source, num_beams=2, max_new_tokens=14, min_new_tokens=14)
    found = same(model, source, num_beams=1, max_new_tokens=14, min_new_tokens=14)
    whole = model(**source, decoder_input_ids=found[:, :-1]).logits
    whole[..., model.config.eos_token_id] = -torch.inf
    assert torch.equal(found[:, 1:], whole.argmax(dim=-1))


@torch.no_grad()
def test_a_window_forgets_what_lies_behind_it(local_model, monkeypatch):
    kept = []
    step = IncrementalDecoder.step

    def watched(self, tokens):
        kept.append(self.mask.shape[-1])
        return step(self, tokens)

    monkeypatch.setattr(IncrementalDecoder, "step", watched)
    local_model("window").generate(torch.randint(4, 99, (2, 9)), num_beams=1, max_new_tokens=90, min_new_tokens=90)
    assert len(kept) == 90 and max(kept) <= 3 + 1 + 2 * ROOM


def test_blocks_without_gradients_are_smaller_and_give_the_same():
    config = VanillaTransformerConfig(d_model=16, encoder_attention_type="window", attention_window=9)
    config._attn_implementation = "sdpa"
    module = ATTENTION_TYPES["window"](config, 16, 16, 2).double()
    states, real = torch.randn(2, 41, 16, dtype=torch.double), padding([41, 30], ["left"] * 2, 41)
    expected = module(states, module.mask(states, real, None, False))[0]
    with torch.no_grad():
        mask = module.mask(states, real, None, False)
        found = module(states, mask)[0]
    assert (mask.block, mask.size) == (2, 20)
    torch.testing.assert_close(found[real.bool()], expected[real.bool()], atol=1e-10, rtol=0)


def test_blocks_share_the_memory_of_keys_and_layers_share_the_mask():
    states = torch.randn(2, 16, 3, 5)
    near = local_attention.NearStates.apply(states, 4, 2, 2)
    assert near.shape == (8, 8, 3, 5)
    assert near.untyped_storage().nbytes() == states.nbytes + 4 * 3 * 5 * 4  # once, and what is before and behind
    seen = torch.ones(6, 1, 4, 8, dtype=torch.bool)
    mask = Blocks(seen, 2, 4, 2, 2, None, None)
    assert mask.added(torch.float32) is mask.added(torch.float32)
