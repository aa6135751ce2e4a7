"""Norms that the paper's model does not have; those of torch stand in `parts.py`."""

import torch
from torch import nn
from transformers import initialization as init

from .parts import NORMS


class AuthorRMSNorm(nn.RMSNorm):
    """x / (√mean(x²) + ε) · γ; Zhang and Sennrich 2019, arXiv 1910.07467, with ε where their code has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = x.float()
        states = states / (states.square().mean(dim=-1, keepdim=True).sqrt() + self.eps)  # type: ignore[operator]  # the config has one
        return states.to(x.dtype) * self.weight


class TokenBatchNorm(nn.Module):
    """(x - mean) / √(variance + ε) · γ + β of each feature over the tokens of a batch: arXiv 1502.03167."""

    # Ioffe and Szegedy 2015; in evaluation with the running averages of mean and variance, as torch.nn.BatchNorm1d of
    # the tokens without padding; each process of a distributed training has statistics of its own.

    # The part that a batch has in the running averages.
    momentum = 0.1
    running_mean: torch.Tensor
    running_variance: torch.Tensor
    # Which positions are tokens (B, T), as `note_tokens` says before the layers of a stack run; None: all.
    tokens: torch.Tensor | None = None

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.register_buffer("running_mean", torch.empty(width))
        self.register_buffer("running_variance", torch.empty(width))
        self.draw()

    def draw(self) -> None:
        """Make it the identity of standardised states, as before any training."""
        for ones in (self.weight, self.running_variance):
            init.ones_(ones)
        for zeros in (self.bias, self.running_mean):
            init.zeros_(zeros)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = self.statistics(x) if self.training else (self.running_mean, self.running_variance)
        normalised = (x - mean) * torch.rsqrt(variance + self.eps)
        return (normalised * self.weight + self.bias).to(x.dtype)

    def statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance (D) over the tokens of the states (B, T, D), which also enter the running averages."""
        states = x.to(torch.promote_types(x.dtype, torch.float32))
        part = states.new_ones(x.shape[:-1]) if self.tokens is None else self.tokens.to(states.dtype)
        part = part[..., None]  # 1 for a token, 0 for padding
        count = part.sum()
        mean = (states * part).sum(dim=(0, 1)) / count
        variance = ((states - mean).square() * part).sum(dim=(0, 1)) / count
        with torch.no_grad():
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
            self.running_variance.lerp_(unbiased.to(self.running_variance), self.momentum)
        return mean, variance

    @classmethod
    def note_tokens(cls, stack: nn.Module, padding: torch.Tensor | None, length: int) -> None:
        """Tell the norms of a stack in training which of the last `length` of `padding` (B, past + T) are tokens."""
        if padding is not None and padding.dim() != 2:
            raise ValueError(
                f"attention_mask of shape {tuple(padding.shape)}: in training, norm_type='batch_norm' takes one of "
                "shape (B, T), with 1 for a token and 0 for padding"
            )
        for module in stack.modules():
            if isinstance(module, cls):
                module.tokens = None if padding is None else padding[:, -length:]


NORMS |= {"rms_norm_author": AuthorRMSNorm, "batch_norm": TokenBatchNorm}
