"""CTranslate2 computes and translates as the model does, for every switch that it can express."""

import json
import os
import runpy
import subprocess
import sys

import pytest
import torch
from kept_beside import kept_beside

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import convert
from vanilla_transformer_hf.export import ExportError
from vanilla_transformer_hf.export.export import export_for


ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install '.[export]'")
engine = pytest.importorskip("vanilla_transformer_hf.export.ctranslate2")

FAIRSEQ = kept_beside("peers", "fairseq-a-shared-postnorm")

PRE = {"encoder_norm_position": "pre", "decoder_norm_position": "pre"}
SWITCHES = {
    "paper": {},
    "pre": PRE,
    "pre_without_final_norms": {**PRE, "encoder_final_norm": False, "decoder_final_norm": False},
    "post_with_final_norms": {"encoder_final_norm": True, "decoder_final_norm": True},
    "stacks_differ": {
        **{"encoder_norm_position": "pre", "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 2},
        **{"encoder_ffn_dim": 48, "decoder_activation_function": "gelu"},
    },
    "halves": {"position_encoding": "sinusoidal_halves"},
    "inclusive_from_2": {"position_encoding": "sinusoidal_halves_inclusive", "position_offset": 2},
    "learned_from_1": {"position_encoding": "learned", "position_offset": 1, "decoder_max_position_embeddings": 40},
    "no_positions": {"position_encoding": "none"},
    "positions_differ": {"position_encoding": "learned", "decoder_position_encoding": "sinusoidal"},
    "gated": {"feed_forward_type": "gated", "activation_function": "silu"},
    "embeddings": {"layernorm_embedding": True, "scale_embedding": False},
    "separate_vocabularies": {"source_vocab_size": 70, "embedding_sharing": "decoder"},
    "untied": {"source_vocab_size": 70, "embedding_sharing": "none", "output_bias": True},
    "biases": {"attention_bias": True, "feed_forward_bias": False},
    "epsilon": {"layer_norm_eps": 1e-2},
    "narrow_keys": {"d_k": 5, "d_v": 12, "attention_bias": True},
    "narrow_values": {"d_k": 12, "d_v": 5, "attention_bias": True},
    "widths_differ": {"encoder_d_model": 48, "embedding_sharing": "decoder"},
    "start": {"decoder_start_token_id": 1},
    "shared": {
        **{"decoder_layers": 3, "decoder_layer_sets": 2, "layer_sharing": "cycle_reverse", "encoder_layer_sets": 1},
        **{"projection_sharing": "key_value", "decoder_attention_sharing": True, "feed_forward_sharing": "all"},
        "position_encoding": "shaw",
    },
    "one_projection": {"projection_sharing": "query_key_value", "feed_forward_sharing": "stack"},
    "rotary": {"position_encoding": "rotary", "rotary_base": 100.0},
    "rotary_in_part": {"position_encoding": "rotary", "rotary_fraction": 0.5, "d_k": 8, "d_v": 12},
    "rotary_halves": {"position_encoding": "rotary_halves", **PRE},
    "rotary_halves_in_part": {"decoder_position_encoding": "rotary_halves", "rotary_fraction": 0.5},
    "shaw": {"position_encoding": "shaw", "max_relative_distance": 3},
    "shaw_narrow_keys": {"position_encoding": "shaw", "max_relative_distance": 2, "d_k": 5, "d_v": 12},
    "t5_bias": {"position_encoding": "t5_bias", "relative_buckets": 8, "max_relative_distance": 6},
    "t5_bias_in_the_encoder": {"position_encoding": "t5_bias", "decoder_position_encoding": "learned"},
    "alibi_in_the_decoder": {"decoder_position_encoding": "alibi", "decoder_attention_heads": 2},
    "rms_norm": {"norm_type": "rms_norm", "layer_norm_eps": 1e-2},
    "as_llama": {
        **PRE,
        "norm_type": "rms_norm",
        "position_encoding": "rotary_halves",
        "feed_forward_type": "gated",
        "activation_function": "silu",
        "feed_forward_bias": False,
    },
    **{name: {"activation_function": name} for name in engine.ACTIVATIONS},
}


def sentences(config):
    """Four of them, as ids behind which stands the end."""
    size = config.source_vocab_size or config.vocab_size
    return [[*torch.randint(3, size, (length,)).tolist(), 1] for length in (9, 4, 1, 6)]


def ours(model, sources, **options):
    """Ids that the model generates for each source, without start, end and padding."""
    outputs = [model.generate(torch.tensor([ids]), **options)[0, 1:].tolist() for ids in sources]
    return [ids[: ids.index(1)] if 1 in ids else ids for ids in outputs]


def theirs(folder, config, sources, **options):
    """The same from CTranslate2, with the arguments that were written for it, and others."""
    side = "s" if config.source_vocab_size else "t"
    pieces = [[f"{side}{index}" if index > 2 else "</s>" for index in ids] for ids in sources]
    options = {**json.loads((folder / engine.SEARCH_FILE).read_text()), **options}
    results = ctranslate2.Translator(str(folder)).translate_batch(pieces, **options)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(folder)
    outputs = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    return [ids[: ids.index(1)] if 1 in ids else ids for ids in outputs]


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_logits_and_translations_are_the_models(switches, save_model, tmp_path):
    model, folder = save_model(**switches)
    done = export_for("ctranslate2", folder, tmp_path / "out")
    assert done.difference < 1e-5 and done.own_error < 1e-5 and done.notes == []
    sources = sentences(model.config)
    greedy = ours(model, sources, num_beams=1, max_new_tokens=12)
    assert theirs(tmp_path / "out", model.config, sources, beam_size=1, max_decoding_length=12) == greedy
    beams = ours(model, sources, num_beams=3, early_stopping=True, length_penalty=0.6, max_new_tokens=12)
    options = {"beam_size": 3, "length_penalty": 0.6, "max_decoding_length": 12}
    assert theirs(tmp_path / "out", model.config, sources, **options) == beams


BEAMS = {"num_beams": 3, "max_new_tokens": 9, "early_stopping": True}
SEARCHES = {
    "beams": ({**BEAMS, "length_penalty": 0.6, "length_penalty_type": "power"}, []),
    "no_length_penalty": ({**BEAMS, "length_penalty": 0.0, "no_repeat_ngram_size": 0}, []),
    "lengths": ({**BEAMS, "min_new_tokens": 4}, ["min_new_tokens=4"]),
    "lengths_greedy": ({"min_new_tokens": 4, "max_new_tokens": 7}, []),
    "suppressed": ({**BEAMS, "suppress_tokens": [0, 13, 27]}, ["suppress_tokens=[0, 13, 27]"]),
    "suppressed_greedy": ({"max_new_tokens": 9, "suppress_tokens": [0, 13, 27]}, []),
    "too_long": ({"max_new_tokens": 99}, ["max_new_tokens=99, of 64 positions"]),
}


@pytest.mark.parametrize(("search", "left"), SEARCHES.values(), ids=SEARCHES)
def test_the_models_own_search_is_written_beside_it(search, left, save_model, tmp_path):
    model, folder = save_model(embedding_sharing="none")
    model.generation_config.update(**search)
    model.generation_config.save_pretrained(folder)
    notes = export_for("ctranslate2", folder, tmp_path / "out").notes
    assert [note.split("cannot do with ")[1] for note in notes] == left
    written = json.loads((tmp_path / "out" / engine.SEARCH_FILE).read_text())
    assert written["length_penalty"] == search.get("length_penalty", 1.0) and written["max_input_length"] == 0
    model.generation_config.max_new_tokens = min(64, search["max_new_tokens"])
    sources = sentences(model.config)
    assert theirs(tmp_path / "out", model.config, sources) == ours(model, sources)


@pytest.mark.parametrize(("name", "value"), [("eos_token_id", [1, 95]), ("decoder_start_token_id", 9)])
def test_ids_that_only_the_generation_config_has_are_refused(name, value, save_model, tmp_path):
    model, folder = save_model()
    model.generation_config.update(**{name: value})
    model.generation_config.save_pretrained(folder)
    with pytest.raises(ExportError, match=f"{name}=.*of the generation config: must be [01], as in the config"):
        export_for("ctranslate2", folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_the_search_lacks_is_told(save_model, tmp_path):
    model, folder = save_model()
    model.generation_config.update(num_beams=4, encoder_no_repeat_ngram_size=2, length_penalty_type="gnmt")
    model.generation_config.save_pretrained(folder)
    (note,) = export_for("ctranslate2", folder, tmp_path / "out").notes
    assert note.endswith(
        "cannot do with early_stopping=False, encoder_no_repeat_ngram_size=2, length_penalty_type='gnmt'"
    )


@pytest.mark.skipif(not FAIRSEQ.is_dir(), reason="kept beside the repository")
def test_a_converted_checkpoint_translates_as_its_toolkit_did(tmp_path):
    convert("fairseq", FAIRSEQ, tmp_path / "model")
    assert export_for("ctranslate2", tmp_path / "model", tmp_path / "out").difference < 1e-5
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    search = json.loads((tmp_path / "out" / engine.SEARCH_FILE).read_text())
    recorded = json.loads((FAIRSEQ / "ref.json").read_text())
    pieces = [tokenizer(text).tokens() for text in recorded["src_text"]]
    translator = ctranslate2.Translator(str(tmp_path / "out"))
    for name in ("greedy", "beam4", "beam4_lenpen0.6"):
        settings = recorded[f"{name}_settings"]
        search |= {"beam_size": settings["beam"], "length_penalty": settings["lenpen"], "max_decoding_length": 41}
        outputs = [result.hypotheses[0] for result in translator.translate_batch(pieces, **search)]
        expected = [output["ids"] for output in recorded[name]]
        assert [tokenizer.convert_tokens_to_ids(output) for output in outputs] == expected, name


def test_shared_pieces_are_written_once_and_tied_matrices_too(save_model, tmp_path):
    sizes = {}
    for name, switches in (("tied", {}), ("untied", {"embedding_sharing": "none"})):
        _, folder = save_model(**switches)
        export_for("ctranslate2", folder, tmp_path / name)
        sizes[name] = (tmp_path / name / "model.bin").stat().st_size
        assert (tmp_path / name / "shared_vocabulary.json").is_file()
    assert sizes["untied"] - sizes["tied"] == pytest.approx(2 * 99 * 32 * 4, abs=100)


@pytest.mark.parametrize(("quantization", "bytes_each"), [("int8", 1), ("int16", 2), ("float16", 2), ("bfloat16", 2)])
def test_weights_of_other_types(quantization, bytes_each, save_model, tmp_path):
    _, folder = save_model(max_position_embeddings=16)
    export_for("ctranslate2", folder, tmp_path / "exact")
    done = export_for("ctranslate2", folder, tmp_path / "out", quantization=quantization)
    assert done.difference < 1e-5, "measured before rounding"
    assert f"weights in {quantization} change logits by" in done.notes[0]
    exact, rounded = [(tmp_path / name / "model.bin").stat().st_size for name in ("exact", "out")]
    assert rounded / exact == pytest.approx(bytes_each / 4, abs=0.12)


def test_vocabulary_mapping_goes_along(save_model, tmp_path):
    model, folder = save_model(embedding_sharing="none")
    (tmp_path / "vmap").write_text("\tt7 t8\nt5\tt9\n", encoding="utf-8")
    export_for("ctranslate2", folder, tmp_path / "out", vmap=tmp_path / "vmap")
    assert json.loads((tmp_path / "out" / engine.SEARCH_FILE).read_text())["use_vmap"]
    sources = sentences(model.config)
    pieces = {}
    for used in (True, False):
        options = {"beam_size": 1, "max_decoding_length": 5, "use_vmap": used}
        outputs = theirs(tmp_path / "out", model.config, sources, **options)
        pieces[used] = {index for ids in outputs for index in ids}
    assert pieces[True] <= {0, 1, 2, 7, 8, 9}, "with the special ones, which CTranslate2 always allows"
    assert not pieces[False] <= {0, 1, 2, 7, 8, 9}
    with pytest.raises(ExportError, match=r"nowhere.* is not a file: expected"):
        export_for("ctranslate2", folder, tmp_path / "other", vmap=tmp_path / "nowhere")


REFUSED = {
    "encoder_residual_alpha": ({"encoder_residual_alpha": 2.0}, "encoder_residual_alpha=2.0: must be 1.0"),
    "decoder_residual_alpha": ({"decoder_residual_alpha": 0.5}, "decoder_residual_alpha=0.5: must be 1.0"),
    "activation": ({"activation_function": "mish"}, "\n  activation_function='mish': must be one of relu, gelu"),
    "decoder_activation": ({"decoder_activation_function": "mish"}, "  decoder_activation_function='mish': must be"),
    "norm": ({"norm_type": "rms_norm_author"}, "norm_type='rms_norm_author': must be one of layer_norm, rms_norm"),
    "alibi": ({"position_encoding": "alibi"}, "  position_encoding='alibi': must be one of sinusoidal,"),
    "gates": ({"decoder_position_encoding": "gated_alibi"}, "  decoder_position_encoding='gated_alibi': must be one"),
    "segments": ({"type_vocab_size": 2}, "type_vocab_size=2: must be 0"),
    "one_wide_feed_forward": (
        {"feed_forward_sharing": "encoder_only"},
        "feed_forward_sharing='encoder_only': must be",
    ),
    "eos": ({"eos_token_id": [1, 4]}, r"eos_token_id=\[1, 4\]: must be one id"),
}


@pytest.mark.parametrize(("switches", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_expressed_is_refused_by_name(switches, message, save_model, tmp_path, monkeypatch):
    model, folder = save_model(**switches)
    monkeypatch.setattr(VanillaTransformerForConditionalGeneration, "from_pretrained", None)  # not even opened
    with pytest.raises(ExportError, match=f"ctranslate2 cannot express these fields:(.|\n)*{message}"):
        export_for("ctranslate2", folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(ValueError, match=message.strip()):  # whoever comes through CTranslate2's own converter
        engine.VanillaTransformerLoader().get_model_spec(model)


def test_other_refusals_leave_nothing(save_model, tmp_path, monkeypatch):
    _, folder = save_model()
    with pytest.raises(ExportError, match="quantization='int3': must be one of int8, "):
        export_for("ctranslate2", folder, tmp_path / "out", quantization="int3")
    monkeypatch.setitem(engine.ACTIVATIONS, "relu", engine.common_spec.Activation.GELU)
    with pytest.raises(ExportError, match=r"what was written gives logits that differ by .*; 1e-04 is allowed"):
        export_for("ctranslate2", folder, tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ExportError, match="the folder has no tokenizer"):
        export_for("ctranslate2", folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
def test_its_own_converter_knows_our_models(save_model, tmp_path, monkeypatch):
    _, folder = save_model()
    export_for("ctranslate2", folder, tmp_path / "ours")
    # From Python, behind the import of our package alone; and as a command.
    code = """
import sys, vanilla_transformer_hf, ctranslate2
ctranslate2.converters.TransformersConverter(sys.argv[1]).convert(sys.argv[2])
"""
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "class")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    arguments = ["", "--model", str(folder), "--output_dir", str(tmp_path / "command")]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.delitem(sys.modules, engine.__name__)
    runpy.run_module(engine.__name__, run_name="__main__")
    for name in ("model.bin", "config.json", "shared_vocabulary.json"):
        expected = (tmp_path / "ours" / name).read_bytes()
        assert (tmp_path / "class" / name).read_bytes() == expected, name
        assert (tmp_path / "command" / name).read_bytes() == expected, name
