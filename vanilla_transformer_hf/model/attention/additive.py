"""
Additive attention: a small network compares a query and a key, instead of their product.

Shapes: B sequences, S key positions, T query positions, H heads.
"""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init

from ..layers.parts import drop_out
from ..modeling_vanilla_transformer import VanillaTransformerAttention, VanillaTransformerCrossAttention


class AdditiveAttention(VanillaTransformerAttention, kind="additive"):
    """e_ij = vᵀ tanh(W q_i + U k_j) of Bahdanau et al. 2015, arXiv 1409.0473, A.1.2, with a v for each head."""

    # W and U of the width d_k of a head take the place of the projections of queries and keys.

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

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any, is_needed: bool) -> Any:
        """The mask of full attention, also where a kernel would hide the future by itself."""
        if self.config._attn_implementation not in ("eager", "sdpa"):
            raise ValueError(
                f"attn_implementation={self.config._attn_implementation!r} with attention_score='additive': this "
                "kernel computes products of queries and keys; set attn_implementation to 'eager' or 'sdpa'"
            )
        return super().mask(embeddings, padding, cache, is_needed=True)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """softmax(vᵀ tanh(q + k)) V for each head, in memory of B H T S d_k numbers."""
        compared = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (B, H, T, S, d_k)
        scores = torch.matmul(compared, self.owner.score_vector[:, None, :, None]).squeeze(-1)  # (B, H, T, S)
        if attention_mask is not None:
            # "sdpa" has masks of what is seen, "eager" of what is added.
            if attention_mask.dtype == torch.bool:
                scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
            else:
                scores = scores + attention_mask
        weights = drop_out(scores.softmax(dim=-1), self.config.attention_dropout, self.training)
        return self.owner.out_proj(torch.matmul(weights, value).transpose(1, 2).flatten(-2)), weights


class AdditiveCrossAttention(AdditiveAttention, VanillaTransformerCrossAttention, cross="additive"):
    """Additive attention of the decoder to the source."""

    def mask(self, embeddings: torch.Tensor, padding: torch.Tensor | None, memory: Any) -> Any:  # type: ignore[override]
        return VanillaTransformerCrossAttention.mask(self, embeddings, padding, memory)
