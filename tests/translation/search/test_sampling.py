"""`SampledToken` draws from the distribution of the scores."""

import pytest
import torch

from vanilla_transformer_hf.translation.search.sampling import SampledToken


SCORES = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
ROWS = SCORES.expand(20_000, -1)


def frequencies(processor):
    torch.manual_seed(0)
    drawn = processor(None, ROWS).argmax(dim=-1)
    return torch.bincount(drawn, minlength=4) / len(ROWS)


@pytest.mark.parametrize("temperature", [None, 0.5, 2.0])
def test_tokens_are_as_frequent_as_they_are_likely(temperature):
    expected = (SCORES / (temperature or 1)).softmax(dim=-1)
    torch.testing.assert_close(frequencies(SampledToken(temperature)), expected, atol=0.01, rtol=0)


def test_only_the_most_likely_ones_are_drawn():
    torch.testing.assert_close(
        frequencies(SampledToken(top_k=2)), torch.tensor([0.625, 0.375, 0, 0]), atol=0.01, rtol=0
    )
    assert frequencies(SampledToken(top_k=1))[0] == 1
    torch.testing.assert_close(frequencies(SampledToken(top_k=9)), frequencies(SampledToken()))


def test_tokens_without_probability_are_never_drawn():
    scores = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(1000, -1)
    assert SampledToken()(None, scores).argmax(dim=-1).eq(1).all()


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"top_k": -1}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="="):
        SampledToken(**wrong)
