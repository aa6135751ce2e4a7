"""eole: models in its layout for every option. Real ones are in test_samples.py."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from samples import agree, files_on_the_card, named_by
from toy import EMBEDDING, OUTPUT, Side, Toy, names_of

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert


NORMS = ("input_layernorm", "post_attention_layernorm")


def names(encoder_norms=NORMS):
    return names_of(
        "transformer_layers",
        ("self_attn", "self_attn", "context_attn"),
        ("linear_query", "linear_keys", "linear_values", "final_linear"),
        (encoder_norms, (NORMS[0], "precontext_layernorm", NORMS[1])),
        ("mlp.gate_up_proj", "mlp.down_proj", "mlp.up_proj"),
        ("src_emb.embeddings", "tgt_emb.embeddings"),
        "generator",
        ("layer_norm", ""),
        ("src_emb.pe", "tgt_emb.pe"),
    )


POSTNORM = names(("attention_layer_norm", "output_layer_norm"))
SPECIALS = ["<unk>", "<blank>", "<s>", "</s>"]
WORDS = {"src": [*SPECIALS, "one", "two", "three", "four", "five"], "tgt": [*SPECIALS, "eins", "zwei", "drei"]}
BASE = {"architecture": "transformer", "hidden_size": 16, "layers": 2, "heads": 4, "transformer_ff": 24}
SIDE = Side(pre_norm=True, final_norm=True, biases="")
LEARNED = {"position_encoding_type": "Learned", "n_positions": 12}
LEARNED_SIDE = {"positions": "learned", "scaled": False}

# Options of the model, and of "encoder", "decoder", "embeddings" in it; what they mean: fields of the sides, of the
# whole. Biases of output projections are in the file where add_qkvbias or add_final_linear_bias is.
OPTIONS = {
    "separate": ({}, {}, {}, {}),
    "shared": ({"share_embeddings": True, "share_decoder_embeddings": True}, {}, {}, {"same": (EMBEDDING, OUTPUT)}),
    "share_embeddings": ({"share_embeddings": True}, {}, {}, {"same": (EMBEDDING,)}),
    "share_decoder_embeddings": ({"share_decoder_embeddings": True}, {}, {}, {"same": (OUTPUT,)}),
    "add_qkvbias": ({"add_qkvbias": True, "add_final_linear_bias": True}, *[{"biases": "q k v out"}] * 2, {}),
    # As eole trains it where add_qkvbias is given for the whole model.
    "add_qkvbias_of_the_model": ({"add_qkvbias": True}, {"biases": "q k v"}, {"biases": "q k v out"}, {}),
    "no_output_bias": ({"add_qkvbias": True, "add_final_linear_bias": False}, *[{"biases": "q k v"}] * 2, {}),
    "output_bias_alone": ({"add_final_linear_bias": True}, *[{"biases": "out"}] * 2, {}),
    "no_key_bias": ({"add_qkvbias": True, "add_key_bias": False}, *[{"biases": "q v out"}] * 2, {}),
    "biases_of_one_stack": (
        {"encoder": {"add_qkvbias": True, "add_ffnbias": True}},
        {"biases": "q k v out ffn"},
        {"biases": ""},
        {},
    ),
    "add_ffnbias": ({"add_ffnbias": True}, *[{"biases": "ffn"}] * 2, {}),
    "sinusoid_concat": (
        {"embeddings": {"position_encoding_type": "SinusoidalConcat"}},
        *[{"positions": "inclusive"}] * 2,
        {},
    ),
    "learned": ({"embeddings": LEARNED}, LEARNED_SIDE, LEARNED_SIDE, {}),
    "learned_shifted": (
        {"embeddings": {**LEARNED, "n_positions": 14, "position_shift": 2}},
        LEARNED_SIDE,
        LEARNED_SIDE,
        {"offset": 2},
    ),
    "no_positions": (
        {"embeddings": {"position_encoding_type": None}},
        *[{"positions": "none", "scaled": False}] * 2,
        {},
    ),
    "no_positions_normalized": (
        {"embeddings": {"position_encoding_type": None, "normalize": True}},
        *[{"positions": "none"}] * 2,
        {},
    ),
    **{
        name: ({"mlp_activation_fn": name}, *[{"activation": plain}] * 2, {})
        for name, plain in (
            ("gelu", "gelu"),
            ("gelu-tanh", "gelu_tanh"),
            ("quick_gelu", "quick_gelu"),
            ("silu", "swish"),
        )
    },
    **{
        name: ({"mlp_activation_fn": name}, *[{"activation": plain}] * 2, {"gated": True})
        for name, plain in (("gated-gelu", "gelu"), ("gated-gelu-tanh", "gelu_tanh"), ("gated-silu", "swish"))
    },
    "gate_with_biases": (
        {"mlp_activation_fn": "gated-silu", "add_ffnbias": True},
        *[{"activation": "swish", "biases": "ffn"}] * 2,
        {"gated": True},
    ),
    "norm_eps": ({"norm_eps": 1e-2}, {}, {}, {"eps": 1e-2}),
    "norm_in_float32": ({"layer_norm": "standardFP32"}, {}, {}, {}),
    "heads_kv": ({"heads_kv": 2, "add_qkvbias": True}, *[{"biases": "q k v"}] * 2, {"key_value_heads": 2}),
    "head_dim": ({"head_dim": 6}, {}, {}, {"head_width": 6}),
    "no_generator_bias": ({"generator_bias": False}, {}, {}, {"output_bias": False}),
    "postnorm": ({"encoder": {"encoder_layer_style": "postnorm"}}, {"pre_norm": False}, {}, {"names": POSTNORM}),
    "postnorm_without_final_norm": (
        {"encoder": {"encoder_layer_style": "postnorm", "final_encoder_layer_norm": False}},
        {"pre_norm": False, "final_norm": False},
        {},
        {"names": POSTNORM},
    ),
    "unequal": (
        {
            "encoder": {"layers": 3, "heads": 2, "transformer_ff": 20},
            "decoder": {"layers": 1, "heads": 8, "transformer_ff": 40, "mlp_activation_fn": "gelu"},
        },
        {"layers": 3, "heads": 2, "ffn": 20},
        {"layers": 1, "heads": 8, "ffn": 40, "activation": "gelu"},
        {},
    ),
}


def make(name="separate"):
    """A toy of one of OPTIONS, the section `model` of its config, and the vocabularies."""
    options, encoder, decoder, whole = OPTIONS[name]
    words = dict.fromkeys(WORDS, WORDS["src"]) if EMBEDDING in whole.get("same", ()) else WORDS
    sizes = (len(words["src"]), len(words["tgt"]))
    fields = {"names": names(), "sizes": sizes, "output_bias": True, **whole}
    toy = Toy(encoder=replace(SIDE, **encoder), decoder=replace(SIDE, **decoder), **fields)
    stacks = {stack: {f"{stack}_type": "transformer", **options.get(stack, {})} for stack in ("encoder", "decoder")}
    return toy, {**BASE, **options, **stacks}, words


def write(folder, toy, model, words=WORDS, vocabulary=None, **config):
    """A folder as eole leaves it."""
    folder.mkdir(exist_ok=True)
    kept = dict(toy.tensors)
    if model.get("share_embeddings"):
        del kept["tgt_emb.embeddings.weight"]
    if model.get("share_decoder_embeddings"):
        del kept["generator.weight"]
    if "Learned" not in str(model):
        kept |= {f"{side}_emb.pe.pe": torch.zeros(9, 1, 16) for side in ("src", "tgt")}
    for layer in range(toy.decoder.layers):
        kept[f"decoder.transformer_layers.{layer}.layer_scalar"] = torch.ones(1)
    save_file({name: tensor.contiguous() for name, tensor in kept.items()}, folder / "model.00.safetensors")
    (folder / "config.json").write_text(json.dumps({"model": model, **config}), encoding="utf-8")
    content = {**words, "decoder_start_token": "<s>", **(vocabulary or {})}
    (folder / "vocab.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name, tmp_path):
    toy, model, words = make(name)
    folder = write(tmp_path / "run", toy, model, words)
    done = agree("eole", folder, tmp_path, toy.logits, toy.sizes)
    assert done.config.embedding_sharing == toy.sharing


def test_normalized_learned_positions(tmp_path):
    """`normalize` multiplies the sum of embeddings and positions by √d."""
    toy, model, words = make("learned")
    model["embeddings"] = {**model["embeddings"], "normalize": True}
    folder = write(tmp_path / "run", toy, model, words)
    for stack in ("encoder", "decoder"):
        toy.tensors[f"{toy.names[stack]['positions']}.weight"] *= 4.0
    toy.encoder.scaled = toy.decoder.scaled = True
    agree("eole", folder, tmp_path, toy.logits, toy.sizes)


def test_all_that_cannot_be_expressed_is_listed_together(tmp_path):
    toy, model, words = make()
    model |= {
        "layer_norm": "rms",
        "sliding_window": 5,
        "parallel_residual": True,
        "num_experts": 2,
        "add_estimator": True,
        "embeddings": {"position_encoding_type": "Rotary", "embedding_type": "roberta"},
        "encoder": {
            "encoder_type": "transformer",
            "hidden_size": 8,
            "norm_eps": 1e-3,
            "mlp_activation_fn": "gated-silu",
        },
    }
    training = {"quant_layers": ["linear_keys"], "lora_layers": ["linear_query"]}
    words = {**words, "tgt": ["eins", *SPECIALS]}
    found = named_by("eole", write(tmp_path / "run", toy, model, words, training=training), tmp_path)
    stacks = ("layer_norm", "sliding_window", "parallel_residual", "num_experts")
    assert found == [
        *("embedding_type", "position_encoding_type", "add_estimator", "quant_layers", "lora_layers"),
        *(f"{stack}.{name}" for stack in ("encoder", "decoder") for name in stacks),
        *("hidden_size", "norm_eps", "mlp_activation_fn", "vocabulary", "vocabulary"),
    ]


def test_own_special_tokens(tmp_path):
    toy, model, _ = make()
    names = {"unk_token": "[U]", "pad_token": "[P]", "bos_token": "[B]", "eos_token": "[E]"}
    words = {"src": [*names.values(), "one", "two", "x", "y", "z"], "tgt": [*names.values(), "eins", "zwei", "drei"]}
    folder = write(tmp_path / "run", toy, model, words, {"specials": names, "decoder_start_token": "[E]"})
    done = convert("eole", folder, tmp_path / "out")
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("one six")["input_ids"] == [4, 0]
    assert tokenizer(text_target="zwei")["input_ids"] == [5, 3]
    assert done.config.decoder_start_token_id == 3


def test_settings_of_the_search_and_of_texts(tmp_path):
    toy, model, words = make()
    inference = {"beam_size": 3, "length_penalty": "none", "max_length": 99, "max_length_ratio": 0, "min_length": 2}
    transforms = {
        "transforms": ["sentencepiece", "uppercase"],
        "transforms_configs": {"sentencepiece": {"src_subword_model": "${MODEL_PATH}/sp.model"}},
    }
    folder = write(tmp_path / "run", toy, model, words, inference=inference, **transforms)
    done = convert("eole", folder, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    expected = {"num_beams": 3, "length_penalty": 0.0, "max_new_tokens": 99, "min_new_tokens": 2}
    assert expected.items() <= written.items()
    assert [note.split(" was ")[0].split(" is ")[0] for note in done.notes][:2] == [
        "the transform uppercase",
        "sp.model",
    ]
    assert len(done.notes) == 3  # and where the beam search stops


def test_the_card_lists_every_file_that_was_read(tmp_path):
    toy, model, words = make()
    transforms = {"transforms": ["bpe"], "transforms_configs": {"bpe": {"src_subword_model": "codes.bpe"}}}
    folder = write(tmp_path / "run", toy, model, words, **transforms)
    (folder / "codes.bpe").write_text("#version: 0.2\no n\n", encoding="utf-8")
    convert("eole", folder, tmp_path / "out")
    assert files_on_the_card(tmp_path / "out") == {path.name for path in folder.iterdir()}


def test_values_of_another_type_are_named(tmp_path):
    toy, model, words = make()
    model |= {"heads": "4", "share_embeddings": "yes", "encoder": {"encoder_type": "transformer", "layers": None}}
    found = named_by("eole", write(tmp_path / "run", toy, model, words), tmp_path)
    assert found == ["share_embeddings", "encoder.layers", "encoder.heads", "decoder.heads"]


def test_a_decoder_alone_is_refused(tmp_path):
    toy, model, words = make()
    model["encoder"] = None
    with pytest.raises(ConversionError, match="encoder: not there"):
        convert("eole", write(tmp_path / "run", toy, model, words), tmp_path / "out")
