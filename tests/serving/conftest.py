"""Servers of the counting model: a client of an application, and one in a thread for clients that need an address."""

import threading

import pytest
import uvicorn
from starlette.testclient import TestClient

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.serving.application import ServedModel, create_application
from vanilla_transformer_hf.serving.batcher import Batcher
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


@pytest.fixture
def serve(opened_translator):
    """`serve({name: (source, targets)}, **settings)`: a client of an application with these models, its `models`."""
    clients = []

    def serve(models=None, limits=None, most_waiting=4096, **settings):
        served = []
        for name, pair in (models or {"en-de": ("en", {"de": None})}).items():
            translator = Translator(opened_translator.model, opened_translator.tokenizer)
            served.append(ServedModel(name, Batcher(translator, most_waiting=most_waiting), *pair))
        client = TestClient(create_application(served, limits, **settings), raise_server_exceptions=False)
        clients.append(client)
        client.models = served
        return client.__enter__()

    yield serve
    for client in clients:
        client.__exit__()
