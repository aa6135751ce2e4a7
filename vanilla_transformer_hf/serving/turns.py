"""A call in a thread of its own that takes turns with its caller."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar


Result = TypeVar("Result")


class Stopped(BaseException):  # no error: what runs in the thread must not catch it
    """The caller does not need the result any more."""


class CallInTurns(Generic[Result]):
    """A call in a thread of its own, with a function that gives back its turn after each step, or raises `Stopped`."""

    # So a loop that can only be called, not stepped, shares a CPU fairly, and two never use a model at the same time
    # unless a step takes long.

    def __init__(self, call: Callable[[Callable[[], None]], Result]):
        self._future: Future[Result] = Future()
        self._changed = threading.Condition()
        self._has_turn = self._is_stopped = False
        threading.Thread(target=self._run, args=(call,), name="search in turns", daemon=True).start()

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def advance(self, seconds: float) -> bool:
        """Give the call the turn for at most so many seconds, and return whether it is done."""
        with self._changed:
            self._has_turn = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._has_turn, seconds)
        return self.is_done

    def stop(self) -> None:
        """End the call after its present step."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def result(self) -> Result:
        """The result of a call that is done."""
        return self._future.result()

    def _pause(self) -> None:
        """Give the turn back, and wait for the next one; called in the thread."""
        with self._changed:
            self._has_turn = False
            self._changed.notify_all()
        self._wait()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_turn or self._is_stopped)
            if self._is_stopped:
                raise Stopped

    def _run(self, call: Callable[[Callable[[], None]], Result]) -> None:
        try:
            self._wait()
            self._future.set_result(call(self._pause))
        except BaseException as error:
            self._future.set_exception(error)
        finally:
            with self._changed:
                self._has_turn = False
                self._changed.notify_all()
