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
from ..text_translator import WINDOW


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


class Sharing(NamedTuple):
    """Processes, the threads of all together, and a line for the user, which may be empty."""

    processes: int
    threads: int
    note: str


def choose(
    processes: Count, threads: Count, lines: int | None, window: int | None, machine: Machine, weights: int | None
) -> Sharing:
    """Choose what is "auto", for a model whose weights have so many bytes; `threads` are those of all processes."""
    # There are as many processes as should be no slower than one.
    of_threads = of_processes = "as given"
    if threads == AUTO:
        threads = machine.free_cores
        of_threads = f"{machine.idle:.1f} cores are idle, {machine.cores} allowed"
    if processes == AUTO:
        if lines is None:
            limits = {"the number of lines is not known": 1}
        elif weights is None:
            limits = {"the size of the model is not known yet": 1}
        else:
            limits = {
                "more have too few lines": lines // (WINDOWS_OF_A_PROCESS * max(WINDOW, window or 0)),
                "more have no memory": machine.memory // (BYTES_OF_A_PROCESS + COPIES_OF_WEIGHTS * weights),
            }
            if machine.accelerators:
                limits["more have no accelerator"] = machine.accelerators
            else:
                limits |= {"more have no thread": threads, "more have no idle core": machine.free_cores}
        of_processes = min(limits, key=limits.__getitem__)
        most = max(1, limits[of_processes])
        processes = most
    used = worth_starting(processes, lines, window)
    return Sharing(used, threads, f"processes: {used} ({of_processes}), threads: {threads} ({of_threads})")


def sharing_of(arguments: Any, lines: int | None) -> Sharing:
    """What the arguments of a command say, or leave to be chosen."""
    processes, window = arguments.processes, arguments.window
    threads = torch.get_num_threads() if arguments.threads is None else arguments.threads
    for name, number in (("processes", processes), ("threads", threads)):
        if number != AUTO and number < 1:
            raise ValueError(f"{name}={number}: must be at least 1")
    if AUTO in (processes, threads):
        models = [arguments.model, *getattr(arguments, "ensemble", ())]
        return choose(processes, threads, lines, window, look(arguments.device), bytes_of_weights(models))
    used = worth_starting(processes, lines, window)
    note = f"{used} of {processes} processes: more are not worth their start" if used < processes else ""
    return Sharing(used, threads, note)


@contextmanager
def shared(arguments: Any, lines: int | None) -> Iterator[int]:
    """Gives the number of processes, and prints what was chosen; torch computes inside with its threads."""
    # Afterwards with those from before: a command may train then, with its own number.
    sharing = sharing_of(arguments, lines)
    if sharing.note:
        print(sharing.note, file=sys.stderr)
    before = torch.get_num_threads()
    torch.set_num_threads(sharing.threads)
    try:
        yield sharing.processes
    finally:
        torch.set_num_threads(before)
