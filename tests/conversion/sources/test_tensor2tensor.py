"""tensor2tensor: checkpoints in its layout for every option. Real ones are in test_samples.py."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from samples import named_by, write_reference
from tensorflow_writer import write_checkpoint
from toy import Side, Toy, names_of

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion.formats.subword_text import subwords


HPARAMS = {
    **{"hidden_size": 16, "filter_size": 24, "num_heads": 4, "num_hidden_layers": 2},
    **{"layer_preprocess_sequence": "n", "layer_postprocess_sequence": "da"},
    **{"shared_embedding_and_softmax_weights": True, "symbol_modality_num_shards": 16},
}
ATTENTIONS = ("self_attention", "encdec_attention")
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
    """A checkpoint with weights drawn by chance, slots of Adam, settings and vocabularies; and what it computes."""
    folder.mkdir(exist_ok=True)
    pieces, names2, words = (options.pop(name, None) for name in ("pieces", "tensorflow_2", "words"))
    options = {**HPARAMS, **options}
    width, heads, divisor = options["hidden_size"], options["num_heads"], options.get("vocab_divisor", 1)
    sizes = [-(-size // divisor) * divisor for size in pieces or (30, 30)]
    leaves = ("input_emb", "target_emb", "softmax")
    if options["shared_embedding_and_softmax_weights"]:
        leaves = ("shared", "shared", "shared")
    elif options.get("shared_embedding"):
        leaves = ("shared", "shared", "softmax")
    tables = [f"symbol_modality_{size}_{width}/{leaf}" for size, leaf in zip((*sizes, sizes[1]), leaves, strict=True)]
    pre = "n" in options["layer_preprocess_sequence"].replace("none", "")
    norm = f"layer_{'prepostprocess' if pre else 'postprocess'}.layer_norm"
    names = names_of(
        "layers",
        ("self_attention", "self_attention", "encdec_attention"),
        [f"multihead_attention.{part}" for part in ("q", "k", "v", "output_transform")],
        [[f"{part}.{norm}" for part in (*attentions, "ffn")] for attentions in (ATTENTIONS[:1], ATTENTIONS)],
        ("ffn.conv1", "ffn.conv2"),
        tables[:2],
        tables[2],
        (norm, ""),
        [f"body/{side}_positional_embedding" for side in ("inputs", "targets")],
    )
    side = Side(
        width=width,
        heads=heads,
        ffn=options["filter_size"],
        pre_norm=pre,
        final_norm=pre,
        scaled=options.get("multiply_embedding_mode", "sqrt_depth") == "sqrt_depth",
        positions={"emb": "learned", "none": "none"}.get(options.get("pos"), "inclusive"),
        longest=20,
        biases="ffn",
    )
    depths = [options.get(f"num_{stack}_layers", options["num_hidden_layers"]) for stack in ("encoder", "decoder")]
    toy = Toy(
        names,
        *(replace(side, layers=depth) for depth in depths),
        sizes=sizes,
        head_width=options.get("attention_key_channels", width) // heads,
        value_width=options.get("attention_value_channels", width) // heads,
        eps=1e-6,
        norm_kinds=("layer_norm_scale", "layer_norm_bias"),
        no_word=0,
    )
    weights = {}
    for name, tensor in toy.tensors.items():
        place = f"body/{name.replace('layers.', 'layer_').replace('.', '/')}"
        if name.startswith(("encoder", "decoder")):
            is_matrix = name.endswith("weight")
            weights[place.replace("/weight", "/kernel")] = tensor.T.contiguous() if is_matrix else tensor
        else:
            weights[name.removesuffix(".weight")] = tensor
    if options.get("use_target_space_embedding", True):
        spaces = torch.randn(32, width, generator=torch.Generator().manual_seed(0))
        weights["body/target_space_embedding/kernel"] = spaces
        toy.added = spaces[options.get("target_space_id", 0)].double()
    save(folder, options, weights, pieces or (30,), names2, words)
    return options, weights, toy


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


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, tmp_path):
    _, _, toy = make(tmp_path, **OPTIONS[name])
    write_reference(tmp_path / "ref.npz", toy.logits, toy.sizes, start=0)
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
    *("", " ", "a man , 12 b.", " two  spaces ", "under_score \\ back\\u slash", "é ä, ñandú – “quoted” €5"),
    *("tab\tand\nline", "x;y \\233; _", "a b_", "1a", "кот αβγ"),
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
