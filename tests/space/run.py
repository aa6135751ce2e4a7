"""
Run test_space.py with Gradio, which asks for an older Pillow than constraints.txt has, so it has a folder of its own
in outputs/, before everything else on the path; torch and the rest are those of the environment.
"""

import os
import subprocess
import sys
from pathlib import Path


HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main(options: list[str]) -> int:
    """The exit status of pytest."""
    folder = ROOT / "outputs" / "gradio"
    folder.mkdir(parents=True, exist_ok=True)
    own = (HERE / "constraints.txt").read_text(encoding="utf-8")
    names = {line.partition("==")[0] for line in own.splitlines()}
    common = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = folder.with_suffix(".txt")
    constraints.write_text(own + "\n".join(line for line in common if line.partition("==")[0] not in names))
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder)]
    subprocess.run([*uv, "--constraint", str(constraints), "gradio"], check=True)
    paths = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    pytest = [sys.executable, "-m", "pytest", str(HERE), "--override-ini=addopts=", "--quiet", *options]
    return subprocess.run(pytest, env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
