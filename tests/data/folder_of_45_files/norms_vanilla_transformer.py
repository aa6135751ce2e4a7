"""Norms: (width, eps) -> module."""

from collections.abc import Callable

import torch
from torch import nn


class AuthorRMSNorm(nn.RMSNorm):
    """x / (√mean(x²) + ε) · γ; Zhang and Sennrich 2019, arXiv 1910.07467, with ε where their code has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = x.float()
        states = states / (states.square().mean(dim=-1, keepdim=True).sqrt() + (self.eps or 0.0))
        return states.to(x.dtype) * self.weight


# x / √(mean(x²) + ε) · γ is torch's RMSNorm.
NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer_norm": nn.LayerNorm,
    "rms_norm": nn.RMSNorm,
    "rms_norm_author": AuthorRMSNorm,
}
