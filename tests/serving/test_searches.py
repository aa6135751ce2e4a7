"""Calls that nobody can join: in turns with the other searches, with deadlines, and bounded."""

import functools
import threading
import time

import pytest
from counting_model import SOURCES

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.serving import batcher as batching
from vanilla_transformer_hf.serving.batcher import Batcher, DeadlineError
from vanilla_transformer_hf.serving.searches import CallInTurns, SeparateSearch, Stopped


# Options of calls that nobody joins, also one that ends late: repetitions become more probable with each step.
HOSTS = {"repetition_penalty": 1.1}
ENDLESS = {"repetition_penalty": 0.01, "max_new_tokens": 4096}


@pytest.fixture
def batcher(opened_translator):
    """A batcher that waits to be started."""
    batcher = Batcher(Translator(opened_translator.model, opened_translator.tokenizer))
    yield batcher
    batcher.stop(finish=False, seconds=60)
    assert not batcher.is_alive


@pytest.fixture
def start(batcher):
    """A batcher that works."""
    batcher.start()
    return batcher


@pytest.fixture
def endless(monkeypatch):
    """Searches of `HOSTS` that make steps until they are told to stop."""
    made = []

    def join(self, works):
        self._works = [*works]

        def call(pause):
            while True:
                made.append(time.monotonic())
                time.sleep(0.002)
                pause()

        self._call = CallInTurns(call)

    monkeypatch.setattr(SeparateSearch, "join", join)
    return made


def test_a_call_works_in_its_turns_alone():
    steps = []

    def call(pause):
        for step in range(3):
            steps.append(step)
            pause()
        return "done"

    turns = CallInTurns(call)
    time.sleep(0.01)
    assert steps == []  # not before its first turn
    for expected in ([0], [0, 1], [0, 1, 2]):
        assert not turns.advance(5) and steps == expected
    assert turns.advance(5) and turns.result() == "done"


def test_a_call_that_is_stopped_ends_and_a_long_step_is_not_waited_for():
    entered, leave = threading.Event(), threading.Event()

    def call(pause):
        entered.set()
        leave.wait(10)
        pause()

    turns = CallInTurns(call)
    began = time.monotonic()
    assert not turns.advance(0.01) and entered.is_set() and time.monotonic() - began < 5
    turns.stop()
    leave.set()
    assert turns.advance(5)
    with pytest.raises(Stopped):
        turns.result()
    failing = CallInTurns(lambda pause: 1 / 0)
    assert failing.advance(5)
    with pytest.raises(ZeroDivisionError):
        failing.result()


@pytest.mark.parametrize("options", [HOSTS, {**HOSTS, "num_beams": 3, "num_return_sequences": 2}])
def test_answers_of_transformers_loop_are_those_of_each_text_alone(start, translator, options):
    texts = [*SOURCES[::20], ""]
    tickets = [start.submit([text], options, client=place % 3) for place, text in enumerate(texts)]
    together = start.submit(texts, options)
    expected = translator.translate(texts, **{"num_return_sequences": 1, **options})
    expected = [each if isinstance(each, list) else [each] for each in expected]
    assert [ticket.future.result(30)[0] for ticket in tickets] == expected == together.future.result(30)
    assert start.waiting == start.running == 0


def test_endless_searches_hold_up_nobody_and_end_at_their_deadline(start, endless):
    tickets = [
        start.submit(["one"], {**HOSTS, "length_penalty": 1 + number / 100}, client="many", seconds=600)
        for number in range(12)
    ]
    while not endless:
        time.sleep(0.01)
    for client in ("one", "many"):  # behind a proxy, both are the same
        assert start.submit(["three one"], client=client).future.result(60) == [["eins drei"]]
    assert not any(ticket.future.done() for ticket in tickets)
    assert sum(thread.name == "search in turns" for thread in threading.enumerate()) <= batching.CLIENT_SEARCHES
    for ticket in tickets:
        ticket.deadline = time.monotonic()
    for ticket in tickets:
        with pytest.raises(DeadlineError):
            ticket.future.result(60)
    while start._lanes:
        start.submit(["one"]).future.result(60)
    steps = len(endless)
    time.sleep(0.1)
    assert len(endless) <= steps + 1  # nothing works on


def test_a_search_that_really_runs_in_transformers_loop_ends_when_its_client_leaves(start, translator, monkeypatch):
    steps, forward = [], translator.model.forward

    @functools.wraps(forward)
    def slow(*args, **kwargs):
        steps.append(time.sleep(0.02))  # so that it cannot have ended before this test sees it
        return forward(*args, **kwargs)

    monkeypatch.setattr(translator.model, "forward", slow)
    ticket = start.submit(["one"], ENDLESS)
    while not (start.running and steps):
        assert not ticket.future.done()
        time.sleep(0.005)
    ticket.cancel()
    while not ticket.future.done():
        time.sleep(0.005)
    began = time.monotonic()
    while any(thread.name == "search in turns" for thread in threading.enumerate()):
        assert time.monotonic() - began < 5
        time.sleep(0.01)


def test_one_failure_is_that_requests_alone(start, monkeypatch):
    generate = Translator.generate

    def fails(self, *arguments, **options):
        if options.get("length_penalty") == 3:
            raise MemoryError("no room")
        return generate(self, *arguments, **options)

    monkeypatch.setattr(Translator, "generate", fails)
    wrong = start.submit(["one"], {**HOSTS, "length_penalty": 3.0})
    right = start.submit(["two"], HOSTS)
    with pytest.raises(MemoryError):
        wrong.future.result(30)
    assert right.future.result(30) == [["zwei"]]


def test_clients_take_turns_whatever_their_settings(batcher):
    """One of 40 requests, each with settings of its own, and one with one: it waits for a few, not for 40."""
    finished = []
    many = [batcher.submit([SOURCES[60]], {"length_penalty": 1 + number / 100}, client="many") for number in range(40)]
    one = batcher.submit([SOURCES[61]], {"length_penalty": 9.0}, client="one")
    for name, tickets in (("many", many), ("one", [one])):
        for ticket in tickets:
            ticket.future.add_done_callback(lambda future, name=name: finished.append(name))
    batcher.start()
    for ticket in [*many, one]:
        ticket.future.result(60)
    assert finished.index("one") < 10


def test_a_full_queue_keeps_places_for_clients_that_wait_for_nothing(opened_translator):
    batcher = Batcher(opened_translator, most_waiting=16)  # and does not work
    batcher.submit(["one"] * 16, client="many")
    with pytest.raises(batching.QueueFullError):
        batcher.submit(["one"], client="many")
    batcher.submit(["one"], client="another")
    with pytest.raises(batching.QueueFullError):
        batcher.submit(["one", "two"], client="third")


def test_the_memory_of_a_search_is_bounded(start, monkeypatch):
    monkeypatch.setattr(batching, "SEARCH_TOKENS", 4 * 2 * 20)
    seen, join = [], batching.SharedSearch.join

    def watched(self, works):
        seen.append(len(works) + len(self.running))
        join(self, works)

    monkeypatch.setattr(batching.SharedSearch, "join", watched)
    tickets = [start.submit(["one"] * 8, {"num_beams": 2, "max_new_tokens": 20}, client=n) for n in range(3)]
    assert [ticket.future.result(30) for ticket in tickets] == [[["eins"]] * 8] * 3
    assert max(seen) == 4
