"""Synthesizer attention by its equations."""

import pytest
import torch
import torch.nn.functional as F
from host_search import same
from huggingface_hub.errors import StrictDataclassError

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
@torch.no_grad()
def test_padding_the_future_and_search(kind, tiny_model):
    model = tiny_model(**fields_of(kind))
    source, target = torch.randint(4, 99, (1, 10)), torch.randint(4, 99, (1, 13))
    expected = model(source, decoder_input_ids=target).logits
    other = target.clone()
    other[:, 6:] = torch.randint(4, 99, (1, 7))
    found = model(source, decoder_input_ids=other).logits[:, :6]
    torch.testing.assert_close(found, expected[:, :6], atol=1e-6, rtol=0)
    for left, right in ((4, 0), (0, 5)):
        real, own = (F.pad(torch.ones_like(ids), (left, right)) for ids in (source, target))
        targets = {"decoder_input_ids": F.pad(target, (left, right)), "decoder_attention_mask": own}
        found = model(F.pad(source, (left, right)), real, **targets).logits[:, left : left + 13]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    memory, cache = model.get_encoder()(source), None
    for place in range(13):
        step = {"decoder_input_ids": target[:, place : place + 1], "past_key_values": cache, "use_cache": True}
        outputs = model(encoder_outputs=memory, **step)
        cache = outputs.past_key_values
        torch.testing.assert_close(outputs.logits[:, 0], expected[:, place], atol=2e-5, rtol=0)
    sources = {"input_ids": torch.randint(4, 99, (2, 9))}
    same(model, sources, num_beams=2, max_new_tokens=9)
    static = {"cache_implementation": "static", "disable_compile": True}
    with pytest.raises(ValueError, match="leave cache_implementation out"):
        model.generate(**sources, num_beams=2, max_new_tokens=9, **static)
    assert model.generate(**sources, max_new_tokens=40, min_new_tokens=20).shape[1] <= 25  # and no more positions


@every_kind
def test_what_it_cannot_do_is_refused(kind, tiny_model):
    with pytest.raises(
        StrictDataclassError, match="with projection_sharing='key_value': it has no projection of keys"
    ):
        VanillaTransformerConfig(**fields_of(kind), projection_sharing="key_value")
    with pytest.raises(StrictDataclassError, match="with decoder_attention_sharing=True: it has no projection"):
        VanillaTransformerConfig(**fields_of(kind), decoder_attention_sharing=True)
    with pytest.raises(StrictDataclassError, match="with decoder_heads_by_layer: its parameters belong to heads"):
        VanillaTransformerConfig(decoder_attention_type=kind, decoder_heads_by_layer=[8] * 6)
    ids = torch.ones(1, 3, dtype=torch.long)
    model = tiny_model(**fields_of(kind))
    with pytest.raises(ValueError, match="25 positions, and Synthesizer attention has max_position_embeddings=24"):
        model(torch.ones(1, 25, dtype=torch.long), decoder_input_ids=ids)
    with pytest.raises(ValueError, match=r"attention_mask of shape \(1, 1, 3, 3\): Synthesizer attention takes one"):
        model(ids, torch.ones(1, 1, 3, 3), decoder_input_ids=ids)
