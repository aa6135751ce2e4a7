"""
Relative position schemes, which act on pairs of a query and a key.

Shapes: B sentences, T query positions, S key positions, D = d_model, H heads.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init

from ..config.position_schemes import SHAW_DISTANCE, T5_DISTANCE
from ..config.stacks import StackSizes
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..layers.parts import counted, drop_out
from ..modeling_vanilla_transformer import PositionEncoding


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

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention with these scores and outputs, for which there is no fused kernel."""
        mask: Any = attention_mask
        weights = self.scores(query, key, mask, scaling) + mask  # (B, H, T, S)
        weights = drop_out(weights.softmax(dim=-1), dropout, module.training)
        return self.outputs(weights, value).transpose(1, 2).contiguous(), weights  # (B, T, H, d_v)


# For each layer of a stack.
LayerBiases: TypeAlias = Iterable[PositionBias | None]


class RelativePositionEncoding(PositionEncoding):
    """The base of schemes that act on pairs of a query and a key, with `bias`, `layer_biases` or both."""

    is_relative = True

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        name = config._attn_implementation or ""
        if name.startswith(("flash", "flex")):
            field = "position_encoding" if stack.name == "encoder" else "decoder_position_encoding"
            raise ValueError(
                f"attn_implementation={name!r} with {field}={stack.position_encoding!r}: this kernel cannot add the "
                "scores of the position encoding; set attn_implementation to 'eager' or 'sdpa'"
            )

    def bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """The bias (B or 1, H, T, S) added to the scores of queries at (B or 1, T) and keys at (B or 1, S)."""
        return query_positions.new_zeros((), dtype=torch.float32)

    def layer_biases(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> LayerBiases:
        """For each layer the `PositionBias` of queries at (B or 1, T) and keys at (B or 1, S), or None."""
        return repeat(None)

    def prepare_attention(
        self, mask: Any, position_ids: torch.Tensor, padding: torch.Tensor | None, cache: Any, dtype: torch.dtype
    ) -> tuple[Any, LayerBiases]:
        """The scheme's part in self-attention: the mask plus the bias, and for each layer the `PositionBias`."""
        # The mask is transformers', or that of attention in blocks; positions are those of the queries (B or 1, T),
        # padding is of past and present (B, past + T), and the type that of the scores.
        if hasattr(mask, "positions"):  # in blocks, each with its own keys
            queries, keys = mask.positions(position_ids)
            return replace(mask, seen=self.biased(mask.seen, queries, keys, dtype)), self.layer_biases(queries, keys)
        keys = self.key_positions(mask, position_ids, padding, cache)
        return self.biased(mask, position_ids, keys, dtype), self.layer_biases(position_ids, keys)

    def key_positions(
        self, mask: torch.Tensor | None, position_ids: torch.Tensor, padding: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        """Positions of the keys (B or 1, S) that queries at `position_ids` attend to."""
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

    def biased(self, mask: Any, query_positions: torch.Tensor, key_positions: torch.Tensor, dtype: torch.dtype) -> Any:
        """The mask plus the bias, in the type of the scores."""
        exact = torch.promote_types(dtype, torch.float32)
        bias = self.bias(query_positions, key_positions).to(exact)
        least = torch.finfo(dtype).min
        if mask.dtype == torch.bool:
            return bias.masked_fill(~mask, least).to(dtype)
        return (mask.to(exact) + bias).clamp(min=least).to(dtype)


class AlibiPositionEncoding(RelativePositionEncoding, scheme="alibi"):
    """-m · |i - j| added to the score of positions i and j, with a slope m for each head: arXiv 2108.12409."""

    # Press et al. 2021. The slopes are 2^(-8/n), 2^(-16/n), … for n heads; where n is not a power of two, those of the
    # power below it, and every second one of twice as many. On both sides of a position in the encoder, as in
    # x-transformers.

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        self.slopes = slopes(stack.heads)

    def bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        distances = (query_positions[:, :, None] - key_positions[:, None]).abs()  # (B or 1, T, S)
        return distances[:, None] * -torch.tensor(self.slopes, device=distances.device)[:, None, None]


class T5PositionBias(RelativePositionEncoding, scheme="t5_bias"):
    """A trained number for each head and bucket of distances j - i added to the score: arXiv 1910.10683."""

    # Section 2.1. Raffel et al. 2020. Half the buckets are single distances, the others grow logarithmically up to
    # `max_relative_distance`; an encoder has half of them for each side. One table, shared by the layers of a stack.

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, stack.heads))
        self.longest_distance = config.max_relative_distance or T5_DISTANCE
        self.is_causal, self.init_std = stack.is_causal, stack.width**-0.5

    def draw(self) -> None:
        init.normal_(self.weight, std=self.init_std)

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


class DistanceMLP(RelativePositionEncoding, scheme="distance_mlp"):
    """b = W₃ silu(W₂ silu(W₁ u + b₁) + b₂) + b₃ with u = sign(i - j) log(1 + |i - j|) added to the score."""

    # For each head. Like the dynamic position bias of Wang et al. 2021, arXiv 2108.00154, in the form of
    # x-transformers. It is defined for any distance.

    width = 32  # of the two inner layers

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        inner = [(1, self.width), (self.width, self.width), (self.width, stack.heads)]
        self.maps = nn.ModuleList([nn.Linear(*sizes) for sizes in inner])

    def bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        distances = (query_positions[:, :, None] - key_positions[:, None]).float()  # (B or 1, T, S)
        first, second, last = self.maps
        states = (distances.sign() * distances.abs().log1p())[..., None].type_as(self.maps[0].weight)  # type: ignore[arg-type]
        states = last(F.silu(second(F.silu(first(states)))))  # (B or 1, T, S, H)
        return states.permute(0, 3, 1, 2).float()


@dataclass
class VectorBias(PositionBias):
    """Vectors that are added to keys and values of one layer, depending on the distance from the query."""

    key_vectors: torch.Tensor  # of each distance (R, d_k)
    value_vectors: torch.Tensor  # (R, d_v)
    rows: torch.Tensor  # index of the vector for each query and key (B or 1, 1, T, S)

    def scores(self, query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, scaling: float) -> torch.Tensor:
        products = torch.matmul(query, self.key_vectors.to(query.dtype).t())  # (B, H, T, R)
        products = products.gather(-1, self.rows.expand(*query.shape[:3], -1))  # (B, H, T, S)
        return (torch.matmul(query, keys.transpose(2, 3)) + products) * scaling

    def outputs(self, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        sums = weights.new_zeros(*weights.shape[:3], len(self.value_vectors))  # (B, H, T, R)
        sums = sums.scatter_add(-1, self.rows.expand_as(weights), weights)
        return torch.matmul(weights, values) + torch.matmul(sums, self.value_vectors.to(weights.dtype))


@dataclass
class KeyVectorBias(PositionBias):
    """Vectors of one position of all sentences, whose keys have the same distances: a step of a search."""

    # Products with one vector for each key take fewer operations than sums over those with the same vector.

    key_vectors: torch.Tensor  # of each key (S, d_k)
    value_vectors: torch.Tensor  # (S, d_v)

    def scores(self, query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, scaling: float) -> torch.Tensor:
        query = query * scaling
        products = F.linear(query.flatten(0, 2), self.key_vectors.to(query.dtype))  # (B H T, S)
        return torch.matmul(query, keys.transpose(2, 3)) + products.view(*query.shape[:3], -1)

    def outputs(self, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        sums = torch.mm(weights.flatten(0, 2), self.value_vectors.to(weights.dtype))  # (B H T, d_v)
        return torch.matmul(weights, values) + sums.view(*weights.shape[:3], -1)


class ShawPositionEncoding(RelativePositionEncoding, scheme="shaw"):
    """e_ij = q_i (k_j + a^K_ij)ᵀ / √d_k and z_i = Σ_j α_ij (v_j + a^V_ij): Shaw et al. 2018, arXiv 1803.02155."""

    # Equations 3 and 4, with trained vectors a_ij of j - i, clipped to -k … k. As in tensor2tensor, each layer has its
    # own vectors, of keys and of values, and its heads share them.

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        d_k, d_v = config.d_k or stack.width // stack.heads, config.d_v or stack.width // stack.heads
        self.order, self.distance = stack.layer_order, config.max_relative_distance or SHAW_DISTANCE
        self.keys = nn.Parameter(torch.empty(len(set(self.order)), 2 * self.distance + 1, d_k))
        self.values = nn.Parameter(torch.empty(len(set(self.order)), 2 * self.distance + 1, d_v))

    def draw(self) -> None:
        for table in (self.keys, self.values):
            init.normal_(table, std=self.keys.shape[-1] ** -0.5)

    def layer_biases(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> LayerBiases:
        distances = key_positions[:, None] - query_positions[:, :, None]  # (B or 1, T, S)
        rows = distances.clamp(-self.distance, self.distance)[:, None] + self.distance  # (B or 1, 1, T, S)
        # A graph that is traced for any length must not depend on this one.
        if not torch.compiler.is_compiling() and rows.shape[0] == rows.shape[2] == 1:
            vectors = self.keys[:, rows[0, 0, 0]], self.values[:, rows[0, 0, 0]]  # (layers, S, d)
            layer_biases: list[PositionBias] = [KeyVectorBias(*tables) for tables in zip(*vectors)]
        else:
            layer_biases = [VectorBias(*tables, rows) for tables in zip(self.keys, self.values)]
        return [layer_biases[number] for number in self.order]


class VisibleKeys:
    """A mask (B or 1, 1, T, S) to 1 for each key that a query attends to, else 0; once for all layers of a pass."""

    def __init__(self) -> None:
        self.mask: torch.Tensor | None = None
        self.visible = torch.empty(0)

    def __call__(self, mask: torch.Tensor) -> torch.Tensor:
        if mask is not self.mask:
            self.mask, self.visible = mask, (mask == 0).to(exact(mask))
        return self.visible


@dataclass
class GateBias(PositionBias):
    """The gates of one layer between a query and an earlier key."""

    # The logarithm of a gate is stored with its key, so that caches and the search keep it; the sums run over the keys
    # that a query attends to, in their order.

    weight: torch.Tensor  # with the bias, the map from states (D) to gates (H), or to those of both directions (2 H)
    bias: torch.Tensor
    heads: int  # H
    visible: VisibleKeys  # what masks show; all layers share it

    def kept_keys(self, keys: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        gates = F.linear(states, self.weight.to(states.dtype), self.bias.to(states.dtype))  # (B, S, directions H)
        gates = F.logsigmoid(gates.to(exact(gates))).unflatten(-1, (-1, self.heads))  # (B, S, directions, H)
        return torch.cat((keys, gates.permute(0, 3, 1, 2).to(keys.dtype)), dim=-1)

    def scores(self, query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, scaling: float) -> torch.Tensor:
        width = query.shape[-1]
        scores = torch.matmul(query, keys[..., :width].transpose(2, 3))
        seen = self.visible(mask)  # (B or 1, 1, T, S)
        gates = keys[..., width:].to(seen.dtype).unsqueeze(2)  # (B, H, 1, S, directions)
        return torch.add(self.sums(gates, seen).to(scores.dtype), scores, alpha=scaling)

    def sums(self, gates: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Sums of gates (B, H, 1, S, directions) between key and query, over visible positions (B or 1, 1, T, S)."""
        if gates.shape[-1] == 1:  # in a decoder all keys are before the query
            return sums_behind(gates[..., 0] * seen)
        # Keys of a block reach as far before its queries as behind them.
        before_first = (seen.shape[-1] - seen.shape[-2]) // 2
        past = torch.ones_like(seen[0, 0]).tril(before_first)  # (T, S), including the query itself
        before, behind = gates[..., 0] * (seen * past), gates[..., 1] * (seen * (1 - past))
        return sums_behind(before) + behind.cumsum(dim=-1)


def exact(states: torch.Tensor) -> torch.dtype:
    """The type in which sums are computed."""
    return torch.promote_types(states.dtype, torch.float32)


def sums_behind(values: torch.Tensor) -> torch.Tensor:
    """For each index of the last dimension the sum of all later entries."""
    sums = values.cumsum(dim=-1)
    return sums[..., -1:] - sums


class GatedAlibi(RelativePositionEncoding, scheme="gated_alibi"):
    """Σ log f_l over j < l ≤ i added to the score of i and an earlier j, Σ log r_l over i < l ≤ j for a later j."""

    # With gates f = σ(x W_f + b_f) and r = σ(x W_r + b_r) of the layer's input, for each head: data-dependent
    # distances; Lin et al. 2025, arXiv 2503.02130, for both directions (encoder) as x-transformers. Position ids have
    # no effect; padding has no gate. A gate starts as σ(5) = 0.993.

    first_bias = 5.0

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__(config, stack)
        self.order, self.heads, self.kept_features = stack.layer_order, stack.heads, 1 if stack.is_causal else 2
        self.weight = nn.Parameter(torch.empty(len(set(self.order)), self.kept_features * self.heads, stack.width))
        self.gate_bias = nn.Parameter(torch.empty(len(set(self.order)), self.kept_features * self.heads))

    def draw(self) -> None:
        init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)
        init.constant_(self.gate_bias, self.first_bias)

    def layer_biases(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> LayerBiases:
        visible = VisibleKeys()
        pairs = zip(self.weight, self.gate_bias)
        layer_biases = [GateBias(weight, bias, heads=self.heads, visible=visible) for weight, bias in pairs]
        return [layer_biases[number] for number in self.order]


def slopes(heads: int) -> list[float]:
    """ALiBi's slopes."""
    power = 2 ** math.floor(math.log2(heads))
    own = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-8 * (head + 1) / (2 * power)) for head in range(0, 2 * power, 2)]
    return own + between[: heads - power]
