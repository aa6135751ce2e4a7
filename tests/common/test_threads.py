"""How threads wait for each other: set before torch is imported, and only where nobody else has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vanilla_transformer_hf.common.threads import SETTINGS, wait_briefly


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


COMMAND = """
import os, sys
class Watch:
    def find_spec(self, name, *rest):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Watch())
sys.argv = ["vanilla-transformer", "translate", "/no/model"]
import vanilla_transformer_hf_command
vanilla_transformer_hf_command.main()
"""


def test_the_command_decides_before_torch_is_imported():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, env=environment)
    assert done.stdout == "10000\n", done.stderr
