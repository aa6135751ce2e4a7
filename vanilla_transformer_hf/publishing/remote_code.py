"""The Python files that travel with a model, for those who open it with `trust_remote_code=True`."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_imports, get_relative_imports

from ..common.files import read_regular_file
from ..common.opening import read_config
from ..model.saving.bundle import HEADING, join_modules, modules_in, path_of


PACKAGE = Path(__file__).parents[1]
CONFIG = {"configuration_vanilla_transformer"}
ALONE = {"pipeline_vanilla_transformer", "tokenization_vanilla_transformer"}
NAME = re.compile(r"[a-z_][a-z0-9_.]*")  # of a module
# Packages that every user of transformers has, beside Python's standard library.
AVAILABLE = {"torch", "transformers", "huggingface_hub", "tokenizers", "safetensors", "numpy"}


def find_code(folder: Path, modules: set[str]) -> tuple[dict[str, bytes], list[str]]:
    """The files of code that a folder's model imports, and a sentence for each problem of importing them elsewhere."""
    # If the folder lacks one, all files are those that this package saves with a model.
    if wrong := sorted(each for each in modules if not re.fullmatch(r"[\w-]+", each)):
        return {}, [f"auto_map names {each!r}, which is not a file beside the model" for each in wrong]
    found: dict[str, Path] = {}
    absent, waiting = set[str](), sorted(modules)
    while waiting:
        path = folder / f"{waiting.pop()}.py"
        if not path.is_file():
            absent.add(path.name)
        elif path.name not in found:
            found[path.name] = path
            waiting += [module for module in get_relative_imports(path) if "." not in module]
    if absent and modules <= {"modeling_vanilla_transformer"} | ALONE | CONFIG:
        needed = modules & ALONE
        if modules & ({"modeling_vanilla_transformer"} | CONFIG):
            config: Any = read_config(folder)
            needed |= {*config.modules} if "modeling_vanilla_transformer" in modules else CONFIG
        return {name: text.encode() for name, text in join_modules(tuple(sorted(needed))).items()}, []
    problems = [f"{name} is missing, but the model imports it" for name in sorted(absent)]
    files = {name: read_regular_file(path) for name, path in found.items()}
    for name, path in found.items():
        problems += [] if is_saved_code(name, files[name]) else _check_imports(path)
    return files, problems


def is_saved_code(name: str, content: bytes) -> bool:
    """Whether a file is this package's saved code, which is public; searching it again takes seconds."""
    modules = modules_in(content.decode(errors="replace")) if HEADING.encode() in content else ()
    if not modules or any(not NAME.fullmatch(module) or not path_of(module).is_file() for module in modules):
        return False
    return join_modules(modules).get(name, "").encode() == content


def _check_imports(path: Path) -> list[str]:
    """Imports of a file that users of the model may not have. An import in a `try` block may fail."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        return [f"{path.name} is not Python code ({error})"]
    nested = sorted(module for module in get_relative_imports(path) if "." in module)
    problems = [f"{path.name} imports .{module}: only files beside it travel" for module in nested]
    for library in sorted(set(get_imports(path))):
        if library == PACKAGE.name:
            problems.append(f"{path.name} imports {library} itself, which others may not have: from .name import")
        elif library not in AVAILABLE and library not in sys.stdlib_module_names:
            problems.append(f"{path.name} imports {library}, which others may not have: in a try block it may fail")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 1:
            problems.append(f"{path.name}, line {node.lineno}: imports from a folder above it")
        elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is None:
            # transformers looks for "from .name import" and would not bring the file along.
            names = ", ".join(alias.name for alias in node.names)
            problems.append(
                f"{path.name}, line {node.lineno}: `from . import {names}` does not bring the file along; "
                "write `from .name import`"
            )
    return problems
