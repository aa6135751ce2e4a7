"""A server in a thread, for clients that need an address."""

import threading

import pytest
import uvicorn

from vanilla_transformer_hf.serving.http import address_of, bind


@pytest.fixture
def listen():
    """`listen(application)`: the address of a server of it, which ends with the test."""
    running = []

    def listen(application):
        listening = bind("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(application, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        running.append((server, thread))
        return address_of(listening)

    yield listen
    for server, thread in running:
        server.should_exit = True
        thread.join()
