"""
Connections that end in time, and processes that do.

uvicorn waits without an end for the rest of a request's header, and for clients that do not read their answers.
"""

import asyncio
import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol


logger = logging.getLogger(__name__)

# Seconds until the header of a request has to be there, since the connection or the answer before it.
HEADER_SECONDS = 10.0
# Seconds between two looks at a connection.
LOOK_INTERVAL = 1.0
# Seconds in which a request still comes through on a connection without one, after the server has begun to stop.
DRAIN_SECONDS = 0.5
# Seconds after the time for running requests until the process ends in any case, and seconds that it has after its
# server has stopped, when threads have nothing left that anybody waits for.
MARGIN, EXIT_SECONDS = 10.0, 1.0
# Connections that are accepted before others are looked at, and how many may wait for that.
ACCEPTED_AT_ONCE, BACKLOG = 16, 1024
# Descriptors that are kept for files and for connections that have been accepted, but are not counted yet.
SPARE_DESCRIPTORS = 6 * ACCEPTED_AT_ONCE
# Errors after which no connection can be accepted for a while, and seconds between two log lines about them.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LOG_INTERVAL = 60.0


def most_connections() -> int:
    """Connections for which the process has descriptors."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource  # on Unix alone

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    folder = Path("/dev/fd")
    used = len([*folder.iterdir()]) if folder.is_dir() else SPARE_DESCRIPTORS
    return max(limit // 4, limit - used - SPARE_DESCRIPTORS)


class TimedConnection(AutoHTTPProtocol):  # type: ignore[valid-type, misc]  # the protocol is chosen at import
    """A connection that is closed when no request arrives on it in time, or its answer is slow or not read."""

    # If there are too many, the one that has waited longest for a request is closed.

    busy_seconds = float("inf")
    most = sys.maxsize
    cycle: Any
    transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._is_draining = False
        self._seen: tuple[Any, bool] = (None, True)
        self._since = self.loop.time()
        self._timer = self.loop.call_later(LOOK_INTERVAL, self._look)
        if len(self.connections) > self.most:
            open_ones = [one for one in self.connections if not one.transport.is_closing()]
            waiting = [one for one in open_ones if one.is_waiting and one is not self] or [self]
            if len(open_ones) > self.most:
                min(waiting, key=lambda one: one._since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_draining and not self.is_waiting:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Called when the server begins to stop."""
        if not self.is_waiting:
            super().shutdown()
        elif not self._is_draining:  # a request may be on its way
            self._is_draining = True
            self.loop.call_later(DRAIN_SECONDS, self._close_if_waiting)

    @property
    def is_waiting(self) -> bool:
        """Whether there is no request, or only a part of its header."""
        return self.cycle is None or self.cycle.response_complete

    def _close_if_waiting(self) -> None:
        if self.is_waiting and not self.transport.is_closing():
            super().shutdown()

    def _look(self) -> None:
        """Close the connection if it has been in the same state for too long."""
        seen, now = (self.cycle, self.is_waiting), self.loop.time()
        if seen != self._seen:
            self._seen, self._since = seen, now
        if now - self._since > (HEADER_SECONDS if self.is_waiting else self.busy_seconds):
            # An orderly end first; it waits for a client that does not read.
            (self.transport.abort if self.transport.is_closing() else self.transport.close)()
        self._timer = self.loop.call_later(LOOK_INTERVAL, self._look)


class TimedServer(uvicorn.Server):
    """uvicorn's server, which ends in time after a signal, and logs connections it cannot accept once a minute."""

    last_line = float("-inf")
    ending: threading.Timer | None = None

    async def serve(self, sockets: Any = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handle)
        await super().serve(sockets)

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():  # asyncio accepts at once as many as it lets wait
            listening.listen(BACKLOG)

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        if self.ending is None:
            self.ending = end_process_after((self.config.timeout_graceful_shutdown or 0) + MARGIN)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in EXHAUSTED:
            loop.default_exception_handler(context)
        elif time.monotonic() - self.last_line > LOG_INTERVAL:
            self.last_line = time.monotonic()
            logger.error("connections cannot be accepted for now: %s", error.strerror)


def end_process_after(seconds: float, status: int = 1) -> threading.Timer:
    """A timer that ends the process, whatever its other threads wait for."""

    def end() -> None:
        logger.error("the process still works %g seconds after it was stopped: it ends now", seconds)
        logging.shutdown()
        os._exit(status)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def ending_in_time(status: int = 0) -> Iterator[None]:
    """A context after which the process has `EXIT_SECONDS` to end, whatever threads still work."""
    try:
        yield
    finally:
        end_process_after(EXIT_SECONDS, status)
