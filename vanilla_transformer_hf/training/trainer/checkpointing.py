"""transformers' Trainer with complete checkpoints only, and runs that stop on a signal and continue exactly."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy

from ...common.files import UNFINISHED
from ..checkpoints.averaging import load_average
from ..checkpoints.files import (
    EvaluationStopped,
    StopOnSignal,
    TrainingInterrupted,
    is_complete,
    is_planned,
    move_in,
    remove,
    remove_surplus,
)
from ..checkpoints.moving_average import MovingAverageCallback
from ..checkpoints.sharding import gather_optimizer_state, gather_weights, load_optimizer_state, shard
from ..data.collators import TranslationCollator
from ..objectives.first_moment import AdamWBfloat16Moment
from ..recipe import TranslationTrainingArguments
from .progress import ShortRunWarning


# Key in a checkpoint's state: the sum of each process's losses that are not logged yet.
UNLOGGED_LOSS = "UnloggedLoss"
# Key in the state of a checkpoint that a signal has put before the evaluation of its step.
MISSED_EVALUATION = "MissedEvaluation"


class _RecallUnloggedLoss(TrainerCallback):
    """Restores the sums after transformers has set them to zero, before the first step."""

    def __init__(self, recall: Callable[[], None]):
        self.recall = recall

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self.recall()


class CheckpointingTrainer(Seq2SeqTrainer):
    """
    transformers' `Seq2SeqTrainer` with complete checkpoints only, of sharded (FSDP2) and unsharded models.

    Raises:
        TrainingInterrupted: From `train`, after SIGTERM or Ctrl-C, once a checkpoint is saved.
        OSError: A checkpoint cannot be written. Those before it are intact.
    """

    # Defaults for arguments that transformers does not set.
    model: PreTrainedModel
    args: TranslationTrainingArguments
    processing_class: PreTrainedTokenizerBase
    data_collator: TranslationCollator
    train_dataset: Any
    eval_dataset: Any
    lr_scheduler: Any

    def __init__(self, *args: Any, **kwargs: Any):
        self._checkpoint_place: Path | None = None
        self._began_from: Path | None = None
        super().__init__(*args, **kwargs)
        self.signals = StopOnSignal()
        self.add_callback(self.signals)
        self.add_callback(_RecallUnloggedLoss(self._recall_unlogged_loss))
        self.add_callback(ShortRunWarning)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._began_from = None
        with self.signals.listening():
            return super().train(*args, **kwargs)

    @contextmanager
    def stopping_at_once(self, saved: str) -> Iterator[None]:
        """
        In this context, where everything is saved that would be lost, a signal ends the run at once.

        Raises:
            TrainingInterrupted: A signal has come, also before; `saved` says what is saved.
        """
        with self.signals.at_once(lambda number: TrainingInterrupted(number, self.state.global_step, saved)):
            yield

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TranslationTrainingArguments, model: Any = None) -> tuple[Any, Any]:  # type: ignore[override]
        kind, settings = Seq2SeqTrainer.get_optimizer_cls_and_kwargs(args, model)
        return AdamWBfloat16Moment if args.adam_first_moment == "bfloat16" else kind, settings

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_fsdp_enabled:
            shard(self.model, self.accelerator.state.fsdp_plugin)
        return super()._prepare_for_training(*args, **kwargs)

    # An evaluation that a signal stops, or would delay, comes after the checkpoint: a checkpoint that lacks the
    # evaluation of its step says so, and the run makes up for it when it goes on.

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        if not self.is_in_train:
            return super().prediction_step(*args, **kwargs)
        with self.signals.in_evaluation(self.args):
            return super().prediction_step(*args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        log = list(self.state.log_history)
        try:
            with self.signals.in_evaluation(self.args):  # one may have come before
                pass
            metrics = super()._evaluate(*args, **kwargs)
            if self.signals.has_come(self.args):  # between its batches or behind the last one
                self.control.should_save = True
            return metrics
        except EvaluationStopped:
            self.state.log_history = log  # of several texts, some may have been evaluated
            if self.is_world_process_zero():
                print("\nThe evaluation is stopped, a checkpoint is saved; again to stop without one.", flush=True)
            states: Any = self.state.stateful_callbacks or {}
            self.state.stateful_callbacks = states | {MISSED_EVALUATION: self.state.global_step}
            self._save_checkpoint(self.model, None)
            self.callback_handler.on_save(self.args, self.state, self.control)
            raise

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self._make_up_evaluation(kwargs["trial"], kwargs["ignore_keys_for_eval"], kwargs["start_time"])
        # transformers would add one step to a continued run that is already complete or was stopped early.
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _make_up_evaluation(self, trial: Any, ignore_keys: list[str] | None, start_time: float) -> None:
        """Make the evaluation that the checkpoint lacks, and save it again if it was due without a signal."""
        states: Any = self.state.stateful_callbacks or {}
        missed = states.pop(MISSED_EVALUATION, None)
        # An evaluation before the first step (eval_on_start) is made again by transformers.
        if not missed or self._began_from is None or self.args.eval_strategy == IntervalStrategy.NO:
            return
        self._load_rng_state(str(self._began_from))  # for the checkpoint
        self.control.should_log, self.control.should_evaluate = False, True
        is_last = self.state.global_step >= self.state.max_steps
        self.control.should_save = is_last or is_planned(self._began_from, self.args, self.state.save_steps)
        epoch = float(self.state.epoch or 0)
        self._maybe_log_save_evaluate(self._tr_loss, None, self.model, trial, epoch, ignore_keys, start_time)

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        self._make_up_evaluation(trial, None, start_time)  # of a run whose last evaluation was stopped
        last = Path(self._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if not last.is_dir():
            return super()._finalize_training(trial, num_train_samples, start_time)
        try:
            with self.stopping_at_once("its checkpoint is saved."):
                return super()._finalize_training(trial, num_train_samples, start_time)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise OSError(
                f"all {self.state.global_step:,} steps are done, and {last} has the weights of the last one, but the "
                f"model of the run could not be made of its checkpoints: {' '.join(str(error).split()).rstrip('.')}. "
                "The same command tries it again."
            ) from error

    def _moving_average(self) -> MovingAverageCallback | None:
        callbacks = self.callback_handler.callbacks
        return next((callback for callback in callbacks if isinstance(callback, MovingAverageCallback)), None)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._checkpoint_place or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """
        transformers' checkpoint, written to a temporary folder and moved to its place when every process has
        written its part.
        """
        folder = Path(self._get_output_dir(trial))
        place = folder / UNFINISHED
        checkpoint = place / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        writes = self.args.should_save
        if writes:
            shutil.rmtree(place, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._checkpoint_place = place
        try:
            super()._save_checkpoint(model, trial)
            if (average := self._moving_average()) is not None:
                average.save(checkpoint, write=writes)
            if self.state.best_global_step == self.state.global_step:
                self.state.best_model_checkpoint = str(folder / checkpoint.name)
            self._keep_unlogged_loss()
            if writes:
                self.state.save_to_json(str(checkpoint / TRAINER_STATE_NAME))
            self.accelerator.wait_for_everyone()
            if writes:
                move_in(checkpoint, folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(place, ignore_errors=True)
            free = shutil.disk_usage(folder).free / 2**20
            raise OSError(
                f"{folder / checkpoint.name} cannot be written ({' '.join(str(error).split())}; {free:,.0f} MiB are "
                "free there). The checkpoints before it are intact: the same command continues from the last one."
            ) from error
        finally:
            self._checkpoint_place = None
        if writes:
            self._remove_what_a_signal_left(folder / checkpoint.name)
            remove_surplus(folder, self.args.save_total_limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder / checkpoint.name))

    # transformers logs the mean loss of the steps since its last log, and loses those before an interruption.

    def _keep_unlogged_loss(self) -> None:
        losses = self.accelerator.gather(self._tr_loss.reshape(1).to(self.args.device)).tolist()
        kept: dict[str, Any] = {"last_logged_step": self._globalstep_last_logged, "losses": losses}
        states: Any = self.state.stateful_callbacks or {}
        self.state.stateful_callbacks = states | {UNLOGGED_LOSS: kept}

    def _recall_unlogged_loss(self) -> None:
        states: Any = self.state.stateful_callbacks or {}
        kept = states.get(UNLOGGED_LOSS)
        if self.state.global_step == 0 or kept is None:
            return
        losses = kept["losses"]
        # With another number of processes each gets the mean, because transformers logs the mean over processes.
        is_own = len(losses) == self.args.world_size
        self._tr_loss += losses[self.args.process_index] if is_own else sum(losses) / len(losses)
        self._globalstep_last_logged = kept["last_logged_step"]

    def _remove_what_a_signal_left(self, newest: Path) -> None:
        """
        Delete the checkpoint that this run continued from if it was saved on a signal: it would change the average
        over the last checkpoints.
        """
        began, self._began_from = self._began_from, None
        if began is None or began.parent.resolve() != newest.parent.resolve() or began.name == newest.name:
            return
        is_best = self.state.best_model_checkpoint and Path(self.state.best_model_checkpoint).name == began.name
        if not is_best and is_complete(began) and not is_planned(began, self.args, self.state.save_steps):
            remove(began)

    # Sharded over processes (FSDP2) or not, a checkpoint has full tensors in the same files, and a run continues with
    # any number of processes. transformers' own files of sharded runs fit only sharded runs.

    def gather_weights(self) -> dict[str, torch.Tensor] | None:
        """The full weights of a sharded model, or None if it is not sharded. Every process must call this."""
        return gather_weights(self.model) if self.is_fsdp_enabled else None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if not self.is_fsdp_enabled:
            super().save_model(output_dir, _internal_call)
            return
        self._save(output_dir, state_dict=self.gather_weights())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # transformers saves its arguments beside the weights; the token among them is a secret.
        token, self.args.hub_token = self.args.hub_token, None
        try:
            super()._save(output_dir, state_dict)
        finally:
            self.args.hub_token = token

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        state = gather_optimizer_state(self.optimizer)
        if self.args.should_save:
            torch.save(state, Path(output_dir, OPTIMIZER_NAME))
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        settings = [] if checkpoint is None else optimizer_settings(self.optimizer)
        self._load_states(checkpoint)
        if settings:
            set_optimizer_settings(self.optimizer, self.lr_scheduler, settings)

    def _load_states(self, checkpoint: str | None) -> None:
        if checkpoint is None or not self.is_fsdp_enabled:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        states = [
            torch.load(Path(checkpoint, name), "cpu", weights_only=True) for name in (OPTIMIZER_NAME, SCHEDULER_NAME)
        ]
        load_optimizer_state(self.optimizer, states[0])
        self.lr_scheduler.load_state_dict(states[1])

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self._began_from = Path(resume_from_checkpoint)
        if self.is_fsdp_enabled:
            load_average(self.model, [resume_from_checkpoint])
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled:
            load_average(self.model, [str(self.state.best_model_checkpoint)])
        else:
            super()._load_best_model()


def optimizer_settings(optimizer: Any) -> list[dict[str, Any]]:
    """The settings of the optimizer from the arguments, such as its learning rate, by parameter group."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def set_optimizer_settings(optimizer: Any, scheduler: Any, settings: list[dict[str, Any]]) -> None:
    """
    Give an optimizer and its schedule, just loaded from a checkpoint, the settings of this run.

    A run that is continued with another learning rate then trains with it.
    """
    if not isinstance(getattr(scheduler, "scheduler", scheduler), LambdaLR):
        # Their rates depend on a state in the checkpoint, not only on the step; `resume.check_rate` refuses changes.
        for group, own in zip(optimizer.param_groups, settings):
            group.update({name: value for name, value in own.items() if name not in ("lr", "initial_lr")})
        return
    schedule = getattr(scheduler, "scheduler", scheduler)
    schedule.base_lrs = [group["initial_lr"] for group in settings]
    rates = [rate * factor(schedule.last_epoch) for rate, factor in zip(schedule.base_lrs, schedule.lr_lambdas)]
    for group, own, rate in zip(optimizer.param_groups, settings, rates):
        group.update(own | {"lr": rate})
    schedule._last_lr = rates
