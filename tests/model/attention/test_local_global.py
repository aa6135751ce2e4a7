"""Windows with global tokens, beside Longformer's attention, and full attention under a mask written pair by pair."""

import math

import pytest
import torch
import torch.nn.functional as F
from host_search import same
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForMaskedLM
from vanilla_transformer_hf.model.attention.local import Blocks
from vanilla_transformer_hf.model.modeling_vanilla_transformer import ATTENTION_TYPES
from vanilla_transformer_hf.model.search.incremental_decoder import ROOM, IncrementalDecoder


KIND = {"encoder_attention_type": "window_global", "decoder_attention_type": "window_global", "attention_window": 3}
PROJECTIONS = [(role, f"global_{role}") for role in ("q_proj", "k_proj", "v_proj")]
pytestmark = pytest.mark.usefixtures("small_blocks")


def attention(is_causal=False, implementation="sdpa", **fields):
    sizes = {"vocab_size": 9, "d_model": 16, "encoder_attention_heads": 2, **KIND}
    config = VanillaTransformerConfig(**{**sizes, **fields})
    config._attn_implementation = implementation
    torch.manual_seed(1)
    return ATTENTION_TYPES["window_global"](config, 16, 16, 2, is_causal).double()


def rows_of(*texts):
    """1 for a token, g for a global one, 0 for padding: what is real and what is global (B, S)."""
    return tuple(torch.tensor([[char in found for char in text] for text in texts]).long() for found in ("1g", "g"))


def by_hand(module, states, real, chosen, is_causal):
    """Sums over the pairs that see each other, each query with its projections."""
    roles = [("q_proj", "k_proj", "v_proj")] * 2
    if not is_causal and module.config.global_projections == "separate":
        roles[1] = ("global_q_proj", "global_k_proj", "global_v_proj")
    both = [
        [getattr(module, name)(states).unflatten(-1, (-1, 8)).transpose(1, 2) for name in names] for names in roles
    ]
    outputs = torch.zeros_like(states)
    for row in range(len(states)):
        places = real[row].cumsum(dim=0) - 1
        for i in real[row].nonzero()[:, 0].tolist():
            seen = [
                j
                for j in real[row].nonzero()[:, 0].tolist()
                if (abs(places[i] - places[j]) <= 3 or chosen[row, i] or chosen[row, j]) and (j <= i or not is_causal)
            ]
            query, key, value = (part[row] for part in both[int(chosen[row, i])])
            weights = torch.einsum("hd,hjd->hj", query[:, i], key[:, seen]) / math.sqrt(8)
            found = torch.einsum("hj,hjd->hd", weights.softmax(dim=-1), value[:, seen])
            outputs = outputs.index_put((torch.tensor(row), torch.tensor(i)), module.out_proj(found.flatten()))
    return outputs


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("projections", ["separate", "shared"])
def test_outputs_and_gradients_of_the_encoder_are_those_of_pairs(projections, implementation, same_gradients):
    module = attention(implementation=implementation, global_projections=projections)
    states = torch.randn(3, 14, 16, dtype=torch.double, requires_grad=True)
    real, chosen = rows_of("1g111111111g11", "0001111g111111", "11111111111100")
    mask = module.mask(states, real, None, False)
    assert isinstance(mask, Blocks) == (implementation == "sdpa")
    found = module(states, module.global_mask(mask, states, real, chosen))[0][real.bool()]
    expected = by_hand(module, states, real, chosen, False)[real.bool()]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    names = [role for pair in PROJECTIONS for role in pair if hasattr(module, role)]
    same_gradients(found, expected, states, *(getattr(module, name).weight for name in names))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_outputs_and_gradients_of_the_decoder_are_those_of_pairs(implementation, same_gradients):
    module = attention(True, implementation, global_tokens=2)
    assert not hasattr(module, "global_q_proj")
    states = torch.randn(3, 14, 16, dtype=torch.double, requires_grad=True)
    real, chosen = rows_of("gg111111111111", "000gg111111111", "gg111111111000")
    found = module(states, module.mask(states, real, None, False))[0][real.bool()]
    expected = by_hand(module, states, real, chosen, True)[real.bool()]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    same_gradients(found, expected, states, module.k_proj.weight)


@torch.no_grad()
def test_longformer():
    """LongformerSelfAttention with the same weights; its window is twice ours, and it has no last projection."""
    module = attention(attention_bias=True, attention_window=2)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "attention_window": [4]}
    theirs = LongformerSelfAttention(LongformerConfig(**sizes), 0).double().eval()
    for ours, name in zip(PROJECTIONS, ("query", "key", "value")):
        getattr(theirs, name).load_state_dict(getattr(module, ours[0]).state_dict())
        getattr(theirs, f"{name}_global").load_state_dict(getattr(module, ours[1]).state_dict())
    module.out_proj = torch.nn.Identity()
    module.out_proj.in_features = 16
    states = torch.randn(2, 16, 16, dtype=torch.double)
    real, chosen = rows_of("g11111111g111111", "1111111g11111000")
    mask = (real + chosen - 1) * 10000.0  # theirs: -10000 for padding, 10000 for global tokens
    expected = theirs(states, mask, mask < 0, mask > 0, True)[0]
    own = module.global_mask(module.mask(states, real, None, False), states, real, chosen)
    found = module(states, own)[0]
    # It computes the softmax in float32.
    torch.testing.assert_close(found[real.bool()], expected[real.bool()], atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_model_takes_global_tokens_with_padding_on_either_side(tiny_model):
    model = tiny_model(**KIND, position_encoding="rotary")
    source, target = torch.randint(4, 99, (1, 19)), torch.randint(4, 99, (1, 17))
    chosen = torch.zeros_like(source)
    first = model(source, decoder_input_ids=target).logits
    chosen[:, 0] = 1  # the default
    torch.testing.assert_close(
        model(source, decoder_input_ids=target, global_attention_mask=chosen).logits, first, atol=1e-6, rtol=0
    )
    chosen[:, 11] = 1
    expected = model(source, decoder_input_ids=target, global_attention_mask=chosen).logits
    assert not torch.allclose(expected, first, atol=1e-3)
    for left, right in ((4, 0), (0, 5)):
        own = {name: F.pad(torch.ones_like(ids), (left, right)) for name, ids in (("s", source), ("t", target))}
        found = model(
            F.pad(source, (left, right)),
            own["s"],
            decoder_input_ids=F.pad(target, (left, right)),
            decoder_attention_mask=own["t"],
            global_attention_mask=F.pad(chosen, (left, right)),
        ).logits[:, left : left + 17]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    model.set_attn_implementation("eager")
    eager = model(source, decoder_input_ids=target, global_attention_mask=chosen, output_attentions=True)
    torch.testing.assert_close(eager.logits, expected, atol=2e-5, rtol=0)
    seen = eager.encoder_attentions[0][0, 0] > 0
    assert seen[11].all() and seen[:, 11].all() and seen[0].all() and not seen[3, 7]


@torch.no_grad()
def test_search_keeps_the_first_tokens_and_the_window(tiny_model, monkeypatch):
    """Searches find what transformers' loops find; the keys of global tokens stay, those behind the window do not."""
    model = tiny_model(**KIND, global_tokens=2)
    kept = []
    step = IncrementalDecoder.step
    monkeypatch.setattr(
        IncrementalDecoder, "step", lambda self, tokens: kept.append(self.mask.shape[-1]) or step(self, tokens)
    )
    real, chosen = rows_of("11111111g1111111111", "000000011111111g111")
    source = {"input_ids": torch.randint(4, 99, (2, 19)), "attention_mask": real, "global_attention_mask": chosen}
    found = same(model, source, num_beams=1, max_new_tokens=40, min_new_tokens=40)
    assert len(kept) == 40 and max(kept) <= 2 + 3 + 1 + 2 * ROOM
    same(model, source, num_beams=3, max_new_tokens=14, min_new_tokens=14)
    whole = model(**source, decoder_input_ids=found[:, :-1]).logits
    whole[..., model.config.eos_token_id] = -torch.inf
    assert torch.equal(found[:, 1:], whole.argmax(dim=-1))


@torch.no_grad()
def test_an_encoder_alone():
    config = VanillaTransformerConfig(
        vocab_size=99, d_model=32, encoder_layers=2, encoder_attention_heads=4, is_encoder_decoder=False,
        encoder_attention_type="window_global", attention_window=3,
    )  # fmt: skip
    torch.manual_seed(3)
    model = VanillaTransformerForMaskedLM(config).eval()
    ids, chosen = torch.randint(4, 99, (2, 15)), torch.zeros(2, 15, dtype=torch.long)
    chosen[:, 9] = 1
    assert not torch.allclose(model(ids).logits, model(ids, global_attention_mask=chosen).logits, atol=1e-4)


def test_projections_of_global_tokens_are_drawn_in_one_order_in_each_process(tiny_model):
    layer = tiny_model(encoder_attention_type="window_global", global_projections="separate").model.encoder.layers[0]
    names = [name for name, _ in layer.self_attn.named_children() if name.startswith("global_")]
    assert names == ["global_k_proj", "global_q_proj", "global_v_proj"]


def test_masks_of_global_tokens_that_cannot_be_are_refused(tiny_model):
    ids = torch.randint(4, 99, (1, 6))
    with pytest.raises(ValueError, match="global_attention_mask: this encoder has no global tokens"):
        tiny_model()(ids, decoder_input_ids=ids, global_attention_mask=torch.ones_like(ids))
    model = tiny_model(**KIND)
    with pytest.raises(ValueError, match=r"global_attention_mask of shape \(1, 5\): must be \(1, 6\)"):
        model(ids, decoder_input_ids=ids, global_attention_mask=torch.ones(1, 5))


@pytest.mark.parametrize("length", [4, 14], ids=["one product", "blocks"])
def test_only_queries_of_global_tokens_are_projected_as_such(length):
    module, seen = attention(global_tokens=2), []
    module.global_q_proj.register_forward_hook(lambda _, inputs, output: seen.append(output.shape[1]))
    states = torch.randn(3, length, 16, dtype=torch.double)
    mask = module.mask(states, None, None, False)
    assert isinstance(mask, Blocks) == (length == 14)
    module(states, module.global_mask(mask, states, None, None))
    assert seen == [2]
