"""Rates of corpora: what an epoch has, in which order, and on how many processes."""

from collections import Counter

import numpy as np
import pytest

from vanilla_transformer_hf.training.data.parts import Mixture, check_rates
from vanilla_transformer_hf.training.data.token_batches import MixedSampler, TokenBatchSampler


SIZES = {"law": 30, "general": 500}


def shares(mixture, rows):
    bounds = np.cumsum(mixture.sizes)
    counts = np.bincount(np.searchsorted(bounds, rows, side="right"), minlength=len(bounds))
    return (counts / counts.sum()).round(3).tolist()


def test_rates_end_with_the_corpus_that_is_used_up_first():
    mixture = Mixture.by_rates(SIZES, {"law": 4, "general": 1}, seed=1)
    assert mixture.counts == (30, 8)
    assert Mixture.by_rates(SIZES, {"law": 1, "general": 20}, seed=1).counts == (25, 500)
    assert "law: 30 of the 38 pairs of an epoch (78.9%), from 30, so each is seen 1 times." in mixture.sentences()


def test_temperature_is_that_of_arivazhagan():
    sizes = {"a": 1000, "b": 10}
    for temperature in (1, 5, 1e9):
        mixture = Mixture.by_temperature(sizes, temperature, seed=1)
        wanted = np.asarray([1000, 10]) ** (1 / temperature)
        assert mixture.counts == tuple(np.rint(wanted / wanted.sum() * 1010))
        assert sum(mixture.counts) == 1010
    assert Mixture.by_temperature(sizes, 1, seed=1).counts == (1000, 10)


def test_no_pair_is_seen_more_than_once_more_often_than_another():
    mixture = Mixture.by_rates(SIZES, {"law": 4, "general": 1}, seed=1)
    epochs = [mixture.rows(epoch) for epoch in range(100)]
    seen = Counter(np.concatenate(epochs).tolist())
    assert {seen[row] for row in range(30)} == {100} and {seen[row] for row in range(30, 530)} <= {1, 2}
    again = Mixture.by_rates(SIZES, {"law": 4, "general": 1}, seed=1).rows(57)
    assert np.array_equal(again, epochs[57]), "an epoch depends on nothing before it"
    other = Mixture.by_rates(SIZES, {"law": 4, "general": 1}, seed=2).rows(57)
    assert not np.array_equal(other, epochs[57])
    small = Mixture.by_temperature({"a": 300, "b": 7}, 5, seed=1)
    repeated = Counter(small.rows(3)[small.rows(3) >= 300].tolist())
    assert len(repeated) == 7 and max(repeated.values()) - min(repeated.values()) <= 1


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_batches_of_all_processes_have_the_rows_of_the_mixture(processes):
    lengths = np.random.default_rng(0).integers(2, 30, 530)
    mixture = Mixture.by_rates(SIZES, {"law": 1, "general": 2}, seed=1)
    samplers = [
        TokenBatchSampler(lengths, 100, mixture=mixture, seed=3, num_processes=processes, process_index=index)
        for index in range(processes)
    ]
    for epoch in range(4):
        batches = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            own = list(sampler)
            assert len(own) == len(sampler) == len(samplers[0]), "the same number in every epoch and process"
            batches += own
        assert max(lengths[batch].max() * len(batch) for batch in batches) <= 100
        rows = np.concatenate(batches)
        wanted, got = Counter(mixture.rows(epoch).tolist()), Counter(rows.tolist())
        assert not got - wanted and len(rows) > 0.85 * sum(mixture.counts), "a few batches may be left out"
        np.testing.assert_allclose(shares(mixture, rows), [1 / 3, 2 / 3], atol=0.1)


def test_batches_of_sentences_have_the_rows_of_the_mixture():
    lengths = np.random.default_rng(0).integers(2, 30, 530)
    mixture = Mixture.by_rates(SIZES, {"law": 1, "general": 2}, seed=1)
    for kinds in (None, lengths):
        sampler = MixedSampler(mixture, 3, 4, kinds)
        sampler.set_epoch(2)
        rows = list(sampler)
        assert len(sampler) == len(rows) and sorted(rows) == sorted(mixture.rows(2).tolist())
        assert rows == list(sampler), "the order depends on seed and epoch alone"
        sampler.set_epoch(3)
        assert rows != list(sampler)


def test_one_corpus_keeps_its_order():
    """The order is the one recorded before there were mixtures."""
    sampler = TokenBatchSampler([3, 9, 4, 9, 2, 7, 5, 5], 18, seed=7)
    sampler.set_epoch(2)
    assert list(sampler) == [[4], [3, 1], [7, 2, 0], [5, 6]]


@pytest.mark.parametrize(
    "rates, temperature, message",
    [
        ([4, None], None, "some have a rate and others none"),
        ([4, 0], None, "rate=0 is not a rate: expected a number above 0"),
        ([4, float("nan")], None, "is not a rate"),
        ([4, 1], 5, "corpus_temperature=5 and rates of corpora exclude each other"),
        ([None, None], 0.5, "corpus_temperature=0.5 is not a temperature: expected 1 or more"),
    ],
)
def test_rates_that_are_none(rates, temperature, message):
    with pytest.raises(ValueError, match=message):
        check_rates(rates, temperature)
