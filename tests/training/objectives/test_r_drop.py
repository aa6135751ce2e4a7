"""R-Drop against the equations of its paper."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vanilla_transformer_hf.model.layers import loss as loss_module
from vanilla_transformer_hf.training.objectives.losses import r_drop_rows


def r_drop_loss(logits, labels, smoothing, weight, count=None):
    return loss_module.loss_by_rows(logits, labels, partial(r_drop_rows, smoothing, weight), count)


def r_drop_by_the_equations(logits, labels, smoothing, weight):
    """Equation 4 of arXiv 2106.14448, a sentence and a position at a time; half of it, over the labels that count."""
    first, second = logits.double().chunk(2)
    total, count = 0.0, 0
    for one, two, row in zip(first, second, labels):
        for p, q, label in zip(one.softmax(-1), two.softmax(-1), row):
            if label == -100:
                continue
            wanted = torch.full_like(p, smoothing / len(p))
            wanted[label] += 1 - smoothing
            likelihood = -(wanted * p.log()).sum() - (wanted * q.log()).sum()
            divergence = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
            total += likelihood + weight / 2 * divergence
            count += 1
    return total / 2 / count


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_it_is_the_papers_equation(smoothing, weight):
    logits, labels = torch.randn(6, 4, 11), torch.randint(0, 11, (3, 4))
    labels[0, 2:] = -100
    loss = r_drop_loss(logits, labels, smoothing, weight)
    torch.testing.assert_close(loss.double(), r_drop_by_the_equations(logits, labels, smoothing, weight))
    torch.testing.assert_close(r_drop_loss(logits, labels, smoothing, weight, 20), loss * 10 / 20)
    if weight == 0:
        twice = F.cross_entropy(logits.flatten(0, 1), labels.repeat(2, 1).flatten(), label_smoothing=smoothing)
        torch.testing.assert_close(loss, twice)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows_at_once", [1, 5, 100])
def test_its_gradient_is_that_of_the_equations_in_pieces_of_any_size(monkeypatch, smoothing, rows_at_once):
    monkeypatch.setattr("vanilla_transformer_hf.model.layers.loss.VALUES_AT_ONCE", 11 * rows_at_once)
    logits, labels = torch.randn(6, 4, 11, dtype=torch.double, requires_grad=True), torch.randint(0, 11, (3, 4))
    labels[1, 1:] = -100
    (gradient,) = torch.autograd.grad(3 * r_drop_loss(logits, labels, smoothing, 5.0), logits)
    (wanted,) = torch.autograd.grad(3 * r_drop_by_the_equations(logits, labels, smoothing, 5.0), logits)
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("bias", [True, False])
def test_from_the_last_states_it_has_the_gradients_of_the_equations_by_states_and_weights(monkeypatch, bias):
    monkeypatch.setattr(loss_module, "LOGITS_AT_ONCE", 2 * 11 * 5)  # five places of both passes: 12 are no multiple
    monkeypatch.setattr(loss_module, "VALUES_AT_ONCE", 2 * 11 * 2)
    states, projection = torch.randn(6, 4, 7).double().requires_grad_(), nn.Linear(7, 11, bias=bias).double()
    labels = torch.randint(0, 11, (3, 4))
    labels[1, 1:] = -100
    found = loss_module.projected_loss(states, projection, labels, partial(r_drop_rows, 0.1, 5.0))
    wanted = r_drop_by_the_equations(projection(states), labels, 0.1, 5.0)
    torch.testing.assert_close(found, wanted)
    leaves = states, *projection.parameters()
    for one, other in zip(torch.autograd.grad(3 * found, leaves), torch.autograd.grad(3 * wanted, leaves)):
        torch.testing.assert_close(one, other)


def test_float16_keeps_the_small_gradients_that_a_scaled_loss_makes_large():
    logits, labels = torch.randn(6, 4, 4000), torch.randint(0, 4000, (3, 4))
    gradients = []
    for dtype in (torch.float32, torch.float16):
        leaf = logits.half().to(dtype).requires_grad_()
        (2.0**14 * r_drop_loss(leaf, labels, 0.1, 1.0, 10_000)).backward()
        gradients.append(leaf.grad.float())
    assert gradients[0].abs().median() / 2**14 < 2**-25  # without the factor, zeros in float16
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-3, atol=1e-7)


def test_autocast_does_not_round_it():
    logits, labels = torch.randn(6, 4, 50), torch.randint(0, 50, (3, 4))
    with torch.autocast("cpu", torch.bfloat16):
        loss = r_drop_loss(logits, labels, 0.1, 5.0)
    assert torch.equal(loss, r_drop_loss(logits, labels, 0.1, 5.0))


def test_without_a_gradient_it_is_the_same_number():
    logits, labels = torch.randn(6, 4, 11, requires_grad=True), torch.randint(0, 11, (3, 4))
    with torch.no_grad():
        loss = r_drop_loss(logits, labels, 0.1, 5.0)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, r_drop_loss(logits, labels, 0.1, 5.0).detach())
