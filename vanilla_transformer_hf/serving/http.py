"""
The common parts of this package's HTTP servers: bodies with limits, errors as JSON, a clean shutdown. Needs the extra
`serve`.

Every error is answered as {"error": message, "field": name or null}.
"""

import asyncio
import ipaddress
import json
import logging
import math
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ..common.white_space import as_text
from .connections import ACCEPTED_AT_ONCE, BACKLOG, TimedConnection, TimedServer, most_connections


logger = logging.getLogger(__name__)

# The status that is logged when the client has left before the answer.
CLIENT_LEFT = 499


class RequestError(ValueError):
    """A request that cannot be answered: its HTTP status, the field that is wrong, and seconds to `retry_after`."""

    def __init__(self, message: str, field: str | None = None, status: int = 400, retry_after: int | None = None):
        super().__init__(message if field is None else f"{field}: {message}")
        self.field, self.status, self.retry_after = field, status, retry_after

    @property
    def body(self) -> dict[str, str | None]:
        """The answer as JSON."""
        return {"error": as_text(str(self)), "field": None if self.field is None else as_text(self.field)}


async def read_body(request: Request, most_bytes: int, seconds: float) -> bytes:
    """The body of a request."""
    pieces, size = list[bytes](), 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                if (size := size + len(piece)) > most_bytes:
                    raise RequestError(f"the body has more than {most_bytes:,} bytes", status=413)
                pieces.append(piece)
    except TimeoutError:
        raise RequestError(f"the body did not arrive within {seconds:g} seconds", status=408) from None
    return b"".join(pieces)


def parse_object(content: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        body = json.loads(content)
    except RecursionError:
        raise RequestError("the body is not valid JSON: nested too deeply") from None
    except ValueError as error:  # what is no UTF-8 as well
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, got {type(body).__name__}")
    return body


async def read_object(request: Request, most_bytes: int = 2**20, seconds: float = 10.0) -> dict[str, Any]:
    """The JSON object that a request brings."""
    kind = media_type(request)
    if kind != "application/json":
        raise RequestError(f"content-type {kind[:60]!r}: send application/json", status=415)
    return parse_object(await read_body(request, most_bytes, seconds))


def media_type(request: Request) -> str:
    """The content type of the body, without parameters; JSON if the client names none."""
    return request.headers.get("content-type", "application/json").split(";")[0].strip().lower()


# Not in threads, for which a request that is cancelled cannot wait.
async def _refused(request: Request, error: Any) -> Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse(error.body, error.status, headers)


async def _not_routed(request: Request, error: Any) -> Response:
    messages = {404: f"{request.url.path[:100]} is not a path here", 405: f"{request.method} is not allowed here"}
    body = {"error": messages.get(error.status_code, error.detail), "field": None}
    return JSONResponse(body, error.status_code, error.headers)


async def _left(request: Request, error: Any) -> Response:
    return Response(status_code=CLIENT_LEFT)


async def _failed(request: Request, error: Any) -> Response:
    return JSONResponse({"error": "internal server error; the server's log has the details", "field": None}, 500)


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]/@?#:\s]+))(:\d{1,5})?")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
ANY = "*"


def names_of(address: str, given: str, more: Sequence[str] = ()) -> list[str]:
    """The names by which requests may call a server; empty: any, where others reach it and no name was allowed."""
    if ANY in more:
        return []
    is_checked = more or ipaddress.ip_address(address).is_loopback
    return [*dict.fromkeys([*LOOPBACK_NAMES, given, *more])] if is_checked else []


class HostCheck:
    """ASGI middleware that rejects requests under other names than the server's, and those of other sites' pages."""

    # Pages of other sites run in a browser of this machine, and may send forms to every local server. With a name of
    # their own that leads here (DNS rebinding) they could also read the answers.

    def __init__(self, app: Any, hosts: Collection[str], origins: Collection[str] = ()):
        self.app, self.hosts = app, [name.lower().strip("[]") for name in hosts]
        self.origins = [origin.lower().rstrip("/") for origin in origins]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or (refused := self.refusal(scope["method"], Headers(scope=scope))) is None:
            return await self.app(scope, receive, send)
        status, message = refused
        await JSONResponse({"error": message, "field": None}, status)(scope, receive, send)

    def refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """The status and the message for a request that is rejected."""
        host = ",".join(headers.getlist("host")).lower()
        found = HOST.fullmatch(host)
        if found is None or (found["address"] or found["name"]) not in self.hosts:
            names = ", ".join(self.hosts)
            return 400, f"{host[:100]!r} is not a name of this server: expected {names}; see --allowed_hosts"
        origin = headers.get("origin")
        if origin is None:
            # Browsers name the origin of what a page sends; of a form, some only whether it comes from another site.
            is_foreign = method not in SAFE_METHODS and headers.get("sec-fetch-site") in ("cross-site", "same-site")
            origin = "of another site" if is_foreign else f"http://{host}"
        own = (f"http://{host}", f"https://{host}")
        if origin.lower() in (*own, *self.origins) or ANY in self.origins:
            return None
        return 403, f"pages of other sites may not send requests here: origin {origin[:100]!r}; see --allowed_origins"


# Settings of uvicorn: it logs no addresses, which may hold texts.
QUIET: dict[str, Any] = {"access_log": False, "log_level": "warning", "server_header": False}

# For `Starlette(exception_handlers=...)`. Starlette logs the errors of the last row, with their tracebacks.
ERROR_HANDLERS: Mapping[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    RequestError: _refused,
    HTTPException: _not_routed,
    ClientDisconnect: _left,
    Exception: _failed,
}


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 chooses a free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listening.listen(BACKLOG)  # clients that come before the application is there
    listening.set_inheritable(True)
    return listening


def address_of(listening: socket.socket) -> str:
    """The URL of a server that listens on this socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(
    application: Any,
    listening: socket.socket,
    seconds_to_finish: int = 60,
    busy_seconds: float = math.inf,
    **settings: Any,
) -> None:
    """Serve requests until SIGTERM, SIGHUP or Ctrl-C; running ones may finish, for at most `seconds_to_finish`."""
    # A process that has not come so far 10 seconds later ends. Call it in the main thread, which receives the signals.
    # Requests are not logged here: their URLs may contain texts.
    limits = {"busy_seconds": busy_seconds, "most": most_connections()}
    config = uvicorn.Config(
        application,
        http=type("Connection", (TimedConnection,), limits),
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=seconds_to_finish,
        **{**QUIET, **settings},
    )
    server = TimedServer(config)
    # When uvicorn has finished it sends itself the signal again, which would kill the process before it cleans up.
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler)}
    if (hangup := getattr(signal, "SIGHUP", None)) is not None and signal.getsignal(hangup) == signal.SIG_DFL:
        before[hangup] = signal.signal(hangup, lambda _, frame: server.handle_exit(signal.SIGTERM, frame))
    try:
        server.run([listening])
    except KeyboardInterrupt:
        logger.info("stopped by a signal")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if server.ending is not None:
            server.ending.cancel()
        listening.close()
