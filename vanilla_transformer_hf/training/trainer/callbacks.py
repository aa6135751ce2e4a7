"""The callbacks of a run, by its arguments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..checkpoints.averaging import AverageCheckpointsCallback
from ..checkpoints.files import EarlyStopping
from ..checkpoints.moving_average import MovingAverageCallback
from ..objectives.head_gates import HeadGatesCallback
from ..recipe import TranslationTrainingArguments


def make_callbacks(training: TranslationTrainingArguments, checkpoint: Path | None) -> list[TrainerCallback]:
    """Callbacks for early stopping, averages and head gates, of a run that continues from `checkpoint`, if any."""
    callbacks: list[TrainerCallback] = []
    if training.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(training.early_stopping_patience))
    if training.moving_average is not None:
        callbacks.append(MovingAverageCallback(training.moving_average, checkpoint))
    if training.average_last is not None or training.average_best is not None:
        callbacks.append(
            AverageCheckpointsCallback(training.average_last, training.average_best, metric_of_average(training))
        )
    if training.head_gates:
        callbacks.append(HeadGatesCallback(training.head_gates, training.head_gates_learning_rate))
    return callbacks


def metric_of_average(training: TrainingArguments) -> str:
    """The logged score by which the checkpoints of `average_best` are the best."""
    return f"eval_{(training.metric_for_best_model or 'bleu').removeprefix('eval_')}"


class AtTrainBegin(TrainerCallback):
    """Calls a function when training begins, after the state of the checkpoint was read."""

    def __init__(self, act: Callable[[], None]):
        self.act = act

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.act()
