"""
What a process of a `WorkerPool` does.

Importing this file defines no model class: `begin` says first that this process does without what the first one brings
for programs (see `registration.py`).
"""

import os
import pickle
import signal
from collections.abc import Callable
from functools import cache, partial
from multiprocessing import parent_process
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ... import registration
from ...common.machine import accelerators, device_type
from ...common.process import give_back_memory, keep_heap_small
from ..text.tally import Tally


if TYPE_CHECKING:
    from ..translator import Translator
    from .work import Answer, LineWork


class Window(NamedTuple):
    """Some lines: the number of the first, they themselves, and the digest of the input up to the last."""

    first: int
    items: list[Any]
    digest: str

    @property
    def last(self) -> int:
        """Number of the last line."""
        return self.first + len(self.items) - 1


def answer_of(work: "LineWork", translator: "Translator", window: Window, tally: Tally) -> "Answer":
    """The output for a window. What it needed goes back to the system: the next one begins with as little memory."""
    answer = work(translator, window.first, window.items, tally)
    give_back_memory()
    return answer


class Reports(Tally):
    """A tally that reports to the main process."""

    def __init__(self, counted: Any):
        super().__init__()
        self._counted = counted

    def add(self, **counts: int) -> None:
        super().add(**counts)
        self._counted.put(counts)


class State(NamedTuple):
    """The state of a process: its work, a function that opens its translator once, and its tally."""

    work: "LineWork"
    translator: Callable[[], "Translator"]
    reports: Reports


_state: State


def begin(opener_and_work: bytes, device: str | None, threads: int, numbers: Any, counted: Any) -> None:
    """
    Set up a process; `numbers` has one for each. Its first task opens the model, and exceptions reach the main
    process. `opener_and_work` is pickled, because reading it imports the models.
    """
    global _state
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    keep_heap_small()
    registration.leave_out_programs()
    torch.set_num_threads(threads)
    open_translator, work = pickle.loads(opener_and_work)
    own_device = device_of(numbers.get(), device)
    _state = State(work, cache(partial(open_translator, own_device)), reports=Reports(counted))


def _end_with_parent() -> None:
    """The executor's processes would wait for work forever after the main process was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def describe_translator(describe: Callable[["Translator"], Any] | None) -> Any:
    """Open the model, and describe it."""
    translator = _state.translator()
    return describe and describe(translator)


def answer(window: Window) -> "Answer":
    """The output for a window."""
    return answer_of(_state.work, _state.translator(), window, _state.reports)


def device_of(number: int, device: str | None) -> str | None:
    """The device of a process: `device` itself, or where several are meant by it, one of them."""
    if accelerators(device) < 2:
        return device
    return f"{device_type(device)}:{number % accelerators(device)}"
