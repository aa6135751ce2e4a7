"""
Linformer: attention to k sums over the positions instead of to each of n positions.

Shapes: B sequences, S key positions, T query positions, D = d_model, H heads, L the largest length.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init

from ..configuration_vanilla_transformer import VanillaTransformerConfig
from ..layers.parts import check_padding_mask, counted
from ..modeling_vanilla_transformer import VanillaTransformerAttention, VanillaTransformerCrossAttention
from .kernel_checks import check_positions


class LinformerAttention(VanillaTransformerAttention, kind="linformer"):
    """softmax(Q (E K)ᵀ / √d_k) (E V) with a trained E (k, L): Wang et al. 2020, arXiv 2006.04768, equation 7."""

    # k is `linformer_k`. One E for keys and values of all heads of a layer ("key-value sharing", section 4). Time and
    # memory grow with n k. E has columns for `max_position_embeddings` positions, counted from the first token of a
    # sequence; padding adds nothing to the sums. As a sum covers all positions, it cannot hide the future.

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.length_projection = nn.Parameter(torch.empty(config.linformer_k, config.max_position_embeddings))
        self.draw()

    def draw(self) -> None:
        """Draw E from N(0, 1 / k), as in the paper's proofs."""
        init.normal_(self.length_projection, std=self.config.linformer_k**-0.5)

    @property
    def longest(self) -> int | None:  # type: ignore[override]  # of its weights
        return self.length_projection.shape[1]

    def mask(
        self, embeddings: torch.Tensor, padding: torch.Tensor | None, cache: Any = None, is_needed: bool = False
    ) -> torch.Tensor | None:
        """The padding itself (B, S), or None."""
        check_padding_mask(padding, "Linformer", ", because its sums cannot hide single keys")
        return padding

    def summed(self, states: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """E K or E V: keys or values (B, H, S, d) to (B, H, k, d)."""
        length = states.shape[2]
        check_positions(length, self.length_projection.shape[1], "Linformer", "max_position_embeddings")
        if padding is None:
            return torch.matmul(self.length_projection[:, :length], states)
        # The column of each token's position, and zeros for padding.
        places = counted(padding).masked_fill(padding == 0, self.length_projection.shape[1])  # (B, S)
        columns = F.embedding(places, F.pad(self.length_projection, (0, 1)).t())  # (B, S, k)
        return torch.matmul(columns.transpose(1, 2)[:, None], states)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend to the k sums of keys and values; weights (B, H, T, k) are those of the sums."""
        key, value = self.summed(key, attention_mask), self.summed(value, attention_mask)
        return super().attend(query, key, value, None, **kwargs)


class LinformerCrossAttention(LinformerAttention, VanillaTransformerCrossAttention, cross="linformer"):
    """Linformer over the encoder's output: its k sums are computed once, and a step of a search attends to them."""

    attends_to_sums = True

    def mask(  # type: ignore[override]
        self, embeddings: torch.Tensor, padding: torch.Tensor | None, memory: torch.Tensor | None
    ) -> torch.Tensor | None:
        return LinformerAttention.mask(self, embeddings, padding)

    def project_keys_values(self, states: torch.Tensor, padding: torch.Tensor | None = None) -> list[torch.Tensor]:
        """The encoder's output (B, S, D) and its padding (B, S) to E K (B, H, k, d_k) and E V (B, H, k, d_v)."""
        return [self.summed(each, padding) for each in super().project_keys_values(states)]

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of queries and the sums of keys and values."""
        return VanillaTransformerAttention.attend(self, query, key, value, None, **kwargs)
