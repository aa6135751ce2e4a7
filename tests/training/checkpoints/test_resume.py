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
    Start,
    check_rate,
    find_data_sums,
    find_start,
)
from vanilla_transformer_hf.training.checkpoints.sharding import optimizer_settings, set_optimizer_settings


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
    start = find_start(checkpoints, "last", {}, {})
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
