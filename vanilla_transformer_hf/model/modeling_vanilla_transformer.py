"""
The Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv 1706.03762), encoder and decoder.

Read it from top to bottom: positions, attention, layer, stacks, model, language-model head. Kinds of positions and
attention that the paper does not have are subclasses of the two classes here, in `positions/` and `attention/`; they
are looked up in two tables, `POSITION_ENCODINGS` and `ATTENTION_TYPES`, and nothing else in this file names them.

Shapes: B sentences, S source positions, T target positions, D = d_model (encoder_d_model in the encoder), H heads,
V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Unpack

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from .config.attention_kinds import ATTENTION_KINDS, CROSS_KINDS, OTHER_KINDS, SCALES, attention_kind
from .config.front_ends import FRONT_ENDS, check_sources, shortened_padding
from .config.kinds import Classes, part
from .config.position_schemes import POSITION_SCHEMES
from .config.sharing import FEED_FORWARD_OWNERS, INNER_PROJECTIONS, PROJECTIONS
from .config.stacks import StackSizes, check_stacks, heads_of_layers
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .layers.base_model import (
    DECODER_PP_PLAN,
    SharedEmbeddings,
    ShiftedLabels,
    StackOfLayers,
    VanillaTransformerPreTrainedModel,
    missing_target,
    tied_output,
)
from .layers.parts import NORMS, Dropout, FlashMemory, Linear, SharesProjections, counted, drop_out, look_up
from .releases.models import (
    CACHE,
    OutputRecorder,
    attention_function,
    bidirectional_mask,
    causal_mask,
    given_cache,
    grow,
    named,
    recorded,
)
from .search.generate import VanillaTransformerGenerationMixin


# Positions -----------------------------------------------------------------------------------------------------------
# What a scheme applies to queries or keys (B, H, T, d_k) at their positions.
ApplyRotary = Callable[[torch.Tensor], torch.Tensor]
# Name in the config -> class. The others are in `positions/`.
POSITION_ENCODINGS = Classes(POSITION_SCHEMES)


class PositionEncoding(nn.Module):
    """No positions: the order of tokens has no effect, except through the decoder's causal mask."""

    # A scheme adds to the embeddings (`forward`), rotates queries and keys (`rotary_at`), or acts on pairs of a query
    # and a key, as those in `positions/relative.py`.

    has_step = True  # whether this package's search can compute it one token at a time
    is_relative = False  # whether it acts on pairs: then it gets an additive mask and the positions of the keys
    kept_features = 0  # features that are cached with a key, beyond d_k
    longest: int | None = None  # the largest number of positions

    def __init_subclass__(cls, scheme: str | None = None, **kwargs: Any) -> None:
        """`class NearPositions(PositionEncoding, scheme="near")` is what a config calls "near"."""
        super().__init_subclass__(**kwargs)
        if scheme is not None:
            POSITION_ENCODINGS.add(scheme, cls, is_relative=cls.is_relative)

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__()
        self.offset = config.position_offset

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings (B, T, D) and positions (B or 1, T), counted from 0, to embeddings with positions (B, T, D)."""
        return embeddings

    def rotary_at(self, position_ids: torch.Tensor) -> ApplyRotary | None:
        """What is applied to queries and keys of self-attention at positions (B or 1, T), made once for all layers."""
        return None


POSITION_ENCODINGS.add("none", PositionEncoding)


class SinusoidalPositionEncoding(PositionEncoding, scheme="sinusoidal"):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)), section 3.5."""

    # Computed in forward, always in float32: a table would limit the length, a buffer would be rounded with the
    # model's dtype and come back uninitialised from `from_pretrained`.

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return embeddings + self.encode(position_ids + self.offset, embeddings.shape[-1]).to(embeddings.dtype)

    @classmethod
    def encode(cls, position_ids: torch.Tensor, width: int) -> torch.Tensor:
        """Positions of any shape to their sinusoids (..., D), of an odd D to one more, in float32."""
        frequencies = torch.pow(10000.0, -cls.exponents(width, position_ids.device))  # (D/2,)
        return cls.arrange(position_ids.float().unsqueeze(-1) * frequencies)

    @staticmethod
    def exponents(width: int, device: torch.device) -> torch.Tensor:
        return torch.arange(0, width, 2, device=device, dtype=torch.float32) / width  # 2i/D

    @staticmethod
    def arrange(angles: torch.Tensor) -> torch.Tensor:
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


# Attention -----------------------------------------------------------------------------------------------------------
# Name in the config -> class of self-attention, and of attention to the source. The others are in `attention/`.
ATTENTION_TYPES = Classes(ATTENTION_KINDS, OTHER_KINDS)
CROSS_ATTENTION_TYPES = Classes(CROSS_KINDS, OTHER_KINDS)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(Q Kᵀ / √d_k) V, section 3.2.1, in plain products."""
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling  # (B, H, T, S)
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = drop_out(weights.softmax(dim=-1), dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights  # (B, T, H, d_v)


class VanillaTransformerAttention(SharesProjections):
    """Concat(head_1 … head_H) W^O with head_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √d_k) V W_i^V, section 3.2.2."""

    # Self-attention, with the projections of `shared_from` if that is given. Of the `num_heads` that share the width,
    # pruning has left `kept_heads`. A kind overrides `mask` and `attend`, and of these attributes what differs.

    has_step = True  # whether this package's search can compute it one token at a time
    is_local = False  # whether a query sees only keys near it: then a search drops (`evict`) those far away
    has_global_tokens = False  # whether it takes `global_attention_mask`
    divides_heads = True  # whether several devices can have some of the heads each (tensor parallelism)
    pools = False  # whether its queries are fewer than its keys (attention/pooling.py)
    state_size = 0  # numbers that a search keeps for each head of a hypothesis instead of keys and values
    longest: int | None = None  # the largest number of positions
    joint: Callable[..., Sequence[torch.Tensor]] | None = None  # a search's one product for several projections

    def __init_subclass__(cls, kind: str | None = None, cross: str | None = None, **kwargs: Any) -> None:
        """`class NearAttention(VanillaTransformerAttention, kind="near")` is "near" in a config; or `cross`."""
        super().__init_subclass__(**kwargs)
        if kind is not None:
            ATTENTION_TYPES.add(kind, cls)
        if cross is not None:
            CROSS_ATTENTION_TYPES.add(cross, cls)

    def __init__(
        self,
        config: VanillaTransformerConfig,
        width: int,
        key_value_width: int,
        num_heads: int,
        is_causal: bool = False,
        shared_from: "VanillaTransformerAttention | None" = None,
        kept_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.config, self.is_causal = config, is_causal
        self.d_k, self.d_v = config.d_k or width // num_heads, config.d_v or width // num_heads
        self.scaling = SCALES[config.attention_score](self.d_k)
        # For queries, keys and values: the name of their projection, and the width of one head.
        self.roles = self._roles()
        self.share_projections_of(shared_from)
        if shared_from is None:
            self._add_projections(width, key_value_width, kept_heads or num_heads, config.attention_bias)

    def _roles(self) -> list[tuple[str, int]]:
        return list(zip(PROJECTIONS[self.config.projection_sharing], (self.d_k, self.d_k, self.d_v)))

    def _add_projections(self, width: int, key_value_width: int, num_heads: int, bias: bool) -> None:
        sizes: dict[str, tuple[int, int]] = {}
        for (name, head_width), states_width in zip(self.roles, (width, key_value_width, key_value_width)):
            sizes.setdefault(name, (states_width, num_heads * head_width))
        for name, size in sizes.items():
            projection = Linear(*size, bias=bias)
            # As one matrix of three times the outputs, as in torch.nn.MultiheadAttention. Values √2 times as large,
            # averaged over the sentence and added to every position, would leave a fresh post-norm stack with
            # positions all alike.
            projection.init_gain = 2**-0.5  # type: ignore[assignment]
            self.add_module(name, projection)
        self.out_proj = Linear(num_heads * self.d_v, width, bias=bias)

    @property
    def num_heads(self) -> int:
        """H, the heads that this attention has; pruning may have removed some."""
        return self.owner.out_proj.in_features // self.d_v

    @staticmethod
    def heads(states: torch.Tensor, width: int) -> torch.Tensor:
        """States of all heads (B, T, H d) to those of each (B, H, T, d)."""
        return states.unflatten(-1, (-1, width)).transpose(1, 2)

    def project(self, states: torch.Tensor, roles: list[tuple[str, int]]) -> list[torch.Tensor]:
        """States (B, T, D) in each role (B, H, T, d); a projection that serves several is computed once."""
        owner: Any = self.shared_from or self
        names = tuple(dict(roles))
        if owner.joint is not None:
            outputs = dict(zip(names, owner.joint(names, states)))
        else:
            outputs = {}
            for name in names:  # no comprehension, whose frame would be one more
                outputs[name] = getattr(owner, name)(states)
        found = []
        for name, width in roles:
            found.append(outputs[name].unflatten(-1, (-1, width)).transpose(1, 2))
        return found

    def project_keys_values(self, states: torch.Tensor, padding: torch.Tensor | None = None) -> list[torch.Tensor]:
        """States (B, S, D) to keys (B, H, S, d_k) and values (B, H, S, d_v), of padding too."""
        return self.project(states, self.roles[1:])

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        """What this attention hides, once for all layers: transformers' mask, or what `attend` takes instead."""
        # `padding` is 1 for a token, 0 for padding, of past and present (B, past + T), or a mask of transformers;
        # `is_needed` makes a mask also where the kernel would hide the future by itself.
        if self.is_causal:
            return causal_mask(self.config, embeddings, padding, cache, is_needed)
        return bidirectional_mask(self.config, embeddings, padding, is_needed)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        *,
        position_bias: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries, keys and values of the heads to outputs (B, T, D) and weights (B, H, T, S)."""
        kernel = attention_function(self.config._attn_implementation, eager_attention_forward)
        if position_bias is not None:
            kernel = position_bias.attend
        kwargs |= {"dropout": self.config.attention_dropout if self.training else 0.0, "scaling": self.scaling}
        output, weights = kernel(self, query, key, value, attention_mask, **kwargs)
        owner: Any = self.shared_from or self
        return owner.out_proj(output.flatten(-2)), weights

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        cache: Cache | None = None,
        layer_idx: int = 0,
        apply_rotary: ApplyRotary | None = None,
        position_bias: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """States (B, T, D) to (B, T, D) and weights (B, H, T, S), of the S positions of the past and these."""
        # `apply_rotary` rotates queries and keys (B, H, T, d_k) by their positions; `position_bias` is what else the
        # position scheme does in this layer's attention. `layer_idx` is the layer's place in the cache: of one that
        # runs several times, each time has its own.
        query, key, value = self.project(hidden_states, self.roles)
        if apply_rotary is not None:
            query, key = apply_rotary(query), apply_rotary(key)
        if position_bias is not None:
            key = position_bias.kept_keys(key, hidden_states)
        if cache is not None:
            key, value = grow(cache, key, value, layer_idx)
        return self.attend(query, key, value, attention_mask, position_bias=position_bias, **kwargs)


ATTENTION_TYPES.add("full", VanillaTransformerAttention)


class VanillaTransformerCrossAttention(VanillaTransformerAttention, cross="full"):
    """Queries from the decoder; keys and values from the encoder, the same at every step."""

    attends_to_sums = False  # whether keys and values are sums over the source instead of those of its positions

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, memory: torch.Tensor | None) -> Any:  # type: ignore[override]
        """transformers' mask of the padding (B, S) in the encoder's output `memory` (B, S, D)."""
        mask: Any = create_bidirectional_mask(self.config, embeddings, padding, encoder_hidden_states=memory)
        if mask is not None and "flash" in (self.config._attn_implementation or ""):
            return FlashMemory.of(mask, padding)
        return mask

    def forward(  # type: ignore[override]  # keys and values come from other states than the queries
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor,
        attention_mask: Any = None,
        cache: EncoderDecoderCache | None = None,
        layer_idx: int = 0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Decoder states (B, T, D) and the encoder's output (B, S, D) to (B, T, D) and weights (B, H, T, S)."""
        (query,) = self.project(hidden_states, self.roles[:1])
        if cache is not None and cache.is_updated.get(layer_idx):
            # Nothing is written after the first step, so an offloaded cache does not fetch the layer by itself.
            layer: Any = cache.cross_attention_cache.layers[layer_idx]
            key, value = layer.keys.to(hidden_states.device), layer.values.to(hidden_states.device)
        else:  # once per sentence, and cached apart from the target's
            key, value = self.project_keys_values(key_value_states, attention_mask)
            if cache is not None:
                cache.is_updated[layer_idx] = True
                key, value = cache.cross_attention_cache.update(key, value, layer_idx)
        if isinstance(attention_mask, FlashMemory):
            return attention_mask.attend(self, query, key, value, **kwargs)
        return self.attend(query, key, value, attention_mask, **kwargs)


# Layer ---------------------------------------------------------------------------------------------------------------
def add_feed_forward(module: Any, config: VanillaTransformerConfig, stack: StackSizes) -> None:
    """Give a layer, or what several layers share, the projections of a feed-forward."""
    module.activation_fn, module.activation_dropout = ACT2FN[stack.activation_function], config.activation_dropout
    for name in INNER_PROJECTIONS[config.feed_forward_type]:
        module.add_module(name, Linear(stack.width, stack.ffn_dim, bias=config.feed_forward_bias))
    module.fc2 = Linear(stack.ffn_dim, stack.width, bias=config.feed_forward_bias)


class SharedFeedForward(nn.Module):
    """One feed-forward for several layers; Pires et al. 2023, arXiv 2309.01826, section 3.1."""

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__()
        add_feed_forward(self, config, stack)


class VanillaTransformerLayer(GradientCheckpointingLayer, SharesProjections):
    """Self-attention, in a decoder attention to the source, and feed-forward, each in a residual step; section 3.1."""

    # It is the set of weights `place` of its stack, from 0; `shared_from` owns the feed-forward's projections if not
    # it.

    def __init__(
        self,
        config: VanillaTransformerConfig,
        stack: StackSizes,
        place: int = 0,
        shared_from: SharedFeedForward | None = None,
    ):
        super().__init__()
        norm = partial(NORMS[config.norm_type], stack.width, config.layer_norm_eps)
        self.is_pre_norm, self.alpha = stack.norm_position == "pre", stack.residual_alpha
        self.has_source = stack.is_causal and config.is_encoder_decoder
        self.has_feed_forward, self.is_gated = stack.has_feed_forward, config.feed_forward_type == "gated"
        self.dropout = Dropout(config.dropout)
        kind, heads = ATTENTION_TYPES[attention_kind(config, stack.name, place)], stack.kept_heads[place]
        self.self_attn = kind(config, stack.width, stack.width, stack.heads, stack.is_causal, kept_heads=heads)
        self.self_attn_layer_norm = norm()
        self.share_projections_of(shared_from)
        if stack.has_feed_forward and shared_from is None:
            add_feed_forward(self, config, stack)
        self.final_layer_norm = norm() if stack.has_feed_forward else nn.Identity()
        if self.has_source:
            kind = CROSS_ATTENTION_TYPES[attention_kind(config, "cross", place)]
            heads = heads_of_layers(config, "cross")[place]
            owner = self.self_attn if config.decoder_attention_sharing else None
            self.encoder_attn = kind(config, stack.width, config.encoder_d_model, stack.heads, False, owner, heads)
            self.encoder_attn_layer_norm = norm()

    def before(self, states: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        """What a sub-layer reads: x, or LayerNorm(x), as in tensor2tensor; Xiong et al. 2020, arXiv 2002.04745."""
        return norm(states) if self.is_pre_norm else states

    def after(self, states: torch.Tensor, output: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        """LayerNorm(αx + Dropout(Sublayer(x))), sections 3.1 and 5.4, where α = 1; or the same without the norm."""
        states = torch.add(self.dropout(output), states, alpha=self.alpha)
        return states if self.is_pre_norm else norm(states)

    def feed_forward(self, states: torch.Tensor) -> torch.Tensor:
        """activation(x W₁ + b₁) W₂ + b₂, section 3.3, of states (B, T, D) to (B, T, D)."""
        # Or (activation(x W₁ + b₁) ⊙ (x W₃ + b₃)) W₂ + b₂, Shazeer 2020, arXiv 2002.05202.
        owner: Any = self.shared_from or self
        wide = owner.activation_fn(owner.fc1(states))  # (B, T, d_ff)
        if self.is_gated:
            wide = wide * owner.fc3(states)
        if owner.training:
            wide = drop_out(wide, owner.activation_dropout, owner.training)
        return owner.fc2(wide)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        memory: torch.Tensor | None = None,
        memory_mask: Any = None,
        cache: Any = None,
        layer_idx: int = 0,
        apply_rotary: ApplyRotary | None = None,
        position_bias: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """States (B, T, D) to (B, T, D)."""
        # `memory` is the encoder's output (B, S, D), or in a layer that pools the longer states (B, S, D) that it
        # reads; it comes by position, as gradient checkpointing follows no keywords.
        norm = self.self_attn_layer_norm
        pooled = {} if memory is None or self.has_source else {"memory": memory}
        attended, _ = self.self_attn(
            self.before(hidden_states, norm),
            attention_mask,
            cache=cache.self_attention_cache if self.has_source and cache is not None else cache,
            layer_idx=layer_idx,
            apply_rotary=apply_rotary,
            position_bias=position_bias,
            **pooled,
            **kwargs,
        )
        hidden_states = self.after(hidden_states, attended, norm)
        if self.has_source:
            norm = self.encoder_attn_layer_norm
            attended, _ = self.encoder_attn(
                self.before(hidden_states, norm), memory, memory_mask, cache=cache, layer_idx=layer_idx, **kwargs
            )
            hidden_states = self.after(hidden_states, attended, norm)
        if self.has_feed_forward:
            norm = self.final_layer_norm
            hidden_states = self.after(hidden_states, self.feed_forward(self.before(hidden_states, norm)), norm)
        return hidden_states


# Stacks --------------------------------------------------------------------------------------------------------------
class VanillaTransformerStack(StackOfLayers):
    """Embeddings times √D, positions, dropout, N layers, and a final norm where the config has one."""

    # `shared_from` is the feed-forward that the layers share, if another stack owns it.

    def __init__(
        self, config: VanillaTransformerConfig, stack: StackSizes, shared_from: SharedFeedForward | None = None
    ):
        super().__init__(config)
        norm = partial(NORMS[config.norm_type], stack.width, config.layer_norm_eps)
        self.embed_scale = math.sqrt(stack.width) if config.scale_embedding else 1.0
        feed_forward = shared_from
        if feed_forward is None and getattr(FEED_FORWARD_OWNERS[config.feed_forward_sharing], stack.name) == "stack":
            feed_forward = SharedFeedForward(config, stack)
        # Layers that share their weights are one module.
        places = range(max(stack.layer_order) + 1)
        layers = [VanillaTransformerLayer(config, stack, place, feed_forward) for place in places]
        embed_positions = POSITION_ENCODINGS[stack.position_encoding](config, stack)
        if stack.front_end == "tokens":
            self.embed_tokens = nn.Embedding(stack.vocab_size, stack.width)
        else:
            self.front_end = FRONT_END_CLASSES[stack.front_end](config)
        if stack.segments:
            self.embed_segments = nn.Embedding(stack.segments, stack.width)
        self.embed_positions = embed_positions
        self.layernorm_embedding = norm() if config.layernorm_embedding else nn.Identity()
        self.dropout = Dropout(config.dropout)
        if feed_forward is not None and shared_from is None:
            self.feed_forward = feed_forward
        self.layers, self.order_of_layers = nn.ModuleList(layers), stack.layer_order
        self.layer_norm = norm() if stack.final_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def layer_order(self) -> list[int]:
        """For each layer that runs, its place in `layers`, some of which a user may have removed."""
        order = self.order_of_layers
        return order if len(self.layers) == max(order) + 1 else [*range(len(self.layers))]

    @property
    def layers_in_order(self) -> list[Any]:
        """The N layers in order; a layer that occurs several times runs several times."""
        return [self.layers[number] for number in self.layer_order]

    def positions_of(
        self, embeddings: torch.Tensor, attention_mask: torch.Tensor | None, cache: Cache | None = None
    ) -> torch.Tensor:
        """The position of each embedding (B, T, D) behind those of the cache, as (B or 1, T), without padding."""
        length, past = embeddings.shape[1], 0 if cache is None else cache.get_seq_length()
        if attention_mask is not None and attention_mask.dim() == 2:
            return counted(attention_mask)[:, -length:]  # (B, T)
        return (torch.arange(length, device=embeddings.device) + past)[None]  # (1, T)

    def prepare_attention(
        self,
        embeddings: torch.Tensor,
        padding: torch.Tensor | None,
        position_ids: torch.Tensor,
        cache: Cache | None = None,
        chosen: torch.Tensor | None = None,
    ) -> tuple[Any, Iterable[Any]]:
        """What self-attention is given: the mask, and for each layer what else relative positions do, or None."""
        # `padding` is as in `VanillaTransformerAttention.mask`; `chosen` is 1 for a global token (B, T).
        if self.training and self.config.norm_type == "batch_norm":
            NORMS["batch_norm"].note_tokens(self, padding, embeddings.shape[1])
        scheme, own = self.embed_positions, self.layers[0].self_attn
        mask = own.mask(embeddings, padding, cache=cache, is_needed=scheme.is_relative)
        if self.reads_source and own.has_global_tokens:
            mask = own.global_mask(mask, embeddings, padding, chosen=chosen)
        if not scheme.is_relative:
            return mask, repeat(None)
        return scheme.prepare_attention(mask, position_ids, padding=padding, cache=cache, dtype=embeddings.dtype)

    def embed(
        self, embeddings: torch.Tensor, position_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Embeddings (B, T, D), positions (B or 1, T), segments (B, T) to the first layer's input, section 3.4."""
        # Segments as in Devlin et al. 2019, arXiv 1810.04805, section 3.2, the first one if not given.
        hidden_states = embeddings * self.embed_scale
        if hasattr(self, "embed_segments"):
            weight = self.embed_segments.weight
            segments = weight[0] if token_type_ids is None else look_up(weight, token_type_ids, "segment")
            hidden_states = hidden_states + segments
        return self.dropout(self.layernorm_embedding(self.embed_positions(hidden_states, position_ids)))


# What makes the input of the encoder of a source without tokens, in `front_ends.py`.
FRONT_END_CLASSES = Classes(FRONT_ENDS)


class VanillaTransformerEncoder(VanillaTransformerStack):
    """Source ids to memory, section 3.1."""

    reads_source = True
    _can_record_outputs = {"hidden_states": VanillaTransformerLayer, "attentions": VanillaTransformerAttention}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, StackSizes(config, "encoder"))

    @recorded
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        global_attention_mask: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Source ids (B, S), or embeddings (B, S, D), to states (B, S, D), which `encoder_pooling` shortens."""
        # `token_type_ids` are segments, `global_attention_mask` is 1 or 0 (B, S), with
        # `encoder_attention_type="window_global"`. With another front end the source is `input_features` or
        # `pixel_values` (`front_ends.py`), also by position.
        sources = {"input_features": input_features, "pixel_values": pixel_values}
        if self.main_input_name in sources and input_ids is not None and input_ids.is_floating_point():
            sources[self.main_input_name], input_ids = input_ids, None
        given = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, **sources}
        check_sources(self, given, token_type_ids, global_attention_mask)
        if self.main_input_name == "input_ids":
            embeddings = self.look_up_tokens(input_ids, inputs_embeds)
        else:
            embeddings = self.front_end(sources[self.main_input_name], attention_mask)
            attention_mask = shortened_padding(self.config, attention_mask)
        if position_ids is None:
            position_ids = self.positions_of(embeddings, attention_mask)
        mask, biases = self.prepare_attention(embeddings, attention_mask, position_ids, chosen=global_attention_mask)
        hidden_states = self.embed(embeddings, position_ids, token_type_ids)
        apply_rotary = self.embed_positions.rotary_at(position_ids)
        for layer, position_bias in zip(self.layers_in_order, biases):
            kwargs |= {"apply_rotary": apply_rotary, "position_bias": position_bias}
            if layer.self_attn.pools:
                long = layer.before(hidden_states, layer.self_attn_layer_norm)
                hidden_states, own_mask, attention_mask = layer.self_attn.shorten(hidden_states, attention_mask)
                hidden_states = layer(hidden_states, own_mask, long, **kwargs)
                mask = self.layers[0].self_attn.mask(hidden_states, attention_mask, cache=None, is_needed=False)
            else:
                hidden_states = layer(hidden_states, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """Target ids so far, and the memory of an encoder, to the states that predict the next ids, section 3.1."""

    _pp_plan: Any = DECODER_PP_PLAN
    _can_record_outputs = {
        "hidden_states": VanillaTransformerLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerCrossAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig, shared_from: SharedFeedForward | None = None):
        super().__init__(config, StackSizes(config, "decoder"), shared_from)

    def memory_padding(self, padding: torch.Tensor | None) -> torch.Tensor | None:
        """The padding of the encoder's output (B, S'), from that of the source (B, S) or of its frames."""
        padding = shortened_padding(self.config, padding)
        for _ in self.config.encoder_pooling or [] if padding is not None else []:
            padding = ATTENTION_TYPES["pooling"].pooled_padding(padding)
        return padding

    @recorded
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Target ids (B, T), or embeddings (B, T, D), and the encoder's output (B, S, D) to states (B, T, D)."""
        # `encoder_attention_mask` is that of the source, also where the encoder pools.
        cache = given_cache(self, cache, past_key_values, kwargs)
        has_source = self.config.is_encoder_decoder
        if has_source != (encoder_hidden_states is not None):
            what = "must be given" if has_source else "not possible, because the model has no encoder"
            raise ValueError(f"{type(self).__name__}: encoder_hidden_states: {what}")
        embeddings = self.look_up_tokens(input_ids, inputs_embeds)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config)) if has_source else cache
        past: Any = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        if position_ids is None:
            position_ids = self.positions_of(embeddings, attention_mask, cache=past)
        mask, biases = self.prepare_attention(embeddings, attention_mask, position_ids, cache=past)
        memory_mask = None
        if has_source:
            padding = self.memory_padding(encoder_attention_mask)
            cross = self.layers[0].encoder_attn
            memory_mask = cross.mask(embeddings, padding, memory=encoder_hidden_states)
        hidden_states = self.embed(embeddings, position_ids)
        apply_rotary = self.embed_positions.rotary_at(position_ids)
        for layer_idx, (layer, position_bias) in enumerate(zip(self.layers_in_order, biases)):
            own = {"layer_idx": layer_idx, "position_bias": position_bias, "apply_rotary": apply_rotary}
            hidden_states = layer(
                hidden_states, mask, encoder_hidden_states, memory_mask, cache=cache, **own, **kwargs
            )
        hidden_states = self.layer_norm(hidden_states)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **named(cache))


# Model ---------------------------------------------------------------------------------------------------------------
class VanillaTransformerModel(SharedEmbeddings, VanillaTransformerPreTrainedModel):
    """
    Encoder and decoder, without the map to the vocabulary: source ids (B, S), target ids (B, T) to states (B, T, D).

    Example:

    ```python
    >>> import torch
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerModel
    >>> model = VanillaTransformerModel(VanillaTransformerConfig(vocab_size=99, d_model=32))
    >>> source, target = torch.randint(4, 99, (2, 7)), torch.randint(4, 99, (2, 5))
    >>> model(source, decoder_input_ids=target).last_hidden_state.shape
    torch.Size([2, 5, 32])
    ```
    """

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        check_stacks(config, "encoder_decoder", type(self).__name__)
        self.encoder = VanillaTransformerEncoder(config)
        is_shared = FEED_FORWARD_OWNERS[config.feed_forward_sharing].decoder == "encoder"
        shared_from: Any = self.encoder.feed_forward if is_shared else None
        self.decoder = VanillaTransformerDecoder(config, shared_from=shared_from)
        self.share_embeddings()
        self.post_init()

    @can_return_tuple
    def forward(  # type: ignore[misc]  # transformers reads from this type that attentions can be returned
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        token_type_ids: torch.Tensor | None = None,
        global_attention_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        input_features: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """
        Source ids (B, S) and target ids (B, T), or embeddings of the same shape by D, to hidden states (B, T, D).
        The target is never derived from the source.
        """
        cache = given_cache(self, cache, past_key_values, kwargs)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(missing_target(type(self).__name__))
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids,
                attention_mask,
                inputs_embeds=inputs_embeds,
                position_ids=position_ids,
                token_type_ids=token_type_ids,
                global_attention_mask=global_attention_mask,
                input_features=input_features,
                pixel_values=pixel_values,
                **kwargs,
            )
        if not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs.last_hidden_state,
            attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            position_ids=decoder_position_ids,
            use_cache=use_cache,
            cache=cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **named(getattr(decoder_outputs, CACHE)),
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


# Head ----------------------------------------------------------------------------------------------------------------
class VanillaTransformerForConditionalGeneration(
    VanillaTransformerGenerationMixin, ShiftedLabels, VanillaTransformerPreTrainedModel
):
    """
    Encoder, decoder and the map to the vocabulary: logits = Y Eᵀ (+ b), section 3.4.

    `forward` takes source ids (B, S) and target ids or labels (B, T) and returns logits (B, T, V), and with labels the
    loss in nats per token. `generate()` translates, by greedy or beam search.

    Example:

    ```python
    >>> from transformers import AutoTokenizer
    >>> from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
    >>> folder = "model_cards/multi30k_raw_en_de"
    >>> model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
    >>> tokenizer = AutoTokenizer.from_pretrained(folder)
    >>> batch = tokenizer("Two dogs are playing.", return_tensors="pt")
    >>> tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    ['Zwei Hunde spielen.']
    >>> labels = tokenizer(text_target="Zwei Hunde spielen.", return_tensors="pt")["input_ids"]
    >>> outputs = model.eval()(**batch, labels=labels)
    >>> outputs.logits.shape, outputs.loss.shape
    (torch.Size([1, 5, 10000]), torch.Size([]))
    ```
    """

    _tp_plan: Any = {"lm_head": "colwise_gather_output"}
    _pp_plan: Any = {"lm_head": (["hidden_states"], ["logits"])}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self._tied_weights_keys = tied_output(config)
        self.post_init()

    @can_return_tuple
    def forward(  # type: ignore[misc]  # transformers reads from this type that attentions can be returned
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
        row_loss: Callable[..., torch.Tensor] | None = None,
        token_type_ids: torch.Tensor | None = None,
        global_attention_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        input_features: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """
        Source ids (B, S) and target ids (B, T) to logits (B, T, V), and the loss if labels (B, T) are given.

        Labels without target ids are shifted right here. The loss is smoothed in training; in evaluation it is the
        plain cross-entropy, whose exponential is the perplexity.

        With `return_logits=False`, training with labels does not return them: the loss does not need all of them at
        once, and they are by far the largest tensor. `row_loss` replaces the smoothed loss in training; then there may
        be K times as many states as labels, of K passes over the same sentences.
        """
        cache = given_cache(self, cache, past_key_values, kwargs)
        weight = None
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
                if decoder_attention_mask is None and self.config.norm_type == "batch_norm":
                    # The norms have statistics of tokens: 1 up to the last label of each sentence, and 0 behind it.
                    decoder_attention_mask = (labels != -100).long().flip(1).cummax(dim=1).values.flip(1)
            if self.training and not return_logits and not torch.compiler.is_compiling():
                parts, head = part("layers.loss", "return_logits=False"), self.lm_head
                weight = parts.weight_of_loss(head)
                input_ids, inputs_embeds = parts.tied_rows(head, self.model.encoder, input_ids, inputs_embeds)
                decoder_input_ids, decoder_inputs_embeds = parts.tied_rows(
                    head, self.model.decoder, decoder_input_ids, decoder_inputs_embeds
                )
        outputs: Seq2SeqModelOutput = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            position_ids=position_ids,
            decoder_position_ids=decoder_position_ids,
            use_cache=use_cache,
            token_type_ids=token_type_ids,
            global_attention_mask=global_attention_mask,
            cache=cache,
            input_features=input_features,
            pixel_values=pixel_values,
            **kwargs,
        )
        loss, logits = self.predict(
            outputs[0],
            labels,
            num_items_in_batch=num_items_in_batch,
            return_logits=return_logits,
            logits_to_keep=logits_to_keep,
            row_loss=row_loss,
            weight=weight,
        )
        others = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **others)
