"""
Find words that CONTRIBUTING.md replaces by others ("Words") in the pages and in the prose of the package: `make lint`.

codespell finds typing errors in single words; these are phrases. Exit status 1 and a line for each place.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from vanilla_transformer_hf.common.command_line import make_parser, run


ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "vanilla_transformer_hf"
# What people read, beside the pages: docstrings, comments, messages, help, recipes.
SOURCES = (PACKAGE, ROOT / "scripts", ROOT / "benchmarks", ROOT / "examples")
ENDINGS = (".py", ".js", ".html", ".md", ".yaml", ".sh")
EMPTY_ALONE = re.compile(r'"""\s*(The same|As)\b')  # docstrings that need the one above them
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def vocabulary(guide: str) -> dict[str, str]:
    """Phrase -> what to write, from the table of CONTRIBUTING.md; several phrases of a row stand behind commas."""
    section = guide.partition("\n## Words\n")[2].partition("\n## ")[0]
    rows = ROW.findall(section)[2:]  # without the head and the line below it
    return {phrase: better for phrases, better in rows for phrase in phrases.split(", ")}


def places(text: str, words: dict[str, str]) -> Iterator[tuple[int, str]]:
    """The line and the phrase of each place; a phrase may go over the end of a line."""
    for found in EMPTY_ALONE.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, f"docstring that begins with {found[1]}"
    for phrase in words:
        pattern = r"\b" + r"\s+(?:# )?".join(map(re.escape, phrase.split())) + r"\b"
        for found in re.finditer(pattern, text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, phrase


def files() -> Iterator[Path]:
    """The pages, and the files whose prose people read."""
    yield from (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "lessons").glob("*.ipynb")))
    for folder in SOURCES:
        found = (path for path in folder.rglob("*") if path.suffix in ENDINGS)
        yield from sorted(path for path in found if path != Path(__file__).resolve())


def main() -> int:
    """Print the places and return the exit status."""
    words = vocabulary((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    count = 0
    for path in files():
        for line, phrase in places(path.read_text(encoding="utf-8"), words):
            better = words.get(phrase, "what it is, so that it stands alone")
            print(f"{path.relative_to(ROOT)}:{line}: {phrase!r}: write {better}")
            count += 1
    return 1 if count else 0


def command() -> None:
    make_parser("check_words.py", __doc__).parse_args()
    sys.exit(main())


if __name__ == "__main__":
    run(command)
