"""Where a run goes on, and what it refuses to go on from."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch
from transformers import SchedulerType, get_scheduler

from vanilla_transformer_hf.training.arguments import DataArguments
from vanilla_transformer_hf.training.checkpoints.resume import (
    RATES_BY_LOSSES,
    Changes,
    RunRecord,
    Start,
    check_rate,
    find_data_sums,
    find_start,
)
from vanilla_transformer_hf.training.checkpoints.sharding import optimizer_settings, set_optimizer_settings
from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer


@pytest.fixture
def trained(prepare, tmp_path):
    """`trained()`: the folder of the checkpoints of a run of four steps, with one every two."""

    def trained(**settings):
        prepare(**settings | STEPS).trainer.train()
        return tmp_path / "out" / "checkpoints"

    return trained


STEPS = {"max_steps": 4, "save_steps": 2, "eval_steps": 2, "load_best_model_at_end": False}
FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("harm", [Path.unlink, flip_a_bit, cut_off])
def test_of_damaged_checkpoints_the_newest_whole_one_is_continued(prepare, trained, harm, capsys):
    checkpoints = trained()
    newest, whole = checkpoints / "checkpoint-4", checkpoints / "whole"
    shutil.copytree(newest, whole)
    for number, name in enumerate(FILES):
        harm(newest / name)
        capsys.readouterr()
        job = prepare(**STEPS)
        assert job.checkpoint == str(checkpoints / "checkpoint-2")
        shown = [line for line in capsys.readouterr().out.splitlines() if "cannot be continued" in line]
        assert len(shown) == 1 and f"{newest} cannot be continued: {name} " in shown[0]
        assert not newest.exists() and len(list((checkpoints / "set_aside").iterdir())) == number + 1
        shutil.copytree(whole, newest)
    job.trainer.train(resume_from_checkpoint=job.checkpoint)
    assert job.trainer.state.global_step == 4


def test_without_a_whole_checkpoint_nothing_is_trained_anew(prepare, trained):
    checkpoints = trained()
    for step in (2, 4):
        (checkpoints / f"checkpoint-{step}" / "optimizer.pt").unlink()
    with pytest.raises(
        ValueError, match=r"no complete checkpoint .*checkpoint-4: optimizer.pt is missing; checkpoint-2: "
    ):
        prepare(**STEPS)
    assert {path.name for path in checkpoints.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    with pytest.raises(ValueError, match=r"checkpoint-2 cannot be continued: optimizer.pt is missing"):
        prepare(**STEPS, resume_from_checkpoint=str(checkpoints / "checkpoint-2"))


@pytest.mark.parametrize("name", ["train_source", "train_target", "validation_source", "validation_target"])
def test_changed_data_are_refused_by_name(prepare, trained, tmp_path, name, capsys):
    trained()
    path = tmp_path / name.replace("_", ".")
    times = os.stat(path)
    text = path.read_text(encoding="utf-8")
    changed = text.replace("one", "two", 1).replace("eins", "zwei", 1)
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ValueError, match=rf"a run with other data \({name} has other content\): continue it with"):
        prepare(**STEPS)
    capsys.readouterr()
    job = prepare(**STEPS | {"max_steps": 6}, resume_from_checkpoint="last")
    assert f"other settings (max_steps) and data ({name} has other content)" in capsys.readouterr().out
    assert job.trainer.facts.settings["data"] == f"{name}: other content after step 4"


def test_a_file_that_was_only_touched_is_the_same(prepare, trained, tmp_path):
    trained()
    os.utime(tmp_path / "train.source")
    assert prepare(**STEPS).checkpoint.endswith("checkpoint-4")


def test_to_find_a_start_changes_nothing(trained):
    checkpoints = trained()
    flip_a_bit(checkpoints / "checkpoint-4" / "optimizer.pt")
    before = {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()}
    settings = {name: value for name, value in RunRecord.read(checkpoints).settings.items() if name != "max_steps"}
    start = find_start(checkpoints, "last", settings, {})
    assert start.checkpoint == checkpoints / "checkpoint-2" and "max_steps" in start.changes.settings
    assert {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()} == before


def test_the_tokenizer_of_a_continued_run_is_that_of_its_checkpoint(prepare, trained):
    checkpoints = trained()
    other = (checkpoints / "tokenizer" / "tokenizer.json").read_text().replace("one", "eno")
    (checkpoints / "tokenizer" / "tokenizer.json").write_text(other)
    vocabulary = prepare(**STEPS).trainer.processing_class.backend_tokenizer.to_str()
    assert vocabulary != other and "eno" not in vocabulary


def test_a_damaged_record_is_named(trained):
    checkpoints, damaged = trained(), {"": "nothing", "[1]": r"\[1\]", "a": "'a'", "earlier_settings: 1": "int"}
    for text, found in damaged.items():
        (checkpoints / "recipe.yaml").write_text(text)
        told = rf"recipe.yaml is damaged \(.*{found}.*delete it and continue with --resume_from_checkpoint last"
        with pytest.raises(ValueError, match=told):
            find_start(checkpoints, None, {}, {})
    (checkpoints / "recipe.yaml").unlink()
    assert find_start(checkpoints, "last", {}, {}).checkpoint == checkpoints / "checkpoint-4"


def test_the_rows_of_a_dataset_of_the_hub_have_a_checksum():
    """They went unseen: only files and folders had one."""
    arguments = DataArguments(train_source="someone/pairs")
    rows = {"source": ["one", "two"], "target": ["eins", "zwei"], "more": [1, 2]}

    def sums(**changes):
        return find_data_sums(arguments, {"train": datasets.Dataset.from_dict(rows | changes)})

    assert sums().keys() == {"train_source"}
    assert sums() == sums(more=[3, 4])
    assert sums() != sums(target=["eins", "drei"]) and sums() != sums(source=["two", "one"])
    assert find_data_sums(arguments) == {}


@pytest.mark.parametrize("kind", ["reduce_lr_on_plateau", "greedy"])
def test_schedules_that_go_by_losses_refuse_another_learning_rate(kind):
    """They went on with the old rate, and the card told the new one."""
    training = SimpleNamespace(learning_rate=1e-4, lr_scheduler_type=kind)
    with pytest.raises(ValueError, match=rf"learning_rate=0.0001: a run with lr_scheduler_type={kind} cannot"):
        check_rate(Start(changes=Changes({"learning_rate": 1e-3})), training)
    with pytest.raises(ValueError, match=rf"lr_scheduler_type={kind}: a run with linear cannot be continued"):
        check_rate(Start(changes=Changes({"lr_scheduler_type": "linear"})), training)
    check_rate(Start(changes=Changes({"weight_decay": 0.1})), training)
    training.lr_scheduler_type = "cosine"
    check_rate(Start(changes=Changes({"learning_rate": 1e-3, "lr_scheduler_type": "linear"})), training)


@pytest.mark.parametrize("kind", [each.value for each in SchedulerType])
def test_every_schedule_of_the_host_takes_another_rate_or_is_refused_one(kind):
    options = {"min_lr": 1e-5} if "min_lr" in kind else {}
    options |= {"num_decay_steps": 4} if kind == "warmup_stable_decay" else {}

    def make(rate):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
        return optimizer, get_scheduler(kind, optimizer, 2, 10, scheduler_specific_kwargs=options)

    (before, old), (whole, other), (optimizer, schedule) = make(1e-2), make(1e-3), make(1e-3)
    for each in (before, old, whole, other) * 3:
        each.step(*[1.0] * (kind in RATES_BY_LOSSES and each in (old, other)))
    settings = optimizer_settings(optimizer)
    optimizer.load_state_dict(before.state_dict())
    schedule.load_state_dict(old.state_dict())
    set_optimizer_settings(optimizer, schedule, settings)
    rates = [each.param_groups[0]["lr"] for each in (before, whole, optimizer)]
    assert rates[0] != rates[1] and rates[2] == rates[0 if kind in RATES_BY_LOSSES else 1]


def test_a_run_on_a_saved_dataset_continues(prepare, tmp_path):
    """The library `datasets` keeps what is made of a saved folder in that folder, which is the same text then."""
    rows = [{"source": "one two", "target": None}] + [
        {"source": f"two {word}", "target": "zwei"} for word in "abcdefg"
    ]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    text = {"train_source": str(tmp_path / "saved"), "train_target": None}
    prepare(**STEPS, **text).trainer.train()
    assert list((tmp_path / "saved").glob("cache-*.arrow"))
    assert prepare(**STEPS, **text).checkpoint.endswith("checkpoint-4")
    datasets.Dataset.from_list(rows[1:]).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="train_source has other content"):
        prepare(**STEPS, **text)


def test_a_run_in_a_folder_that_was_moved_is_the_same_run(prepare, tmp_path, capsys):
    """With its best checkpoint, whose path transformers' state has."""
    settings = {
        "max_steps": 2,
        "save_steps": 1,
        "eval_steps": 1,
        "metric_for_best_model": "loss",
        "learning_rate": 50.0,
    }
    prepare(**settings).trainer.train()
    state = (tmp_path / "out" / "checkpoints" / "checkpoint-2" / "trainer_state.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in state, "it may be published"
    (tmp_path / "out").rename(tmp_path / "moved")
    moved = f"{tmp_path / 'moved'}/"
    job = prepare(**settings, output_dir=moved)
    assert job.checkpoint == str(tmp_path / "moved" / "checkpoints" / "checkpoint-2") and not job.start.changes
    job = prepare(**settings | {"max_steps": 4}, output_dir=moved, resume_from_checkpoint="last", save_total_limit=2)
    job.trainer.train(resume_from_checkpoint=job.checkpoint)
    state = job.trainer.state
    values = {each["step"]: each["eval_loss"] for each in state.log_history if "eval_loss" in each}
    assert len(values) == 4 and state.best_global_step == min(values, key=values.get) == 1
    assert state.best_model_checkpoint == str(tmp_path / "moved" / "checkpoints" / "checkpoint-1")
    shutil.rmtree(tmp_path / "moved" / "checkpoints" / "checkpoint-1")
    capsys.readouterr()
    job = prepare(**settings | {"max_steps": 5}, output_dir=moved, resume_from_checkpoint="last")
    job.trainer.train(resume_from_checkpoint=job.checkpoint)
    assert "checkpoint-1, the best checkpoint so far, is not there any more.\n" in capsys.readouterr().out


def test_a_run_continues_with_other_steps_between_logs_evaluations_and_checkpoints(prepare, trained):
    checkpoints = trained(logging_steps=2)
    changed = {"max_steps": 10, "save_steps": 3, "eval_steps": 5, "logging_steps": 1}
    job = prepare(**STEPS | changed, resume_from_checkpoint="last")
    job.trainer.train(resume_from_checkpoint=job.checkpoint)
    log = job.trainer.state.log_history
    assert [entry["step"] for entry in log if "eval_loss" in entry] == [2, 4, 5, 10]
    assert [entry["step"] for entry in log if "learning_rate" in entry] == [2, 4, *range(5, 11)]
    assert {path.name for path in checkpoints.glob("checkpoint-*")} == {f"checkpoint-{n}" for n in (2, 4, 6, 9, 10)}


def test_another_score_chooses_among_the_checkpoints_that_there_are(prepare, tmp_path, monkeypatch):
    """A BLEU below the best chrF before would never have been the best."""
    scores = iter([(40, 5), (30, 20), (20, 10), (10, 1)])

    def scored(self, prediction):
        chrf, bleu = next(scores)
        self.translations = ["a"]
        return {"chrf": chrf, "bleu": bleu}

    monkeypatch.setattr(TranslationTrainer, "_score", scored)
    settings = {"save_steps": 1, "eval_steps": 1, "early_stopping_patience": None}
    prepare(**settings, max_steps=3, metric_for_best_model="chrf").trainer.train()
    changed = settings | {"max_steps": 4, "metric_for_best_model": "bleu", "resume_from_checkpoint": "last"}
    job = prepare(**changed)
    job.trainer.train(resume_from_checkpoint=job.checkpoint)
    state = job.trainer.state
    assert (state.best_metric, state.best_global_step) == (20, 2)
    assert state.best_model_checkpoint == str(tmp_path / "out" / "checkpoints" / "checkpoint-2")


def test_scores_of_another_validation_text_choose_no_checkpoint_and_end_no_run(prepare, tmp_path, monkeypatch, capsys):
    scores = iter([50, 40, 5, 6, 4, 3, 2])

    def scored(self, prediction):
        self.translations = ["a"]
        return {"chrf": next(scores)}

    monkeypatch.setattr(TranslationTrainer, "_score", scored)
    settings = {"save_steps": 1, "eval_steps": 1, "early_stopping_patience": 2, "metric_for_best_model": "chrf"}
    prepare(**settings, max_steps=2).trainer.train()
    for side in ("source", "target"):
        with (tmp_path / f"validation.{side}").open("a", encoding="utf-8") as file:
            file.write("one two\n")
    job = prepare(**settings, max_steps=3, resume_from_checkpoint="last")
    assert "Scores up to step 2 are of another text, and choose no checkpoint.\n" in capsys.readouterr().out
    job.trainer.train(resume_from_checkpoint=job.checkpoint)
    job = prepare(**settings, max_steps=8, resume_from_checkpoint="last")  # it was changed once, not now
    job.trainer.train(resume_from_checkpoint=job.checkpoint)
    state = job.trainer.state
    assert (state.global_step, state.best_global_step, state.best_metric) == (6, 4, 6)
    assert state.best_model_checkpoint == str(tmp_path / "out" / "checkpoints" / "checkpoint-4")


@pytest.mark.parametrize("changed", [{"vocab_size": 280}, {"encoder_layers": 2}, {"unicode_normalization": "NFD"}])
def test_a_run_that_continues_keeps_its_model_and_vocabulary(prepare, trained, tmp_path, changed):
    checkpoints = trained()
    record = (checkpoints / "recipe.yaml").read_bytes()
    name = next(iter(changed))
    for wanted in (None, "last", str(checkpoints / "checkpoint-2")):
        for folder in {"out", "new" if wanted not in (None, "last") else "out"}:
            with pytest.raises(ValueError, match=rf"checkpoint-\d has another model or vocabulary \({name} .*keeps"):
                prepare(**STEPS, **changed, resume_from_checkpoint=wanted, output_dir=str(tmp_path / folder))
    assert (checkpoints / "recipe.yaml").read_bytes() == record
    assert prepare(**STEPS).checkpoint.endswith("checkpoint-4")
