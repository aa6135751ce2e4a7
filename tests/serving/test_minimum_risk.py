"""Minimum Bayes risk in the server: the field `mbr` of requests."""

import itertools
import json
import sys
from concurrent.futures import CancelledError

import pytest
from counting_model import SOURCES
from jsonschema import Draft202012Validator

from vanilla_transformer_hf import MinimumRisk, Translator
from vanilla_transformer_hf.serving.batcher import Batcher
from vanilla_transformer_hf.translation.text.glossary import Glossary


# So hot that samples differ, and another search finds something else.
HOT = {"candidates": "top_k", "top_k": 3, "temperature": 4.0, "samples": 6}
TEXTS = [*SOURCES[40:52:3], "", "two one. three. four five", "***"]


def post(client, q, **fields):
    answer = client.post("/translate", json={"q": q, "source": "en", "target": "de", **fields})
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    "settings", [HOT, {"candidates": "beam", "samples": 5}, {"epsilon": 0.001, "temperature": 3.0, "samples": 9}]
)
def test_answers_are_those_of_the_translator_whoever_else_asks(serve, translator, settings):
    mbr = MinimumRisk(**settings)
    expected = [str(translator.translate(text, mbr=mbr)) for text in TEXTS]
    client = serve()
    (model,) = client.models
    others = [model.batcher.submit([text], client=number) for number, text in enumerate(SOURCES[60:80])]
    status, answer = post(client, TEXTS, mbr=settings)
    assert (status, answer["translatedText"]) == (200, expected)
    assert [post(client, text, mbr=settings)[1]["translatedText"] for text in TEXTS] == expected
    assert [str(each.future.result(30)[0][0]) for each in others] == translator.translate(SOURCES[60:80])
    assert settings != HOT or expected != translator.translate(TEXTS)


def test_lists_events_markup_and_forms_have_it(serve, translator):
    mbr, client, text = MinimumRisk(**HOT), serve(), SOURCES[45]
    best = translator.translate(text, mbr=mbr, num_return_sequences=3)
    _, answer = post(client, text, mbr=HOT, alternatives=2)
    assert [answer["translatedText"], *answer["alternatives"]] == [*map(str, best)]
    # More alternatives than candidates are wanted: as with beams, there are as many.
    assert len(post(client, text, mbr={**HOT, "samples": 2}, alternatives=3)[1]["alternatives"]) == 3
    streamed = client.post("/translate", json={"q": ["one. two", text], "stream": True, "mbr": HOT}).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
    assert [(event["text"], event["part"]) for event in events[:-1]] == [(0, 0), (0, 1), (1, 0)]
    assert events[-1]["translatedText"] == translator.translate(["one. two", text], mbr=mbr)
    markup = post(client, f"<p>{text}</p><hr>", mbr=True, format="html")[1]["translatedText"]
    assert markup == f"<p>{translator.translate(text, mbr=MinimumRisk())}</p><hr>"
    for value, risk in (("true", MinimumRisk()), (json.dumps(HOT), mbr)):
        form = client.post("/translate", data={"q": text, "mbr": value})
        assert form.json() == {"translatedText": str(translator.translate(text, mbr=risk))}
    assert post(client, "one two", mbr=False) == (200, {"translatedText": "zwei eins"})


@pytest.mark.parametrize(
    ("mbr", "field"),
    [
        *(("some", "mbr"), (3, "mbr"), (None, "mbr"), ({"samples": 65}, "mbr.samples")),
        *(({"samples": 1}, "mbr.samples"), ({"samples": True}, "mbr.samples"), ({"utility": "bleu"}, "mbr.utility")),
        *(({"candidates": ["beam"]}, "mbr.candidates"), ({"candidates": "greedy"}, "mbr")),
        *(({"candidates": "beam", "seed": 3}, "mbr"), ({"top_k": 3}, "mbr"), ({"epsilon": 1}, "mbr.epsilon")),
        ({"temperature": 0}, "mbr.temperature"),
    ],
)
def test_wrong_settings_are_refused_and_the_description_excludes_them(serve, mbr, field):
    client = serve()
    status, answer = post(client, "one", mbr=mbr)
    assert (status, answer["field"]) == (400, field), answer
    document = client.get("/openapi.json").json()
    schema = {**document["components"]["schemas"]["TranslateRequest"], "components": document["components"]}
    assert not Draft202012Validator(schema).is_valid({"q": "one", "mbr": mbr})


def test_the_description_allows_what_is_answered(serve):
    client = serve()
    document = client.get("/openapi.json").json()
    schema = {**document["components"]["schemas"]["TranslateRequest"], "components": document["components"]}
    nulls = {"candidates": None, "samples": None, "top_k": None}
    beams = {"candidates": "beam", "seed": None, "epsilon": None}
    top_k = {"candidates": "top_k", "seed": 4, "top_k": None, "epsilon": None}
    for mbr in (HOT, True, "true", {}, {"candidates": ""}, nulls, beams, top_k):
        assert Draft202012Validator(schema).is_valid({"q": "one", "mbr": mbr}), mbr
        assert post(client, "***", mbr=mbr)[0] == 200, mbr


def test_sentences_with_terms_take_candidates_that_have_them(serve, translator):
    client = serve()
    _, answer = post(client, ["two four", "one"], mbr=HOT, glossary={"Two": "fünf"})
    assert "fünf" in answer["translatedText"][0]
    assert answer["translatedText"][1] == str(translator.translate("one", mbr=MinimumRisk(**HOT)))
    translator.glossary = Glossary([("Two", "fünf")], forms=None)
    of_beams = MinimumRisk(HOT["samples"], candidates="beam")
    assert answer["translatedText"][0] == str(translator.translate("two four", mbr=of_beams))


def test_many_samples_hold_nobody_up_and_end_with_their_client(translator):
    """A client that has most sentences searched by most samples, and one that has a sentence."""
    batcher = Batcher(translator)
    batcher.start()
    try:
        many = [batcher.submit(SOURCES, client="a", mbr=MinimumRisk()) for _ in range(8)]
        for text in SOURCES[60:70]:
            assert batcher.submit([text], client="b").future.result(30) == [[str(translator.translate(text))]]
        # The same client's own requests take turns with them, too.
        assert batcher.submit(["two"], client="a").future.result(30) == [["zwei"]]
        assert not any(ticket.future.done() for ticket in many)
        assert batcher.running <= 4, "one sentence of each of a client's searches"
        for ticket in many:
            ticket.cancel()
        for ticket in many:
            with pytest.raises(CancelledError):
                ticket.future.result(5)
        assert batcher.waiting == 0
    finally:
        batcher.stop(finish=False, seconds=10)
    assert not batcher.is_alive


def test_all_who_have_searches_alone_get_as_much_time_as_those_who_share_one(translator, monkeypatch):
    """Each turn takes a second, by a clock that goes on when it is read."""
    ticks, turns, ended, advance = itertools.count(), [], [], Batcher._advance

    def watched(batcher, lane, works, flows):
        turns.append(lane.key.mbr is not None)
        advance(batcher, lane, works, flows)

    monkeypatch.setattr("vanilla_transformer_hf.serving.batcher.monotonic", lambda: next(ticks))
    monkeypatch.setattr(Batcher, "_advance", watched)
    batcher = Batcher(translator)
    for client in range(5):
        batcher.submit(SOURCES[60:68], client=client, mbr=MinimumRisk())
    tickets = [batcher.submit([text], client="plain") for text in SOURCES[100:104]]
    for ticket in tickets:
        ticket.future.add_done_callback(lambda future: ended.append(len(turns)))
    batcher.start()
    try:
        assert [str(each.future.result(30)[0][0]) for each in tickets] == translator.translate(SOURCES[100:104])
    finally:
        batcher.stop(finish=False, seconds=10)
    alone = turns[: ended[-1]].count(True)
    assert ended[-1] > 4 and abs(ended[-1] - 2 * alone) <= 1, turns[: ended[-1]]


def test_another_engine_refuses_samples_before_it_searches(counting_folder):
    translator = Translator.from_pretrained(counting_folder, engine="ctranslate2", device="cpu")
    batcher = Batcher(translator)
    with pytest.raises(ValueError, match="support logits processors, which also draw samples"):
        batcher.submit(["one"], mbr=MinimumRisk(4))
    batcher.start()
    beams = MinimumRisk(4, candidates="beam")
    found = batcher.submit(SOURCES[30:34], mbr=beams).future.result(30)
    assert [str(each[0]) for each in found] == translator.translate(SOURCES[30:34], mbr=beams)
    batcher.stop()


def test_without_the_extra_one_line_says_what_to_install(serve, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastchrf", None)
    status, answer = post(serve(), "one", mbr=True)
    assert (status, answer["field"]) == (400, "mbr") and "pip install 'vanilla_transformer_hf[mbr]'" in answer["error"]
