"""Products of int8 by each library, against products of whole numbers."""

import os
import subprocess
import sys

import pytest
import torch

from vanilla_transformer_hf.model.packing import int8_products as products


SIZES = [(1, 3000, 512), (33, 2500, 96), (64, 2000, 1024)]
# The flags of the CPU do not say which kernels were asked for.
has_instructions = torch.cpu._is_vnni_supported() and "ONEDNN_MAX_CPU_ISA" not in os.environ
needs_instructions = pytest.mark.skipif(not has_instructions, reason="needs instructions for products of int8")
needs_fbgemm = pytest.mark.skipif(not products.has_fbgemm(), reason="needs FBGEMM")


def extreme_factors(rows, outputs, width):
    """The largest numbers in every order of signs, where instructions for less would clip: (R, D) and (O, D)."""
    states, weight = (127 * (2 * torch.randint(0, 2, (size, width)) - 1) for size in (rows, outputs))
    states[0] = weight[0] = 127
    weight[1] = -127
    return states, weight


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(products.onednn_product, marks=needs_instructions),
        pytest.param(products.product_of_halves, marks=needs_fbgemm),
        products.float64_product,
    ],
)
def test_products_are_exact(make, sizes):
    states, weight = extreme_factors(*sizes)
    found = make(weight.to(torch.int8), torch.full((len(weight),), 0.5))(states.float())
    assert torch.equal(found.double(), 0.5 * (states @ weight.T).double())
    view = weight.to(torch.int8).T.contiguous().T  # whose rows do not lie in a row
    assert torch.equal(make(view, torch.full((len(weight),), 0.5))(states.float()), found)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(products.onednn_product, marks=needs_instructions),
        pytest.param(products.product_of_halves, marks=needs_fbgemm),
    ],
)
def test_products_are_those_of_float64_to_the_last_bit(make):
    generator = torch.Generator().manual_seed(0)
    states, weight = (torch.randint(-127, 128, (size, 512), generator=generator) for size in (9, 40))
    weight, steps = weight.to(torch.int8), torch.rand(40, generator=generator)
    assert torch.equal(make(weight, steps)(states.float()), products.float64_product(weight, steps)(states.float()))


@needs_fbgemm
@needs_instructions
def test_the_kernel_that_rounds_inside_is_used():
    assert products.has_rounding_product()


@needs_fbgemm
def test_rows_of_seven_bits_are_multiplied_exactly_by_every_kernel():
    assert products.has_rounding_product(products.LARGEST_REDUCED)
    states, weight = extreme_factors(33, 2500, 96)
    product = products.rounding_product(weight.to(torch.int8), torch.full((2500,), 0.5), products.LARGEST_REDUCED)
    torch.testing.assert_close(
        product(states / 127).double(), 0.5 * 63 / 127 * (states @ weight.T).double(), rtol=1e-6, atol=0
    )


@needs_fbgemm
def test_packing_leaves_the_engine_as_it_was():
    engine = torch.backends.quantized.engine
    products.packed_for_fbgemm(torch.ones(4, 8, dtype=torch.int8), torch.ones(4))
    assert torch.backends.quantized.engine == engine


def test_a_processor_of_this_kind_has_fast_products():
    if not (products.has_onednn() and products.has_fbgemm()):
        pytest.skip("torch has neither library here")
    # Without AVX-512 a processor may have instructions for oneDNN alone (AVX-VNNI).
    possible = {products.onednn_product} | (set() if has_instructions else {products.product_of_halves})
    assert products.fast_product() in possible


@pytest.mark.slow
def test_a_library_that_clips_is_not_used():
    code = "from vanilla_transformer_hf.model.packing.int8_products import *; print(fast_product().__name__)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "product_of_halves\n", done.stderr


@needs_fbgemm
@pytest.mark.parametrize("taken, is_used", [(0.008, True), (0.2, False)])
def test_a_plain_loop_is_not_used(monkeypatch, taken, is_used):
    """Libraries fall back to it without a word. A thread that had to wait for the processor is no plain loop."""
    monkeypatch.setattr(products, "seconds", lambda function, rows: 3e-5 if "rmatmul" in str(function) else taken)
    assert products.is_fast_and_exact(products.product_of_halves) == is_used
