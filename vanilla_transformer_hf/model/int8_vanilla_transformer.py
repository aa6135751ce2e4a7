"""
Linear maps in int8: weights rounded once for each output, states rounded for each row when they come.

A row's result depends on no other row, so a translation does not depend on its batch.

Shapes: R rows, D inputs, O outputs.
"""

import sys
import warnings
import weakref
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import torch
from transformers.utils import logging

from .candidates_vanilla_transformer import ROWS_AT_ONCE, has_int8, int8_product
from .file_pages_vanilla_transformer import Leave, keep_in_memory


logger = logging.get_logger(__name__)

LARGEST = 127
# Significant bits of a step. A whole number of at most 127 times such a step is exact in float32, so rounding a matrix
# that has been rounded before changes nothing.
STEP_BITS = 12
# The step of a row of zero weights, and the largest magnitude of a row of zero states.
SMALLEST = 1e-30
# Rows up to which FBGEMM's kernel is faster than oneDNN's, and a copy of magnitudes costs less than reading twice.
FEW = 64
# Outputs from which it is slower for more rows (512 inputs, 128 rows, one thread: 14.9 against 12.7 ms for 37,000,
# 0.70 against 0.64 for 2,048).
LARGE = 2**14


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    A matrix (O, D) as int8 from -127 to 127 (O, D) and the step of each row (O), in float32: weight ≈ int8 · step.

    Raises:
        ValueError: A weight is infinite or NaN.
    """
    parts, steps = [], []
    for rows in weight.detach().split(ROWS_AT_ONCE):
        rows = rows.float()
        mantissa, exponent = torch.frexp((rows.abs().amax(dim=1) / LARGEST).clamp_(min=SMALLEST))
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


def product_of_few(whole: torch.Tensor, steps: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """
    The same by FBGEMM, which rounds inside: rows (R, D) of numbers from -1 to 1, in float32, become whole numbers from
    -127 to 127. For the few rows of a step it takes less time: all maps of a step of the base model, with one row, 2.8
    instead of 6.6 ms, and as long with 32 (one thread).
    """
    engine, zeros = torch.backends.quantized.engine, torch.zeros_like(steps, dtype=torch.long)
    torch.backends.quantized.engine = "fbgemm"  # which packs the weights
    try:
        with warnings.catch_warnings(category=UserWarning, action="ignore"):  # torch may remove this type one day
            weight = torch._make_per_channel_quantized_tensor(whole, LARGEST * steps, zeros, 0)
        packed = torch.ops.quantized.linear_prepack(weight, None)
    finally:
        torch.backends.quantized.engine = engine
    kernel = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
    return lambda rows: kernel(rows, 1 / LARGEST, 128, packed)


@cache
def has_product_of_few() -> bool:
    """Whether torch has this kernel, and its sums are exact here: without instructions for int8 they are clipped."""
    names = "linear_with_input_q_dq_qweight_dq_output_fp32", "linear_prepack"
    is_there = all(hasattr(torch.ops.quantized, name) for name in names)
    is_there = is_there and hasattr(torch, "_make_per_channel_quantized_tensor")
    if not (is_there and "fbgemm" in torch.backends.quantized.supported_engines):
        return False
    rows = torch.ones(4, 512, device="cpu")
    rows[1], rows[2, ::2], rows[3, :64] = -1, -1, -1
    whole, steps = (rows * LARGEST).to(torch.int8), torch.ones(4, device="cpu")
    return torch.allclose(product_of_few(whole, steps)(rows), rows @ rows.T * LARGEST**2, rtol=1e-6)


class Int8Map:
    """
    States (..., D) to x Wᵀ + b (..., O) with both factors rounded to int8, followed by "none" or "relu".

    Sums are exact integers; everything else is float32. The weights are packed when the first few, and when the first
    many rows come, for the kernel that is faster for so many.

    Args:
        leave: Called with the weight when it has been packed.

    Raises:
        ValueError: When rows come, if a weight is infinite or NaN.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        after: str = "none",
        leave: Leave = keep_in_memory,
    ):
        self.weight, self.after, self.leave = weight, after, leave
        self.bias = None if bias is None else bias.detach().float()
        # Rows up to which the kernel for few rows is used.
        self.most_few = FEW if weight.device.type == "cpu" and has_int8() and has_product_of_few() else 0

    @cached_property
    def few(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """For `divided` rows."""
        return self._made(product_of_few)

    @cached_property
    def many(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """For rows that `LAST_ROUNDED` has rounded."""
        return self._made(int8_product if self.weight.device.type == "cpu" and has_int8() else exact_product)

    def _made(self, make: Callable) -> Callable[[torch.Tensor], torch.Tensor]:
        whole, steps = quantize_rows(self.weight)
        self.leave(self.weight)
        return make(whole, steps / LARGEST)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        is_few = states.numel() <= self.most_few * states.shape[-1]
        rows, largest = divided(states) if is_few else LAST_ROUNDED(states)
        found = self.few(rows) if is_few else self.many(rows)
        found = found.mul_(largest) if self.bias is None else torch.addcmul(self.bias, found, largest, out=found)
        if self.after == "relu":
            found.relu_()
        return found.to(states.dtype).unflatten(0, states.shape[:-1])


def int8_map_of_step(weight: torch.Tensor, *args: Any) -> Int8Map:
    """
    The map for the tokens of one step, or of several hypotheses. With few outputs, the kernel for few rows is as fast
    for many: it is packed at once, and the weight, which may be a copy, is not kept.
    """
    made = Int8Map(weight, *args)
    if made.most_few and len(weight) < LARGE:
        made.few, made.most_few = made._made(product_of_few), sys.maxsize
        made.weight = weight.new_empty(0)
    return made


def divided(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """States (..., D) as rows divided by their largest magnitude (R, D), and that (R, 1), never zero; in float32."""
    rows = states.reshape(-1, states.shape[-1]).float()
    if len(rows) > FEW:
        largest = torch.maximum(rows.amax(dim=1, keepdim=True), rows.amin(dim=1, keepdim=True).neg_())
    else:
        largest = rows.abs().amax(dim=1, keepdim=True)
    largest.clamp_(min=SMALLEST)
    return rows / largest, largest


class LastRounded:
    """
    `divided`, with the rows as whole numbers from -127 to 127. Queries, keys and values, and those of all layers that
    read the source, are maps of the same states: the last result is kept as long as its states are.
    """

    def __init__(self) -> None:
        self.kept: tuple[Any, int, tuple[torch.Tensor, torch.Tensor]] | None = None

    def __call__(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        version = -1 if states.is_inference() else states._version  # -1: changes in place are not counted
        if (kept := self.kept) is not None and kept[0]() is states and kept[1] == version >= 0:
            return kept[2]
        rows, largest = divided(states)
        found = rows.mul_(LARGEST).round_(), largest
        self.kept = weakref.ref(states, self.forget), version, found
        return found

    def forget(self, states: Any) -> None:
        """Free the result for these states, a weak reference."""
        if self.kept is not None and self.kept[0] is states:
            self.kept = None


LAST_ROUNDED = LastRounded()


__all__ = ["Int8Map", "dequantize_rows", "int8_map_of_step", "quantize_rows"]
