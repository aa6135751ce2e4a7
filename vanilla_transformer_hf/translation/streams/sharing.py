"""How many processes and threads share the lines: what the user says, or what machine, load, lines and model allow."""

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import try_to_load_from_cache

from ...common.command_line import AUTO, Count
from ...common.machine import Machine, look
from ..scoring.text_model import WINDOW


# Windows that each of several processes gets at least. A second one takes about 5 s more to start, and two with half
# of the threads each translate a fifth more lines a second than one with all (the shipped model, 5 beams).
WINDOWS_OF_A_PROCESS = 4
# Memory of a process: Python, torch and a batch take less than 1 GiB, and weights lie there as they are saved, packed,
# and for a moment once more.
BYTES_OF_A_PROCESS, COPIES_OF_WEIGHTS = 2**30, 3


def worth_starting(processes: int, lines: int | None, window: int | None) -> int:
    """How many processes are worth their start; they share one's windows, so that the output stays equal."""
    if processes == 1 or lines is None or (window is not None and window < 1):
        return processes
    worth = lines // (WINDOWS_OF_A_PROCESS * WINDOW) if window is None else math.ceil(lines / window)
    return max(1, min(processes, worth))


def bytes_of_weights(models: Iterable[str]) -> int | None:
    """The size of the weights of models together; None: one is not on this machine yet."""
    total = 0
    for model in models:
        config = Path(model, "config.json") if Path(model).is_dir() else try_to_load_from_cache(model, "config.json")
        if not isinstance(config, (str, Path)):
            return None
        total += sum(path.stat().st_size for path in Path(config).parent.glob("*.safetensors"))
    return total


def most_processes(
    machine: Machine, threads: int, lines: int | None, window: int | None, weights: int | None
) -> tuple[int, str]:
    """The largest number of processes that should be no slower than one process, and what limits it."""
    if lines is None:
        return 1, "the number of lines is not known"
    if weights is None:
        return 1, "the size of the model is not known yet"
    limits = {
        "more have too few lines": lines // (WINDOWS_OF_A_PROCESS * max(WINDOW, window or 0)),
        "more have no memory": machine.memory // (BYTES_OF_A_PROCESS + COPIES_OF_WEIGHTS * weights),
    }
    if machine.accelerators:
        limits["more have no accelerator"] = machine.accelerators
    else:
        limits["more have no thread"] = threads
        limits["more have no idle core"] = machine.free_cores
    why = min(limits, key=limits.__getitem__)
    return max(1, limits[why]), why


class Sharing(NamedTuple):
    """Processes, the threads of all together, and a line for the user, which may be empty."""

    processes: int
    threads: int
    note: str


def as_given(processes: int, threads: int, lines: int | None, window: int | None) -> Sharing:
    """At most so many processes, with so many threads together."""
    used = worth_starting(processes, lines, window)
    note = f"{used} of {processes} processes: more are not worth their start" if used < processes else ""
    return Sharing(used, threads, note)


def choose(
    processes: Count, threads: Count, lines: int | None, window: int | None, machine: Machine, weights: int | None
) -> Sharing:
    """Choose what is "auto", for a model whose weights have so many bytes; `threads` are those of all processes."""
    of_threads = of_processes = "as given"
    if threads == AUTO:
        threads = machine.free_cores
        of_threads = f"{machine.idle:.1f} cores are idle, {machine.cores} allowed"
    if processes == AUTO:
        processes, of_processes = most_processes(machine, threads, lines, window, weights)
    used = worth_starting(processes, lines, window)
    return Sharing(used, threads, f"processes: {used} ({of_processes}), threads: {threads} ({of_threads})")


def sharing_of(arguments: Any, lines: int | None, models: Iterable[str]) -> Sharing:
    """What the arguments of a command say, or leave to be chosen."""
    threads = torch.get_num_threads() if arguments.threads is None else arguments.threads
    for name, number in (("processes", arguments.processes), ("threads", threads)):
        if number != AUTO and number < 1:
            raise ValueError(f"{name}={number}: must be at least 1")
    if AUTO not in (arguments.processes, threads):
        return as_given(arguments.processes, threads, lines, arguments.window)
    machine = look(arguments.device)
    return choose(arguments.processes, threads, lines, arguments.window, machine, bytes_of_weights(models))


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Inside, torch computes with so many threads: a command may train afterwards, with its own number."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def shared(arguments: Any, lines: int | None, models: Iterable[str]) -> Iterator[int]:
    """Gives the number of processes, and prints what was chosen; torch computes inside with its threads."""
    sharing = sharing_of(arguments, lines, models)
    if sharing.note:
        print(sharing.note, file=sys.stderr)
    with using(sharing.threads):
        yield sharing.processes
