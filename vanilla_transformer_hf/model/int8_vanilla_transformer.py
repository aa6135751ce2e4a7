"""
Linear maps in int8: weights rounded once for each output, states rounded for each row when they come.

A row's result depends on no other row, so a translation does not depend on its batch.

Shapes: R rows, D inputs, O outputs.
"""

from collections.abc import Callable

import torch
from transformers.utils import logging

from .candidates_vanilla_transformer import ROWS_AT_ONCE, has_int8, int8_product


logger = logging.get_logger(__name__)

LARGEST = 127
# Significant bits of a step. A whole number of at most 127 times such a step is exact in float32, so rounding a matrix
# that has been rounded before changes nothing.
STEP_BITS = 12
# The step of a row of zeros.
SMALLEST_STEP = 1e-30


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    A matrix (O, D) as int8 from -127 to 127 (O, D) and the step of each row (O), in float32: weight ≈ int8 · step.

    Raises:
        ValueError: A weight is infinite or NaN.
    """
    parts, steps = [], []
    for rows in weight.detach().split(ROWS_AT_ONCE):
        rows = rows.float()
        mantissa, exponent = torch.frexp((rows.abs().amax(dim=1) / LARGEST).clamp_(min=SMALLEST_STEP))
        step = torch.ldexp((mantissa * 2**STEP_BITS).round_() / 2**STEP_BITS, exponent)
        if not step.isfinite().all():
            raise ValueError("int8: a weight is infinite or NaN; the model cannot be quantized")
        parts.append((rows / step[:, None]).round_().to(torch.int8))
        steps.append(step)
    return torch.cat(parts), torch.cat(steps)


def dequantize_rows(whole: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """The matrix (O, D) in float32 with these rounded weights and steps."""
    return whole.float() * steps[:, None]


def exact_product(whole: torch.Tensor, steps: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """`int8_product` where the processor has no instructions for it: the same numbers, slowly."""
    logger.warning_once("int8: this device has no fast products of int8; float64 gives the same results, but slowly")
    return lambda rows: (rows.double() @ whole.double().T).float() * steps


def int8_map(
    weight: torch.Tensor, bias: torch.Tensor | None, after: str = "none"
) -> Callable[[torch.Tensor], torch.Tensor]:
    """
    States (..., D) to x Wᵀ + b (..., O) with both factors rounded to int8, followed by "none" or "relu".

    Sums are exact integers; everything else is float32.

    Raises:
        ValueError: A weight is infinite or NaN.
    """
    is_fast = weight.device.type == "cpu" and has_int8()
    product = (int8_product if is_fast else exact_product)(*quantize_rows(weight))
    offset = None if bias is None else bias.detach().float()

    def run(states: torch.Tensor) -> torch.Tensor:
        rows = states.reshape(-1, states.shape[-1]).float()
        step = rows.abs().amax(dim=1, keepdim=True).clamp_(min=SMALLEST_STEP).mul_(1 / LARGEST)
        found = product((rows / step).round_()).mul_(step)
        if offset is not None:
            found.add_(offset)
        if after == "relu":
            found.relu_()
        return found.to(states.dtype).unflatten(0, states.shape[:-1])

    return run


__all__ = ["dequantize_rows", "int8_map", "quantize_rows"]
