"""
Additive attention: a small network compares a query and a key, instead of their product.

Shapes: B sequences, S key positions, T query positions, H heads.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import initialization as init

from ..layers.attention_projections import AttentionProjections
from ..layers.dropout import drop_out
from ..layers.position_hooks import PositionBias
from ..modeling_vanilla_transformer import VanillaTransformerAttention, VanillaTransformerCrossAttention


def additive_attention_forward(
    score_vector: torch.Tensor,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(vᵀ tanh(q + k)) V for each head; memory of B H T S d_k numbers."""
    compared = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (B, H, T, S, d_k)
    scores = torch.matmul(compared, score_vector[:, None, :, None]).squeeze(-1)  # (B, H, T, S)
    if attention_mask is not None:
        # "sdpa" has masks of what is seen, "eager" of what is added.
        is_seen = attention_mask.dtype == torch.bool
        scores = (
            scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min) if is_seen else scores + attention_mask
        )
    weights = drop_out(scores.softmax(dim=-1), dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights  # (B, T, H, d_v)


class AdditiveScores(AttentionProjections):
    """
    e_ij = vᵀ tanh(W q_i + U k_j) of Bahdanau et al. 2015, arXiv 1409.0473, appendix A.1.2: a v for each head, with W
    and U of the width d_k of a head in the place of the projections of queries and keys.
    """

    # A search would need the network for each token and all keys of its beams.
    has_step = False
    # Scores of all heads: each device computes all.
    divides_heads = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.shared_from is None:
            self.score_vector = nn.Parameter(torch.empty(self.num_heads, self.d_k))
            self.draw()

    def draw(self) -> None:
        if self.shared_from is None:
            init.normal_(self.score_vector, std=self.d_k**-0.5)

    def kernel_refusal(self) -> str:
        return (
            f"attn_implementation={self.config._attn_implementation!r} with attention_score='additive': this kernel "
            "computes products of queries and keys; set attn_implementation to 'eager' or 'sdpa'"
        )

    def kernel(self, eager: Callable[..., Any], position_bias: PositionBias | None) -> Callable[..., Any]:
        return partial(additive_attention_forward, self.owner.score_vector)


class AdditiveAttention(AdditiveScores, VanillaTransformerAttention):
    """Self-attention with additive scores."""

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        """
        The mask of full attention, also where a kernel would hide the future by itself.

        Raises:
            ValueError: The attention in use is a fused kernel, which computes products.
        """
        self.check_kernel()
        return super().mask(embeddings, padding, cache, is_needed=True)


class AdditiveCrossAttention(AdditiveScores, VanillaTransformerCrossAttention):
    """Additive attention of the decoder to the source."""


__all__ = ["AdditiveAttention", "AdditiveCrossAttention"]
