"""Every name of the API reference has a docstring with one example, which runs, and docstrings of its methods."""

import ast
import doctest
import inspect
import re
from importlib import import_module

import pytest
from hub_server import ROOT

import vanilla_transformer_hf


PAGES = ROOT / "scripts" / "site" / "generated_pages.py"  # imports mkdocs, which these tests do without
API = next(
    ast.literal_eval(node.value)
    for node in ast.parse(PAGES.read_text(encoding="utf-8")).body
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "API"
)
NAMES = [name for _, group in API.values() for name in group if name != "PRESETS"]
EXAMPLE = re.compile(r"^Example:\n\n```python\n(.+?)^```", re.MULTILINE | re.DOTALL)


def public(name):
    """The object of a name, which is that of the package or stands in the module before the last point."""
    module, _, own = f"vanilla_transformer_hf.{name}".rpartition(".")
    return getattr(import_module(module), own)


def test_the_reference_has_all_public_names():
    assert {*vanilla_transformer_hf.__all__} <= {*NAMES, "PRESETS", "__version__"}


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, monkeypatch):
    text = inspect.getdoc(public(name))
    (example,) = EXAMPLE.findall(text or "")
    assert name.rpartition(".")[2] in example, "it uses what it is an example of"
    monkeypatch.chdir(ROOT)  # for the models in model_cards/
    test = doctest.DocTestParser().get_doctest(example, {}, name, None, None)
    found: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=found.append)
    assert not found, "".join(found)


def methods(one):
    """The public methods and properties of a class that this package defines, with the classes that define them."""
    for base in one.__mro__ if isinstance(one, type) else ():
        for name, value in vars(base).items() if base.__module__.startswith("vanilla_transformer_hf.") else ():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if not name.startswith("_") and inspect.isfunction(function):
                yield f"{base.__qualname__}.{name}", function


@pytest.mark.parametrize("name", NAMES)
def test_every_public_method_has_a_docstring(name):
    lacking = [
        where
        for where, function in methods(public(name))
        if function.__module__.startswith("vanilla_transformer_hf.") and not inspect.getdoc(function)
    ]
    assert not lacking
