"""
What the benchmark of attention measures: the kinds of self-attention of this package, those of others, and the rows of
the paper's table of complexity (table 1, section 4).
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache
from transformers.generation.streamers import BaseStreamer

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForCausalLM
from vanilla_transformer_hf.common.matmul import matmul
from vanilla_transformer_hf.model.config.attention_kinds import ATTENTION_KINDS
from vanilla_transformer_hf.model.config.kinds import users_of_options
from vanilla_transformer_hf.model.layers.parts import is_plain
from vanilla_transformer_hf.model.modeling_vanilla_transformer import ATTENTION_TYPES
from vanilla_transformer_hf.model.packing.packed import is_packable, pack
from vanilla_transformer_hf.model.search.incremental_decoder import IncrementalDecoder

from .turns import CLOCKS


WIDTH, HEADS = 512, 8
STEPS = 24
# Name -> kind of attention, and fields of the config beside it.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in ATTENTION_KINDS},
    "recurrent": ("recurrent", {"position_encoding": "none"}),
    "chunk_mean": ("chunk", {"chunk_summary": "mean"}),
    "eager": ("full", {"attn_implementation": "eager"}),
}
# Positions up to which a kind is measured that keeps 8 n² numbers, once in a table or several times in a step.
LARGEST = {"eager": 8192, "synthesizer_dense": 2048, "synthesizer_random": 2048}
# The same for prompts, which are read in one pass.
LARGEST_PROMPT = LARGEST | {"recurrent": 4096}


def fields_of(name: str, window: int, length: int) -> dict[str, Any]:
    """The fields of a config for a kind with this window or block, if it has one, and this number of positions."""
    kind, fields = KINDS[name]
    sizes = {
        field: window
        for field in ("attention_window", "attention_block", "memory_length")
        if kind in users_of_options(ATTENTION_KINDS)[field]
    }
    return {"max_position_embeddings": max(length, 2), "attn_implementation": "sdpa"} | sizes | fields


class Ours(nn.Module):
    """Self-attention of this package, of one kind."""

    def __init__(self, name: str, window: int, length: int):
        super().__init__()
        kind, fields = KINDS[name][0], fields_of(name, window, length)
        config = VanillaTransformerConfig(d_model=WIDTH, encoder_attention_type=kind, **fields)  # type: ignore[arg-type]
        self.attention = ATTENTION_TYPES[kind](config, WIDTH, WIDTH, HEADS)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        mask = self.attention.mask(states, None, None, False)
        if self.attention.has_global_tokens:
            mask = self.attention.global_mask(mask, states, None, None)
        return self.attention(states, mask)[0]


class Segments(nn.Module):
    """Attention with a memory of the `window` positions before, in segments of as many."""

    def __init__(self, window: int, length: int):
        super().__init__()
        fields = fields_of("recurrent", window, length)
        self.config = VanillaTransformerConfig(
            d_model=WIDTH, is_encoder_decoder=False, is_decoder=True, decoder_attention_type="recurrent", **fields
        )
        self.attention = ATTENTION_TYPES["recurrent"](self.config, WIDTH, WIDTH, HEADS, is_causal=True)
        self.attention.draw()
        self.window = window

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        memory, read = DynamicCache(config=self.config), []
        for segment in states.split(self.window, dim=1):
            mask = self.attention.mask(segment, None, memory, False)
            read.append(self.attention(segment, mask, memory)[0])
        return torch.cat(read, dim=1)


class LongT5(nn.Module):
    """Local attention of LongT5 in transformers, without its table of positions."""

    def __init__(self, window: int, length: int):
        super().__init__()
        from transformers.models.longt5.modeling_longt5 import LongT5Config, LongT5LocalAttention

        self.attention = LongT5LocalAttention(
            LongT5Config(d_model=WIDTH, d_kv=WIDTH // HEADS, num_heads=HEADS, local_radius=window - 1),
            has_relative_attention_bias=False,
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.attention(states)[0]


class LocalAttentionPeer(nn.Module):
    """The package local-attention with projections: each block of `window` positions also sees its neighbours."""

    def __init__(self, window: int, length: int):
        super().__init__()
        from local_attention import LocalAttention

        self.maps = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.attention = LocalAttention(
            dim=WIDTH // HEADS,
            window_size=window,
            look_backward=1,
            look_forward=1,
            autopad=True,
            use_rotary_pos_emb=False,
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        query, key, value = (one(states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.maps[:3])
        return self.maps[3](self.attention(query, key, value).transpose(1, 2).flatten(-2))


def linformer_peer(window: int, length: int) -> nn.Module:
    """The package linformer, with 256 sums of keys and of values."""
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(WIDTH, length, k=256, heads=HEADS)


def performer_peer(window: int, length: int) -> nn.Module:
    """The package performer-pytorch, with as many random features as ours."""
    from performer_pytorch import SelfAttention

    return SelfAttention(WIDTH, heads=HEADS, dim_head=WIDTH // HEADS)


# Name -> function that makes the module for a window size and a length.
ENGINES: dict[str, Callable[[int, int], nn.Module]] = {
    **{name: partial(Ours, name) for name in KINDS},
    "recurrent": Segments,
    "LongT5": LongT5,
    "local-attention": LocalAttentionPeer,
    "linformer-package": linformer_peer,
    "performer-pytorch": performer_peer,
}
PACKAGES = {
    "local-attention": "local_attention",
    "linformer-package": "linformer",
    "performer-pytorch": "performer_pytorch",
}
INSTALLED = [name for name in ENGINES if name not in PACKAGES or importlib.util.find_spec(PACKAGES[name])]


class Products(nn.Module):
    """softmax(Q Kᵀ / √d_k) V of a number of heads, without projections."""

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        divided = states.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(divided, divided, divided)


def feed_forward(width: int) -> nn.Module:
    """The feed-forward layer of the paper, with four times the width inside."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


# Row of the table of complexity -> function that makes the module for a width, and what its operations grow with.
LAYERS: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "self-attention": (lambda width: Products(1), "n² d"),
    "multi-head": (lambda width: Products(HEADS), "n² d"),
    "feed-forward": (feed_forward, "n d²"),
    "norm": (nn.LayerNorm, "n d"),
}


class PackedProducts(TorchFunctionMode):
    """A context in which linear maps whose weights' ids are in `maps` use packed weights, in peers' code, too."""

    def __init__(self, maps: dict[int, Callable[[torch.Tensor], torch.Tensor]]):
        super().__init__()
        self.maps = maps

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and len(args) > 1 and id(args[1]) in self.maps:
            return self.maps[id(args[1])](args[0])
        return func(*args, **(kwargs or {}))


def packed_products(module: nn.Module) -> PackedProducts:
    """A context in which the module's linear maps have packed weights, as those of an encoder in generate()."""
    plain: list[Any] = [part for part in module.modules() if is_plain(part) and is_packable(part.weight)]  # type: ignore[arg-type]
    return PackedProducts({id(part.weight): pack([part.weight], part.bias) for part in plain})


def work_of(
    name: str,
    task: str,
    length: int,
    window: int,
    width: int = WIDTH,
    clock: str = "wall",
    dtype: torch.dtype = torch.float32,
    products: str = "default",
) -> Callable[[], float] | None:
    """A function that runs the task once and returns the seconds; None if the engine does not support the task."""
    # `products` is a key of `common.matmul.MATMULS`, the library of float32 products.
    torch.manual_seed(0)
    now = CLOCKS[clock]
    if length > (LARGEST_PROMPT if task == "token" else LARGEST).get(name, length):
        return None
    if task == "token":
        has_token = name in KINDS and "decoder" not in ATTENTION_KINDS[KINDS[name][0]].not_in
        return under(products, token_of(name, length, window, now, dtype)) if has_token else None
    module = (LAYERS[name][0](width) if task == "layer" else ENGINES[name](window, length)).to(dtype)
    states = torch.randn(1, length, width, dtype=dtype)

    def step() -> float:
        start = now()
        module(states.requires_grad_()).sum().backward()
        return now() - start

    if task == "training step":
        return under(products, step)
    packed = packed_products(module)

    def forward() -> float:
        start = now()
        with torch.no_grad(), packed:
            module(states)
        return now() - start

    return under(products, forward)


def under(products: str, work: Callable[[], float]) -> Callable[[], float]:
    """The work with this library of float32 products."""

    def run() -> float:
        with matmul(products):
            return work()

    return run


class Ticks(BaseStreamer):
    """When the tokens of a search came."""

    def __init__(self, now: Callable[[], float]):
        self.now = now
        self.moments: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.moments.append(self.now())

    def end(self) -> None:
        """Nothing is kept open."""


def token_of(name: str, length: int, window: int, now: Callable[[], float], dtype: torch.dtype) -> Callable[[], float]:
    """
    The time of one token of greedy search after a prompt. The prompt takes much longer than a token, so that the time
    is that between tokens, and not that of a whole search minus another.
    """
    config = VanillaTransformerConfig(
        vocab_size=1000,
        decoder_layers=1,
        is_encoder_decoder=False,
        is_decoder=True,
        decoder_attention_type=KINDS[name][0],  # type: ignore[arg-type]
        **fields_of(name, window, length + 2 + STEPS),
    )
    model = VanillaTransformerForCausalLM(config).eval().to(dtype)
    prompt = torch.randint(3, 1000, (1, length))
    options: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 2 + STEPS, "min_new_tokens": 2 + STEPS}

    def token() -> float:
        ticks, step = Ticks(now), IncrementalDecoder.step

        def ticking(decoder: IncrementalDecoder, tokens: torch.Tensor) -> Any:
            ticks.put(tokens)
            return step(decoder, tokens)

        if model.get_decoder().layers[0].self_attn.has_step:  # a streamer would choose transformers' loop
            with patch.object(IncrementalDecoder, "step", ticking):
                model.generate(prompt, **options)
        else:
            model.generate(prompt, streamer=ticks, **options)
        return (ticks.moments[-1] - ticks.moments[-1 - STEPS]) / STEPS

    return token
