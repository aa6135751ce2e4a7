"""Documents are read and written in processes of bounded memory, which end with the time of their requests."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

import torch

from ..translation.documents.document import Reading, read_document
from ..translation.documents.inline import TooManyCharactersError
from ..translation.documents.places import Align
from ..translation.results import Translation


# Processes of all clients at a time, of which a client has one; and seconds between looks whether one is not needed.
MOST, LOOK_INTERVAL = 4, 0.05
# Seconds until a first process has to be there: what it is a copy of imports torch.
START_SECONDS = 120.0
# Added to the priority of the serving processes.
NICENESS = 5


class Apart:
    """Reads and writes clients' documents; on Linux each process may take `memory` bytes more than at its start."""

    def __init__(self, memory: int):
        self._memory = memory
        self._slots, self._clients = asyncio.Semaphore(MOST), WeakValueDictionary[Hashable, asyncio.Lock]()
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="documents")

    async def start(self) -> None:
        """Wait until documents are read at once, and not only after four seconds of imports."""
        ends = asyncio.get_running_loop().time() + START_SECONDS
        await self.run(None, ends, texts_of, (b"", Reading("none.txt")))

    async def run(
        self,
        client: Hashable,
        ends: float,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        align: Align | None = None,
    ) -> Any:
        """What `texts_of` or `translated` returns by the loop's time `ends`; `ValueError` where it needs too much."""
        loop, is_over = asyncio.get_running_loop(), threading.Event()
        try:
            async with asyncio.timeout_at(ends), self._clients.setdefault(client, asyncio.Lock()), self._slots:
                seconds = ends - loop.time()
                given = (function, arguments, align, seconds, self._memory, is_over)
                return await loop.run_in_executor(self._threads, run_apart, *given)
        finally:
            is_over.set()


def run_apart(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    align: Align | None,
    seconds: float,
    memory: int,
    is_over: threading.Event,
) -> Any:
    """What a function returns in a process of its own; it gets `align`, and then the arguments."""
    ends, context = monotonic() + seconds, _context()
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, memory, seconds, function, arguments), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            while not here.poll(LOOK_INTERVAL):
                if monotonic() > ends or is_over.is_set():
                    raise TimeoutError
            kind, value = here.recv()
            if kind == "result":
                return value
            if kind == "error":
                raise value
            found = [] if align is None else align(value)
            here.send([None if each is None else each.float().cpu().numpy() for each in found])
    except (EOFError, ConnectionError):
        raise ValueError(_too_much(memory)) from None
    finally:
        process.kill()
        process.join()
        here.close()


def _too_much(memory: int) -> str:
    return f"it needs more than the {memory // 2**20:,} MiB, or the time, that a document may take"


def begin() -> None:
    """Begin to start the process that others are copied from, which takes seconds, beside what this one does."""
    if _context().get_start_method() == "forkserver":
        from multiprocessing import forkserver  # on Unix alone

        forkserver.ensure_running()


def _context() -> Any:
    """Processes start as copies of one without threads that has imported what reads documents, where there can be."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


# ------------------------------------------------------------------------------------------------ in the other process


def _work(
    connection: Connection, memory: int, seconds: float, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the server decides
    gc.disable()  # it would take half of the time, and memory is bounded
    _bound(memory, seconds)

    def align(pairs: Sequence[tuple[str, str]]) -> list[torch.Tensor | None]:
        connection.send(("align", pairs))
        return [None if each is None else torch.from_numpy(each) for each in connection.recv()]

    try:
        answer = ("result", function(align, *arguments))
    except TooManyCharactersError as error:
        answer = ("error", error)
    except (MemoryError, RecursionError):
        answer = ("error", ValueError(_too_much(memory)))
    except ValueError as error:
        answer = ("error", ValueError(str(error)))
    except Exception:
        answer = ("error", RuntimeError(traceback.format_exc()))
    with contextlib.suppress(ConnectionError):  # the server has ended
        connection.send(answer)


def _bound(memory: int, seconds: float) -> None:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    os.nice(NICENESS)
    limits = {resource.RLIMIT_CPU: int(seconds) + 1}  # where the server was killed
    if (pages := Path("/proc/self/statm")).exists():
        limits[resource.RLIMIT_AS] = int(pages.read_text().split()[0]) * resource.getpagesize() + memory
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]  # which nobody but root may raise
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))


def texts_of(align: Align, content: bytes, reading: Reading) -> list[str]:
    """The texts of a document."""
    return read_document(content, reading).texts


def translated(
    align: Align, content: bytes, reading: Reading, translations: Sequence[str], language: str | None
) -> bytes:
    """The document with the translations of its texts."""
    found = [[Translation(each)] for each in translations]
    return read_document(content, reading).translated(found, align, language)
