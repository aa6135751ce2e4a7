"""Process windows of lines in this process or in several; results come in the order of the lines."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, cast

import torch

from ..tally import Tally
from ..translator import Translator
from .work import Answer, Item, LineWork


class Window(NamedTuple):
    """Some lines: the number of the first, they themselves, and the digest of the input up to the last."""

    first: int
    items: list[Item]
    digest: str


class LocalWorker:
    """
    Works in this process.

    Args:
        translator: The object that does the work.
        work: What is done.

    Attributes:
        description: What `describe` says about the translator.
    """

    def __init__(self, translator: Translator, work: LineWork, description: Any = None):
        self._translator, self._work, self.description = translator, work, description

    def __enter__(self) -> "LocalWorker":
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def map(self, windows: Iterable[Window], tally: Tally) -> Iterator[tuple[Window, Answer]]:
        """Each window with its output, in order; not read further than worked on."""
        for window in windows:
            yield window, self._work(self._translator, window.first, window.items, tally)


class WorkerPool:
    """
    Works in several processes, each with its own model and its share of the threads.

    Windows are handed out one by one to free processes; at most two for each process are held at a time. The
    processes end with this one, whatever becomes of it.

    Args:
        open_translator: Opens the model, in each process; takes the name of the device.
        work: What is done.
        processes: How many.
        device: Name of the device; where there are several of the kind and none is named, they are shared out.
        describe: Called with the translator of the first process; its result is `description`.
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
        threads = max(1, torch.get_num_threads() // processes)
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            to_describe = describe if number == 0 else None
            arguments = (theirs, open_translator, device_of(number, device), work, threads, to_describe)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            self.description, *_ = [self._receive(pipe)[1] for pipe in self._pipes]
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: Any) -> None:
        for pipe, process in zip(self._pipes, self._processes):
            pipe.close()
            process.terminate()
        for process in self._processes:
            process.join()

    def map(self, windows: Iterable[Window], tally: Tally) -> Iterator[tuple[Window, Answer]]:
        """Each window with its output, in order; read ahead of that by at most two windows for each process."""
        windows, free = iter(windows), list(self._pipes)
        held: dict[int, Window] = {}  # those that have not been given back yet, by the number of their first line
        done: dict[int, Answer] = {}
        busy: dict[Connection, int] = {}
        exhausted, unreadable = False, None
        while True:
            while free and not exhausted and len(held) < 2 * len(self._pipes):
                try:
                    window = next(windows, None)
                except ValueError as error:  # told when what came before is done
                    window, unreadable = None, error
                if window is None:
                    exhausted = True
                    break
                held[window.first] = window
                busy[free[-1]] = window.first
                with self._naming_the_dead(free[-1]):
                    free.pop().send((window.first, window.items))
            if not held:
                if unreadable is not None:
                    raise unreadable
                return
            for pipe in cast(list[Connection], wait(list(busy))):
                kind, value = self._receive(pipe)
                if kind == "counted":
                    tally.add(**value)
                else:
                    done[busy.pop(pipe)] = value
                    free.append(pipe)
            while held and (first := next(iter(held))) in done:
                yield held.pop(first), done.pop(first)

    def _receive(self, pipe: Connection) -> tuple[str, Any]:
        """
        A message of a process.

        Raises:
            OSError: The process is gone.
            Exception: What was raised there.
        """
        with self._naming_the_dead(pipe):
            kind, value = pipe.recv()
        if kind == "failed":
            raise value
        return kind, value

    @contextmanager
    def _naming_the_dead(self, pipe: Connection) -> Iterator[None]:
        """Name the process that ended: a `BrokenPipeError` would look as if the reader of the output had left."""
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            number = self._pipes.index(pipe)
            self._processes[number].join()
            code = self._processes[number].exitcode
            raise OSError(f"process {number + 1} of {len(self._pipes)} ended with exit code {code}") from error


class _Reports(Tally):
    """A tally that tells the main process."""

    def __init__(self, pipe: Connection):
        super().__init__()
        self._pipe = pipe

    def add(self, **counts: int) -> None:
        super().add(**counts)
        self._pipe.send(("counted", counts))


def _serve(
    pipe: Connection,
    open_translator: Callable[[str | None], Translator],
    device: str | None,
    work: LineWork,
    threads: int,
    describe: Callable[[Translator], Any] | None,
) -> None:
    """The main function of a process: open the model, then translate windows until the main process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends this one
    torch.set_num_threads(threads)
    try:
        try:
            translator = open_translator(device)
            pipe.send(("ready", describe and describe(translator)))
            while True:
                first, items = pipe.recv()
                pipe.send(("done", work(translator, first, items, _Reports(pipe))))
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            pipe.send(("failed", error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def device_of(number: int, device: str | None) -> str | None:
    """The device of a process: `device` itself, or where several are meant by it, one of them."""
    if device is None and torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    if device is None or ":" in device or device == "cpu" or torch.accelerator.device_count() < 2:
        return device
    return f"{device}:{number % torch.accelerator.device_count()}"
