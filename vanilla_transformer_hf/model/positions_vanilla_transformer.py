"""
Position schemes: how a stack knows the order of its tokens. One instance in each stack, one class a scheme.

A scheme overrides hooks of `PositionEncoding`, which do nothing: what it adds to the embeddings (`forward`), how it
turns queries and keys (`turn_at`), what it adds to the scores of self-attention (`bias`), and what it adds to keys and
values as each query sees them (`relations`). The layers and the search ask the same object.

Shapes: B sentences, T positions, D = d_model, H heads.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .configuration_vanilla_transformer import RELATIVE_DISTANCES, VanillaTransformerConfig


# What a scheme does to queries or keys (B, H, T, d_k) at their positions.
Turn = Callable[[torch.Tensor], torch.Tensor]


def keep(states: torch.Tensor) -> torch.Tensor:
    """The states as they are."""
    return states


@dataclass
class Relation:
    """
    Vectors that are added to keys and values of one layer, as each query sees them.

    Args:
        keys, values: The vectors of each distance (R, d_k), (R, d_v).
        rows: Which of them belongs to a query and a key (B or 1, 1, T, S).
    """

    keys: torch.Tensor
    values: torch.Tensor
    rows: torch.Tensor

    def scores(self, query: torch.Tensor) -> torch.Tensor:
        """Products of queries (B, H, T, d_k) and the vectors of the keys, as (B, H, T, S)."""
        products = torch.matmul(query, self.keys.to(query.dtype).t())  # (B, H, T, R)
        return products.gather(-1, self.rows.expand(*query.shape[:3], -1))

    def mean(self, weights: torch.Tensor) -> torch.Tensor:
        """The vectors of the values, weighted with (B, H, T, S), as (B, H, T, d_v)."""
        sums = weights.new_zeros(*weights.shape[:3], len(self.values))  # (B, H, T, R)
        sums = sums.scatter_add(-1, self.rows.expand_as(weights), weights)
        return torch.matmul(sums, self.values.to(weights.dtype))


class PositionEncoding(nn.Module):
    """Adds nothing: the stack knows no order, except for what the causal mask tells the decoder."""

    # Whether the search of this package may compute one token at a time; others go to transformers' own loop.
    has_step = True
    # Whether `bias` or `relations` need the positions of the keys, and a mask of numbers to add to.
    has_bias = False

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
        """How many positions there are, None where there is no end."""
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
        """For each layer, what is added to keys (B or 1, S) and their values for queries (B or 1, T)."""
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


class SinusoidalPositionEncoding(PositionEncoding):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)), section 3.5.

    Computed in forward, always in float32: a table would limit the length, a buffer would be rounded with the model's
    dtype and come back uninitialised from `from_pretrained`.
    """

    def exponents(self, half: int, device: torch.device) -> torch.Tensor:
        return torch.arange(half, device=device, dtype=torch.float32) / half  # 2i/D

    def arrange(self, angles: torch.Tensor) -> torch.Tensor:
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        frequencies = torch.pow(10000.0, -self.exponents(embeddings.shape[-1] // 2, embeddings.device))  # (D/2,)
        angles = (position_ids + self.offset).float().unsqueeze(-1) * frequencies  # (B or 1, T, D/2)
        return embeddings + self.arrange(angles).to(embeddings.dtype)


class HalvesSinusoidalPositionEncoding(SinusoidalPositionEncoding):
    """The same sines and cosines, first all sines, then all cosines, as in Marian."""

    def arrange(self, angles: torch.Tensor) -> torch.Tensor:
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


class InclusiveHalvesSinusoidalPositionEncoding(HalvesSinusoidalPositionEncoding):
    """Sines, then cosines, of pos / 10000^(i/(D/2 - 1)), as in tensor2tensor and fairseq."""

    def exponents(self, half: int, device: torch.device) -> torch.Tensor:
        return torch.arange(half, device=device, dtype=torch.float32) / (half - 1)


class TrainedPositionEncoding(PositionEncoding):
    """A scheme with trained tables, drawn with deviation `init_std`."""

    init_std: float


class LearnedPositionEncoding(TrainedPositionEncoding):
    """A trained vector per position, Table 3 row E."""

    def __init__(self, width: int, longest: int, offset: int):
        super().__init__(width, longest, offset)
        self.weight = nn.Parameter(torch.empty(longest + offset, width))
        self.init_std = width**-0.5

    @property
    def longest(self) -> int | None:
        return len(self.weight) - self.offset

    def forward(self, embeddings: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return embeddings + look_up(self.weight, position_ids + self.offset, "position")


class RotaryPositionEncoding(PositionEncoding):
    """
    Queries and keys turned by their position: (x_2i, x_2i+1) by the angle pos · base^(-2i/r), where r = fraction · d_k
    features are turned and the others stay; Su et al. 2021, arXiv 2104.09864, equation 34.

    Args:
        head_width: d_k.
        base: `rotary_base`, 10,000 in the paper.
        fraction: `rotary_fraction`, the share of each head's features that is turned; 1 in the paper.
    """

    def __init__(self, head_width: int, base: float, fraction: float):
        super().__init__(head_width, 0, 0)
        self.turned, self.base = int(head_width * fraction) // 2 * 2, base

    @classmethod
    def of(
        cls, config: VanillaTransformerConfig, width: int, heads: int, longest: int, is_causal: bool
    ) -> "PositionEncoding":
        return cls(config.d_k or width // heads, config.rotary_base, config.rotary_fraction)

    def turn_at(self, position_ids: torch.Tensor) -> Turn:
        steps = torch.arange(0, self.turned, 2, device=position_ids.device, dtype=torch.float32)  # 2i
        angles = position_ids.float()[..., None] * torch.pow(self.base, -steps / self.turned)  # (B or 1, T, r/2)
        cosines, sines = angles.cos()[:, None], angles.sin()[:, None]  # (B or 1, 1, T, r/2)

        def turn(states: torch.Tensor) -> torch.Tensor:
            first, second = self.pairs(states[..., : self.turned].float())
            turned = self.arrange(first * cosines - second * sines, second * cosines + first * sines)
            return torch.cat((turned.to(states.dtype), states[..., self.turned :]), dim=-1)

        return turn

    def pairs(self, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The features that are turned together: neighbours."""
        return states[..., 0::2], states[..., 1::2]

    def arrange(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Pairs as they stood before."""
        return torch.stack((first, second), dim=-1).flatten(-2)


class HalvesRotaryPositionEncoding(RotaryPositionEncoding):
    """The same with pairs (x_i, x_i+r/2), as in GPT-NeoX and Llama."""

    def pairs(self, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return states.chunk(2, dim=-1)

    def arrange(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.cat((first, second), dim=-1)


class RelativePositionEncoding(PositionEncoding):
    """What schemes have in common that act on pairs of a query and a key."""

    has_bias = True

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
        bias = self.bias(query_positions, key_positions)
        least = torch.finfo(dtype).min
        if mask.dtype == torch.bool:
            return bias.masked_fill(~mask, least).to(dtype)
        return (mask.float() + bias).clamp(min=least).to(dtype)


class AlibiPositionEncoding(RelativePositionEncoding):
    """
    -m · |i - j| added to the score of positions i and j, with a slope m for each head; Press et al. 2021, arXiv
    2108.12409. The slopes are 2^(-8/n), 2^(-16/n), … for n heads; where n is not a power of two, those of the power
    below it, and every second one of twice as many. On both sides of a position in the encoder, as in x-transformers.
    """

    def __init__(self, heads: int):
        super().__init__(0, 0, 0)
        self.slopes = slopes(heads)

    @classmethod
    def of(
        cls, config: VanillaTransformerConfig, width: int, heads: int, longest: int, is_causal: bool
    ) -> "PositionEncoding":
        return cls(heads)

    def bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        distances = (query_positions[:, :, None] - key_positions[:, None]).abs()  # (B or 1, T, S)
        return distances[:, None] * -torch.tensor(self.slopes, device=distances.device)[:, None, None]


class T5PositionBias(RelativePositionEncoding, TrainedPositionEncoding):
    """
    A trained number for each head and bucket of distances j - i added to the score; Raffel et al. 2020, arXiv
    1910.10683, section 2.1. Half the buckets are single distances, the others grow logarithmically up to
    `max_relative_distance`; an encoder has half of them for each side. One table, shared by the layers of a stack.
    """

    def __init__(self, buckets: int, heads: int, longest_distance: int, is_causal: bool, init_std: float):
        super().__init__(0, 0, 0)
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.longest_distance, self.is_causal, self.init_std = longest_distance, is_causal, init_std

    @classmethod
    def of(
        cls, config: VanillaTransformerConfig, width: int, heads: int, longest: int, is_causal: bool
    ) -> "PositionEncoding":
        distance = config.max_relative_distance or RELATIVE_DISTANCES["t5_bias"]
        return cls(config.relative_buckets, heads, distance, is_causal, width**-0.5)

    def bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        distances = key_positions[:, None] - query_positions[:, :, None]  # (B or 1, T, S)
        return F.embedding(self.buckets(distances), self.weight).permute(0, 3, 1, 2).float()

    def buckets(self, distances: torch.Tensor) -> torch.Tensor:
        """The bucket of each distance."""
        count = len(self.weight)
        if self.is_causal:
            side, distances = torch.zeros_like(distances), (-distances).clamp(min=0)
        else:
            count //= 2
            side, distances = (distances > 0).long() * count, distances.abs()
        single = count // 2
        far = (distances.clamp(min=1).float() / single).log() / math.log(self.longest_distance / single)
        far = (single + (far * (count - single)).long()).clamp(max=count - 1)
        return side + torch.where(distances < single, distances, far)


class ShawPositionEncoding(RelativePositionEncoding, TrainedPositionEncoding):
    """
    e_ij = q_i (k_j + a^K_ij)ᵀ / √d_k and z_i = Σ_j α_ij (v_j + a^V_ij) with trained vectors a_ij of j - i,
    clipped to -k … k; Shaw et al. 2018, arXiv 1803.02155, equations 3 and 4. As in tensor2tensor, each layer has its
    own vectors, of keys and of values, and its heads share them.

    Args:
        layers: N, layers of the stack.
        distance: k, from which all distances are one.
        d_k, d_v: Widths of one head's keys and values.
    """

    def __init__(self, layers: int, distance: int, d_k: int, d_v: int):
        super().__init__(0, 0, 0)
        self.distance, self.init_std = distance, d_k**-0.5
        self.keys = nn.Parameter(torch.empty(layers, 2 * distance + 1, d_k))
        self.values = nn.Parameter(torch.empty(layers, 2 * distance + 1, d_v))

    @classmethod
    def of(
        cls, config: VanillaTransformerConfig, width: int, heads: int, longest: int, is_causal: bool
    ) -> "PositionEncoding":
        layers = config.decoder_layers if is_causal else config.encoder_layers
        distance = config.max_relative_distance or RELATIVE_DISTANCES["shaw"]
        return cls(layers, distance, config.d_k or width // heads, config.d_v or width // heads)

    def relations(
        self, query_positions: torch.Tensor, key_positions: torch.Tensor | None
    ) -> Iterable[Relation | None]:
        keys: Any = key_positions
        distances = keys[:, None] - query_positions[:, :, None]  # (B or 1, T, S)
        rows = distances.clamp(-self.distance, self.distance)[:, None] + self.distance  # (B or 1, 1, T, S)
        return [Relation(*tables, rows) for tables in zip(self.keys, self.values)]


def slopes(heads: int) -> list[float]:
    """ALiBi's slopes."""
    power = 2 ** math.floor(math.log2(heads))
    own = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-8 * (head + 1) / (2 * power)) for head in range(0, 2 * power, 2)]
    return own + between[: heads - power]


POSITION_ENCODINGS: dict[str, type[PositionEncoding]] = {
    "sinusoidal": SinusoidalPositionEncoding,
    "sinusoidal_halves": HalvesSinusoidalPositionEncoding,
    "sinusoidal_halves_inclusive": InclusiveHalvesSinusoidalPositionEncoding,
    "learned": LearnedPositionEncoding,
    "none": PositionEncoding,
    "rotary": RotaryPositionEncoding,
    "rotary_halves": HalvesRotaryPositionEncoding,
    "t5_bias": T5PositionBias,
    "alibi": AlibiPositionEncoding,
    "shaw": ShawPositionEncoding,
}


def look_up(weight: torch.Tensor, ids: torch.Tensor, what: str) -> torch.Tensor:
    """
    Rows `ids` (B, T) of `weight` (V, D), as (B, T, D).

    Raises:
        IndexError: On a CPU, an id has no row. An accelerator would have to be waited for to find that out.
    """
    try:
        return F.embedding(ids, weight)
    except IndexError:
        wrong = ids[(ids < 0) | (ids >= len(weight))][0].item()
        raise IndexError(
            f"{what} {wrong} lies outside 0 to {len(weight) - 1}, the {len(weight)} of this model"
        ) from None


def counted(padding: torch.Tensor) -> torch.Tensor:
    """Position of each token (B, T), where 1 is a token and 0 is padding, which does not count."""
    return (padding.long().cumsum(dim=-1) - 1).clamp(min=0)


def positions(embeddings: torch.Tensor, attention_mask: torch.Tensor | None, past_length: int) -> torch.Tensor:
    """Position of each embedding (B, T, D), as (B or 1, T): padding on the left does not count."""
    length = embeddings.shape[1]
    if attention_mask is not None and attention_mask.dim() == 2:
        return counted(attention_mask)[:, -length:]  # (B, T)
    return (torch.arange(length, device=embeddings.device) + past_length).unsqueeze(0)  # (1, T)
