"""Turns: of clients, and of the requests of a client."""

import pytest

from vanilla_transformer_hf.serving.fair_queue import FairQueue


def test_clients_and_their_requests_take_turns():
    queue = FairQueue()
    for client, request, count in (("a", 1, 4), ("a", 2, 2), ("b", 3, 2)):
        for number in range(count):
            queue.put(client, request, f"{client}{request}{number}")
    assert len(queue) == 8
    assert [queue.take() for _ in range(8)] == ["a10", "b30", "a20", "b31", "a11", "a21", "a12", "a13"]
    with pytest.raises(IndexError):
        queue.take()


def test_a_request_that_is_removed_leaves_nothing_behind():
    queue = FairQueue()
    for number in range(3):
        queue.put("a", 1, number)
        queue.put("a", 2, number + 10)
    assert queue.take() == 0 and queue.remove("a", 1) == [1, 2] and queue.remove("a", 1) == []
    assert len(queue) == 3 and queue.next() == 10
    assert queue.remove("b", 1) == [] and queue.remove("a", 2) == [10, 11, 12]
    assert len(queue) == 0 and not queue._clients
