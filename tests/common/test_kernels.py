"""How many compiled kernels are kept: set before the first product, and only where nobody else has."""

import os

import pytest

from vanilla_transformer_hf.common.kernels import SETTING, keep_few_kernels


@pytest.mark.parametrize(("given", "found"), [({}, "128"), ({SETTING: "7"}, "7")])
def test_what_the_environment_says_stays(monkeypatch, given, found):
    monkeypatch.setattr(os, "environ", dict(given))
    keep_few_kernels()
    assert os.environ == {SETTING: found}
