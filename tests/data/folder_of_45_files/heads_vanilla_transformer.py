"""The number of heads in each layer: pruning may have removed some."""

from collections.abc import Callable
from typing import Any

from .sharing_vanilla_transformer import layers_and_sets


# Attention -> function of the config that returns the number of heads that its width is divided into, and the number
# of heads of each layer with its own weights if pruning has removed some.
HEADS: dict[str, Callable[[Any], tuple[int, list[int] | None]]] = {
    "encoder": lambda config: (config.encoder_attention_heads, config.encoder_heads_by_layer),
    "decoder": lambda config: (config.decoder_attention_heads, config.decoder_heads_by_layer),
    "cross": lambda config: (config.decoder_attention_heads, config.cross_heads_by_layer),
}
# Attention -> the config field of the second value.
HEAD_FIELDS = {attention: f"{attention}_heads_by_layer" for attention in HEADS}
# Relative position schemes with parameters or slopes of each head, which all layers share.
SCHEMES_BY_HEAD = ("t5_bias", "alibi", "gated_alibi", "distance_mlp")


def stack_of(attention: str) -> str:
    """The stack of "encoder", "decoder" or "cross" attention."""
    return "encoder" if attention == "encoder" else "decoder"


def heads_of_layers(config: Any, attention: str) -> list[int]:
    """The number of heads of an attention, for each layer with its own weights."""
    every, each = HEADS[attention](config)
    return each or [every] * layers_and_sets(config, stack_of(attention))[1]


def check_heads_by_layer(config: Any):
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
        if attention != "cross" and kind in SCHEMES_BY_HEAD and min(heads) < most:
            raise ValueError(
                f"{name}={heads} with {encoding}={kind!r}, which has a bias for each of {most} heads that all layers "
                f"share: leave {name} out, or take another encoding"
            )
    if config.decoder_attention_sharing and heads_of_layers(config, "decoder") != heads_of_layers(config, "cross"):
        raise ValueError(
            f"decoder_heads_by_layer={config.decoder_heads_by_layer} and "
            f"cross_heads_by_layer={config.cross_heads_by_layer}: must be equal with decoder_attention_sharing=True"
        )
