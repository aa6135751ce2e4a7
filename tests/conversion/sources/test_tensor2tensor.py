"""tensor2tensor: checkpoints in its layout for every option. Real ones are in test_samples.py."""

import json
import math
import shutil

import pytest
import torch
from plain_forward import Stack, sinusoid
from samples import named_by, write_reference
from tensorflow_writer import write_checkpoint

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion.formats.subword_text import subwords


HPARAMS = {
    "hidden_size": 16,
    "filter_size": 24,
    "num_heads": 4,
    "num_hidden_layers": 2,
    "layer_preprocess_sequence": "n",
    "layer_postprocess_sequence": "da",
    "shared_embedding_and_softmax_weights": True,
    "symbol_modality_num_shards": 16,
}
V1 = {"layer_preprocess_sequence": "none", "layer_postprocess_sequence": "dan"}
UNTIED = {"shared_embedding_and_softmax_weights": False}
OPTIONS = {
    "base": {},
    "v1": V1,
    "v1_without_dropout": {"layer_preprocess_sequence": "", "layer_postprocess_sequence": "an"},
    "untied": UNTIED,
    "shared_embedding": {**UNTIED, "shared_embedding": True},
    "two_vocabularies": {"pieces": (30, 22)},
    "two_vocabularies_untied": {**UNTIED, "pieces": (22, 30)},
    "vocabularies_rounded_up": {"vocab_divisor": 8},
    "one_shard": {"symbol_modality_num_shards": 1},
    "names_of_tensorflow_2": {"tensorflow_2": True},
    "names_of_tensorflow_2_v1": {**V1, "tensorflow_2": True},
    "unequal_depths": {"num_encoder_layers": 3, "num_decoder_layers": 1},
    "eleven_layers": {"num_encoder_layers": 11, "tensorflow_2": True},
    "target_space": {"target_space_id": 5},
    "no_target_space": {"use_target_space_embedding": False},
    "wide_keys": {"attention_key_channels": 24, "attention_value_channels": 8},
    "no_scale": {"multiply_embedding_mode": "none", "target_space_id": 3},
    "learned_positions": {"pos": "emb", "max_length": 20},
    "no_positions": {"pos": "none"},
    "words": {"words": True},
}


def make(folder, **options):
    """A checkpoint with weights drawn by chance, slots of Adam, settings and vocabularies."""
    folder.mkdir(exist_ok=True)
    pieces, names2, words = (options.pop(name, None) for name in ("pieces", "tensorflow_2", "words"))
    options = {**HPARAMS, **options}
    width, inner = options["hidden_size"], options["filter_size"]
    generator = torch.Generator().manual_seed(0)
    weights = {}

    def draw(name, *shape):
        weights[name] = torch.randn(shape, generator=generator) * 0.3

    def norm(name):
        draw(f"{name}/layer_norm/layer_norm_scale", width)
        draw(f"{name}/layer_norm/layer_norm_bias", width)

    pre = "n" in options["layer_preprocess_sequence"].replace("none", "")
    keys = options.get("attention_key_channels") or width
    values = options.get("attention_value_channels") or width
    for stack in ("encoder", "decoder"):
        parts = ["self_attention", *(["encdec_attention"] if stack == "decoder" else []), "ffn"]
        for layer in range(options.get(f"num_{stack}_layers") or options["num_hidden_layers"]):
            for part in parts:
                name = f"body/{stack}/layer_{layer}/{part}"
                norm(f"{name}/layer_prepostprocess" if pre else f"{name}/layer_postprocess")
                if part == "ffn":
                    for number, shape in ((1, (width, inner)), (2, (inner, width))):
                        draw(f"{name}/conv{number}/kernel", *shape)
                        draw(f"{name}/conv{number}/bias", shape[1])
                else:
                    for letter, size in (("q", keys), ("k", keys), ("v", values)):
                        draw(f"{name}/multihead_attention/{letter}/kernel", width, size)
                    draw(f"{name}/multihead_attention/output_transform/kernel", values, width)
        if pre:
            norm(f"body/{stack}/layer_prepostprocess")
        if options.get("pos") == "emb":
            draw(f"body/{'inputs' if stack == 'encoder' else 'targets'}_positional_embedding", 20, width)
    if options.get("use_target_space_embedding", True):
        draw("body/target_space_embedding/kernel", 32, width)
    sizes = [
        -(-size // options.get("vocab_divisor", 1)) * options.get("vocab_divisor", 1) for size in pieces or (30, 30)
    ]
    if options["shared_embedding_and_softmax_weights"]:
        tables = {(size, "shared") for size in sizes}
    else:
        inputs = {"shared"} if options.get("shared_embedding") else {"input_emb"}
        targets = {"shared"} if options.get("shared_embedding") else {"target_emb"}
        tables = {(sizes[0], name) for name in inputs} | {(sizes[1], name) for name in {*targets, "softmax"}}
    for size, leaf in sorted(tables):
        draw(f"symbol_modality_{size}_{width}/{leaf}", size, width)
    save(folder, options, weights, pieces or (30,), names2, words)
    return options, weights, sizes


def stored_name(name, tensorflow_2):
    if tensorflow_2 and name.endswith(("kernel", "conv1/bias", "conv2/bias")):
        scope = "transformer/parallel_0_5/transformer/transformer/"
        return scope + (name.replace("/ffn/", "_1/ffn/") if "/ffn/" in name else name)
    return f"transformer/{name}"


def save(folder, options, weights, pieces, tensorflow_2=False, words=False):
    stored = {"global_step": torch.tensor(400), "losses_avg/problem_0/total_loss": torch.tensor(1.0)}
    for name, tensor in weights.items():
        if name.startswith("symbol"):
            parts = tensor.tensor_split(options["symbol_modality_num_shards"])  # the first ones are longer, as there
            stored |= {f"transformer/{name}/weights_{number}": part for number, part in enumerate(parts)}
        else:
            stored[stored_name(name, tensorflow_2)] = tensor
    slots = {f"training/{name}/Adam{slot}": -tensor for name, tensor in stored.items() for slot in ("", "_1")}
    write_checkpoint(folder / "model.ckpt-400", {**stored, **slots, "training/beta1_power": torch.tensor(0.5)})
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-400"\n')
    (folder / "hparams.json").write_text(json.dumps(options))
    (folder / "flags_t2t.txt").write_text("--model=transformer\n--problem=translate_ende_test\n")
    for size, language in zip(pieces, ("en", "de")):
        end = "" if words else "_"
        tokens = [f"<pad>{end}", f"<EOS>{end}", *("UNK" if words else "\\", "_", "u", ";", "a", "b", "ab", "ab_")]
        tokens = [*tokens[:3], *map(str, range(10)), *tokens[3:]]
        tokens += [f"{'xyz'[number % 3] * (number + 1)}" for number in range(size - len(tokens))]
        quoted = "".join(f"'{token}'\n" for token in tokens)
        (folder / (f"vocab.test.{language}" if len(pieces) == 2 else "vocab.test")).write_text(quoted)


def logits(options, weights, sizes):
    """The function of source and target ids to logits that models/transformer.py describes."""
    width, eps = options["hidden_size"], 1e-6
    pre = "n" in options["layer_preprocess_sequence"].replace("none", "")

    def table(size, *leaves):
        names = [f"symbol_modality_{size}_{width}/{leaf}" for leaf in leaves]
        return next(weights[name] for name in names if name in weights).double()

    def norm(name):
        return weights[f"{name}/layer_norm/layer_norm_scale"], weights[f"{name}/layer_norm/layer_norm_bias"]

    def at(stack, part):
        if part == "final_norm":
            return norm(f"body/{stack}/layer_prepostprocess")
        layer, part = part.split(".", 1)
        name = f"body/{stack}/layer_{layer}"
        if part.startswith("norm"):
            place = {"1": "self_attention", "2": "encdec_attention", "3": "ffn"}[part[-1]]
            return norm(f"{name}/{place}/{'layer_prepostprocess' if pre else 'layer_postprocess'}")
        if part.startswith("ffn"):
            return weights[f"{name}/ffn/conv{part[-1]}/kernel"].T, weights[f"{name}/ffn/conv{part[-1]}/bias"]
        attention, projection = part.split(".")
        place = "self_attention" if attention == "self_attn" else "encdec_attention"
        letter = "output_transform" if projection == "out" else projection
        return weights[f"{name}/{place}/multihead_attention/{letter}/kernel"].T, None

    def embed(stack, ids, rows):
        x = torch.stack([rows[token] if token else torch.zeros(width).double() for token in ids])
        if options.get("multiply_embedding_mode", "sqrt_depth") == "sqrt_depth":
            x = x * math.sqrt(width)
        if stack == "encoder" and "body/target_space_embedding/kernel" in weights:
            x = x + weights["body/target_space_embedding/kernel"][options.get("target_space_id", 0)].double()
        if options.get("pos") == "emb":
            places = weights[f"body/{'inputs' if stack == 'encoder' else 'targets'}_positional_embedding"]
            return x + places[: len(ids)].double()
        if options.get("pos") == "none":
            return x
        return x + torch.stack([sinusoid(place, width, "inclusive") for place in range(len(ids))])

    def run(stack, x, memory=None):
        depth = options.get(f"num_{stack}_layers") or options["num_hidden_layers"]
        heads = options["num_heads"]
        return Stack(lambda part: at(stack, part), depth, heads, pre, "relu", eps, final_norm=pre).run(x, memory)

    def forward(source, target):
        memory = run("encoder", embed("encoder", source, table(sizes[0], "input_emb", "shared")))
        states = run("decoder", embed("decoder", target, table(sizes[1], "target_emb", "shared")), memory)
        return states @ table(sizes[1], "softmax", "shared").T

    return forward


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, tmp_path):
    options, weights, sizes = make(tmp_path, **OPTIONS[name])
    write_reference(tmp_path / "ref.npz", logits(options, weights, sizes), sizes, start=0)
    done = convert("auto", tmp_path, tmp_path / "out", reference=tmp_path / "ref.npz")
    assert (done.source, done.reopened) == ("tensor2tensor", 0) and done.reference <= 1e-5
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    ids = tokenizer("ab a" if name != "words" else "ab q a")["input_ids"]
    assert ids == ([18, 2, 16, 1] if name == "words" else [19, 16, 13, 1])
    generation = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out").generation_config
    assert (generation.num_beams, generation.length_penalty, generation.length_penalty_type) == (4, 0.6, "gnmt")
    assert generation.max_extra_tokens == 100


@pytest.mark.parametrize(
    "options",
    [
        {"pos": "timing_from_features"},
        {"ffn_layer": "conv_relu_conv"},
        {"norm_type": "batch"},
        {"self_attention_type": "dot_product_relative"},
        {"layer_postprocess_sequence": "dan"},
        {"proximity_bias": True},
        {"unidirectional_encoder": True},
        {"attention_variables_3d": True},
        {"model": "universal_transformer"},
    ],
)
def test_what_cannot_be_expressed_is_named(options, tmp_path):
    make(tmp_path, **options)
    with pytest.raises(ConversionError) as refusal:
        convert("tensor2tensor", tmp_path, tmp_path / "out")
    assert next(iter(options)) in str(refusal.value)


def test_values_of_another_type_are_named(tmp_path):
    options, weights, _ = make(tmp_path)
    wrong = {"hidden_size": "16", "num_heads": [4], "use_target_space_embedding": "no"}
    save(tmp_path, {**options, **wrong, "norm_epsilon": None}, weights, (30,))
    assert {*named_by("tensor2tensor", tmp_path, tmp_path)} == wrong.keys()


def test_one_of_several_checkpoints_is_named_by_its_index(tmp_path):
    make(tmp_path)
    for part in ("index", "data-00000-of-00002", "data-00001-of-00002"):
        shutil.copy(tmp_path / f"model.ckpt-400.{part}", tmp_path / f"model.ckpt-300.{part}")
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(ConversionError, match=r"holds model\.ckpt-300, model\.ckpt-400; name its \.index"):
        convert("tensor2tensor", tmp_path, tmp_path / "out")
    assert convert("auto", tmp_path / "model.ckpt-300.index", tmp_path / "out").reopened == 0


def tokens_of(text, vocabulary):
    """Subwords of a text, by the letter of text_encoder.py and tokenizer.py."""
    alphabet = {character for token in vocabulary for character in token} | set("\\_u;0123456789")
    words, start = [], 0
    for place in range(1, len(text) + 1):
        if place == len(text) or text[place].isalnum() != text[place - 1].isalnum():
            word = text[start:place]
            if word != " " or start == 0 or place == len(text):
                words.append(word)
            start = place
    pieces = []
    for word in words:
        word = word.replace("\\", "\\\\").replace("_", "\\u")
        rest = "".join(c if c in alphabet and c != "\n" else f"\\{ord(c)};" for c in word) + "_"
        while rest:
            longest = max((token for token in vocabulary if token and rest.startswith(token)), key=len)
            pieces.append(longest)
            rest = rest[len(longest) :]
    return pieces


TEXTS = [
    "",
    " ",
    "a man , 12 b.",
    " two  spaces ",
    "under_score \\ back\\u slash",
    "é ä, ñandú – “quoted” €5",
    "tab\tand\nline",
    "x;y \\233; _",
    "a b_",
    "1a",
    "кот αβγ",
]


def test_subwords_are_cut_and_joined_as_in_tensor2tensor():
    letters = "abcdeklmnopqrstuwxyt ,.;\\_0123456789"
    vocabulary = ["<pad>_", "<EOS>_", *letters, "an", "an_", " ,", "sc", "an_an", "\\u", "12", "_ "]
    backend = subwords(vocabulary)
    for text in TEXTS:
        encoding = backend.encode(text)
        assert encoding.tokens == tokens_of(text, vocabulary), text
        assert backend.decode(encoding.ids) == text
    assert backend.encode("猫").tokens == list("\\65533;_"), "what is not listed is U+FFFD"
