"""The Annotated Transformer and its like: each kind of code and option. A real one is in test_samples.py."""

import argparse
import math

import pytest
import torch
import yaml
from samples import agree, named_by, write_reference
from toy import EMBEDDING, OUTPUT, Side, Toy, names_of, sinusoid

from vanilla_transformer_hf.conversion import ConversionError, convert


def unbiased_norm(x, matrix, eps):
    """a_2 (x - mean) / (std + eps) + b_2 with the unbiased standard deviation, as in the Annotated Transformer."""
    weight, bias = matrix
    return weight.double() * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + bias.double()


HARVARD = names_of(
    "layers",
    ("self_attn", "self_attn", "src_attn"),
    [f"linears.{index}" for index in range(4)],
    [[f"sublayer.{index}.norm" for index in range(count)] for count in (2, 3)],
    ("feed_forward.w_1", "feed_forward.w_2"),
    ("src_embed.0.lut", "tgt_embed.0.lut"),
    "generator.proj",
)
NORM_INSIDE = names_of(
    "layers",
    ("self_attn", "self_attn", "cross_attn"),
    ("W_Q", "W_K", "W_V", "W_O"),
    (
        ("self_attn.layer_norm", "feed_forward.layer_norm"),
        ("self_attn.layer_norm", "cross_attn.layer_norm", "feed_forward.layer_norm"),
    ),
    ("feed_forward.linear1", "feed_forward.linear2"),
    ("encoder.embedding", "decoder.embedding"),
    "projection",
)
NLP_TUTORIAL = names_of(
    "layers",
    ("enc_self_attn", "dec_self_attn", "dec_enc_attn"),
    ("W_Q", "W_K", "W_V", "linear"),
    (
        ("enc_self_attn.layer_norm", "pos_ffn.layer_norm"),
        ("dec_self_attn.layer_norm", "dec_enc_attn.layer_norm", "pos_ffn.layer_norm"),
    ),
    ("pos_ffn.conv1", "pos_ffn.conv2"),
    ("encoder.src_emb", "decoder.tgt_emb"),
    "projection",
)
JADORE = names_of(
    "layer_stack",
    ("slf_attn", "slf_attn", "enc_attn"),
    ("w_qs", "w_ks", "w_vs", "fc"),
    (
        ("slf_attn.layer_norm", "pos_ffn.layer_norm"),
        ("slf_attn.layer_norm", "enc_attn.layer_norm", "pos_ffn.layer_norm"),
    ),
    ("pos_ffn.w_1", "pos_ffn.w_2"),
    ("encoder.src_word_emb", "decoder.trg_word_emb"),
    "trg_word_prj",
    ("", "layer_norm"),
)
HYUNWOONGKO = names_of(
    "layers",
    ("attention", "self_attention", "enc_dec_attention"),
    ("w_q", "w_k", "w_v", "w_concat"),
    (("norm1", "norm2"), ("norm1", "norm2", "norm3")),
    ("ffn.linear1", "ffn.linear2"),
    ("encoder.emb.tok_emb", "decoder.emb.tok_emb"),
    "decoder.linear",
)
BENTREVETT = names_of(
    "layers",
    ("self_attention", "self_attention", "encoder_attention"),
    ("fc_q", "fc_k", "fc_v", "fc_o"),
    (("self_attn_layer_norm", "ff_layer_norm"), ("self_attn_layer_norm", "enc_attn_layer_norm", "ff_layer_norm")),
    ("positionwise_feedforward.fc_1", "positionwise_feedforward.fc_2"),
    ("encoder.tok_embedding", "decoder.tok_embedding"),
    "decoder.fc_out",
)

LOOSE = names_of(
    "blocks",
    ("mha", "masked_attn", "cross_mha"),
    ("wq", "wk", "wv", "wo"),
    (("ln1", "ln2"), ("ln1", "ln2", "ln3")),
    ("mlp.net.0", "mlp.net.3"),
    ("source_embedding", "target_embedding"),
    "output_layer",
)
LOOSE = {stack: {part: f"transformer.{name}" for part, name in parts.items()} for stack, parts in LOOSE.items()}

PRE = {"pre_norm": True, "final_norm": True}
HARVARD_TOY = {"names": HARVARD, "eps": 1e-6, "norm": unbiased_norm, "norm_kinds": ("a_2", "b_2"), "output_bias": True}
JADORE_TOY = {"names": JADORE, "eps": 1e-6, "embedding_norm": True}
NO_BIASES, FFN = {"scaled": False, "biases": ""}, {"scaled": False, "biases": "ffn"}

# Kind -> fields of both sides, fields of the whole, settings, largest difference.
KINDS = {
    "harvard": (PRE, HARVARD_TOY, {}, 2e-5),
    "harvard_shared": (PRE, {**HARVARD_TOY, "same": (EMBEDDING, OUTPUT)}, {}, 2e-5),
    "harvard_sizes": (
        {**PRE, "layers": 3, "heads": 2, "ffn": 40, "activation": "gelu"},
        HARVARD_TOY,
        {"h": 2, "activation": "gelu"},
        2e-5,
    ),
    "harvard_with_the_usual_norm": (PRE, {"names": HARVARD, "output_bias": True}, {}, 1e-5),
    "norm_inside": ({"scaled": False}, {"names": NORM_INSIDE}, {}, 1e-5),
    "norm_inside_without_biases": (NO_BIASES, {"names": NORM_INSIDE}, {"n_heads": 4}, 1e-5),
    "norm_inside_with_some_biases": ({"scaled": False, "biases": "q k v"}, {"names": NORM_INSIDE}, {}, 1e-5),
    "norm_inside_before": ({"scaled": False, "pre_norm": True}, {"names": NORM_INSIDE}, {"norm": "pre"}, 1e-5),
    "norm_inside_scaled": ({}, {"names": NORM_INSIDE, "output_bias": True}, {"scale_embedding": True}, 1e-5),
    "norm_inside_final_norms": ({"scaled": False, "final_norm": True}, {"names": NORM_INSIDE}, {}, 1e-5),
    "norm_inside_epsilon": ({"scaled": False}, {"names": NORM_INSIDE, "eps": 1e-2}, {"layer_norm_eps": 0.01}, 1e-5),
    "nlp_tutorial": ({"scaled": False}, {"names": NLP_TUTORIAL}, {}, 1e-5),
    "jadore": (FFN, JADORE_TOY, {}, 1e-5),
    "jadore_shared": (FFN, {**JADORE_TOY, "same": (EMBEDDING, OUTPUT), "logit_scale": 0.25}, {}, 1e-5),
    "jadore_scaled_embedding": (
        {"biases": "ffn"},
        {**JADORE_TOY, "same": (EMBEDDING, OUTPUT)},
        {"scale_emb_or_prj": "emb"},
        1e-5,
    ),
    "jadore_nothing_scaled": (FFN, {**JADORE_TOY, "same": (EMBEDDING, OUTPUT)}, {"scale_emb_or_prj": "none"}, 1e-5),
    "jadore_wide_heads": (FFN, {**JADORE_TOY, "head_width": 6}, {}, 1e-5),
    "hyunwoongko": (
        {"scaled": False},
        {"names": HYUNWOONGKO, "norm_kinds": ("gamma", "beta"), "eps": 1e-12, "output_bias": True},
        {},
        1e-5,
    ),
    "bentrevett": ({"positions": "learned"}, {"names": BENTREVETT, "output_bias": True}, {}, 1e-5),
    "learned_with_offset": (
        {"positions": "learned"},
        {"names": BENTREVETT, "offset": 2},
        {"position_offset": 2},
        1e-5,
    ),
    "other_names": ({"scaled": False}, {"names": LOOSE}, {}, 1e-5),
    "halves": (
        {"positions": "halves", "scaled": False},
        {"names": NORM_INSIDE},
        {"positions": "sinusoidal_halves"},
        1e-5,
    ),
    "no_positions": ({"positions": "none", "scaled": False}, {"names": NORM_INSIDE}, {"positions": "none"}, 1e-5),
}
TABLES = {"harvard": ("src_embed.1.pe", "tgt_embed.1.pe"), "jadore": ("encoder.position_enc.pos_table",)}


def make(kind="harvard"):
    side, whole, settings, tolerance = KINDS[kind]
    sizes = (11, 11) if whole.get("same") else (11, 9)
    toy = Toy(encoder=Side(**side), decoder=Side(**side), **{"sizes": sizes, **whole})
    return toy, {"h": 4, **settings} if "n_heads" not in settings else settings, tolerance


def write(folder, tensors, given, **beside):
    folder.mkdir(exist_ok=True)
    torch.save({"model": tensors, **beside} if beside else tensors, folder / "model.pt")
    (folder / "settings.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind, tmp_path):
    toy, settings, most = make(kind)
    tensors = dict(toy.tensors)
    if kind == "nlp_tutorial":  # its maps of the feed-forward are convolutions of width 1
        tensors |= {
            name: tensor[..., None] for name, tensor in tensors.items() if "conv" in name and tensor.dim() == 2
        }
    for name in TABLES.get(kind.split("_")[0], ()):
        tensors[name] = torch.stack([sinusoid(row, 16, "interleaved").float() for row in range(12)])[None]
    done = agree("annotated", write(tmp_path / "run", tensors, settings), tmp_path, toy.logits, toy.sizes, most)
    assert any("unbiased" in note for note in done.notes) == ("norm" in KINDS[kind][1])
    shared = bool(toy.same) and toy.logit_scale == 1.0  # a scaled output is another matrix
    assert done.config.embedding_sharing == ("all" if shared else "none")


def test_settings_inside_the_file(tmp_path):
    """jadore801120's training script leaves its options beside the weights."""
    toy, _, _ = make("jadore_wide_heads")
    options = argparse.Namespace(n_head=4, d_k=6, d_v=6, dropout=0.3, scale_emb_or_prj="prj", epoch=400)
    folder = write(tmp_path / "run", toy.tensors, {}, settings=options, epoch=9)
    (folder / "settings.yaml").unlink()
    done = agree("annotated", folder, tmp_path, toy.logits, toy.sizes)
    assert done.config.dropout == 0.3 and done.config.d_k == 6


def test_positions_that_are_no_sinusoids_are_taken_as_they_are(tmp_path):
    toy, settings, _ = make()
    table = torch.randn(1, 12, 16)
    tensors = {**toy.tensors, "src_embed.1.pe": table, "tgt_embed.1.pe": table}
    done = convert("annotated", write(tmp_path / "run", tensors, {**USUAL, **settings}), tmp_path / "out")
    assert done.config.position_encoding == "learned" and done.config.max_position_embeddings == 12


def test_own_names(tmp_path):
    toy, settings, most = make("norm_inside")
    tensors = {
        name.replace("self_attn", "mixer").replace("embedding", "lookup").replace("layers", "parts"): tensor
        for name, tensor in toy.tensors.items()
    }
    with pytest.raises(ConversionError, match="none is known for the source embedding"):
        convert("annotated", write(tmp_path / "run", tensors, settings), tmp_path / "out")
    settings["names"] = {"self_attn": "mixer", "embedding": "lookup", "layers": "parts"}
    agree("annotated", write(tmp_path / "run", tensors, settings), tmp_path, toy.logits, toy.sizes, most)


def test_all_that_cannot_be_expressed_is_listed_together(tmp_path):
    toy, settings, _ = make()
    bad = {"norm": "sandwich", "activation": "tanh", "positions": "rotary", "layers": 6}
    tensors = {name: tensor for name, tensor in toy.tensors.items() if "generator" not in name}
    found = named_by("annotated", write(tmp_path / "run", tensors, {**settings, **bad}), tmp_path)
    assert [each.split(" is ")[0] for each in found] == ["layers", "norm", "activation", "positions", "names"]


def test_the_fold_is_needed(tmp_path):
    """Without √((d-1)/d) the difference would be thousands of times as large."""
    toy, settings, _ = make()
    reference = write_reference(tmp_path / "ref.npz", toy.logits, toy.sizes, start=2)
    for name in toy.tensors:
        if name.endswith("a_2"):
            toy.tensors[name] *= math.sqrt(16 / 15)
    with pytest.raises(ConversionError, match=r"the model's logits differ by \S+ from"):
        convert("annotated", write(tmp_path / "run", toy.tensors, settings), tmp_path / "out", reference=reference)


# Of the Annotated Transformer's code
USUAL = {
    **{"h": 8, "norm": "pre", "activation": "relu", "scale_embedding": True, "scale_output": False},
    **{"embedding_norm": False, "position_offset": 0},
}


def test_all_that_no_file_gives_is_asked_for(tmp_path):
    toy, _, _ = make()
    folder = write(tmp_path / "run", toy.tensors, {"dropout": 0.2})
    with pytest.raises(ConversionError) as error:
        convert("annotated", folder, tmp_path / "out")
    asked = [line.strip().partition(":")[0] for line in str(error.value).splitlines()[1:-1]]
    assert set(asked) == {*USUAL, "positions"}  # ε is that of the norm's approximation
    done = convert("annotated", folder, tmp_path / "out", options={**USUAL, "positions": "none"})
    assert done.config.position_encoding == "none" and done.config.encoder_norm_position == "pre"


def test_what_the_training_script_saved_is_not_asked_for(tmp_path):
    toy, _, _ = make("jadore_wide_heads")
    folder = write(tmp_path / "run", toy.tensors, {}, settings={"n_head": 4, "scale_emb_or_prj": "prj"})
    with pytest.raises(ConversionError) as error:
        convert("annotated", folder, tmp_path / "out")
    asked = [line.strip().partition(":")[0] for line in str(error.value).splitlines()[1:-1]]
    assert "norm" in asked and not {"h", "scale_embedding", "scale_output"} & set(asked)
