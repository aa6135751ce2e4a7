"""
Feed-forward sub-layers: (layer, hidden states) -> hidden states, and the layer's maps from D to d_ff beside `fc2`.

Shapes: B sentences, T positions, D = d_model, d_ff = encoder_ffn_dim or decoder_ffn_dim.
"""

from collections.abc import Callable
from typing import Any

import torch

from .dropout_vanilla_transformer import drop_out


def dense_feed_forward(layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """activation(x W₁ + b₁) W₂ + b₂, section 3.3."""
    hidden_states = layer.activation_fn(layer.fc1(hidden_states))  # (B, T, d_ff)
    return layer.fc2(drop_out(hidden_states, layer.activation_dropout, layer.training))  # (B, T, D)


def gated_feed_forward(layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """(activation(x W₁ + b₁) ⊙ (x W₃ + b₃)) W₂ + b₂; Shazeer 2020, arXiv 2002.05202."""
    hidden_states = layer.activation_fn(layer.fc1(hidden_states)) * layer.fc3(hidden_states)  # (B, T, d_ff)
    return layer.fc2(drop_out(hidden_states, layer.activation_dropout, layer.training))  # (B, T, D)


FEED_FORWARDS: dict[str, tuple[Callable, list[str]]] = {
    "dense": (dense_feed_forward, ["fc1"]),
    "gated": (gated_feed_forward, ["fc1", "fc3"]),
}
