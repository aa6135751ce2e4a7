"""
The modules of model/, joined into the few files that travel with a saved model.

transformers copies code from one folder into one folder, and our modules lie in several. So they are joined: a file
has the modules of some folders in the order of their imports, with all comments, and imports from the files before it
what those have. Functions may import from modules that import theirs: those are in the same file. Modules are read as
text and as syntax trees; nothing is executed or renamed. The standard library suffices, so that `setup.py` can join
the files when a wheel is built.
"""

import ast
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


ROOT = Path(__file__).parents[1]
# Where a wheel has the joined files; a checkout joins them when they are needed.
BUILT = ROOT / "saved_files"

# The files that travel -> the modules and folders of modules that they have; each may import those before it.
FILES = {
    "configuration_vanilla_transformer": ("config", "configuration_vanilla_transformer", "predecessors.configuration"),
    "tokenization_vanilla_transformer": ("tokenization_vanilla_transformer",),
    "layers_vanilla_transformer": ("releases", "layers", "front_ends"),
    "generation_vanilla_transformer": ("packing", "search"),
    "modeling_vanilla_transformer": (
        "modeling_vanilla_transformer",
        "positions",
        "attention",
        "single_stacks",
        "recognition",
        "predecessors",
    ),
    "pipeline_vanilla_transformer": ("pipeline_vanilla_transformer",),
}

# Module -> its text in each file that imports it: what writes the files is not in them.
STAND_INS = {
    "saving.saved_code": '''"""In place of what writes these files: transformers copies those that it opened."""


class ConfigSavesCode:
    """Adds nothing here."""


class TokenizerSavesCode:
    """Adds nothing here."""


class ModelSavesCode:
    """Adds nothing here."""
'''
}


@dataclass
class Module:
    """
    A source file, read.

    Attributes:
        libraries: Imported from elsewhere, as (module, name or None, alias or None).
        ours: Imported from this folder: name -> module that it is imported from.
        late: The modules that functions import from, with the number of the line.
        cut: Numbers of the lines that do not travel: docstring, imports, `__all__`.
    """

    name: str
    text: str
    tree: ast.Module
    libraries: set[tuple[str, str | None, str | None]] = field(default_factory=set)
    ours: dict[str, str] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)

    @property
    def docstring(self) -> list[str]:
        return (ast.get_docstring(self.tree) or "").splitlines()

    @property
    def body(self) -> str:
        kept = [line for number, line in enumerate(self.text.splitlines(), 1) if number not in self.cut]
        return "\n".join(kept).strip("\n")

    @property
    def defined(self) -> set[str]:
        """Names that the top level binds, without imports and what blocks bind."""
        found = set()
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        return found - {"__all__"}


def read_module(name: str) -> Module:
    """
    Raises:
        ValueError: A statement cannot be joined with others; the message names file and line.
    """
    text = STAND_INS.get(name) or ROOT.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    module = Module(name, text, ast.parse(text))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            if node.module is None or any(alias.asname for alias in node.names):
                raise misplaced(module, node.lineno)
            source = ".".join([*name.split(".")[: -node.level], node.module])
            if node in module.tree.body:
                module.ours |= {alias.name: source for alias in node.names}
            else:
                module.late[source] = node.lineno
                module.cut |= {*range(node.lineno, node.end_lineno + 1)}  # type: ignore[operator]
    for number, node in enumerate(module.tree.body):
        if isinstance(node, ast.Import):
            module.libraries |= {(alias.name, None, alias.asname) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module.libraries |= {(str(node.module), alias.name, alias.asname) for alias in node.names}
        is_docstring = number == 0 and ast.get_docstring(module.tree) is not None
        is_listing = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        if isinstance(node, (ast.Import, ast.ImportFrom)) or is_docstring or is_listing:
            module.cut |= {*range(node.lineno, node.end_lineno + 1)}  # type: ignore[operator]
    return module


def misplaced(module: Module, line: int) -> ValueError:
    path = ROOT.joinpath(*module.name.split(".")).with_suffix(".py")
    return ValueError(f"{path}, line {line}: write `from .module import Name` at the top of the file")


def modules_of(place: str) -> list[str]:
    """A module's name itself, or those of the modules in a folder."""
    names = (path.stem for path in sorted(ROOT.joinpath(*place.split(".")).glob("*.py")))
    return [f"{place}.{name}" for name in names if name != "__init__"] or [place]


class Bundle:
    """Modules in the order of their imports, each with the file that has it."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] = {}
        self.homes: dict[str, str] = {}
        self.owners: dict[str, str] = {}

    def add(self, name: str, file: str, importers: tuple[str, ...] = ()) -> None:
        """Add a module to a file, after those of the same file that it imports."""
        if name in importers:
            raise ValueError(f"modules import each other: {' -> '.join((*importers, name))}")
        if name in self.homes and (name not in STAND_INS or self.homes[name] == file):
            return
        module = self.modules[name] = read_module(name)
        for source in module.ours.values():
            self.add(source, file, (*importers, name))
        self.homes.pop(name, None)  # a stand-in stands in each file
        self.homes[name] = file
        for defined in module.defined:
            if self.owners.setdefault(defined, name) != name:
                raise ValueError(f"{defined}: in {name} and in {self.owners[defined]}; top-level names must be unique")

    def text(self, file: str) -> str:
        """One file: its contents and origin, imports, modules."""
        own = [module for name, module in self.modules.items() if self.homes[name] == file]
        order = [*self.homes]
        own.sort(key=lambda module: order.index(module.name))
        for module in own:
            for source, line in module.late.items():  # whose names are in the file when the function is called
                if self.homes.get(source) != file or order.index(source) < order.index(module.name):
                    raise misplaced(module, line)
        borrowed: set[tuple[str, str | None, str | None]] = set()
        for name in {name for module in own for name in module.ours}:
            home = self.homes[self.owners[name]]
            if home != file:
                borrowed.add((f".{home}", name, None))
        libraries = {one for module in own for one in module.libraries}
        standard = {one for one in libraries if one[0].split(".")[0] in sys.stdlib_module_names}
        groups = [import_lines(group) for group in (standard, libraries - standard, borrowed) if group]
        imports = "\n".join(["", *"\n\n".join(groups).splitlines(), "", "", ""])
        sections = [f"{heading(module)}\n\n\n{module.body}\n\n\n" for module in own]
        # The opening has a line for each module, and eight others.
        line = len(own) + 8 + imports.count("\n")
        contents = []
        for module, section in zip(own, sections, strict=True):
            contents.append(
                f"    {line + 2:>5}  {module.name}: {' '.join(module.docstring[:2]).strip().split('. ')[0]}"[:119]
            )
            line += section.count("\n")
        return "\n".join([OPENING, *contents, '"""', imports]) + "".join(sections).rstrip("\n") + "\n"


OPENING = '''"""
Written from the modules below, which lie in vanilla_transformer_hf/model/: change them there, not here.

With the other files of this folder it opens the model without the package, where `trust_remote_code=True` allows it.

Contents, with line numbers:
'''


def heading(module: Module) -> str:
    """A comment with the module's name and docstring."""
    rule = "# " + "=" * 117
    return "\n".join([rule, f"# {module.name}", "#", *(f"# {line}".rstrip() for line in module.docstring), rule])


def import_lines(names: set[tuple[str, str | None, str | None]]) -> str:
    """
    Import statements, sorted.

    Raises:
        ValueError: A name has two meanings.
    """
    meanings: dict[str, tuple[str, str | None]] = {}
    statements: dict[str, set[str]] = defaultdict(set)
    for module, name, alias in names:
        bound = alias or name or module
        if meanings.setdefault(bound, (module, name)) != (module, name):
            raise ValueError(f"{bound}: imported from {meanings[bound][0]} and from {module}; one name, one meaning")
        end = f" as {alias}" if alias else ""
        statements["" if name is None else module].add(f"{name or module}{end}")
    plain = [f"import {one}" for one in sorted(statements.pop("", ()))]
    return "\n".join([*plain, *(from_line(module, sorted(found)) for module, found in sorted(statements.items()))])


def from_line(module: str, names: list[str]) -> str:
    """`from module import names`, over several lines if it is long."""
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= 119 else f"from {module} import (\n" + "".join(f"    {one},\n" for one in names) + ")"


def join_modules() -> dict[str, str]:
    """
    The files that travel, made from the modules: file name -> text.

    Raises:
        ValueError: Modules cannot be joined; the message names them.
    """
    bundle = Bundle()
    texts = {}
    for file, places in FILES.items():
        for place in places:
            for name in modules_of(place):
                bundle.add(name, file)
        texts[f"{file}.py"] = bundle.text(file)
    return texts


@cache
def saved_files() -> dict[str, str]:
    """The files that travel, as the wheel has them or made from the modules: file name -> text."""
    if BUILT.is_dir():
        return {f"{file}.py": (BUILT / f"{file}.py").read_text(encoding="utf-8") for file in FILES}
    return join_modules()


def files_for(file: str) -> dict[str, str]:
    """A file that travels, and those that it imports: file name -> text."""
    found = {f"{file}.py": saved_files()[f"{file}.py"]}
    for imported in re.findall(r"^from \.(\w+) import", found[f"{file}.py"], re.MULTILINE):
        found |= files_for(imported)
    return found
