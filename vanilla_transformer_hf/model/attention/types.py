"""The table of all kinds of self-attention, to which each class adds itself."""

from collections.abc import Callable
from typing import Any

from torch import nn

from ..config.attention_kinds import ATTENTION_KINDS


# `encoder_attention_type` or `decoder_attention_type` -> the class of the stack's self-attention.
ATTENTION_TYPES: dict[str, type[Any]] = {}
# The class -> its `forward`, as it was defined: the search steps over it only while nobody has replaced it.
ATTENTION_FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {}


def add_attention_type(kind: str, attention: type[Any]) -> None:
    """
    Add a class to the table.

    Raises:
        ValueError: The config has no row for this kind.
    """
    if kind not in ATTENTION_KINDS:
        raise ValueError(
            f"{attention.__name__}: kind={kind!r} is not a row of ATTENTION_KINDS; add it there first "
            "(config/attention_kinds.py), so that a config may name it"
        )
    ATTENTION_TYPES[kind], ATTENTION_FORWARDS[attention] = attention, attention.forward


__all__ = ["ATTENTION_FORWARDS", "ATTENTION_TYPES", "add_attention_type"]
