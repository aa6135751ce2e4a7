"""
Scores of queries and keys: `attention_score`. The equations are in `tests/reference.py`, for every switch at once.
"""

import torch
from torch import nn

from vanilla_transformer_hf.export.ctranslate2 import problems
from vanilla_transformer_hf.model.attention.additive import AdditiveAttention
from vanilla_transformer_hf.recurrent.attention import BahdanauAttention, Source
from vanilla_transformer_hf.recurrent.configuration import RecurrentSeq2SeqConfig


ADDITIVE = {"attention_score": "additive"}


def test_equals_the_attention_of_the_recurrent_models(tiny_config):
    """Bahdanau et al. 2015, appendix A.1.2, which the recurrent decoder has, with either mask."""
    theirs = BahdanauAttention(RecurrentSeq2SeqConfig(vocab_size=9, d_model=8)).eval()
    nn.init.zeros_(theirs.query.bias)
    states, memory = torch.randn(2, 1, 8), torch.randn(2, 5, 8)
    is_token = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    context, weights = theirs.before(states, states, Source(memory, theirs.keys(memory), is_token))
    query, key, value = (each[:, None] for each in (theirs.query(states), theirs.keys(memory), memory))
    seen = is_token[:, None, None]
    ours = AdditiveAttention(tiny_config(**ADDITIVE), width=8, key_value_width=8, num_heads=1).eval()
    ours.score_vector, ours.out_proj = nn.Parameter(theirs.score.weight), nn.Identity()
    for mask in (seen, torch.zeros(2, 1, 1, 5).masked_fill(~seen, torch.finfo(torch.float32).min)):
        found, its = ours.attend(query, key, value=value, attention_mask=mask)
        torch.testing.assert_close(its[:, 0], weights)
        torch.testing.assert_close(found, context)


def test_a_saved_config_names_it_only_where_it_is_another(tiny_config):
    assert "attention_score" not in tiny_config().to_dict()
    assert tiny_config(**ADDITIVE).to_dict()["attention_score"] == "additive"
    assert problems(tiny_config(attention_score="dot")) == [], "CTranslate2 is told the scale"
    assert "attention_score='additive': must be 'scaled_dot' or 'dot'" in problems(tiny_config(**ADDITIVE))
