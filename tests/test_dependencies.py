"""What is imported is declared in pyproject.toml, and what is declared is used."""

import ast
import re
import sys
import tomllib

import pytest
from hub_server import ROOT


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Modules that are not called as their distributions are.
MODULES = {
    **{"PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn", "lingua": "lingua-language-detector"},
    **{"docx": "python-docx", "odf": "odfpy", "translate": "translate-toolkit", "markdown_it": "markdown-it-py"},
    **{"mkdocs": "mkdocs-material"},
}
# Imported if they are there: PEFT's table gets a row, and the Hub's client has one of the two libraries.
IF_PRESENT = {"peft", "httpx", "httpx2"}
# Declared for what others do with them: readers and writers that libraries of ours import themselves, and programs.
NOT_IMPORTED = {*("accelerate", "python-multipart", "onnx", "onnxscript", "openpyxl", "defusedxml")}
# What has environments of its own: toolkits that are measured, transformers' tests, and Gradio.
MEASURED = {"joeynmt", "host-tests", "gradio", "gradio-client"}
# Modules beside the package.
LOCAL = {path.stem for folder in ("tests", "scripts", "examples") for path in (ROOT / folder).rglob("*.py")}
LOCAL |= {"vanilla_transformer_hf", "vanilla_transformer_hf_command", "benchmarks"}
# Extra -> folders beside the package that may need it.
OF_TESTS = ("test", "browser", "docs", "demo")


def names_of(requirements):
    """The distributions that requirements name, by lower-case names with hyphens."""
    found = (re.match(r"[\w.-]+", each)[0].lower().replace("_", "-") for each in requirements)
    return {name for name in found if name != "vanilla-transformer-hf"}


CORE = names_of(PROJECT["dependencies"])
EXTRAS = {name: names_of(given) for name, given in PROJECT["optional-dependencies"].items()}


def imports_of(*folders):
    """Distribution -> a file that imports it, of all files of these folders."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for name in (each.split(".")[0] for each in names):
                if name not in sys.stdlib_module_names and name not in LOCAL:
                    found.setdefault(MODULES.get(name, name).lower().replace("_", "-"), path.relative_to(ROOT))
    return found


def test_the_package_imports_what_it_declares():
    of_package = CORE.union(*(names for extra, names in EXTRAS.items() if extra not in OF_TESTS[:3]))
    imported = imports_of("vanilla_transformer_hf")
    assert {name: path for name, path in imported.items() if name not in of_package | IF_PRESENT} == {}


def test_the_package_imports_each_of_its_dependencies():
    assert CORE - imports_of("vanilla_transformer_hf").keys() == set()


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "scripts", "docs", "examples"])
def test_what_stands_beside_the_package_imports_what_is_declared(folder):
    declared = CORE.union(*EXTRAS.values()) | MEASURED | IF_PRESENT | {"pytest"}
    assert {name: path for name, path in imports_of(folder).items() if name not in declared} == {}


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - OF_TESTS[:3]))
def test_an_extra_of_the_package_is_used(extra):
    imported = imports_of("vanilla_transformer_hf", "scripts").keys()
    of_others = {name for name in EXTRAS[extra] if name.startswith(("sacrebleu", "ray"))}
    assert EXTRAS[extra] - imported - NOT_IMPORTED - of_others == set()
