"""
What a position scheme adds inside the self-attention of one layer, where its scores are no plain products.

Shapes: B sentences, T query positions, S key positions, H heads.
"""

from typing import Any

import torch
from torch import nn

from .parts import drop_out


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
