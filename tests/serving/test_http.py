"""Bodies with limits, errors as JSON, and a server that finishes what runs when it is told to end."""

import asyncio
import os
import signal
import socket
import threading

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from vanilla_transformer_hf.serving.http import ERROR_HANDLERS, RequestError, address_of, bind, read_object, run_server


def application(runs: threading.Event | None = None):
    """Answers with the text that it gets; `runs` is set when a request that waits has been read."""

    async def echo(request):
        body = await read_object(request, most_bytes=100, seconds=float(request.query_params.get("seconds", 60)))
        if body.get("wait"):
            runs.set()
            await asyncio.sleep(body["wait"])
        if body.get("busy"):
            raise RequestError("too many", "busy", status=429, retry_after=3)
        return JSONResponse({"got": body["text"]})

    return Starlette(routes=[Route("/", echo, methods=["POST"])], exception_handlers=dict(ERROR_HANDLERS))


@pytest.mark.parametrize(
    "content, kind, status, said",
    [
        (b'{"text": "a"}', "application/json", 200, None),
        (b'{"text": "' + b"a" * 100 + b'"}', "application/json", 413, "100 bytes"),
        (b"{", "application/json", 400, "not valid JSON"),
        (b"[" * 99, "application/json", 400, "not valid JSON"),
        (b'"\xff"', "application/json", 400, "not valid JSON"),
        (b"[1]", "application/json", 400, "must be a JSON object, got list"),
        (b"text=a", "application/x-www-form-urlencoded", 415, "send application/json"),
        (b'{"busy": true}', "application/json", 429, "busy: too many"),
        (b"{}", "application/json", 500, "internal server error"),
    ],
)
def test_errors_are_json_and_say_what_is_wrong(content, kind, status, said):
    client = TestClient(application(), raise_server_exceptions=False)
    answer = client.post("/", content=content, headers={"content-type": kind})
    assert answer.status_code == status
    if said is not None:
        assert said in answer.json()["error"]
        assert answer.json()["field"] == ("busy" if status == 429 else None)
    if status == 429:
        assert answer.headers["Retry-After"] == "3"


def test_wrong_paths_and_methods_are_json_too():
    client = TestClient(application())
    assert "/nowhere is not a path here" in client.get("/nowhere").json()["error"]
    answer = client.get("/")
    assert answer.status_code == 405 and "GET is not allowed here" in answer.json()["error"]


def test_an_address_in_use_is_named():
    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert address_of(listening) == f"http://127.0.0.1:{port}"
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: "):
            bind("127.0.0.1", port)


def test_slow_bodies_are_refused_and_a_signal_lets_what_runs_finish():
    listening, found, runs = bind("127.0.0.1", 0), {}, threading.Event()
    address = address_of(listening)

    def begin():
        """Send a body that does not end; the status line of the answer."""
        with socket.create_connection(listening.getsockname()) as connection:
            head = "POST /?seconds=0.2 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
            connection.sendall(f'{head}\r\n{{"text": '.encode())
            return connection.makefile().readline()

    def clients():
        found["slow"] = begin()
        with httpx.Client(base_url=address, timeout=60) as client:

            def ask():
                found["running"] = client.post("/", json={"text": "b", "wait": 0.5})

            thread = threading.Thread(target=ask)
            thread.start()
            runs.wait(60)
            os.kill(os.getpid(), signal.SIGTERM)
            thread.join()

    asking = threading.Thread(target=clients)
    asking.start()
    run_server(application(runs), listening)
    asking.join()
    assert found["slow"].startswith("HTTP/1.1 408 ")
    assert found["running"].json() == {"got": "b"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
