"""
The processes of a server that share its socket, and their supervisor.

uvicorn's own supervisor waits for the answers of one worker at a time, also of one that has ended.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any


logger = logging.getLogger(__name__)

# Seconds between two signs of life of a worker, and without one until it is replaced.
BEAT_INTERVAL = 1
HANG_SECONDS = 60.0
# Seconds between two looks at the workers; the end of one is seen at once.
LOOK_INTERVAL = 0.5
# Seconds until a worker that could not start is started again: the first, doubled each time, and the last.
RETRY_SECONDS = (1.0, 30.0)
# Seconds after the time for running requests until a worker is killed.
MARGIN = 15.0

# What a worker does: a function of its socket and of the function that it calls every `BEAT_INTERVAL`.
Work = Callable[[socket.socket, Callable[[], None]], None]


class Worker:
    """A process, and what is known of it; it is ready from its first sign of life on."""

    def __init__(self, context: Any, work: Work, listening: socket.socket):
        self.beats, beats = context.Pipe(duplex=False)
        self.process = context.Process(target=run_worker, args=(work, listening, beats))
        self.process.start()
        beats.close()  # its end is the worker's alone: it is closed when the worker ends
        self.is_ready, self.last_beat, self.kill_at = False, monotonic(), float("inf")

    def look(self) -> None:
        """Read its signs of life, and kill it if it hangs."""
        with contextlib.suppress(EOFError, OSError):
            while self.beats.poll():
                self.beats.recv_bytes()
                self.is_ready, self.last_beat = True, monotonic()
        hangs = self.is_ready and monotonic() - self.last_beat > HANG_SECONDS and self.kill_at == float("inf")
        if hangs or monotonic() > self.kill_at:
            logger.error("worker %d does not answer: it is killed", self.process.pid)
            self.process.kill()

    def end(self, seconds: float) -> None:
        """Let it finish its requests for so many seconds."""
        if self.kill_at == float("inf"):
            self.kill_at = monotonic() + seconds
            self.process.terminate()


class Supervisor:
    """Keeps a number of workers running until SIGTERM or Ctrl-C."""

    # SIGHUP replaces them one after another, each when its successor is ready; running requests are finished. Workers
    # end when this process has ended. The module `preload` is imported once, before workers are forked from it, where
    # the system can: a new one is there sooner.

    def __init__(self, work: Work, count: int, listening: socket.socket, seconds_to_finish: float, preload: str):
        self._work, self._count, self._listening = work, count, listening
        self._seconds = seconds_to_finish + MARGIN
        can_fork = "forkserver" in multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("forkserver" if can_fork else "spawn")
        if can_fork:
            self._context.set_forkserver_preload([preload])
        self._workers: list[Worker] = []  # those that are to run
        self._leaving: list[Worker] = []  # those that finish their requests
        self._old: list[Worker] = []  # those that are to be replaced
        self._failures, self._start_at = 0, 0.0
        self._is_stopping = self._is_reloading = False

    def run(self) -> None:
        """Run the workers; call it in the main thread, which receives the signals."""
        handlers = {"SIGTERM": self._stop, "SIGINT": self._stop, "SIGHUP": self._reload}
        numbers = {getattr(signal, name): handle for name, handle in handlers.items() if hasattr(signal, name)}
        before = {number: signal.signal(number, handle) for number, handle in numbers.items()}
        try:
            while not self._is_stopping:
                self._look()
                self._replace_old()
                self._start_missing()
                self._wait()
            for worker in [*self._workers, *self._leaving]:
                worker.end(self._seconds)
            self._leaving, self._workers = [*self._leaving, *self._workers], []
            while self._leaving:
                self._look()
                self._wait()
        finally:
            for worker in [*self._workers, *self._leaving]:
                worker.process.kill()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: Any) -> None:
        self._is_stopping = True

    def _reload(self, number: int, frame: Any) -> None:
        self._is_reloading = True

    def _wait(self) -> None:
        """Until a worker ends, or the next look."""
        ends = [worker.process.sentinel for worker in [*self._workers, *self._leaving]]
        wait(ends, LOOK_INTERVAL)

    def _look(self) -> None:
        """Forget those that have ended."""
        for worker in [*self._workers, *self._leaving]:
            worker.look()
        dead = [worker for worker in self._workers if not worker.process.is_alive()]
        for worker in dead:
            logger.error("worker %d ended with exit code %s", worker.process.pid, worker.process.exitcode)
            low, high = RETRY_SECONDS
            self._failures = 0 if worker.is_ready else self._failures + 1
            self._start_at = monotonic() + (min(high, low * 2**self._failures) if self._failures else 0.0)
        self._workers = [worker for worker in self._workers if worker not in dead]
        self._old = [worker for worker in self._old if worker not in dead]
        self._leaving = [worker for worker in self._leaving if worker.process.is_alive()]

    def _start_missing(self) -> None:
        # The first of those to be replaced stays until its successor, one more worker, is ready.
        wanted = self._count + (1 if self._old else 0)
        while len(self._workers) < wanted and monotonic() >= self._start_at and not self._is_stopping:
            self._workers.append(Worker(self._context, self._work, self._listening))

    def _replace_old(self) -> None:
        """After SIGHUP: end the next of the old workers if all others are ready, its successor included."""
        if self._is_reloading:
            self._is_reloading, self._old = False, [*self._workers]
        if self._old and len(self._workers) > self._count and all(worker.is_ready for worker in self._workers):
            old = self._old.pop(0)
            self._workers.remove(old)
            self._leaving.append(old)
            old.end(self._seconds)


def run_worker(work: Work, listening: socket.socket, beats: Connection) -> None:
    """What a worker process does; it ends as after SIGTERM when its supervisor has ended."""
    if hasattr(signal, "SIGHUP"):  # a terminal that closes sends it to all; the supervisor decides
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor = multiprocessing.parent_process()

    def end_with_supervisor() -> None:
        if supervisor is not None:
            supervisor.join()
            os.kill(os.getpid(), signal.SIGTERM)

    def beat() -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended
            beats.send_bytes(b".")

    threading.Thread(target=end_with_supervisor, name="end with supervisor", daemon=True).start()
    work(listening, beat)
