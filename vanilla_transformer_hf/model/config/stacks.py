"""The fields of one stack, which the config has under names of their own for the encoder and for the decoder."""

from typing import Any, Literal, NamedTuple

from .kept_heads import heads_of_layers
from .sharing import FEED_FORWARD_OWNERS, layer_order


class StackSizes(NamedTuple):
    """
    Attributes:
        width: D.
        heads: H, of which pruning has left `kept_heads` in each layer, or set of a layer's weights.
        longest: `max_position_embeddings`.
        layer_order: For each layer, the index of its set of weights.
        segments: `type_vocab_size`; the decoder has none.
        has_feed_forward: Whether its layers have one.
        front_end: What makes its first layer's input.
    """

    name: Literal["encoder", "decoder"]
    vocab_size: int
    width: int
    heads: int
    kept_heads: list[int]
    ffn_dim: int
    activation_function: str
    norm_position: str
    residual_alpha: float
    final_norm: bool
    position_encoding: str
    longest: int
    layer_order: list[int]
    segments: int = 0
    has_feed_forward: bool = True
    front_end: str = "tokens"

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
