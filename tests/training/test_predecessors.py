"""Recurrent models in recipes, runs, cards, uploads and the commands that take models."""

import json
import math
from pathlib import Path

import pytest
import torch
from travelling_code import CODE

import vanilla_transformer_hf
from vanilla_transformer_hf import RecurrentSeq2SeqForConditionalGeneration, Translator
from vanilla_transformer_hf.explorer.explorer import open_subject
from vanilla_transformer_hf.export.export import export_for
from vanilla_transformer_hf.export.int8_folder import quantize_folder
from vanilla_transformer_hf.publishing.upload_plan import plan_upload
from vanilla_transformer_hf.training.comparison.comparison import plan_comparison, read_variants
from vanilla_transformer_hf.training.model import plan_config
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.run import run_job
from vanilla_transformer_hf.translation.pictures.attention_maps import attention_maps


TRAINING = Path(vanilla_transformer_hf.__file__).parent / "training"
HEADS = ("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim")
RECURRENT = {
    **dict.fromkeys(HEADS),
    "model_type": "recurrent_seq2seq",
    "cell_type": "gru",
    "bidirectional": True,
    "attention": "bahdanau",
}


@pytest.fixture
def trained(prepare):
    """The folder of a recurrent model after two steps of training."""
    run_job(prepare(**RECURRENT))
    return prepare.out


def test_a_run_trains_translates_and_publishes_a_recurrent_model_and_other_commands_refuse_it(trained, tmp_path):
    translator = Translator.from_pretrained(trained, device="cpu")
    assert type(translator.model) is RecurrentSeq2SeqForConditionalGeneration
    rows = [line.split("\t") for line in (trained / "predictions.test.tsv").read_text().split("\n")[1:-1]]
    found = translator.translate([source for source, *_ in rows])
    # An untrained model may write tabs, which the table escapes.
    assert [str(each).replace("\t", "\\t") for each in found] == [translation for _, translation, *_ in rows]
    (score,) = translator.score(["one two"], ["eins zwei"])
    assert -math.inf < score.log_probability < 0
    card = (trained / "README.md").read_text(encoding="utf-8")
    assert "| cell_type | gru |" in card and "bahdanau2015neural" in card
    assert "Transformer of" not in card and "CTranslate2" not in card
    plan = plan_upload(trained, "someone/numbers", license="cc0-1.0")
    named = {file.name: file.source for file in plan.files}
    assert named.keys() > CODE
    config = named["config.json"]
    config = json.loads(config if isinstance(config, bytes) else config.read_bytes())
    assert config["auto_map"]["AutoModelForSeq2SeqLM"].endswith("RecurrentSeq2SeqForConditionalGeneration")
    assert open_subject("a", trained, False).name == "a"  # the explorer shows its attention to the source
    # What is for Transformers only refuses it in a line.
    for refused, said in (
        (lambda: export_for("onnx", trained, tmp_path / "onnx"), "describes a 'recurrent_seq2seq' model"),
        (lambda: quantize_folder(trained, tmp_path / "int8"), "'recurrent_seq2seq' is not a model of this package"),
        (lambda: Translator.from_pretrained(trained, quantization="int8"), "quantization: not supported by Recurrent"),
        (lambda: attention_maps(translator.model, translator.tokenizer, "one"), "has no self-attention"),
    ):
        with pytest.raises((ValueError, OSError), match=said) as caught:
            refused()
        assert "\n" not in str(caught.value)


def parse(*argv: str):
    return RecipeParser(prog="train").parse(list(argv))


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--cell_type", "gru"], "cell_type=gru: models of type vanilla_transformer do not have this field"),
        (
            ["--model_type", "recurrent_seq2seq", "--encoder_ffn_dim", "64"],
            "encoder_ffn_dim=64: models of type recurrent_seq2seq do not have this field",
        ),
        (["--model_type", "recurrent_seq2seq", "--preset", "base"], "preset=base: models of type recurrent_seq2seq"),
        (["--model_type", "recurrent_seq2seq", "--max_extra_tokens", "9"], "max_extra_tokens=9: models of type"),
    ],
)
def test_fields_of_the_other_type_are_refused(argv, said):
    run, _ = parse("--use_cpu", "true", *argv)
    with pytest.raises(ValueError, match=said):
        plan_config(run)


def test_the_model_type_of_the_command_line_replaces_fields_of_a_recipe(capsys):
    run, settings = parse(str(TRAINING / "recipes" / "quickstart.yaml"), "--model_type", "recurrent_seq2seq")
    assert "replaces encoder_attention_heads" in capsys.readouterr().err
    assert plan_config(run).model_type == settings["model_type"] == "recurrent_seq2seq"
    assert (plan_config(run).d_model, plan_config(run).encoder_layers) == (128, 3)


def test_the_predecessors_have_as_many_parameters_as_the_transformer(tmp_path):
    variants = read_variants(str(TRAINING / "variants" / "predecessors.yaml"))
    argv = [
        f"--{part}_{side}={tmp_path / 'text'}" for part in ("train", "validation") for side in ("source", "target")
    ]
    (tmp_path / "text").write_text("one\n")
    recipe = str(TRAINING / "recipes" / "multi30k_raw.yaml")
    plan = plan_comparison(recipe, variants, [*argv, "--use_cpu=true", "--max_steps=1"], 1, tmp_path)
    counts = {}
    for run in plan.runs:
        (tmp_path / "one.yaml").write_text(json.dumps(run.settings))
        config = plan_config(parse(str(tmp_path / "one.yaml"))[0])
        config.vocab_size = 8000
        with torch.device("meta"):
            counts[run.variant] = vanilla_transformer_hf.registration.AutoModelForSeq2SeqLM.from_config(
                config
            ).num_parameters()
    assert len(counts) == 5 and max(counts.values()) < 1.05 * min(counts.values()), counts
