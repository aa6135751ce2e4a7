"""
Attention of an encoder whose sequence shortens: Funnel-Transformer, Dai et al. 2020, arXiv 2006.03236, section 2.2.

Shapes: B sources, S positions, S' positions after one pooling, D = encoder_d_model, H heads.
"""

from typing import Any

import torch

from ..layers.position_hooks import ApplyRotary, PositionBias, no_rotary
from ..modeling_vanilla_transformer import VanillaTransformerAttention


class PoolingAttention(VanillaTransformerAttention):
    """Self-attention with queries of pooled states, and keys and values of the states before, equation 2."""

    def forward(  # type: ignore[override]  # keys and values come from other states than the queries
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        memory: torch.Tensor,
        apply_rotary: ApplyRotary = no_rotary,
        position_bias: PositionBias | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pooled states (B, S', D) and those before (B, S, D) to (B, S', D) and weights (B, H, S', S)."""
        (query,) = self.project(hidden_states, self.roles[:1])
        key, value = self.project_keys_values(memory)
        return self.attend(query, key, value, attention_mask, **kwargs)
