"""Stopping a run that gets no better."""

import logging
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy


logger = logging.getLogger(__name__)


class EarlyStopping(TrainerCallback):
    """
    Stops training, with a checkpoint, after so many evaluations without a better `metric_for_best_model`.

    The evaluations are counted in the Trainer's log, which checkpoints hold: unlike with the host's callback, a run
    that is continued stops where it would have stopped uninterrupted, and one that has stopped stays stopped.

    Args:
        patience: Evaluations in a row that are no better than the best before them.

    Raises:
        ValueError: `patience` is below 1; or, when the Trainer is made or training begins, its arguments name no
            metric, or no evaluation.
    """

    def __init__(self, patience: int):
        if patience < 1:
            raise ValueError(f"early stopping after {patience} evaluations: the patience is 1 or more.")
        self.patience = patience

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if args.metric_for_best_model is None:
            raise ValueError("metric_for_best_model is not given: early stopping needs to know what is to get better.")
        if args.eval_strategy == IntervalStrategy.NO:
            raise ValueError("eval_strategy=no: early stopping needs evaluations.")

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self.on_init_end(args, state, control)
        control.should_training_stop = self._is_enough(args, state)
        return control

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self._is_enough(args, state):
            control.should_training_stop = control.should_save = True
            if state.is_world_process_zero:
                logger.warning(
                    "step %d: %s has not become better in %d evaluations; training ends here",
                    state.global_step, args.metric_for_best_model, self.patience,
                )  # fmt: skip
        return control

    def _is_enough(self, args: TrainingArguments, state: TrainerState) -> bool:
        metric = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
        sign = 1 if args.greater_is_better else -1
        values = [sign * entry[metric] for entry in state.log_history if metric in entry]
        return bool(values) and len(values) - 1 - values.index(max(values)) >= self.patience
