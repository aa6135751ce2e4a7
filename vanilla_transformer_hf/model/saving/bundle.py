"""
The modules of model/ and recurrent/, joined into the few files that travel with a saved model.

transformers copies code from one folder into one folder, and our modules lie in several. So a file that travels has
its modules one after the other, each behind those that it imports, without their imports of each other; what an
earlier file has is imported from that. Modules are read as text; nothing is executed or renamed.
"""

import ast
from functools import cache
from pathlib import Path


ROOT = Path(__file__).parents[1]
# Module, or folder of modules -> the file that has them; each file may import from those before it.
FILES = {
    "releases.configs": "configuration_vanilla_transformer",
    "config": "configuration_vanilla_transformer",
    "configuration_vanilla_transformer": "configuration_vanilla_transformer",
    "recurrent.configuration": "configuration_vanilla_transformer",
    "tokenizer": "tokenization_vanilla_transformer",
    "tokenization_vanilla_transformer": "tokenization_vanilla_transformer",
    "releases": "layers_vanilla_transformer",
    "layers": "layers_vanilla_transformer",
    "packing": "generation_vanilla_transformer",
    "search": "generation_vanilla_transformer",
    "pipeline_vanilla_transformer": "pipeline_vanilla_transformer",
}
LAST = "modeling_vanilla_transformer"  # has all others
# What writes the files does not travel: transformers copies those that it opened.
NOT_HERE = "saving.saved_code"
# Imported so that transformers finds the class by its name; it travels with a model whose weights it rounded.
INT8_QUANTIZER = "packing.int8_quantizer"
# Its classes, in the file that extends them.
PLACEHOLDERS = {
    "ConfigSavesCode": "class ConfigSavesCode:\n    pass\n\n\n",
    "ModelSavesCode": "class ModelSavesCode:\n    pass\n\n\n",
    "TokenizerSavesCode": """class TokenizerSavesCode:
    @staticmethod
    def check_files(files):
        # Nothing: who runs the code of a folder trusts its files, too.
        pass


""",
}
HEADING = "# ==== "


def path_of(module: str) -> Path:
    """The file of a module, which is named from model/ on, or is one of recurrent/ beside it."""
    return (ROOT.parent if module.startswith("recurrent.") else ROOT).joinpath(*module.split(".")).with_suffix(".py")


def file_of(module: str) -> str:
    """The file that has a module."""
    return FILES.get(module) or FILES.get(module.split(".")[0], LAST)


def own_imports(module: str, tree: ast.Module) -> list[tuple[ast.ImportFrom, str]]:
    """The imports of other modules that travel, with their names; a `ValueError` if one is not at the top."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            if node not in tree.body or node.module is None or any(alias.asname for alias in node.names):
                raise ValueError(f"{path_of(module)}, line {node.lineno}: write `from .module import Name` at the top")
            source = ".".join([*module.split(".")[: -node.level], node.module])
            found.append((node, source.removeprefix("model.")))
    return found


@cache
def join_modules(modules: tuple[str, ...]) -> dict[str, str]:
    """The files with these modules and all that they import: file name -> text."""
    # A `ValueError` if modules import each other, or what comes from a later file.
    bodies: dict[str, dict[str, str]] = {}  # file -> module -> its text without imports of ours
    borrowed: dict[str, dict[str, set[str]]] = {}  # file -> earlier file -> names
    done: set[str] = {NOT_HERE}
    order = [*dict.fromkeys([*FILES.values(), LAST])]

    def add(module: str, importers: tuple[str, ...] = ()) -> None:
        if module in importers:
            raise ValueError(f"modules import each other: {' -> '.join((*importers, module))}")
        if module in done:
            return
        text = path_of(module).read_text(encoding="utf-8")
        tree, lines, file = ast.parse(text), text.splitlines(), file_of(module)
        cut: set[int] = set()
        for node, source in own_imports(module, tree):
            cut |= {*range(node.lineno, int(node.end_lineno or 0) + 1)}
            if source == INT8_QUANTIZER and source not in modules:
                continue
            add(source, (*importers, module))
            home = file_of(source)
            if source != NOT_HERE and home != file:
                if order.index(home) > order.index(file):
                    raise ValueError(f"{path_of(module)}, line {node.lineno}: {source} is in a later file, {home}.py")
                borrowed.setdefault(file, {}).setdefault(home, set()).update(alias.name for alias in node.names)
        body = "\n".join(line for number, line in enumerate(lines, 1) if number not in cut)
        bodies.setdefault(file, {})[module] = f"{HEADING}{module}\n{body.strip()}\n"
        done.add(module)

    for module in modules:
        add(module)
    # transformers copies what the text of the model's file imports when a model that it opened by its code is saved.
    if "pipeline_vanilla_transformer" in modules and LAST in bodies:
        bodies[LAST]["saved beside"] = (
            f"{HEADING}pipeline_vanilla_transformer\nif False:\n"
            "    from .pipeline_vanilla_transformer import SavedTranslationPipeline\n"
        )
    return {
        f"{file}.py": OPENING
        + "".join(
            f"from .{home} import {', '.join(sorted(names))}\n"
            for home, names in sorted(borrowed.get(file, {}).items())
        )
        + "\n\n"
        + "".join(text for name, text in PLACEHOLDERS.items() if any(name in body for body in bodies[file].values()))
        + "\n\n".join(bodies[file].values())
        for file in order
        if file in bodies
    }


OPENING = '''"""
Written from the modules below, which lie in vanilla_transformer_hf/model/ and recurrent/: change them there, not here.

With the other files of this folder it opens the model without the package, where `trust_remote_code=True` allows it.
"""

'''


def modules_in(text: str) -> tuple[str, ...]:
    """The modules that a file was written from."""
    return tuple(line.removeprefix(HEADING) for line in text.splitlines() if line.startswith(HEADING))
