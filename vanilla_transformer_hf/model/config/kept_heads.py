"""The number of heads in each layer: pruning may have removed some."""

from collections.abc import Callable
from typing import Any

from .kinds import option_group
from .position_schemes import POSITION_SCHEMES
from .sharing import layers_and_sets


@option_group
class HeadOptions:
    """
    Args:
        encoder_heads_by_layer, decoder_heads_by_layer, cross_heads_by_layer (`list[int]`, *optional*): The heads that
            pruning (arXiv 1905.10650) has left in each layer, or set of a layer's weights, of self-attention in the
            encoder and in the decoder, and of attention to the source; all of h if not given. Widths of heads follow
            from h.
    """

    encoder_heads_by_layer: list[int] | None = None
    decoder_heads_by_layer: list[int] | None = None
    cross_heads_by_layer: list[int] | None = None


# Attention -> function of the config that returns the number of heads that its width is divided into, and the number
# of heads of each layer with its own weights if pruning has removed some.
HEADS: dict[str, Callable[[Any], tuple[int, list[int] | None]]] = {
    "encoder": lambda config: (config.encoder_attention_heads, config.encoder_heads_by_layer),
    "decoder": lambda config: (config.decoder_attention_heads, config.decoder_heads_by_layer),
    "cross": lambda config: (config.decoder_attention_heads, config.cross_heads_by_layer),
}
# Attention -> the config field of the second value.
HEAD_FIELDS = {attention: f"{attention}_heads_by_layer" for attention in HEADS}


def stack_of(attention: str) -> str:
    """The stack of "encoder", "decoder" or "cross" attention."""
    return "encoder" if attention == "encoder" else "decoder"


def heads_of_layers(config: Any, attention: str) -> list[int]:
    """The number of heads of an attention, for each layer with its own weights."""
    every, each = HEADS[attention](config)
    return each or [every] * layers_and_sets(config, stack_of(attention))[1]


def check_heads_by_layer(config: Any) -> None:
    """
    Raises:
        ValueError: There are not as many numbers as layers, a number is out of range, or the heads of all layers have
            to be the same.
    """
    for attention, name in HEAD_FIELDS.items():
        stack = stack_of(attention)
        (most, heads), sets = HEADS[attention](config), layers_and_sets(config, stack)[1]
        if heads is None:
            continue
        if len(heads) != sets or not all(1 <= count <= most for count in heads):
            raise ValueError(
                f"{name}={heads}: must be {sets} numbers, one for each layer with weights of its own, from 1 to "
                f"{stack}_attention_heads={most}"
            )
        encoding = "position_encoding" if stack == "encoder" else "decoder_position_encoding"
        kind = getattr(config, encoding)
        scheme = POSITION_SCHEMES[kind]
        if attention != "cross" and scheme.is_relative and scheme.has_heads and min(heads) < most:
            raise ValueError(
                f"{name}={heads} with {encoding}={kind!r}, which has a bias for each of {most} heads that all layers "
                f"share: leave {name} out, or take another encoding"
            )
    if config.decoder_attention_sharing and heads_of_layers(config, "decoder") != heads_of_layers(config, "cross"):
        raise ValueError(
            f"decoder_heads_by_layer={config.decoder_heads_by_layer} and "
            f"cross_heads_by_layer={config.cross_heads_by_layer}: must be equal with decoder_attention_sharing=True"
        )
