"""Sizes at which attention in blocks computes as it does for long sequences, and a comparison of gradients."""

import pytest
import torch

from vanilla_transformer_hf.model.attention import local as local_attention


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks also for short sequences."""
    monkeypatch.setattr(local_attention, "SMALLEST_BLOCK", 4)
    monkeypatch.setattr(local_attention, "SMALLEST_BLOCK_OF_PROCESSORS", 2)
    monkeypatch.setattr(local_attention, "DENSE", 0.7)
    monkeypatch.setattr(local_attention, "AT_ONCE", 12)


@pytest.fixture
def same_gradients():
    """`same_gradients(found, expected, *parameters)`: of a random sum of the outputs."""

    def check(found, expected, *parameters):
        weights = torch.randn_like(found)
        for parameter in parameters:
            ours, theirs = (
                torch.autograd.grad((output * weights).sum(), parameter, retain_graph=True)[0]
                for output in (found, expected)
            )
            torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)

    return check
