"""The description of the server, compared with what it answers: by schemathesis, and by the names that it has."""

import os
import subprocess
import sys
from itertools import product

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from vanilla_transformer_hf.serving.application import ServedModel, create_application
from vanilla_transformer_hf.serving.batcher import Batcher


# Source and targets of the models of a server; a source of None is not known.
SERVERS = {
    "one": [("en", {"de": "<de> "})],
    "pairs": [("en", {"de": None}), ("en", {"fr": None}), ("it", {"fr": None})],
    "chain": [("en", {"de": None}), ("de", {"fr": None})],
    "the same": [("en", {"de": None}), ("en", {"de": None})],
    "several targets": [("en", {"de": "<de> ", "fr": None}), ("de", {"fr": None})],
    "from any": [(None, {"de": None, "fr": None}), ("en", {"de": None})],
    "not known": [(None, {})],
}
# schemathesis 4.32 fails at a schema with `not` and bytes: files are texts for it, in an encoding that all bytes have.
FILES_ARE_TEXTS = """
import schemathesis
from hypothesis import strategies
schemathesis.openapi.format("binary", strategies.text(max_size=40))
schemathesis.openapi.format("encoding", strategies.sampled_from(["", "utf-8", "latin-1"]))
"""


@pytest.fixture
def make_application(opened_translator):
    """`make_application(name)`: one of `SERVERS`, whose models are model-0 and so on."""

    def make_application(name):
        models = [(Batcher(opened_translator), *each) for each in SERVERS[name]]
        return create_application([ServedModel(f"model-{place}", *each) for place, each in enumerate(models)])

    return make_application


@pytest.fixture
def application(opened_translator):
    return create_application([ServedModel("en-de", Batcher(opened_translator), "en", {"de": "<de> "})])


def without_none(**fields):
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.parametrize("name", SERVERS)
def test_the_description_allows_the_languages_that_are_answered(make_application, name):
    """Every model, source and target together, named or left out."""
    models = SERVERS[name]
    codes = [*dict.fromkeys(code for source, targets in models for code in (source, *targets)), "<de>", ""]
    codes = [*dict.fromkeys([*codes, None])]
    with TestClient(make_application(name)) as client:
        document = client.get("/openapi.json").json()

        def compare(path, schema, body):
            allowed = Draft202012Validator({**schema, "components": document["components"]}).is_valid(body)
            assert (client.post(path, json=body).status_code == 200) == allowed, (path, body)

        schemas = document["components"]["schemas"]
        names = [f"model-{place}" for place in range(len(models))]
        for model, source, target in product([*names, None], ["auto", *codes], codes):
            body = without_none(q="***", model=model, source=source, target=target)
            compare("/translate", schemas["TranslateRequest"], body)
        paths = ["/", *(f"/models/{model}" for model in names)]
        for path, source, target in product(paths, codes, codes):
            described = path if path in document["paths"] else "/models/{name}"
            content = document["paths"][described]["post"]["requestBody"]["content"]["application/json"]
            compare(path, content["schema"], {"inputs": "***", "parameters": {"src_lang": source, "tgt_lang": target}})
        compare("/", schemas["GenerateRequest"], {"inputs": "***"})


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
@pytest.mark.parametrize("name", ["one", "chain", "several targets"])
def test_schemathesis_finds_no_difference(make_application, name, tmp_path, listen):
    """Requests that the description allows are answered as it says, and others are refused: ten seconds of them."""
    application = make_application(name)
    (tmp_path / "files_are_texts.py").write_text(FILES_ARE_TEXTS)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{listen(application)}/openapi.json"]
    options = ["--max-time", "10", "--seed", "1", "--continue-on-failure", "--request-timeout", "60"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    hooks = {"SCHEMATHESIS_HOOKS": "files_are_texts", "PYTHONPATH": path}
    environment = {**os.environ, **hooks}
    result = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stdout[-4000:]
