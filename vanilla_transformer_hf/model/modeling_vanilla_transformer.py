"""
The Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv 1706.03762), encoder and decoder.

Read it from top to bottom: residual step, layers, stacks, model, language-model head. Positions, attention, norms,
feed-forward, dropout and the loss have files of their own in this folder; what transformers asks of every model is in
`pretrained_model.py` and `parallel_plans.py`. A choice is a table: a variant is one row of it, named by one field of
the config and chosen when the model is built.

Shapes: B sentences, S source positions, T target positions, D = d_model (encoder_d_model in the encoder), H heads,
V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention.full import VanillaTransformerAttention, VanillaTransformerCrossAttention
from .attention.linformer import CROSS_ATTENTION_TYPES
from .attention.pooling import encoder_attention, memory_padding, stages
from .attention.types import ATTENTION_TYPES
from .config.checks import check_stacks
from .config.kept_heads import heads_of_layers
from .config.sharing import FEED_FORWARD_OWNERS, layer_order
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .layers.base_model import (
    SharedEmbeddings,
    ShiftedLabels,
    StackEmbeddings,
    missing_target,
    tied_output,
)
from .layers.dropout import Dropout
from .layers.feed_forward import FEED_FORWARDS, FeedForwardProjections, SharedFeedForward
from .layers.loss import RowLoss
from .layers.norms import NORMS
from .layers.segments import segments
from .layers.shared_projections import is_plain
from .parallel_plans import (
    DECODER_PP_PLAN,
    DECODER_TP_PLAN,
    ENCODER_PP_PLAN,
    ENCODER_TP_PLAN,
    fit_tensor_parallel_plan,
)
from .positions.absolute import POSITION_ENCODINGS, PositionEncoding, positions
from .positions.base import ApplyRotary, PositionBias, look_up, no_rotary
from .pretrained_model import VanillaTransformerPreTrainedModel, forwards
from .search.generate import VanillaTransformerGenerationMixin


# ---------------------------------------------------------------------------------------------------------------------
# Residual step: the only place where norm, dropout and residual meet
# ---------------------------------------------------------------------------------------------------------------------


def post_norm(
    hidden_states: torch.Tensor, sublayer: Callable, norm: nn.Module, dropout: nn.Module, alpha: float
) -> torch.Tensor:
    """LayerNorm(αx + Dropout(Sublayer(x))), sections 3.1 and 5.4, where α = 1."""
    return norm(torch.add(dropout(sublayer(hidden_states)), hidden_states, alpha=alpha))


def pre_norm(
    hidden_states: torch.Tensor, sublayer: Callable, norm: nn.Module, dropout: nn.Module, alpha: float
) -> torch.Tensor:
    """αx + Dropout(Sublayer(LayerNorm(x))), as in tensor2tensor; Xiong et al. 2020, arXiv 2002.04745."""
    return torch.add(dropout(sublayer(norm(hidden_states))), hidden_states, alpha=alpha)


RESIDUALS = {"post": post_norm, "pre": pre_norm}


def no_step(hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return x unchanged, in a layer without that sublayer."""
    return hidden_states


# ---------------------------------------------------------------------------------------------------------------------
# Layers
# ---------------------------------------------------------------------------------------------------------------------


class VanillaTransformerLayer(GradientCheckpointingLayer, FeedForwardProjections):
    """
    The base of both kinds of layer: self-attention, feed-forward, and a residual step around each.

    Args:
        shared_from: The module that owns the feed-forward's projections if the layer does not.
        has_feed_forward: Whether the layer has a feed-forward.
    """

    def __init__(
        self,
        config: VanillaTransformerConfig,
        width: int,
        self_attn: VanillaTransformerAttention,
        ffn_dim: int,
        activation_function: str,
        norm_position: str,
        alpha: float,
        shared_from: SharedFeedForward | None,
        has_feed_forward: bool,
    ):
        super().__init__()
        norm = NORMS[config.norm_type]
        self.residual = RESIDUALS[norm_position]
        self.feed_forward_residual = self.residual if has_feed_forward else no_step
        self.alpha = alpha
        self.dropout = Dropout(config.dropout)
        self.self_attn = self_attn
        self.self_attn_layer_norm = norm(width, config.layer_norm_eps)
        self.feed_forward = FEED_FORWARDS[config.feed_forward_type].function
        self.share_projections_of(shared_from)
        if has_feed_forward and shared_from is None:
            self.add_feed_forward(config, width, ffn_dim, activation_function)
        self.final_layer_norm = norm(width, config.layer_norm_eps) if has_feed_forward else nn.Identity()


class VanillaTransformerEncoderLayer(VanillaTransformerLayer):
    """
    Self-attention and feed-forward, section 3.1.

    Args:
        shared_from: What has the feed-forward's projections, if not the layer.
        place: Which set of weights of its stack it is, from 0.
    """

    def __init__(self, config: VanillaTransformerConfig, shared_from: SharedFeedForward | None = None, place: int = 0):
        width: Any = config.encoder_d_model
        kept = heads_of_layers(config, "encoder")[place]
        heads = config.encoder_attention_heads
        self_attn = encoder_attention(config, place)(config, width, width, heads, kept_heads=kept)
        super().__init__(
            config,
            width=width,
            self_attn=self_attn,
            ffn_dim=config.encoder_ffn_dim,
            activation_function=config.activation_function,
            norm_position=config.encoder_norm_position,
            alpha=config.encoder_residual_alpha,
            shared_from=shared_from,
            has_feed_forward=True,
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *memory: torch.Tensor,
        apply_rotary: ApplyRotary = no_rotary,
        position_bias: PositionBias | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Hidden states (B, S, D) to (B, S, D). A layer that pools takes those before pooling as `memory`."""

        def attend(states: torch.Tensor) -> torch.Tensor:
            return self.self_attn(
                states, attention_mask, *memory, apply_rotary=apply_rotary, position_bias=position_bias, **kwargs
            )[0]

        residual = partial(self.residual, dropout=self.dropout, alpha=self.alpha)
        hidden_states = residual(hidden_states, attend, norm=self.self_attn_layer_norm)
        return residual(hidden_states, partial(self.feed_forward, self.projections), norm=self.final_layer_norm)


class VanillaTransformerDecoderLayer(VanillaTransformerLayer):
    """
    Masked self-attention, attention over the encoder's output, and feed-forward, section 3.1.

    Args:
        shared_from: What has the feed-forward's projections, if not the layer.
        place: Which set of weights of its stack it is, from 0.
    """

    def __init__(self, config: VanillaTransformerConfig, shared_from: SharedFeedForward | None = None, place: int = 0):
        width, heads = config.d_model, config.decoder_attention_heads
        own, cross = (heads_of_layers(config, attention)[place] for attention in ("decoder", "cross"))
        kind = ATTENTION_TYPES[config.decoder_attention_type]
        self_attn = kind(config, width, width, heads, is_causal=True, kept_heads=own)
        super().__init__(
            config,
            width=width,
            self_attn=self_attn,
            ffn_dim=config.decoder_ffn_dim,
            activation_function=str(config.decoder_activation_function),
            norm_position=config.decoder_norm_position,
            alpha=config.decoder_residual_alpha,
            shared_from=shared_from,
            has_feed_forward=FEED_FORWARD_OWNERS[config.feed_forward_sharing].decoder != "nobody",
        )
        memory_width: Any = config.encoder_d_model
        # Self-attention and cross-attention share their projections.
        shared = self_attn if config.decoder_attention_sharing else None
        self.encoder_attn = CROSS_ATTENTION_TYPES[config.cross_attention_type](
            config, width, memory_width, heads, shared_from=shared, kept_heads=cross
        )
        self.encoder_attn_layer_norm = NORMS[config.norm_type](width, config.layer_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        past_key_values: EncoderDecoderCache | None = None,
        layer_idx: int = 0,
        apply_rotary: ApplyRotary = no_rotary,
        position_bias: PositionBias | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Hidden states (B, T, D) and the encoder's output (B, S, D) to (B, T, D)."""
        past = past_key_values.self_attention_cache if past_key_values is not None else None

        def attend_to_target(states: torch.Tensor) -> torch.Tensor:
            return self.self_attn(
                states,
                attention_mask,
                past,
                layer_idx=layer_idx,
                apply_rotary=apply_rotary,
                position_bias=position_bias,
                **kwargs,
            )[0]

        def attend_to_source(states: torch.Tensor) -> torch.Tensor:
            return self.encoder_attn(
                states, encoder_hidden_states, encoder_attention_mask, past_key_values, layer_idx=layer_idx, **kwargs
            )[0]

        return self.run(hidden_states, attend_to_target, attend_to_source, self.projections)

    @property
    def attentions(self) -> tuple[VanillaTransformerAttention, ...]:
        """The attentions that a step of the search computes by itself."""
        return self.self_attn, self.encoder_attn

    def run(
        self,
        hidden_states: torch.Tensor,
        attend_to_target: Callable[[torch.Tensor], torch.Tensor],
        attend_to_source: Callable[[torch.Tensor], torch.Tensor],
        projections: Any,
    ) -> torch.Tensor:
        """
        The layer, in `forward` and in the steps of a search: hidden states (B, T, D) to (B, T, D).

        Args:
            attend_to_target, attend_to_source: The two attentions, (B, T, D) to (B, T, D).
            projections: The object with the feed-forward's projections and dropout: the layer, or the packed ones of a
                step.
        """
        residual = partial(self.residual, dropout=projections.dropout, alpha=self.alpha)
        hidden_states = residual(hidden_states, attend_to_target, norm=self.self_attn_layer_norm)
        hidden_states = residual(hidden_states, attend_to_source, norm=self.encoder_attn_layer_norm)
        residual = partial(self.feed_forward_residual, dropout=projections.dropout, alpha=self.alpha)
        return residual(hidden_states, partial(self.feed_forward, projections), norm=self.final_layer_norm)


# ---------------------------------------------------------------------------------------------------------------------
# Stacks
# ---------------------------------------------------------------------------------------------------------------------


class VanillaTransformerStack(StackEmbeddings, VanillaTransformerPreTrainedModel):
    """
    Embeddings times √D, positions, dropout, N layers, and a final norm where the config asks for one.

    Args:
        layers: Layers with weights of their own.
        layer_order: For each of the N layers, its index in `layers`.
        feed_forward: The feed-forward that the layers share, if this stack owns it.
    """

    # The embeddings stay with the whole model: tied matrices must be in one FSDP group.
    _fsdp_plan = {"layers.*": "free_full_weight"}

    def __init__(
        self,
        config: VanillaTransformerConfig,
        vocab_size: int,
        width: int,
        embed_positions: PositionEncoding,
        layers: Sequence[nn.Module],
        layer_order: list[int],
        feed_forward: nn.Module | None,
        final_norm: bool,
        type_vocab_size: int = 0,
    ):
        super().__init__(config)
        norm = NORMS[config.norm_type]
        self.embed_scale = math.sqrt(width) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(vocab_size, width)
        self.embed_segments = segments(type_vocab_size, width)
        self.embed_positions = embed_positions
        self.layernorm_embedding = norm(width, config.layer_norm_eps) if config.layernorm_embedding else nn.Identity()
        self.dropout = Dropout(config.dropout)
        if feed_forward is not None:
            self.feed_forward = feed_forward
        self.layers, self.layer_order = nn.ModuleList(layers), layer_order
        self.layer_norm = norm(width, config.layer_norm_eps) if final_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()
        fit_tensor_parallel_plan(self)

    @property
    def longest(self) -> int | None:
        """The largest number of positions, of the position scheme and of self-attention; None without a limit."""
        limits: list[int | None] = [part.longest for part in (self.embed_positions, self.layers_in_order[0].self_attn)]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def layers_in_order(self) -> list[Any]:
        """The N layers in order; a layer that occurs several times runs several times."""
        return [self.layers[number] for number in self.layer_order]

    def look_up_tokens(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Token ids (B, T) to embeddings (B, T, D), unscaled, unless these are given."""
        if input_ids is None and inputs_embeds is not None:
            return inputs_embeds
        if input_ids is None or inputs_embeds is not None:
            raise ValueError(f"{type(self).__name__}: give either token ids or embeddings, exactly one of them")
        # The embedding is called as a module, so that hooks of adapters, quantizers and offloading run.
        try:
            return self.embed_tokens(input_ids)
        except IndexError:
            return look_up(self.embed_tokens.weight, input_ids, "token id")

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

    def prepare_decoder_inputs(
        self,
        embeddings: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: Cache | None,
    ) -> tuple[torch.Tensor, Any, ApplyRotary, Iterable[PositionBias | None]]:
        """
        Prepare a decoder's layers: from embeddings (B, T, D) and positions (B or 1, T), which are derived if not
        given, the input of the first layer (B, T, D), the causal mask of self-attention, and the position scheme's
        part in it.
        """
        if position_ids is None:
            position_ids = positions(embeddings, attention_mask, 0 if cache is None else cache.get_seq_length())
        scheme = self.embed_positions
        own = self.layers_in_order[0].self_attn
        mask = own.mask(embeddings, attention_mask, cache=cache, is_needed=scheme.is_relative)
        mask, layer_biases = scheme.prepare_attention(
            mask, position_ids, padding=attention_mask, cache=cache, dtype=embeddings.dtype
        )
        return self.embed(embeddings, position_ids), mask, scheme.rotary_at(position_ids), layer_biases


class VanillaTransformerEncoder(VanillaTransformerStack):
    """Source ids to memory, section 3.1."""

    reads_source = True
    _can_record_outputs = {
        "hidden_states": VanillaTransformerEncoderLayer,
        "attentions": VanillaTransformerAttention,
    }
    _tp_plan, _pp_plan = ENCODER_TP_PLAN, ENCODER_PP_PLAN

    def __init__(self, config: VanillaTransformerConfig):
        feed_forward, order = SharedFeedForward.of_encoder(config), layer_order(config, "encoder")
        layers = [
            VanillaTransformerEncoderLayer(config, shared_from=feed_forward, place=place)
            for place in sorted(set(order))
        ]
        width: Any = config.encoder_d_model
        scheme = POSITION_ENCODINGS[config.position_encoding]
        super().__init__(
            config,
            vocab_size=config.source_vocab_size or config.vocab_size,
            width=width,
            embed_positions=scheme.of(
                config,
                width,
                heads=config.encoder_attention_heads,
                longest=config.max_position_embeddings,
                is_causal=False,
            ),
            layers=layers,
            layer_order=order,
            feed_forward=feed_forward,
            final_norm=bool(config.encoder_final_norm),
            type_vocab_size=config.type_vocab_size,
        )

    @property
    def longest(self) -> int | None:
        """The same, and of the decoder's attention to the source."""
        own, cross = super().longest, self.config.max_position_embeddings
        if not self.config.is_encoder_decoder or self.config.cross_attention_type == "full":
            return own
        return cross if own is None else min(own, cross)

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
        embeddings = self.look_up_tokens(input_ids, inputs_embeds)
        if position_ids is None:
            position_ids = positions(embeddings, attention_mask, past_length=0)
        scheme = self.embed_positions
        own = self.layers_in_order[0].self_attn
        mask = own.mask(embeddings, attention_mask, cache=None, is_needed=scheme.is_relative)
        mask = own.global_mask(mask, embeddings, attention_mask, global_attention_mask)
        mask, layer_biases = scheme.prepare_attention(
            mask, position_ids, padding=None, cache=None, dtype=embeddings.dtype
        )
        apply_rotary = scheme.rotary_at(position_ids)
        hidden_states = self.embed(embeddings, position_ids, token_type_ids)
        for run, layer, position_bias in zip(stages(own, mask, attention_mask), self.layers_in_order, layer_biases):
            hidden_states = run(layer, hidden_states, apply_rotary=apply_rotary, position_bias=position_bias, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class VanillaTransformerDecoder(VanillaTransformerStack):
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
    _tp_plan, _pp_plan = DECODER_TP_PLAN, DECODER_PP_PLAN

    def __init__(self, config: VanillaTransformerConfig, shared_from: SharedFeedForward | None = None):
        feed_forward = SharedFeedForward.of_decoder(config) if shared_from is None else None
        order = layer_order(config, "decoder")
        layers = [
            VanillaTransformerDecoderLayer(config, shared_from=shared_from or feed_forward, place=place)
            for place in sorted(set(order))
        ]
        longest: Any = config.decoder_max_position_embeddings
        scheme = POSITION_ENCODINGS[str(config.decoder_position_encoding)]
        super().__init__(
            config,
            vocab_size=config.vocab_size,
            width=config.d_model,
            embed_positions=scheme.of(
                config, config.d_model, heads=config.decoder_attention_heads, longest=longest, is_causal=True
            ),
            layers=layers,
            layer_order=order,
            feed_forward=feed_forward,
            final_norm=bool(config.decoder_final_norm),
        )

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
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """
        Target ids (B, T), or embeddings (B, T, D), and the encoder's output (B, S, D) to states (B, T, D).
        `encoder_attention_mask` is that of the source, also where the encoder pools.
        """
        embeddings = self.look_up_tokens(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        cache = past_key_values.self_attention_cache if past_key_values is not None else None
        hidden_states, attention_mask, apply_rotary, layer_biases = self.prepare_decoder_inputs(
            embeddings, attention_mask, position_ids, cache
        )
        encoder_attention_mask = self.layers_in_order[0].encoder_attn.mask(
            embeddings, memory_padding(self.config, encoder_attention_mask), encoder_hidden_states
        )
        for layer_idx, (layer, position_bias) in enumerate(zip(self.layers_in_order, layer_biases)):
            hidden_states = layer(
                hidden_states,
                attention_mask,
                encoder_hidden_states,
                encoder_attention_mask,
                past_key_values=past_key_values,
                layer_idx=layer_idx,
                apply_rotary=apply_rotary,
                position_bias=position_bias,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), past_key_values=past_key_values
        )


# ---------------------------------------------------------------------------------------------------------------------
# Model
# ---------------------------------------------------------------------------------------------------------------------


class VanillaTransformerModel(SharedEmbeddings, VanillaTransformerPreTrainedModel):
    """
    Encoder and decoder, without the map to the vocabulary: source ids (B, S), target ids (B, T) to states (B, T, D).

    Raises:
        ValueError: The config describes one stack alone.

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
        is_lent = FEED_FORWARD_OWNERS[config.feed_forward_sharing].decoder == "encoder"
        shared_from: Any = self.encoder.feed_forward if is_lent else None
        self.decoder = VanillaTransformerDecoder(config, shared_from)
        self.share_embeddings()
        self.post_init()
        if config.tied_matrices == "all":
            self.tp_plan["shared"] = "embedding_rowwise"

    @can_return_tuple
    def forward(  # type: ignore[misc]  # from this type, transformers knows that attentions can be asked for
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
                **kwargs,
            )
        if not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs.last_hidden_state,
            attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            position_ids=decoder_position_ids,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


# ---------------------------------------------------------------------------------------------------------------------
# Head
# ---------------------------------------------------------------------------------------------------------------------


class VanillaTransformerForConditionalGeneration(
    VanillaTransformerGenerationMixin, ShiftedLabels, VanillaTransformerPreTrainedModel
):
    """
    Encoder, decoder and the map to the vocabulary: logits = Y Eᵀ (+ b), section 3.4.

    `forward` takes source ids (B, S) and target ids or labels (B, T) and returns logits (B, T, V), and with labels the
    loss in nats per token. `generate()` translates, by greedy or beam search.

    Raises:
        ValueError: The config describes one stack alone.

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

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan: dict[str, Any] = {"lm_head": (["hidden_states"], ["logits"])}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self._tied_weights_keys = tied_output(config)
        self.post_init()

    @can_return_tuple
    def forward(  # type: ignore[misc]  # from this type, transformers knows that attentions can be asked for
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
        row_loss: RowLoss | None = None,
        token_type_ids: torch.Tensor | None = None,
        global_attention_mask: torch.Tensor | None = None,
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
        weight = None
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            if not return_logits:
                # Autograd comes back last to what was made first: the gradients of rows are joined before they are
                # added to that of the whole matrix, which torch copies for it once instead of twice.
                weight = self.lm_head.weight.view_as(self.lm_head.weight) if is_plain(self.lm_head) else None
                input_ids, inputs_embeds = self.tied_rows(self.model.encoder, input_ids, inputs_embeds)
                decoder_input_ids, decoder_inputs_embeds = self.tied_rows(
                    self.model.decoder, decoder_input_ids, decoder_inputs_embeds
                )
        outputs: Seq2SeqModelOutput = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            position_ids=position_ids,
            decoder_position_ids=decoder_position_ids,
            use_cache=use_cache,
            token_type_ids=token_type_ids,
            global_attention_mask=global_attention_mask,
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
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    # The methods that the search in search/generate.py replaces; it does not run for subclasses that
    # override one of them.
    _step_forward = forward
    _step_forwards = forwards(
        VanillaTransformerModel,
        VanillaTransformerDecoder,
        VanillaTransformerDecoderLayer,
        *CROSS_ATTENTION_TYPES.values(),
    )


__all__ = [
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
