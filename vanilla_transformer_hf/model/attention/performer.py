"""
Performer: attention by random features of queries and keys, whose sums take the place of weights.

Shapes: B sequences, S key positions, T query positions, H heads, m features, c positions of a chunk.
"""

import math
from typing import Any

import torch
from torch import nn
from transformers import initialization as init

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..modeling_vanilla_transformer import VanillaTransformerAttention
from .kernel_checks import STATIC_CACHES, check_inputs


# Positions of a chunk of causal attention: sums are kept between chunks, and weights computed inside.
POSITIONS_AT_ONCE = 128


def orthogonal_features(count: int, width: int) -> torch.Tensor:
    """Vectors (m, d_k), orthogonal in groups of d_k, as long as vectors of d_k normal values: section 2.4."""
    # A model that is built in half precision sets torch's default type, for which there is no QR decomposition.
    exact: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    groups = []
    for _ in range(-(-count // width)):
        directions, triangle = torch.linalg.qr(torch.randn(width, width, **exact))
        # Without the signs, directions would not be uniform: the first entries would all be negative.
        groups.append((directions * triangle.diagonal().sign()).t())
    return torch.cat(groups)[:count] * torch.randn(count, width, **exact).norm(dim=1, keepdim=True)


class PerformerAttention(VanillaTransformerAttention, kind="performer"):
    """FAVOR+ of Choromanski et al. 2021, arXiv 2009.14794, section 2: φ(q)·φ(k) in place of exp(q·k / √d_k)."""

    # With positive orthogonal random features φ(x)_r = exp(w_r·x - |x|²/2), x divided by d_k^¼, that is its expected
    # value. So keys and values are summed once for all queries, Σ φ(k) (v, 1), and time and memory grow with n m. In
    # the decoder, sums of earlier chunks and products inside a chunk give each position what stands before it; a
    # search keeps one sum for each hypothesis. Features are drawn anew every `performer_redraw` passes of training,
    # are fixed in evaluation, and are saved with the weights. With attn_implementation="eager" the weights φ(q)·φ(k) /
    # Σ are computed, and returned. Every exponent loses the largest one up to its position (of keys) or of its
    # features (of queries), which cancels exactly: nothing is added to features, so that the future has no effect.

    is_local = True

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        count = config.performer_features or max(1, int(self.d_k * math.log(self.d_k)))
        self.register_buffer("random_features", torch.empty(count, self.d_k))
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self.random_features: torch.Tensor
        self.passes: torch.Tensor
        self.drawn_at: int | None = None
        self.draw()

    def draw(self) -> None:
        """Draw features."""
        if self.random_features.device.type != "meta":
            init.copy_(self.random_features, orthogonal_features(*self.random_features.shape))
            init.zeros_(self.passes)

    @property
    def state_size(self) -> int:  # type: ignore[override]  # of its weights
        """The sums over m features of the values and of one, and the largest exponent."""
        return len(self.random_features) * (self.d_v + 1) + 1

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        """The padding of past and present (B, S) or None, their length S, and the training pass's number or None."""
        check_inputs(self, padding, "Performer", ", because its sums cannot hide single keys" + STATIC_CACHES)
        past = 0 if cache is None else int(cache.get_seq_length())
        return padding, past + embeddings.shape[1], int(self.passes) + 1 if self.training else None

    def evict(self, mask: torch.Tensor, positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """No earlier keys are kept."""
        return mask.masked_fill((key_positions != positions)[:, None], float("-inf"))

    def _redraw(self, number: int | None) -> None:
        """New features if it is time, once in a pass: gradient checkpointing computes a layer twice."""
        if not self.training or number is None or number == self.drawn_at:
            return
        self.drawn_at = number
        self.passes.fill_(number)
        if number % self.config.performer_redraw == 0:
            with torch.no_grad():
                self.random_features.copy_(orthogonal_features(*self.random_features.shape))

    def exponents(self, states: torch.Tensor) -> torch.Tensor:
        """w_r·x - |x|²/2 of queries or keys (B, H, T, d_k), as (B, H, T, m) in float32."""
        exact = torch.promote_types(states.dtype, torch.float32)
        states = states.to(exact) * self.scaling**0.5
        return torch.matmul(states, self.random_features.to(exact).t()) - states.square().sum(-1, keepdim=True) / 2

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries, keys and values to outputs (B, T, D), and with eager attention weights (B, H, T, S)."""
        padding, length, number = attention_mask
        self._redraw(number)
        queries, keys = positive(self.exponents(query)), self.exponents(key[:, :, :length])
        if padding is not None:
            keys = keys.masked_fill((padding[:, :length] == 0)[:, None, :, None], float("-inf"))
        values, weights = with_ones(value[:, :, :length], keys.dtype), None
        if self.config._attn_implementation == "eager":
            weights = explicit_weights(queries, keys, self.is_causal)
            output = torch.matmul(weights, values[..., :-1])
        else:
            if self.is_causal:
                summed = causal_sums(queries, keys, values)
            else:  # φ(q) Σ φ(k) (v, 1) over all positions
                keys = (keys - finite(keys.amax(dim=(2, 3), keepdim=True))).exp()  # (B, H, S, m)
                summed = torch.matmul(queries, torch.matmul(keys.transpose(2, 3), values))  # (B, H, T, d_v + 1)
            output = normalized(summed)
        return self.owner.out_proj(output.to(value.dtype).transpose(1, 2).flatten(-2)), weights

    def state_of(self, key: torch.Tensor, value: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """The sums of a prompt's keys and values (B, H, S, d) without padding (B, S), as (B, H, 1, state_size)."""
        keys = self.exponents(key).masked_fill((padding == 0)[:, None, :, None], float("-inf"))
        largest = finite(keys.amax(dim=(2, 3)))[..., None, None]  # (B, H, 1, 1)
        sums = torch.matmul((keys - largest).exp().transpose(2, 3), with_ones(value, keys.dtype))
        return torch.cat((sums.flatten(2)[:, :, None], largest), dim=-1)

    def step(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next position of n hypotheses: outputs (B, n, H d_v), and the new sums (B, H, n, state_size)."""
        # Queries, keys and values are (B, H, n, d); the sums are zeros at the start.
        keys, values = self.exponents(key), with_ones(value, torch.float32)  # (B, H, n, m), (B, H, n, d_v + 1)
        sums = state[..., :-1].unflatten(-1, (-1, values.shape[-1]))  # (B, H, n, m, d_v + 1)
        is_first = sums[..., -1].sum(dim=-1) == 0
        before = state[..., -1].masked_fill(is_first, torch.finfo(state.dtype).min)  # (B, H, n)
        largest = torch.maximum(before, keys.amax(dim=-1))
        sums = sums * (before - largest).exp()[..., None, None]
        sums = sums + (keys - largest[..., None]).exp()[..., None] * values[..., None, :]
        output = normalized(torch.matmul(positive(self.exponents(query))[..., None, :], sums)[..., 0, :])
        state = torch.cat((sums.flatten(-2), largest[..., None]), dim=-1)
        return output.to(value.dtype).transpose(1, 2).flatten(2), state


def positive(exponents: torch.Tensor) -> torch.Tensor:
    """Features of queries (B, H, T, m), scaled for each query, which cancels."""
    return (exponents - exponents.amax(dim=-1, keepdim=True).detach()).exp()


def with_ones(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values (B, H, T, d_v) with a one at the end of each, whose sum is what outputs are divided by."""
    return nn.functional.pad(values.to(dtype), (0, 1), value=1.0)


def normalized(sums: torch.Tensor) -> torch.Tensor:
    """Weighted sums of values and, at the end, of ones (..., d_v + 1) to means (..., d_v)."""
    return sums[..., :-1] / sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)


def finite(exponents: torch.Tensor) -> torch.Tensor:
    """Largest exponents, of padding alone the least number instead of -∞, without gradient: they cancel."""
    return exponents.detach().clamp(min=torch.finfo(exponents.dtype).min)


def explicit_weights(queries: torch.Tensor, keys: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Features of queries (B, H, T, m) and exponents of keys (B, H, S, m) to weights (B, H, T, S), in n²."""
    largest = keys.amax(dim=-1, keepdim=True)  # (B, H, S, 1), each with its own
    weights = torch.matmul(queries, (keys - finite(largest)).exp().transpose(2, 3))
    weights = weights.where(weights > 0, 1).log().where(weights > 0, float("-inf")) + finite(largest).transpose(2, 3)
    if is_causal:
        hidden = torch.ones_like(weights[0, 0]).triu(weights.shape[-1] - weights.shape[-2] + 1).bool()
        weights = weights.masked_fill(hidden, float("-inf"))
    shifted = (weights - finite(weights.amax(dim=-1, keepdim=True))).clamp(min=torch.finfo(weights.dtype).min)
    return shifted.softmax(dim=-1).masked_fill(weights.isneginf(), 0)


def causal_sums(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sums over the positions up to each query's, of queries at the last T of S positions."""
    # The exponent that is subtracted is the largest up to each position, so that nothing depends on later ones.
    past = keys.shape[2] - queries.shape[2]
    highest = finite(keys.amax(dim=-1).cummax(dim=-1).values)  # (B, H, S)
    least = torch.finfo(keys.dtype).min
    sums = values.new_zeros(*keys.shape[:2], keys.shape[3], values.shape[3])  # (B, H, m, d_v + 1)
    before = highest.new_full((*keys.shape[:2], 1), least)
    if past:
        before = highest[:, :, past - 1 : past]
        sums = torch.matmul((keys[:, :, :past] - before[..., None]).exp().transpose(2, 3), values[:, :, :past])
    outputs = []
    for start in range(past, keys.shape[2], POSITIONS_AT_ONCE):
        part = slice(start, start + POSITIONS_AT_ONCE)
        query, value, top = (
            queries[:, :, start - past : start - past + POSITIONS_AT_ONCE],
            values[:, :, part],
            highest[:, :, part],
        )
        key = (keys[:, :, part] - top[..., None]).exp()  # (B, H, c, m)
        shrunk = (top[:, :, None] - top[..., None]).tril().exp()  # (B, H, c, c), the key's largest less the query's
        weights = (torch.matmul(query, key.transpose(2, 3)) * shrunk).tril()
        # (B, H, c, d_v + 1)
        outputs.append(torch.matmul(weights, value) + torch.matmul(query, sums) * (before - top).exp()[..., None])
        last = top[:, :, -1:]
        sums = sums * (before - last).exp()[..., None]
        sums = sums + torch.matmul((key * (top - last).exp()[..., None]).transpose(2, 3), value)
        before = last
    return torch.cat(outputs, dim=2)
