"""Marian: small models that Marian itself trained and scored, and models in its layout for every option."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from samples import files_on_the_card, named_by, write_reference
from toy import Side, Toy, names_of

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
    **{"version": "v1.9.0 ba94c5b9 2020-05-17 10:42:17 +0100", "type": "transformer", "dim-vocabs": [12, 12]},
    **{"dim-emb": 16, "enc-depth": 2, "dec-depth": 1, "transformer-heads": 4, "transformer-dim-ffn": 24},
    **{"tied-embeddings-all": True, "transformer-ffn-activation": "swish", "transformer-preprocess": ""},
    **{"transformer-postprocess": "dan", "transformer-postprocess-emb": "d"},
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
# Of maps and of norms.
KINDS, NORM_KINDS = {"weight": "W", "bias": "b"}, {"weight": "scale", "bias": "bias"}
NORMS = (("self.norm", "ffn.norm"), ("self.norm", "context.norm", "ffn.norm"))


def make(folder, **options):
    """A model with weights drawn by chance, beside it vocab.yml; the options, the weights, and what they compute."""
    options = {**SETTINGS, **options}
    folder.mkdir(exist_ok=True)
    old, pieces = options.pop("old", False), options["dim-vocabs"]
    tied_all, tied, shared = (options.get(f"tied-embeddings{which}") for which in ("-all", "", "-src"))
    tables = ("Wemb", "Wemb") if tied_all or shared else ("encoder_Wemb", "decoder_Wemb")
    output = tables[1] if tied_all or tied else "decoder_ff_logit_out_Wt"
    names = names_of(
        "layers", ("self", "self", "context"), "qkvo", NORMS, ("ffn.1", "ffn.2"), tables, output, ("top", "emb"),
        ("Wpos", "Wpos"),
    )  # fmt: skip
    learned, none = (options.get(f"transformer-{name}") for name in ("train-positions", "disable-position-embeddings"))
    gelu = "gelu" if "v1.12" in options["version"] else "quick_gelu"
    activation = options["transformer-ffn-activation"]
    side = Side(
        width=options["dim-emb"],
        heads=options["transformer-heads"],
        pre_norm=bool(options["transformer-preprocess"]),
        final_norm=bool(options.get("transformer-postprocess-top")),
        activation=gelu if activation == "gelu" else activation,
        scaled=not (learned or none),
        positions="learned" if learned else "none" if none else "inclusive",
    )
    toy = Toy(
        names,
        replace(side, layers=options["enc-depth"]),
        replace(side, layers=options["dec-depth"], ffn=options.get("transformer-decoder-dim-ffn", 24)),
        sizes=pieces[:2],
        eps=1e-6,
        output_bias=not options.get("output-omit-bias"),
        embedding_norm="n" in options["transformer-postprocess-emb"],
        no_word=max(pieces),
    )
    weights = stored(toy.tensors, output, "_pre" if side.pre_norm else "")
    if old and output not in tables:
        weights["decoder_ff_logit_out_W"] = weights.pop(output).T.contiguous()
    for layer, number in enumerate(options.get("transformer-tied-layers", ())):
        for name in [name for name in toy.tensors if name.startswith(f"decoder.layers.{layer}.")]:
            toy.tensors[name] = toy.tensors[name.replace(f"layers.{layer}.", f"layers.{number - 1}.")]
        if number != layer + 1:
            weights = {name: each for name, each in weights.items() if not name.startswith(f"decoder_l{layer + 1}_")}
    save(folder, options, weights)
    return options, weights, toy


def stored(tensors, output, suffix):
    """The tensors under Marian's names: matrices of columns, and rows."""
    found = {f"{output}.bias": "decoder_ff_logit_out_b"}
    for name in tensors:
        if match := re.fullmatch(r"(\w+)\.layers\.(\d+)\.(\w+)\.(\w+)\.(weight|bias)", name):
            stack, layer, module, part, kind = match.groups()
            place = f"{stack}_l{int(layer) + 1}_{module}"
            norm = f"{place}_{'ffn' if module == 'ffn' else 'Wo'}_ln_{NORM_KINDS[kind]}{suffix}"
            found[name] = norm if part == "norm" else f"{place}_{KINDS[kind]}{part}"
        elif match := re.fullmatch(r"(\w+)\.(top|emb)\.(weight|bias)", name):
            found[name] = f"{match[1]}_{match[2]}_ln_{NORM_KINDS[match[3]]}{'_pre' if match[2] == 'emb' else ''}"
    return {
        found.get(name, name.removesuffix(".weight")): tensor[None] if tensor.dim() == 1
        else tensor.T.contiguous() if ".layers." in name else tensor
        for name, tensor in tensors.items()
    }  # fmt: skip


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


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, tmp_path):
    options, _, toy = make(tmp_path, **OPTIONS[name])
    pieces = options["dim-vocabs"]
    write_reference(tmp_path / "ref.npz", toy.logits, pieces, start=max(pieces))
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
        *({"type": "s2s"}, {"transformer-decoder-autoreg": "average-attention"}, {"transformer-preprocess": "n"}),
        *({"transformer-postprocess": "dar"}, {"transformer-postprocess-top": "dan"}, {"transformer-ffn-depth": 3}),
        *({"transformer-attention-mask": "alibi"}, {"transformer-no-projection": True}, {"right-left": True}),
        *({"dim-vocabs": [12, 12, 12]}, {"input-types": ["sequence", "class"]}, {"transformer-tied-layers": [1, 1]}),
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
    options, weights, _ = make(tmp_path)
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
    _, _, toy = make(tmp_path)
    write_reference(tmp_path / "ref.npz", toy.logits, toy.sizes, start=12)
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
    options, weights, _ = make(tmp_path / "again", **{"dim-vocabs": [13, 13]})
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
