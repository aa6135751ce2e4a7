"""Process windows of lines in this process or in several; results come in the order of the lines."""

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any

import torch

from ..text.tally import Tally
from ..translator import Translator
from .work import Answer, LineWork
from .worker_process import Window, answer, answer_of, begin, describe_translator


# How often the counts of sentences and tokens reach the progress bar while a window is translated.
SECONDS_BETWEEN_COUNTS = 0.2


class LocalWorker:
    """Works in this process; `description` is the result of `describe` for the translator."""

    def __init__(self, translator: Translator, work: LineWork, description: Any = None):
        self._translator, self._work, self.description = translator, work, description

    def __enter__(self) -> "LocalWorker":
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def map(self, windows: Iterable[Window], tally: Tally) -> Iterator[tuple[Window, Answer]]:
        """Each window with its output, in order; not read further than worked on."""
        for window in windows:
            yield window, answer_of(self._work, self._translator, window, tally)


class WorkerPool:
    """
    Works in several processes, each with its own model and its share of the threads.

    Windows are handed out one by one to free processes; at most two for each process are held at a time. The processes
    end with this one, even if it is killed. Devices are shared out where there are several and none is named.
    """

    def __init__(
        self,
        open_translator: Callable[[str | None], Translator],
        work: LineWork,
        processes: int,
        device: str | None,
        describe: Callable[[Translator], Any],
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
            self.description, *_ = [self._result(future) for future in opened]
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

    def map(self, windows: Iterable[Window], tally: Tally) -> Iterator[tuple[Window, Answer]]:
        """Each window with its output, in order; read ahead of that by at most two windows for each process."""
        windows, held = iter(windows), deque[tuple[Window, Future[Answer]]]()
        exhausted, unreadable = False, None
        while True:
            while not exhausted and len(held) < 2 * self._count:
                try:
                    window = next(windows, None)
                except ValueError as error:  # reported when what came before is done
                    window, unreadable = None, error
                if window is None:
                    exhausted = True
                    break
                held.append((window, self._submit(window)))
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
                yield window, self._result(future)

    def _submit(self, window: Window) -> Future[Answer]:
        with self._naming_the_dead():
            return self._executor.submit(answer, window)

    def _result(self, future: Future[Any]) -> Any:
        """The result of a process."""
        with self._naming_the_dead():
            return future.result()

    @contextmanager
    def _naming_the_dead(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool as error:
            raise OSError(
                f"1 of {self._count} processes ended before its work was done; the system may have killed it because "
                "memory ran out"
            ) from error
