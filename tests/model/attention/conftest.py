"""Sizes at which attention in blocks computes as it does for long sequences."""

import pytest

from vanilla_transformer_hf.model.attention import local as local_attention


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks also for short sequences."""
    monkeypatch.setattr(local_attention, "SMALLEST_BLOCK", 4)
    monkeypatch.setattr(local_attention, "SMALLEST_BLOCK_OF_PROCESSORS", 2)
    monkeypatch.setattr(local_attention, "DENSE", 0.7)
    monkeypatch.setattr(local_attention, "AT_ONCE", 12)
