"""Losses of logits that are computed a few rows at a time, so that a processor's cache holds what they need."""

from collections.abc import Iterator
from typing import Any

import torch

from ..model.loss_vanilla_transformer import scaled


# Logits that are processed at once: they fit into a processor's cache, which halves the time. An accelerator processes
# more, to launch fewer kernels.
VALUES_AT_ONCE = 2**16
VALUES_AT_ONCE_ELSEWHERE = 2**24


class LossByRows(torch.autograd.Function):
    """
    A loss whose `forward` also computes the gradient by its first argument, the logits: it saves that gradient, or
    None, and keeps the logits' type as `ctx.dtype`. `backward` only scales it.
    """

    @staticmethod
    def gradient_of(logits: torch.Tensor, exact: torch.dtype) -> torch.Tensor:
        """An empty gradient; float16 would underflow before backward scales it."""
        return torch.empty_like(logits, dtype=exact if logits.dtype == torch.float16 else logits.dtype)

    @staticmethod
    def rows_of(logits: torch.Tensor, count: int) -> Iterator[slice]:
        """Slices of `count` rows of logits (..., V)."""
        at_once = VALUES_AT_ONCE if logits.device.type == "cpu" else VALUES_AT_ONCE_ELSEWHERE
        step = max(1, at_once // logits.shape[-1])
        return (slice(start, start + step) for start in range(0, count, step))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        gradient = scaled(gradient, factor)
        others = (None,) * (len(ctx.needs_input_grad) - 1)
        return None if gradient is None else gradient.to(ctx.dtype), *others
