"""Which class computes an attention. Whoever imports this file has imported all kinds, which are in this folder."""

from typing import Any

from ..layers.attention_hooks import ATTENTION_TYPES, CROSS_ATTENTION_TYPES
from ..layers.pooling import pooling_layers
from .additive import AdditiveAttention, AdditiveCrossAttention
from .pooling import PoolingAttention


def attention_of(config: Any, part: str, place: int) -> type[Any]:
    """The class of a layer's attention: in `part` "encoder" or "decoder", or from one to the other ("cross")."""
    if config.attention_score == "additive":
        return AdditiveCrossAttention if part == "cross" else AdditiveAttention
    if part == "cross":
        return CROSS_ATTENTION_TYPES[config.cross_attention_type]
    if part == "decoder":
        return ATTENTION_TYPES[config.decoder_attention_type]
    return PoolingAttention if place in pooling_layers(config) else ATTENTION_TYPES[config.encoder_attention_type]


__all__ = ["ATTENTION_TYPES", "CROSS_ATTENTION_TYPES", "attention_of"]
