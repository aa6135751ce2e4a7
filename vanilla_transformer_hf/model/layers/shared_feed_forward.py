"""
Feed-forward sub-layers: their projections, gates, and one sub-layer for several layers.

Shapes: B sentences, T positions, D = d_model (encoder_d_model in the encoder), d_ff = encoder_ffn_dim or
decoder_ffn_dim.
"""

from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from ..config.sharing import FEED_FORWARD_OWNERS
from ..config.stacks import StackSizes
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from .dropout import Dropout, drop_out
from .projections import apply_projection, apply_projections
from .shared_projections import SharesProjections


# `feed_forward_type` -> the projections from D to d_ff that it has beside `fc2`.
INNER_PROJECTIONS = {"dense": ["fc1"], "gated": ["fc1", "fc3"]}


def gated_feed_forward(projections: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """
    (activation(x W₁ + b₁) ⊙ (x W₃ + b₃)) W₂ + b₂ of states (B, T, D); Shazeer 2020, arXiv 2002.05202. The paper's own
    feed-forward is in modeling_vanilla_transformer.py.
    """
    wide, gate = apply_projections([projections.fc1, projections.fc3], hidden_states)  # (B, T, d_ff)
    wide = drop_out(projections.activation_fn(wide) * gate, projections.activation_dropout, projections.training)
    return apply_projection(projections.fc2, wide)


class FeedForwardProjections(SharesProjections):
    """The linear layers of a feed-forward sub-layer, owned by a layer or by `SharedFeedForward`."""

    fc1: nn.Linear
    fc3: nn.Linear

    def add_feed_forward(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        self.activation_fn = ACT2FN[stack.activation_function]
        self.activation_dropout = config.activation_dropout
        for name in INNER_PROJECTIONS[config.feed_forward_type]:
            self.add_module(name, nn.Linear(stack.width, stack.ffn_dim, bias=config.feed_forward_bias))
        self.fc2 = nn.Linear(stack.ffn_dim, stack.width, bias=config.feed_forward_bias)


class SharedFeedForward(FeedForwardProjections):
    """One feed-forward for several layers; Pires et al. 2023, arXiv 2309.01826, section 3.1."""

    def __init__(self, config: VanillaTransformerConfig, stack: StackSizes) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.add_feed_forward(config, stack)

    @classmethod
    def of_stack(cls, config: VanillaTransformerConfig, stack: StackSizes) -> "SharedFeedForward | None":
        """The feed-forward of all layers of a stack; None where each has its own, or none."""
        if getattr(FEED_FORWARD_OWNERS[config.feed_forward_sharing], stack.name) in ("layer", "nobody"):
            return None
        return cls(config, stack)
