"""Two fields of a config that differ from the paper are refused together, or make a model that trains and searches."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from host_search import HostSearch

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer_hf.model.config.attention_kinds import ATTENTION_KINDS
from vanilla_transformer_hf.model.config.position_schemes import POSITION_SCHEMES


SIZES = {"vocab_size": 29, "max_position_embeddings": 64, "decoder_start_token_id": 2}
SIZES |= {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
OTHERS = {
    **{"source_vocab_size": [23], "encoder_d_model": [24], "encoder_layers": [1], "decoder_layers": [3]},
    **{"encoder_attention_heads": [4], "decoder_attention_heads": [4], "encoder_ffn_dim": [24], "d_k": [4]},
    "d_v": [4],
    **{"activation_function": ["gelu"], "decoder_activation_function": ["silu"], "feed_forward_type": ["gated"]},
    **{"type_vocab_size": [3], "scale_embedding": [False], "layernorm_embedding": [True]},
    **{"embedding_sharing": ["decoder", "none"], "position_encoding": POSITION_SCHEMES, "position_offset": [2]},
    **{"decoder_position_encoding": POSITION_SCHEMES, "decoder_max_position_embeddings": [40]},
    **{"encoder_attention_type": ATTENTION_KINDS, "decoder_attention_type": ATTENTION_KINDS},
    **{"cross_attention_type": ["linformer"], "attention_score": ["dot", "additive"]},
    **{"encoder_norm_position": ["pre"], "decoder_norm_position": ["pre"], "decoder_final_norm": [True]},
    **{"norm_type": ["rms_norm", "batch_norm"], "decoder_residual_alpha": [1.5], "attention_bias": [True]},
    **{"feed_forward_bias": [False], "output_bias": [True], "eos_token_id": [[1, 3]], "pad_token_id": [4]},
    **{"tie_word_embeddings": [False], "use_cache": [False], "encoder_layer_sets": [1], "decoder_layer_sets": [1]},
    **{"feed_forward_sharing": ["stack", "all", "encoder_only"], "decoder_attention_sharing": [True]},
    **{"projection_sharing": ["key_value", "query_key", "query_key_value"], "encoder_pooling": [[1]]},
    **{"encoder_heads_by_layer": [[1, 2]], "decoder_heads_by_layer": [[2, 1]], "cross_heads_by_layer": [[1, 1]]},
}
CHOICES = [(name, value) for name, values in OTHERS.items() for value in values]
# The other thousands take ten minutes; the draw is the same each time.
PAIRS = random.Random(0).sample([*itertools.combinations(CHOICES, 2)], k=400)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_two_fields_together(part):
    made = [check(dict(pair)) for pair in PAIRS[part::4] if pair[0][0] != pair[1][0]]
    assert sum(made) > len(made) / 2, "most are possible"


def check(fields):
    """Whether there is such a model; the loss has gradients, and the search finds what transformers' loops find."""
    try:
        config = VanillaTransformerConfig(**SIZES | fields)
    except ValueError as error:
        named = [*fields, "source vocabulary", "position encoding"]
        assert any(name in str(error) for name in named), f"{fields}: {error}"
        return False
    torch.manual_seed(0)
    model, host = VanillaTransformerForConditionalGeneration(config), HostSearch(config).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    pad = config.pad_token_id
    ids = torch.tensor([[7, 8, 9, 10, 11, 12, 1], [7, 6, 1, pad, pad, pad, pad]])
    source = {"input_ids": ids, "attention_mask": (ids != pad).long()}
    labels = torch.randint(6, 20, (2, 5))
    model(**source, labels=labels).loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()), fields
    host.load_state_dict(model.eval().state_dict())
    with torch.no_grad():
        whole = model(**source, decoder_input_ids=labels).logits[1]
        alone = model(input_ids=ids[1:, :3], decoder_input_ids=labels[1:]).logits[0]
    bound = 1e-5 * float(whole.abs().max())  # norms over batches that have seen one batch give large ones
    torch.testing.assert_close(whole, alone, atol=bound, rtol=0, msg=lambda text: f"{fields}, padding: {text}")
    for beams in (1, 3):
        found, expected = (each.generate(**source, num_beams=beams, max_new_tokens=6) for each in (model, host))
        longest = max(found.shape[1], expected.shape[1])
        found, expected = (F.pad(each, (0, longest - each.shape[1]), value=pad) for each in (found, expected))
        assert torch.equal(found, expected), f"{fields}, {beams} beams"
    return True
