"""The Trainer: R-Drop, token batches, stopping and continuing, checkpoints that cannot be written."""

import copy
import errno
import os
import signal
from functools import partial

import datasets
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import Seq2SeqTrainer, TrainerCallback

from vanilla_transformer_hf import VanillaTransformerTokenizer
from vanilla_transformer_hf.model.layers.base_model import smoothed_cross_entropy
from vanilla_transformer_hf.model.layers.loss import loss_by_rows
from vanilla_transformer_hf.training.checkpoints.files import TrainingInterrupted, checkpoints_in, find_damage
from vanilla_transformer_hf.training.data.collators import decode_predictions
from vanilla_transformer_hf.training.objectives.losses import r_drop_rows
from vanilla_transformer_hf.training.run import run_job
from vanilla_transformer_hf.training.trainer.publishing import PublishingMixin, plot_curves
from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer


def test_few_private_methods_of_the_host_are_overridden():
    """One class, one mixin; docs/what_is_tested.md says why each method stays."""
    ours = [each for each in TranslationTrainer.__mro__ if each.__module__.startswith("vanilla_transformer_hf")]
    assert ours == [TranslationTrainer, PublishingMixin]
    overridden = {name for each in ours for name, value in vars(each).items() if callable(value)}
    overridden = {name for name in overridden if hasattr(Seq2SeqTrainer, name) and not name.startswith("__")}
    assert {name for name in overridden if name.startswith("_")} == {
        *("_save_checkpoint", "_run_epoch", "_get_train_sampler", "_load_best_model", "_load_from_checkpoint"),
        *("_save_optimizer_and_scheduler", "_load_optimizer_and_scheduler"),
    }
    assert len(overridden) == 21


class AtStep(TrainerCallback):
    """Calls a function when a step begins (number of those that are done) or ends."""

    def __init__(self, step, act, event="on_step_end"):
        self.step, self.act = step, act
        setattr(self, event, self._run)

    def _run(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act(**kwargs)


def train_to_signal(job, step):
    """Train, or continue, until a signal comes while the step behind this one is computed."""
    job.trainer.add_callback(AtStep(step, lambda **_: os.kill(os.getpid(), signal.SIGTERM), "on_step_begin"))
    with pytest.raises(TrainingInterrupted, match=f"SIGTERM after step {step + 1}"):
        job.trainer.train(resume_from_checkpoint=job.checkpoint)


def same(model, other):
    weights = other.state_dict()
    return all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_r_drop_trains_on_two_dropout_masks_and_evaluates_as_ever(prepare):
    trainer = prepare(r_drop=5.0, dropout=0.3).trainer
    batch = trainer.data_collator(list(trainer.train_dataset)[:4])
    del batch["line"]
    model = trainer.model
    torch.manual_seed(1)
    loss, outputs = trainer.compute_loss(model.train(), dict(batch), return_outputs=True)
    first, second = outputs.logits.chunk(2)
    assert first.shape[:2] == batch["labels"].shape and not torch.allclose(first, second)
    torch.testing.assert_close(loss, loss_by_rows(outputs.logits, batch["labels"], partial(r_drop_rows, 0.1, 5.0)))
    torch.manual_seed(1)
    in_pieces = trainer.compute_loss(model, dict(batch))  # as in training: nothing needs all logits
    torch.testing.assert_close(in_pieces, loss)
    plain = trainer.compute_loss(model.eval(), dict(batch))
    torch.testing.assert_close(plain, smoothed_cross_entropy(model(**batch).logits, batch["labels"], 0.0))


def test_the_loss_of_an_evaluation_is_the_mean_over_its_tokens(prepare):
    trainer = prepare(per_device_eval_batch_size=3, predict_with_generate=False, metric_for_best_model="loss").trainer
    batch = trainer.data_collator(list(trainer.eval_dataset))
    counted = batch["labels"] != -100
    assert len({*counted.sum(dim=1).tolist()}) > 1  # or the mean over sentences would be the same
    logits = trainer.model.eval()(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).logits
    expected = F.cross_entropy(logits[counted], batch["labels"][counted])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert trainer.predict(trainer.eval_dataset).metrics["test_loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_an_evaluation_in_mixed_precision_translates_as_the_saved_model_does(prepare):
    """The loss is that of training, under autocast; translations are searched with the weights as they are."""
    trainer = prepare(bf16=True).trainer
    saved = copy.deepcopy(trainer.model).eval()
    found = trainer.predict(trainer.eval_dataset)
    assert hasattr(trainer.model, "_original_forward"), "Accelerate has put autocast around it"
    batch = trainer.data_collator(list(trainer.eval_dataset))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = saved.generate(**inputs, **trainer._gen_kwargs)
    assert np.array_equal(found.predictions[:, : expected.shape[1]], expected)
    with torch.autocast("cpu", torch.bfloat16):
        loss = saved(**inputs, labels=batch["labels"]).loss
    assert found.metrics["test_loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert found.metrics["test_loss"] != pytest.approx(saved(**inputs, labels=batch["labels"]).loss.item(), rel=1e-6)


def test_predictions_filled_up_with_ignored_labels_are_decoded():
    tokenizer = VanillaTransformerTokenizer.train(["ein Hund"], vocab_size=270, show_progress=False)
    ids = tokenizer(text_target="ein Hund")["input_ids"]
    assert decode_predictions(tokenizer, np.array([[0, *ids, -100, -100]])) == ["ein Hund"]


def test_ids_alone_and_several_texts_can_be_evaluated(prepare):
    trainer = prepare(predict_with_generate=False, metric_for_best_model="loss").trainer
    data = trainer.eval_dataset.remove_columns(["source", "target"])
    expected = trainer.evaluate()["eval_loss"]
    assert trainer.evaluate(data)["eval_loss"] == expected
    assert trainer.evaluate({"a": data, "b": data})["eval_b_loss"] == expected
    trainer.predict(trainer.eval_dataset)
    assert not trainer.args.predict_with_generate and "eval_bleu" not in trainer.evaluate(data)
    trainer.args.predict_with_generate, trainer.eval_dataset = True, {"a": trainer.eval_dataset}
    assert "eval_a_loss" in trainer.evaluate() and len(trainer.references) == 6  # transformers names it "a"


def test_a_step_has_the_wanted_tokens_on_every_machine(prepare):
    steps = []
    for tokens in (240, 120, 80):
        trainer = prepare(per_device_train_tokens=tokens, output_dir=f"{prepare.out}{tokens}").trainer
        args = trainer.args
        steps.append(args.gradient_accumulation_steps * args.device_batch_tokens)
        for batch in trainer.get_train_dataloader():
            assert max(batch["input_ids"].numel(), batch["labels"].numel()) <= args.device_batch_tokens <= tokens
            assert set(batch) == {"input_ids", "attention_mask", "labels", "line"}
    assert steps == [240, 240, 240]


STOPPED_RUNS = {
    "table": {"bpe_dropout": 0.3, "adam_first_moment": "bfloat16"},
    "stream": {"bpe_dropout": 0.3, "streaming": True, "shuffle_buffer_size": 16},
    "sentences": {
        "tokens_per_step": None,
        "per_device_train_tokens": None,
        "per_device_train_batch_size": 9,
        "train_sampling_strategy": "group_by_length",
    },
}


@pytest.mark.parametrize("settings", STOPPED_RUNS.values(), ids=STOPPED_RUNS)
def test_a_run_that_is_told_to_stop_ends_like_one_that_was_not(prepare, tmp_path, settings):
    settings = {**settings, "max_steps": 11, "r_drop": 1.0, "dropout": 0.1, "eval_steps": 3}
    settings |= {"save_steps": 3, "moving_average": 0.9, "load_best_model_at_end": False}
    whole = prepare(output_dir=str(tmp_path / "whole"), **settings)
    whole.trainer.train()
    assert settings.get("streaming") or 7 % (11 / whole.trainer.state.epoch), "stopped inside an epoch too"
    for step in (3, 6):
        part = prepare(**settings)
        train_to_signal(part, step)
    rest = prepare(**settings)
    assert rest.checkpoint.endswith("checkpoint-7")
    rest.trainer.train(resume_from_checkpoint=rest.checkpoint)
    assert same(whole.trainer.model, rest.trainer.model)
    losses = [[entry["loss"] for entry in job.trainer.state.log_history if "loss" in entry] for job in (whole, rest)]
    assert losses[0] == losses[1] and len(losses[0]) == 11


OF_EPOCHS = {**dict.fromkeys(("eval_strategy", "save_strategy"), "epoch"), "eval_steps": None, "save_steps": None}
IN_EVALUATION = {
    "with a checkpoint": {"save_steps": 3, "save_total_limit": 2},
    "without a checkpoint": {"save_steps": 4, "load_best_model_at_end": False, "metric_for_best_model": None},
    "of an epoch": {**OF_EPOCHS, "early_stopping_patience": 9},
    "of steps of a short epoch": {**OF_EPOCHS, "eval_min_steps": 4, "max_steps": 8},
}

LONGER = ("without a checkpoint", "of an epoch", "of steps of a short epoch")


@pytest.mark.parametrize(
    "settings",
    [
        IN_EVALUATION["with a checkpoint"],
        *(pytest.param(IN_EVALUATION[name], marks=pytest.mark.slow) for name in LONGER),
    ],
    ids=IN_EVALUATION,
)
def test_a_signal_in_an_evaluation_saves_the_checkpoint_at_once(prepare, tmp_path, settings, monkeypatch):
    """The evaluation is made when the run goes on, which then ends like one that was not stopped."""
    settings = {"max_steps": 6, "eval_steps": 3, "moving_average": 0.9, "dropout": 0.1, "bpe_dropout": 0.3, **settings}
    settings |= {"r_drop": 1.0, "metric_for_best_model": settings.get("metric_for_best_model", "chrf")}
    whole = prepare(output_dir=str(tmp_path / "whole"), **settings)
    whole.trainer.train()
    generated, steps = [], [entry["step"] for entry in whole.trainer.state.log_history if "eval_loss" in entry]
    for step in [*steps, steps[-1]]:  # the last one twice
        part = prepare(**settings)
        generate = part.trainer.model.generate

        def stopped(*args, trainer=part.trainer, generate=generate, step=step, **kwargs):
            if trainer.state.global_step == step:
                os.kill(os.getpid(), signal.SIGTERM)
                generated.append(step)
            return generate(*args, **kwargs)

        if step == steps[0]:  # a signal in the step before the evaluation
            part.trainer.add_callback(
                AtStep(step - 1, lambda **_: os.kill(os.getpid(), signal.SIGTERM), "on_step_begin")
            )
        else:
            part.trainer.model.generate = stopped
        with pytest.raises(TrainingInterrupted, match=f"SIGTERM after step {step}"):
            part.trainer.train(resume_from_checkpoint=part.checkpoint)
        assert last_checkpoint(prepare.out / "checkpoints").endswith(f"checkpoint-{step}")
    assert not generated
    rest = prepare(**settings)
    rest.trainer.train(resume_from_checkpoint=rest.checkpoint)
    assert same(whole.trainer.model, rest.trainer.model)
    names = ("step", "epoch", "loss", "eval_loss", "eval_chrf")
    found = [
        [{name: entry[name] for name in names if name in entry} for entry in job.trainer.state.log_history]
        for job in (whole, rest)
    ]
    assert found[0][:-1] == found[1][:-1]
    states = [job.trainer.state for job in (whole, rest)]
    assert states[0].best_global_step == states[1].best_global_step
    kept = [sorted(path.name for path in job.folder.glob("checkpoints/checkpoint-*")) for job in (whole, rest)]
    assert kept[0] == kept[1]
    last = [last_checkpoint(job.folder / "checkpoints") for job in (whole, rest)]
    assert same_files(*last)


def last_checkpoint(folder):
    return [str(path) for path in checkpoints_in(folder).values() if find_damage(path) is None][-1]


def same_files(folder, other):
    """Whether two checkpoints have the same weights, optimizer states and states of the random generators."""
    weights = [load_file(f"{each}/model.safetensors") for each in (folder, other)]
    states = [torch.load(f"{each}/rng_state.pth", weights_only=False) for each in (folder, other)]
    moments = [torch.load(f"{each}/optimizer.pt")["state"] for each in (folder, other)]
    return (
        all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
        and torch.equal(states[0]["cpu"], states[1]["cpu"])
        and all(torch.equal(moments[0][key]["exp_avg"], moments[1][key]["exp_avg"]) for key in moments[0])
    )


@pytest.mark.parametrize("least, steps", [(None, [2, 4, 6, 7]), (2, [2, 4, 6, 7]), (3, [3, 6, 7])])
def test_evaluations_are_steps_apart_where_an_epoch_has_fewer(prepare, least, steps):
    """An epoch has two steps here. Checkpoints are those of evaluations, and a continued run has the same."""
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "eval_min_steps": least, "max_steps": 7}
    job = prepare(**settings)
    train_to_signal(job, 4)
    job = prepare(**settings)
    job.trainer.train(resume_from_checkpoint=job.checkpoint)
    assert [entry["step"] for entry in job.trainer.state.log_history if "eval_bleu" in entry] == steps
    saved = {path.name for path in (prepare.out / "checkpoints").glob("checkpoint-*")}
    assert saved == {f"checkpoint-{step}" for step in steps}


def test_a_mean_loss_that_is_logged_after_an_interruption_is_that_of_all_its_steps(prepare, tmp_path):
    settings = {"max_steps": 8, "logging_steps": 4, "save_steps": 8, "eval_steps": 8, "dropout": 0.1}
    whole = prepare(output_dir=str(tmp_path / "whole"), **settings)
    whole.trainer.train()
    part = prepare(**settings)
    train_to_signal(part, 5)
    rest = prepare(**settings)
    rest.trainer.train(resume_from_checkpoint=rest.checkpoint)
    losses = [[entry["loss"] for entry in job.trainer.state.log_history if "loss" in entry] for job in (whole, rest)]
    assert losses[0] == losses[1] and len(losses[0]) == 2


def rates(job):
    return [entry["learning_rate"] for entry in job.trainer.state.log_history if "learning_rate" in entry]


def test_a_run_that_is_continued_with_another_learning_rate_trains_with_it(prepare, tmp_path, capsys):
    settings = {"max_steps": 6, "save_steps": 2, "eval_steps": 2, "adam_beta2": 0.98}
    first = prepare(**settings, learning_rate=0.01)
    train_to_signal(first, 3)
    again = settings | {"learning_rate": 0.001, "adam_beta2": 0.9, "resume_from_checkpoint": "last"}
    job = prepare(**again)
    assert "From step 5 on, the run has other settings (learning_rate, adam_beta2)" in capsys.readouterr().out
    run_job(job)
    whole = prepare(**settings, learning_rate=0.001, output_dir=str(tmp_path / "whole"))
    whole.trainer.train()
    assert rates(job)[4:] == rates(whole)[4:] and rates(job)[:4] != rates(whole)[:4]
    assert job.trainer.optimizer.param_groups[0]["betas"] == (0.9, 0.9)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "0.01 to step 4, then 0.001" in card
    del again["resume_from_checkpoint"]
    assert "0.01 to step 4, then 0.001" in str(prepare(**again).trainer.facts.settings["learning_rate"])


def test_checkpoints_that_a_signal_left_are_not_averaged(prepare, tmp_path):
    settings = {"max_steps": 8, "save_steps": 3, "eval_steps": 3, "average_last": 3, "load_best_model_at_end": False}
    settings |= {"early_stopping_patience": None, "moving_average": None}
    whole = prepare(output_dir=str(tmp_path / "whole"), **settings)
    whole.trainer.train()
    part = prepare(**settings)
    train_to_signal(part, 3)
    rest = prepare(**settings)
    rest.trainer.train(resume_from_checkpoint=rest.checkpoint)
    kept = {path.name for path in (tmp_path / "out" / "checkpoints").glob("checkpoint-*")}
    assert kept == {"checkpoint-3", "checkpoint-6", "checkpoint-8"}
    assert same(whole.trainer.model, rest.trainer.model)


def test_a_loss_that_is_no_number_stops_the_run_and_says_where(prepare):
    def poison(model, **kwargs):
        with torch.no_grad():
            model.lm_head.weight[5] = float("nan")

    trainer = prepare(max_steps=4).trainer
    trainer.add_callback(AtStep(2, poison))
    with pytest.raises(
        FloatingPointError, match=r"loss is nan at step 3, at learning rate .*, on sentence pairs [0-9, ]+ of"
    ):
        trainer.train()
    assert last_checkpoint(prepare.out / "checkpoints").endswith("checkpoint-2")


def test_the_lines_of_a_bad_batch_are_those_of_the_file(prepare):
    trainer = prepare().trainer
    batch = next(iter(trainer.get_train_dataloader()))
    text = (prepare.out.parent / "train.source").read_text().splitlines()
    lines = batch["line"].tolist()
    decoded = trainer.processing_class.batch_decode(batch["input_ids"], skip_special_tokens=True)
    assert [text[line] for line in lines] == decoded


@pytest.mark.parametrize("function", ["torch.save", "os.fsync", "json"])
def test_a_full_disk_leaves_the_checkpoints_before_it(prepare, monkeypatch, function):
    trainer = prepare(max_steps=4).trainer
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*args, **kwargs):
        raise full

    def fill_up(**kwargs):
        target = {
            "torch.save": (torch, "save"),
            "os.fsync": (os, "fsync"),
            "json": (type(trainer.state), "save_to_json"),
        }[function]
        monkeypatch.setattr(*target, fail)

    trainer.add_callback(AtStep(2, fill_up, "on_step_begin"))
    with pytest.raises(OSError, match=r"checkpoint-3 cannot be written .*No space left.* MiB are free.* intact"):
        trainer.train()
    folder = prepare.out / "checkpoints"
    assert {path.name for path in folder.iterdir()} >= {"checkpoint-1", "checkpoint-2"}
    assert not any("checkpoint-3" in str(path) for path in folder.rglob("*"))
    monkeypatch.undo()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", prepare.out.parent / "cache")
    rest = prepare(max_steps=4)
    assert rest.checkpoint.endswith("checkpoint-2")
    rest.trainer.train(resume_from_checkpoint=rest.checkpoint)
    assert rest.trainer.state.global_step == 4


def test_the_best_checkpoint_is_kept_under_its_own_name(prepare):
    """And the last one, so that the same command trains nothing more."""
    settings = {"max_steps": 5, "learning_rate": 50, "metric_for_best_model": "loss", "save_total_limit": 1}
    job = prepare(**settings)
    run_job(job)
    state = job.trainer.state
    assert state.best_model_checkpoint == str(prepare.out / "checkpoints" / f"checkpoint-{state.best_global_step}")
    kept = {path.name for path in (prepare.out / "checkpoints").glob("checkpoint-*")}
    assert state.best_global_step < 5
    assert kept == {f"checkpoint-{state.best_global_step}", "checkpoint-5"}
    assert prepare(**settings).checkpoint.endswith("checkpoint-5")


def test_the_average_of_the_last_checkpoints_is_published(prepare):
    job = prepare(max_steps=4, average_last=2, load_best_model_at_end=False, metric_for_best_model=None)
    run_job(job)
    checkpoints = [
        load_file(prepare.out / "checkpoints" / f"checkpoint-{step}" / "model.safetensors") for step in (3, 4)
    ]
    published = load_file(prepare.out / "model.safetensors")
    for name, tensor in published.items():
        torch.testing.assert_close(tensor, (checkpoints[0][name] + checkpoints[1][name]) / 2)


def test_a_run_that_stopped_early_stays_stopped(prepare):
    settings = {"max_steps": 6, "early_stopping_patience": 2, "learning_rate": 0, "warmup_steps": 0}
    for checkpoint in (None, str(prepare.out / "checkpoints" / "checkpoint-3")):
        job = prepare(**settings)
        assert job.checkpoint == checkpoint
        job.trainer.train(resume_from_checkpoint=job.checkpoint)
        assert job.trainer.state.global_step == 3, "the first evaluation is the best, two more are not better"


def test_a_moving_average_is_evaluated_and_published(prepare):
    job = prepare(moving_average=0.5, max_steps=3, load_best_model_at_end=False, learning_rate=0.1)
    run_job(job)
    published = load_file(prepare.out / "model.safetensors")
    checkpoint = prepare.out / "checkpoints" / "checkpoint-3"
    average, trained = (load_file(checkpoint / f"{name}.safetensors") for name in ("moving_average", "model"))
    for name in published.keys() & average.keys():
        assert torch.equal(published[name], average[name]) and not torch.equal(average[name], trained[name]), name
    logged = [entry["eval_loss"] for entry in job.trainer.state.log_history if "eval_loss" in entry]
    assert job.trainer.evaluate()["eval_loss"] == pytest.approx(logged[-1], rel=1e-6)


def test_the_log_has_the_speed_and_the_picture_the_published_score(prepare, monkeypatch, capfd):
    marks = {}
    monkeypatch.setattr(
        "vanilla_transformer_hf.training.trainer.publishing.plot_curves",
        lambda log, path, **kwargs: marks.update(kwargs) or plot_curves(log, path, **kwargs),
    )
    job = prepare()
    scored = run_job(job)
    log = [entry for entry in job.trainer.state.log_history if entry.keys() & {"loss", "eval_loss"}]
    assert all(entry["target_tokens_per_second"] > 0 for entry in log if "loss" in entry)
    best, published = job.trainer.state.best_global_step, scored[0].scores.bleu
    assert marks == {"best_step": best, "published": published, "epochs": job.trainer.state.epoch}
    shown = [line for line in capfd.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in shown] == [f"step {e['step']} of 2, epoch {e['epoch']:.2f}" for e in log]
