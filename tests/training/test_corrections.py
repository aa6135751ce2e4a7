"""Corrections of a model's translations, beside the text that it has learned from."""

import json

import pytest
from counting_model import SOURCES, TARGETS

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.commands import train
from vanilla_transformer_hf.commands.train import RECIPES
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.run import prepare_job, run_job


WANTED = {"one two three": "eins vier", "five five": "drei"}


@pytest.fixture
def fields(counting_folder, tmp_path):
    """The fields of a run with two corrections of the model that counts."""
    rows = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in WANTED.items()]
    (tmp_path / "en-de.jsonl").write_text("\n".join(rows), encoding="utf-8")
    pairs = [pair for pair in zip(SOURCES, TARGETS, strict=True) if pair[0] not in WANTED]
    for name, some in (("train", pairs[::2]), ("validation", pairs[1::10]), ("test", pairs[3::10])):
        text = "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in some)
        (tmp_path / f"{name}.tsv").write_text(text, encoding="utf-8")
    texts = {f"{name}_source": str(tmp_path / f"{name}.tsv") for name in ("train", "validation", "test")}
    return {
        **{"model_name_or_path": str(counting_folder), "corrections": str(tmp_path / "en-de.jsonl"), **texts},
        **{"output_dir": str(tmp_path / "out"), "source_lang": "en", "target_lang": "de", "replay": "8"},
        **{"learning_rate": "0.005", "num_train_epochs": "80", "eval_strategy": "no", "save_strategy": "no"},
        **{"use_cpu": "true", "report_to": "none"},
    }


def parsed(recipe, fields):
    argv = [str(RECIPES[recipe]), *(f"--{name}={value}" for name, value in fields.items())]
    return RecipeParser(prog="train").parse(argv)


@pytest.mark.parametrize("recipe", ["corrections", "finetune"])
def test_corrections_are_learned_and_what_is_lost_is_told(recipe, fields, tmp_path, capsys):
    before = Translator.from_pretrained(fields["model_name_or_path"], device="cpu")
    assert before.translate([*WANTED]) != [*WANTED.values()]
    run_job(prepare_job(*parsed(recipe, fields)))
    told = capsys.readouterr()
    (line,) = [line for line in told.out.splitlines() if "corrections are right" in line]
    assert line.endswith("2 of 2 corrections are right now, 0 were before.")
    assert "validation.text: BLEU" in told.out and "test.text: BLEU" in told.out
    assert "train, corrections: 2 of the 18 pairs of an epoch" in told.out
    assert "validation.corrections" not in told.err and "stands in the training text" not in told.out
    after = Translator.from_pretrained(tmp_path / "out", device="cpu")
    assert after.translate([*WANTED]) == [*WANTED.values()]


def test_a_few_corrections_are_learned_before_the_recipe_ends_early(fields, tmp_path, capsys):
    for name in ("num_train_epochs", "eval_strategy", "save_strategy", "test_source"):
        del fields[name]
    run_job(prepare_job(*parsed("corrections", fields)))
    told = capsys.readouterr().out
    assert "2 of 2 corrections are right now" in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpora": "{a: {train_source: b}}"}, "exclude each other"),
        ({"train_source": None}, "name the text that the model has learned from by train_source"),
        ({"replay": "0"}, "rate=0 is not a rate"),
        ({"corrections": None}, "corrections must be set"),
        ({"corrections": "none.jsonl"}, "none.jsonl"),
    ],
)
def test_wrong_fields_are_one_line(changes, message, fields, capsys):
    given = {name: value for name, value in {**fields, **changes}.items() if value is not None}
    with pytest.raises(SystemExit) as stop:
        train.main("train", ["corrections", *(f"--{name}={value}" for name, value in given.items())])
    errors = f"{stop.value.code}{capsys.readouterr().err}"
    assert message in errors and "Traceback" not in errors


def test_replay_needs_corrections(fields, capsys):
    del fields["corrections"]
    with pytest.raises(SystemExit) as stop:
        train.main("train", ["finetune", *(f"--{name}={value}" for name, value in fields.items())])
    assert "replay=8.0 has no effect: it needs corrections" in f"{stop.value.code}{capsys.readouterr().err}"
