"""Engines that run in their own processes and take turns: the parent sends a line, the child runs a block of steps."""

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
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


def allocated_memory() -> float:
    """The most memory of the GPU that torch had given to tensors since that was reset, in MiB."""
    import torch  # not into the engines that do without it

    return torch.cuda.max_memory_allocated() / 2**20


class Turns:
    """
    The child's side: call `step` after every step; it waits for the parent at the end of each block. A child that
    measures by itself calls `report` instead.

    A block has `block` steps. `finish` is called before the clock is read: it waits for work that a device does behind
    the program's back; `memory` is the peak in MiB. Other output goes from standard output to standard error.
    """

    def __init__(
        self,
        block: int = 1,
        clock: str = "wall",
        finish: Callable[[], Any] = lambda: None,
        memory: Callable[[], float] = peak_memory,
    ):
        self.block, self.steps, self.tokens, self.clock = block, 0, 0, CLOCKS[clock]
        self._finish, self._memory = finish, memory
        self._channel = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._start = self.clock()

    def step(self, tokens: int) -> None:
        """Count a step and its tokens. Ends the process when the parent sends no more turns."""
        self.steps, self.tokens = self.steps + 1, self.tokens + tokens
        if self.steps < self.block:
            return
        self._finish()
        seconds = self.clock() - self._start
        memory = {"peak_mib": self._memory(), "anonymous_mib": memory_now("RssAnon")}
        self.report({"seconds": seconds / self.steps, "tokens_per_second": self.tokens / seconds, **memory})
        self.steps = self.tokens = 0
        self._start = self.clock()

    def report(self, result: dict[str, Any]) -> dict[str, Any]:
        """Send a block's numbers and wait for the work of the next turn, empty if it is that of the last one."""
        # It ends the process when the parent sends no more turns.
        print(json.dumps(result), file=self._channel, flush=True)
        line = sys.stdin.readline()
        if not line:
            sys.exit()
        return json.loads(line)


class OutOfTimeError(Exception):
    """The seconds of a `TimeLimit` are over."""


class TimeLimit:
    """How long this process may take, from its start on (None: without a limit), and what it has done by when."""

    def __init__(self, seconds: float | None = None):
        import psutil  # not into the engines, whose memory is measured

        self._began = psutil.Process().create_time()
        self._seconds = math.inf if seconds is None else seconds

    @property
    def used(self) -> float:
        """Seconds since the start of the process."""
        return time.time() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left, infinity without a limit."""
        return self._seconds - self.used

    def say(self, text: str) -> None:
        """A line on standard error, with the seconds since the start."""
        print(f"{self.used:6.1f} s  {text}", file=sys.stderr, flush=True)


class Engine:
    """
    The parent's side: a process that runs a module of this folder with its settings. Its first block is a warm-up, for
    which `warm_up` waits; several engines can be started before that. `name` is for messages.
    """

    def __init__(
        self,
        name: str,
        module: str,
        settings: dict[str, Any],
        threads: int,
        environment: dict[str, str] | None = None,
        limit: TimeLimit | None = None,
    ):
        self.name, self.settings, self.limit = name, settings, limit or TimeLimit()
        self.results: list[dict[str, Any]] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `stop`
        always = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(FOLDER), module, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **always, **(environment or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            text=True,
        )
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def _read(self) -> dict[str, Any]:
        """What the process sends next."""
        left = self.limit.left
        if left <= 0:
            raise OutOfTimeError(self.name)
        timer = threading.Timer(left, self._process.kill) if left < math.inf else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            line = self._stdout.readline()
        finally:
            if timer is not None:
                timer.cancel()
        if line:
            return json.loads(line)
        if self.limit.left <= 0:
            raise OutOfTimeError(self.name)
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace").splitlines()[-12:]
        raise ChildProcessError(f"{self.name} ended with code {self._process.wait()}:\n" + "\n".join(tail))

    def warm_up(self) -> None:
        """Wait for the first block of the work that the process has been given last."""
        self._read()
        self.results = []

    def turn(self) -> None:
        """Run one block and keep its numbers."""
        self.send({})
        self.results.append(self._read())

    def send(self, work: dict[str, Any]) -> None:
        """Give the process other work, or, with an empty dictionary, a turn; `_read` waits for its answer."""
        with suppress(BrokenPipeError):  # the process has ended; `_read` raises the error
            os.write(self._stdin.fileno(), json.dumps(work).encode() + b"\n")

    def stop(self) -> None:
        """End the process, at once if there is no time left."""
        self._stdin.close()
        if self.limit.left <= 0:
            self._process.kill()
        self._process.wait()
        self._stdout.close()
        self._errors.close()


def take_turns(engines: Sequence[Engine], rounds: int, limit: TimeLimit) -> None:
    """Let engines that are warm take turns, so many each, until the time limit; each keeps the numbers of its own."""
    try:
        for number in range(1, rounds + 1):
            for engine in engines:
                engine.turn()
            limit.say(f"turn {number} of {rounds}")
    except OutOfTimeError as error:
        limit.say(f"the time limit is reached before a turn of {error} has ended")
