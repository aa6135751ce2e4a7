"""OpenNMT-py: checkpoints in its layout for every option. Real ones are in test_samples.py."""

import argparse
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from samples import agree, files_on_the_card, named_by
from toy import EMBEDDING, OUTPUT, Side, Toy, names_of

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert


NAMES = names_of(
    "transformer transformer_layers",
    ("self_attn", "self_attn", "context_attn"),
    ("linear_query", "linear_keys", "linear_values", "final_linear"),
    (("layer_norm", "feed_forward.layer_norm"), ("layer_norm_1", "layer_norm_2", "feed_forward.layer_norm")),
    [f"feed_forward.w_{number}" for number in (1, 2, 3)],
    [f"{stack}.embeddings.make_embedding.emb_luts.0" for stack in ("encoder", "decoder")],
    "generator",
    ("layer_norm", ""),
)
SPECIALS = ["<unk>", "<blank>", "<s>", "</s>"]
WORDS = {"src": [*SPECIALS, "one", "two", "three", "four", "five"], "tgt": [*SPECIALS, "eins", "zwei", "drei"]}
BASE = {
    **{"encoder_type": "transformer", "decoder_type": "transformer", "hidden_size": 16, "word_vec_size": 16},
    **{"enc_layers": 2, "dec_layers": 2, "heads": 4, "transformer_ff": 24, "position_encoding": True},
    **{"dropout": [0.1], "attention_dropout": [0.1]},
}
SIDE = Side(pre_norm=True, final_norm=True, biases="")

# Options -> what they mean: fields of both sides, fields of the whole.
OPTIONS = {
    "separate": ({}, {}, {}),
    "shared": ({"share_embeddings": True, "share_decoder_embeddings": True}, {}, {"same": (EMBEDDING, OUTPUT)}),
    "share_embeddings": ({"share_embeddings": True}, {}, {"same": (EMBEDDING,)}),
    "share_decoder_embeddings": ({"share_decoder_embeddings": True}, {}, {"same": (OUTPUT,)}),
    "add_qkvbias": ({"add_qkvbias": True}, {"biases": "q k v out"}, {}),
    "add_ffnbias": ({"add_ffnbias": True}, {"biases": "ffn"}, {}),
    "ffn_biases_of_an_old_release": ({}, {"biases": "ffn"}, {}),
    "all_biases": ({"add_qkvbias": True, "add_ffnbias": True}, {"biases": "q k v out ffn"}, {}),
    "sinusoid_concat": ({"position_encoding_type": "SinusoidalConcat"}, {"positions": "inclusive"}, {}),
    "no_positions": ({"position_encoding": False}, {"positions": "none", "scaled": False}, {}),
    "gelu": ({"pos_ffn_activation_fn": "gelu"}, {"activation": "gelu"}, {}),
    "silu": ({"pos_ffn_activation_fn": "silu"}, {"activation": "swish"}, {"gated": True}),
    "gated_gelu": (
        {"pos_ffn_activation_fn": "gated-gelu", "add_ffnbias": True},
        {"activation": "gelu", "biases": "ffn"},
        {"gated": True},
    ),
    "norm_eps": ({"norm_eps": 1e-2}, {}, {"eps": 1e-2}),
    "num_kv": ({"num_kv": 2, "add_qkvbias": True}, {"biases": "q k v out"}, {"key_value_heads": 2}),
    "multiquery": ({"num_kv": 1, "multiquery": True}, {}, {"key_value_heads": 1}),
    "layers": ({"layers": 1}, {"layers": 1}, {}),
    "scaled_dot": ({"self_attn_type": "scaled-dot"}, {}, {}),
    "alignment": ({"lambda_align": 0.1, "alignment_heads": 1, "full_context_alignment": True}, {}, {}),
}


def make(name="separate"):
    """A toy of one of OPTIONS, the options, and the vocabularies."""
    options, side, whole = OPTIONS[name]
    words = dict.fromkeys(WORDS, WORDS["src"]) if EMBEDDING in whole.get("same", ()) else WORDS
    sizes = (len(words["src"]), len(words["tgt"]))
    both = replace(SIDE, **side)
    toy = Toy(NAMES, both, both, **{"sizes": sizes, "eps": 1e-6, "output_bias": True, **whole})
    return toy, {**BASE, **options}, words


def write(folder, toy, options, words=WORDS, start="<s>", **content):
    """A checkpoint as OpenNMT-py writes it."""
    folder.mkdir(exist_ok=True)
    generator = {name.split(".")[1]: tensor for name, tensor in toy.tensors.items() if name.startswith("generator.")}
    model = {name: tensor for name, tensor in toy.tensors.items() if not name.startswith("generator.")}
    if options["position_encoding"]:
        for stack in ("encoder", "decoder"):
            model[f"{stack}.embeddings.make_embedding.pe.pe"] = torch.zeros(9, 1, 16)
    vocabulary = {**words, "data_task": "seq2seq", "decoder_start_token": start}
    content = {"model": model, "generator": generator, "vocab": vocabulary, **content}
    opt = argparse.Namespace(**options, _all_transform=set())
    torch.save({**content, "opt": opt, "optim": {}}, folder / "model_step_10.pt")
    return folder


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name, tmp_path):
    toy, options, words = make(name)
    folder = write(tmp_path / "run", toy, options, words)
    done = agree("opennmt_py", folder, tmp_path, toy.logits, toy.sizes)
    assert done.config.embedding_sharing == toy.sharing


@pytest.mark.parametrize("pattern", ["model_step_10.safetensors", "model_step_10.00.safetensors"])
def test_safetensors(pattern, tmp_path):
    toy, options, words = make()
    folder = write(tmp_path / "run", toy, options, words, model=None, generator=None)
    names = sorted(toy.tensors)
    if ".00." in pattern:
        save_file({name: toy.tensors[name] for name in names[:9]}, folder / "model_step_10.01.safetensors")
        names = names[9:]
    save_file({name: toy.tensors[name] for name in names}, folder / pattern)
    agree("opennmt_py", folder, tmp_path, toy.logits, toy.sizes)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ConversionError, match=r"no weights inside, and no model_step_10\.safetensors"):
        convert("opennmt_py", folder, tmp_path / "again")


def test_names_of_old_releases(tmp_path):
    """layer_norm.a_2 and b_2, and a generator that was a sequence of modules."""
    toy, options, words = make()
    toy.tensors = {
        name.replace("layer_norm.weight", "layer_norm.a_2").replace("layer_norm.bias", "layer_norm.b_2"): tensor
        for name, tensor in toy.tensors.items()
    }
    generator = {f"0.{kind}": toy.tensors[f"generator.{kind}"] for kind in ("weight", "bias")}
    folder = write(tmp_path / "run", toy, options, words, generator=generator)
    toy = make()[0]
    agree("opennmt_py", folder, tmp_path, toy.logits, toy.sizes)


def test_the_longest_trained_is_taken(tmp_path):
    toy, options, words = make()
    folder = write(tmp_path / "run", toy, options, words)
    (folder / "model_step_9.pt").write_bytes(b"shorter")
    convert("opennmt_py", folder, tmp_path / "out")
    with pytest.raises(ConversionError, match=r"model_step_9\.pt"):
        convert("opennmt_py", folder / "model_step_9.pt", tmp_path / "again")


def test_start_token(tmp_path):
    toy, options, words = make()
    done = convert("opennmt_py", write(tmp_path / "run", toy, options, words, start="</s>"), tmp_path / "out")
    assert done.config.decoder_start_token_id == 3


def test_all_that_cannot_be_expressed_is_listed_together(tmp_path):
    toy, options, words = make()
    bad = {
        **{"encoder_type": "rnn", "layer_norm": "rms", "self_attn_type": "average", "max_relative_positions": -1},
        **{"sliding_window": 7, "parallel_residual": True, "num_experts": 4, "copy_attn": True},
        **{"lora_layers": ["linear_keys"], "quant_layers": ["w_1"], "enc_hid_size": 8, "hidden_size": -1},
        "dec_hid_size": 16,
    }
    words = {**words, "src_feats": [["<unk>"]], "tgt": [*reversed(SPECIALS), "eins"]}
    found = named_by("opennmt_py", write(tmp_path / "run", toy, {**options, **bad}, words, start="x"), tmp_path)
    assert set(found) == {*bad, "dec_hid_size", "src_feats", "vocabulary"} - {
        "hidden_size",
        "enc_hid_size",
        "dec_hid_size",
    } | {"enc_hid_size, dec_hid_size, src_word_vec_size, tgt_word_vec_size"}
    assert found.count("vocabulary") == 3  # padding, end, start


def test_a_file_of_another_program_is_refused(tmp_path):
    torch.save({"model": {}}, tmp_path / "model_step_1.pt")
    with pytest.raises(ConversionError, match="not a checkpoint of OpenNMT-py 3"):
        convert("opennmt_py", tmp_path, tmp_path / "out")


# ------------------------------------------------------------------------------------------------ tokenizer and search


def tokenizer_of(tmp_path, folder):
    done = convert("opennmt_py", folder, tmp_path / "out")
    return VanillaTransformerTokenizer.from_pretrained(tmp_path / "out"), done.notes


def test_words(tmp_path):
    toy, options, words = make("shared")
    tokenizer, _ = tokenizer_of(tmp_path, write(tmp_path / "run", toy, {**options, "src_lang": "en"}, words))
    assert tokenizer("one six two")["input_ids"] == [4, 0, 5]  # nothing is put around a source
    assert tokenizer(text_target="one two")["input_ids"] == [4, 5, 3]
    assert tokenizer.decode([4, 5, 3], skip_special_tokens=True) == "one two"
    assert tokenizer.src_lang == "en" and tokenizer.tgt_lang is None


def test_subword_nmt_beside_the_checkpoint(tmp_path):
    toy, options, _ = make()
    tokens = [*SPECIALS, "l@@", "o@@", "w", "lo@@", "low", "e@@", "r"]
    toy = replace(toy, sizes=(len(tokens), len(tokens)))
    options |= {
        "transforms": ["bpe", "filtertoolong"],
        "src_subword_model": "/elsewhere/codes.bpe",
        "share_vocab": True,
    }
    folder = write(tmp_path / "run", toy, options, dict.fromkeys(WORDS, tokens))
    (folder / "codes.bpe").write_text("#version: 0.2\nl o\nlo w</w>\n", encoding="utf-8")
    tokenizer, notes = tokenizer_of(tmp_path, folder)
    assert tokenizer("low lower")["input_ids"] == [tokens.index(piece) for piece in ("low", "lo@@")] + [0, 9, 10]
    assert not any("codes" in note or "filtertoolong" in note for note in notes)
    assert files_on_the_card(tmp_path / "out") == {"model_step_10.pt", "codes.bpe"}


def test_what_the_tokenizer_does_not_do_is_noted(tmp_path):
    toy, options, words = make()
    corpora = {"corpus_1": {"transforms": ["onmt_tokenize", "sentencepiece"]}, "valid": {"transforms": ["prefix"]}}
    options |= {"data": corpora, "src_subword_model": "sp.model"}
    _, notes = tokenizer_of(tmp_path, write(tmp_path / "run", toy, options, words))
    assert [note for note in notes if "onmt_tokenize" in note]
    assert [note for note in notes if note.startswith("sp.model was not beside the checkpoint")]
    assert not [note for note in notes if "prefix" in note]


def test_settings_of_the_search(tmp_path):
    toy, options, words = make()
    _, notes = tokenizer_of(tmp_path, write(tmp_path / "run", toy, options, words))
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    expected = {"num_beams": 5, "length_penalty": 1.0, "max_new_tokens": 250, "early_stopping": True}
    assert expected.items() <= written.items()
    assert [note.split()[0] for note in notes] == ["length_penalty", "the", "max_length_ratio:"]


def test_values_of_another_type_are_named(tmp_path):
    toy, options, words = make()
    options |= {"heads": "4", "norm_eps": "1e-6", "share_embeddings": 1, "transforms": 5, "data": ["x"]}
    found = named_by("opennmt_py", write(tmp_path / "run", toy, options, words), tmp_path)
    assert found == ["heads", "norm_eps", "share_embeddings", "data", "transforms"]
