"""Connections that end in time, and the process that does."""

import asyncio
import contextlib
import errno
import logging
import socket
import subprocess
import sys
import threading
import time

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from vanilla_transformer_hf.serving import connections
from vanilla_transformer_hf.serving.connections import TimedConnection, TimedServer, most_connections
from vanilla_transformer_hf.serving.http import bind


READY = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: here\r\nX: "
BEGUN = b"POST /body HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{"


@pytest.fixture
def connect(monkeypatch):
    """`connect(data, **limits)`: a connection to a server on which these bytes were sent."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.15)
    monkeypatch.setattr(connections, "LOOK_INTERVAL", 0.02)
    servers, opened = [], []

    async def answer(request):
        return PlainTextResponse("answer" if request.url.path == "/" else await request.body())

    def connect(data, **limits):
        if not servers:
            listening = bind("127.0.0.1", 0)
            application = Starlette(routes=[Route("/", answer), Route("/body", answer, methods=["POST"])])
            kind = type("Connection", (TimedConnection,), {"busy_seconds": 0.3, **limits})
            server = TimedServer(uvicorn.Config(application, http=kind, log_level="error"))
            thread = threading.Thread(target=server.run, args=([listening],))
            thread.start()
            servers.append((server, thread, listening.getsockname()))
        opened.append(socket.create_connection(servers[0][2], timeout=5))
        opened[-1].sendall(data)
        return opened[-1]

    connect.stop = lambda: setattr(servers[0][0], "should_exit", True)
    yield connect
    for one in opened:
        one.close()
    for server, thread, _ in servers:
        server.should_exit = True
        thread.join()


def read_to_end(connection):
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(4096):
            found += data
    return found


@pytest.mark.parametrize("data", [b"", HALF, READY + HALF, BEGUN])
def test_a_connection_without_a_whole_request_is_closed(connect, data):
    connection, began = connect(data), time.monotonic()
    assert (b"answer" in read_to_end(connection)) == data.startswith(READY)
    assert time.monotonic() - began < 3


def test_bytes_that_drip_do_not_keep_a_connection_open(connect):
    connection = connect(HALF)
    began = time.monotonic()
    with pytest.raises(OSError):
        while time.monotonic() - began < 3:
            connection.sendall(b"a")
            time.sleep(0.02)


def test_the_connection_that_has_waited_longest_makes_room(connect):
    halves = [connect(HALF, most=3) for _ in range(6)]
    assert b"200 OK" in connect(READY).recv(4096)
    assert read_to_end(halves[0]) == b""


def test_a_request_on_its_way_is_answered_when_the_server_begins_to_stop(connect, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 5)
    connection = connect(READY)
    assert b"200 OK" in connection.recv(4096)
    connect.stop()
    time.sleep(0.25)  # the server looks every 0.1 seconds
    connection.sendall(READY)
    assert b"200 OK" in read_to_end(connection)


def test_exhausted_descriptors_are_one_line(caplog, monkeypatch):
    server, loop = TimedServer(uvicorn.Config(None)), asyncio.new_event_loop()
    caplog.set_level(logging.ERROR)
    for _ in range(1000):
        server._handle(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
    assert (
        caplog.text.count("\n") == 1 and "connections cannot be accepted for now: Too many open files" in caplog.text
    )
    server._handle(loop, {"message": "another", "exception": ValueError("kept")})
    assert "kept" in caplog.text
    loop.close()
    assert most_connections() > 0


def test_a_process_that_does_not_stop_ends_in_time():
    code = (  # the file alone: the package takes seconds to import
        "import importlib.util, signal, threading, time, uvicorn\n"
        f"spec = importlib.util.spec_from_file_location('connections', {connections.__file__!r})\n"
        "connections = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(connections)\n"
        "connections.MARGIN = 0.2\n"
        "server = connections.TimedServer(uvicorn.Config(None, timeout_graceful_shutdown=0))\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "server.handle_exit(signal.SIGTERM, None)\n"
    )
    waits = "with connections.ending_in_time():\n    threading.Thread(target=time.sleep, args=(60,)).start()\n"
    after = code.partition("connections.MARGIN")[0] + waits
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", after], timeout=60).returncode == 0
    assert time.monotonic() - began < 9, "what is left is not waited for"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "it ends now" in ended.stderr and time.monotonic() - began < 50
