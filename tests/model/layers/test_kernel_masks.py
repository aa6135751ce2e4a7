"""Local kinds by flex attention and by flash attention: the same as the plain products under a mask of all pairs."""

from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from transformers import StaticCache, modeling_flash_attention_utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanilla_transformer_hf import VanillaTransformerConfig
from vanilla_transformer_hf.model.attention import kernel_masks
from vanilla_transformer_hf.model.layers.parts import FlashMemory
from vanilla_transformer_hf.model.modeling_vanilla_transformer import ATTENTION_TYPES


KINDS = {"window": {"attention_window": 9}, "blocks": {"attention_block": 11}, "chunk": {"attention_block": 21}}
every_kind = pytest.mark.parametrize("kind", KINDS)
FLASH = ("flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2")


@pytest.fixture
def flex(monkeypatch):
    """torch's flex attention without its compiler, and small blocks."""
    monkeypatch.setattr(kernel_masks, "FLEX_BLOCK", 16)
    with torch.compiler.set_stance("force_eager"):
        yield


def plain_flash(query, key, value, softmax_scale=None, causal=False, window_size=(-1, -1), dropout_p=0.0):
    """
    What the documentation of flash attention says, in plain products, from (B, T, H, d) to the same. The query at i
    attends to keys from i + S - T - left to i + S - T + right, both included; `causal` hides the keys behind it.
    """
    lengths = query.shape[1], key.shape[1]
    distance = torch.arange(lengths[1]) - torch.arange(lengths[0])[:, None] - (lengths[1] - lengths[0])  # (T, S)
    left, right = window_size
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    if causal:
        hidden |= distance > 0
    scores = torch.einsum("bthd,bshd->bhts", query, key) * softmax_scale
    return torch.einsum("bhts,bshd->bthd", scores.masked_fill(hidden, -torch.inf).softmax(dim=-1), value)


class PlainFlash:
    """Stands in for the package: its two functions, and what they were called with."""

    def __init__(self):
        self.windows = []

    def whole(self, q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
        self.windows.append(window_size)
        return plain_flash(q, k, v, softmax_scale, causal, window_size)

    def ragged(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1),
    ):  # fmt: skip
        """Sequences without padding, one behind the other: (tokens, H, d)."""
        self.windows.append(window_size)
        parts = (
            states.tensor_split(ends[1:-1].tolist())
            for states, ends in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k))
        )
        return torch.cat([
            plain_flash(*(part[None] for part in sequence), softmax_scale, causal, window_size)[0]
            for sequence in zip(*parts)
        ])  # fmt: skip


@pytest.fixture
def flash(monkeypatch):
    plain = PlainFlash()
    utils = modeling_flash_attention_utils
    functions = (plain.whole, plain.ragged, None, utils._pad_input, utils._unpad_input)
    monkeypatch.setattr(utils, "_lazy_imports", lambda *_, **__: functions)
    monkeypatch.setattr(utils, "_loaded_implementation", None)
    # What transformers does when it fetches a kernel.
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, FLASH[2], flash_attention_forward)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, FLASH[2], flash_attention_mask)
    return plain


def padding(lengths, sides, longest):
    rows = [[1] * length + [0] * (longest - length) for length in lengths]
    return torch.tensor([row[::-1] if side == "left" else row for row, side in zip(rows, sides)])


def attention(kind, is_causal, implementation, **fields):
    config = VanillaTransformerConfig(
        vocab_size=9, d_model=16, d_k=4, d_v=4, encoder_attention_heads=2, encoder_attention_type=kind,
        **{**KINDS.get(kind, {}), **fields},
    )  # fmt: skip
    config._attn_implementation = implementation
    torch.manual_seed(1)
    return ATTENTION_TYPES[kind](config, 16, 16, 2, is_causal).eval()


def both(kind, is_causal, implementation, real, length, gradients=False):
    """Of a kernel and of plain products, with the same weights: outputs at tokens, and gradients of the states."""
    found = []
    for name in (implementation, "eager"):
        module = attention(kind, is_causal, name)
        states = torch.randn(3, length, 16, generator=torch.Generator().manual_seed(2), requires_grad=gradients)
        output = module(states, module.mask(states, real, None, False))[0]
        output = output if real is None else output[real.bool()]
        if gradients:
            (output * torch.arange(output.numel()).view_as(output).cos()).sum().backward()
        found.append((output.detach(), states.grad))
    return zip(*found)


PADDINGS = {
    "none": lambda length: None,
    "both sides": lambda length: padding([length, length - 13, length - 22], ["left", "left", "right"], length),
    "inside": lambda length: torch.arange(3 * length).reshape(3, length).remainder(7).ne(3).long(),
}


@every_kind
@pytest.mark.parametrize("side", PADDINGS)
@pytest.mark.parametrize("length", [25, 90])
@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@torch.no_grad()
def test_flex_is_the_masked_product(kind, side, length, is_causal, flex):
    (found, expected), _ = both(kind, is_causal, "flex_attention", PADDINGS[side](length), length)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@every_kind
@pytest.mark.parametrize("side", PADDINGS)
@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
def test_blocks_of_flex_are_those_with_a_pair(kind, side, is_causal, flex):
    """No pair that is seen lies outside of the blocks that the kernel is given, and without padding none is empty."""
    states, real = torch.zeros(3, 90, 16), PADDINGS[side](90)
    mask = attention(kind, is_causal, "flex_attention").mask(states, real, None, False)
    rows, queries, keys = torch.meshgrid(torch.arange(3), torch.arange(90), torch.arange(90), indexing="ij")
    pairs = F.pad(mask.mask_mod(rows, 0, queries, keys), (0, 6, 0, 6))
    needed = pairs.unflatten(2, (6, 16)).unflatten(1, (6, 16)).any(dim=4).any(dim=2)
    given = mask.to_dense()[:, 0].bool()
    assert not (needed & ~given).any() and not given.all()
    assert real is not None or torch.equal(given, needed)


def test_a_mask_of_flex_compares_no_pairs():
    """The rule is asked about ends of blocks: a mask of 100,000 positions of a window has at most three a row."""
    module = attention("window", False, "flex_attention", attention_window=128)
    mask = module.mask(torch.zeros(1, 100_000, 1), None, None, False)
    assert mask.kv_num_blocks.shape == (1, 1, 782) and mask.kv_num_blocks.max() == 3
    assert mask.kv_num_blocks.sum() == 3 * 782 - 2


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_flex_in_steps(kind, tiny_model, flex):
    """transformers' loop finds what eager finds, with padding on the left."""
    model = tiny_model(encoder_attention_type=kind, decoder_attention_type=kind, **KINDS[kind])
    source = {"input_ids": torch.randint(4, 99, (2, 30)), "attention_mask": padding([30, 21], ["left"] * 2, 30)}
    found = []
    for name in ("eager", "flex_attention"):
        model.set_attn_implementation(name)
        found.append(model.generate(**source, num_beams=2, max_new_tokens=40, min_new_tokens=40))
    assert torch.equal(*found)


def test_flex_hides_unused_room_of_a_static_cache():
    module = attention("window", True, "flex_attention")
    cache = StaticCache(config=module.config, max_cache_len=50)
    for length in (20, 13, 1):
        past, states = int(cache.get_seq_length()), torch.zeros(2, length, 16)
        real = padding([past + length, past + length - 5], ["left"] * 2, past + length)
        mask = module.mask(states, real, cache, False)
        rows, queries, keys = torch.meshgrid(torch.arange(2), torch.arange(length), torch.arange(50), indexing="ij")
        expected = (keys <= queries + past) & (queries + past - keys <= 9) & (keys >= 5 * rows)
        tokens = queries + past >= 5 * rows
        assert torch.equal(mask.mask_mod(rows, 0, queries, keys)[tokens], expected[tokens])
        assert mask.shape == (2, 1, length, 50)
        cache.update(torch.zeros(2, 2, length, 4), torch.zeros(2, 2, length, 4), 0)


@pytest.mark.parametrize("side", PADDINGS)
@pytest.mark.parametrize("name", FLASH)
@pytest.mark.parametrize("length", [10, 11, 60])
@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
def test_flash_has_the_window_and_its_gradients(side, name, length, is_causal, flash):
    real = PADDINGS[side](length) if length > 22 else None
    for found, expected in both("window", is_causal, name, real, length, gradients=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert flash.windows == [(9, 9) if length > 10 else (-1, -1)]


@torch.no_grad()
def test_flash_in_steps(tiny_model, flash):
    """A step sees the last keys, those at most w before it; padding is on the left."""
    model = tiny_model(encoder_attention_type="window", decoder_attention_type="window", **KINDS["window"])
    source, found = torch.randint(4, 99, (2, 30)), []
    prefix = {
        "attention_mask": padding([30, 21], ["right"] * 2, 30),
        "decoder_input_ids": torch.randint(4, 99, (2, 14)),
    }
    prefix["decoder_attention_mask"] = padding([14, 9], ["left"] * 2, 14)
    for name in ("eager", FLASH[0]):
        model.config._attn_implementation = name
        found.append(model.generate(source, **prefix, num_beams=2, max_new_tokens=40, min_new_tokens=40))
    assert torch.equal(*found)
    assert set(flash.windows) == {(-1, -1), (9, 9)}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("length", [7, 12])
def test_flash_and_the_padding_of_a_source(side, length, tiny_model, flash):
    """Also where the target is as long as the source, whose padding transformers takes for that of the target then."""
    model, found = tiny_model(), []
    source, target = torch.randint(4, 99, (3, 12)), torch.randint(4, 99, (3, length))
    real = padding([12, 8, 5], [side] * 3, 12)
    for name in ("eager", FLASH[0]):
        model.config._attn_implementation = name
        model.zero_grad()
        logits = model(source, real, decoder_input_ids=target).logits
        logits.square().sum().backward()
        found.append((logits.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-5)


def test_memory_of_flash_leaves_out_room_of_a_static_cache():
    padding = torch.tensor([[1, 1, 0], [0, 1, 1]])
    keys = torch.arange(10.0).view(2, 1, 5, 1)
    attention = Mock()
    attention.attend.return_value = torch.arange(8.0).view(1, 8, 1), None
    output, _ = FlashMemory.of(padding, padding).attend(attention, torch.zeros(2, 1, 4, 1), keys)
    (query, key, mask), places = attention.attend.call_args
    assert query.shape == (1, 1, 8, 1) and key.flatten().tolist() == [0, 1, 6, 7] and mask is None
    assert (places["cu_seq_lens_q"].tolist(), places["cu_seq_lens_k"].tolist()) == ([0, 4, 8], [0, 2, 4])
    assert (places["max_length_q"], places["max_length_k"]) == (4, 2)
    assert output[..., 0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("kind", ["blocks", "chunk", "window_global"])
def test_flash_refuses_what_is_no_window(kind):
    module = attention(kind, False, FLASH[0])
    other = "'sdpa', or 'eager'" if kind == "window_global" else "'sdpa', 'flex_attention', or 'eager'"
    with pytest.raises(ValueError, match=f"'flash_attention_2' with {type(module).__name__}: must be {other}"):
        module.mask(torch.zeros(1, 30, 16), None, None, False)


@pytest.mark.parametrize("kind, fields", [("window_global", {}), ("chunk", {"chunk_summary": "mean"})])
def test_flex_refuses_kinds_with_more_than_a_mask(kind, fields):
    module = attention(kind, False, "flex_attention", **fields)
    with pytest.raises(ValueError, match=f"'flex_attention' with {type(module).__name__}: must be 'sdpa', or 'eager'"):
        module.mask(torch.zeros(1, 30, 16), None, None, False)


@pytest.mark.parametrize("name", ["flex_attention", FLASH[0]])
def test_masks_of_pairs_are_refused(name):
    with pytest.raises(ValueError, match=r"shape \(1, 1, 30, 30\): .* choose attn_implementation='sdpa' or 'eager'"):
        attention("window", True, name).mask(torch.zeros(1, 30, 16), torch.ones(1, 1, 30, 30), None, False)


def test_a_flash_kernel_without_a_window_is_refused(monkeypatch):
    utils = modeling_flash_attention_utils
    kernel = lambda q, k, v, softmax_scale=None, causal=False: q  # noqa: E731
    monkeypatch.setattr(utils, "_lazy_imports", lambda *_, **__: (kernel, kernel, None, None, None))
    monkeypatch.setattr(utils, "_loaded_implementation", None)
    with pytest.raises(ValueError, match="this kernel takes no window; choose 'sdpa' or 'flex_attention'"):
        attention("window", False, FLASH[0]).mask(torch.zeros(1, 30, 16), None, None, False)


def test_flash_refuses_a_static_cache(tiny_model, flash):
    model = tiny_model(decoder_attention_type="window", attention_window=9)
    model.config._attn_implementation = FLASH[0]
    cache = StaticCache(config=model.config, max_cache_len=50)
    with pytest.raises(ValueError, match="'flash_attention_2' with a static cache: a window would be counted"):
        model.get_decoder().layers[0].self_attn.mask(torch.zeros(1, 30, 16), None, cache, False)
