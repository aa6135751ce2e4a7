"""
The base of position schemes: hooks that do nothing. Each scheme overrides some of them.

A scheme has what it adds to the embeddings (`forward`), how it rotates queries and keys (`rotary_at`), what it adds
to the scores of self-attention (`bias`), and what else it does in the self-attention of each layer (`layer_biases`).
The layers and the search use the same object.

Shapes: B sentences, T query positions, S key positions, D = d_model, H heads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init

from ..config.position_schemes import POSITION_SCHEMES
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from .dropout import drop_out


# A function that a scheme applies to queries or keys (B, H, T, d_k) at their positions.
ApplyRotary = Callable[[torch.Tensor], torch.Tensor]


def no_rotary(states: torch.Tensor) -> torch.Tensor:
    """The states as they are."""
    return states


@dataclass
class MaskOfBlocks(ABC):
    """
    The mask of attention that is computed in blocks of queries, each with its own keys.

    Attributes:
        seen: Whether a query sees a key, or what is added to its score (blocks, 1 or H, queries, keys).
    """

    seen: torch.Tensor

    @abstractmethod
    def positions(self, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions (B or 1, T) to those of each block's queries (blocks, queries) and keys (blocks, keys)."""


class PositionBias:
    """What a scheme adds inside the self-attention of one layer: hooks that do nothing."""

    def kept_keys(self, keys: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Keys (B, H, S, d_k) with further features of the states (B, S, D) that are cached with them."""
        return keys

    def scores(self, query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, scaling: float) -> torch.Tensor:
        """Queries (B, H, T, d_k) and cached keys to scores (B, H, T, S), to which the caller adds the mask."""
        return torch.matmul(query, keys.transpose(2, 3)) * scaling

    def outputs(self, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Weights (B, H, T, S) and values (B, H, S, d_v) to outputs (B, H, T, d_v)."""
        return torch.matmul(weights, values)


def biased_attention_forward(
    position_bias: PositionBias,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with the scores and outputs of a position scheme, for which there is no fused kernel."""
    mask: Any = attention_mask
    weights = position_bias.scores(query, key, mask, scaling) + mask  # (B, H, T, S)
    weights = drop_out(weights.softmax(dim=-1), dropout, module.training)
    return position_bias.outputs(weights, value).transpose(1, 2).contiguous(), weights  # (B, T, H, d_v)


class PositionEncoding(nn.Module):
    """No positions: the order of tokens has no effect, except through the decoder's causal mask."""

    # Whether this package's search can compute it one token at a time; otherwise transformers' loop runs.
    has_step = True
    # Whether it acts on pairs of a query and a key: then it gets the positions of the keys and an additive mask.
    is_relative = False
    # Features that are cached with a key, beyond d_k.
    kept_features = 0

    def __init_subclass__(cls, scheme: str | None = None, **kwargs: Any) -> None:
        """`class NearPositions(PositionEncoding, scheme="near")` is what a config calls "near"."""
        super().__init_subclass__(**kwargs)
        if scheme is not None:
            add_position_encoding(scheme, cls)

    def __init__(self, width: int = 0, longest: int = 0, offset: int = 0) -> None:
        super().__init__()
        self.offset = offset

    @classmethod
    def of(
        cls, config: VanillaTransformerConfig, width: int, heads: int, longest: int, is_causal: bool
    ) -> "PositionEncoding":
        """Build the scheme of a stack of this width and number of heads, for up to `longest` positions."""
        return cls(width, longest, config.position_offset)

    @property
    def longest(self) -> int | None:
        """The largest number of positions; None without a limit."""
        return None

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings (B, T, D) and positions (B or 1, T), counted from 0, to embeddings with positions (B, T, D)."""
        return embeddings

    def rotary_at(self, position_ids: torch.Tensor) -> ApplyRotary:
        """The function applied to queries and keys of self-attention at positions (B or 1, T)."""
        return no_rotary

    def bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """The bias (B or 1, H, T, S) added to the scores of queries at (B or 1, T) and keys at (B or 1, S)."""
        return query_positions.new_zeros((), dtype=torch.float32)

    def layer_biases(
        self, query_positions: torch.Tensor, key_positions: torch.Tensor | None
    ) -> Iterable[PositionBias | None]:
        """For each layer the `PositionBias` of queries at (B or 1, T) and keys at (B or 1, S), or None."""
        return repeat(None)

    def key_positions(
        self, mask: torch.Tensor | None, position_ids: torch.Tensor, padding: torch.Tensor | None, cache: Any
    ) -> torch.Tensor | None:
        """
        Positions of the keys (B or 1, S) that queries at `position_ids` (B or 1, T) attend to; None if the scheme does
        not need them.

        Args:
            mask: transformers' mask for the attention in use.
            padding: 1 for a token, 0 for padding, of past and present (B, past + T), or None.
            cache: The cache with earlier keys, or None.
        """
        return None

    def pairs(
        self, mask: Any, position_ids: torch.Tensor, padding: torch.Tensor | None, cache: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Positions of queries (B or 1, T) and of keys (B or 1, S), or None if the scheme does not need these; of a
        `MaskOfBlocks`, those of its blocks. The arguments are those of `key_positions`.
        """
        return position_ids, self.key_positions(mask, position_ids, padding, cache)

    def prepare_attention(
        self, mask: Any, position_ids: torch.Tensor, padding: torch.Tensor | None, cache: Any, dtype: torch.dtype
    ) -> tuple[Any, Iterable[PositionBias | None]]:
        """
        The scheme's part in the self-attention of a stack: the mask plus the bias, and for each layer the
        `PositionBias`. The arguments are those of `key_positions` and `biased`.
        """
        pairs = self.pairs(mask, position_ids, padding, cache)
        return self.biased(mask, *pairs, dtype), self.layer_biases(*pairs)

    def biased(
        self,
        mask: torch.Tensor | None,
        query_positions: torch.Tensor,
        key_positions: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> torch.Tensor | None:
        """
        The mask of self-attention plus the scheme's bias, if it has one.

        Args:
            mask: transformers' mask for the attention in use.
            query_positions: (B or 1, T).
            key_positions: (B or 1, S), or None if the scheme does not need them.
            dtype: Type of the scores.
        """
        return mask


# `position_encoding` or `decoder_position_encoding` -> the class of the stack's scheme; each adds itself.
POSITION_ENCODINGS: dict[str, type[PositionEncoding]] = {}


def add_position_encoding(scheme: str, encoding: type[PositionEncoding]) -> None:
    """
    Add a class to the table.

    Raises:
        ValueError: The config has no row for this scheme, or row and class disagree about it.
    """
    row = POSITION_SCHEMES.get(scheme)
    if row is None:
        raise ValueError(
            f"{encoding.__name__}: scheme={scheme!r} is not a row of POSITION_SCHEMES; add it there first "
            "(config/position_schemes.py), so that a config may name it"
        )
    if row.is_relative != encoding.is_relative:
        raise ValueError(
            f"{encoding.__name__}: is_relative={encoding.is_relative}, and the row {scheme!r} of POSITION_SCHEMES has "
            f"is_relative={row.is_relative}: they must be equal, or configs would be taken that do not work"
        )
    POSITION_ENCODINGS[scheme] = encoding


add_position_encoding("none", PositionEncoding)


class TrainedPositionEncoding(PositionEncoding):
    """A scheme with trained tables, drawn with deviation `init_std`."""

    init_std: float

    def draw(self) -> None:
        """Draw the tables."""
        for table in self.parameters(recurse=False):
            init.normal_(table, std=self.init_std)


class RelativePositionEncoding(PositionEncoding):
    """The base of schemes that act on pairs of a query and a key."""

    is_relative = True

    def pairs(
        self, mask: Any, position_ids: torch.Tensor, padding: torch.Tensor | None, cache: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if isinstance(mask, MaskOfBlocks):
            return mask.positions(position_ids)
        return super().pairs(mask, position_ids, padding, cache)

    def key_positions(
        self, mask: torch.Tensor | None, position_ids: torch.Tensor, padding: torch.Tensor | None, cache: Any
    ) -> torch.Tensor | None:
        """
        Raises:
            ValueError: The attention implementation has no additive mask.
        """
        if not isinstance(mask, torch.Tensor) or mask.dim() != 4:
            raise ValueError(
                f"{type(self).__name__} needs an attention with an additive mask: set attn_implementation to 'eager' "
                "or 'sdpa'"
            )
        if cache is None:
            return position_ids
        # After the keys of the past, and before unused room of a static cache.
        length = position_ids.shape[1]
        index = torch.arange(mask.shape[-1], device=position_ids.device) - cache.get_seq_length()  # (S)
        own, past = position_ids[:, index.clamp(0, length - 1)], position_ids[:, :1] + index  # (B or 1, S)
        if padding is not None and padding.dim() == 2:
            slots = counted(padding)  # (B, past + T)
            past = F.pad(slots, (0, len(index) - slots.shape[1])) + (position_ids - slots[:, -length:])[:, :1]
        return torch.where(index < 0, past, own)

    def biased(self, mask: Any, query_positions: torch.Tensor, key_positions: Any, dtype: torch.dtype) -> Any:
        if isinstance(mask, MaskOfBlocks):
            return replace(mask, seen=self.biased(mask.seen, query_positions, key_positions, dtype))
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
        IndexError: On a CPU, an id has no row. On an accelerator the check would force a synchronisation.
    """
    try:
        return F.embedding(ids, weight)
    except IndexError as error:
        found = error
    check_rows(ids, len(weight), what)
    raise found


def check_rows(ids: torch.Tensor, count: int, what: str) -> None:
    """
    Raises:
        IndexError: On a CPU, an id lies outside 0 to `count` - 1. While a graph is traced, ids have no values to
        check.
    """
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = ids[(ids < 0) | (ids >= count)]
    if len(wrong):
        advice = ": cut the text, or train a model with more positions" if what == "position" else ""
        raise IndexError(f"{what} {wrong[0].item()} lies outside 0 to {count - 1}, the {count} of this model{advice}")


def counted(padding: torch.Tensor) -> torch.Tensor:
    """Position of each token (B, T), from a mask with 1 for tokens and 0 for padding, which is not counted."""
    return (padding.long().cumsum(dim=-1) - 1).clamp(min=0)


def positions(embeddings: torch.Tensor, attention_mask: torch.Tensor | None, past_length: int) -> torch.Tensor:
    """Position of each embedding (B, T, D), as (B or 1, T): padding on the left is not counted."""
    length = embeddings.shape[1]
    if attention_mask is not None and attention_mask.dim() == 2:
        return counted(attention_mask)[:, -length:]  # (B, T)
    return (torch.arange(length, device=embeddings.device) + past_length).unsqueeze(0)  # (1, T)
