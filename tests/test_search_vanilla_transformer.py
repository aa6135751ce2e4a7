"""Parts of the search by themselves; test_generation_vanilla_transformer.py has the searches against transformers'."""

import math

import pytest
import torch

from vanilla_transformer_hf.search_vanilla_transformer import best_candidates


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("width", [17, 8192, 8200, 37_000])
def test_best_candidates_are_those_of_a_full_search(width, count):
    scores = torch.randn(5, width)
    scores[0, -3:] = 9.0 + torch.rand(3)  # behind the last whole group
    scores[1, : width // 2] = -math.inf
    values, places = best_candidates(scores, count)
    assert torch.equal(values, scores.topk(count).values)
    assert torch.equal(scores.gather(1, places), values)
