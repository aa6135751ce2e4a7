"""Processes of Ray that a test has started, found by a mark in their environment."""

import os
from collections.abc import Iterator
from pathlib import Path


ROOT = Path(__file__).parents[1]


def ray_environment(mark: str) -> dict[str, str]:
    """The environment of a command that starts Ray, whose processes inherit the mark."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    # By default Ray's workers have a low priority, and would wait for other tests.
    return {**os.environ, **own, "RAY_worker_niceness": "0", "RAY_TEST": mark}


def processes(mark: str, *names: bytes) -> Iterator[int]:
    """Processes with the mark that have one of these texts in their command line."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if any(name in command for name in names) and f"RAY_TEST={mark}".encode() in environment:
            yield int(path.name)
