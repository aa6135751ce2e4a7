"""
Feed-forward sub-layers: functions of (projections, hidden states) that return hidden states.

Shapes: B sentences, T positions, D = d_model, d_ff = encoder_ffn_dim or decoder_ffn_dim.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.activations import ACT2FN

from ..config.sharing import FEED_FORWARD_OWNERS
from ..configuration_vanilla_transformer import VanillaTransformerConfig
from .dropout import Dropout, drop_out
from .projections import apply_projections
from .shared_projections import SharesProjections


def project_out(projections: Any, wide: torch.Tensor) -> torch.Tensor:
    """Dropout and W₂: activations (B, T, d_ff) to (B, T, D)."""
    return apply_projections([projections.fc2], drop_out(wide, projections.activation_dropout, projections.training))[
        0
    ]


def dense_feed_forward(projections: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """activation(x W₁ + b₁) W₂ + b₂, section 3.3."""
    (wide,) = apply_projections([projections.fc1], hidden_states)
    return project_out(projections, projections.activation_fn(wide))


def gated_feed_forward(projections: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """(activation(x W₁ + b₁) ⊙ (x W₃ + b₃)) W₂ + b₂; Shazeer 2020, arXiv 2002.05202."""
    wide, gate = apply_projections([projections.fc1, projections.fc3], hidden_states)
    return project_out(projections, projections.activation_fn(wide) * gate)


class FeedForwardKind(NamedTuple):
    """
    A function of (projections, hidden states), and the names of the projections from D to d_ff that it uses beside
    `fc2`.
    """

    function: Callable[[Any, torch.Tensor], torch.Tensor]
    inner_projections: list[str]


FEED_FORWARDS: dict[str, FeedForwardKind] = {
    "dense": FeedForwardKind(dense_feed_forward, ["fc1"]),
    "gated": FeedForwardKind(gated_feed_forward, ["fc1", "fc3"]),
}


class FeedForwardProjections(SharesProjections):
    """The linear layers of a feed-forward sub-layer, owned by a layer or by `SharedFeedForward`."""

    fc1: nn.Linear
    fc3: nn.Linear

    def add_feed_forward(
        self, config: VanillaTransformerConfig, width: int, ffn_dim: int, activation_function: str
    ) -> None:
        self.activation_fn = ACT2FN[activation_function]
        self.activation_dropout = config.activation_dropout
        for name in FEED_FORWARDS[config.feed_forward_type].inner_projections:
            self.add_module(name, nn.Linear(width, ffn_dim, bias=config.feed_forward_bias))
        self.fc2 = nn.Linear(ffn_dim, width, bias=config.feed_forward_bias)


class SharedFeedForward(FeedForwardProjections):
    """One feed-forward for several layers; Pires et al. 2023, arXiv 2309.01826, section 3.1."""

    def __init__(self, config: VanillaTransformerConfig, width: int, ffn_dim: int, activation_function: str) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.add_feed_forward(config, width, ffn_dim, activation_function)

    @classmethod
    def of_encoder(cls, config: VanillaTransformerConfig) -> "SharedFeedForward | None":
        """The feed-forward of all layers of the encoder; None where each has its own."""
        if FEED_FORWARD_OWNERS[config.feed_forward_sharing].encoder == "layer":
            return None
        width: Any = config.encoder_d_model
        return cls(config, width, config.encoder_ffn_dim, config.activation_function)

    @classmethod
    def of_decoder(cls, config: VanillaTransformerConfig) -> "SharedFeedForward | None":
        """The feed-forward of all layers of the decoder; None where each has its own, and where they have none."""
        if FEED_FORWARD_OWNERS[config.feed_forward_sharing].decoder in ("layer", "nobody"):
            return None
        return cls(config, config.d_model, config.decoder_ffn_dim, str(config.decoder_activation_function))
