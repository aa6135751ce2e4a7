"""The way out: byte-identical round trips, and the other tools' own logits."""

import json

import pytest
import test_fairseq
import test_marianmt
import torch
import transformers
from test_samples import PEERS, of_all
from transformers import BartForConditionalGeneration

from vanilla_transformer_hf.conversion import ConversionError, convert
from vanilla_transformer_hf.conversion.targets import export


# They name the files that a model was made from, or hold the checksum of one that does.
CARD = {"README.md", "card_facts.json", "SHA256SUMS"}


def files(folder):
    """Everything in a folder of ours but the card, which says what it was made from."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in CARD}


FAIRSEQ = {name: fields for name, fields in test_fairseq.OPTIONS.items() if name != "decoder_of_format_2"}


@pytest.mark.parametrize("options", FAIRSEQ.values(), ids=FAIRSEQ)
def test_fairseq_round_trip(options, tmp_path):
    reference = test_fairseq.Reference(options)
    convert("fairseq", reference.write(tmp_path / "theirs"), tmp_path / "ours")
    done = export("fairseq", tmp_path / "ours", tmp_path / "back")
    assert done.difference == 0 and done.notes == []
    if reference.layout == "0.12":
        tensors = torch.load(tmp_path / "back" / "checkpoint_best.pt", weights_only=False)["model"]
        stale = [name for name in reference.tensors if name not in tensors]
        assert all(name.rpartition("_")[2] in ("weight", "bias", "tensor") for name in stale)
        for name, tensor in tensors.items():
            if name in reference.tensors and "version" not in name:
                assert torch.equal(tensor, reference.tensors[name]), name
        for name in ("dict.en.txt", "dict.de.txt"):
            assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    convert("fairseq", tmp_path / "back", tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "ours")


@pytest.mark.parametrize("target", ["marianmt", "bart"])
def test_options_of_our_own_search_are_left_out_and_told(target, tiny_model, tmp_path):
    sizes = {"max_position_embeddings": 40, "attention_bias": True, "output_bias": True}
    bart = {"position_encoding": "learned", "position_offset": 2, "layernorm_embedding": True}
    marian = {"position_encoding": "sinusoidal_halves"}
    model = tiny_model(**sizes, **(bart if target == "bart" else marian))
    model.generation_config.update(num_beams=4, length_penalty=0.6, length_penalty_type="gnmt", coverage_penalty=0.4)
    model.save_pretrained(tmp_path / "ours")
    notes = export(target, tmp_path / "ours", tmp_path / "theirs").notes
    assert [note.split(" is left out")[0] for note in notes[:2]] == [
        "length_penalty_type='gnmt'",
        "coverage_penalty=0.4",
    ]
    written = json.loads((tmp_path / "theirs" / "generation_config.json").read_text())
    assert written["length_penalty"] == 0.6 and not {"length_penalty_type", "coverage_penalty"} & written.keys()


def test_fairseq_codes_come_back(tmp_path):
    words = {"en": ["lo@@", "w", "er", "l@@", "r"], "de": ["ti@@", "ef", "er", "t@@", "@@"]}
    folder = test_fairseq.Reference({}, words).write(tmp_path / "theirs")
    (folder / "codes.en").write_text("#version: 0.2\nl o\ne r</w>\n")
    (folder / "codes.de").write_text("#version: 0.2\nt i\ne f</w>\n")
    convert("fairseq", folder, tmp_path / "ours")
    export("fairseq", tmp_path / "ours", tmp_path / "back")
    for name in ("codes.en", "codes.de", "dict.en.txt", "dict.de.txt"):
        assert (tmp_path / "back" / name).read_text() == (folder / name).read_text()
    convert("fairseq", tmp_path / "back", tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "ours")


@pytest.mark.parametrize("options", [{}, test_fairseq.ALL], ids=["separate", "joined"])
def test_languages_of_one_name_have_one_dictionary(options, tmp_path):
    convert("fairseq", test_fairseq.Reference(options).write(tmp_path / "theirs"), tmp_path / "ours")
    path = tmp_path / "ours" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tgt_lang": "en"}))
    if options:
        assert export("fairseq", tmp_path / "ours", tmp_path / "back").difference == 0
        return
    with pytest.raises(ConversionError, match=r"src_lang and tgt_lang are both 'en', and the vocabularies differ"):
        export("fairseq", tmp_path / "ours", tmp_path / "back")
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "ours"}


def search(folder):
    """The options in generation_config.json, without who wrote it and that they were taken from config.json."""
    options = json.loads((folder / "generation_config.json").read_text())
    return {
        name: value for name, value in options.items() if name not in ("_from_model_config", "transformers_version")
    }


# Neither files that transformers no longer writes, nor a shared matrix that serves nothing, come back.
MARIANMT = ("opus", "defaults", "relu", "separate", "separate_untied")


@pytest.mark.parametrize("name", MARIANMT)
def test_marianmt_round_trip(name, tmp_path):
    options = test_marianmt.OPTIONS[name]
    test_marianmt.save(test_marianmt.build(options), tmp_path / "theirs", options)
    convert("marianmt", tmp_path / "theirs", tmp_path / "ours")
    done = export("marianmt", tmp_path / "ours", tmp_path / "back")
    assert done.difference <= 1e-5
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes(), file
    assert search(tmp_path / "back") == search(tmp_path / "theirs")
    convert("marianmt", tmp_path / "back", tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "ours")


def test_large_logits_are_not_taken_for_wrong_ones(tiny_model, tmp_path):
    """float32 rounds large logits, and those of many layers, further apart than is allowed."""
    model = tiny_model(position_encoding="sinusoidal_halves", attention_bias=True, output_bias=True)
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(100)
    model.save_pretrained(tmp_path / "ours")
    assert export("marianmt", tmp_path / "ours", tmp_path / "theirs").difference <= 1e-5


@of_all("marianmt")
def test_marianmt_sample_round_trip(name, tmp_path):
    convert("marianmt", PEERS / name, tmp_path / "ours")
    export("marianmt", tmp_path / "ours", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (PEERS / name / "model.safetensors").read_bytes()
    assert search(tmp_path / "back") == search(PEERS / name)
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "back", PEERS / name))
    theirs["transformers_version"] = transformers.__version__
    assert ours.items() <= theirs.items(), "but for fields that MarianConfig does not have"


@pytest.mark.parametrize("output_bias", [False, True])
def test_bart(output_bias, tiny_model, tmp_path):
    model = tiny_model(
        position_encoding="learned",
        position_offset=2,
        max_position_embeddings=20,
        layernorm_embedding=True,
        attention_bias=True,
        output_bias=output_bias,
        activation_function="gelu",
    )
    model.save_pretrained(tmp_path / "ours")
    done = export("bart", tmp_path / "ours", tmp_path / "bart")
    assert done.difference <= 1e-5 and done.notes == ["the model has no tokenizer"]
    theirs = BartForConditionalGeneration.from_pretrained(tmp_path / "bart")
    source = torch.randint(3, 90, (2, 7))
    outputs = [m.generate(source, max_new_tokens=9, num_beams=2).tolist() for m in (model, theirs)]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("target", "lines"),
    [
        (
            "marianmt",
            ["position_encoding='sinusoidal': must be 'sinusoidal_halves'", "attention_bias=False: must be True"],
        ),
        ("bart", ["position_offset=0: must be 2", "layernorm_embedding=False: must be True", "d_k=3: must be 8"]),
        (
            "fairseq",
            ["pad_token_id=0: must be 1", "position_encoding='sinusoidal': must be one of", "d_k=3: must be 8"],
        ),
    ],
)
def test_all_that_a_target_cannot_express_is_listed(target, lines, tiny_model, tmp_path):
    tiny_model(d_k=3).save_pretrained(tmp_path / "ours")
    with pytest.raises(ConversionError) as caught:
        export(target, tmp_path / "ours", tmp_path / "out")
    for line in lines:
        assert f"\n  {line}" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_what_is_there_is_not_overwritten_and_targets_are_named(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match=r"ours exists already"):
        export("marianmt", tmp_path / "ours", tmp_path / "ours")
    with pytest.raises(ConversionError, match=r"expected one of marianmt, bart, fairseq"):
        export("onnx", tmp_path / "ours", tmp_path / "out")
