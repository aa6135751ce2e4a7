"""
Linear maps in int8: weights rounded once for each output, states rounded for each row when they come.

A row's result depends on no other row, so a translation does not depend on its batch.

Shapes: R rows, D inputs, O outputs.
"""

import sys
from collections.abc import Sequence
from functools import cached_property, partial

import torch

from ..layers.parts import LastResult
from .int8_products import (
    LARGEST,
    LARGEST_REDUCED,
    MakeProduct,
    Product,
    fast_product,
    float64_product,
    has_rounding_product,
    product_of_halves,
    rounding_product,
    warn_once,
)
from .most_likely import ROWS_AT_ONCE
from .packed import MAKERS, joined


# Significant bits of a step. A whole number of at most 127 times such a step is exact in float32, so rounding a matrix
# that has been rounded before changes nothing.
STEP_BITS = 12
# The step of a row of zero weights, and the largest magnitude of a row of zero states.
SMALLEST = 1e-30
# Rows up to which FBGEMM's kernel is faster than oneDNN's, and a copy of magnitudes costs less than reading twice.
FEW_INT8_ROWS = 64
# Outputs from which it is slower for more rows (512 inputs, 128 rows, one thread: 14.9 against 12.7 ms for 37,000,
# 0.70 against 0.64 for 2,048).
LARGE_INT8_MAP = 2**14


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix (O, D) as int8 from -127 to 127 and the step of each row (O), in float32: weight ≈ int8 · step."""
    layout = torch.contiguous_format  # also of a weight that is a transposed view
    found, steps = torch.empty_like(weight, dtype=torch.int8, requires_grad=False, memory_format=layout), []
    for part, place in zip(weight.detach().split(ROWS_AT_ONCE), found.split(ROWS_AT_ONCE), strict=True):
        rows = part.float()
        mantissa, exponent = torch.frexp((rows.abs().amax(dim=1) / LARGEST).clamp_(min=SMALLEST))
        step = torch.ldexp((mantissa * 2**STEP_BITS).round_() / 2**STEP_BITS, exponent)
        if not step.isfinite().all():
            raise ValueError("int8: a weight is infinite or NaN; the model cannot be quantized")
        place.copy_((rows / step[:, None]).round_())
        steps.append(step)
    return found, torch.cat(steps)


def dequantize_rows(whole: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """The matrix (O, D) in float32 with these rounded weights and steps."""
    return whole.float() * steps[:, None]


class Int8Map:
    """States (..., D) to x Wᵀ + b (..., O) with both factors rounded to int8, followed by "none" or "relu"."""

    # W has the rows of all `weights`. Sums are exact integers; everything else is float32. The weights are packed when
    # the first few, and when the first many rows come, for the kernel that is faster for so many; infinite or NaN,
    # they are a `ValueError` then. `largest` is the largest number of a rounded state: of `LARGEST_REDUCED`, one
    # kernel is for all rows.

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        bias: torch.Tensor | None,
        after: str = "none",
        largest: int = LARGEST,
    ):
        self.weights, self.after, self.largest = weights, after, largest
        self.device = weights[0].device
        self.bias = None if bias is None else bias.detach().float()
        # Rows up to which the kernel for few rows is used.
        self.most_few = 0
        if self.device.type == "cpu" and has_rounding_product(largest):
            self.most_few = FEW_INT8_ROWS if largest == LARGEST else sys.maxsize

    @cached_property
    def few(self) -> Product:
        """For `divided` rows."""
        return self._made(partial(rounding_product, largest=self.largest))

    @cached_property
    def many(self) -> Product:
        """For rounded rows."""
        return self._made(self.make_many)

    @property
    def make_many(self) -> MakeProduct:
        """What makes `many`."""
        make = fast_product() if self.device.type == "cpu" else None
        if make is product_of_halves:
            warn_once(
                "int8: this CPU has no instructions for it; int8_reduced takes half the time, with inputs in 7 bits"
            )
        return make or float64_product

    def _made(self, make: MakeProduct) -> Product:
        parts = [quantize_rows(weight) for weight in self.weights]
        whole, steps = map(joined, zip(*parts))
        return make(whole, steps / self.largest)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        is_few = states.numel() <= self.most_few * states.shape[-1]
        if is_few:
            rows, largest = divided(states)
        else:
            rows, largest = (LAST_ROUNDED if self.largest == LARGEST else REDUCED_ROUNDED)(states)
        found = self.few(rows) if is_few else self.many(rows)
        found = found.mul_(largest) if self.bias is None else torch.addcmul(self.bias, found, largest, out=found)
        if self.after == "relu":
            found.relu_()
        outputs: torch.Tensor = found.to(states.dtype).unflatten(0, states.shape[:-1])
        return outputs


def int8_map_of_step(
    weights: Sequence[torch.Tensor], bias: torch.Tensor | None, after: str = "none", largest: int = LARGEST
) -> Int8Map:
    """The map for the tokens of one step, or of several hypotheses."""
    # With few outputs, the kernel for few rows is as fast for many. Where one kernel is enough, it is packed at once,
    # and the weights, which may be copies, are not kept.
    made = Int8Map(weights, bias, after=after, largest=largest)
    if made.most_few == FEW_INT8_ROWS and sum(map(len, weights)) >= LARGE_INT8_MAP:
        return made
    if made.most_few:
        made.few, made.most_few = made._made(partial(rounding_product, largest=largest)), sys.maxsize
    else:
        made.many = made._made(made.make_many)
    made.weights = ()
    return made


def divided(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """States (..., D) as rows divided by their largest magnitude (R, D), and that (R, 1), never zero; in float32."""
    rows = states.reshape(-1, states.shape[-1]).float()
    if len(rows) > FEW_INT8_ROWS:
        largest = torch.maximum(rows.amax(dim=1, keepdim=True), rows.amin(dim=1, keepdim=True).neg_())
    else:
        largest = rows.abs().amax(dim=1, keepdim=True)
    largest.clamp_(min=SMALLEST)
    return rows / largest, largest


def rounded_rows(states: torch.Tensor, most: int = LARGEST) -> tuple[torch.Tensor, torch.Tensor]:
    """`divided`, with the rows as whole numbers from -`most` to `most`."""
    rows, largest = divided(states)
    return rows.mul_(most).round_(), largest


LAST_ROUNDED = LastResult(rounded_rows)
REDUCED_ROUNDED = LastResult(partial(rounded_rows, most=LARGEST_REDUCED))
MAKERS |= {
    "int8": (int8_map_of_step, Int8Map),
    "int8_reduced": (partial(int8_map_of_step, largest=LARGEST_REDUCED), partial(Int8Map, largest=LARGEST_REDUCED)),
}
