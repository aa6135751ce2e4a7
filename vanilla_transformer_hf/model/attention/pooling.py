"""
Attention of an encoder whose sequence shortens: Funnel-Transformer, Dai et al. 2020, arXiv 2006.03236, section 2.2.

Shapes: B sources, S positions, S' positions after one pooling, D = encoder_d_model, H heads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers.masking_utils import create_bidirectional_mask

from ..layers.parts import check_padding_mask
from ..modeling_vanilla_transformer import VanillaTransformerAttention


def pairs(padding: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The pair of neighbours that each position belongs to (B, S), and the number of pairs, S' = S // 2 + 1."""
    # Pairs are counted from the first token of a sequence, so that padding on the left does not part neighbours.
    check_padding_mask(padding, "an encoder with pooling, self-", "")
    shift = padding.long().argmax(dim=1, keepdim=True) % 2
    return (torch.arange(padding.shape[1], device=padding.device) + shift) // 2, padding.shape[1] // 2 + 1


class PoolingAttention(VanillaTransformerAttention, kind="pooling"):
    """Self-attention with queries of pooled states, and keys and values of the states before, equation 2."""

    pools = True

    @staticmethod
    def pooled_padding(padding: torch.Tensor) -> torch.Tensor:
        """1 for a pair with a token, 0 for other pairs: padding (B, S) to (B, S')."""
        pair, count = pairs(padding)
        return padding.long().new_zeros(padding.shape[0], count).scatter_reduce(1, pair, padding.long(), "amax")

    def shorten(
        self, states: torch.Tensor, padding: torch.Tensor | None
    ) -> tuple[torch.Tensor, Any, torch.Tensor | None]:
        """States (B, S, D) to pooled ones (B, S', D), the mask of what these attend to, and their padding (B, S')."""
        short = pool(states, padding)
        mask = create_bidirectional_mask(self.config, short, padding, encoder_hidden_states=states)
        return short, mask, None if padding is None else self.pooled_padding(padding)

    def forward(  # type: ignore[override]  # keys and values come from other states than the queries
        self, hidden_states: torch.Tensor, attention_mask: Any, memory: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pooled states (B, S', D) and those before (B, S, D) to (B, S', D) and weights (B, H, S', S)."""
        (query,) = self.project(hidden_states, self.roles[:1])
        key, value = self.project_keys_values(memory)
        for name in ("cache", "layer_idx", "apply_rotary"):  # no position encoding of this encoder acts in attention
            kwargs.pop(name, None)
        return self.attend(query, key, value, attention_mask, **kwargs)


def pool(states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    """The mean of each pair of neighbours, or of the one of them that is a token: states (B, S, D) to (B, S', D)."""
    if padding is None:
        return F.avg_pool1d(states.transpose(1, 2), 2, ceil_mode=True).transpose(1, 2)
    (pair, count), real = pairs(padding), padding.to(states.dtype)
    sums = states.new_zeros(states.shape[0], count, states.shape[2])
    sums = sums.scatter_add(1, pair[..., None].expand_as(states), states * real[..., None])
    tokens = real.new_zeros(real.shape[0], count).scatter_add(1, pair, real)
    return sums / tokens.clamp(min=1)[..., None]
