"""Early stopping, of whole and of continued runs."""

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from vanilla_transformer_hf.training.checkpoints.files import EarlyStopping


class StopAt(TrainerCallback):
    """The run is interrupted behind a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step
        return control


@pytest.fixture
def train(tiny_model, tmp_path):
    """`train(scores, *callbacks, resume=None, **arguments)`: a run that measures `scores[step]` at each step."""

    def train(scores, *callbacks, resume=None, **arguments):
        measured = [score if isinstance(score, dict) else {"bleu": score} for score in scores]
        rows = [{"input_ids": torch.randint(3, 90, (5,)), "labels": torch.randint(3, 90, (4,))} for _ in range(8)]
        settings = {
            **{"output_dir": str(tmp_path), "max_steps": len(scores), "eval_strategy": "steps", "eval_steps": 1},
            **{"save_steps": 1, "metric_for_best_model": "bleu", "use_cpu": True, "disable_tqdm": True},
            **{"dataloader_pin_memory": False, "report_to": "none"},
        }
        trainer = Trainer(
            tiny_model(),
            TrainingArguments(**settings | arguments),
            train_dataset=rows,
            eval_dataset=rows,
            compute_metrics=lambda _: {"error_loss": 7, **measured[trainer.state.global_step - 1]},
            callbacks=list(callbacks),
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train


@pytest.mark.parametrize(
    "scores, patience, last",
    [
        ([1, 2, 3, 4, 5, 6], 1, 6),
        ([1, 2, 2, 3, 4, 5], 1, 3),  # as good is not better
        ([1, 4, 2, 3, 5, 4, 4, 4, 9], 3, 8),  # two without a better one are not three
        ([4, 3, 2, 1], 2, 3),
        # The first four are of one text for all sources: they are no better, and no patience is lost on them.
        ([{"bleu": 9, "variety": 1}] * 4 + [{"bleu": 1, "variety": 60}, 2, 1, 1, 1], 2, 8),
    ],
)
def test_a_run_ends_when_patience_does(train, scores, patience, last):
    assert train(scores, EarlyStopping(patience)).state.global_step == last


def test_it_says_why_a_run_ends(train, caplog):
    train([1, 2, 3, 2, 1], EarlyStopping(2))
    assert "has not improved in 2 evaluations" in caplog.text


def test_of_a_loss_less_is_better(train):
    trainer = train([0] * 6, EarlyStopping(2), metric_for_best_model="error_loss")
    assert trainer.args.greater_is_better is False
    assert trainer.state.global_step == 3


def test_what_it_ends_with_is_saved_and_the_best_model_is_loaded(train, tmp_path):
    train([5, 4, 3, 2], EarlyStopping(2), save_steps=100)
    assert (tmp_path / "checkpoint-3").is_dir()
    trainer = train([5, 4, 3, 2], EarlyStopping(2), load_best_model_at_end=True, output_dir=str(tmp_path / "best"))
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-1") and trainer.state.global_step == 3


def test_a_continued_run_stops_where_it_would_have_uninterrupted(train, tmp_path):
    scores = [5, 4, 3, 2, 1, 1]
    train(scores, EarlyStopping(3), StopAt(3))
    assert train(scores, EarlyStopping(3), resume=str(tmp_path / "checkpoint-3")).state.global_step == 4


def test_it_may_come_to_a_run_that_was_begun_without_it(train, tmp_path):
    scores = [5, 4, 3, 2, 1, 1]
    train(scores, StopAt(2))
    assert train(scores, EarlyStopping(3), resume=str(tmp_path / "checkpoint-2")).state.global_step == 4


def test_a_run_that_has_stopped_asks_to_stop_before_its_next_step(train, tmp_path, caplog):
    train([5, 4, 3, 2, 1, 1], EarlyStopping(2))
    asked = []
    caplog.clear()

    class Ask(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            asked.append(control.should_training_stop)

    train([5, 4, 3, 2, 1, 1], EarlyStopping(2), Ask(), resume=str(tmp_path / "checkpoint-3"))
    assert asked == [True]
    assert "step 3 of 6: bleu has not improved in 2 evaluations; training ends here" in caplog.text
