"""Engines that run in their own processes and take turns: the parent sends a line, the child runs a block of steps."""

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent  # holds vanilla_transformer_hf

# Makes FOLDER a package named `benchmarks` and runs one of its modules: python -c LAUNCH FOLDER MODULE SETTINGS
LAUNCH = """
import importlib.util, runpy, sys
folder, module = sys.argv[1:3]
del sys.argv[1:3]
spec = importlib.util.spec_from_file_location("benchmarks", folder + "/__init__.py")
sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["benchmarks"])
runpy.run_module("benchmarks." + module, run_name="__main__", alter_sys=True)
"""


# The clock of measurements: on a busy machine, CPU time of one thread is steadier than wall-clock time.
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def memory_now(field: str) -> float:
    """
    A line of memory in the process's status, in MiB: "VmHWM" is the peak of what lay in memory since it was reset,
    "RssAnon" what the process itself holds now: pages of files that it maps, such as weights, are the system's to take
    back. NaN on systems other than Linux.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 2**10 for line in lines if line.startswith(f"{field}:")), math.nan)


def peak_memory() -> float:
    """Peak memory of this process in MiB. Linux's `ru_maxrss` would include the parent's."""
    peak = memory_now("VmHWM")
    if math.isnan(peak):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS counts bytes
    return peak


class Turns:
    """
    The child's side: call `step` after every step; it waits for the parent at the end of each block. A child that
    measures by itself calls `report` instead.

    Other output of the child is redirected from standard output to standard error.
    """

    def __init__(self, block: int = 1, clock: str = "wall"):
        self.block, self.steps, self.tokens, self.clock = block, 0, 0, CLOCKS[clock]
        self._channel = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._start = self.clock()

    def step(self, tokens: int) -> None:
        """Count a step and its tokens. Ends the process when the parent sends no more turns."""
        self.steps, self.tokens = self.steps + 1, self.tokens + tokens
        if self.steps < self.block:
            return
        seconds = self.clock() - self._start
        memory = {"peak_mib": peak_memory(), "anonymous_mib": memory_now("RssAnon")}
        self.report({"seconds": seconds / self.steps, "tokens_per_second": self.tokens / seconds, **memory})
        self.steps = self.tokens = 0
        self._start = self.clock()

    def report(self, result: dict[str, Any]) -> None:
        """Send a block's numbers and wait. Ends the process when the parent sends no more turns."""
        print(json.dumps(result), file=self._channel, flush=True)
        if not sys.stdin.readline():
            sys.exit()


class Engine:
    """
    The parent's side: a process that runs a module of this folder with its settings. The first block is a warm-up.

    Raises:
        ChildProcessError: The process ended by itself; the message has its last lines.
    """

    def __init__(
        self, name: str, module: str, settings: dict[str, Any], threads: int, environment: dict[str, str] | None = None
    ):
        self.name, self.settings = name, settings
        self.results: list[dict[str, Any]] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `stop`
        threading = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(FOLDER), module, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **threading, **(environment or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            text=True,
        )
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._read()

    def _read(self) -> dict[str, Any]:
        line = self._stdout.readline()
        if line:
            return json.loads(line)
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace").splitlines()[-12:]
        raise ChildProcessError(f"{self.name} ended with code {self._process.wait()}:\n" + "\n".join(tail))

    def turn(self) -> None:
        """Run one block and keep its numbers."""
        with suppress(BrokenPipeError):  # the process has ended; `_read` raises the error
            os.write(self._stdin.fileno(), b"go\n")
        self.results.append(self._read())

    def stop(self) -> None:
        """End the process."""
        self._stdin.close()
        self._process.wait()
        self._stdout.close()
        self._errors.close()
