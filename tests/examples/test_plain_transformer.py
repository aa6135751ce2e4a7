"""The plain Transformer of examples/: it computes what the model computes, from the same saved folder, or refuses."""

import ast
import json
import sys

import pytest
import torch
from hub_server import ROOT
from plain_transformer import build, main
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration


TRAINED = ROOT / "model_cards" / "multi30k_raw_en_de"
SENTENCES = [
    "A brown dog is running through the snow.",
    "A man in a red shirt is riding a bicycle down the street.",
    "Three young men are playing soccer on a green field.",
]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"d_k": 6, "d_v": 10},
        {"decoder_layers": 3, "decoder_attention_heads": 8, "encoder_ffn_dim": 48},
        {"layer_norm_eps": 0.01, "decoder_start_token_id": 7, "eos_token_id": [1, 5]},
    ],
    ids=str,
)
def test_a_small_model_gives_the_same_logits_and_translations(fields, tiny_model, batch):
    ours = tiny_model(**fields).double()
    plain = build(ours.config.to_dict(), ours.state_dict()).double()
    source, target, mask = batch["input_ids"], batch["decoder_input_ids"], batch["attention_mask"]
    with torch.no_grad():
        expected = ours(source, mask, decoder_input_ids=target).logits
        torch.testing.assert_close(plain(source, target), expected, atol=1e-10, rtol=0)
    expected = ours.generate(source, attention_mask=mask, num_beams=1, max_new_tokens=9)
    assert plain.translate(source, max_new_tokens=9).tolist() == expected.tolist()


def test_a_saved_folder_gives_the_same_logits_and_translations():
    fields = json.loads((TRAINED / "config.json").read_text(encoding="utf-8"))
    plain = build(fields, load_file(TRAINED / "model.safetensors"))
    ours = AutoModelForSeq2SeqLM.from_pretrained(TRAINED, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TRAINED)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    expected = ours.generate(**batch, num_beams=1, max_new_tokens=30)
    assert plain.translate(batch["input_ids"], max_new_tokens=30).tolist() == expected.tolist()
    with torch.no_grad():  # in float64: the order of sums, which each CPU chooses, is no difference of equations
        logits = ours.double()(**batch, decoder_input_ids=expected).logits
        torch.testing.assert_close(plain.double()(batch["input_ids"], expected), logits, atol=1e-10, rtol=0)
    assert main(TRAINED, SENTENCES[0]) == tokenizer.decode(expected[0], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"encoder_norm_position": "pre"}, "encoder_norm_position='pre': this file has only the paper's 'post'"),
        ({"decoder_position_encoding": "alibi"}, "decoder_position_encoding='alibi'"),
        ({"encoder_attention_type": "window"}, "encoder_attention_type='window'"),
        ({"decoder_attention_type": "performer"}, "decoder_attention_type='performer'"),
        ({"encoder_pooling": [1]}, r"encoder_pooling=\[1\]"),
        ({"cross_attention_type": "linformer"}, "weights"),
        ({"attention_bias": True}, "unexpected or missing keys.*: decoder.layers.0.encoder_attn.k_proj.bias"),
        ({"embedding_sharing": "decoder"}, "weights.*: shared.weight"),
        ({"tie_word_embeddings": False}, "weights.*: shared.weight"),
        ({"encoder_heads_by_layer": [4, 2], "d_k": 8, "d_v": 8}, "another shape: encoder.layers.1.self_attn.k_proj"),
    ],
    ids=str,
)
def test_another_model_is_refused(fields, reason, tiny_config):
    model = VanillaTransformerForConditionalGeneration(tiny_config(**fields))
    with pytest.raises(ValueError, match=reason):
        build(model.config.to_dict(), model.state_dict())


def test_it_imports_neither_transformers_nor_this_package():
    tree = ast.parse((ROOT / "examples" / "plain_transformer.py").read_text(encoding="utf-8"))
    names = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"torch", "safetensors", "tokenizers"}
