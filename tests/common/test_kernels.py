"""How many compiled kernels are kept: set before the first product, and only where nobody else has."""

import os

import pytest

from vanilla_transformer_hf.common.kernels import SETTINGS, keep_few_kernels


@pytest.mark.parametrize("given", [{}, *({name: "7"} for name in SETTINGS)], ids=str)
def test_what_the_environment_says_stays(monkeypatch, given):
    monkeypatch.setattr(os, "environ", dict(given))
    keep_few_kernels()
    assert os.environ == SETTINGS | given
