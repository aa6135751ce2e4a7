"""Attention with a memory: equal to the paper's equations and to XLNet's code, in segments of any lengths."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from transformers import DynamicCache, XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

from vanilla_transformer_hf import VanillaTransformerForCausalLM
from vanilla_transformer_hf.model.attention.segment_memory import RecurrentAttention
from vanilla_transformer_hf.model.positions.absolute import HalvesSinusoidalPositionEncoding


FIELDS = {"decoder_attention_type": "recurrent", "position_encoding": "none", "memory_length": 4}
KERNELS = ["eager", "sdpa"]


@pytest.fixture
def attention(tiny_config):
    """`attention(memory_length)`: in float64, with biases that are not nearly zero."""

    def build(memory_length=4, implementation="eager"):
        config = tiny_config(**{**FIELDS, "memory_length": memory_length})
        config._attn_implementation = implementation
        made = RecurrentAttention(config, 32, 32, 4, is_causal=True).double().eval()
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        return made

    return build


@pytest.fixture
def language_model(tiny_config):
    """`language_model(**fields)`: a decoder alone, with weights that are not special."""

    def build(implementation="sdpa", **fields):
        config = tiny_config(**{**FIELDS, **fields, "is_encoder_decoder": False, "is_decoder": True})
        model = VanillaTransformerForCausalLM._from_config(config, attn_implementation=implementation)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.15)
        return model.double().eval()

    return build


def attend(attention, states):
    return attention(states, attention.mask(states, None, None, True))[0]


@pytest.mark.parametrize("implementation", KERNELS)
@torch.no_grad()
def test_outputs_are_those_of_the_equations(attention, implementation):
    attention = attention(implementation=implementation)
    states = torch.randn(1, 9, 32, dtype=torch.float64)
    found = attend(attention, states)[0]
    query, key, value, turn = (
        getattr(attention, f"{name}_proj").weight.view(4, 8, 32) for name in ("q", "k", "v", "r")
    )
    for i in range(9):
        heads = []
        for h in range(4):
            scores, values = [], []
            for j in range(max(0, i - 4), i + 1):
                angles = [(i - j) / 10000 ** (2 * k / 32) for k in range(16)]
                distance = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
                q, k = query[h] @ states[0, i], key[h] @ states[0, j]
                content = (q + attention.content_bias[h]) @ k
                place = (q + attention.distance_bias[h]) @ (turn[h] @ distance)
                scores.append((content + place) / math.sqrt(8))
                values.append(value[h] @ states[0, j])
            heads.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        # The sinusoids are computed in float32.
        torch.testing.assert_close(found[i], attention.out_proj.weight @ torch.cat(heads), atol=1e-6, rtol=0)


@torch.no_grad()
def test_scores_are_those_of_xlnet(attention):
    ours = attention(memory_length=64).float()
    theirs = XLNetRelativeAttention(XLNetConfig(d_model=32, n_head=4, dropout=0.0)).eval()
    theirs.r_w_bias.copy_(ours.content_bias)
    theirs.r_r_bias.copy_(ours.distance_bias)
    memory, states = torch.randn(2, 5, 32), torch.randn(2, 6, 32)
    whole = torch.cat((memory, states), dim=1)

    def heads(projection, x):  # (T, B, H, d)
        return projection(x).unflatten(-1, (4, 8)).transpose(0, 1)

    distances = torch.arange(11, -6, -1)  # what is before a query has a positive distance; the future is hidden
    signs = torch.where(distances < 0, -1.0, 1.0)[:, None].expand(-1, 16)
    encoded = HalvesSinusoidalPositionEncoding.encode(distances.abs(), 32)
    encoded = torch.cat((encoded[:, :16] * signs, encoded[:, 16:]), dim=-1)
    hidden = torch.ones(6, 11).triu(6)[:, :, None, None]
    expected = theirs.rel_attn_core(
        heads(ours.q_proj, states),
        heads(ours.k_proj, whole),
        heads(ours.v_proj, whole),
        heads(ours.r_proj, encoded[:, None].expand(-1, 2, -1).transpose(0, 1)),
        attn_mask=hidden,
    )  # (T, B, H, d)
    expected = ours.out_proj(expected.transpose(0, 1).flatten(-2))
    cache = DynamicCache()
    cache.update(memory[:, None], memory[:, None, :, :0], 0)
    found = ours(states, ours.mask(states, None, cache, True), cache)[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("lengths", [[6, 6], [1, 2, 9], [12], [1] * 12])
@torch.no_grad()
def test_segments_with_memory_are_the_whole_text(language_model, implementation, lengths):
    model = language_model(implementation)
    ids = torch.randint(4, 99, (2, 12))
    whole = model(ids, use_cache=False).logits
    memory, found = None, []
    for part in ids.split(lengths, dim=1):
        outputs = model(part, past_key_values=memory, use_cache=True)
        memory = outputs.past_key_values
        found.append(outputs.logits)
    torch.testing.assert_close(torch.cat(found, dim=1), whole, atol=1e-10, rtol=0)
    assert [layer.keys.shape for layer in memory.layers] == [(2, 1, 4, 32)] * 2
    assert memory.get_seq_length() == 12


def test_transformers_name_of_the_length_is_the_same_field(language_model, tiny_config):
    config = language_model().config
    assert config.sliding_window == 5
    config.sliding_window = 3
    assert config.memory_length == 2
    assert "sliding_window" not in config.to_dict()
    assert not hasattr(tiny_config(), "sliding_window")


def test_memory_has_no_gradient_but_its_projections_do(language_model):
    model = language_model()
    ids = torch.randint(4, 99, (1, 8))
    memory = DynamicCache(config=model.config)
    first = model.get_input_embeddings()(ids[:, :4]).detach().requires_grad_()
    model(inputs_embeds=first, past_key_values=memory)
    assert not any(layer.keys.requires_grad for layer in memory.layers)
    model.zero_grad()
    model(ids[:, 4:], past_key_values=memory, labels=ids[:, 4:]).loss.backward()
    assert first.grad is None
    with_memory = model.model.decoder.layers[0].self_attn.v_proj.weight.grad.clone()
    model.zero_grad()
    model(ids[:, 4:], labels=ids[:, 4:]).loss.backward()
    alone = model.model.decoder.layers[0].self_attn.v_proj.weight.grad
    assert (with_memory - alone).abs().max() > 1e-4


@torch.no_grad()
def test_the_future_and_what_is_beyond_the_memory_change_nothing(tiny_config, attention):
    attention = attention(memory_length=2)
    states = torch.randn(1, 8, 32, dtype=torch.float64)
    before = attend(attention, states)
    changed = states.clone()
    changed[:, 3] += 1
    moved = (attend(attention, changed) - before).abs().amax(dim=(0, 2)) > 1e-9
    assert moved.tolist() == [False] * 3 + [True] * 3 + [False] * 2


@torch.no_grad()
def test_the_next_segment_after_padding_on_the_left(language_model):
    model = language_model()
    ids = torch.randint(4, 99, (1, 9))
    whole = model(ids).logits[:, 5:]
    padded, mask = F.pad(ids, (2, 0)), F.pad(torch.ones_like(ids), (2, 0))
    memory = model(padded[:, :7], attention_mask=mask[:, :7], use_cache=True).past_key_values
    found = model(padded[:, 7:], attention_mask=mask, past_key_values=copy.deepcopy(memory)).logits
    torch.testing.assert_close(found, whole, atol=1e-10, rtol=0)
    # The mask of the segment alone: the memory has no padding any more.
    found = model(padded[:, 7:], attention_mask=mask[:, 7:], past_key_values=memory).logits
    torch.testing.assert_close(found, whole, atol=1e-10, rtol=0)


@torch.no_grad()
def test_generation_continues_from_a_memory(language_model):
    model = language_model(eos_token_id=98)
    ids = torch.randint(4, 98, (1, 11))
    memory = model(ids[:, :7], use_cache=True).past_key_values
    found = model.generate(ids, past_key_values=memory, max_new_tokens=6, do_sample=False)
    assert found.tolist() == model.generate(ids, max_new_tokens=6, do_sample=False).tolist()


def test_a_static_cache_and_flex_attention_are_refused(language_model):
    model, ids = language_model(), torch.ones(1, 3).long()
    with pytest.raises(ValueError, match="with a static cache"):
        model.generate(ids, cache_implementation="static", max_new_tokens=2)
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="must be 'sdpa', or 'eager'"):
        model(ids)


def test_devices_do_not_divide_its_heads(language_model, tiny_model):
    decoder = language_model().model.decoder
    assert not [name for name in decoder.tp_plan if ".self_attn." in name]
    assert [name for name in decoder.tp_plan if ".fc1" in name]
    assert [name for name in tiny_model().get_decoder().tp_plan if ".self_attn." in name]
