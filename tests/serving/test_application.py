"""The server's two protocols, its limits, and what it answers to wrong requests: never 500, never a traceback."""

import asyncio
import copy
import dataclasses
import json
import logging
import os
import subprocess
import threading
import time

import httpx
import pytest
from counting_model import SOURCES
from huggingface_hub import InferenceClient
from machine import is_linear, seconds_of
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient

from vanilla_transformer_hf.serving.application import ServedModel, _form, by_languages, counted, create_application
from vanilla_transformer_hf.serving.batcher import Batcher
from vanilla_transformer_hf.serving.http import RequestError
from vanilla_transformer_hf.serving.metrics import Metrics, forget_dead_workers
from vanilla_transformer_hf.serving.protocols import (
    Limits,
    TranslationRequest,
    answer_hugging_face,
    answer_libretranslate,
)
from vanilla_transformer_hf.translation.results import Translation


LONG = " ".join(f"{source}." for source in SOURCES[30:60])


@pytest.fixture(scope="module")
def client(opened_translator):
    """A client of an application with one model and small limits."""
    model = ServedModel("en-de", Batcher(opened_translator), "en", {"de": None})
    limits = Limits(characters=2000, texts=4, body_bytes=20_000)
    with TestClient(create_application([model], limits), raise_server_exceptions=False) as client:
        yield client


def test_libretranslate_in_json_and_forms(client):
    answer = client.post("/translate", json={"q": "three one", "source": "en", "target": "de", "format": "text"})
    assert answer.status_code == 200 and answer.json() == {"translatedText": "eins drei"}
    several = {"q": ["two", "", "one two"], "target": "de", "api_key": ""}
    assert client.post("/translate", json=several).json() == {"translatedText": ["zwei", "", "zwei eins"]}
    form = {"q": "five two", "source": "en", "target": "de", "alternatives": "2"}
    for arguments in ({"data": form}, {"data": {**form, "q": ["five two"]}}):
        answer = client.post("/translate", **arguments).json()
        assert answer["translatedText"] == "zwei fünf" and len(answer["alternatives"]) == 2
    boundary = "multipart/form-data; boundary=x"
    lines = "".join(f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in form.items())
    answer = client.post("/translate", content=lines + "--x--\r\n", headers={"content-type": boundary})
    assert answer.json()["translatedText"] == "zwei fünf"
    assert client.post("/translate", data={"q": ["one", "two"]}).json() == {"translatedText": ["eins", "zwei"]}


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain", "application/octet-stream"])
def test_json_is_read_under_every_content_type(client, kind):
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post("/translate", content=b' {"q": "two", "target": "de"}', headers=headers)
    assert answer.json() == {"translatedText": "zwei"}
    assert client.post("/", content=b'{"inputs": "two"}', headers=headers).json() == [{"translation_text": "zwei"}]
    answer = client.post("/translate", content=b'{"q": "two"', headers=headers)
    assert answer.status_code == 400 and "not valid JSON" in answer.json()["error"]


def test_hugging_face_in_json(client):
    assert client.post("/", json={"inputs": "three one"}).json() == [{"translation_text": "eins drei"}]
    body = {"inputs": ["two", "one"], "parameters": {"num_return_sequences": 2, "num_beams": 3, "src_lang": "en"}}
    answer = client.post("/models/en-de", json=body).json()
    assert [each["translation_text"] for each in answer][::2] == ["zwei", "eins"] and len(answer) == 4
    body = {"inputs": "five five five", "parameters": {"generate_parameters": {"max_new_tokens": 1}}}
    assert client.post("/", json=body).json()[0]["translation_text"] != "fünf fünf fünf"


WRONG = [
    ("/translate", {"source": "en", "target": "de"}, 400, "q"),
    ("/translate", {"q": 3, "target": "de"}, 400, "q"),
    ("/translate", {"q": [], "target": "de"}, 400, "q"),
    ("/translate", {"q": ["a", None]}, 400, "q[1]"),
    ("/translate", {"q": ["a"] * 5}, 413, "q"),
    ("/translate", {"q": "a" * 2001}, 413, "q"),
    ("/translate", {"q": "a" * 20_000}, 413, None),
    ("/translate", {"q": "\ud800"}, 400, "q"),
    ("/translate", {"q": "a", "target": "fr"}, 400, "target"),
    ("/translate", {"q": "a", "target": "\ud800"}, 400, "target"),
    ("/translate", {"q": "a", "target": ["de"]}, 400, "target"),
    ("/translate", {"q": "a", "source": "fr"}, 400, "source"),
    ("/translate", {"q": "a", "format": "xml"}, 400, "format"),
    ("/translate", {"q": "a", "alternatives": -1}, 400, "alternatives"),
    ("/translate", {"q": "a", "alternatives": 1e9}, 400, "alternatives"),
    ("/translate", {"q": "a", "alternatives": "many"}, 400, "alternatives"),
    ("/translate", {"q": "a", "alternatives": True}, 400, "alternatives"),
    ("/translate", {"q": "a", "stream": "perhaps"}, 400, "stream"),
    ("/translate", {"q": "a", "api_key": 7}, 400, "api_key"),
    ("/translate", {"q": "a", "speed": 7}, 200, None),
    ("/translate", {"q": "a", "\ud800": 7}, 200, None),
    ("/translate", {"q": "a", "model": "fr-de"}, 400, "model"),
    ("/translate", {"q": "a", "model": ["en-de"]}, 400, "model"),
    ("/detect", {"text": "a"}, 400, "q"),
    ("/detect", {"q": "a" * 2001}, 413, "q"),
    ("/suggest", {"q": "a", "s": "b", "source": "en", "target": "de"}, 403, None),
    ("/translate", ["a"], 400, None),
    ("/", {"inputs": {"a": 1}}, 400, "inputs"),
    ("/", {"text": "a"}, 400, "text"),
    ("/", {"inputs": "a", "parameters": 3}, 400, "parameters"),
    ("/", {"inputs": "a", "parameters": {"tgt_lang": "fr"}}, 400, "parameters.tgt_lang"),
    ("/", {"inputs": "a", "parameters": {"num_beams": 0}}, 400, "parameters.num_beams"),
    ("/", {"inputs": "a", "parameters": {"num_beams": 2.5}}, 400, "parameters.num_beams"),
    ("/", {"inputs": "a", "parameters": {"length_penalty": float("nan")}}, 400, "parameters.length_penalty"),
    ("/", {"inputs": "a", "parameters": {"do_sample": True}}, 400, "parameters.do_sample"),
    ("/", {"inputs": "a", "parameters": {"num_return_sequences": 3}}, 200, None),
    ("/", {"inputs": "a", "parameters": {"num_beams": 16, "max_new_tokens": 600}}, 400, "parameters.max_new_tokens"),
    ("/", {"inputs": "a", "parameters": {"src_lang": "f" * 999}}, 400, "parameters.src_lang"),
    ("/models/fr-de", {"inputs": "a"}, 404, None),
    ("/models/..%2f", {"inputs": "a"}, 404, None),
    ("/nowhere", {"inputs": "a"}, 404, None),
]


@pytest.mark.parametrize("path, body, status, field", WRONG)
def test_wrong_requests_are_told_what_is_wrong(client, path, body, status, field):
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    if status != 200:
        assert answer.json().keys() == {"error", "field"} and answer.json()["field"] == field
        assert answer.json()["error"].startswith(f"{field}: " if field else "") and "Traceback" not in answer.text
        assert len(answer.json()["error"]) < 400


@pytest.mark.parametrize(
    "content, kind, status",
    [
        (b"", "application/json", 400),
        (b'{"q": "a"', "application/json", 400),
        (b"[" * 15_000, "application/json", 400),
        (b'{"q": "\xff"}', "application/json", 400),
        (b'{"q": ' + b"9" * 9000 + b"}", "application/json", 400),
        (b"q=one", "text/plain", 415),
        (b"q", "multipart/form-data", 400),
        (b"q", "multipart/form-data; boundary=x", 400),
        (
            b'--x\r\nContent-Disposition: form-data; name="q"; filename="a"\r\n\r\n\r\n--x--',
            "multipart/form-data; boundary=x",
            400,
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\none \xff\r\n--x--',
            "multipart/form-data; boundary=x",
            400,
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n%ff \xc3\xa9\r\n--x--',
            "multipart/form-data; boundary=x",
            200,
        ),
        (b"q=one%ff%fe", "application/x-www-form-urlencoded", 400),
        (b"q=one\xff", "application/x-www-form-urlencoded", 400),
        (b"q=\xc3\xa9+%C3%A9", "application/x-www-form-urlencoded", 200),
        (b"&&==&", "application/x-www-form-urlencoded", 400),
    ],
)
def test_bodies_that_cannot_be_read_are_refused(client, content, kind, status):
    answer = client.post("/translate", content=content, headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == ({"translatedText"} if status == 200 else {"error", "field"})


def test_what_is_here(client):
    assert client.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready", "models": ["en-de"]}
    client.post("/translate", json={"q": "one two"})
    metrics = client.get("/metrics").text
    assert 'translation_requests_total{model="en-de",status="200"}' in metrics
    assert 'translation_seconds_count{model="en-de"}' in metrics and "translation_waiting_parts" in metrics
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1") and {"/translate", "/", "/models/{name}"} < document["paths"].keys()
    texts = document["components"]["schemas"]["TranslateRequest"]["properties"]["q"]
    assert texts["anyOf"][1]["minItems"] == 1 and "4 texts" in texts["description"]
    assert client.get("/translate").status_code == 405


def test_gauges_of_dead_workers_are_forgotten(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    files = [tmp_path / f"{name}.db" for name in (f"gauge_livesum_{dead.pid}", f"gauge_livesum_{os.getpid()}")]
    counter = tmp_path / f"counter_{dead.pid}.db"
    for path in (*files, counter):
        path.touch()
    forget_dead_workers(tmp_path)
    assert [path.exists() for path in (*files, counter)] == [False, True, True]


def test_lines_sentences_and_white_space_are_those_of_the_translator(client, translator):
    text = " one two\r\n\r\n\tthree. four five.\u2028two \n"
    expected = translator.translate(text)
    assert expected.startswith(" zwei eins\r\n\r\n\t") and expected.endswith("\u2028zwei \n")
    assert client.post("/translate", json={"q": text}).json() == {"translatedText": expected}
    assert client.post("/translate", data={"q": text}).json() == {"translatedText": expected}
    assert client.post("/", json={"inputs": [text, "two"]}).json()[0] == {"translation_text": expected}


def test_parts_are_streamed_in_order_and_then_the_answer(client, translator):
    text = LONG[:1500].rsplit(".", 1)[0] + "."
    with client.stream("POST", "/translate", json={"q": text, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [event.split("\n") for event in answer.read().decode().split("\n\n") if event]
    kinds = [kind for kind, _ in events]
    assert kinds == ["event: part"] * (len(kinds) - 1) + ["event: answer"]
    data = [json.loads(line.removeprefix("data: ")) for _, line in events]
    assert [event["part"] for event in data[:-1]] == list(range(len(data) - 1))
    assert data[-1] == {"translatedText": translator.translate(text)}
    assert data[-1]["translatedText"] == " ".join(event["translation"] for event in data[:-1])


def test_models_are_chosen_by_languages_or_name(serve):
    client = serve({f"{one}-{to}": (one, {to: None}) for one, to in (("en", "de"), ("en", "fr"), ("it", "fr"))})
    for body in ({"target": "de"}, {"source": "it"}, {"source": "en", "target": "fr"}):
        assert client.post("/translate", json={"q": "one", **body}).status_code == 200
    for body, field in (({"source": "en"}, "target"), ({"target": "fr"}, "source"), ({}, "target")):
        answer = client.post("/translate", json={"q": "one", **body})
        assert answer.status_code == 400 and answer.json()["field"] == field
        assert "en-de, en-fr, it-fr" in answer.json()["error"]
    assert client.post("/", json={"inputs": "one"}).status_code == 200
    answer = client.post("/models/it-fr", json={"inputs": "one", "parameters": {"src_lang": "en"}})
    assert answer.status_code == 400 and answer.json()["field"] == "parameters.src_lang"
    with pytest.raises(ValueError, match="a name of its own"):
        create_application([*client.models, client.models[0]])


def test_a_target_is_named_by_its_language_its_tag_or_the_texts(serve):
    client = serve()
    (model,) = client.models
    model = dataclasses.replace(model, targets={"deu": "<de>", "fra": ">>fra<< "})
    named = {"deu": "deu", "<de>": "deu", ">>fra<<": "fra", "de": None, "": None}
    assert {name: model.language_of(name) for name in named} == named
    tokenizer = copy.deepcopy(model.batcher.translator.tokenizer)
    tokenizer.add_tokens(["<de>"], special_tokens=True)
    model.batcher.translator.tokenizer = tokenizer
    for texts, target in (([], "<de>"), (["<de> one", ""], None)):
        assert by_languages(TranslationRequest(texts, True, target=target), [model]) is model
    for texts in (["<de> one", "one"], [""], []):  # empty texts name no language
        with pytest.raises(RequestError, match="name one of en-deu, en-fra"):
            by_languages(TranslationRequest(texts, True), [model])


def test_texts_without_letters_come_back_and_suspicious_translations_are_marked(serve):
    client = serve()
    body = client.post("/translate", json={"q": ["***", "one two", "42", "\U0001f600"], "target": "de"}).json()
    assert body["translatedText"][0::2] == ["***", "42"] and body["translatedText"][3] == "\U0001f600"
    good, bad = Translation("gut"), Translation("schlecht " * 10)
    bad.is_suspicious = True
    assert answer_hugging_face(TranslationRequest(["a", "b"], True), [[good], [bad]]) == [
        {"translation_text": "gut"},
        {"translation_text": bad, "suspicious": True},
    ]
    assert answer_libretranslate(TranslationRequest(["a", "b"], True), [[good], [bad]])["suspicious"] == [False, True]
    assert answer_libretranslate(TranslationRequest(["a"], False), [[bad]])["suspicious"] is True
    assert "suspicious" not in answer_libretranslate(TranslationRequest(["a"], False), [[good]])


def test_keys_are_asked_for(serve):
    client = serve(api_keys=["one-key", "another"])
    assert client.post("/translate", json={"q": "one", "api_key": "another"}).status_code == 200
    assert client.post("/", json={"inputs": "one"}, headers={"Authorization": "Bearer one-key"}).status_code == 200
    for body, headers in (({}, {}), ({"api_key": "\ud800"}, {}), ({}, {"Authorization": "Bearer x"})):
        content = json.dumps({"q": "one", **body})
        answer = client.post("/translate", content=content, headers={"content-type": "application/json", **headers})
        assert answer.status_code == 403 and answer.json()["field"] == "api_key"
    assert client.post("/models/unknown", json={"inputs": "one"}).status_code == 403  # tells strangers nothing
    assert client.get("/health").status_code == 200 and client.get("/openapi.json").json()["security"]


def test_too_much_is_429_and_too_slow_is_504(serve, opened_translator):
    answer = serve(limits=Limits(seconds=0.001)).post("/translate", json={"q": LONG})
    assert answer.status_code == 504 and "not translated within 0.001 seconds" in answer.json()["error"]
    batcher = Batcher(opened_translator, most_waiting=1)  # which has not begun
    batcher.submit(["one"])
    client = TestClient(create_application([ServedModel("en-de", batcher)]))
    answer = client.post("/translate", json={"q": ["two"]})
    assert answer.status_code == 429 and answer.headers["Retry-After"] == "1"
    assert "1 sentences wait, and at most 1 may" in answer.json()["error"]


def test_the_time_limit_holds_while_texts_are_encoded_and_whatever_the_batcher_does(serve, monkeypatch):
    monkeypatch.setattr("vanilla_transformer_hf.serving.application.GRACE", 0.05)
    client = serve(limits=Limits(seconds=0.1))
    with monkeypatch.context() as patch:
        leave = threading.Event()  # after the answer, which does not wait for it
        patch.setattr(Batcher, "_encode", lambda *arguments: leave.wait(60))
        began = time.monotonic()
        assert client.post("/translate", json={"q": "one"}).status_code == 504 and time.monotonic() - began < 30
        leave.set()
    with monkeypatch.context() as patch:
        patch.setattr(Batcher, "_advance", lambda *arguments: time.sleep(0.5))
        for stream in (False, True):
            answer = client.post("/translate", json={"q": "one", "stream": stream})
            assert (
                answer.status_code == (200 if stream else 504) and "not translated within 0.1 seconds" in answer.text
            )


def test_a_request_that_has_no_more_time_when_the_server_stops_gets_503(caplog):
    async def cancelled(request):
        raise asyncio.CancelledError

    request = Request({"type": "http", "state": {}, "route": Route("/translate", cancelled)})
    with pytest.raises(RequestError, match="the server is stopping") as error:
        asyncio.run(counted(Metrics(["en-de"]), cancelled)(request))
    assert error.value.status == 503


def test_names_and_origins_are_checked_where_names_are_given(serve):
    client = serve(hosts=["testserver"], origins=["https://page.example"])
    body = {"q": "two"}
    for headers, status in (
        ({}, 200),
        ({"host": "evil.example"}, 400),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://page.example"}, 200),
    ):
        assert client.post("/translate", data=body, headers=headers).status_code == status
    assert serve().post("/translate", data=body, headers={"host": "any.example"}).status_code == 200


def test_texts_are_logged_only_where_that_is_asked_for(serve, caplog):
    caplog.set_level(logging.INFO, "vanilla_transformer_hf")
    serve().post("/translate", json={"q": "five two"})
    assert "1 texts, 8 characters" in caplog.text and "five" not in caplog.text and "fünf" not in caplog.text
    serve(logs_texts=True).post("/translate", json={"q": "five two"})
    assert '["five two", "zwei fünf"]' in caplog.text


def test_the_clients_of_hugging_face_and_of_a_network_are_served(opened_translator, monkeypatch, listen):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    model = ServedModel("en-de", Batcher(opened_translator, most_rows=4), "en", {"de": None})
    application = create_application([model], Limits(seconds=120))
    address = listen(application)
    for url in (address, f"{address}/models/en-de"):
        client = InferenceClient(base_url=url)
        assert client.translation("three one").translation_text == "eins drei"
        found = client.translation("two", src_lang="en", tgt_lang="de", generate_parameters={"num_beams": 2})
        assert found.translation_text == "zwei"
    with httpx.Client(timeout=0.02) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(f"{address}/translate", json={"q": LONG * 20})
    began = time.monotonic()
    while 'status="499"' not in httpx.get(f"{address}/metrics").text:  # the server looks now and then
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    while model.batcher.waiting:  # the parts of those who have left leave too
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    assert httpx.post(f"{address}/translate", json={"q": "two"}).json() == {"translatedText": "zwei"}


def test_fields_behind_a_file_take_time_that_grows_with_the_form():
    def seconds(size):
        part = b"--x\r\nContent-Disposition: form-data; name="
        body = part + b'"file"; filename="a"\r\n\r\n' + b"a" * (2000 * size) + b"\r\n"
        body += (part + b'"q"\r\n\r\none dog\r\n') * size + b"--x--\r\n"
        headers = [(b"content-type", b"multipart/form-data; boundary=x")]
        return seconds_of(lambda: asyncio.run(_form(Request({"type": "http", "headers": headers}), body, 1)))

    assert is_linear(seconds, 400)
