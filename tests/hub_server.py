"""
A stand-in for the Hub on the loopback interface, in front of the real huggingface_hub client.

`hub_api.py` has its answers. A request that none of its `ROUTES` knows is answered 501, which the client does not try
again. `Hub.fail` lets requests fail.
"""

import os
import re
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hub_api import ACCOUNTS, STRANGER, TOKEN, Answer, Request, Storage, answer, refusal


ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Fault:
    """What becomes of the next `times` requests whose "METHOD /path" matches `pattern`."""

    pattern: str
    times: int = 1
    answer: Answer | None = None  # given instead of the right one; nothing is done
    cut_after: int | None = None  # the connection ends after so many bytes of the upload, or of the download
    answer_is_lost: bool = False  # the request is done, and the connection ends


class Hub(Storage):
    """Use as `with Hub() as hub:`; a client process started with `hub.environment(folder)` talks to it."""

    def __init__(self):
        self.requests: list[str] = []  # "METHOD /path", in the order in which they came
        self.faults: list[Fault] = []
        self.waits: list[float] = []  # filled by the fixture `hub`
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        super().__init__(f"http://127.0.0.1:{self._server.server_port}")

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: Any):
        self._server.shutdown()
        self._server.server_close()

    def fail(self, pattern: str, status: int | None = None, message: str = "try later", **fault: Any):
        """`hub.fail("PUT /lfs/.*", 500)`, `hub.fail("GET .*/resolve/.*", cut_after=1000)`: rows of `Fault`."""
        retry_after = {"Retry-After": str(fault.pop("retry_after"))} if "retry_after" in fault else {}
        answer = refusal(status, message, **retry_after) if status is not None else None
        self.faults.append(Fault(pattern, answer=answer, **fault))

    def fault_of(self, request: str) -> Fault | None:
        """The fault that befalls this request, if one does; it has then happened."""
        for fault in self.faults:
            if fault.times and re.fullmatch(fault.pattern, request):
                fault.times -= 1
                return fault
        return None

    def sent(self, pattern: str) -> list[str]:
        """The requests so far whose "METHOD /path" matches."""
        return [request for request in self.requests if re.fullmatch(pattern, request)]

    def environment(self, home: Path, token: str | None = TOKEN, xet: bool = False) -> dict[str, str]:
        """Environment of a process that knows this Hub only; `home` holds its caches, downloaded code among them."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
        return {
            **kept,
            "HF_ENDPOINT": self.endpoint,
            **({"HF_TOKEN": token} if token is not None else {}),
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "0" if xet else "1",
            "HF_XET_DATA_XORB_COMPRESSION_POLICY": "none",
            "NO_PROXY": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"  # the client keeps its connections
    wbufsize = -1  # headers and body in one piece

    def _read(self, limit: int | None) -> bytes:
        """The body that was sent, or its first `limit` bytes."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            length = int(self.headers.get("Content-Length", 0))
            return self.rfile.read(length if limit is None else min(length, limit))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
            if limit is not None and len(body) >= limit:
                return body
        self.rfile.readline()
        return body

    def _end_connection(self):
        self.close_connection = True
        with suppress(OSError):  # the client may have gone first
            self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> Answer:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in ACCOUNTS:
            return refusal(401, "Invalid credentials in Authorization header")
        request = Request(self.hub, body, ACCOUNTS.get(token, STRANGER), query, self.headers.get("Range", ""))
        with self.hub.lock:
            return answer(method, path, request)

    def _respond(self):
        place = urlsplit(self.path)
        name = f"{self.command} {place.path}"
        with self.hub.lock:
            self.hub.requests.append(name)
            fault = self.hub.fault_of(name) or Fault(name)
        uploads = self.command in ("POST", "PUT")
        body = self._read(fault.cut_after if uploads else None)
        if uploads and fault.cut_after is not None:
            return self._end_connection()
        give = partial(self._answer, self.command, place.path, parse_qs(place.query), body)
        result = fault.answer if fault.answer is not None else give()
        if fault.answer_is_lost:
            return self._end_connection()
        self.send_response(result.status)
        for header, value in {**result.headers, "Content-Length": str(len(result.body))}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(result.body[: fault.cut_after])
        if fault.cut_after is not None:
            self.wfile.flush()
            self._end_connection()

    do_GET = do_HEAD = do_POST = do_PUT = _respond  # noqa: N815

    def log_message(self, *args: Any):
        """Nothing: `Hub.requests` has it."""
