"""Tasks of one stack: what a run leaves, how it goes on, and what it refuses."""

import json

import pytest
import torch
import yaml
from conftest import SIZES
from transformers import AutoModel, AutoTokenizer, pipeline

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.common.checksums import verify_folder
from vanilla_transformer_hf.training.recipe import RecipeParser
from vanilla_transformer_hf.training.run import prepare_job, run_job
from vanilla_transformer_hf.training.tasks.one_stack import (
    CausalLM,
    MaskedLM,
    label_words,
    share_of_classes,
    share_of_tokens,
)


TEXTS = ["one two three", "four five", "six one", "two", "three four six five", "five six"] * 4
SETTINGS = {
    **SIZES,
    "max_source_length": 20,
    "max_steps": 2,
    "save_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "warmup_steps": 2,
    "per_device_train_batch_size": 4,
    "use_cpu": True,
    "disable_tqdm": True,
    "corpus_name": "number words",
}


def run_task(run, settings):
    """Train; the scores of the held-out texts."""
    job = prepare_job(run, settings)
    run_job(job)
    return job.trainer.facts.measured


@pytest.fixture
def recipe(tmp_path):
    """`recipe(task, **settings)`: the arguments of a run on number words, written to `out`."""
    for role in ("train", "test"):
        (tmp_path / f"{role}.txt").write_text("".join(f"{text}\n" for text in TEXTS))
        (tmp_path / f"{role}.class").write_text("".join(f"{'even' if len(text) % 2 else 'odd'}\n" for text in TEXTS))
        classes = [["even" if len(word) % 2 else "odd" for word in text.split()] for text in TEXTS]
        (tmp_path / f"{role}.words").write_text("".join(f"{' '.join(each)}\n" for each in classes))
    targets = {"classification": "class", "token_classification": "words"}

    def parse(task, **settings):
        fields = {"task": task, "output_dir": str(tmp_path / "out"), **SETTINGS}
        for role in ("train", "test"):
            fields[f"{role}_source"] = str(tmp_path / f"{role}.txt")
            if task in targets:
                fields[f"{role}_target"] = str(tmp_path / f"{role}.{targets[task]}")
        fields |= {"validation_source": fields["test_source"]}
        if task in targets:
            fields["validation_target"] = fields["test_target"]
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in {**fields, **settings}.items() if v is not None}))
        return RecipeParser().parse([str(path)])

    return parse


@pytest.mark.parametrize(
    ("task", "name", "text"),
    [
        ("masked_lm", "fill-mask", "one <mask> three"),
        ("causal_lm", "text-generation", "one two"),
        ("classification", "text-classification", "one two"),
        ("token_classification", "token-classification", "one two"),
    ],
)
def test_a_run_leaves_a_folder_that_its_pipeline_opens(task, name, text, recipe, tmp_path):
    # As the recipes of causal_lm and masked_lm have it; texts of one stack have no column of lengths.
    scores = run_task(*recipe(task, train_sampling_strategy="group_by_length" if "lm" in task else None))
    folder = tmp_path / "out"
    assert set(scores) == {"validation", "test"} and 0 <= scores["test"]["accuracy"] <= 100
    assert not verify_folder(folder).wrong
    card = (folder / "README.md").read_text()
    assert f"pipeline_tag: {name}" in card and "| test | accuracy |" in card
    assert json.loads((folder / "card_facts.json").read_text())["measured"] == scores
    assert pipeline(name, model=str(folder))(text)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("one two")["input_ids"]
    assert (ids[0] == tokenizer.eos_token_id) == (task == "causal_lm")
    assert AutoModel.from_pretrained(folder).config.vocab_size == len(tokenizer)


def test_a_tokenizer_of_another_task_is_prepared_for_this_one(recipe, tmp_path):
    """The texts of a language model that had the tokenizer of a masked one ended with two end tokens."""
    for name, prepare in (("masked", MaskedLM.prepare), ("causal", CausalLM.prepare)):
        tokenizer = VanillaTransformerTokenizer.train(TEXTS, vocab_size=290, show_progress=False)
        prepare(tokenizer)
        tokenizer.save_pretrained(tmp_path / name)
    run, _ = recipe("causal_lm", vocab_size=None, tokenizer_name_or_path=str(tmp_path / "masked"))
    texts = {"train": (TEXTS, None)}
    tokenizer = CausalLM(run).make_tokenizer(texts, tmp_path / "new")
    (example,) = CausalLM(run).examples(tokenizer, ["one two"], None)
    ends = [place for place, each in enumerate(example["input_ids"]) if each == tokenizer.eos_token_id]
    assert ends == [0, len(example["input_ids"]) - 1]
    run.model.tokenizer_name_or_path = str(tmp_path / "causal")
    assert MaskedLM(run).make_tokenizer(texts, tmp_path / "new").mask_token == "<mask>"


def test_the_card_of_a_run_that_goes_on_has_its_time_and_what_was_changed(recipe, tmp_path, capsys):
    def facts():
        return json.loads((tmp_path / "out/card_facts.json").read_text())

    run_task(*recipe("causal_lm"))
    minutes = facts()["minutes"]
    run_task(*recipe("causal_lm"))  # which is finished
    assert facts()["minutes"] == minutes is not None
    checkpoints = str(tmp_path / "out/checkpoints/checkpoint-1")
    run_task(*recipe("causal_lm", resume_from_checkpoint=checkpoints, learning_rate=0.5))
    assert "checkpoint-2: of later steps than" in capsys.readouterr().out
    assert facts()["settings"]["learning_rate"] == "the default to step 1, then 0.5" and facts()["minutes"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"curriculum_steps": 5, "train_sampling_strategy": "group_by_length"},
            "curriculum_steps=5 has no effect with task=masked_lm",
        ),
        ({"bpe_dropout": 0.1}, "bpe_dropout=0.1 has no effect with task=masked_lm: remove it"),
        ({"train_source": None}, "train_source is not given"),
        ({"too_long": "truncate"}, "too_long=truncate has no effect with task=masked_lm"),
        ({"matmul": "onednn"}, "matmul=onednn has no effect"),
        ({"tokenizer": "new"}, "tokenizer=new has no effect"),
        (
            {"tokenizer_name_or_path": "model", "unicode_normalization": "NFD"},
            "unicode_normalization=NFD has no effect: the tokenizer is that of tokenizer_name_or_path",
        ),
        (
            {"position_encoding": "learned", "max_position_embeddings": 3},
            "train: the longest source text has .* tokens, and the model 3 positions: lower max_source_length to 3",
        ),
        ({"reverse": True}, "reverse=True has no effect"),
        ({"predict_with_generate": False}, "predict_with_generate=False has no effect"),
        ({"metric_for_best_model": "blue"}, "metric_for_best_model=blue: must be one of loss, accuracy"),
        ({"validation_source": None}, "eval_strategy=steps needs validation_source"),
        ({"train_target": "x.class"}, "train_target=x.class has no effect with task=masked_lm"),
    ],
)
def test_what_has_no_effect_is_refused(settings, message, recipe):
    with pytest.raises(ValueError, match=message):
        run_task(*recipe("masked_lm", **settings))


def test_classes_have_to_be_there_and_known(recipe, tmp_path):
    with pytest.raises(ValueError, match="train_target is not given: name the file with the class"):
        run_task(*recipe("classification", train_target=None))
    (tmp_path / "short.class").write_text("even\n")
    with pytest.raises(ValueError, match=r"short.class has 1 lines and .*train.txt 24: expected as many"):
        run_task(*recipe("classification", train_target=str(tmp_path / "short.class")))
    (tmp_path / "test.class").write_text("prime\n" * len(TEXTS))
    with pytest.raises(ValueError, match="class 'prime' is not one of the training text: even, odd"):
        run_task(*recipe("classification"))


@pytest.mark.parametrize("name", ["train.xlsx", "train.tsv"])
def test_a_file_of_both_sides_is_no_text_of_lines(recipe, tmp_path, name):
    (tmp_path / name).write_bytes(b"source\ttarget\none\ttwo\n")
    with pytest.raises(ValueError, match=rf"{name} is not plain text: task=masked_lm reads files with a text on each"):
        run_task(*recipe("masked_lm", train_source=str(tmp_path / name)))


def test_accuracies_count_what_is_to_be_predicted():
    labels, found = torch.tensor([[-100, 5, 6, -100]]).numpy(), torch.tensor([[5, 7, 0, 6]]).numpy()
    prediction = type("Prediction", (), {"label_ids": labels, "predictions": found})
    assert share_of_tokens(0)(prediction) == {"accuracy": 0.0}
    assert share_of_tokens(1)(prediction) == {"accuracy": 50.0}
    assert share_of_classes(prediction) == {"accuracy": 0.0, "most_frequent": 50.0}


def test_the_first_token_of_each_word_has_its_class(tmp_path):
    text = "one  forty-five, two"
    # As byte-level BPE, a space of its own among them; and as WordPiece. The last is the end token.
    byte_level = [(0, 3), (3, 4), (4, 10), (10, 11), (11, 15), (15, 16), (16, 20), (0, 0)]
    pieces = [(0, 3), (5, 10), (10, 11), (11, 13), (13, 15), (15, 16), (17, 20), (0, 0)]
    assert label_words(text, byte_level, [7, 8, 9]) == [7, -100, 8, -100, -100, -100, 9, -100]
    assert label_words(text, pieces, [7, 8, 9]) == [7, 8, -100, -100, -100, -100, 9, -100]
    assert label_words(text, byte_level[:2], [7, 8, 9]) == [7, -100], "a text that is cut"


def test_each_word_has_to_have_a_class(recipe, tmp_path):
    with pytest.raises(ValueError, match=r"train_target is not given: name the file with the class of each word of"):
        run_task(*recipe("token_classification", train_target=None))
    lines = (tmp_path / "train.words").read_text().splitlines()
    (tmp_path / "train.words").write_text("\n".join(["odd", *lines[1:]]) + "\n")
    message = r"line 1 of .*train.words has 1 classes and that of .*train.txt 3 words: expected a class for each word"
    with pytest.raises(ValueError, match=message):
        run_task(*recipe("token_classification"))
    assert not (tmp_path / "out").exists()
