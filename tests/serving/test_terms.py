"""Glossaries and memories of the server and of its requests."""

import json
import re
import shlex

import pytest
from hub_server import ROOT
from starlette.testclient import TestClient

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.serving.application import ServedModel, create_application
from vanilla_transformer_hf.serving.batcher import Batcher
from vanilla_transformer_hf.serving.protocols import Limits
from vanilla_transformer_hf.serving.server import ServerSettings, open_models
from vanilla_transformer_hf.translation.documents.memory import Memory
from vanilla_transformer_hf.translation.text.glossary import Glossary


@pytest.fixture(scope="module")
def client(opened_translator):
    translator = Translator(opened_translator.model, opened_translator.tokenizer)
    translator.glossary, translator.memory = Glossary([("five", "drei")]), Memory([("one five", "UNO")])
    application = create_application(
        [ServedModel("a", Batcher(translator), "en", {"de": None})], Limits(characters=1000, file_bytes=0)
    )
    with TestClient(application, raise_server_exceptions=False) as client:
        yield client


def test_the_page_prints_what_the_server_of_the_shipped_model_answers(tmp_path):
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    examples = re.findall(r"^curl http://127.0.0.1:5000(/translate|/suggest) (.*)\n(\{.*\})$", page, re.MULTILINE)
    assert len(examples) == 4
    translator = Translator.from_pretrained(ROOT / "model_cards" / "multi30k_raw_en_de", matmul_backend="default")
    model = ServedModel("en-de", Batcher(translator), "en", {"de": None})
    application = create_application([model], suggestions=str(tmp_path))
    with TestClient(application) as client:
        for path, options, expected in examples:
            words = shlex.split(options)
            is_json = words[0] == "--json"
            fields = json.loads(words[1]) if is_json else dict(each.split("=", 1) for each in words[1::2])
            assert client.post(path, **{"json" if is_json else "data": fields}).json() == json.loads(expected)


def test_terms_and_memories_of_the_server_and_of_requests(client):
    def translate(q, **fields):
        return client.post("/translate", json={"q": q, "source": "en", "target": "de", **fields}).json()

    plain, term = translate(["two one", "five"])["translatedText"]
    assert plain == "eins zwei" and "drei" in term
    answer = translate("one five")
    assert answer == {"translatedText": "UNO", "missingTerms": [{"source": "five", "target": "drei"}]}
    assert translate("one five", memory={}, glossary={}) == {"translatedText": "fünf eins"}
    answer = translate(["two one. four", "four"], glossary={"Two": "vier", " ": "x", "four": ""}, alternatives=1)
    assert "vier" in answer["translatedText"][0] and answer["translatedText"][1] == "vier"
    assert len(answer["alternatives"][0]) == 1 and "missingTerms" not in answer
    answer = translate("one two fives", memory={"one two five": "A"}, matches=True, glossary={})
    assert answer["matches"] == [{"source": "one two five", "translation": "A", "similarity": 0.923}]
    markup = translate("<p>one <b>five</b></p><p>five</p>", format="html")
    assert markup["translatedText"].startswith("<p>") and "UNO" in markup["translatedText"]
    assert markup["missingTerms"] == [{"source": "five", "target": "drei"}]
    streamed = client.post("/translate", json={"q": ["one five", "five"], "stream": True, "matches": True}).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
    assert events[0] == {"text": 0, "part": 0, "translation": "UNO"} and len(events) == 3
    assert events[-1]["translatedText"][0] == "UNO" and events[-1]["matches"] == [[], []]
    answer = client.post("/", json={"inputs": "one five"}).json()
    assert answer == [{"translation_text": "UNO", "missing_terms": [{"source": "five", "target": "drei"}]}]


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"glossary": ["a"]}, 400, "glossary"),
        ({"glossary": {"a": 1}}, 400, "glossary"),
        ({"glossary": "a"}, 400, "glossary"),
        ({"memory": {"a": "\ud800"}}, 400, "memory"),
        ({"memory": {f"{number}": "a" for number in range(1001)}}, 413, "memory"),
        ({"memory": {"a": "b" * 1000}}, 413, "memory"),
        ({"glossary": {"a " * 40: "b"}}, 413, "glossary"),
        ({"matches": "some"}, 400, "matches"),
    ],
)
def test_wrong_glossaries_and_memories_are_refused(client, fields, status, field):
    content = json.dumps({"q": "one", **fields})
    answer = client.post("/translate", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text


def test_a_server_of_several_pairs_has_none_of_its_own(counting_folder, tmp_path):
    (tmp_path / "terms.tsv").write_text("two\tfünf\n", encoding="utf-8")
    settings = {"glossary": str(tmp_path / "terms.tsv"), "device": "cpu"}
    (model,) = open_models(ServerSettings([counting_folder], **settings))
    assert model.batcher.translator.glossary.find("two")
    with pytest.raises(ValueError, match="glossary and memory are of one pair of languages"):
        open_models(ServerSettings([f"a={counting_folder}", f"b={counting_folder}"], **settings))
