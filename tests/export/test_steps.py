"""ONNX Runtime and torch.export compute and translate as the model does, for every switch."""

import json
import os
import subprocess
import sys
import zipfile

import pytest
import torch

from vanilla_transformer_hf.export import ExportError
from vanilla_transformer_hf.export.export import engine_called, export_for
from vanilla_transformer_hf.export.steps import ENCODER, FIRST_STEP, NEXT_STEP, trace


# The paper's values of all switches, and others.
MODELS = {
    "paper": {"decoder_layers": 2},
    "others": {
        **{"encoder_norm_position": "pre", "decoder_norm_position": "pre", "encoder_final_norm": False},
        **{"position_encoding": "learned", "decoder_position_encoding": "sinusoidal_halves_inclusive"},
        **{"position_offset": 2, "decoder_max_position_embeddings": 48, "embedding_sharing": "none"},
        **{"source_vocab_size": 70, "encoder_d_model": 48, "encoder_attention_heads": 2, "d_k": 5, "d_v": 12},
        **{"layernorm_embedding": True, "scale_embedding": False, "encoder_residual_alpha": 1.5},
        **{"decoder_residual_alpha": 0.8, "attention_bias": True, "feed_forward_bias": False, "output_bias": True},
        **{"activation_function": "gelu", "decoder_activation_function": "silu", "feed_forward_type": "gated"},
        **{"layer_norm_eps": 1e-3, "eos_token_id": [1, 5], "decoder_start_token_id": 1},
    },
    "shared": {
        **{"decoder_layers": 3, "decoder_layer_sets": 2, "layer_sharing": "cycle", "encoder_layer_sets": 1},
        **{"projection_sharing": "query_key", "decoder_attention_sharing": True, "feed_forward_sharing": "all"},
        # Other building blocks than the paper's, which do not depend on those.
        **{"position_encoding": "t5_bias", "decoder_position_encoding": "rotary", "relative_buckets": 8},
        **{"norm_type": "rms_norm", "feed_forward_type": "gated", "activation_function": "silu"},
        "decoder_activation_function": "silu",
    },
    "related": {
        **{"position_encoding": "alibi", "decoder_position_encoding": "shaw", "max_relative_distance": 3},
        "norm_type": "rms_norm_author",
    },
    "gated": {"position_encoding": "distance_mlp", "decoder_position_encoding": "gated_alibi"},
    "hierarchical": {
        **{"position_encoding": "hierarchical", "decoder_position_encoding": "distance_mlp"},
        "max_position_embeddings": 16,
    },
}


def check_onnx_names(folder, model):
    """Files, inputs, outputs and their dimensions are called as in optimum's exports; nothing names our folders."""
    onnx = pytest.importorskip("onnx")
    layers = range(model.config.decoder_layers)
    cache = [f"{{}}.{layer}.{side}.{what}" for layer in layers for side in ("decoder", "encoder") for what in KINDS]
    grown = [name.format("present") for name in cache]
    expected = {
        ENCODER: (["input_ids", "attention_mask"], ["last_hidden_state"]),
        FIRST_STEP: (["input_ids", "encoder_attention_mask", "encoder_hidden_states"], ["logits", *grown]),
        NEXT_STEP: (
            ["input_ids", "encoder_attention_mask", *[name.format("past_key_values") for name in cache]],
            ["logits", *[name for name in grown if ".decoder." in name]],
        ),
    }
    for step, names in expected.items():
        content = (folder / f"{step}.onnx").read_bytes()
        assert b".py" not in content and b"Transformer" not in content
        graph = onnx.load_model_from_string(content).graph
        onnx.checker.check_model(onnx.load_model_from_string(content), full_check=True)
        assert tuple([value.name for value in values] for values in (graph.input, graph.output)) == names
        ids = [dimension.dim_param for dimension in graph.input[0].type.tensor_type.shape.dim]
        assert ids == ["batch_size", f"{'encoder' if step == ENCODER else 'decoder'}_sequence_length"]


def check_programs_need_torch_alone(folder, model):
    """They run without transformers and without us; nothing in them names our folders."""
    for path in folder.glob("*.pt2"):
        with zipfile.ZipFile(path) as archive:
            assert not [name for name in archive.namelist() if name.endswith(".json") and b".py" in archive.read(name)]
    code = """
import sys, torch
sys.modules["transformers"] = sys.modules["vanilla_transformer_hf"] = None
ids = torch.tensor([[4, 5, 1]])
program = torch.export.load(sys.argv[1]).module()
print(program(input_ids=ids, attention_mask=torch.ones_like(ids)).tolist())
"""
    command = [sys.executable, "-c", code, str(folder / f"{ENCODER}.pt2")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    expected = model.model.encoder(torch.tensor([[4, 5, 1]])).last_hidden_state
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), expected, atol=1e-5, rtol=0)


KINDS = ("key", "value")
ENGINES = {"onnx": check_onnx_names, "torch_export": check_programs_need_torch_alone}


@pytest.mark.parametrize("switches", MODELS.values(), ids=MODELS)
@pytest.mark.slow
def test_logits_and_translations_are_the_models(switches, save_model, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="pip install '.[export]'")
    model, folder = save_model(**switches)
    traced = trace(model)  # half of what takes time; the engines would each do it
    source = torch.randint(3, 70, (4, 9))
    mask = torch.ones_like(source)
    mask[1, 5:] = mask[2, :3] = 0
    searches = [{"num_beams": 1}, {"num_beams": 3, "length_penalty": 0.6}]
    expected = [model.generate(source, attention_mask=mask, max_new_tokens=12, **search) for search in searches]
    for name, check_files in ENGINES.items():
        module = engine_called(name)
        monkeypatch.setattr(module, "trace", lambda model: traced)
        done = export_for(name, folder, tmp_path / name)
        assert done.difference < 1e-5 and done.notes == []
        there = module.open_model(tmp_path / name)
        assert torch.equal(there.generate(source, max_new_tokens=3), model.generate(source, max_new_tokens=3))
        for search, ids in zip(searches, expected):
            assert torch.equal(there.generate(source, attention_mask=mask, max_new_tokens=12, **search), ids)
        check_files(tmp_path / name, model)
    assert model.config._attn_implementation == "sdpa", "tracing leaves the model as it was"


@pytest.mark.parametrize("name", ENGINES)
def test_what_gives_other_logits_is_not_kept(name, save_model, tmp_path, monkeypatch):
    module = pytest.importorskip(f"vanilla_transformer_hf.export.{name}")
    _, folder = save_model()
    written = []

    def wrong(opened, batch):
        written.extend(path.name for path in tmp_path.glob(".out.unfinished/*"))
        return torch.zeros(*batch["decoder_input_ids"].shape, 99)

    monkeypatch.setattr(module, "trace", lambda model: {})  # the graphs are not what this is about
    monkeypatch.setattr(module, "open_model", lambda place: None)
    monkeypatch.setattr(module, "logits_by_steps", wrong)
    with pytest.raises(ExportError, match=r"what was written gives logits that differ by .*; 1e-04 is allowed"):
        export_for(name, folder, tmp_path / "out")
    assert "config.json" in written
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
