"""The fields of one stack, which the config has under names of their own for the encoder and for the decoder."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from .sharing import FEED_FORWARD_OWNERS, layer_order, layers_and_sets


# Attention -> function of the config that returns the number of heads that its width is divided into, and the number
# of heads of each layer with its own weights if pruning has removed some.
HEADS: dict[str, Callable[[Any], tuple[int, list[int] | None]]] = {
    "encoder": lambda config: (config.encoder_attention_heads, config.encoder_heads_by_layer),
    "decoder": lambda config: (config.decoder_attention_heads, config.decoder_heads_by_layer),
    "cross": lambda config: (config.decoder_attention_heads, config.cross_heads_by_layer),
}
# Attention -> the config field of the second value.
HEAD_FIELDS = {attention: f"{attention}_heads_by_layer" for attention in HEADS}
# Stacks -> their name in messages.
STACK_NAMES = {
    "encoder_decoder": "an encoder and a decoder",
    "encoder": "an encoder alone",
    "decoder": "a decoder alone",
}


def stack_of(attention: str) -> str:
    """The stack of "encoder", "decoder" or "cross" attention."""
    return "encoder" if attention == "encoder" else "decoder"


def heads_of_layers(config: Any, attention: str) -> list[int]:
    """The number of heads of an attention, for each layer with its own weights."""
    every, each = HEADS[attention](config)
    return each or [every] * layers_and_sets(config, stack_of(attention))[1]


class StackSizes(NamedTuple):
    """The fields of one stack."""

    name: Literal["encoder", "decoder"]
    vocab_size: int
    width: int  # D
    heads: int  # H, of which pruning has left `kept_heads` in each layer, or set of a layer's weights
    kept_heads: list[int]
    ffn_dim: int
    activation_function: str
    norm_position: str
    residual_alpha: float
    final_norm: bool
    position_encoding: str
    longest: int  # `max_position_embeddings`
    layer_order: list[int]  # for each layer, the index of its set of weights
    segments: int = 0  # `type_vocab_size`; the decoder has none
    has_feed_forward: bool = True  # whether its layers have one
    front_end: str = "tokens"  # what makes its first layer's input

    @property
    def is_causal(self) -> bool:
        """Whether a position sees only those before it."""
        return self.name == "decoder"


def encoder_sizes(config: Any) -> StackSizes:
    """The encoder's fields."""
    return StackSizes(
        name="encoder",
        vocab_size=config.source_vocab_size or config.vocab_size,
        width=config.encoder_d_model,
        heads=config.encoder_attention_heads,
        kept_heads=heads_of_layers(config, "encoder"),
        ffn_dim=config.encoder_ffn_dim,
        activation_function=config.activation_function,
        norm_position=config.encoder_norm_position,
        residual_alpha=config.encoder_residual_alpha,
        final_norm=config.encoder_final_norm,
        position_encoding=config.position_encoding,
        longest=config.max_position_embeddings,
        layer_order=layer_order(config, "encoder"),
        front_end=config.front_end,
        segments=config.type_vocab_size,
    )


def decoder_sizes(config: Any) -> StackSizes:
    """The decoder's fields."""
    return StackSizes(
        name="decoder",
        vocab_size=config.vocab_size,
        width=config.d_model,
        heads=config.decoder_attention_heads,
        kept_heads=heads_of_layers(config, "decoder"),
        ffn_dim=config.decoder_ffn_dim,
        activation_function=config.decoder_activation_function,
        norm_position=config.decoder_norm_position,
        residual_alpha=config.decoder_residual_alpha,
        final_norm=config.decoder_final_norm,
        position_encoding=config.decoder_position_encoding,
        longest=config.decoder_max_position_embeddings,
        layer_order=layer_order(config, "decoder"),
        has_feed_forward=FEED_FORWARD_OWNERS[config.feed_forward_sharing].decoder != "nobody",
    )


def check_stacks(config: Any, needed: str, model: str) -> None:
    """A `ValueError` if the config describes a model with other stacks than those of the class `model`."""
    if config.stacks != needed:
        raise ValueError(
            f"{model} has {STACK_NAMES[needed]}, and the config (is_encoder_decoder={config.is_encoder_decoder}, "
            f"is_decoder={config.is_decoder}) is of a model with {STACK_NAMES[config.stacks]}; open it with AutoModel"
        )
