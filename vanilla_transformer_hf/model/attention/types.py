"""The table of all kinds of self-attention. Whoever imports it has imported all files of this folder."""

from ..layers.attention_hooks import ATTENTION_TYPES


__all__ = ["ATTENTION_TYPES"]
