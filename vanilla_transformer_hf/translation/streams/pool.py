"""
Windows of lines in this process or in several; results come in the order of the lines.

Importing this file defines no model class: a process says first (`begin`) that it does without what the first one
brings for programs (see `registration.py`).
"""

import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ... import registration
from ...common.machine import accelerators, device_type
from ...common.process import keep_heap_small
from ..text.tally import Tally
from .lines import Window, answer_of


if TYPE_CHECKING:
    from ..text_translator import TextTranslator
    from .work import Answer, LineWork


# How often the counts of sentences and tokens reach the progress bar while a window is translated.
SECONDS_BETWEEN_COUNTS = 0.2


class WorkerPool:
    """Works in several processes, each with its own model and its share of the threads."""

    # Windows are handed out one by one to free processes; at most two for each process are held at a time. The
    # processes end with this one, even if it is killed. Devices are shared out where there are several and none is
    # named.

    def __init__(
        self,
        open_translator: "Callable[[str | None], TextTranslator]",
        work: "LineWork",
        processes: int,
        device: str | None,
        describe: "Callable[[Any], Any]",
    ):
        context = get_context("spawn")  # a fork would share locks and accelerators
        self._count, self._others = processes, set(active_children())
        self._counted, numbers = context.SimpleQueue(), context.SimpleQueue()
        for number in range(processes):
            numbers.put(number)
        threads = max(1, torch.get_num_threads() // processes)
        arguments = (pickle.dumps((open_translator, work)), device, threads, numbers, self._counted)
        self._executor = ProcessPoolExecutor(processes, context, begin, arguments)
        try:
            opened = [
                self._executor.submit(describe_translator, describe if number == 0 else None)
                for number in range(processes)
            ]
            self.description, *_ = [self._of_process(future.result) for future in opened]
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: Any) -> None:
        # What they work on is not needed any more; the executor would wait for it.
        for process in set(active_children()) - self._others:
            process.terminate()
        self._executor.shutdown(cancel_futures=True)

    def map(self, windows: Iterable[Window], tally: Tally) -> "Iterator[tuple[Window, Answer]]":
        """Each window with its output, in order; read ahead of that by at most two windows for each process."""
        windows, held = iter(windows), deque[tuple[Window, Future[Any]]]()
        is_read, unreadable = False, None
        while True:
            while not is_read and len(held) < 2 * self._count:
                try:
                    window = next(windows, None)
                except ValueError as error:  # reported when what came before is done
                    window, unreadable = None, error
                if window is None:
                    is_read = True
                else:
                    held.append((window, self._of_process(self._executor.submit, answer, window)))
            if not held:
                if unreadable is not None:
                    raise unreadable
                return
            window, future = held[0]
            wait([future], SECONDS_BETWEEN_COUNTS)
            is_done = future.done()
            while not self._counted.empty():
                tally.add(**self._counted.get())
            if is_done:
                held.popleft()
                yield window, self._of_process(future.result)

    def _of_process(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What a call of the executor returns; an error that says why, where a process has ended."""
        try:
            return call(*arguments)
        except BrokenProcessPool as error:
            raise OSError(
                f"1 of {self._count} processes ended before its work was done; the system may have killed it because "
                "memory ran out"
            ) from error


# ------------------------------------------------------------------------------------------------- in another process


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
    translator: "Callable[[], TextTranslator]"
    reports: Reports


_state: State


def begin(opener_and_work: bytes, device: str | None, threads: int, numbers: Any, counted: Any) -> None:
    """Set up a process; `numbers` has one for each."""
    # Its first task opens the model, and exceptions reach the main process. `opener_and_work` is pickled, because
    # reading it imports the models.
    global _state
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    keep_heap_small()
    registration.leave_out_programs()
    torch.set_num_threads(threads)
    open_translator, work = pickle.loads(opener_and_work)
    _state = State(work, cache(partial(open_translator, device_of(numbers.get(), device))), Reports(counted))


def _end_with_parent() -> None:
    """The executor's processes would wait for work forever after the main process was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def device_of(number: int, device: str | None) -> str | None:
    """The device of a process: `device` itself, or where several are meant by it, one of them."""
    count = accelerators(device)
    return device if count < 2 else f"{device_type(device)}:{number % count}"


def describe_translator(describe: "Callable[[Any], Any] | None") -> Any:
    """Open the model, and describe it."""
    translator = _state.translator()
    return describe and describe(translator)


def answer(window: Window) -> "Answer":
    """The output for a window."""
    return answer_of(_state.work, _state.translator(), window, _state.reports)
