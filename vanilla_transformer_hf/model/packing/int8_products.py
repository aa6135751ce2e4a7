"""
Products with a matrix of int8 by the libraries that torch has.

All are exact: sums of whole numbers, rounded to float32 at the end. So a product does not depend on the other rows.

Shapes: R rows, D inputs, O outputs.
"""

import logging
import timeit
import warnings
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import torch


warn_once = cache(logging.getLogger(__name__).warning)

# The largest whole number of a row. With the second, which has seven bits, no two products are too large for 16 bits.
LARGEST, LARGEST_REDUCED = 127, 63
# Rows (R, D) to products with a matrix (R, O), and what makes it of the matrix in int8 (O, D) and its steps (O).
Product: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
MakeProduct: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Product]
# The kernel of FBGEMM for states in float32, which it rounds itself.
FBGEMM = "linear_with_input_q_dq_qweight_dq_output_fp32"
# Seconds that a busy machine may keep a thread waiting. 32 x 512 x 128 takes a plain loop 0.2.
PAUSE = 0.05


def onednn_product(weight: torch.Tensor, steps: torch.Tensor) -> Product:
    """Whole numbers (R, D) from -128 to 127 times int8 (O, D), each times its step (O): float32 (R, O)."""
    # By oneDNN, for CPUs with instructions for int8.
    # It reads the rows of a transposed view as if they lay one after the other.
    packed = torch.ops.onednn.qlinear_prepack(weight.contiguous(), None)
    zeros = torch.zeros_like(steps, dtype=torch.long)

    # Unsigned, as the instructions take one factor: for signed rows oneDNN 3.12 runs a plain loop on some CPUs,
    # which takes ten thousand times as long (711 against 0.07 ms for 32 x 512 x 512, AMD with AVX-512 VNNI). The sum
    # wraps around; torch converts to int8 three times as fast as to uint8.
    def product(rows: torch.Tensor) -> torch.Tensor:
        unsigned = rows.to(torch.int8).view(torch.uint8).add_(128)
        # Scale and zero point of the rows; the matrix with its own; bias; scale, zero point, type of the output; the
        # operation after it.
        products: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, 128, packed, steps, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return products

    return product


def packed_for_fbgemm(weight: torch.Tensor, steps: torch.Tensor) -> torch.ScriptObject:
    """The matrix (O, D) with these steps (O), as `FBGEMM` reads it."""
    engine, zeros = torch.backends.quantized.engine, torch.zeros_like(steps, dtype=torch.long)
    torch.backends.quantized.engine = "fbgemm"  # which packs the weights
    try:
        with warnings.catch_warnings(category=UserWarning, action="ignore"):  # torch may remove this type one day
            quantized = torch._make_per_channel_quantized_tensor(weight, steps, zeros, 0)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, None)
        return packed
    finally:
        torch.backends.quantized.engine = engine


def product_of_halves(weight: torch.Tensor, steps: torch.Tensor) -> Product:
    """Exact product by FBGEMM, on CPUs with AVX2 alone."""
    # They add products in pairs in 16 bits, and clip them: 255 · 127 twice is too large. Here rows are the sum of two
    # of at most 64, as 128 · 127 twice is not. One thread of such a CPU (AMD Zen 3), 512 x 2,048: 0.07 ms for one row,
    # where float32 takes 0.11; 0.23 and 0.30 for eight, 0.86 and 0.96 for 32, 27.7 and 29.8 for 1,024.
    kernel, packed = getattr(torch.ops.quantized, FBGEMM).default, packed_for_fbgemm(weight, torch.ones_like(steps))
    quarters = torch.tensor([[[-0.25]], [[0.25]]], device="cpu")

    def product(rows: torch.Tensor) -> torch.Tensor:
        # The kernel rounds them to the half below and the half above.
        halves = torch.add(quarters, rows.float(), alpha=0.5).flatten(0, 1)
        sums: torch.Tensor = kernel(halves, 1.0, 64, packed)
        below, above = sums.chunk(2)
        return below.add_(above).mul_(steps)  # the whole sum is rounded once, as by oneDNN

    return product


def float64_product(weight: torch.Tensor, steps: torch.Tensor) -> Product:
    """The exact product on every device, in float64, slowly."""
    warn_once("int8: this device has no fast products of int8; float64 gives the same results, but slowly")
    return lambda rows: (rows.double() @ weight.double().T).float() * steps


def rounding_product(weight: torch.Tensor, steps: torch.Tensor, largest: int = LARGEST) -> Product:
    """Product by FBGEMM, which rounds numbers from -1 to 1 (R, D), in float32, to whole ones up to `largest`."""
    # With 127, for CPUs with instructions for int8. For the few rows of a step it is faster than oneDNN's: all maps of
    # a step of the base model, with one row, take 2.8 instead of 6.6 ms, and as long with 32 (one thread). With 63,
    # for CPUs with AVX2 too, in half the time of `product_of_halves` (one thread of an AMD processor as one with AVX2
    # alone, 512 x 2,048: 0.026 ms for one row, 0.27 for 32, 1.06 for 128, where float32 takes 0.053, 0.66 and 2.38).
    packed, kernel = packed_for_fbgemm(weight, largest * steps), getattr(torch.ops.quantized, FBGEMM).default
    return lambda rows: kernel(rows, 1 / largest, largest + 1, packed)


def has_onednn() -> bool:
    """Whether torch has oneDNN's kernel for this CPU."""
    is_there = torch.backends.cpu.get_cpu_capability().startswith("AVX") and torch.backends.mkldnn.is_available()
    return is_there and hasattr(torch.ops.onednn, "qlinear_pointwise")


def has_fbgemm() -> bool:
    """Whether torch has FBGEMM's kernel for this CPU."""
    is_there = all(hasattr(torch.ops.quantized, name) for name in (FBGEMM, "linear_prepack"))
    is_there = is_there and hasattr(torch, "_make_per_channel_quantized_tensor")
    return is_there and "fbgemm" in torch.backends.quantized.supported_engines


def extremes() -> torch.Tensor:
    """The largest numbers in all pairs of signs: which of them clip depends on how a library shifts signed numbers."""
    rows = torch.full((32, 512), LARGEST, dtype=torch.float32, device="cpu")
    rows[1], rows[2, ::2], rows[3, :64] = -LARGEST, -LARGEST, -LARGEST
    return rows


def is_fast_and_exact(make: MakeProduct) -> bool:
    """Whether the products are exact here and not made by a plain loop; some clip without instructions for int8."""
    rows = extremes()
    weight = rows.repeat(4, 1)
    product = make(weight.to(torch.int8), torch.ones_like(weight[:, 0]))
    if not torch.equal(product(rows), rows @ weight.T):
        return False
    # A plain loop takes a thousand times as long as these products in float32; the instructions take less.
    return seconds(product, rows) < 20 * seconds(weight.T.__rmatmul__, rows) + PAUSE


def seconds(function: Product, rows: torch.Tensor) -> float:
    """The shortest of a few calls."""
    return min(timeit.repeat(lambda: function(rows), number=1, repeat=3))


@cache
def fast_product() -> MakeProduct | None:
    """Which function makes fast, exact products of int8 on this CPU; None if none does."""
    if has_onednn() and is_fast_and_exact(onednn_product):
        return onednn_product
    return product_of_halves if has_fbgemm() and is_fast_and_exact(product_of_halves) else None


@cache
def has_rounding_product(largest: int = LARGEST) -> bool:
    """Whether `rounding_product` is exact here, and of 127, `onednn_product` fast for many rows."""
    if not has_fbgemm() or (largest == LARGEST and fast_product() is not onednn_product):
        return False
    rows = extremes()
    product = rounding_product(rows.to(torch.int8), torch.ones_like(rows[:, 0]), largest)
    return torch.allclose(product(rows / LARGEST), rows @ rows.T * largest / LARGEST, rtol=1e-6)
