"""Texts of many clients through the same searches: every answer is that of the text alone."""

import copy
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
import torch
from counting_model import SOURCES
from starlette.testclient import TestClient

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.model.search import together
from vanilla_transformer_hf.model.tokenizer.failures import TokenizerError
from vanilla_transformer_hf.serving.application import ServedModel, create_application
from vanilla_transformer_hf.serving.batcher import Batcher, DeadlineError, QueueFullError
from vanilla_transformer_hf.serving.searches import SharedSearch, Work


LONG = " ".join(f"{source}." for source in SOURCES[30:90])


@pytest.fixture
def start(translator):
    """`start(**settings)`: a batcher that works, and ends with the test."""
    batchers = []

    def start(**settings):
        batchers.append(Batcher(translator, **settings))
        batchers[-1].start()
        return batchers[-1]

    yield start
    for batcher in batchers:
        batcher.stop(finish=False)
        assert not batcher.is_alive


@pytest.mark.parametrize("options", [{}, {"num_beams": 4, "num_return_sequences": 2}, {"num_beam_groups": 2}])
def test_answers_are_those_of_each_text_alone(translator, start, options):
    if "num_beam_groups" in options:  # nobody can join such a search
        options = {"num_beams": 4, "diversity_penalty": 0.5, **options}
    texts = [*SOURCES[::8], "", " \t", LONG]
    expected = {text: translator.translate(text, **{"num_return_sequences": 1, **options}) for text in texts}
    batcher = start(most_rows=12)

    def ask(number):
        texts_of_one = [text for place, text in enumerate(texts) if place % 8 == number] or texts[:2]
        found = []
        for text in texts_of_one:
            found += zip([text], batcher.submit([text], options, client=number).future.result(30))
        several = batcher.submit(texts_of_one, options, client=number).future.result(30)
        return [*found, *zip(texts_of_one, several, strict=True)]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(ask, range(8)):
            for text, n_best in found:
                wanted = expected[text] if isinstance(expected[text], list) else [expected[text]]
                assert list(map(str, n_best)) == list(map(str, wanted))
                assert [one.tokens for one in n_best] == [one.tokens for one in wanted]
    assert batcher.waiting == batcher.running == 0


def test_different_options_at_the_same_time_do_not_mix(translator, start):
    kinds = [{}, {"num_beams": 3}, {"max_new_tokens": 2}, {"num_beams": 2, "length_penalty": 2.0}]
    texts = SOURCES[40:60]
    expected = [[translator.translate(text, **options) for text in texts] for options in kinds]
    batcher = start()
    tickets = [batcher.submit([text], options) for text in texts for options in kinds]
    found = [str(ticket.future.result(30)[0][0]) for ticket in tickets]
    assert [found[place :: len(kinds)] for place in range(len(kinds))] == expected


def test_a_long_text_does_not_hold_up_short_ones_and_its_parts_come_in_order(translator, start):
    expected = translator.translate(LONG)
    batcher, told = start(most_rows=64), []
    long = batcher.submit([LONG, LONG], client="a")
    long.listen(told.append)
    assert batcher.submit(["three one"], client="b").future.result(30) == [["eins drei"]]
    assert batcher.submit(["two"], client="a").future.result(30) == [["zwei"]]
    assert not long.future.done()
    assert [each[0] for each in long.future.result(30)] == [expected, expected]
    assert told.pop() is None
    order = [(event["text"], event["part"]) for event in told]
    assert order == sorted(order) and len(order) == len(long.works) > 80
    assert " ".join(event["translation"] for event in told if event["text"] == 1) == expected


def test_cancelled_and_late_requests_leave_and_the_others_are_as_before(translator, start):
    expected = [translator.translate(text, num_beams=2) for text in SOURCES[60:90]]
    batcher = start(most_rows=200)
    options = {"num_beams": 2}
    kept = [batcher.submit([text], options) for text in SOURCES[60:90:2]]
    gone = [batcher.submit([text] * 8, options) for text in SOURCES[:40]]
    late = batcher.submit([LONG], options, seconds=0.01)
    for ticket in gone:
        ticket.cancel()
    kept += [batcher.submit([text], options) for text in SOURCES[61:90:2]]
    assert [str(ticket.future.result(30)[0][0]) for ticket in kept] == expected[::2] + expected[1::2]
    with pytest.raises(DeadlineError):
        late.future.result(30)
    for ticket in gone:
        assert ticket.future.done()
    assert batcher.waiting == 0


def test_what_leaves_a_search_changes_nothing_for_the_others(translator):
    expected = [translator.translate(text, num_beams=3) for text in SOURCES[50:58]]
    search = SharedSearch(translator, {"num_beams": 3})
    works = [Work(None, place, 0, parts[0]) for place, parts in enumerate(translator.encoder()(SOURCES[50:58]))]
    search.join(works[:5])
    found = search.step() + search.step()
    search.join(works[5:])
    search.leave([works[1], works[3], works[6]])
    assert len(search.running) == 5
    while search.running:
        found += search.step()
    assert {work.text: str(translator.decode(rows, None)[0]) for work, rows in found} == {
        place: expected[place] for place in (0, 2, 4, 5, 7)
    }
    search.leave(works)
    assert search.step() == []


def test_too_much_is_refused_with_the_time_to_come_back(translator):
    batcher = Batcher(translator, most_waiting=10)  # and does not work
    tickets = [batcher.submit(["one"] * 5) for _ in range(2)]
    with pytest.raises(
        QueueFullError, match="10 sentences wait, and at most 10 may; try again in 1 seconds"
    ) as caught:
        batcher.submit(["two"])
    assert caught.value.retry_after == 1
    batcher.start()
    assert [ticket.future.result(30) for ticket in tickets] == [[["eins"]] * 5] * 2
    assert batcher.submit(["two"]).future.result(30) == [["zwei"]]
    batcher.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        batcher.submit(["two"])


def test_wrong_options_are_refused_at_once(start):
    with pytest.raises(ValueError, match="num_return_sequences=3: needs num_beams of at least 3"):
        start().submit(["one"], {"num_return_sequences": 3})


def test_a_search_that_fails_takes_nobody_else_with_it(start, monkeypatch):
    class Failing(SharedSearch):
        def step(self):
            raise MemoryError("no room")

    monkeypatch.setattr(
        "vanilla_transformer_hf.serving.batcher.SharedSearch",
        lambda translator, options: (Failing if options else SharedSearch)(translator, options),
    )
    batcher = start()
    wrong = [batcher.submit([text], {"num_beams": 2}) for text in SOURCES[:3]]
    right = batcher.submit(["three"])
    for ticket in wrong:
        with pytest.raises(MemoryError):
            ticket.future.result(30)
    assert right.future.result(30) == [["drei"]]
    assert batcher.submit(["one two"]).future.result(30) == [["zwei eins"]]


class PanicException(BaseException):
    """What libraries written in Rust raise."""


def test_a_tokenizer_that_panics_on_a_text_takes_nobody_else_with_it(start, translator, monkeypatch):
    decode, call = translator.tokenizer.batch_decode, type(translator.tokenizer).__call__

    def panicking(sequences, **options):
        texts = decode(sequences, **options)
        if "eins" in texts:
            raise PanicException("index out of bounds:\nthe len is 3")
        return texts

    def panicking_call(tokenizer, text=None, **options):
        if text == ["five"]:
            raise PanicException("retry-limit-in-match over")
        return call(tokenizer, text, **options)

    monkeypatch.setattr(translator.tokenizer, "batch_decode", panicking)
    monkeypatch.setattr(type(translator.tokenizer), "__call__", panicking_call)
    batcher = start()
    wrong, right = batcher.submit(["one"]), batcher.submit(["two"])
    with pytest.raises(TokenizerError, match=r"fails where it joins tokens to a text: index out of bounds:$"):
        wrong.future.result(30)
    assert right.future.result(30) == [["zwei"]]
    with pytest.raises(TokenizerError, match="fails where it cuts a text: retry-limit-in-match over"):
        batcher.submit(["five"])
    with TestClient(create_application([ServedModel("one", Batcher(translator), "en", {"de": None})])) as client:
        for text in ("one", "five"):
            answer = client.post("/translate", json={"q": text})
            assert answer.status_code == 400 and "the tokenizer of the model fails" in answer.json()["error"]
        monkeypatch.setattr(translator, "align", lambda *a, **k: (_ for _ in ()).throw(TokenizerError("it fails")))
        answer = client.post("/translate", json={"q": "<p><b>two</b> three</p>", "format": "html"})
        assert answer.status_code == 400 and answer.json()["error"].startswith("it fails")


def test_attention_is_computed_for_some_at_a_time_until_the_deadline(translator, monkeypatch):
    late, sizes = [0.0], []

    def align(pairs):
        sizes.append(len(pairs))
        late[0] = 1000.0
        return [None] * len(pairs)

    monkeypatch.setattr("vanilla_transformer_hf.serving.batcher.aligner", lambda translator, prefix: align)
    monkeypatch.setattr("vanilla_transformer_hf.serving.batcher.monotonic", lambda: time.monotonic() + late[0])
    batcher = Batcher(translator)
    assert batcher.align([("one", "eins")] * 20) == [None] * 20 and sizes == [16, 4]
    late[0] = 0.0
    with TestClient(create_application([ServedModel("one", batcher, "en", {"de": None})])) as client:
        answer = client.post("/translate", json={"q": "<p><b>two</b> three</p>" * 20, "format": "html"})
    assert answer.status_code == 504 and sizes == [16, 4, 16]


def test_scores_that_are_not_numbers_fail_and_are_not_translations(translator, start):
    weight = translator.model.lm_head.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(torch.nan)
    try:
        with pytest.raises(ValueError, match="NaN"):
            start().submit(["one"]).future.result(30)
    finally:
        with torch.no_grad():
            weight.copy_(before)


def test_stopping_finishes_what_is_on_its_way_or_drops_it(translator, start):
    batcher = start(most_rows=4)
    tickets = [batcher.submit([text]) for text in SOURCES[:30]]
    batcher.stop()
    assert all(ticket.future.result(0) for ticket in tickets)
    batcher = start(most_rows=1)
    ticket = batcher.submit([LONG])
    began = time.monotonic()
    batcher.stop(finish=False)
    with pytest.raises(CancelledError):
        ticket.future.result(0)
    assert time.monotonic() - began < 1 and threading.active_count() < 50


@pytest.fixture
def endless(opened_translator, monkeypatch):
    """A translator whose translations go on to their limits, one token more than the source has."""
    monkeypatch.setattr(together, "MOST_EMPTY_SLOTS", 64)
    model = copy.deepcopy(opened_translator.model)
    with torch.no_grad():
        model.lm_head.weight[model.generation_config.eos_token_id] = 0
    model.generation_config.max_extra_tokens = 1
    return Translator(model, opened_translator.tokenizer)


@pytest.mark.parametrize("most", [8, 0])
def test_wide_sentences_leave_the_others_and_run_in_the_turns_of_their_client(endless, monkeypatch, most):
    monkeypatch.setattr("vanilla_transformer_hf.serving.batcher.MOST_WIDE", most)
    translator, texts = endless, [" ".join(SOURCES[60:72]), *SOURCES, *SOURCES]
    expected = [[[text]] for text in translator.translate(texts)]
    turns, advance = [], Batcher._advance

    def watched(batcher, lane, works, flows):
        turns.append((lane.key.wide, [client for client, *_ in flows]))
        advance(batcher, lane, works, flows)

    monkeypatch.setattr(Batcher, "_advance", watched)
    batcher = Batcher(translator, most_rows=16)
    tickets = [batcher.submit([text], client="long" if place == 0 else "short") for place, text in enumerate(texts)]
    batcher.start()
    assert [ticket.future.result(60) for ticket in tickets] == expected
    batcher.stop()
    assert {client for wide, clients in turns if wide for client in clients} == ({"long"} if most else set())
    assert batcher.running == 0


def test_of_wide_sentences_those_of_clients_who_leave_are_dropped(endless):
    translator = endless
    texts = [" ".join(SOURCES[60:72]), " ".join(SOURCES[72:84]), *SOURCES, *SOURCES]
    works = [Work(None, place, 0, part) for place, (part,) in enumerate(translator.encoder()(texts))]
    shared, wide, found, left = SharedSearch(translator, {}), None, [], [*works]
    while wide is None:
        if room := 16 - len(shared.running):
            shared.join([left.pop(0) for _ in range(min(room, len(left)))])
        found += shared.step()
        wide = shared.take_wide()
    assert {work.text for work in wide.running} == {0, 1} and not {0, 1} & {work.text for work in shared.running}
    wide.leave(works[:1])
    while shared.is_busy or wide.is_busy:
        found += [*shared.step(), *wide.step()]
    expected = translator.translate(texts)
    assert {work.text: str(translator.decode(rows, None)[0]) for work, rows in found} == {
        work.text: expected[work.text] for work in works[1:] if work not in left
    }
