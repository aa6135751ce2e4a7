"""int8 in the search, against float64 and against the same model whose linear maps round their inputs."""

import copy

import pytest
import torch
from torch import nn

from vanilla_transformer_hf import VanillaTransformerForCausalLM
from vanilla_transformer_hf.model.layers.parts import LastResult, Linear
from vanilla_transformer_hf.model.packing import int8 as int8_module
from vanilla_transformer_hf.model.packing.int8 import (
    FEW_INT8_ROWS,
    Int8Map,
    dequantize_rows,
    int8_map_of_step,
    quantize_rows,
)
from vanilla_transformer_hf.model.packing.int8_products import (
    LARGEST,
    LARGEST_REDUCED,
    float64_product,
    has_rounding_product,
    product_of_halves,
)
from vanilla_transformer_hf.model.packing.packed import MAKERS, StepWeights


def matrix(outputs, inputs):
    """Rows of very different sizes, one of them zeros."""
    sizes = torch.logspace(-6, 3, outputs)[:, None]
    sizes[0] = 0
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(inputs)) * sizes


def rounded_to(values, steps):
    """Multiples of the steps (R, 1), as the documentation defines rounding."""
    return (values.double() / steps.double()).round() * steps.double()


@pytest.mark.parametrize("shape", [(7, 5), (40, 512), (33, 2048)], ids=str)
def test_rounded_weights_are_near_and_stay_the_same_when_rounded_again(shape):
    weight = matrix(*shape)
    whole, steps = quantize_rows(weight)
    assert whole.dtype == torch.int8 and whole.abs().max() == 127
    near = dequantize_rows(whole, steps)
    assert torch.equal(near.double(), whole.double() * steps.double()[:, None])  # exact in float32
    assert ((near - weight).abs() <= 0.5001 * steps[:, None]).all()
    again, same_steps = quantize_rows(near)
    assert torch.equal(again, whole) and torch.equal(same_steps, steps)


def test_a_transposed_view_is_rounded_like_its_copy():
    weight = matrix(96, 48).T
    (whole, steps), (expected, same_steps) = quantize_rows(weight), quantize_rows(weight.contiguous())
    assert whole.is_contiguous() and torch.equal(whole, expected) and torch.equal(steps, same_steps)


@pytest.mark.parametrize("most", [LARGEST, LARGEST_REDUCED])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_rounded_factors(bias, most):
    weight, states = matrix(48, 96), torch.randn(3, 5, 96, generator=torch.Generator().manual_seed(1))
    offset = torch.linspace(-1, 1, 48) if bias else None
    found = Int8Map([weight], offset, "relu", most)(states)
    steps = states.abs().amax(dim=-1, keepdim=True) / most
    whole, weight_steps = quantize_rows(weight)
    expected = rounded_to(states, steps) @ dequantize_rows(whole, weight_steps).double().T
    expected = (expected + (0 if offset is None else offset)).relu()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    # And near the product of the factors as they are: half a step each, times the other factor.
    exact = (states.double() @ weight.double().T + (0 if offset is None else offset)).relu()
    loss = states.abs().sum(dim=-1, keepdim=True) * weight_steps / 2 + 97 / 2 * 127 * weight_steps * steps
    assert ((found - exact).abs() <= 1.01 * loss + 1e-6).all()


@pytest.mark.parametrize("most", [LARGEST, LARGEST_REDUCED])
def test_a_row_depends_on_no_other_row(most):
    apply, states = (
        Int8Map([matrix(48, 96)], torch.ones(48), largest=most),
        torch.randn(9, 96) * torch.logspace(-3, 3, 9)[:, None],
    )
    assert torch.equal(apply(states)[3], apply(states[3:4])[0])
    assert torch.equal(apply(states.bfloat16())[3], apply(states[3:4].bfloat16())[0])


@pytest.mark.parametrize("make", MAKERS["int8"] + MAKERS["int8_reduced"])
def test_without_fast_products_of_int8_the_numbers_are_the_same(monkeypatch, make):
    weight, states = matrix(48, 96), torch.randn(FEW_INT8_ROWS + 1, 96)
    found = make([weight], None)(states)
    monkeypatch.setattr(int8_module, "fast_product", lambda: None)
    monkeypatch.setattr(int8_module, "has_rounding_product", lambda largest: False)
    torch.testing.assert_close(make([weight], None)(states), found, rtol=1e-6, atol=0)
    assert Int8Map([weight], None).make_many is float64_product


@pytest.mark.skipif(not has_rounding_product(), reason="needs FBGEMM and instructions for int8")
@pytest.mark.parametrize("shape", [(40, 512), (33, 2048), (7, 5)], ids=str)
def test_the_kernel_that_rounds_inside_gives_the_same_numbers(shape):
    weight = matrix(*shape)
    states = torch.randn(9, shape[1], generator=torch.Generator().manual_seed(2))
    states[3], states[5] = 0, 1  # no magnitude, and only the largest
    many = Int8Map([weight], None)(states.repeat(FEW_INT8_ROWS, 1))
    torch.testing.assert_close(Int8Map([weight], None)(states).repeat(FEW_INT8_ROWS, 1), many, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        int8_map_of_step([weight], None)(states.repeat(FEW_INT8_ROWS, 1)), many, rtol=1e-6, atol=0
    )


def test_maps_of_the_same_states_round_them_once(monkeypatch):
    rounded = LastResult(int8_module.rounded_rows)
    monkeypatch.setattr(int8_module, "LAST_ROUNDED", rounded)
    first, second = Int8Map([matrix(48, 96)], None), Int8Map([matrix(32, 96)], None)
    states = torch.randn(FEW_INT8_ROWS + 1, 96)
    first(states)
    kept = rounded.kept
    before = second(states)
    assert rounded.kept is kept
    states.mul_(2)  # seen, and rounded again
    assert torch.equal(second(states), 2 * before) and rounded.kept is not kept
    del states
    assert rounded.kept is None
    with torch.inference_mode():  # changes in place are not counted there
        states = torch.randn(FEW_INT8_ROWS + 1, 96)
        before = first(states)
        states.mul_(2)
        assert torch.equal(first(states), 2 * before)


def test_weights_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="a weight is infinite or NaN"):
        quantize_rows(torch.tensor([[1.0, torch.nan]]))


def test_a_cpu_without_instructions_for_it_is_told_what_is_faster(monkeypatch):
    said = []
    monkeypatch.setattr(int8_module, "fast_product", lambda: product_of_halves)
    monkeypatch.setattr(int8_module, "warn_once", said.append)
    assert Int8Map([matrix(48, 96)], None).make_many is product_of_halves
    assert said == [
        "int8: this CPU has no instructions for it; int8_reduced takes half the time, with inputs in 7 bits"
    ]


class RoundingLinear(nn.Linear):
    """A linear map written down plainly, for transformers' own loops: rounded factors, multiplied in float64."""

    largest = LARGEST

    def forward(self, states):
        whole, steps = quantize_rows(self.weight)
        largest = states.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)
        numbers = (states / largest * self.largest).round().double() @ whole.double().T
        found = numbers.float() * (steps / self.largest) * largest
        return found if self.bias is None else found + self.bias


def rounding(model, most=LARGEST):
    """A copy all of whose linear maps round. They are not plain, so the search runs them as they are."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module) in (nn.Linear, Linear):
            module.__class__, module.largest = RoundingLinear, most
    return model


@pytest.mark.parametrize(("name", "most"), [("int8", LARGEST), ("int8_reduced", LARGEST_REDUCED)])
@pytest.mark.parametrize("options", [{}, {"num_beams": 4, "num_return_sequences": 4}], ids=["greedy", "beams"])
def test_translations_are_those_of_the_model_whose_maps_round(decided_model, source, options, name, most):
    model = decided_model()
    found = model.generate(**source, **options, max_new_tokens=12, quantization=name)
    assert torch.equal(found, rounding(model, most).generate(**source, **options, max_new_tokens=12))
    alone = {name: tensor[1:2] for name, tensor in source.items()}
    size = options.get("num_return_sequences", 1)
    single = model.generate(**alone, **options, max_new_tokens=12, quantization=name)
    assert torch.equal(single, found[size : 2 * size, : single.shape[1]])
    assert (found[size : 2 * size, single.shape[1] :] == model.config.pad_token_id).all()


def test_a_language_model_rounds_in_its_prompt_too(tiny_config):
    torch.manual_seed(0)
    model = VanillaTransformerForCausalLM(tiny_config()).eval()
    prompt = torch.randint(3, 90, (2, 5))
    found = model.generate(prompt, max_new_tokens=8, quantization="int8")
    assert torch.equal(found, rounding(model).generate(prompt, max_new_tokens=8))


def test_a_call_without_it_is_exact_again(decided_model, source):
    model = decided_model()
    before = model.generate(**source, num_beams=2, max_new_tokens=8, return_dict_in_generate=True).sequences_scores
    rough = model.generate(
        **source, num_beams=2, max_new_tokens=8, return_dict_in_generate=True, quantization="int8"
    ).sequences_scores
    after = model.generate(**source, num_beams=2, max_new_tokens=8, return_dict_in_generate=True).sequences_scores
    assert torch.equal(before, after) and not torch.equal(before, rough)
    assert StepWeights.of(model).quantization is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int4"}, "quantization='int4': expected 'int8', 'int8_reduced' or None"),
        ({"quantization": "int8", "use_cache": False}, "quantization: not possible together with use_cache=False"),
    ],
    ids=["unknown", "without a cache"],
)
def test_refusals(decided_model, source, options, message):
    with pytest.raises(ValueError, match=message):
        decided_model().generate(**source, **options, max_new_tokens=2)


def test_a_shortlist_has_int8_logits(decided_model, source):
    model, ids = decided_model(), list(range(1, 60))
    options = {"num_beams": 2, "max_new_tokens": 6, "quantization": "int8", "shortlist": ids}
    found = model.generate(**source, **options)
    plain = rounding(model).generate(**source, num_beams=2, max_new_tokens=6, shortlist=ids)
    assert torch.equal(found, plain)
