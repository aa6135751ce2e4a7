"""Corrections by LibreTranslate's protocol, kept in files."""

import json
import threading
from urllib.parse import urlencode

import pytest

from vanilla_transformer_hf.common.column_names import names_of
from vanilla_transformer_hf.common.corpus_files import find_reader
from vanilla_transformer_hf.serving import suggestions
from vanilla_transformer_hf.serving.suggestions import FullError, Suggestions


PAIR = {"q": "one\ttwo\u2028", "s": "zwei\neins", "source": "en", "target": "de"}


@pytest.fixture
def client(serve, tmp_path):
    client = serve({"a": ("en", {"de": ">>deu<< "})}, suggestions=str(tmp_path / "kept"))
    client.folder = tmp_path / "kept"
    return client


def read(folder):
    return [json.loads(line)["translation"] for line in (folder / "en-de.jsonl").read_bytes().splitlines()]


def test_suggestions_are_kept_and_read_as_a_corpus(client):
    assert client.get("/frontend/settings").json()["suggestions"] is True
    assert client.post("/suggest", json=PAIR).json() == {"success": True}
    answer = client.post("/suggest", data={**PAIR, "target": ">>deu<<", "other": "x"})
    assert answer.json() == {"success": True} and answer.headers["X-Ignored-Fields"] == "other"
    assert read(client.folder) == [{"en": PAIR["q"], "de": PAIR["s"]}] * 2
    path = client.folder / "en-de.jsonl"
    rows = [*find_reader(str(path))(str(path), names_of(None, None, "en", "de"))]
    assert rows == [{"source": PAIR["q"], "target": PAIR["s"]}] * 2
    assert path.stat().st_mode & 0o777 == 0o600 and client.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("text", ["fünf + vier", "四 & fünf", "f%C3%BCnf ü", "%E4ä"])
def test_forms_are_utf_8_whether_their_bytes_are_escaped_or_not(client, text):
    """`curl -d` sends the bytes of a form as they are, browsers escape them."""
    raw = text.replace("%", "%25").replace("&", "%26").replace("+", "%2B")
    for content in (f"q=one&s={raw}&source=en&target=de", urlencode({**PAIR, "q": "one", "s": text})):
        headers = {"content-type": "application/x-www-form-urlencoded"}
        assert client.post("/suggest", content=content.encode(), headers=headers).json() == {"success": True}
    assert read(client.folder) == [{"en": "one", "de": text}] * 2


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        *(({"q": " "}, 400, "q"), ({"q": ["one"]}, 400, "q"), ({"s": None}, 400, "s")),
        *(({"s": "x" * 50_001}, 413, "s"), ({"source": ""}, 400, "source"), ({"source": "../x"}, 400, "source")),
        *(({"target": 3}, 400, "target"), ({"target": "fr"}, 400, "target")),
    ],
)
def test_wrong_suggestions_are_refused_and_not_kept(client, fields, status, field):
    answer = client.post("/suggest", json={**PAIR, **fields})
    assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text
    assert [*client.folder.iterdir()] == []


def test_files_are_bounded_and_hold_whole_pairs(client, monkeypatch):
    kept, path = Suggestions(str(client.folder)), client.folder / "en-de.jsonl"
    threads = [threading.Thread(target=kept.add, args=(("en", "de"), (f"{n}", "x" * n))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(pair["en"]) for pair in read(client.folder)) == [*range(20)]
    before = path.read_bytes().rstrip(b"\n")
    path.write_bytes(before)
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        kept.add(("en", "de"), ("a", "b"))
    assert path.read_bytes() == before
    monkeypatch.undo()
    kept.add(("en", "de"), ("a", "b"))
    assert read(client.folder)[-1] == {"en": "a", "de": "b"} and len(read(client.folder)) == 21
    monkeypatch.setattr(suggestions, "LARGEST", path.stat().st_size + 10)
    with pytest.raises(FullError):
        kept.add(("en", "de"), ("a", "b"))
    answer = client.post("/suggest", json=PAIR)
    assert answer.status_code == 403 and "suggestions are full" in answer.json()["error"]
    kept.add(("../a/b", "de"), ("a", "b"))
    assert sorted(each.name for each in client.folder.glob("*.jsonl")) == ["..%2Fa%2Fb-de.jsonl", "en-de.jsonl"]


def test_the_description_says_what_is_taken(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert paths["/suggest"]["post"]["requestBody"]
