"""
Segments: the sentence of a pair that a source token belongs to, Devlin et al. 2019, arXiv 1810.04805, section 3.2.

Shapes: B sentences, S source positions, D = encoder_d_model.
"""

import torch
from torch import nn

from .position_hooks import look_up


class SegmentEmbedding(nn.Embedding):
    """Adds a trained vector for each segment; without ids, all tokens belong to the first one."""

    def forward(  # type: ignore[override]
        self, embeddings: torch.Tensor, token_type_ids: torch.Tensor | None
    ) -> torch.Tensor:
        """Embeddings (B, S, D) and segments (B, S) to embeddings (B, S, D)."""
        if token_type_ids is None:
            return embeddings + self.weight[0]
        return embeddings + look_up(self.weight, token_type_ids, "segment")


class NoSegments(nn.Module):
    """Adds nothing."""

    def forward(self, embeddings: torch.Tensor, token_type_ids: torch.Tensor | None) -> torch.Tensor:
        """
        Raises:
            ValueError: Segments are given, but the model has no segment embeddings.
        """
        if token_type_ids is not None:
            raise ValueError(
                "token_type_ids: this model has no segments (type_vocab_size=0); leave them out, or set the config's "
                "type_vocab_size and train"
            )
        return embeddings


def segments(count: int, width: int) -> nn.Module:
    """The module that adds the embeddings of segments, as many as the config has."""
    return SegmentEmbedding(count, width) if count else NoSegments()
