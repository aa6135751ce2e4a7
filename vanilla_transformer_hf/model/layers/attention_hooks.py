"""
What a kind of attention may define beside its computation: hooks with the answers of full attention.

Shapes: B sentences, T query positions, S key positions, n beams of a search.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..config.attention_kinds import ATTENTION_KINDS
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from .shared_projections import SharesProjections


# `encoder_attention_type` or `decoder_attention_type` -> the class of the stack's self-attention.
ATTENTION_TYPES: dict[str, type[Any]] = {}
# `cross_attention_type` -> the class of the decoder's attention to the source.
CROSS_ATTENTION_TYPES: dict[str, type[Any]] = {}
# The class -> its `forward`, as it was defined: the search replaces it only while it is the original.
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


def check_padding_mask(padding: torch.Tensor | None, kind: str, note: str) -> None:
    """
    Raises:
        ValueError: It is not a mask of padding, (B, S).
    """
    if padding is not None and padding.dim() != 2:
        raise ValueError(
            f"attention_mask of shape {tuple(padding.shape)}: {kind} attention takes one of shape (B, S), with 1 for "
            f"a token and 0 for padding{note}"
        )


def check_positions(count: int, longest: int, kind: str, field: str) -> None:
    """
    Raises:
        ValueError: There are more positions than parameters for them, whose number is this field of the config.
    """
    if count > longest:
        raise ValueError(
            f"{count:,} positions, and {kind} attention has {field}={longest:,}: cut the text, or train a model with "
            "more positions"
        )


class AttentionHooks(SharesProjections):
    """The base of all kinds of attention."""

    # Whether a query sees only keys near it: then a search gets the positions of keys, and evicts those far away.
    is_local = False
    # Kernels beside "sdpa" and "eager" that can compute it, for messages.
    other_kernels: tuple[str, ...] = ()
    # Whether the search of this package can compute it one token at a time; otherwise transformers' loop runs.
    has_step = True
    # Whether several devices can have some of the heads each (tensor parallelism).
    divides_heads = True

    def __init_subclass__(cls, kind: str | None = None, cross: str | None = None, **kwargs: Any) -> None:
        """
        `class NearAttention(VanillaTransformerAttention, kind="near")` is what a config calls "near"; with `cross`, as
        `cross_attention_type`.
        """
        super().__init_subclass__(**kwargs)
        if kind is not None:
            add_attention_type(kind, cls)
        if cross is not None:
            CROSS_ATTENTION_TYPES[cross], ATTENTION_FORWARDS[cls] = cls, cls.forward

    config: VanillaTransformerConfig

    def draw(self) -> None:
        """Draw parameters other than projections, of which there are none here."""

    @property
    def longest(self) -> int | None:
        """The largest number of positions; None without a limit."""
        return None

    @property
    def state_size(self) -> int:
        """Numbers that a search keeps for each head of a hypothesis instead of keys and values; 0: it keeps those."""
        return 0

    def global_mask(
        self, mask: Any, embeddings: torch.Tensor, padding: torch.Tensor | None, chosen: torch.Tensor | None
    ) -> Any:
        """
        The mask of an encoder's self-attention with global tokens, which attend to all, and all to them.

        Args:
            mask: What `mask` returned.
            embeddings: Input of the stack (B, T, D).
            padding: 1 for a token, 0 for padding (B, T), or None.
            chosen: `global_attention_mask`, 1 for a global token (B, T), or None.

        Raises:
            ValueError: Global tokens are given, and this attention has none.
        """
        if chosen is not None:
            raise ValueError(
                "global_attention_mask: this encoder has no global tokens; leave it out, or train a model with "
                "encoder_attention_type='window_global'"
            )
        return mask

    def check_kernel(self) -> None:
        """
        Raises:
            ValueError: The attention in use (`attn_implementation`) is neither "sdpa" nor "eager".
        """
        if self.config._attn_implementation not in ("eager", "sdpa"):
            raise ValueError(self.kernel_refusal())

    def kernel_refusal(self) -> str:
        """The message about a kernel (`attn_implementation`) that cannot compute this attention."""
        kernels = ", ".join(map(repr, ("sdpa", *self.other_kernels)))
        return (
            f"attn_implementation={self.config._attn_implementation!r} with {type(self).__name__}: must be {kernels}, "
            "or 'eager' for the attention weights"
        )

    def evict(self, mask: torch.Tensor, positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """
        The mask of a step of a search (B, n, slots) without the keys that no later query sees.

        Args:
            positions: Of the queries (B or 1, 1).
            key_positions: Of the keys (B, slots).
        """
        return mask
