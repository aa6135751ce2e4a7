"""
Tag this commit as a release, if it is one: `make release`.

The version is that of vanilla_transformer_hf/model/config/release.py. One line of error for a tree with changes,
a commit that .ci/run has not passed, a changelog without the version, and a tag that exists. Nothing is pushed.
"""

import re
import subprocess
import sys
from pathlib import Path

from vanilla_transformer_hf.common.command_line import make_parser, run


VERSION_FILE = Path("vanilla_transformer_hf", "model", "config", "release.py")
TESTED_FILE = Path("outputs", "tested-commit")  # written by .ci/run


def main(root: Path) -> str:
    """Make the tag and return what to do next."""
    if changes := git(root, "status", "--porcelain"):
        sys.exit(f"release: the tree has changes ({changes.splitlines()[0].strip()} …); commit or remove them.")
    commit = git(root, "rev-parse", "HEAD")
    tested = root / TESTED_FILE
    if not tested.exists() or tested.read_text(encoding="utf-8").strip() != commit:
        sys.exit(
            f"release: commit {commit[:9]} is not tested; run .ci/run, which writes {TESTED_FILE} when all passes."
        )
    (version,) = re.findall(r'^VERSION = "(.+)"$', (root / VERSION_FILE).read_text(encoding="utf-8"), re.MULTILINE)
    notes = notes_of(version, (root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if not notes:
        sys.exit(f"release: CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD' with changes; write it.")
    tag = f"v{version}"
    if git(root, "tag", "--list", tag):
        sys.exit(f"release: the tag {tag} exists; set another VERSION in {VERSION_FILE}.")
    git(root, "tag", "--annotate", tag, "--message", f"{tag}\n\n{notes}", "--cleanup", "verbatim")
    return f"release: {tag} is commit {commit[:9]}; publish it with: git push origin {tag}"


def notes_of(version: str, changelog: str) -> str:
    """The changes of a version in a changelog; empty if there are none."""
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$"
    found = re.search(rf"{heading}\n(.*?)(?=^## |^\[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def git(root: Path, *arguments: str) -> str:
    """What git answers in the repository."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"release: git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def command() -> None:
    make_parser("release.py", __doc__).parse_args()
    print(main(Path(__file__).resolve().parents[1]))


if __name__ == "__main__":
    run(command)
