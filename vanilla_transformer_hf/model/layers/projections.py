"""
Projections in training under autocast on a CPU, with less memory than torch's: what they keep for the backward pass.

Shapes: B sentences, T positions, D = width of the states, O = width of a projection's output.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .shared_projections import is_plain


class RoundedProjections(torch.autograd.Function):
    """
    x Wᵀ + b of several W, in a type of fewer bytes. x is rounded once for all of them. Rounded weights are not kept:
    the backward pass rounds them again, which takes a hundredth of its time.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, states: torch.Tensor, *parameters: Any) -> tuple[torch.Tensor, ...]:
        """States (B, T, D), and a weight (O, D) and a bias (O) or None of each map, to the outputs (B, T, O)."""
        low = states.to(dtype)
        ctx.save_for_backward(low, *parameters[::2])
        ctx.exact = states.dtype
        pairs = zip(parameters[::2], parameters[1::2])
        return tuple(F.linear(low, weight.to(dtype), None if b is None else b.to(dtype)) for weight, b in pairs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        low, *weights = ctx.saved_tensors
        d_states, gradients = None, list[torch.Tensor | None]()
        for number, (d_output, weight) in enumerate(zip(d_outputs, weights)):
            d_output = d_output.flatten(0, -2)  # (B T, O)
            if ctx.needs_input_grad[1]:
                part = d_output @ weight.to(low.dtype)  # (B T, D)
                d_states = part.to(ctx.exact) if d_states is None else d_states.add_(part)
            of_weight, of_bias = ctx.needs_input_grad[2 + 2 * number : 4 + 2 * number]
            gradients.append((d_output.t() @ low.flatten(0, -2)).to(weight.dtype) if of_weight else None)
            gradients.append(d_output.sum(dim=0).to(weight.dtype) if of_bias else None)
        return None, None if d_states is None else d_states.view(low.shape), *gradients


def apply_projections(
    projections: Sequence[Callable[[torch.Tensor], torch.Tensor]], states: torch.Tensor
) -> list[torch.Tensor]:
    """
    The outputs (B, T, O) of projections of the same states (B, T, D), to the bit as each by itself. They are called as
    they are where one of them is no plain `nn.Linear`, and where autocast is off.
    """
    low = (
        states.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and all(is_plain(each) for each in projections)  # type: ignore[arg-type]
    )
    if not low:
        return [each(states) for each in projections]
    parameters = [parameter for each in projections for parameter in (each.weight, each.bias)]  # type: ignore[attr-defined]
    return list(RoundedProjections.apply(torch.get_autocast_dtype("cpu"), states, *parameters))


def apply_projection(projection: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """The outputs (B, T, O) of one projection of states (B, T, D)."""
    return apply_projections([projection], states)[0]
