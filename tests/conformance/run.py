"""Run the test suite of transformers itself on our classes.

    python tests/conformance/run.py                # our classes
    python tests/conformance/run.py --hosts        # BART and Marian too, and a table that compares the three
    python tests/conformance/run.py -k test_tp     # any option of pytest

The suite is not part of an installed transformers. Its source distribution carries it, so this script fetches the
distribution of exactly the installed version with pip, once, into `.cache/` of the repository. After that nothing
needs a network.

transformers' examples are in no distribution. `run_translation.py` is run unchanged where `.cache/transformers` is a
checkout of transformers, which the workflow `tests.yml` makes; elsewhere the summary says that it is not.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path


HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def host_tests_folder() -> Path:
    """Where the suite of the installed transformers stands, or will stand once it is fetched."""
    return ROOT / ".cache" / f"transformers-{version('transformers')}" / "tests"


def example_script() -> Path:
    """Where `run_translation.py` stands in a checkout of transformers, if there is one."""
    return ROOT / ".cache" / "transformers" / "examples" / "pytorch" / "translation" / "run_translation.py"


def fetch_host_tests() -> None:
    """Fetch the source distribution of the installed transformers and keep its test modules.

    Raises:
        RuntimeError: pip found no source distribution of that version.
    """
    folder = host_tests_folder()
    if folder.is_dir():
        return
    release = folder.parent.name  # transformers-<version>
    folder.parent.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers"]
        subprocess.run([*pip, "--dest", scratch, release.replace("-", "==", 1)], check=True)
        archive = Path(scratch, f"{release}.tar.gz")
        if not archive.is_file():
            raise RuntimeError(f"pip brought {os.listdir(scratch)}, not {archive.name}, the version that is installed")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        tests = Path(scratch, release, "tests")
        # Two files that the test modules open but the distribution leaves out. Their content is never looked at.
        tests.joinpath("fixtures").mkdir(exist_ok=True)
        tests.joinpath("fixtures", "sample_text.txt").touch()
        tests.joinpath("__init__.py").touch()
        folder.parent.mkdir(exist_ok=True)
        shutil.move(tests, folder)


def main(options: list[str]) -> int:
    """Run pytest on this folder with `options` added; the return value is its exit status."""
    fetch_host_tests()
    # One thread for each of the two workers; offline, so that nothing waits for a Hub that a test must not need.
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ}
    pytest = [sys.executable, "-m", "pytest", str(HERE), "--confcutdir", str(HERE), "--override-ini=addopts="]
    defaults = ["--numprocesses=2", "--quiet", "--disable-warnings"]
    return subprocess.run([*pytest, *defaults, *options], env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
