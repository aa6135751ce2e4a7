"""
Private names of other libraries: each that the package uses is a row of docs/what_is_tested.md, with its reason, what
happens where it is missing, and its test. A new one fails here until it is listed, and so does a row of the past.
"""

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from pathlib import Path

import pytest

import vanilla_transformer_hf
from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.saving.bundle import join_modules


PACKAGE = Path(vanilla_transformer_hf.__file__).parent
LIST = PACKAGE.parent / "docs" / "what_is_tested.md"
PRIVATE = re.compile(r"_(?!_)\w*[a-zA-Z]\w*")
ROW = re.compile(
    r"\| (?P<names>`[^|]+`) \| (?P<why>[^|]+) \| (?P<missing>[^|]+) \| `(?P<file>[^`:]+)::(?P<test>\w+)` \|"
)
PUBLIC = {"_asdict", "_exit", "_replace"}  # of `os` and of named tuples: documented


def nodes():
    """The nodes of all syntax trees of the package, with the paths of their files."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(PACKAGE).as_posix(), node


def names_defined(node):
    """Names that a node defines: a function, class or variable, or an attribute of `self`."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            yield node.attr
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "update":  # vars(self).update(name=...)
        yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def names_used(node):
    """Names of other libraries that a node uses, if the package defines none of them."""
    if isinstance(node, ast.Attribute):
        yield node.attr
        if isinstance(node.value, ast.Attribute) and ast.unparse(node.value) == "torch.ops":
            yield f"torch.ops.{node.attr}"
    elif isinstance(node, ast.Import):
        yield from (part for alias in node.names for part in alias.name.split("."))
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from [*node.module.split("."), *(alias.name for alias in node.names)]
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr", "delattr"):
        yield from (each.value for each in node.args[1:2] if isinstance(each, ast.Constant))
    elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):  # "_name" in vars(module)
        yield node.left.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value.startswith(("/proc/", "/sys/")):
            yield "/" + node.value.split("/")[1]
        elif PRIVATE.fullmatch(node.value) and hasattr(VanillaTransformerForConditionalGeneration, node.value):
            yield node.value


def is_private(name):
    is_one = isinstance(name, str) and (PRIVATE.fullmatch(name) or name.startswith(("torch.ops.", "/proc", "/sys")))
    return bool(is_one) or name == "ctypes"


def names_overridden(defined):
    """Private names that a class of the package defines, and a class of another library that it is derived from."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "vanilla_transformer_hf."):
        try:
            found = vars(importlib.import_module(module.name)) if not module.name.endswith("__main__") else {}
        except ImportError:  # what it needs is not installed, such as ray
            continue
        for each in found.values():
            if isinstance(each, type) and each.__module__ == module.name:
                # Mixins too.
                ours = [one for one in each.__mro__ if one.__module__.startswith("vanilla_transformer_hf")]
                hosts = [one for one in each.__mro__ if one not in ours]
                names = {name for one in ours for name in vars(one).keys() & defined if is_private(name)}
                yield from ((name, module.name) for name in names if any(name in vars(host) for host in hosts))


@pytest.fixture(scope="module")
def rows():
    section = LIST.read_text(encoding="utf-8").partition("\n## Private names of other libraries\n")[2]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    found = [ROW.fullmatch(line) for line in lines]
    assert all(found), [line for line, row in zip(lines, found) if not row]
    return found


def test_every_private_name_is_listed_and_none_of_the_past(rows):
    defined, used = set(), defaultdict(set)
    for path, node in nodes():
        defined |= set(names_defined(node))
        for name in filter(is_private, names_used(node)):
            used[name].add(path)
    used = {name: places for name, places in used.items() if name not in defined | PUBLIC}
    for name, place in names_overridden(defined):
        used.setdefault(name, set()).add(place)
    listed = [name for row in rows for name in re.findall("`([^`]+)`", row["names"])]
    assert len(listed) == len(set(listed))
    assert {name: sorted(used[name]) for name in used.keys() - listed} == {}, f"not in {LIST.name}"
    assert sorted(set(listed) - used.keys()) == [], f"in {LIST.name}, and used nowhere"


def test_the_test_of_every_row_exists(rows):
    for row in rows:
        text = (PACKAGE.parent / row["file"]).read_text(encoding="utf-8")
        assert f"def {row['test']}(" in text, f"{row['names']}: {row['file']}::{row['test']}"


# What is taken of transformers may change with each of its releases: the fewer names, the longer a folder opens.
MOST_NAMES_OF_TRANSFORMERS = {"model/": 48, "a saved folder": 27}


def names_of_transformers(trees):
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        module = node.module or "" if isinstance(node, ast.ImportFrom) and not node.level else ""
        names = [f"{module}.{each.name}" for each in node.names] if module else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        found |= {name for name in names if name.split(".")[0] == "transformers"}
    return found


def test_models_take_few_names_of_transformers(tiny_model):
    folder = join_modules(tiny_model().modules_that_travel).values()
    texts = {"model/": [path.read_text() for path in (PACKAGE / "model").rglob("*.py")], "a saved folder": folder}
    for place, most in MOST_NAMES_OF_TRANSFORMERS.items():
        found = names_of_transformers(map(ast.parse, texts[place]))
        assert 20 < len(found) <= most, (place, sorted(found))


@pytest.mark.parametrize(
    "code, name",
    [
        ("torch._C._data_address(x)", "_C"),
        ("torch.ops.quantized.linear(x)", "torch.ops.quantized"),
        ("getattr(torch.ops.onednn, name)", "torch.ops.onednn"),
        ("import ctypes", "ctypes"),
        ("from ctypes import c_int", "ctypes"),
        ("from torch._dynamo import is_compiling", "_dynamo"),
        ("from torch.cpu import _is_amx", "_is_amx"),
        ("hasattr(model, '_hf_hook')", "_hf_hook"),
        ("'_hook' in vars(module)", "_hook"),
        ("METHODS = ['_reorder_cache', '_sample']", "_sample"),
        ("Path('/proc/self/pagemap')", "/proc"),
        ("config._private = 1", "_private"),
    ],
)
def test_a_new_name_is_found(code, name):
    names = [each for node in ast.walk(ast.parse(code)) for each in names_used(node)]
    assert name in filter(is_private, names)
    assert name not in [each for node in ast.walk(ast.parse(code)) for each in names_defined(node)]
