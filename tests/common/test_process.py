"""What libraries are told: before they are imported, only where nobody else has, and that others are left alone."""

import os
import subprocess
import sys
from pathlib import Path
from platform import libc_ver
from types import SimpleNamespace

import pytest

from vanilla_transformer_hf.common import process


ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in (*process.WAITS, *process.KERNELS)}


@pytest.fixture(autouse=True)
def looked_up_anew(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    process._library.cache_clear()
    yield
    process._library.cache_clear()


@pytest.mark.parametrize(
    ("decide", "given", "found"),
    [
        (process.wait_briefly, {}, {"GOMP_SPINCOUNT": "10000"}),
        *((process.wait_briefly, {name: "7"}, {name: "7"}) for name in process.WAITS),
        (process.keep_few_kernels, {}, process.KERNELS),
        *((process.keep_few_kernels, {name: "7"}, process.KERNELS | {name: "7"}) for name in process.KERNELS),
    ],
)
def test_what_the_environment_says_of_threads_and_kernels_stays(decide, given, found):
    os.environ.update(given)
    decide()
    assert {name: os.environ[name] for name in (*process.WAITS, *process.KERNELS) if name in os.environ} == found


TORCH = """
import gc, os
print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("LRU_CACHE_CAPACITY"), gc.get_threshold()[0], flush=True)
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
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, *begin, "/no/model"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "10000 64 20000\n", done.stderr


def test_a_command_does_not_free_its_objects_one_by_one_at_its_end():
    code = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0)); " + CONSOLE
    done = subprocess.run([sys.executable, "-c", code, "clean", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "True", done.stderr


@pytest.fixture
def told(monkeypatch):
    """What the library is told."""
    calls = []
    library = SimpleNamespace(mallopt=lambda *values: calls.append(values), malloc_trim=calls.append)
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    return calls


def test_large_blocks_lie_outside_and_free_memory_goes_back(told):
    process.keep_heap_small()
    process.give_back_memory()
    assert told == [(-3, 2**22), (-1, 2**28), 0]


@pytest.mark.parametrize("name", process.HEAP)
def test_what_the_environment_says_stays(told, name):
    os.environ[name] = "1"
    process.keep_heap_small()
    assert told == []


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_other_c_libraries_are_left_alone(monkeypatch, platform):
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: SimpleNamespace())
    monkeypatch.setattr(sys, "platform", platform)
    process.keep_heap_small()
    process.give_back_memory()
    assert process._library() is None


@pytest.mark.skipif(libc_ver()[0] != "glibc", reason="not glibc")
def test_glibc_takes_the_values():
    library = process._library()
    assert library.mallopt(process.M_TRIM_THRESHOLD, process.MOST_FREE) == 1
    assert library.malloc_trim(0) in (0, 1)
