"""
Print how large the package is: files, lines, functions and those with one caller, by folder.

    python scripts/measure_size.py
    python scripts/measure_size.py ../another-checkout/vanilla_transformer_hf
"""

import argparse
import ast
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from vanilla_transformer_hf.common.command_line import run


PACKAGE = Path(__file__).parents[1] / "vanilla_transformer_hf"


@dataclass
class Size:
    """
    Of a folder.

    Attributes:
        files, lines: Of Python.
        functions: The lines of each function and method, without its decorators.
        one_use: Functions outside of classes whose names stand once in the package beside their definition.
    """

    files: int
    lines: int
    functions: list[int]
    one_use: int

    def __str__(self) -> str:
        small = 100 * sum(lines < 5 for lines in self.functions) / max(1, len(self.functions))
        median = statistics.median(self.functions or [0])
        return (
            f"{self.files:5,} files {self.lines:7,} lines {len(self.functions):6,} functions, median {median:g} lines,"
            f" {small:.0f} % under five, {self.one_use:,} with one use"
        )


def measure(package: Path = PACKAGE) -> dict[str, Size]:
    """Folder of the package -> its size; "." are the modules outside its folders, "all" is everything."""
    files = sorted(package.rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    # Words of code, comments and docstrings alike, without those of imports.
    words = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    for tree in trees.values():
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        words.subtract(alias.name for node in imports for alias in node.names)
    sizes: dict[str, Size] = {}
    for path, tree in trees.items():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        once = sum(words[node.name] == 2 for node in tree.body if isinstance(node, ast.FunctionDef))
        folder = path.relative_to(package).parts[0] if path.parent != package else "."
        for name in (folder, "all"):
            size = sizes.setdefault(name, Size(0, 0, [], 0))
            size.files += 1
            size.lines += texts[path].count("\n")
            size.functions += [1 + int(node.end_lineno or 0) - node.lineno for node in functions]
            size.one_use += once
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "package", nargs="?", type=Path, default=PACKAGE, help="folder of a package (default: this one)"
    )
    for folder, size in measure(parser.parse_args().package).items():
        print(f"{folder:12} {size}")


if __name__ == "__main__":
    run(main)
