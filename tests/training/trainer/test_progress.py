"""What a run shows while it trains, on a terminal and in a file, and its speed."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from vanilla_transformer_hf.training.trainer import progress
from vanilla_transformer_hf.training.trainer.progress import TOKENS_PER_SECOND, Progress, Speedometer


class MeasuredTrainer(Trainer):
    """The host's Trainer with progress and speed as `TranslationTrainer` has them, on random sentences."""

    def __init__(self, model, folder, **arguments):
        rows = [{"input_ids": torch.randint(3, 90, (5,)), "labels": torch.tensor([7, 8, 9, 1, -100])}] * 32
        settings = {
            **{"max_steps": 6, "logging_steps": 2, "use_cpu": True, "dataloader_pin_memory": False},
            "report_to": "none",
        }
        super().__init__(
            model,
            TrainingArguments(str(folder), **settings | arguments),
            train_dataset=rows,
            eval_dataset=rows[:8],
            compute_metrics=lambda prediction: {"bleu": 31.2},
        )
        for callback in (ProgressCallback, PrinterCallback):
            if self.pop_callback(callback):
                self.add_callback(Progress())
        self.speed = Speedometer()
        self.add_callback(self.speed)

    def get_batch_samples(self, *args, **kwargs):
        samples, tokens = super().get_batch_samples(*args, **kwargs)
        self.speed.add(tokens)
        return samples, tokens

    def log(self, logs, start_time=None):
        if "loss" in logs:
            logs[TOKENS_PER_SECOND] = self.speed.read()
        super().log(logs, start_time)


LINE = (
    r"step {} of 6, epoch \d\.\d\d: loss \d\.\d{{4}}, gradient norm [\d.]+, learning rate [\d.e-]+, "
    r"[\d,]+ target tokens/s, 00:\d\d{} left"
)


@pytest.mark.parametrize("disable_tqdm", [False, True])
def test_without_a_terminal_there_are_lines_and_no_bar(tiny_model, tmp_path, capfd, disable_tqdm):
    trainer = MeasuredTrainer(
        tiny_model(), tmp_path, disable_tqdm=disable_tqdm, eval_strategy="steps", eval_steps=4, save_strategy="no"
    )
    trainer.train()
    lines, bars = capfd.readouterr()
    patterns = [
        LINE.format(2, " and 2 evaluations"),
        LINE.format(4, " and 2 evaluations"),
        r"step 4 of 6, epoch 1.00: validation: loss \d\.\d{4}, BLEU 31.20, \d s",
        LINE.format(6, ""),
        r"step 6 of 6, epoch 1.50: validation: loss \d\.\d{4}, BLEU 31.20, \d s",
    ]
    assert len(lines.splitlines()) == len(patterns)
    for line, pattern in zip(lines.splitlines(), patterns):
        assert re.fullmatch(pattern, line), line
    assert bars == ""


@pytest.mark.parametrize("strategy", [{"eval_strategy": "steps", "eval_steps": 2}, {"eval_strategy": "epoch"}])
def test_the_time_left_counts_evaluations_and_final_scores(tiny_model, tmp_path, monkeypatch, capsys, strategy):
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)

    class Timed(MeasuredTrainer):  # a step takes 1 s, an evaluation 60
        def training_step(self, *args, **kwargs):
            clock.now += 1
            return super().training_step(*args, **kwargs)

        def evaluation_loop(self, *args, **kwargs):
            clock.now += 60
            return super().evaluation_loop(*args, **kwargs)

    monkeypatch.setattr("transformers.trainer.speed_metrics", lambda split, *args, **kwargs: {f"{split}_runtime": 60})
    arguments = {"max_steps": 8, "logging_steps": 1, "per_device_train_batch_size": 16, **strategy}
    trainer = Timed(tiny_model(), tmp_path, disable_tqdm=True, save_strategy="no", **arguments)
    (shown,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, Progress))
    shown.final_scores = 3
    trainer.train()
    left = re.findall(r"(\S+(?: and \d evaluations?)?) left", capsys.readouterr().out)
    assert left[:3] == ["00:07 and 4 evaluations", "00:06 and 4 evaluations", "06:05"]  # 5 s, 3 evaluations and 3
    assert left[3:] == ["06:04", "05:03", "05:02", "04:01", "04:00"]


class Terminal:
    """Standard error as a terminal has it."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_on_a_terminal_a_continued_run_goes_on_where_it_was(tiny_model, tmp_path, monkeypatch):
    MeasuredTrainer(tiny_model(), tmp_path, max_steps=4, save_steps=4).train()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    MeasuredTrainer(tiny_model(), tmp_path, eval_strategy="steps", eval_steps=6).train(resume_from_checkpoint=True)
    shown = re.split(r"\r|\n", terminal.text)
    assert "4/6 [00:00<?, ?step/s]" in next(text for text in shown if "/6 [" in text)
    last = [text for text in shown if "/6 [" in text][-1]
    assert re.search(r"6/6 \[00:\d\d<00:00, .*loss=?[ \d.]+, [\d,]+ target tokens/s\]", last), last
    assert any("batch/s" in text for text in shown), "the bar of the evaluation"


def test_the_speed_counts_the_targets_tokens_and_no_evaluation(tiny_model, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)

    class SlowEvaluation(MeasuredTrainer):
        def evaluate(self, *args, **kwargs):
            clock.now += 1
            return super().evaluate(*args, **kwargs)

        def training_step(self, *args, **kwargs):
            clock.now += 0.05
            return super().training_step(*args, **kwargs)

    trainer = SlowEvaluation(
        tiny_model(),
        tmp_path,
        disable_tqdm=True,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        gradient_accumulation_steps=2,
    )
    trainer.train()
    speeds = [entry[TOKENS_PER_SECOND] for entry in trainer.state.log_history if TOKENS_PER_SECOND in entry]
    assert len(speeds) == 3
    # A step is 2 batches of 8 sentences of 4 tokens, in 0.1 s; with its evaluation in 1.1 s.
    assert speeds == pytest.approx([2 * 8 * 4 / 0.1] * 3)


def test_tensorboard_shows_what_is_logged(tiny_model, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = MeasuredTrainer(
        tiny_model(), tmp_path, disable_tqdm=True, report_to="tensorboard", eval_strategy="steps", eval_steps=6
    )
    trainer.train()
    (folder,) = (tmp_path / "runs").iterdir()
    events = accumulator.EventAccumulator(str(folder)).Reload()
    assert {"train/loss", "train/learning_rate", f"train/{TOKENS_PER_SECOND}", "eval/loss", "eval/bleu"} <= set(
        events.Tags()["scalars"]
    )
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(logged)
    assert [event.step for event in events.Scalars("eval/bleu")] == [6]


def test_the_log_of_a_run_can_be_read_while_it_grows(tiny_model, tmp_path, monkeypatch):
    """`explore --watch` draws its curves: after each log, but no longer than a hundredth of the run's time."""
    now, seen = [0.0], []
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Look(TrainerCallback):
        def on_log(self, args, state, control, **_):
            seen.append(json.loads((tmp_path / "trainer_state.json").read_text())["global_step"])
            now[0] += 1

    trainer = MeasuredTrainer(tiny_model(), tmp_path, save_strategy="no")
    trainer.add_callback(progress.LogFile())
    trainer.add_callback(Look())
    trainer.train()
    log = json.loads((tmp_path / "trainer_state.json").read_text())
    assert seen[:3] == [2, 4, 6] and log["max_steps"] == 6 and log["log_history"] == trainer.state.log_history
    slow = progress.LogFile()
    write = progress.json.dumps
    monkeypatch.setattr(progress.json, "dumps", lambda log: now.__setitem__(0, now[0] + 1) or write(log))
    for seconds, step in ((0, 7), (99, 7), (101, 10)):
        now[0] += seconds
        trainer.state.global_step = step if seconds != 99 else 9
        slow.on_log(trainer.args, trainer.state, None)
        assert json.loads((tmp_path / "trainer_state.json").read_text())["global_step"] == step
    # A folder that cannot be written ends no run.
    trainer.args.output_dir = str(tmp_path / "none" / "such")
    progress.LogFile().on_log(trainer.args, trainer.state, None)
