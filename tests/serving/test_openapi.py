"""The description of the server, compared with what it answers: by schemathesis, and by the names that it has."""

import subprocess
import sys
import threading

import pytest
import uvicorn
from starlette.testclient import TestClient

from vanilla_transformer_hf.common.http import address_of, bind
from vanilla_transformer_hf.serving.application import ServedModel, create_application
from vanilla_transformer_hf.serving.batcher import Batcher


@pytest.fixture
def application(opened_translator):
    return create_application([ServedModel("en-de", Batcher(opened_translator), "en", {"de": "<de> "})])


def test_names_of_models_and_languages_are_described(application):
    with TestClient(application) as client:
        document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    request, parameters = (schemas[name]["properties"] for name in ("TranslateRequest", "Parameters"))
    assert request["source"]["anyOf"][0]["enum"] == ["", "auto", "en"]
    assert parameters["tgt_lang"]["anyOf"][0]["enum"] == ["", "de", "<de>"]
    assert document["paths"]["/models/{name}"]["post"]["parameters"][0]["schema"]["enum"] == ["en-de"]
    paths = {route.path.replace(":path", "") for route in application.routes} - {"/openapi.json"}
    assert paths == document["paths"].keys()
    names = [way["operationId"] for path in document["paths"].values() for way in path.values()]
    assert len({*names}) == len(names) == len(paths)


@pytest.mark.slow
def test_schemathesis_finds_no_difference(application, tmp_path):
    """Requests that the description allows are answered as it says, and others are refused: twenty seconds of them."""
    listening = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application, log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address_of(listening)}/openapi.json"]
        options = ["--max-time", "20", "--seed", "1", "--continue-on-failure", "--request-timeout", "60"]
        result = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path)
        assert result.returncode == 0, result.stdout[-4000:]
    finally:
        server.should_exit = True
        thread.join()
