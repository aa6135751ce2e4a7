"""Dropout of our own: its share, its scale and its ends."""

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap

from vanilla_transformer_hf.model.layers import parts as dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_keeps_the_share_and_the_scale(p):
    ones = torch.ones(1003, 997, requires_grad=True)
    dropped = dropout.drop_out(ones, p, training=True)
    zero = dropped == 0
    # Five standard deviations, of all values, and of the values of each row and column.
    for dim, size in ((None, ones.numel()), (0, 1003), (1, 997)):
        share = zero.float().mean(dim) if dim is not None else zero.float().mean()
        assert (share - p).abs().max() < 5 * (p * (1 - p) / size) ** 0.5
    assert dropped[~zero].unique().tolist() == pytest.approx([1 / (1 - p)], rel=1e-4)
    (gradient,) = torch.autograd.grad(dropped.sum(), ones)
    assert torch.equal(gradient, dropped), "the same mask on the way back"
    torch.manual_seed(1)
    first = dropout.drop_out(ones, p, training=True)
    torch.manual_seed(1)
    assert torch.equal(dropout.drop_out(ones, p, training=True), first)
    assert not torch.equal(dropout.drop_out(ones, p, training=True), first)


def test_dropout_at_its_ends():
    states = torch.randn(3, 5, 7).transpose(0, 1)
    for p, training in ((0.4, False), (0.0, True)):
        assert torch.equal(dropout.drop_out(states, p, training), states)
    assert not dropout.drop_out(states, 1.0, training=True).any()
    assert dropout.drop_out(states[:0], 0.4, training=True).shape == (0, 3, 7)
    for dtype in (torch.bfloat16, torch.float64):
        dropped = dropout.drop_out(states.to(dtype), 0.5, training=True)
        assert dropped.dtype == dtype
        assert torch.equal(dropped[dropped != 0], 2 * states.to(dtype)[dropped != 0])
    module = dropout.Dropout(0.5)
    assert module(states).eq(0).any() and torch.equal(module.eval()(states), states)


def test_the_mask_is_not_kept():
    states, kept = torch.randn(8, 64).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        dropped = dropout.drop_out(states, 0.5, training=True)
    assert not kept
    # Drawn again on the way back, and on the way back from there.
    (gradient,) = torch.autograd.grad(dropped.square().sum(), states, create_graph=True)
    torch.testing.assert_close(gradient, 2 * dropped * (dropped != 0) * 2)
    (second,) = torch.autograd.grad(gradient.sum(), states)
    torch.testing.assert_close(second, 8.0 * (dropped != 0))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_transforms_of_torch_func_have_torchs_dropout(tiny_model, batch, dtype):
    """`torch.func` computes gradients of each sentence, and derivatives in a direction, of a model in training."""
    model = tiny_model(dropout=0.5, attention_dropout=0.1).train()
    model.set_attn_implementation("eager")  # torch has no derivatives in a direction of its fused kernel
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights, source, labels):
        return functional_call(model, weights, (source[None],), {"labels": labels[None]}).loss

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
        given = batch["input_ids"], batch["decoder_input_ids"]
        each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(weights, *given)
        _, slope = jvp(lambda weights: loss(weights, given[0][0], given[1][0]), (weights,), (weights,))
    assert all(one.isfinite().all() and one.flatten(1).any(dim=1).all() for one in each.values())
    assert slope.isfinite()


def test_without_torchs_private_name_no_transform_runs(monkeypatch):
    assert not dropout.is_traced() and vmap(lambda _: torch.tensor(dropout.is_traced()))(torch.zeros(2)).all()
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    assert not dropout.is_traced() and not vmap(lambda _: torch.tensor(dropout.is_traced()))(torch.zeros(2)).any()
