"""Marian: small models that Marian itself trained and scored, and models in its layout for every option."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from plain_forward import Stack, layer_norm, sinusoid
from samples import files_on_the_card, named_by, write_reference

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion.sources.marian import Marian


RECORDED = Path(__file__).parents[1] / "recorded"


@pytest.mark.parametrize("name", ["marian-1.12.42-post", "marian-1.12.42-pre"])
def test_marians_own_models_and_scores(name, tmp_path):
    record = json.loads((RECORDED / name / "recorded.json").read_text(encoding="utf-8"))
    done = convert("auto", RECORDED / name, tmp_path / "out")
    assert done.source == "marian" and done.reopened == 0
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out")
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    for source, target, scores in zip(record["source"], record["target"], record["word_scores"], strict=True):
        batch = tokenizer([source], text_target=[target], return_tensors="pt")
        with torch.no_grad():
            log_p = model(**batch).logits[0].log_softmax(-1)
        ours = [log_p[row, label].item() for row, label in enumerate(batch["labels"][0].tolist())]
        assert ours == pytest.approx(scores, abs=1e-5), "recorded with five decimals"
    if name.endswith("-pre"):  # its decoder disagrees with its scorer; see decoding_notes
        assert any("its own scorer" in note for note in done.notes)
        return
    batch = tokenizer(record["source"], return_tensors="pt", padding=True)
    for output, beams in (("greedy", 1), ("beam4", 4)):
        ids = model.generate(**batch, num_beams=beams, length_penalty=0.6, max_new_tokens=20)
        assert tokenizer.batch_decode(ids, skip_special_tokens=True) == record[output]


SETTINGS = {
    "version": "v1.9.0 ba94c5b9 2020-05-17 10:42:17 +0100",
    "type": "transformer",
    "dim-vocabs": [12, 12],
    "dim-emb": 16,
    "enc-depth": 2,
    "dec-depth": 1,
    "transformer-heads": 4,
    "transformer-dim-ffn": 24,
    "tied-embeddings-all": True,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
}
PRE = {"transformer-preprocess": "n", "transformer-postprocess": "da"}
SEPARATE = {"tied-embeddings-all": False, "dim-vocabs": [9, 12]}
OPTIONS = {
    "opus": {},
    "relu": {"transformer-ffn-activation": "relu"},
    "old_gelu": {"transformer-ffn-activation": "gelu"},
    "new_gelu": {"transformer-ffn-activation": "gelu", "version": "v1.12.14 2d067afb"},
    "pre": PRE,
    "pre_with_top": {**PRE, "transformer-postprocess-top": "n"},
    "post_with_top": {"transformer-postprocess-top": "nd"},
    "normed_embeddings": {"transformer-postprocess-emb": "nd"},
    "separate_tied_target": {**SEPARATE, "tied-embeddings": True},
    "separate_untied": SEPARATE,
    "larger_source": {**SEPARATE, "dim-vocabs": [14, 12]},
    "old_output_matrix": {**SEPARATE, "old": True},
    "shared_source_and_target": {"tied-embeddings-all": False, "tied-embeddings-src": True},
    "all_but_in_two_words": {"tied-embeddings-all": False, "tied-embeddings-src": True, "tied-embeddings": True},
    "without_output_bias": {"output-omit-bias": True},
    "without_output_bias_untied": {**SEPARATE, "output-omit-bias": True},
    "without_output_bias_old": {**SEPARATE, "output-omit-bias": True, "old": True},
    "deep_decoder": {"enc-depth": 1, "dec-depth": 3},
    "tied_layers": {"dec-depth": 3, "transformer-tied-layers": [1, 2, 1]},
    "narrow_decoder": {"transformer-decoder-dim-ffn": 20},
    "trained_positions": {"transformer-train-positions": True},
    "no_positions": {"transformer-disable-position-embeddings": True},
    "guided": {"guided-alignment": "none", "transformer-guided-alignment-layer": "last"},
}
ACTIVATIONS = {"old_gelu": "quick_gelu", "new_gelu": "gelu", "relu": "relu"}


def make(folder, **options):
    """A model with weights drawn by chance, beside it vocab.yml; the options and the weights."""
    options = {**SETTINGS, **options}
    folder.mkdir(exist_ok=True)
    old, width = options.pop("old", False), options["dim-emb"]
    generator = torch.Generator().manual_seed(0)
    weights = {}

    def draw(name, *shape):
        weights[name] = torch.randn(shape, generator=generator) * 0.3

    def norm(name, suffix=""):
        draw(f"{name}_ln_scale{suffix}", 1, width)
        draw(f"{name}_ln_bias{suffix}", 1, width)

    pieces = options["dim-vocabs"]
    tied_all, tied, shared = (options.get(f"tied-embeddings{which}") for which in ("-all", "", "-src"))
    if tied_all or shared:
        draw("Wemb", pieces[1], width)
    else:
        draw("encoder_Wemb", pieces[0], width)
        draw("decoder_Wemb", pieces[1], width)
    if not (tied_all or tied):
        draw("decoder_ff_logit_out_W" if old else "decoder_ff_logit_out_Wt", pieces[1], width)
        if old:
            weights["decoder_ff_logit_out_W"] = weights["decoder_ff_logit_out_W"].T.contiguous()
    if not options.get("output-omit-bias"):
        draw("decoder_ff_logit_out_b", 1, pieces[1])
    if options.get("transformer-train-positions"):
        draw("Wpos", 20, width)
    suffix = "_pre" if options["transformer-preprocess"] else ""
    for stack in ("encoder", "decoder"):
        if "n" in options["transformer-postprocess-emb"]:
            norm(f"{stack}_emb", "_pre")
        if options.get("transformer-postprocess-top"):
            norm(f"{stack}_top")
        depth = options[f"{stack[:3]}-depth"]
        numbers = set(options.get("transformer-tied-layers", range(1, depth + 1))) if stack == "decoder" else {1, 2}
        for number in sorted(numbers) if stack == "decoder" else range(1, depth + 1):
            name = f"{stack}_l{number}"
            for part in ("self", "context") if stack == "decoder" else ("self",):
                for letter in "qkvo":
                    draw(f"{name}_{part}_W{letter}", width, width)
                    draw(f"{name}_{part}_b{letter}", 1, width)
                norm(f"{name}_{part}_Wo", suffix)
            inner = options.get("transformer-decoder-dim-ffn", 24) if stack == "decoder" else 24
            for index, shape in ((1, (width, inner)), (2, (inner, width))):
                draw(f"{name}_ffn_W{index}", *shape)
                draw(f"{name}_ffn_b{index}", 1, shape[1])
            norm(f"{name}_ffn_ffn", suffix)
    save(folder, options, weights)
    return options, weights


def save(folder, options, weights):
    """Write model.npz as Marian does, the settings as bytes in it, and its vocabularies."""
    text = yaml.safe_dump(options).encode() + b"\0" * 5
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    np.savez(folder / "model.npz", **{"special:model.yml": np.frombuffer(text, np.int8)}, **arrays)
    names = ["source.vocab.yml", "target.vocab.yml"]
    for name, pieces in zip(names, options["dim-vocabs"], strict=False):
        tokens = ["</s>", "<unk>", "no", "1_000", "~", *(f"w{number}" for number in range(pieces - 5))]
        lines = (f"{json.dumps(token)}: {number}\n" for number, token in enumerate(tokens))
        (folder / name).write_text("".join(lines), encoding="utf-8")
    (folder / "decoder.yml").write_text(yaml.safe_dump({"vocabs": [f"/data/{name}" for name in names]}))


def logits(options, weights, activation):
    """The function of source and target ids to logits that transformer.h describes; an id behind all is no word."""
    pre, width = bool(options["transformer-preprocess"]), options["dim-emb"]

    def linear(name, part):
        return weights[f"{name}_W{part}"].T, weights[f"{name}_b{part}"][0]

    def norm(name):
        suffix = "_pre" if f"{name}_ln_scale_pre" in weights else ""
        return weights[f"{name}_ln_scale{suffix}"][0], weights[f"{name}_ln_bias{suffix}"][0]

    def at(stack, part):
        if part == "final_norm":
            return norm(f"{stack}_top")
        layer, part = part.split(".", 1)
        numbers = options.get("transformer-tied-layers") if stack == "decoder" else None
        name = f"{stack}_l{numbers[int(layer)] if numbers else int(layer) + 1}"
        if part in ("norm1", "norm2"):
            return norm(f"{name}_{'self' if part == 'norm1' else 'context'}_Wo")
        if part == "norm3":
            return norm(f"{name}_ffn_ffn")
        if part.startswith("ffn"):
            return linear(f"{name}_ffn", part[-1])
        attention, projection = part.split(".")
        return linear(f"{name}_{'self' if attention == 'self_attn' else 'context'}", projection[0])

    def embed(stack, ids):
        table = weights.get(f"{stack}_Wemb", weights.get("Wemb")).double()
        rows = torch.stack([table[token] if token < len(table) else torch.zeros(width).double() for token in ids])
        if "Wpos" in weights:
            rows = rows + weights["Wpos"][: len(ids)].double()
        elif not options.get("transformer-disable-position-embeddings"):
            places = torch.stack([sinusoid(place, width, "inclusive") for place in range(len(ids))])
            rows = rows * math.sqrt(width) + places
        return layer_norm(rows, norm(f"{stack}_emb"), 1e-6) if f"{stack}_emb_ln_scale_pre" in weights else rows

    def run(stack, ids, memory=None):
        top = f"{stack}_top_ln_scale" in weights
        depth, heads = options[f"{stack[:3]}-depth"], options["transformer-heads"]
        return Stack(lambda part: at(stack, part), depth, heads, pre, activation, 1e-6, final_norm=top).run(
            embed(stack, ids), memory
        )

    def forward(source, target):
        states = run("decoder", target, run("encoder", source))
        names = ("decoder_ff_logit_out_Wt", "decoder_ff_logit_out_W", "decoder_Wemb", "Wemb")
        name = next(name for name in names if name in weights)
        output = weights[name].double() if name == "decoder_ff_logit_out_W" else weights[name].double().T
        bias = weights.get("decoder_ff_logit_out_b")
        return states @ output if bias is None else states @ output + bias[0].double()

    return forward


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, tmp_path):
    options, weights = make(tmp_path, **OPTIONS[name])
    forward = logits(options, weights, ACTIVATIONS.get(name, "swish"))
    pieces = options["dim-vocabs"]
    write_reference(tmp_path / "ref.npz", forward, pieces, start=max(pieces))
    done = convert("auto", tmp_path, tmp_path / "out", reference=tmp_path / "ref.npz")
    assert (done.source, done.reopened) == ("marian", 0) and done.reference <= 1e-5
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("w0 no ~ 1_000 never")["input_ids"] == [5, 2, 4, 3, 1, 0]
    assert tokenizer.pad_token_id == max(pieces) == done.config.pad_token_id == len(tokenizer) - 1
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out")
    batch = tokenizer(["w0 w1", "w2"], return_tensors="pt", padding=True)
    assert model(**batch, labels=batch["input_ids"]).logits.softmax(-1)[..., pieces[1] :].max() == 0


@pytest.mark.parametrize(
    "options",
    [
        {"type": "s2s"},
        {"transformer-decoder-autoreg": "average-attention"},
        {"transformer-preprocess": "n"},
        {"transformer-postprocess": "dar"},
        {"transformer-postprocess-top": "dan"},
        {"transformer-ffn-depth": 3},
        {"transformer-attention-mask": "alibi"},
        {"transformer-no-projection": True},
        {"right-left": True},
        {"dim-vocabs": [12, 12, 12]},
        {"input-types": ["sequence", "class"]},
        {"transformer-tied-layers": [1, 1]},
    ],
)
def test_what_cannot_be_expressed_is_named(options, tmp_path):
    make(tmp_path, **{**options, "transformer-heads": 4})
    with pytest.raises(ConversionError) as refusal:
        convert("marian", tmp_path, tmp_path / "out")
    assert next(iter(options)) in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_everything_that_cannot_be_expressed_is_listed_at_once(tmp_path):
    make(tmp_path, **{"type": "s2s", "transformer-pool": True, "transformer-preprocess": "h"})
    with pytest.raises(ConversionError, match=r"type(.|\n)*transformer-pool(.|\n)*transformer-preprocess"):
        convert("marian", tmp_path, tmp_path / "out")


def test_values_of_another_type_are_named(tmp_path):
    options, weights = make(tmp_path)
    wrong = {"dim-emb": "16", "tied-embeddings-all": "no", "transformer-heads": True}
    save(tmp_path, {**options, **wrong, "label-smoothing": None}, weights)
    (tmp_path / "decoder.yml").write_text("vocabs: [source.vocab.yml, target.vocab.yml]\nbeam-size: wide\n")
    assert {*named_by("marian", tmp_path, tmp_path)} == {*wrong, "beam-size"}


def test_settings_of_the_decoder_are_kept(tmp_path):
    make(tmp_path)
    path = tmp_path / "decoder.yml"
    path.write_text(path.read_text() + "beam-size: 6\nnormalize: 1\nword-penalty: 0.2\nallow-unk: true\n")
    done = convert("marian", tmp_path / "model.npz", tmp_path / "out")
    settings = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out").generation_config
    assert (settings.num_beams, settings.length_penalty, settings.suppress_tokens) == (6, 1.0, [12])
    assert any("word-penalty" in note for note in done.notes)
    assert files_on_the_card(tmp_path / "out") == {path.name for path in tmp_path.iterdir() if path.is_file()}


def test_compressed_files_are_read_too(tmp_path):
    options, weights = make(tmp_path)
    write_reference(tmp_path / "ref.npz", logits(options, weights, "swish"), options["dim-vocabs"], start=12)
    with np.load(tmp_path / "model.npz") as file:
        arrays = dict(file)
    np.savez_compressed(tmp_path / "model.npz", **arrays)
    assert convert("auto", tmp_path, tmp_path / "out", reference=tmp_path / "ref.npz").reference <= 1e-5


def test_a_vocabulary_of_another_length_is_told(tmp_path):
    make(tmp_path)
    path = tmp_path / "target.vocab.yml"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    (tmp_path / "source.vocab.yml").write_text(path.read_text())
    done = convert("marian", tmp_path, tmp_path / "shorter")
    assert sum("names 10 of 12 tokens" in note for note in done.notes) == 2
    options, weights = make(tmp_path / "again", **{"dim-vocabs": [13, 13]})
    weights["Wemb"] = weights["Wemb"][:12]
    save(tmp_path / "again", options, weights)
    with pytest.raises(ConversionError, match="13 tokens, and Wemb has 12 rows"):
        convert("marian", tmp_path / "again", tmp_path / "longer")


def test_settings_inside_are_text_and_never_unpickled(tmp_path):
    make(tmp_path)
    np.savez(tmp_path / "model.npz", **{"special:model.yml": np.array([{"type": "transformer"}], dtype=object)})
    with pytest.raises(ConversionError, match="not a complete model of Marian"):
        convert("marian", tmp_path, tmp_path / "out")


def test_a_file_of_numpy_is_not_taken_for_marians(tmp_path):
    np.savez(tmp_path / "ref.npz", logits=np.zeros(3))
    assert not Marian.recognises(tmp_path)
