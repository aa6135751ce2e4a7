"""Token batches: full, shared out evenly, the same for the same seed."""

import itertools

import datasets
import numpy as np
import pytest

from vanilla_transformer_hf.training.data.token_batches import (
    CurriculumSampler,
    EpochLengthSampler,
    TokenBatchSampler,
    TokenBatchStream,
)


LENGTHS = np.random.default_rng(0).integers(3, 40, 500)


def test_batches_hold_each_sentence_once_and_no_more_tokens_than_allowed_padding_counted():
    sampler = TokenBatchSampler(LENGTHS, 200)
    batches = list(sampler)
    assert sorted(row for batch in batches for row in batch) == list(range(len(LENGTHS)))
    padded = [LENGTHS[batch].max() * len(batch) for batch in batches]
    assert max(padded) <= 200 and len(sampler) == len(batches)
    assert LENGTHS.sum() > 0.97 * sum(padded), "sentences of one length stand together, so there is little padding"
    assert sum(padded) > 0.85 * 200 * len(batches), "and batches are nearly full"


def test_epochs_and_seeds_differ_in_company_and_order_but_not_in_number():
    def batches(seed, epoch):
        sampler = TokenBatchSampler(LENGTHS, 200, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    first = batches(1, 0)
    assert first == batches(1, 0)
    for other in (batches(1, 1), batches(2, 0)):
        assert len(other) == len(first)
        assert {frozenset(batch) for batch in other} != {frozenset(batch) for batch in first}


@pytest.mark.parametrize("num_processes", [2, 3, 8])
def test_processes_get_equally_many_batches_and_together_each_sentence_once(num_processes):
    parts = [
        list(TokenBatchSampler(LENGTHS, 200, num_processes=num_processes, process_index=index))
        for index in range(num_processes)
    ]
    assert {len(part) for part in parts} == {len(parts[0])}
    assert sorted(row for part in parts for batch in part for row in batch) == list(range(len(LENGTHS)))
    assert max(LENGTHS[batch].max() * len(batch) for part in parts for batch in part) <= 200


def test_two_processes_see_the_batches_of_one_in_turn():
    lengths = [10] * 80  # four batches of twenty
    parts = [list(TokenBatchSampler(lengths, 200, num_processes=2, process_index=index)) for index in (0, 1)]
    assert [batch for pair in zip(*parts) for batch in pair] == list(TokenBatchSampler(lengths, 200))


def test_what_cannot_be_done_is_said():
    with pytest.raises(ValueError, match="row 1 has 50 tokens, but a batch holds at most 40"):
        TokenBatchSampler([3, 50], 40)
    with pytest.raises(ValueError, match="1 sentences cannot be shared out to 2 processes"):
        TokenBatchSampler([3], 40, num_processes=2)
    with pytest.raises(ValueError, match="5 batches of one sentence each cannot be shared out evenly to 2 processes"):
        TokenBatchSampler([10] * 5, 10, num_processes=2)


@pytest.fixture
def table():
    return datasets.Dataset.from_dict({"line": range(len(LENGTHS)), "length": LENGTHS}).to_iterable_dataset()


def epochs(stream, number):
    """The batches of the first epochs of a stream, as lists of lines."""
    batches = itertools.takewhile(lambda batch: batch[0]["epoch"] < number, stream)
    found = [[] for _ in range(number)]
    for batch in batches:
        found[batch[0]["epoch"]].append([pair["line"] for pair in batch])
    return found


def test_a_stream_is_read_in_blocks_of_bounded_size_again_and_again(table):
    first, second = epochs(TokenBatchStream(table, 200, buffer_size=120, seed=3), 2)
    assert [first, second] == epochs(TokenBatchStream(table, 200, buffer_size=120, seed=3), 2)
    assert first != second
    for batches in (first, second):
        order = [row for batch in batches for row in batch]
        assert sorted(order) == list(range(len(LENGTHS)))
        assert sorted(order[:120]) == list(range(120)), "a block is used up before the next is read"
        assert max(LENGTHS[batch].max() * len(batch) for batch in batches) <= 200


def test_processes_share_a_stream(table):
    parts = [
        epochs(TokenBatchStream(table, 200, buffer_size=120, num_processes=2, process_index=index), 1)[0]
        for index in (0, 1)
    ]
    assert len(parts[0]) == len(parts[1])
    assert sorted(row for part in parts for batch in part for row in batch) == list(range(len(LENGTHS)))
    with pytest.raises(ValueError, match="the stream holds 0 sentences for 2 processes"):
        next(iter(TokenBatchStream([], 200, num_processes=2)))


def test_a_curriculum_begins_with_the_shortest_rows_and_ends_with_all():
    lengths = np.random.default_rng(0).integers(1, 100, size=1000).tolist()
    ranks = np.argsort(np.argsort(lengths, kind="stable"))
    sampler = CurriculumSampler(20, lengths, seed=3, steps=75)
    usual = EpochLengthSampler(20, lengths, seed=3)
    assert len(sampler) == 1000
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        usual.set_epoch(epoch)
        epochs.append(np.array(list(sampler)).reshape(50, 20))
        assert (epochs[-1].flatten() == list(sampler)).all()  # a run that is continued skips what it has seen
    assert (epochs[1][25:].flatten() == list(usual)[500:]).all()
    taken = np.concatenate(epochs)[:75]
    for step, batch in enumerate(taken):
        competence = ((step * (1 - 0.01**2)) / 75 + 0.01**2) ** 0.5
        hardest = sorted(lengths)[max(int(competence * 1000), 20) - 1]
        assert max(lengths[row] for row in batch) <= hardest
        assert len({*batch}) == 20
    assert set(sorted(range(1000), key=lambda row: lengths[row])[:15]) <= {*map(int, taken[0])}
    assert ranks[taken[60:75]].max() > 700
    other = CurriculumSampler(20, lengths, seed=4, steps=75)
    assert list(other) != epochs[0].flatten().tolist()


def test_a_curriculum_of_fewer_rows_than_a_batch_has_each():
    assert sorted(CurriculumSampler(8, [3, 1, 2], seed=0, steps=5)) == [0, 1, 2]
