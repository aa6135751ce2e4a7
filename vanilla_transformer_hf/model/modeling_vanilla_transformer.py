"""
The Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv 1706.03762), encoder and decoder.

Read it from top to bottom: residual step, layers, stacks, model, language-model head. The equations inside a layer are
`VanillaTransformerAttention.forward` in `attention/full.py`, `dense_feed_forward` in `layers/feed_forward.py` and
`SinusoidalPositionEncoding` in `positions/absolute.py`. What transformers asks of every model is mixed in from
`pretrained_model.py`, `parallel_plans.py` and `layers/`. A choice is a table: a variant is one row of it, named by one
field of the config and chosen when the model is built.

Shapes: B sentences, S source positions, T target positions, D = d_model (encoder_d_model in the encoder), H heads,
V vocabulary.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import TransformersKwargs, can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention.full import VanillaTransformerAttention, VanillaTransformerCrossAttention
from .attention.linformer import CROSS_ATTENTION_TYPES
from .attention.pooling import encoder_attention
from .attention.types import ATTENTION_TYPES
from .config.checks import check_stacks
from .config.kept_heads import heads_of_layers
from .config.sharing import FEED_FORWARD_OWNERS
from .config.stacks import StackSizes, decoder_sizes, encoder_sizes
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .layers.base_model import SharedEmbeddings, ShiftedLabels, missing_target, tied_output
from .layers.dropout import Dropout
from .layers.feed_forward import FEED_FORWARDS, FeedForwardProjections, SharedFeedForward
from .layers.loss import RowLoss
from .layers.norms import NORMS
from .layers.parallel_plans import DecoderPlans, EncoderPlans, HeadPlans, TiedPlans
from .layers.pooling import memory_padding, stages
from .layers.position_hooks import POSITION_ENCODINGS, ApplyRotary, PositionBias, no_rotary, positions
from .layers.pretrained_model import VanillaTransformerPreTrainedModel, forwards
from .layers.segments import segments
from .layers.stack_inputs import StackInputs
from .search.generate import VanillaTransformerGenerationMixin


# ---------------------------------------------------------------------------------------------------------------------
# Residual step: the only place where norm, dropout and residual meet
# ---------------------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------------
# Layers
# ---------------------------------------------------------------------------------------------------------------------


class VanillaTransformerLayer(GradientCheckpointingLayer, FeedForwardProjections):
    """
    The base of both kinds of layer: self-attention, feed-forward, and a residual step around each.

    Args:
        attention: The class of its self-attention.
        place: Which set of weights of its stack it is, from 0.
        shared_from: The module that owns the feed-forward's projections if the layer does not.
    """

    def __init__(
        self,
        config: VanillaTransformerConfig,
        stack: StackSizes,
        attention: type[VanillaTransformerAttention],
        place: int,
        shared_from: SharedFeedForward | None,
    ):
        super().__init__()
        norm = partial(NORMS[config.norm_type], stack.width, config.layer_norm_eps)
        self.residual = RESIDUALS[stack.norm_position]
        self.feed_forward_residual = self.residual if stack.has_feed_forward else no_step
        self.alpha = stack.residual_alpha
        self.dropout = Dropout(config.dropout)
        self.self_attn = attention(
            config,
            width=stack.width,
            key_value_width=stack.width,
            num_heads=stack.heads,
            is_causal=stack.is_causal,
            kept_heads=stack.kept_heads[place],
        )
        self.self_attn_layer_norm = norm()
        self.feed_forward = FEED_FORWARDS[config.feed_forward_type].function
        self.share_projections_of(shared_from)
        if stack.has_feed_forward and shared_from is None:
            self.add_feed_forward(
                config, width=stack.width, ffn_dim=stack.ffn_dim, activation_function=stack.activation_function
            )
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
        feed_forward = partial(self.feed_forward, self.projections)
        norm = self.final_layer_norm
        return self.feed_forward_residual(
            hidden_states, feed_forward, norm=norm, dropout=self.dropout, alpha=self.alpha
        )


class VanillaTransformerEncoderLayer(VanillaTransformerLayer):
    """Self-attention and feed-forward, section 3.1."""

    def __init__(self, config: VanillaTransformerConfig, place: int = 0, shared_from: SharedFeedForward | None = None):
        attention = encoder_attention(config, place)
        super().__init__(config, encoder_sizes(config), attention=attention, place=place, shared_from=shared_from)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """
        Hidden states (B, S, D) to (B, S, D). `kwargs` are self-attention's: `apply_rotary` and `position_bias`, and in
        an encoder that pools `memory`, the states before pooling.
        """
        hidden_states = self.attend_step(
            hidden_states, self.self_attn, norm=self.self_attn_layer_norm, attention_mask=attention_mask, **kwargs
        )
        return self.feed_forward_step(hidden_states)


class VanillaTransformerDecoderLayer(VanillaTransformerLayer):
    """Masked self-attention, attention over the encoder's output, and feed-forward, section 3.1."""

    def __init__(self, config: VanillaTransformerConfig, place: int = 0, shared_from: SharedFeedForward | None = None):
        stack, attention = decoder_sizes(config), ATTENTION_TYPES[config.decoder_attention_type]
        super().__init__(config, stack, attention=attention, place=place, shared_from=shared_from)
        self.encoder_attn = CROSS_ATTENTION_TYPES[config.cross_attention_type](
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
        past_key_values: EncoderDecoderCache | None = None,
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
            past_key_values=past_key_values.self_attention_cache if past_key_values is not None else None,
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
            past_key_values=past_key_values,
            layer_idx=layer_idx,
            **kwargs,
        )
        return self.feed_forward_step(hidden_states)

    @property
    def attentions(self) -> tuple[VanillaTransformerAttention, ...]:
        """The attentions that a step of the search computes by itself."""
        return self.self_attn, self.encoder_attn


# ---------------------------------------------------------------------------------------------------------------------
# Stacks
# ---------------------------------------------------------------------------------------------------------------------


class VanillaTransformerStack(StackInputs, VanillaTransformerPreTrainedModel):
    """
    Embeddings times √D, positions, dropout, N layers, and a final norm where the config asks for one.

    Args:
        layer: The class of its layers.
        feed_forward: The feed-forward that the layers share, if this stack owns it.
        shared_from: The feed-forward that they share, if another stack owns it.
    """

    def __init__(
        self,
        config: VanillaTransformerConfig,
        stack: StackSizes,
        layer: Callable[..., nn.Module],
        feed_forward: SharedFeedForward | None,
        shared_from: SharedFeedForward | None = None,
        type_vocab_size: int = 0,
    ):
        super().__init__(config)
        norm = partial(NORMS[config.norm_type], stack.width, config.layer_norm_eps)
        # Layers that share their weights are one module.
        places = range(max(stack.layer_order) + 1)
        layers = [layer(config, place=place, shared_from=shared_from or feed_forward) for place in places]
        embed_positions = POSITION_ENCODINGS[stack.position_encoding].of(
            config, width=stack.width, heads=stack.heads, longest=stack.longest, is_causal=stack.is_causal
        )
        self.embed_scale = math.sqrt(stack.width) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(stack.vocab_size, stack.width)
        self.embed_segments = segments(type_vocab_size, stack.width)
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
    _can_record_outputs = {
        "hidden_states": VanillaTransformerEncoderLayer,
        "attentions": VanillaTransformerAttention,
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(
            config,
            encoder_sizes(config),
            layer=VanillaTransformerEncoderLayer,
            feed_forward=SharedFeedForward.of_encoder(config),
            type_vocab_size=config.type_vocab_size,
        )

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
        attention = self.prepare_attention(
            embeddings, attention_mask, position_ids=position_ids, global_attention_mask=global_attention_mask
        )
        hidden_states = self.embed(embeddings, position_ids, token_type_ids)
        # A stage calls its layer as it is or, where the encoder pools, for pairs of neighbours.
        runs = stages(self.layers_in_order, attention.mask, attention_mask)
        for run, position_bias in zip(runs, attention.layer_biases):
            hidden_states = run(
                hidden_states, apply_rotary=attention.apply_rotary, position_bias=position_bias, **kwargs
            )
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
        super().__init__(
            config,
            decoder_sizes(config),
            layer=VanillaTransformerDecoderLayer,
            feed_forward=SharedFeedForward.of_decoder(config) if shared_from is None else None,
            shared_from=shared_from,
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
        if position_ids is None:
            past_length = 0 if cache is None else cache.get_seq_length()
            position_ids = positions(embeddings, attention_mask, past_length=past_length)
        attention = self.prepare_attention(embeddings, attention_mask, position_ids=position_ids, cache=cache)
        memory_mask = self.layers_in_order[0].encoder_attn.mask(
            embeddings, memory_padding(self.config, encoder_attention_mask), memory=encoder_hidden_states
        )
        hidden_states = self.embed(embeddings, position_ids)
        for layer_idx, (layer, position_bias) in enumerate(zip(self.layers_in_order, attention.layer_biases)):
            hidden_states = layer(
                hidden_states,
                attention.mask,
                encoder_hidden_states,
                memory_mask,
                past_key_values=past_key_values,
                layer_idx=layer_idx,
                apply_rotary=attention.apply_rotary,
                position_bias=position_bias,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), past_key_values=past_key_values
        )


# ---------------------------------------------------------------------------------------------------------------------
# Model
# ---------------------------------------------------------------------------------------------------------------------


class VanillaTransformerModel(TiedPlans, SharedEmbeddings, VanillaTransformerPreTrainedModel):
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
        is_shared = FEED_FORWARD_OWNERS[config.feed_forward_sharing].decoder == "encoder"
        shared_from: Any = self.encoder.feed_forward if is_shared else None
        self.decoder = VanillaTransformerDecoder(config, shared_from=shared_from)
        self.share_embeddings()
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
    VanillaTransformerGenerationMixin, HeadPlans, ShiftedLabels, VanillaTransformerPreTrainedModel
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
                weight = self.weight_of_loss()
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
