"""The explorer over HTTP: answers, errors that name their field, and a page that holds what it needs."""

import base64
import dataclasses
import json
import re
from typing import get_type_hints

import pytest
from starlette.testclient import TestClient

from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.explorer.explorer import QUESTIONS, Explorer
from vanilla_transformer_hf.explorer.page import key_of, page_names, page_of
from vanilla_transformer_hf.explorer.requests import Request
from vanilla_transformer_hf.explorer.server import make_app
from vanilla_transformer_hf.explorer.subject import Subject


TEXT = "three one five"
BASE = "http://127.0.0.1"


@pytest.fixture(scope="module")
def explorer(opened_translator):
    subject = Subject("counting", opened_translator.model, opened_translator.tokenizer)
    return Explorer([subject, Subject("other", opened_translator.model, opened_translator.tokenizer)])


@pytest.fixture(scope="module")
def client(explorer):
    return TestClient(make_app(explorer), BASE, raise_server_exceptions=False)


def test_every_question_is_answered(client):
    (first, second) = client.post("/api/models", json={}).json()["answer"]
    assert (first["name"], second["name"], first["layers"]) == ("counting", "other", dict.fromkeys(first["layers"], 1))
    found = client.post("/api/translate", json={"text": TEXT, "num_beams": 3}).json()["answer"]
    assert [one["text"] for one in found["source"]] == ["three", "one", "five", "</s>"]
    pair = {"text": TEXT, "target_ids": found["hypotheses"][0]["ids"], "model": "other"}
    others = {"tensor": {"box": "logits"}, "positions": {"stack": "decoder"}, "score": {"target": "eins"}}
    others |= {name: {"other": "three two five"} for name in ("patch", "patch_map")}
    for name in QUESTIONS.keys() - {"translate", "file", "source"}:  # two are about files
        request = pair | others.get(name, {})
        if name in ("score", "positions"):
            del request["target_ids"]
        answer = client.post(f"/api/{name}", json=request)
        assert answer.status_code == 200 and answer.json()["answer"], name


def test_a_sentence_longer_than_those_of_the_training_is_refused(client, explorer, monkeypatch):
    """It would be translated without its end, and its picture would explain nothing."""
    monkeypatch.setattr(explorer.subjects["counting"].tokenizer, "model_max_length", 4)
    assert client.post("/api/translate", json={"text": TEXT}).status_code == 200  # with its end, 4 pieces
    answer = client.post("/api/translate", json={"text": TEXT + " two"})
    assert (answer.status_code, answer.json()["field"]) == (422, "text")
    assert "has 5 tokens; expected at most 4: shorten it" in answer.json()["error"]
    assert (answer.json()["code"], answer.json()["values"]) == ("too_long", {"count": 5, "most": 4})


class PanicException(BaseException):
    """What the tokenizers library raises where it panics, which has no class that can be imported."""


def test_a_tokenizer_that_panics_is_one_line(client, explorer, monkeypatch):
    def panics(tokenizer, text=None, **options):
        raise PanicException("index out of bounds:\nthe len is 3")

    monkeypatch.setattr(type(explorer.subjects["counting"].tokenizer), "__call__", panics)
    with pytest.raises(
        ValueError, match=r"^text: the tokenizer of the model fails where it reads this text: index out"
    ):
        explorer.answer("translate", {"text": TEXT})
    answer = client.post("/api/translate", json={"text": TEXT})
    assert (answer.status_code, answer.json()["field"]) == (422, "text") and "\n" not in answer.json()["error"]
    monkeypatch.undo()
    assert client.post("/api/translate", json={"text": TEXT}).status_code == 200


@pytest.mark.parametrize(
    ("question", "request_body", "status", "field", "message"),
    [
        ("translate", {}, 422, "text", "is empty"),
        ("translate", [], 400, None, "must be a JSON object, got list"),
        ("translate", {"text": 5}, 422, "text", "expected str, got '5'"),
        ("translate", {"text": TEXT, "num_beams": 99}, 422, "num_beams", "is 99; expected 1 to 32"),
        ("translate", {"text": TEXT, "num_beams": True}, 422, "num_beams", "expected int, got 'True'"),
        ("translate", {"text": TEXT, "beams": 2}, 422, "beams", "is not a field: expected one of model, text"),
        ("translate", {"text": TEXT, "length_penalty_type": "x"}, 422, "length_penalty_type", "one of power, gnmt"),
        ("translate", {"text": TEXT, "prefix": ["a"]}, 422, "prefix", "expected a list of int"),
        ("translate", {"text": TEXT, "prefix": [-1]}, 422, "prefix", "-1 is not a token id"),
        ("translate", {"text": TEXT, "prefix": [1, 5]}, 422, "prefix", "continues after the end"),
        ("translate", {"text": TEXT, "model": "third"}, 422, "model", "is not open: expected counting, other"),
        ("translate", {"text": TEXT, "target_lang": "de"}, 422, "target_lang", "'de' is not one of this model"),
        ("translate", {"text": TEXT, "off": ["cross.7"]}, 422, "off", "layer 7 of the decoder does not exist"),
        ("translate", {"text": "five " * 400}, 422, "text", "tokens; expected at most 64"),
        ("score", {"text": TEXT, "target": " "}, 422, "target", "is empty"),
        ("attention", {"text": TEXT}, 422, "target_ids", "is empty: translate first"),
        ("attention", {"text": TEXT, "target_ids": [5], "part": "x"}, 422, "part", "one of encoder, decoder, cross"),
        ("head", {"text": TEXT, "target_ids": [5], "head": 4}, 422, "head", "4 is not a head: the layer has 4"),
        ("tensor", {"text": TEXT, "target_ids": [5], "box": "x"}, 422, "box", "'x' is not a tensor: expected one of"),
        ("sing", {}, 404, "question", "'sing' is not one: expected models, translate"),
    ],
)
def test_wrong_fields_are_named(client, question, request_body, status, field, message):
    answer = client.post(f"/api/{question}", json=request_body)
    found = answer.json()
    assert (answer.status_code, found["field"]) == (status, field) and message in found["error"]


HOSTILE = [
    10**400, -(10**400), 2**64, 1e308, float("nan"), float("inf"), "\ud800", "a\udfff", "\0", {"\ud800": 1}, [[[]]],
    ["\ud800"], [10**400], [None], ["cross." + "9" * 5000], ["cross.\u0663"], True, None, "x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("question", [*QUESTIONS, "models"])
def test_every_value_of_every_field_gets_an_answer_of_one_line(client, question):
    kind = Request if question == "models" else get_type_hints(QUESTIONS[question])["request"]
    names = {field.name for field in dataclasses.fields(kind)}
    base = {"text": TEXT, "target": "eins", "target_ids": [5, 1], "box": "logits"}
    own = {name: value for name, value in base.items() if name in names}
    if question != "translate":  # which has the fields that all have
        names -= {"model", "text", "off"}
    nested = []
    for _ in range(300):
        nested = [nested]
    for name in (*names, "\ud800"):
        for value in (*HOSTILE, nested):
            content = json.dumps({**own, name: value})
            answer = client.post(f"/api/{question}", content=content, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 422), (name, value)
            if answer.status_code == 422:
                assert "\n" not in answer.json()["error"] and len(answer.json()["error"]) < 800


def test_the_sentence_of_a_page_has_to_be_text(counting_folder, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["explore", counting_folder, "--html", str(tmp_path / "page.html"), "--text", "a\udcff"])
    assert "argument --text: 'a\\udcff' is not UTF-8" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["attention", counting_folder, str(tmp_path / "a.png"), "a\udcff"])


def test_names_of_the_page_are_those_of_this_machine_and_those_that_are_allowed(explorer):
    for names, host, status in (
        ((), "localhost:8000", 200),
        ((), "testserver", 400),
        ((), "page.example", 400),
        (["page.example"], "page.example", 200),
        (["*"], "any.example", 200),
    ):
        app = make_app(explorer, names)
        assert TestClient(app, BASE).get("/", headers={"host": host}).status_code == status
    answer = TestClient(make_app(explorer), BASE).post(
        "/api/models", json={}, headers={"origin": "http://evil.example"}
    )
    assert answer.status_code == 403


def test_wrong_bodies_and_addresses_are_refused(client, explorer, monkeypatch):
    kind = {"content-type": "application/json"}
    for body, headers, status in (
        (b"{", kind, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {}, 415),
        (b'"' + b"a" * 2**20 + b'"', kind, 413),
    ):
        answer = client.post("/api/translate", content=body, headers=headers)
        assert answer.status_code == status and answer.json()["error"]
    for path in ("/page/nothing.js", "/page/..%2fserver.py", "/etc/passwd", "/page/server.py"):
        assert client.get(path).status_code == 404 and "error" in client.get(path).json()
    assert client.get("/api/translate").status_code == 405
    assert client.get("/", headers={"host": "attacker.example"}).status_code == 400
    monkeypatch.setattr(explorer, "answer", lambda *_: 1 / 0)
    answer = client.post("/api/models", json={})
    assert answer.status_code == 500 and "division" not in answer.text and answer.json()["error"]


def test_the_page_asks_nobody_else(client):
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    for name in page_names():
        text = client.get(f"/page/{name}").text
        addresses = re.findall(r"https?://[\w./-]+", text)
        assert {*addresses} <= {"http://www.w3.org/2000/svg"}, name
        for imported in re.findall(r'from "(\S+)"', text) if name.endswith(".js") else []:
            assert imported.startswith("./") and imported[2:] in page_names(), f"{name} imports {imported}"


def test_one_file_holds_the_answers_and_no_path(explorer, counting_folder, tmp_path):
    text = page_of(explorer, TEXT + " </script><b>", {"num_beams": 2})
    block = re.search(r'<script id="answers" type="application/json">(.*?)</script>', text, re.DOTALL)[1]
    saved = json.loads(block)
    names = [key.split(" ")[0] for key in saved["answers"]]
    assert names.count("attention") == 3 and names.count("head") == 12 and "walk" in names
    assert key_of("models", {}) in saved["answers"] and "</script><b>" not in text
    modules = json.loads(re.search(r'<script type="importmap">(.*?)</script>', text, re.DOTALL)[1])["imports"]
    code = [base64.b64decode(address.split(",")[1]).decode() for address in modules.values()]
    assert len(code) == len([name for name in page_names() if name.endswith(".js")])
    assert not [one for one in code if 'from "./' in one] and "/page/" not in text
    main(["explore", counting_folder, "--html", str(tmp_path / "page.html"), "--text", TEXT])
    written = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in written and "/tmp" not in written and str(counting_folder) not in written


def test_the_command_refuses_what_does_not_fit(counting_folder, capsys):
    for arguments, message in (
        (["--html", "page.html"], "--html and --text belong together"),
        (["--port", "70000"], "70000 is not a port"),
        (["--html", "page.html", "--text", " "], "text: is empty"),
    ):
        with pytest.raises(SystemExit):
            main(["explore", counting_folder, *arguments])
        assert message in capsys.readouterr().err
