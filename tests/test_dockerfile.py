"""The Dockerfile's steps, run in a new environment, for machines without docker: it installs, serves and ends."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()


def steps(name):
    """The arguments of all steps of this name."""
    return [line.removeprefix(f"{name} ") for line in LINES if line.startswith(f"{name} ")]


def test_what_is_copied_exists_and_reaches_docker():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    copied = [name for step in steps("COPY") for name in step.split()[:-1]]
    assert set(copied) == kept and all((ROOT / name).exists() for name in copied)


def test_the_server_is_no_root_and_gets_the_signals():
    assert steps("USER") == ["server"] and steps("STOPSIGNAL") == ["SIGTERM"]
    assert json.loads(steps("ENTRYPOINT")[0])[:2] == ["vanilla-transformer", "serve"], "no shell between"


@pytest.mark.slow
def test_the_steps_install_a_server_that_answers_and_ends(counting_folder, tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    for step in steps("COPY"):
        *names, _ = step.split()
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, app / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, app)
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python*/site-packages")
    # Libraries come from the environment of the tests: nobody downloads gigabytes. See test_wheel.py.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    torch_step, package_step, _ = steps("RUN")
    assert torch_step.endswith(" torch") and "useradd" in steps("RUN")[2]
    found = re.fullmatch(
        r'python -m pip install --no-cache-dir --constraint constraints.txt "(\.\[serve\])"', package_step
    )
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    # As in the Dockerfile, but nothing is downloaded: libraries that are missing or of another version fail.
    subprocess.run(
        [*pip, "--no-build-isolation", "--no-index", "--constraint", "constraints.txt", found[1]], check=True, cwd=app
    )

    command = [*json.loads(steps("ENTRYPOINT")[0]), counting_folder]
    command[0] = str(environment / "bin" / command[0])
    command[command.index("--port") + 1] = "0"
    command[command.index("--host") + 1] = "127.0.0.1"
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    variables |= dict(step.split("=") for step in steps("ENV")) | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = server.stderr.readline().split()[-1]
            (check,) = [
                line.strip().removeprefix("HEALTHCHECK --start-period=60s CMD ")
                for line in LINES
                if "HEALTHCHECK" in line
            ]
            code = json.loads(check)[2].replace("http://127.0.0.1:8000", address)
            for _ in range(600):
                if subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0:
                    break
                time.sleep(0.2)
            request = urllib.request.Request(f"{address}/translate", data=b"q=one%20two")
            assert json.load(urllib.request.urlopen(request)) == {"translatedText": "zwei eins"}
            server.terminate()
            assert server.wait(60) == 0
        finally:
            server.kill()
