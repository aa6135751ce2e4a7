"""
Every variant where models are used: positions of one's own, bfloat16, gradient checkpointing, adapters,
compiled and exported. Equations, caches, padding, backends, saving and search are shown for each of them in
test_modeling_vanilla_transformer.py and search/test_generate.py.
"""

import copy
import os
import shutil
import subprocess
import sys

import pytest
import torch
from host_search import host
from torch import nn

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.model.config.position_schemes import POSITION_SCHEMES


PRE = {"encoder_norm_position": "pre", "decoder_norm_position": "pre"}
# Each row in one stack or in both, with norms before or after the sub-layers.
VARIANTS = {
    "paper": {},
    "rotary": {"position_encoding": "rotary", **PRE},
    "rotary_halves": {"decoder_position_encoding": "rotary_halves", "rotary_fraction": 0.5},
    "shaw": {"position_encoding": "shaw", "max_relative_distance": 3},
    "t5_bias": {"position_encoding": "t5_bias", "relative_buckets": 8, "max_relative_distance": 6, **PRE},
    "alibi": {"position_encoding": "alibi"},
    "gated_alibi": {"position_encoding": "gated_alibi"},
    "distance_mlp": {"position_encoding": "distance_mlp", **PRE},
    "hierarchical": {"position_encoding": "hierarchical", "max_position_embeddings": 6},
    "rms_norm": {"norm_type": "rms_norm"},
    "rms_norm_author": {"norm_type": "rms_norm_author", **PRE},
    "dot": {"attention_score": "dot"},
    "additive": {"attention_score": "additive", **PRE},
    "no_residual": {"encoder_residual_alpha": 0, "decoder_residual_alpha": 0},
    "swiglu": {"feed_forward_type": "gated", "activation_function": "silu"},
    "segments": {"type_vocab_size": 2},
    "window": {"encoder_attention_type": "window", "decoder_attention_type": "window", "attention_window": 2},
    "window_global": {
        "encoder_attention_type": "window_global",
        "decoder_attention_type": "window_global",
        "attention_window": 2,
        **PRE,
    },
    "linformer": {
        "encoder_attention_type": "linformer",
        "cross_attention_type": "linformer",
        "linformer_k": 3,
        "max_position_embeddings": 7,
        **PRE,
    },
    "pooling": {"encoder_pooling": [1], **PRE},
    "pooling_post": {"encoder_pooling": [1]},
    "lsh": {"encoder_attention_type": "lsh", "decoder_attention_type": "lsh", "lsh_buckets": 2, "lsh_chunk": 3},
    "recurrent": {"decoder_attention_type": "recurrent", "decoder_position_encoding": "none", "memory_length": 3},
    "performer": {"encoder_attention_type": "performer", "decoder_attention_type": "performer"},
    "synthesizers": {
        "encoder_attention_type": "synthesizer_dense",
        "decoder_attention_type": "synthesizer_random",
        "max_position_embeddings": 7,
        **PRE,
    },
    "blocks": {"encoder_attention_type": "blocks", "decoder_attention_type": "blocks", "attention_block": 2, **PRE},
}
every_variant = pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture
def variant(tiny_model, batch):
    """`variant(fields)`: a model, and a batch that has segments where the model has some."""

    def build(fields, **more):
        model = tiny_model(**fields, **more)
        if model.config.type_vocab_size:
            batch["token_type_ids"] = (torch.arange(7) > 2).long().expand(2, -1)
        return model, batch

    return build


def real(batch):
    """Where logits count: the real target positions."""
    return batch["decoder_attention_mask"].bool()


@every_variant
@torch.no_grad()
def test_positions_that_are_given_are_those_that_are_counted(fields, variant):
    """Moved by 5, relative ones say the same; what is added to the embeddings says something else."""
    model, batch = variant(fields)
    expected = model(**batch).logits[real(batch)]
    for side, scheme in (("", model.config.position_encoding), ("decoder_", model.config.decoder_position_encoding)):
        counted = batch[f"{side}attention_mask"].cumsum(1) - 1
        for shift in (0, 5):
            found = model(**batch, **{f"{side}position_ids": counted + shift}).logits[real(batch)]
            # Without residuals all rows of a source become alike, and they are all that is left in the decoder.
            is_forgotten = side == "decoder_" and model.config.decoder_residual_alpha == 0
            if shift and scheme in ("sinusoidal", "hierarchical"):
                assert is_forgotten or not torch.allclose(found, expected, atol=1e-3)
            else:
                torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


@every_variant
@torch.no_grad()
def test_bfloat16(fields, variant):
    """Logits near those of float32; the tokens that the search takes are as good as the best."""
    model, batch = variant(fields)
    exact = model(**batch).logits[real(batch)]
    half = copy.deepcopy(model).bfloat16()
    found = half(**batch).logits[real(batch)].float()
    assert (found - exact).abs().max() < 0.15
    source = {name: value for name, value in batch.items() if "decoder" not in name}
    ours = half.generate(**source, max_new_tokens=6, min_new_tokens=6)
    logits = model(**source, decoder_input_ids=ours[:, :-1]).logits
    logits[..., model.config.eos_token_id] = -torch.inf
    taken = logits.gather(-1, ours[:, 1:, None])[..., 0]
    assert (logits.amax(dim=-1) - taken).max() < 2 * 0.15


@every_variant
def test_gradients_reach_every_weight_and_checkpointing_changes_none(fields, variant):
    """Nor does the older kind of it, which follows the arguments of a layer that are given by position."""
    model, batch = variant(fields, dropout=0.0)
    labels, gradients = torch.randint(3, 90, (2, 6)), []
    for reentrant in (None, False, True):
        if reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.train().zero_grad()
        model(**batch, labels=labels).loss.backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        for checkpointed in gradients[1:]:
            torch.testing.assert_close(checkpointed[name], gradient, msg=name)
        assert gradient.any(), f"{name} plays no part"


@pytest.mark.parametrize("fields", [VARIANTS["alibi"], {"decoder_position_encoding": "shaw"}], ids=str)
def test_kernels_that_cannot_add_scores_are_refused_when_a_model_is_made(fields, tiny_config):
    config = tiny_config(**fields)
    config._attn_implementation = "flex_attention"
    name = next(name for name in ("decoder_position_encoding", "position_encoding") if name in fields)
    message = f"attn_implementation='flex_attention' with {name}='.*set attn_implementation to 'eager' or 'sdpa'"
    with pytest.raises(ValueError, match=message):
        VanillaTransformerForConditionalGeneration(config)


CACHES = {
    "static": {"cache_implementation": "static", "disable_compile": True},
    "quantized": {
        "cache_implementation": "quantized",
        # Nothing is quantized before so many tokens: keys that carry features of their scheme go in and out.
        "cache_config": {"backend": "quanto", "nbits": 4, "q_group_size": 4, "residual_length": 16},
    },
}


@pytest.mark.parametrize("name", ["rotary", "shaw", "t5_bias", "gated_alibi", "distance_mlp", "rms_norm"])
@pytest.mark.parametrize("cache", CACHES)
def test_caches_of_transformers(cache, name, variant):
    """Their tokens are those of the search of this package, of whose kind the caches are not."""
    if cache == "quantized":
        pytest.importorskip("optimum.quanto", reason="the package that quantizes the cache")
    model, batch = variant({**VARIANTS[name], "projection_sharing": "key_value"})
    source = {key: batch[key] for key in ("input_ids", "attention_mask")}
    for search in ({}, {"num_beams": 2}):
        expected = model.generate(**source, max_new_tokens=6, **search)
        assert torch.equal(model.generate(**source, max_new_tokens=6, **search, **CACHES[cache]), expected)


# ------------------------------------------------------------------------------------------------------------ segments


@torch.no_grad()
def test_segments_of_a_pair_of_texts(tiny_model):
    tokenizer = VanillaTransformerTokenizer.train(["one two three four", "five six"], vocab_size=300, min_frequency=1)
    pair = tokenizer("one two", "five", return_token_type_ids=True, return_tensors="pt")
    ends = (pair["input_ids"][0] == tokenizer.eos_token_id).nonzero().flatten().tolist()
    kinds = pair["token_type_ids"][0].tolist()
    assert kinds == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
    single = tokenizer("one two", return_token_type_ids=True)
    assert set(single["token_type_ids"]) == {0}
    assert "token_type_ids" not in tokenizer("one two", "five")
    model = tiny_model(type_vocab_size=2, vocab_size=len(tokenizer))
    encoder = model.get_encoder()
    plain = encoder(pair["input_ids"])[0]
    torch.testing.assert_close(
        encoder(pair["input_ids"], token_type_ids=torch.zeros_like(pair["input_ids"]))[0], plain
    )
    assert not torch.allclose(encoder(**pair)[0], plain, atol=1e-3)
    found = model.generate(**pair, num_beams=2, max_new_tokens=5)
    assert torch.equal(host(model).generate(**pair, num_beams=2, max_new_tokens=5), found)


def test_segments_in_training_batches(tiny_model):
    from vanilla_transformer_hf.training.data.collators import TranslationCollator

    tokenizer = VanillaTransformerTokenizer.train(["one two three four"], vocab_size=300, min_frequency=1)
    rows = []
    for first, second in (("one", "two three four"), ("one two", "three")):
        row = tokenizer(first, second, return_token_type_ids=True)
        rows.append({**row, "labels": tokenizer(text_target="four")["input_ids"], "length": 3})
    collator = TranslationCollator(tokenizer, source_vocab_size=300, target_vocab_size=300)
    batch = collator(rows)
    assert batch["token_type_ids"].shape == batch["input_ids"].shape
    assert not batch["token_type_ids"][batch["attention_mask"] == 0].any()
    for row, kinds, mask in zip(rows, batch["token_type_ids"], batch["attention_mask"], strict=True):
        assert kinds[mask.bool()].tolist() == row["token_type_ids"]
    tiny_model(type_vocab_size=2, vocab_size=300).train()(**batch).loss.backward()


def test_wrong_segments_are_refused(tiny_model, batch):
    kinds = torch.zeros_like(batch["input_ids"])
    with pytest.raises(ValueError, match=r"token_type_ids: this model has no segments \(type_vocab_size=0\); leave"):
        tiny_model()(**batch, token_type_ids=kinds)
    kinds[1, 2] = 2
    with pytest.raises(IndexError, match="segment 2 lies outside 0 to 1, the 2 of this model"):
        tiny_model(type_vocab_size=2)(**batch, token_type_ids=kinds)


# ------------------------------------------------------------------------------------------------------- slower proofs

# Of each way in which a scheme acts: queries and keys, vectors, biases, gates, a network, embeddings.
FAMILIES = ["rotary", "shaw", "t5_bias", "gated_alibi", "distance_mlp", "hierarchical"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_compiles_into_one_graph(name, variant):
    model, batch = variant({**VARIANTS[name], "norm_type": "rms_norm", "feed_forward_type": "gated"})
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = compiled(**batch).logits[real(batch)]
    torch.testing.assert_close(found, model(**batch).logits[real(batch)], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@torch.no_grad()
def test_compiles_to_machine_code(variant):
    fields = {"position_encoding": "shaw", "decoder_position_encoding": "rotary", "norm_type": "rms_norm"}
    model, batch = variant(
        {**fields, "feed_forward_type": "gated", "projection_sharing": "key_value"}, encoder_layers=1, decoder_layers=1
    )
    compiled = torch.compile(model, fullgraph=True)
    found = compiled(**batch).logits[real(batch)]
    torch.testing.assert_close(found, model(**batch).logits[real(batch)], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_exports(name, variant):
    """With lengths that differ from those of the example."""
    model, batch = variant(VARIANTS[name])

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, decoder_input_ids):
            return self.model(input_ids, attention_mask, decoder_input_ids, use_cache=False).logits

    lengths = [{1: torch.export.Dim(side, min=2, max=30)} for side in ("source", "target")]
    example = (batch["input_ids"], batch["attention_mask"], batch["decoder_input_ids"])
    program = torch.export.export(Logits(), example, dynamic_shapes=(lengths[0], lengths[0], lengths[1])).module()
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0, 8:] = 0
    other = torch.randint(3, 90, (2, 11)), mask, torch.randint(3, 90, (2, 9))
    torch.testing.assert_close(program(*other), model(*other, use_cache=False).logits, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shaw", "gated_alibi", "swiglu"])
def test_adapters(name, variant, tmp_path):
    peft = pytest.importorskip("peft")
    model, batch = variant(VARIANTS[name])
    expected = model(**batch).logits
    adapted = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(task_type="SEQ_2_SEQ_LM"))
    torch.testing.assert_close(adapted(**batch).logits, expected)
    with torch.no_grad():
        for parameter_name, parameter in adapted.named_parameters():
            if "lora_B" in parameter_name:
                parameter.normal_(std=0.3)
    changed = adapted(**batch).logits
    assert not torch.allclose(changed, expected, atol=1e-2)
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path)
    torch.testing.assert_close(again(**batch).logits, changed)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    merged = again.merge_and_unload()
    torch.testing.assert_close(merged(**batch).logits, changed, atol=1e-5, rtol=1e-5)
    assert torch.equal(merged.generate(**source, max_new_tokens=5), host(merged).generate(**source, max_new_tokens=5))


SHARDED = """
import os, sys, torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
distributed.init_process_group("gloo")
model = VanillaTransformerForConditionalGeneration.from_pretrained(sys.argv[1])
batch = torch.load(sys.argv[2], weights_only=True)
whole = model(**batch)
whole.loss.backward()
expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
model.zero_grad()
mesh = init_device_mesh("cpu", (2,))
for stack in (model.get_encoder(), model.get_decoder()):
    for layer in stack.layers:
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
loss = model(**batch).loss
loss.backward()
torch.testing.assert_close(loss, whole.loss)
for name, parameter in model.named_parameters():
    torch.testing.assert_close(parameter.grad.full_tensor(), expected[name], atol=1e-5, rtol=1e-4, msg=name)
distributed.destroy_process_group()
os._exit(0)  # gloo's threads now and then abort an interpreter that ends
"""


@pytest.mark.slow
def test_sharded_by_fsdp2(tiny_model, batch, tmp_path):
    """Loss and gradients on two processes are those of one: vectors, gates, gated feed-forwards, segments."""
    fields = {
        **{"position_encoding": "gated_alibi", "decoder_position_encoding": "shaw", "feed_forward_type": "gated"},
        **{"norm_type": "rms_norm", "type_vocab_size": 2, "dropout": 0.0},
    }
    tiny_model(**fields).save_pretrained(tmp_path / "model")
    torch.save({**batch, "labels": torch.randint(3, 90, (2, 6))}, tmp_path / "batch.pt")
    (tmp_path / "sharded.py").write_text(SHARDED)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command = [*launch, str(tmp_path / "sharded.py"), str(tmp_path / "model"), str(tmp_path / "batch.pt")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]


TENSOR_PARALLEL = """
import os, sys, torch
from torch import distributed
from transformers.distributed.configuration_utils import DistributedConfig
import vanilla_transformer_hf
from transformers import AutoModelForSeq2SeqLM
distributed.init_process_group("gloo")
batch = torch.load(sys.argv[1], weights_only=True)
for folder in sys.argv[2:]:
    whole = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2)).eval()
    inner = [each.model.decoder.layers[0].fc1.weight for each in (model, whole)]
    assert getattr(inner[0], "to_local", lambda: inner[0])().numel() * 2 == inner[1].numel(), "a half on each"
    with torch.no_grad():
        found, expected = model(**batch).logits, whole(**batch).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    # One process writes the whole weights and the code.
    model.save_pretrained(folder + "-saved")
    distributed.barrier()
    again = AutoModelForSeq2SeqLM.from_pretrained(folder + "-saved").state_dict()
    torch.testing.assert_close(again, whole.state_dict(), atol=0, rtol=0)
distributed.destroy_process_group()
os._exit(0)  # gloo's threads now and then abort an interpreter that ends
"""


@pytest.mark.slow
def test_tensor_parallel(tiny_model, batch, tmp_path):
    """Two processes give the logits of one: schemes with scores for each head, turned heads, gated feed-forwards."""
    models = {
        "biases": {"position_encoding": "t5_bias", "decoder_position_encoding": "alibi"},
        "vectors": {"position_encoding": "gated_alibi", "decoder_position_encoding": "shaw"},
        "turned": {"position_encoding": "rotary", "feed_forward_type": "gated", "norm_type": "rms_norm"},
    }
    for name, fields in models.items():
        tiny_model(**fields).save_pretrained(tmp_path / name)
    torch.save(batch, tmp_path / "batch.pt")
    (tmp_path / "parallel.py").write_text(TENSOR_PARALLEL)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command = [
        *launch,
        str(tmp_path / "parallel.py"),
        str(tmp_path / "batch.pt"),
        *(str(tmp_path / name) for name in models),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    for name in models:
        saved = [{path.name for path in tmp_path.joinpath(folder).iterdir()} for folder in (name, f"{name}-saved")]
        assert saved[0] == saved[1], "every file, and none that is unfinished"


def test_every_scheme_is_among_them():
    fields = ("position_encoding", "decoder_position_encoding")
    named = {variant.get(field) for variant in VARIANTS.values() for field in fields}
    added = {"sinusoidal", "sinusoidal_halves", "sinusoidal_halves_inclusive", "learned", "none"}
    added |= {"sinusoidal_grid"}  # of images: test_recognition.py
    assert set(POSITION_SCHEMES) == (named | added) - {None}
