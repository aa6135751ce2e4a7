"""What the source distribution and its metadata hold."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_source_distribution_is_whole(tmp_path):
    """It holds every tracked file of the folders that users need, and installs the same package."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no checkout of git to compare with")
    tracked = listed.stdout.split("\n")
    source = tmp_path / "source"
    for name in filter(None, tracked):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, path, follow_symlinks=False)
    build = "import setuptools.build_meta as backend; backend.build_sdist('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (archive,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.split("/", 1)[1] for name in file.getnames() if "/" in name}
    wanted = {name for name in tracked if name.startswith(("scripts/", "vanilla_transformer_hf/", "tests/"))}
    wanted = {name for name in wanted if not (ROOT / name).is_dir()}  # a link to a folder
    wanted |= {"constraints.txt", "Makefile", "LICENSE", "README.md", "pyproject.toml"}
    assert {"scripts/train.py", "vanilla_transformer_hf/py.typed"} <= wanted
    assert wanted - names == set()
