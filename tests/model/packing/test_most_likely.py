"""The best tokens without all logits, against torch's own search through all of them."""

import math

import pytest
import torch
from torch import nn

from vanilla_transformer_hf.model.packing import most_likely as candidates
from vanilla_transformer_hf.model.packing import packed as packed_weights
from vanilla_transformer_hf.model.packing.int8_products import (
    LARGEST,
    fast_product,
    has_fbgemm,
    has_rounding_product,
    onednn_product,
    product_of_halves,
)
from vanilla_transformer_hf.model.packing.most_likely import (
    CANDIDATES,
    FEW_CANDIDATES,
    ScreenedMostLikely,
    best_candidates,
    first_highest,
    most_likely,
)
from vanilla_transformer_hf.model.packing.packed import StepWeights


@pytest.fixture(autouse=True)
def exact_products(monkeypatch):
    """What the search makes of products of int8 is tested on every processor, with plain ones where there are none."""
    if fast_product() is not onednn_product:
        plain = lambda weight, steps: lambda rows: (rows.float() @ weight.float().T) * steps  # noqa: E731
        for module in (candidates, packed_weights):
            monkeypatch.setattr(module, "fast_product", lambda: plain)
        monkeypatch.setattr(packed_weights, "onednn_product", plain)


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("width", [17, 8192, 8200, 37_000])
def test_best_candidates_are_those_of_a_full_search(width, count):
    scores = torch.randn(5, width)
    scores[0, -3:] = 9.0 + torch.rand(3)  # behind the last whole group
    scores[1, : width // 2] = -math.inf
    values, places = best_candidates(scores, count)
    assert torch.equal(values, scores.topk(count).values)
    assert torch.equal(scores.gather(1, places), values)


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("width", [17, 8192, 8200])
def test_best_candidates_of_several_beams_are_those_of_a_full_search(width, count):
    scores, before = torch.randn(5, 3, width), torch.randn(5, 3)
    scores[0, 1, -3:] = 9.0 + torch.rand(3)  # behind the last whole group
    scores[1, :2], before[2, 1:] = -math.inf, -1e9
    values, places = best_candidates(scores, count, before)
    sums = (scores + before[..., None]).flatten(1)
    assert torch.equal(values, sums.topk(count).values)
    assert torch.equal(sums.gather(1, places), values)


@pytest.mark.parametrize("width", [500, 5000, 10_000])
def test_which_of_equal_candidates_are_found_does_not_depend_on_other_sentences(width):
    scores, before = 3 * torch.randn(8, 3, width), torch.randn(8, 3).round()
    scores = scores.bfloat16().float()
    together = best_candidates(scores, 6, before)
    for row in range(8):
        values, places = best_candidates(scores[row, None], 6, before[row, None])
        assert torch.equal(values[0], together[0][row]) and torch.equal(places[0], together[1][row])


@pytest.mark.parametrize("width", [17, 511, 512, 513, 8200, 37_000])
def test_the_first_highest_is_argmax(width):
    scores = torch.randn(80, width).bfloat16().float()  # many are equal
    scores[0, -1] = 9.0
    scores[1] = -math.inf
    scores[2, [-1, 3, 5]] = math.nan
    assert torch.equal(first_highest(scores), scores.argmax(dim=1))


@pytest.fixture
def vocabulary():
    """A matrix to 9,000 tokens (9,000, 64), of rows of uneven lengths."""
    return torch.randn(9000, 64) * torch.rand(9000, 1)


class Screened:
    """A `ScreenedMostLikely` that counts the rows that got all their logits."""

    def __init__(self, weight):
        self.rows = 0
        self.find = ScreenedMostLikely(weight, self.head)
        self.weight = weight

    def head(self, states):
        self.rows += len(states)
        return states @ self.weight.T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_tokens_that_stand_out_are_found_without_all_logits(vocabulary, dtype, scale):
    weight = vocabulary.to(dtype)
    tokens = vocabulary.norm(dim=1).topk(100).indices
    states = (scale * vocabulary[tokens] + 0.2 * scale * torch.randn(100, 64)).to(dtype)
    screened = Screened(weight)
    assert torch.equal(screened.find(states), (states.double() @ weight.double().T).argmax(dim=1))
    assert screened.rows < 10


def test_tokens_that_hardly_stand_out_are_found_by_all_logits(vocabulary):
    close = vocabulary[:1] + 1e-4 * torch.randn(9000, 64)
    screened = Screened(close)
    states = torch.randn(100, 64)
    assert torch.equal(screened.find(states), (states @ close.T).argmax(dim=1))
    assert screened.rows == 100


def test_of_equal_logits_the_first_counts(vocabulary):
    vocabulary[7000] = vocabulary[40] = vocabulary[4000] = 9.0
    assert Screened(vocabulary).find(torch.ones(1, 64)).tolist() == [40]


@pytest.mark.parametrize("count, rows", [(CANDIDATES[0] + 3, 0), (CANDIDATES[-1] + 3, 1)])
def test_more_equal_tokens_than_candidates(vocabulary, count, rows):
    vocabulary[20 + torch.arange(count) * 100] = 9.0
    screened = Screened(vocabulary)
    states = torch.ones(3, 64)
    states[::2] = vocabulary[vocabulary.norm(dim=1).topk(count + 2).indices[-2:]]
    found = screened.find(states)
    assert found[1] % 100 == 20 and screened.rows == rows
    assert torch.equal(found[::2], (states[::2] @ vocabulary.T).argmax(dim=1))


def test_states_that_are_not_numbers_get_all_logits(vocabulary):
    screened = Screened(vocabulary)
    screened.find(torch.tensor([[math.nan], [math.inf], [0.0]]).expand(-1, 64))
    assert screened.rows == 3


def test_autocast_does_not_round_the_candidates(vocabulary):
    tokens = vocabulary.norm(dim=1).topk(50).indices
    weight = vocabulary.clone()
    weight[tokens.roll(1)] = vocabulary[tokens] * 0.999  # bfloat16 could not tell them apart
    states = vocabulary[tokens]
    with torch.autocast("cpu", torch.bfloat16):
        found = ScreenedMostLikely(weight, lambda states: 1 / 0)(states)
    assert torch.equal(found, (states @ weight.T).argmax(dim=1))


def test_few_rows_and_many_have_a_kernel_each_but_a_batch_keeps_its_own(vocabulary, monkeypatch):
    if not has_rounding_product():  # the choice is the same with a plain product in its place
        monkeypatch.setattr(candidates, "has_rounding_product", lambda: True)
        plain = lambda weight, steps: lambda rows: (LARGEST * rows).round() @ weight.float().T * steps  # noqa: E731
        monkeypatch.setattr(candidates, "rounding_product", plain)
    whole = torch.randint(-127, 128, (FEW_CANDIDATES + 1, 64)).float()
    first, second = (ScreenedMostLikely(vocabulary, lambda states: 1 / 0) for _ in range(2))
    found = first.rough_logits(whole)
    torch.testing.assert_close(second.rough_logits(whole[:FEW_CANDIDATES]), found[:FEW_CANDIDATES], rtol=1e-6, atol=0)
    torch.testing.assert_close(second.rough_logits(whole), found, rtol=1e-6, atol=0)  # packed again
    assert "_of_few" in vars(second) and "_of_many" in vars(second)
    first.rough_logits(whole[:1])
    assert "_of_few" not in vars(first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_int8_loses_is_less_than_the_bound(vocabulary, dtype, monkeypatch):
    """Whatever is left out has a lower logit, even if the others' logits were lost by the whole bound."""
    weight, states = vocabulary.to(dtype), (torch.randn(200, 64) * torch.rand(200, 1) * 10).to(dtype)
    screened = ScreenedMostLikely(weight, lambda states: states @ weight.T)
    whole, step = candidates.rounded(states)
    lost = screened.rough_logits(whole) * step - states.double() @ weight.double().T
    near = whole * step
    bound = screened.norm * (states - near).norm(dim=1) + screened.loss * near.norm(dim=1)
    assert (lost.abs().amax(dim=1) < bound).all()
    assert (bound < 0.05 * screened.norm * states.float().norm(dim=1)).all()  # and of use


@pytest.mark.parametrize("change", ["small", "a bias", "something around it", "no int8"])
def test_a_search_by_int8_is_for_plain_and_large_matrices(tiny_model, monkeypatch, change):
    for size in ("LARGE_MAP", "LARGE_FOR_MANY"):
        monkeypatch.setattr(packed_weights, size, 2**30 if change == "small" else 0)
    if change == "no int8":
        monkeypatch.setattr(packed_weights, "fast_product", lambda: None)
    model = tiny_model(vocab_size=8300, output_bias=change == "a bias")
    if change == "something around it":
        model.lm_head = nn.Sequential(model.lm_head)
    assert not isinstance(StepWeights(model).most_likely, ScreenedMostLikely)


@pytest.mark.skipif(not has_fbgemm(), reason="needs FBGEMM")
def test_with_products_of_halves_only_few_rows_are_searched_by_int8(tiny_model, monkeypatch):
    monkeypatch.setattr(packed_weights, "LARGE_MAP", 0)
    for module in (candidates, packed_weights):
        monkeypatch.setattr(module, "fast_product", lambda: product_of_halves)
    calls, find = [], ScreenedMostLikely.__call__
    monkeypatch.setattr(
        ScreenedMostLikely, "__call__", lambda self, states: calls.append(len(states)) or find(self, states)
    )
    model = tiny_model(vocab_size=8300)
    search, most = StepWeights(model).most_likely, packed_weights.MOST_HALVES
    for rows in (1, most, most + 1):
        states = torch.randn(rows, model.config.d_model)
        assert torch.equal(search(states), (states @ model.lm_head.weight.T).argmax(dim=1))
    assert calls == [1, most]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_search_by_int8_finds_what_transformers_does(tiny_model, monkeypatch, dtype):
    monkeypatch.setattr(packed_weights, "LARGE_MAP", 0)
    model = tiny_model(vocab_size=8300).to(dtype)
    if not packed_weights.is_packable(model.lm_head.weight):
        pytest.skip("torch has no oneDNN here")
    calls = []
    find = ScreenedMostLikely.__call__
    monkeypatch.setattr(ScreenedMostLikely, "__call__", lambda self, states: calls.append(1) or find(self, states))
    source = {"input_ids": torch.randint(5, 8300, (6, 9))}
    ours = model.generate(**source, max_new_tokens=12)
    assert calls
    logits = model(**source, decoder_input_ids=ours[:, :-1]).logits
    best = logits.argmax(dim=-1)
    unfinished = (ours[:, :-1] != model.config.eos_token_id).long().cumprod(dim=1).bool()
    assert (best == ours[:, 1:])[unfinished].all()


@pytest.mark.parametrize(
    "rows, dtype, is_used", [(16, "float32", True), (15, "float32", False), (16, "bfloat16", False)]
)
def test_smaller_matrices_are_searched_by_int8_for_many_rows(tiny_model, monkeypatch, rows, dtype, is_used):
    monkeypatch.setattr(packed_weights, "LARGE_FOR_MANY", 0)
    calls, find = [], ScreenedMostLikely.__call__
    monkeypatch.setattr(ScreenedMostLikely, "__call__", lambda self, states: calls.append(1) or find(self, states))
    model = tiny_model(vocab_size=8300).to(getattr(torch, dtype))
    states = torch.randn(rows, model.config.d_model, dtype=model.dtype)
    found = StepWeights(model).most_likely(states)
    assert torch.equal(found, model.lm_head(states).argmax(dim=1))
    assert bool(calls) == is_used


def test_most_likely_is_argmax(vocabulary):
    states = torch.randn(7, 64)
    assert torch.equal(
        most_likely(lambda states: states @ vocabulary.T)(states), (states @ vocabulary.T).argmax(dim=1)
    )
