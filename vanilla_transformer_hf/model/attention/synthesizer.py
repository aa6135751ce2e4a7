"""
Synthesizer: weights that a network makes of a token, or that are trained as they are, without products of tokens.

Shapes: B sequences, S key positions, T query positions, D = d_model, H heads, L the largest length.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..layers.parts import counted, drop_out
from ..modeling_vanilla_transformer import VanillaTransformerAttention
from ..releases.models import grow
from .kernel_checks import STATIC_CACHES, check_inputs, check_positions


class SynthesizerAttention(VanillaTransformerAttention, ABC):
    """softmax(B) V with scores B that are not products of queries and keys: Tay et al. 2021, arXiv 2005.00743."""

    # Scores have a column for each position up to `max_position_embeddings` (in the decoder
    # `decoder_max_position_embeddings`), counted from the first token of a sequence.

    # Scores of a step would be looked up by the positions of keys, which the search does not pass on.
    has_step = False
    position_scores: nn.Parameter

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        longest: Any = config.decoder_max_position_embeddings if self.is_causal else config.max_position_embeddings
        self._add_scores(kwargs.get("kept_heads") or self.num_heads, longest)
        self.draw()

    @abstractmethod
    def _add_scores(self, heads: int, longest: int) -> None: ...

    @abstractmethod
    def draw(self) -> None:
        """Draw the parameters of the scores."""

    @abstractmethod
    def scores(self, states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """States (B, T, D) at positions (B or 1, T) to scores of all positions (B or 1, H, T, L)."""

    @property
    def longest(self) -> int | None:  # type: ignore[override]  # of its weights
        return self.position_scores.shape[-1]

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        """Which keys a query sees (B or 1, 1, T, S), positions of queries (B or 1, T) and of keys (B or 1, S)."""
        check_inputs(self, padding, "Synthesizer", STATIC_CACHES)
        past, length = 0 if cache is None else int(cache.get_seq_length()), embeddings.shape[1]
        whole = past + length
        real = torch.ones(1, whole, device=embeddings.device) if padding is None else padding[:, :whole]
        keys = counted(real)
        field = "decoder_max_position_embeddings" if self.is_causal else "max_position_embeddings"
        check_positions(int(keys.max()) + 1, self.position_scores.shape[-1], "Synthesizer", field)
        seen = real.bool()[:, None, None].expand(-1, -1, length, -1)
        if self.is_causal:
            own = torch.arange(whole, device=embeddings.device)
            seen = seen & (own <= own[past:, None])
        return seen, keys[:, past:], keys

    def forward(  # type: ignore[override]  # the mask is of its own kind
        self, hidden_states: torch.Tensor, attention_mask: Any, cache: Any = None, layer_idx: int = 0, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """States (B, T, D) to (B, T, D) and weights (B, H, T, S)."""
        (value,) = self.project(hidden_states, self.roles[-1:])
        seen, queries, keys = attention_mask
        if cache is not None:
            # A cache counts positions by its keys, of which there are none: it gets one feature.
            value = grow(cache, value[..., :1], value, layer_idx)[1][:, :, : keys.shape[1]]
        scores = self.scores(hidden_states, queries)
        batch = max(len(scores), len(keys))
        places = keys[:, None, None].expand(batch, *scores.shape[1:3], -1)
        scores = scores.expand(batch, -1, -1, -1).gather(3, places)  # (B or 1, H, T, S)
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(dim=-1)
        weights = weights.expand(len(value), -1, -1, -1)
        weights = drop_out(weights, self.config.attention_dropout, self.training)
        return self.owner.out_proj(torch.matmul(weights, value).transpose(1, 2).flatten(-2)), weights


class DenseSynthesizerAttention(SynthesizerAttention, kind="synthesizer_dense"):
    """B_i = W_2 relu(W_1 x_i) for each head, the dense synthesizer of section 3.1."""

    # W_1 (`q_proj`) makes the d_k features of a head, W_2 (`position_scores`, (H, d_k, L)) a score of each position.

    def _roles(self) -> list[tuple[str, int]]:
        return [("q_proj", self.d_k), ("v_proj", self.d_v)]

    def _add_scores(self, heads: int, longest: int) -> None:
        self.position_scores = nn.Parameter(torch.empty(heads, self.d_k, longest))

    def draw(self) -> None:
        init.normal_(self.position_scores, std=self.d_k**-0.5)

    def scores(self, states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        (features,) = self.project(states, self.roles[:1])
        return torch.matmul(F.relu(features), self.position_scores)


class RandomSynthesizerAttention(SynthesizerAttention, kind="synthesizer_random"):
    """B = R for each head, trained numbers (H, L, L) for pairs of positions: the random synthesizer, section 3.2."""

    def _roles(self) -> list[tuple[str, int]]:
        return [("v_proj", self.d_v)]

    def _add_scores(self, heads: int, longest: int) -> None:
        self.position_scores = nn.Parameter(torch.empty(heads, longest, longest))

    def draw(self) -> None:
        init.normal_(self.position_scores, std=1.0)

    def scores(self, states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.position_scores[:, positions].transpose(0, 1)  # (B or 1, H, T, L)
