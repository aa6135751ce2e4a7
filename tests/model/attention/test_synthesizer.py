"""Synthesizer attention by its equations."""

import pytest
import torch

from vanilla_transformer_hf import VanillaTransformerConfig
from vanilla_transformer_hf.model.modeling_vanilla_transformer import ATTENTION_TYPES


KINDS = ["synthesizer_dense", "synthesizer_random"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def fields_of(kind):
    return {"encoder_attention_type": kind, "decoder_attention_type": kind, "max_position_embeddings": 24}


@every_kind
@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@torch.no_grad()
def test_outputs_are_those_of_the_equations(kind, is_causal):
    config = VanillaTransformerConfig(d_model=16, encoder_attention_heads=2, **fields_of(kind))
    config._attn_implementation = "sdpa"
    ours = ATTENTION_TYPES[kind](config, 16, 16, 2, is_causal).double()
    states = torch.randn(2, 9, 16, dtype=torch.double)
    real = torch.ones(2, 9, dtype=torch.long)
    real[1, :3] = 0
    found, weights = ours(states, ours.mask(states, real, None, False))
    for row, start in ((0, 0), (1, 3)):
        for i in range(start, 9):
            outputs = []
            for head in range(2):
                if kind == "synthesizer_dense":
                    features = (ours.q_proj.weight[8 * head : 8 * head + 8] @ states[row, i]).clamp(min=0)
                    scores = ours.position_scores[head].t() @ features
                else:
                    scores = ours.position_scores[head, i - start]
                seen = range(start, i + 1 if is_causal else 9)
                shares = torch.stack([scores[j - start] for j in seen]).softmax(dim=0)
                torch.testing.assert_close(weights[row, head, i, list(seen)], shares, atol=1e-10, rtol=0)
                values = [ours.v_proj.weight[8 * head : 8 * head + 8] @ states[row, j] for j in seen]
                outputs.append(sum(share * value for share, value in zip(shares, values)))
            expected = ours.out_proj.weight @ torch.cat(outputs)
            torch.testing.assert_close(found[row, i], expected, atol=1e-10, rtol=0)


@every_kind
def test_there_are_no_more_positions_than_weights(kind, tiny_model):
    model, ids = tiny_model(**fields_of(kind)), torch.ones(1, 3, dtype=torch.long)
    assert model.generate(ids, max_new_tokens=40, min_new_tokens=20).shape[1] <= 25
    with pytest.raises(ValueError, match="25 positions, and Synthesizer attention has max_position_embeddings=24"):
        model(torch.ones(1, 25, dtype=torch.long), decoder_input_ids=ids)
