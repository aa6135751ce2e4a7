"""Linear layers in training under autocast: torch's own numbers, and less kept in memory."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from vanilla_transformer_hf.model.layers.parts import Linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_are_torchs_to_the_bit(dtype, bias):
    leaf = torch.randn(3, 5, 16).to(dtype).requires_grad_()
    upstream = [torch.randn(3, 5, width).bfloat16() for width in (8, 24)]
    results, weights = [], None
    for kind in (nn.Linear, Linear):
        maps = nn.ModuleList(kind(16, width, bias=bias) for width in (8, 24))
        weights = weights or maps.state_dict()
        maps.load_state_dict(weights)
        with torch.autocast("cpu", torch.bfloat16):
            states = leaf.clone()
            outputs = [each(states) for each in maps]
        results.append([*outputs, *torch.autograd.grad(outputs, [leaf, *maps.parameters()], upstream)])
    for expected, found in zip(*results, strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_they_keep_the_rounded_states_once_and_no_rounded_weights():
    maps, kept = [Linear(16, 16) for _ in range(3)], []
    states = torch.randn(3, 5, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        for each in maps:
            each(states)
    new = [tensor for tensor in kept if all(tensor.data_ptr() != each.weight.data_ptr() for each in maps)]
    assert {(tensor.dtype, tensor.shape) for tensor in new} == {(torch.bfloat16, states.shape)}
    assert len({tensor.data_ptr() for tensor in new}) == 1


def test_frozen_weights_have_no_gradients_and_hooks_run():
    maps = [Linear(16, 16).requires_grad_(False), Linear(16, 16)]
    states = torch.randn(3, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        sum(each(states) for each in maps).float().sum().backward()
        assert maps[0].weight.grad is None and maps[0].bias.grad is None and maps[1].weight.grad.any()
        maps[0].register_forward_hook(lambda module, inputs, output: output * 0)
        assert not maps[0](states).any()
    assert maps[1](states).dtype == torch.float32  # without autocast
