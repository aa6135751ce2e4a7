"""Run test_core.py on many releases of transformers.

    python tests/range/run.py                 # each of RELEASES
    python tests/range/run.py oldest newest   # or 5.8.1
    python tests/range/run.py 5.8.1 -k loop   # any option of pytest

Each release is installed by uv, with what it requires in the versions that it allows, into a folder of outputs/range/
that stands before everything else on the path: torch and the rest are those of the environment.
"""

import os
import subprocess
import sys
from pathlib import Path


HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# The first that pyproject.toml allows, the newest in the middle of each month since, and the one of constraints.txt.
RELEASES = (
    "5.0.0", "5.1.0", "5.3.0", "5.5.4", "5.8.1", "5.12.1", "5.14.0", "5.15.0", "5.17.0", "5.20.0", "5.23.0", "5.24.0",
)  # fmt: skip


def run(release: str, options: list[str]) -> int:
    """The exit status of pytest with a release."""
    folder = ROOT / "outputs" / "range" / release
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder)]
    subprocess.run([*uv, f"transformers=={release}"], check=True)
    paths = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    print(f"transformers {release}", flush=True)
    command = [sys.executable, "-m", "pytest", str(HERE / "test_core.py"), "--quiet", "--disable-warnings", *options]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


def main(arguments: list[str]) -> int:
    """The number of releases that failed."""
    names = {"oldest": RELEASES[0], "newest": RELEASES[-1]}
    count = next((place for place, one in enumerate(arguments) if one.startswith("-")), len(arguments))
    chosen = [names.get(one, one) for one in arguments[:count]] or RELEASES
    return sum(run(release, arguments[count:]) != 0 for release in chosen)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
