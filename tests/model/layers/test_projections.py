"""Linear maps in training under autocast: torch's own numbers, and less kept in memory."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from vanilla_transformer_hf.model.layers import projections as module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_are_those_of_the_modules_to_the_bit(dtype, bias):
    maps = [nn.Linear(16, width, bias=bias) for width in (8, 24)]
    leaf = torch.randn(3, 5, 16).to(dtype).requires_grad_()
    upstream = [torch.randn(3, 5, width).bfloat16() for width in (8, 24)]
    leaves = [leaf, *(parameter for each in maps for parameter in each.parameters())]
    results = []
    for apply in (lambda: [each(leaf.clone()) for each in maps], lambda: module.apply_projections(maps, leaf)):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = apply()
        results.append([*outputs, *torch.autograd.grad(outputs, leaves, upstream)])
    for expected, found in zip(*results, strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_it_keeps_the_rounded_states_once_and_no_rounded_weights():
    maps, kept = [nn.Linear(16, 16) for _ in range(3)], []
    states = torch.randn(3, 5, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        module.apply_projections(maps, states)
    new = [tensor for tensor in kept if all(tensor.data_ptr() != each.weight.data_ptr() for each in maps)]
    assert [(tensor.dtype, tensor.shape) for tensor in new] == [(torch.bfloat16, states.shape)]


def test_frozen_weights_have_no_gradients_and_other_modules_are_called():
    maps = [nn.Linear(16, 16).requires_grad_(False), nn.Linear(16, 16)]
    states = torch.randn(3, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        sum(module.apply_projections(maps, states)).float().sum().backward()
        assert maps[0].weight.grad is None and maps[0].bias.grad is None and maps[1].weight.grad.any()
        maps[0].register_forward_hook(lambda module, inputs, output: output * 0)
        assert not module.apply_projections(maps, states)[0].any()
    assert module.apply_projections(maps[1:], states)[0].dtype == torch.float32  # without autocast
