"""
The Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv 1706.03762), encoder and decoder.

Read it from top to bottom: positions, attention, feed-forward, residual step, layers, stacks, model, language-model
head. What is not in the paper is mixed in: from `layers/` what transformers requires of every model, masks and shared
weights, from `search/` greedy and beam search. A choice is a table: a variant is one row of it, named by one field of
the config and chosen when the model is built. Kinds of positions and attention extend the classes of this file.

Shapes: B sentences, S source positions, T target positions, D = d_model (encoder_d_model in the encoder), H heads,
V vocabulary.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import TransformersKwargs, can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .config.checks import check_stacks
from .config.kept_heads import heads_of_layers
from .config.sharing import FEED_FORWARD_OWNERS
from .config.stacks import StackSizes, decoder_sizes, encoder_sizes
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .front_ends.base import add_embeddings, take_sources
from .layers.attention_projections import AttentionProjections, SourceAttention
from .layers.base_model import SharedEmbeddings, missing_target, tied_output
from .layers.conditional_generation import ConditionalGeneration
from .layers.dropout import Dropout, drop_out
from .layers.examples import add_examples
from .layers.norms import NORMS
from .layers.outputs import encoder_output, model_output
from .layers.parallel_plans import DecoderPlans, EncoderPlans, HeadPlans, TiedPlans
from .layers.pooling import memory_padding, stages
from .layers.position_hooks import ApplyRotary, PositionBias, PositionEncoding, no_rotary
from .layers.pretrained_model import VanillaTransformerPreTrainedModel, forwards
from .layers.projections import apply_projection
from .layers.segments import segments
from .layers.shared_feed_forward import FeedForwardProjections, SharedFeedForward, gated_feed_forward
from .layers.stack_inputs import StackInputs
from .releases import given_cache, named
from .search.generate import VanillaTransformerGenerationMixin


# Positions -----------------------------------------------------------------------------------------------------------
class SinusoidalPositionEncoding(PositionEncoding, scheme="sinusoidal"):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)), section 3.5.

    Computed in forward, always in float32: a table would limit the length, a buffer would be rounded with the model's
    dtype and come back uninitialised from `from_pretrained`.
    """

    def exponents(self, width: int, device: torch.device) -> torch.Tensor:
        return torch.arange(0, width, 2, device=device, dtype=torch.float32) / width  # 2i/D

    def arrange(self, angles: torch.Tensor) -> torch.Tensor:
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return embeddings + self.encode(position_ids + self.offset, embeddings.shape[-1]).to(embeddings.dtype)

    def encode(self, position_ids: torch.Tensor, width: int) -> torch.Tensor:
        """Positions of any shape to their sinusoids (..., D), of an odd D to one more, in float32."""
        frequencies = torch.pow(10000.0, -self.exponents(width, position_ids.device))  # (D/2,)
        return self.arrange(position_ids.float().unsqueeze(-1) * frequencies)


# Attention -----------------------------------------------------------------------------------------------------------
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


class VanillaTransformerAttention(AttentionProjections, kind="full"):
    """
    Concat(head_1 … head_H) W^O with head_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √d_k) V W_i^V, section 3.2.2:
    self-attention. `AttentionProjections` has the W and the mask.
    """

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_bias: PositionBias | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries, keys and values of the heads to outputs (B, T, D) and weights (B, H, T, S)."""
        kernel = self.kernel(eager_attention_forward, position_bias)
        output, weights = kernel(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return apply_projection(self.owner.out_proj, output.flatten(-2)), weights

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        layer_idx: int = 0,
        apply_rotary: ApplyRotary = no_rotary,
        position_bias: PositionBias | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        States (B, T, D) to (B, T, D) and weights (B, H, T, S), of the S positions of the past and these.

        `apply_rotary` rotates queries and keys (B, H, T, d_k) by their positions; `position_bias` is what else the
        position scheme does in this layer's attention. `layer_idx` is the layer's place in the cache: of one that runs
        several times, each time has its own.
        """
        query, key, value = self.project(hidden_states, self.roles)
        query, key = apply_rotary(query), apply_rotary(key)
        if position_bias is not None:
            key = position_bias.kept_keys(key, hidden_states)
        if cache is not None:
            key, value = cache.update(key, value, layer_idx)
        return self.attend(query, key, value, attention_mask, position_bias, **kwargs)


class VanillaTransformerCrossAttention(SourceAttention, VanillaTransformerAttention, cross="full"):
    """Queries from the decoder; keys and values from the encoder, the same at every step."""

    def forward(  # type: ignore[override]  # keys and values come from other states than the queries
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        layer_idx: int = 0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Decoder states (B, T, D) and the encoder's output (B, S, D) to (B, T, D) and weights (B, H, T, S)."""
        (query,) = self.project(hidden_states, self.roles[:1])
        key, value = self.keys_values(key_value_states, cache, layer_idx, attention_mask)
        return self.attend(query, key, value, attention_mask, **kwargs)


def attention_class(config: VanillaTransformerConfig, part: str, place: int) -> type[Any]:
    """The class of a layer's attention: in `part` "encoder" or "decoder", or from one to the other ("cross")."""
    from .attention.types import attention_of  # others extend the classes above, so they come later

    return attention_of(config, part, place)


# Feed-forward --------------------------------------------------------------------------------------------------------
def dense_feed_forward(projections: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """activation(x W₁ + b₁) W₂ + b₂, section 3.3: states (B, T, D) to (B, T, D)."""
    wide = projections.activation_fn(apply_projection(projections.fc1, hidden_states))  # (B, T, d_ff)
    wide = drop_out(wide, projections.activation_dropout, projections.training)
    return apply_projection(projections.fc2, wide)


FEED_FORWARDS = {"dense": dense_feed_forward, "gated": gated_feed_forward}


# Residual step: the only place where norm, dropout and residual meet -------------------------------------------------
Sublayer = Callable[[torch.Tensor], torch.Tensor]  # (B, T, D) to (B, T, D)


def post_norm(
    hidden_states: torch.Tensor, sublayer: Sublayer, norm: nn.Module, dropout: nn.Module, alpha: float
) -> torch.Tensor:
    """LayerNorm(αx + Dropout(Sublayer(x))), sections 3.1 and 5.4, where α = 1."""
    return norm(torch.add(dropout(sublayer(hidden_states)), hidden_states, alpha=alpha))


def pre_norm(
    hidden_states: torch.Tensor, sublayer: Sublayer, norm: nn.Module, dropout: nn.Module, alpha: float
) -> torch.Tensor:
    """αx + Dropout(Sublayer(LayerNorm(x))), as in tensor2tensor; Xiong et al. 2020, arXiv 2002.04745."""
    return torch.add(dropout(sublayer(norm(hidden_states))), hidden_states, alpha=alpha)


RESIDUALS = {"post": post_norm, "pre": pre_norm}


def no_step(hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return x unchanged, in a layer without that sublayer."""
    return hidden_states


# Layers --------------------------------------------------------------------------------------------------------------
class VanillaTransformerLayer(GradientCheckpointingLayer, FeedForwardProjections):
    """
    The base of both kinds of layer: self-attention, feed-forward, and a residual step around each.

    Args:
        place: Which set of weights of its stack it is, from 0.
        shared_from: The module that owns the feed-forward's projections if the layer does not.
    """

    def __init__(
        self, config: VanillaTransformerConfig, stack: StackSizes, place: int, shared_from: SharedFeedForward | None
    ):
        super().__init__()
        norm = partial(NORMS[config.norm_type], stack.width, config.layer_norm_eps)
        self.residual = RESIDUALS[stack.norm_position]
        self.feed_forward_residual = self.residual if stack.has_feed_forward else no_step
        self.alpha = stack.residual_alpha
        self.dropout = Dropout(config.dropout)
        self.self_attn = attention_class(config, stack.name, place)(
            config,
            width=stack.width,
            key_value_width=stack.width,
            num_heads=stack.heads,
            is_causal=stack.is_causal,
            kept_heads=stack.kept_heads[place],
        )
        self.self_attn_layer_norm = norm()
        self.feed_forward = FEED_FORWARDS[config.feed_forward_type]
        self.share_projections_of(shared_from)
        if stack.has_feed_forward and shared_from is None:
            self.add_feed_forward(config, stack)
        self.final_layer_norm = norm() if stack.has_feed_forward else nn.Identity()

    def attend_step(
        self, hidden_states: torch.Tensor, attention: nn.Module, norm: nn.Module, **arguments: Any
    ) -> torch.Tensor:
        """The residual step around an attention, which is called with these arguments: (B, T, D) to (B, T, D)."""

        def attend(states: torch.Tensor) -> torch.Tensor:
            return attention(states, **arguments)[0]  # without the weights

        return self.residual(hidden_states, attend, norm=norm, dropout=self.dropout, alpha=self.alpha)

    def feed_forward_step(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The residual step around the feed-forward: (B, T, D) to (B, T, D)."""
        feed_forward = partial(self.feed_forward, self.owner)
        norm = self.final_layer_norm
        return self.feed_forward_residual(
            hidden_states, feed_forward, norm=norm, dropout=self.dropout, alpha=self.alpha
        )


class VanillaTransformerEncoderLayer(VanillaTransformerLayer):
    """Self-attention and feed-forward, section 3.1."""

    def __init__(self, config: VanillaTransformerConfig, place: int = 0, shared_from: SharedFeedForward | None = None):
        super().__init__(config, encoder_sizes(config), place=place, shared_from=shared_from)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, *memory: Any, **kwargs: Any
    ) -> torch.Tensor:
        """States (B, S, D), where an encoder pools also those before it, to (B, S, D); `kwargs` are attention's."""
        if memory:  # not by keyword: gradient checkpointing follows arguments by position only
            kwargs["memory"] = memory[0]
        hidden_states = self.attend_step(
            hidden_states, self.self_attn, norm=self.self_attn_layer_norm, attention_mask=attention_mask, **kwargs
        )
        return self.feed_forward_step(hidden_states)


class VanillaTransformerDecoderLayer(VanillaTransformerLayer):
    """Masked self-attention, attention over the encoder's output, and feed-forward, section 3.1."""

    def __init__(self, config: VanillaTransformerConfig, place: int = 0, shared_from: SharedFeedForward | None = None):
        stack = decoder_sizes(config)
        super().__init__(config, stack, place=place, shared_from=shared_from)
        self.encoder_attn = attention_class(config, "cross", place)(
            config,
            width=stack.width,
            key_value_width=encoder_sizes(config).width,
            num_heads=stack.heads,
            shared_from=self.self_attn if config.decoder_attention_sharing else None,
            kept_heads=heads_of_layers(config, "cross")[place],
        )
        self.encoder_attn_layer_norm = NORMS[config.norm_type](stack.width, config.layer_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        cache: EncoderDecoderCache | None = None,
        layer_idx: int = 0,
        apply_rotary: ApplyRotary = no_rotary,
        position_bias: PositionBias | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Hidden states (B, T, D) and the encoder's output (B, S, D) to (B, T, D)."""
        hidden_states = self.attend_step(
            hidden_states,
            self.self_attn,
            norm=self.self_attn_layer_norm,
            attention_mask=attention_mask,
            cache=cache.self_attention_cache if cache is not None else None,
            layer_idx=layer_idx,
            apply_rotary=apply_rotary,
            position_bias=position_bias,
            **kwargs,
        )
        hidden_states = self.attend_step(
            hidden_states,
            self.encoder_attn,
            norm=self.encoder_attn_layer_norm,
            key_value_states=encoder_hidden_states,
            attention_mask=encoder_attention_mask,
            cache=cache,
            layer_idx=layer_idx,
            **kwargs,
        )
        return self.feed_forward_step(hidden_states)

    @property
    def attentions(self) -> tuple[VanillaTransformerAttention, ...]:
        """The attentions that a step of the search computes by itself."""
        return self.self_attn, self.encoder_attn


# Stacks --------------------------------------------------------------------------------------------------------------
class VanillaTransformerStack(StackInputs, VanillaTransformerPreTrainedModel):
    """
    Embeddings times √D, positions, dropout, N layers, and a final norm where the config has one.

    Args:
        layer: The class of its layers.
        shared_from: The feed-forward that the layers share, if another stack owns it.
    """

    def __init__(
        self,
        config: VanillaTransformerConfig,
        stack: StackSizes,
        layer: Callable[..., nn.Module],
        shared_from: SharedFeedForward | None = None,
    ):
        from .positions.types import POSITION_ENCODINGS  # others than sinusoids extend these, so they come later

        super().__init__(config)
        feed_forward = SharedFeedForward.of_stack(config, stack) if shared_from is None else None
        norm = partial(NORMS[config.norm_type], stack.width, config.layer_norm_eps)
        # Layers that share their weights are one module.
        places = range(max(stack.layer_order) + 1)
        layers = [layer(config, place=place, shared_from=shared_from or feed_forward) for place in places]
        embed_positions = POSITION_ENCODINGS[stack.position_encoding].of(
            config, width=stack.width, heads=stack.heads, longest=stack.longest, is_causal=stack.is_causal
        )
        self.embed_scale = math.sqrt(stack.width) if config.scale_embedding else 1.0
        add_embeddings(self, config, stack)
        self.embed_segments = segments(stack.segments, stack.width)
        self.embed_positions = embed_positions
        self.layernorm_embedding = norm() if config.layernorm_embedding else nn.Identity()
        self.dropout = Dropout(config.dropout)
        if feed_forward is not None:
            self.feed_forward = feed_forward
        self.layers, self.layer_order = nn.ModuleList(layers), stack.layer_order
        self.layer_norm = norm() if stack.final_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    def embed(
        self, embeddings: torch.Tensor, position_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """
        Embeddings (B, T, D), positions (B or 1, T) and segments (B, T) to the input of the first layer (B, T, D),
        section 3.4.
        """
        hidden_states = self.embed_segments(embeddings * self.embed_scale, token_type_ids)
        hidden_states = self.embed_positions(hidden_states, position_ids)
        return self.dropout(self.layernorm_embedding(hidden_states))


class VanillaTransformerEncoder(EncoderPlans, VanillaTransformerStack):
    """Source ids to memory, section 3.1."""

    reads_source = True
    _can_record_outputs = {"hidden_states": VanillaTransformerEncoderLayer, "attentions": VanillaTransformerAttention}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, encoder_sizes(config), layer=VanillaTransformerEncoderLayer)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        global_attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """
        Source ids (B, S), or embeddings (B, S, D), their segments, and which of them are global (B, S; 1 or 0, with
        `encoder_attention_type="window_global"`) to the encoder's output (B, S, D), which `encoder_pooling` shortens.
        """
        embeddings, attention_mask = self.read_source(input_ids, attention_mask, inputs_embeds, take_sources(kwargs))
        position_ids = self.positions_of(embeddings, attention_mask, position_ids)
        attention = self.prepare_attention(
            embeddings, attention_mask, position_ids=position_ids, global_attention_mask=global_attention_mask
        )
        hidden_states = self.embed(embeddings, position_ids, token_type_ids)
        # A stage calls its layer as it is or, where the encoder pools, for pairs of neighbours.
        runs = stages(self.layers_in_order, attention.mask, attention_mask)
        for run, position_bias in zip(runs, attention.layer_biases):
            inputs = {"apply_rotary": attention.apply_rotary, "position_bias": position_bias}
            hidden_states = run(hidden_states, **inputs, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class VanillaTransformerDecoder(DecoderPlans, VanillaTransformerStack):
    """
    Target ids so far, and the memory, to the states that predict the next ids, section 3.1.

    Args:
        shared_from: The feed-forward of another stack for all its layers.
    """

    _can_record_outputs = {
        "hidden_states": VanillaTransformerDecoderLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerCrossAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig, shared_from: SharedFeedForward | None = None):
        stack = decoder_sizes(config)
        super().__init__(config, stack, layer=VanillaTransformerDecoderLayer, shared_from=shared_from)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """
        Target ids (B, T), or embeddings (B, T, D), and the encoder's output (B, S, D) to states (B, T, D).
        `encoder_attention_mask` is that of the source, also where the encoder pools.
        """
        cache = given_cache(self, cache, past_key_values, kwargs)
        embeddings = self.look_up_tokens(input_ids, inputs_embeds)
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        past = None if cache is None else cache.self_attention_cache
        position_ids = self.positions_of(embeddings, attention_mask, position_ids, cache=past)
        attention = self.prepare_attention(embeddings, attention_mask, position_ids=position_ids, cache=past)
        padding = memory_padding(self.config, encoder_attention_mask)
        memory_mask = self.layers_in_order[0].encoder_attn.mask(embeddings, padding, memory=encoder_hidden_states)
        hidden_states = self.embed(embeddings, position_ids)
        for layer_idx, (layer, position_bias) in enumerate(zip(self.layers_in_order, attention.layer_biases)):
            hidden_states = layer(
                hidden_states,
                attention.mask,
                encoder_hidden_states,
                memory_mask,
                cache=cache,
                layer_idx=layer_idx,
                apply_rotary=attention.apply_rotary,
                position_bias=position_bias,
                **kwargs,
            )
        hidden_states = self.layer_norm(hidden_states)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **named(cache))


# Model ---------------------------------------------------------------------------------------------------------------
class VanillaTransformerModel(TiedPlans, SharedEmbeddings, VanillaTransformerPreTrainedModel):
    """
    Encoder and decoder, without the map to the vocabulary: source ids (B, S), target ids (B, T) to states (B, T, D).

    Raises:
        ValueError: The config describes one stack alone.
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
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """
        Source ids (B, S) and target ids (B, T), or embeddings of the same shape by D, to hidden states (B, T, D).

        Raises:
            ValueError: Neither target ids nor target embeddings are given; they are not derived from the source.
        """
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
                **(take_sources(kwargs) | kwargs),
            )
        encoder_outputs = encoder_output(encoder_outputs)
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs.last_hidden_state,
            attention_mask,
            cache=given_cache(self, cache, past_key_values, kwargs),
            inputs_embeds=decoder_inputs_embeds,
            position_ids=decoder_position_ids,
            use_cache=use_cache,
            **kwargs,
        )
        return model_output(encoder_outputs, decoder_outputs)


# Head ----------------------------------------------------------------------------------------------------------------
class VanillaTransformerForConditionalGeneration(
    VanillaTransformerGenerationMixin, HeadPlans, ConditionalGeneration, VanillaTransformerPreTrainedModel
):
    """
    Encoder, decoder and the map to the vocabulary: logits = Y Eᵀ (+ b), section 3.4.

    `ConditionalGeneration.forward` takes source ids (B, S) and target ids or labels (B, T) and returns logits
    (B, T, V), and with labels the loss in nats per token. `generate()` translates, by greedy or beam search.

    Raises:
        ValueError: The config describes one stack alone.
    """

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self._tied_weights_keys = tied_output(config)
        self.post_init()

    # The modules whose `forward` the search replaces; it does not run for subclasses that override one of them.
    _step_forwards = forwards(VanillaTransformerModel, VanillaTransformerDecoder, VanillaTransformerDecoderLayer)


add_examples(VanillaTransformerModel, VanillaTransformerForConditionalGeneration)

__all__ = [
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
