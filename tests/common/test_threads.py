"""How threads wait for each other: set before torch is imported, and only where nobody else has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vanilla_transformer_hf.common.threads import SETTINGS, wait_briefly


ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name not in SETTINGS})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"GOMP_SPINCOUNT": "10000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_what_the_environment_says_stays(given, found):
    os.environ.update(given)
    wait_briefly()
    assert {name: os.environ[name] for name in SETTINGS if name in os.environ} == found


TORCH = """
import os
print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("LRU_CACHE_CAPACITY"), flush=True)
os._exit(0)
"""
CONSOLE = "import vanilla_transformer_hf_command as command; command.main()"


@pytest.mark.parametrize(
    "begin",
    [
        ["-c", CONSOLE, "translate"],
        ["-m", "vanilla_transformer_hf", "translate"],
        [str(ROOT / "scripts" / "translate.py")],
    ],
    ids=["console", "module", "script"],
)
def test_however_a_command_is_called_it_decides_before_torch_is_imported(begin, tmp_path):
    (tmp_path / "torch.py").write_text(TORCH)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    environment.pop("LRU_CACHE_CAPACITY", None)
    command = [sys.executable, *begin, "/no/model"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "10000 64\n", done.stderr
