"""Every public name has a docstring with one example, which runs and prints what it says."""

import doctest
import re
from inspect import getdoc

import pytest
from hub_server import ROOT

import vanilla_transformer_hf


NAMES = [name for name in vanilla_transformer_hf.__all__ if name not in ("PRESETS", "__version__")]
EXAMPLE = re.compile(r"^Example:\n\n```python\n(.+?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, monkeypatch):
    text = getdoc(vars(vanilla_transformer_hf).get(name) or getattr(vanilla_transformer_hf, name))
    (example,) = EXAMPLE.findall(text or "")
    assert name in example, "it uses what it is an example of"
    monkeypatch.chdir(ROOT)  # for the models in model_cards/
    test = doctest.DocTestParser().get_doctest(example, {}, name, None, None)
    found: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=found.append)
    assert not found, "".join(found)
