"""
What a position scheme is: hooks that do nothing, of which each scheme overrides some.

A scheme says what it adds to the embeddings (`forward`), how it turns queries and keys (`turn_at`), what it adds to
the scores of self-attention (`bias`), and what it does inside the self-attention of each layer (`relations`). The
layers and the search ask the same object.

Shapes: B sentences, T query positions, S key positions, D = d_model, H heads.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init

from .configuration_vanilla_transformer import VanillaTransformerConfig


# What a scheme does to queries or keys (B, H, T, d_k) at their positions.
Turn = Callable[[torch.Tensor], torch.Tensor]


def keep(states: torch.Tensor) -> torch.Tensor:
    """The states as they are."""
    return states


class Relation:
    """What a scheme does inside the self-attention of one layer: hooks that do nothing."""

    def kept_keys(self, keys: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Keys (B, H, S, d_k) with what else is kept of the states (B, S, D) that they are made of."""
        return keys

    def scores(self, query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, scaling: float) -> torch.Tensor:
        """Queries (B, H, T, d_k) and keys as they were kept to scores (B, H, T, S), to which the mask is added."""
        return torch.matmul(query, keys.transpose(2, 3)) * scaling

    def outputs(self, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Weights (B, H, T, S) and values (B, H, S, d_v) to outputs (B, H, T, d_v)."""
        return torch.matmul(weights, values)


class PositionEncoding(nn.Module):
    """Adds nothing: the stack knows no order, except for what the causal mask tells the decoder."""

    # Whether the search of this package may compute one token at a time; others go to transformers' own loop.
    has_step = True
    # Whether it acts on pairs of a query and a key: it gets the positions of the keys, and a mask of numbers.
    is_relative = False
    # Features that a key carries beside d_k.
    kept_features = 0

    def __init__(self, width: int, longest: int, offset: int):
        super().__init__()
        self.offset = offset

    @classmethod
    def of(
        cls, config: VanillaTransformerConfig, width: int, heads: int, longest: int, is_causal: bool
    ) -> "PositionEncoding":
        """The scheme of a stack of this width and so many heads, for up to `longest` positions."""
        return cls(width, longest, config.position_offset)

    @property
    def longest(self) -> int | None:
        """How many positions there are, None for any number."""
        return None

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings (B, T, D) and positions (B or 1, T), counted from 0, to embeddings with positions (B, T, D)."""
        return embeddings

    def turn_at(self, position_ids: torch.Tensor) -> Turn:
        """What is done to the queries and keys of self-attention at positions (B or 1, T)."""
        return keep

    def bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """What is added to the scores of queries (B or 1, T) and keys (B or 1, S), as (B or 1, H, T, S)."""
        return query_positions.new_zeros((), dtype=torch.float32)

    def relations(
        self, query_positions: torch.Tensor, key_positions: torch.Tensor | None
    ) -> Iterable[Relation | None]:
        """For each layer, what happens in its attention of queries (B or 1, T) and keys (B or 1, S), if anything."""
        return repeat(None)

    def key_positions(
        self, mask: torch.Tensor | None, position_ids: torch.Tensor, padding: torch.Tensor | None, cache: Any
    ) -> torch.Tensor | None:
        """
        Positions of the keys (B or 1, S) that queries at `position_ids` (B or 1, T) see, where they are needed.

        Args:
            mask: transformers' mask for the attention in use.
            padding: 1 for a token, 0 for padding, of past and present (B, past + T), or None.
            cache: Where earlier keys stand, or None.
        """
        return None

    def biased(
        self,
        mask: torch.Tensor | None,
        query_positions: torch.Tensor,
        key_positions: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> torch.Tensor | None:
        """
        The mask of self-attention, with the bias where there is one.

        Args:
            mask: transformers' mask for the attention in use.
            query_positions: (B or 1, T).
            key_positions: (B or 1, S), where they are needed.
            dtype: Type of the scores.
        """
        return mask


class TrainedPositionEncoding(PositionEncoding):
    """A scheme with trained tables, drawn with deviation `init_std`."""

    init_std: float

    def draw(self):
        """Draw the tables."""
        for table in self.parameters(recurse=False):
            init.normal_(table, std=self.init_std)


class RelativePositionEncoding(PositionEncoding):
    """What schemes have in common that act on pairs of a query and a key."""

    is_relative = True

    def key_positions(
        self, mask: torch.Tensor | None, position_ids: torch.Tensor, padding: torch.Tensor | None, cache: Any
    ) -> torch.Tensor | None:
        """
        Raises:
            ValueError: The attention in use has no mask of numbers.
        """
        if not isinstance(mask, torch.Tensor) or mask.dim() != 4:
            raise ValueError(
                f"{type(self).__name__} needs an attention with a mask of numbers: set attn_implementation to 'eager' "
                "or 'sdpa'"
            )
        if cache is None:
            return position_ids
        # Behind keys of the past, and before room that is not used yet.
        length = position_ids.shape[1]
        index = torch.arange(mask.shape[-1], device=position_ids.device) - cache.get_seq_length()  # (S)
        own, past = position_ids[:, index.clamp(0, length - 1)], position_ids[:, :1] + index  # (B or 1, S)
        if padding is not None and padding.dim() == 2:
            slots = counted(padding)  # (B, past + T)
            past = F.pad(slots, (0, len(index) - slots.shape[1])) + (position_ids - slots[:, -length:])[:, :1]
        return torch.where(index < 0, past, own)

    def biased(
        self, mask: Any, query_positions: torch.Tensor, key_positions: Any, dtype: torch.dtype
    ) -> torch.Tensor | None:
        exact = torch.promote_types(dtype, torch.float32)
        bias = self.bias(query_positions, key_positions).to(exact)
        least = torch.finfo(dtype).min
        if mask.dtype == torch.bool:
            return bias.masked_fill(~mask, least).to(dtype)
        return (mask.to(exact) + bias).clamp(min=least).to(dtype)


def look_up(weight: torch.Tensor, ids: torch.Tensor, what: str) -> torch.Tensor:
    """
    Rows `ids` (B, T) of `weight` (V, D), as (B, T, D).

    Raises:
        IndexError: On a CPU, an id has no row. An accelerator would have to be waited for to find that out.
    """
    try:
        return F.embedding(ids, weight)
    except IndexError as error:
        found = error
    check_rows(ids, len(weight), what)
    raise found


def check_rows(ids: torch.Tensor, count: int, what: str):
    """
    Raises:
        IndexError: On a CPU, an id lies outside 0 to `count` - 1. While a graph is traced, nothing is known of ids.
    """
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = ids[(ids < 0) | (ids >= count)]
    if len(wrong):
        raise IndexError(f"{what} {wrong[0].item()} lies outside 0 to {count - 1}, the {count} of this model")


def counted(padding: torch.Tensor) -> torch.Tensor:
    """Position of each token (B, T), where 1 is a token and 0 is padding, which does not count."""
    return (padding.long().cumsum(dim=-1) - 1).clamp(min=0)
