"""
The Trainer: transformers' `Seq2SeqTrainer` with complete checkpoints, runs that stop on a signal and continue exactly,
token batches, R-Drop and distillation, and scores of generated text.
"""

import copy
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Seq2SeqTrainer,
    TrainerCallback,
)
from transformers.integrations import INTEGRATION_TO_CALLBACK
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    EvalLoopOutput,
    IntervalStrategy,
    PredictionOutput,
    TrainOutput,
    has_length,
)

from ...common.files import UNFINISHED
from ...evaluation.evaluate_module import find_tokenizer
from ...evaluation.scores import METRICS, Scores, error_rates, is_meaningful, score_translations, variety
from ...model.config.front_ends import reads_tokens
from ...model.layers.loss import RowLoss
from ...model.search.search import NaNScoresError
from ...publishing.model_card import CardFacts
from ..checkpoints.averaging import MovingAverageCallback, load_average
from ..checkpoints.files import (
    EvaluationStopped,
    StopOnSignal,
    find_damage,
    is_planned,
    move_in,
    remove,
    remove_surplus,
)
from ..checkpoints.sharding import (
    gather_optimizer_state,
    gather_weights,
    load_optimizer_state,
    optimizer_settings,
    set_optimizer_settings,
    shard,
    whole_model_generates,
)
from ..data.collators import TranslationCollator, decode_predictions
from ..data.corpus import hub_id
from ..data.parts import Mixture
from ..data.token_batches import (
    CurriculumSampler,
    EpochLengthSampler,
    MixedSampler,
    TokenBatchSampler,
    TokenBatchStream,
)
from ..objectives.first_moment import AdamWBfloat16Moment
from ..objectives.head_gates import HeadGatesCallback
from ..objectives.losses import distillation_rows, logits_of, r_drop_rows
from ..process import say
from ..recipe import TranslationTrainingArguments
from .progress import TOKENS_PER_SECOND, LogFile, Progress, ShortRunWarning, Speedometer, ZeroScoreWarning
from .publishing import PublishingMixin


# Key in a checkpoint's state: the sum of each process's losses that are not logged yet.
UNLOGGED_LOSS = "UnloggedLoss"
# Key in a checkpoint's state: the score that has chosen the best one, and its name, which stays in a moved folder.
CHOSEN_BEST = "ChosenBest"
# Key in the state of a checkpoint that a signal has put before the evaluation of its step.
MISSED_EVALUATION = "MissedEvaluation"


class TranslationTrainer(PublishingMixin, Seq2SeqTrainer):
    """
    transformers' `Seq2SeqTrainer`, with scores of generated text against the "target" column of the data.

    Afterwards `translations` holds the generated texts in the order of the data and `scores` the scores with their
    signatures. `evaluate` generates with `predict_with_generate`, `predict` always, also for data without
    labels and "target", which gets translations and no scores. The models of one stack are evaluated by transformers.

    With `tokens_per_step` batches are filled by tokens; `train_dataset` then has the column "length", may be a stream
    (`datasets.IterableDataset`), and has its own `train_collator` if one is given. Weights, order of the
    data and random numbers depend only on the seed and the step: a run continued from any of its checkpoints gives bit
    by bit the same weights as an uninterrupted one. A sharded model (FSDP2) has the same checkpoints.

    With a `mixture`, `train_dataset` holds several corpora, of which each epoch has the rows that it says.
    `eval_dataset` may be several texts by name, with languages in `target_langs`: their scores and losses are logged
    by name, and the means as those of one text.

    Its cards contain its measurements and `facts`.

    Raises:
        ValueError: The run is sharded, and a callback gives the heads gates.
        FloatingPointError: From `train`, when a loss is NaN or infinite, before the weights are changed.
        TrainingInterrupted: From `train`, after SIGTERM or Ctrl-C, once a checkpoint is saved.
        OSError: A checkpoint cannot be written. Those before it are intact.

    Example:

    ```python
    >>> from tempfile import TemporaryDirectory
    >>> from datasets import Dataset
    >>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
    >>> from vanilla_transformer_hf import VanillaTransformerTokenizer
    >>> from vanilla_transformer_hf.training.data.collators import TranslationCollator
    >>> from vanilla_transformer_hf.training.recipe import TranslationTrainingArguments
    >>> from vanilla_transformer_hf.training.trainer.translation import TranslationTrainer
    >>> texts, references = ["one two", "two three"], ["eins zwei", "zwei drei"]
    >>> tokenizer = VanillaTransformerTokenizer.train(texts, references, vocab_size=280, show_progress=False)
    >>> data = Dataset.from_dict({**tokenizer(texts, text_target=references), "target": references})
    >>> size = len(tokenizer)
    >>> config = VanillaTransformerConfig(vocab_size=size, d_model=32, encoder_layers=1, decoder_layers=1)
    >>> parts = {
    ...     "model": VanillaTransformerForConditionalGeneration(config),
    ...     "processing_class": tokenizer,
    ...     "data_collator": TranslationCollator(tokenizer, source_vocab_size=size, target_vocab_size=size),
    ... }
    >>> with TemporaryDirectory() as folder:
    ...     steps = {"max_steps": 8, "warmup_steps": 1, "learning_rate": 0.001}
    ...     arguments = TranslationTrainingArguments(folder, report_to="none", **steps)
    ...     trainer = TranslationTrainer(args=arguments, train_dataset=data, **parts)
    ...     print(trainer.train().global_step)
    8

    ```
    """

    # Defaults for arguments that transformers does not set.
    model: PreTrainedModel
    args: TranslationTrainingArguments
    processing_class: PreTrainedTokenizerBase
    train_dataset: Any
    eval_dataset: Any
    lr_scheduler: Any
    # Of the last evaluation.
    references: list[str]
    translations: list[str]
    scores: Scores

    def __init__(
        self,
        *args: Any,
        target_lang: str | None = None,
        target_langs: Mapping[str, str | None] | None = None,
        mixture: Mixture | None = None,
        train_collator: TranslationCollator | None = None,
        teacher: PreTrainedModel | None = None,
        facts: CardFacts | None = None,
        scored_alike: int = 0,  # up to this step, scores are of another text, and choose no checkpoint
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.target_lang, self.train_collator, self.teacher = target_lang, train_collator, teacher
        self.target_langs, self.mixture, self._scored_alike = dict(target_langs or {}), mixture, scored_alike
        name = self.model.name_or_path  # without facts, of the repository that the model was opened from
        self.facts = facts or CardFacts(further=bool(name), base_model=hub_id(name))
        self.translates = bool(self.model.config.is_encoder_decoder)
        self.gates: HeadGatesCallback | None = None
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, HeadGatesCallback):
                self.gates = callback
        if self.gates is not None and self.is_fsdp_enabled:
            raise ValueError(f"head_gates={self.args.head_gates}: sharded runs cannot have gates; train without fsdp.")
        if self.args.predict_with_generate:
            self.compute_metrics = self._score
        if self.args.adam_first_moment == "bfloat16":
            _, settings = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            self.optimizer_cls_and_kwargs = AdamWBfloat16Moment, settings
        if isinstance(self.data_collator, TranslationCollator):
            # It takes what it needs; transformers would remove the numbers of the lines from the text.
            self.args.remove_unused_columns = False
        self.signals, self._speedometer = StopOnSignal(), Speedometer()
        for each in (self.signals, ShortRunWarning(), ZeroScoreWarning(), LogFile(), self._speedometer):
            self.add_callback(each)
        if self.pop_callback(ProgressCallback) or self.pop_callback(PrinterCallback):  # in notebooks it is neither
            self.add_callback(Progress())
        self._batches: TokenBatchSampler | TokenBatchStream | None = None
        self._resumed_from: Path | None = None
        # What `_save_checkpoint` changes in the arguments, as it was before.
        self._own_arguments: dict[str, Any] = {}
        # Of an evaluation: nats and tokens; its data, and how many of its batches are done.
        self._likelihood = torch.zeros(2, dtype=torch.float64)
        self._evaluation_data: Any = None
        self._batches_seen = 0

    # Training: batches, losses, steps.

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.args.tokens_per_step is None:
            return super().get_train_dataloader()
        common: dict[str, Any] = {
            "collate_fn": self.train_collator or self.data_collator,
            "num_workers": self.args.dataloader_num_workers,
            "pin_memory": self.args.dataloader_pin_memory,
            # A separate generator: a new iteration must not change the state of the generator of dropout masks.
            "generator": torch.Generator(),
        }
        sampling: dict[str, Any] = {
            "max_tokens": self.args.device_batch_tokens,
            "seed": self.args.data_seed if self.args.data_seed is not None else self.args.seed,
            "num_processes": self.args.world_size,
            "process_index": self.args.process_index,
        }
        data = self.train_dataset
        if isinstance(data, datasets.IterableDataset):
            self._batches = TokenBatchStream(data, buffer_size=self.args.shuffle_buffer_size, **sampling)
            return DataLoader(self._batches, batch_size=None, **common)
        lengths = data.with_format("numpy")["length"][:]
        self._batches = TokenBatchSampler(lengths, mixture=self.mixture, **sampling)
        return DataLoader(data, batch_sampler=self._batches, **common)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        # That of transformers draws the order of like lengths from the generator of dropout masks, so that a run
        # cannot be continued inside an epoch.
        is_grouped = self.args.train_sampling_strategy == "group_by_length"
        size = self.args.train_batch_size * self.args.gradient_accumulation_steps
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        if self.mixture is not None:
            lengths = self.train_dataset.with_format("numpy")["length"][:] if is_grouped else None
            return MixedSampler(self.mixture, seed, size, lengths)
        if is_grouped and self.translates and self.train_dataset is not None:
            lengths = list(self.train_dataset["length"])
            if self.args.curriculum_steps:
                return CurriculumSampler(size * self.args.world_size, lengths, seed, self.args.curriculum_steps)
            return EpochLengthSampler(size, lengths, seed)
        return super()._get_train_sampler(train_dataset)

    def create_optimizer(self, *model: nn.Module) -> torch.optim.Optimizer:  # before 5.2 without the model
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*model)
        if is_new and self.gates is not None:
            self.gates.add_to(optimizer)
        return optimizer

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        lines = inputs.pop("line", None)
        self._speedometer.tokens_of_step = num_items_in_batch
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        if not loss.isfinite():
            optimizer = cast(torch.optim.Optimizer, self.optimizer)
            numbers = [] if lines is None else sorted(lines.tolist())
            pairs = f", on sentence pairs {', '.join(str(line + 1) for line in numbers)} of the training text"
            raise FloatingPointError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}, at learning rate "
                f"{optimizer.param_groups[0]['lr']:.3g}{pairs if numbers else ''}; nothing was changed by it. If "
                "the text is correct, try a lower learning rate, more warmup_steps, or max_grad_norm."
            )
        return loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        if model.training and (self.args.r_drop or self.teacher is not None):
            found = self._loss_by_rows(model, inputs, return_outputs, num_items_in_batch)
        else:
            if self.translates:
                # All logits of a batch would be its largest tensor; the loss needs a few rows at a time.
                inputs = {**inputs, "return_logits": not model.training or return_outputs}
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.gates is None or not model.training or return_outputs:
            return found
        # With num_items_in_batch the losses of accumulated batches are summed, without it transformers takes the mean.
        return found + self.gates.loss(1 if num_items_in_batch is None else self.current_gradient_accumulation_steps)

    def _loss_by_rows(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool,
        num_items_in_batch: torch.Tensor | int | None,
    ) -> Any:
        """The loss of R-Drop or distillation, which the model computes with a `RowLoss`."""
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        shift: Any = self.model.prepare_decoder_input_ids_from_labels
        inputs["decoder_input_ids"] = shift(labels)
        smoothing = self.model.config.label_smoothing
        row_loss: RowLoss
        if self.teacher is not None:
            wanted = logits_of(self.teacher, inputs, inputs["decoder_input_ids"]).flatten(0, 1)
            options = smoothing, self.args.distillation_weight, self.args.distillation_temperature
            row_loss = partial(distillation_rows, *options, wanted)
        else:  # each sentence twice, under two dropout masks
            inputs = {name: torch.cat((value, value)) for name, value in inputs.items()}
            row_loss = partial(r_drop_rows, smoothing, self.args.r_drop)
        count = {"num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs, **count, labels=labels, return_logits=return_outputs, row_loss=row_loss)
        loss = outputs.loss
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.translates:
            logs[TOKENS_PER_SECOND] = self._speedometer.read()
        super().log(logs, start_time)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        self._resumed_from = None
        if self.is_fsdp_enabled:
            shard(self.model, self.accelerator.state.fsdp_plugin)
        # It comes last, so that all callbacks have read their states; transformers has then set its sums to zero.
        continuing = TrainerCallback()
        continuing.on_train_begin = lambda *_, **__: self._continue(ignore_keys_for_eval)  # type: ignore[method-assign]
        self.add_callback(continuing)
        try:
            with self.signals.listening():
                result: TrainOutput = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            if (last := self.signals.last_checkpoint) is None:
                raise
            raise OSError(
                f"all {self.state.global_step:,} steps are done, and {last} has the weights of the last one, but the "
                f"model of the run could not be made of its checkpoints: {' '.join(str(error).split()).rstrip('.')}. "
                "The same command tries it again."
            ) from error
        finally:
            self.remove_callback(continuing)
            self.is_in_train = False
        if self.gates is not None:
            model, told = self.gates.remove()
            self.model = self.model_wrapped = self.callback_handler.model = model.to(self.args.device)
            say(self.args, f"closed by gates and removed: {told}.")
            about = f"Pruned by trained gates (hard concrete, penalty {self.gates.penalty:g} per open head): {told}."
            self.facts = replace(self.facts, compression=[*self.facts.compression, about])
        return result

    def _run_epoch(self, model: nn.Module, epoch: int, train_dataloader: Any, *args: Any, **kwargs: Any) -> None:
        # transformers would add one step to a continued run that is already complete or was stopped early.
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        parts: tuple[Any, ...] = (self._batches, train_dataloader.collate_fn)
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        super()._run_epoch(model, epoch, train_dataloader, *args, **kwargs)  # type: ignore[no-untyped-call]

    # Stopping and continuing. An evaluation that a signal stops, or would delay, comes after the checkpoint: a
    # checkpoint that lacks the evaluation of its step records that, and the continued run makes up for it.

    def _continue(self, ignore_keys: list[str] | None) -> None:
        """Restore what the checkpoint has beside transformers' own state."""
        states: Any = self.state.stateful_callbacks or {}
        self.state.compute_steps(self.args, self.state.max_steps)  # a run may continue with others
        unlogged = states.get(UNLOGGED_LOSS)
        if self.state.global_step and unlogged is not None:
            losses = unlogged["losses"]
            # With another number of processes each gets the mean, because transformers logs the mean over processes.
            is_own = len(losses) == self.args.world_size
            self._tr_loss += losses[self.args.process_index] if is_own else sum(losses) / len(losses)
            self._globalstep_last_logged = unlogged["last_logged_step"]
        if self._resumed_from is not None and (chosen := states.get(CHOSEN_BEST)) is not None:
            self._find_best(self._resumed_from, **chosen)
        missed = states.pop(MISSED_EVALUATION, None)
        # An evaluation before the first step (eval_on_start) is made again by transformers.
        if not missed or self._resumed_from is None or self.args.eval_strategy == IntervalStrategy.NO.value:
            return
        # Make the evaluation that the checkpoint lacks, and save it again if it was due without a signal.
        self._load_rng_state(str(self._resumed_from))  # for the checkpoint
        self.control.should_log, self.control.should_evaluate = False, True
        is_last = self.state.global_step >= self.state.max_steps
        self.control.should_save = is_last or is_planned(self._resumed_from, self.args)
        epoch = float(self.state.epoch or 0)
        self._maybe_log_save_evaluate(self._tr_loss, None, self.model, None, epoch, ignore_keys, start_time=0.0)

    def _find_best(self, checkpoint: Path, metric: str | None, name: str | None) -> None:
        """Set the best checkpoint beside that which the run continues from: its `name`, unless scores have changed."""
        state, chosen_by = self.state, self.args.metric_for_best_model
        if metric != chosen_by or self._scored_alike:
            key, best = f"eval_{str(chosen_by).removeprefix('eval_')}", max if self.args.greater_is_better else min
            log = (each for each in state.log_history if key in each and each["step"] > self._scored_alike)
            scores = {int(each["step"]): each[key] for each in log if is_meaningful(each, key)}
            there = [step for step in scores if checkpoint.with_name(f"{PREFIX_CHECKPOINT_DIR}-{step}").is_dir()]
            step = best(there, key=scores.__getitem__, default=0)
            state.best_global_step, state.best_metric = step or None, scores.get(step)
            name = f"{PREFIX_CHECKPOINT_DIR}-{step}" if step else None
        place = name and checkpoint.with_name(name)
        if place and not place.is_dir():
            say(self.args, f"Warning: {place}, the best checkpoint so far, is not there any more.")
        state.best_model_checkpoint = str(place) if place and place.is_dir() else None

    # Checkpoints. Sharded over processes (FSDP2) or not, they have full tensors in the same files, and a run continues
    # with any number of processes; transformers' own files of sharded runs fit only sharded runs.

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        # transformers' checkpoint, written to a temporary folder and moved to its place when every process has written
        # its part: a run that is killed leaves a complete checkpoint or none.
        folder = Path(self._get_output_dir(trial))
        place = folder / UNFINISHED
        checkpoint = place / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        writes = self.args.should_save
        if writes:
            shutil.rmtree(place, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._own_arguments = {"output_dir": self.args.output_dir, "push_to_hub": self.args.push_to_hub}
        try:
            with changed(self.args, output_dir=str(place), push_to_hub=False):
                super()._save_checkpoint(model, None)  # without the trial, whose folder is in `place` already
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, MovingAverageCallback):
                    callback.save(checkpoint, write=writes)
            if self.state.best_global_step == self.state.global_step:
                self.state.best_model_checkpoint = str(folder / checkpoint.name)
            # transformers logs the mean loss of the steps since its last log, and loses those before an interruption.
            losses = self.accelerator.gather(self._tr_loss.reshape(1).to(self.args.device)).tolist()
            unlogged: dict[str, Any] = {"last_logged_step": self._globalstep_last_logged, "losses": losses}
            states: Any = self.state.stateful_callbacks or {}
            best = self.state.best_model_checkpoint
            chosen = {"metric": self.args.metric_for_best_model, "name": None if best is None else Path(best).name}
            self.state.stateful_callbacks = states | {UNLOGGED_LOSS: unlogged, CHOSEN_BEST: chosen}
            if writes:
                with changed(self.state, best_model_checkpoint=None):
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
            self._own_arguments = {}
        if writes:
            self._remove_what_a_signal_left(folder / checkpoint.name)
            remove_surplus(folder, self.args.save_total_limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self.upload_checkpoint(folder / checkpoint.name)

    def _remove_what_a_signal_left(self, newest: Path) -> None:
        """Delete a signal's checkpoint that this run continued from: it would change the average of the last ones."""
        began, self._resumed_from = self._resumed_from, None
        if began is None or began.parent.resolve() != newest.parent.resolve() or began.name == newest.name:
            return
        is_best = self.state.best_model_checkpoint and Path(self.state.best_model_checkpoint).name == began.name
        if not is_best and find_damage(began) is None and not is_planned(began, self.args):
            remove(began)

    def gather_weights(self) -> dict[str, torch.Tensor] | None:
        """The full weights of a sharded model, or None if it is not sharded. Every process must call this."""
        return gather_weights(self.model) if self.is_fsdp_enabled else None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        # transformers saves its arguments beside the weights; the token among them is a secret.
        with changed(self.args, hub_token=None, **self._own_arguments):
            if self.is_fsdp_enabled:
                self._save(output_dir, state_dict=self.gather_weights())
            else:
                super().save_model(output_dir, _internal_call=True)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        state = gather_optimizer_state(self.optimizer)
        if self.args.should_save:
            torch.save(state, Path(output_dir, OPTIMIZER_NAME))
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        settings = optimizer_settings(self.optimizer)
        if self.is_fsdp_enabled:
            names = (OPTIMIZER_NAME, SCHEDULER_NAME)
            states = [torch.load(Path(checkpoint, name), "cpu", weights_only=True) for name in names]
            load_optimizer_state(self.optimizer, states[0])
            self.lr_scheduler.load_state_dict(states[1])
        else:
            super()._load_optimizer_and_scheduler(checkpoint)
        # A run that is continued with another learning rate trains with it.
        set_optimizer_settings(self.optimizer, self.lr_scheduler, settings)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self._resumed_from = Path(resume_from_checkpoint)
        if self.is_fsdp_enabled:
            load_average(self.model, [resume_from_checkpoint])
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled:
            load_average(self.model, [str(self.state.best_model_checkpoint)])
        else:
            super()._load_best_model()

    # Evaluation: the loss as a mean over tokens, and scores of generated text.

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(data, dict):  # transformers evaluates one after the other by calling this
            several: dict[str, float] = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
            return self._choosable(several | self._log_means(several, list(data), metric_key_prefix))
        if self.args.predict_with_generate:
            self.references = list((self.eval_dataset[data] if isinstance(data, str) else data)["target"])
        try:
            if self.is_in_train:
                with self.signals.in_evaluation(self.args):  # a signal may have come before
                    pass
            lang = self.target_langs.get(data, self.target_lang) if isinstance(data, str) else self.target_lang
            with changed(self, target_lang=lang), self._as_evaluated(gen_kwargs):
                metrics: dict[str, float] = super().evaluate(
                    eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs
                )
        except EvaluationStopped:  # its checkpoint is saved, and the callback of the signal ends the run
            step = self.state.global_step
            self.state.log_history = [  # of several texts, some may have been evaluated
                entry
                for entry in self.state.log_history
                if entry["step"] != step or not any(name.startswith("eval_") for name in entry)
            ]
            if self.is_world_process_zero():
                print("\nThe evaluation is stopped, a checkpoint is saved; again to stop without one.", flush=True)
            states: Any = self.state.stateful_callbacks or {}
            self.state.stateful_callbacks = states | {MISSED_EVALUATION: step}
            self._save_checkpoint(self.model, None)
            self.callback_handler.on_save(self.args, self.state, self.control)
            raise
        if self.is_in_train and self.signals.received_by_any(self.args):  # between its batches or behind the last one
            self.control.should_save = True
        return metrics if isinstance(data, str) else self._choosable(metrics)

    def _choosable(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics of an evaluation with the worst value where the score of degenerate output would choose."""
        name = f"eval_{str(self.args.metric_for_best_model).removeprefix('eval_')}"
        if not self.is_in_train or name not in metrics or is_meaningful(metrics, name):
            return metrics
        say(
            self.args,
            f"step {self.state.global_step:,}: nearly all sources have the same translation "
            f"({self.translations[0][:40]!r}), so its {name.removeprefix('eval_')} chooses no checkpoint.",
        )
        return {**metrics, name: -math.inf if self.args.greater_is_better else math.inf}

    def expect_final_scores(self, data: Mapping[str, Any]) -> None:
        """Count the scores of these texts, which come after training, in the time that is left."""
        evaluated: Any = self.eval_dataset
        texts = list(evaluated.values()) if isinstance(evaluated, dict) else [evaluated]
        if evaluated is None or not (pairs := sum(map(len, texts))):
            return
        beams = self.model.generation_config.num_beams if self.args.predict_with_generate else 1
        work = sum(map(len, data.values())) * (beams or 1) / (self.args.generation_num_beams or beams or 1)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, Progress):
                callback.final_scores = work / pairs

    @contextmanager
    def one_tracked_run(self) -> Iterator[None]:
        """In this context trackers such as Trackio keep their run: final scores belong to the run of the training."""
        ends: dict[TrainerCallback, partial[Any]] = {}

        def put_off(tracker: TrainerCallback, end: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            ends[tracker] = partial(end, *args, **kwargs)

        trackers = self._trackers()
        for tracker in trackers:
            vars(tracker)["on_train_end"] = partial(put_off, tracker, tracker.on_train_end)
        try:
            yield
        finally:
            for tracker in trackers:
                del vars(tracker)["on_train_end"]
            for end in ends.values():
                end()

    def track(self, metrics: dict[str, float]) -> None:
        """Tell final scores to those trackers that transformers does not tell of predictions."""
        for tracker in self._trackers():
            if type(tracker).on_predict is TrainerCallback.on_predict:
                tracker.on_log(self.args, self.state, self.control, model=self.model, logs=dict(metrics))

    def _trackers(self) -> list[TrainerCallback]:
        """The callbacks of transformers that send logs somewhere; codecarbon's, which measures training, does not."""
        known = set(INTEGRATION_TO_CALLBACK.values())
        callbacks = self.callback_handler.callbacks
        return [each for each in callbacks if type(each) in known and type(each).on_log is not TrainerCallback.on_log]

    def _log_means(self, metrics: dict[str, float], names: list[str], prefix: str) -> dict[str, float]:
        """Log the means of several texts' scores and losses under a single text's names, to choose checkpoints."""
        if not self.translates:
            return {}
        means = {}
        for score in ("loss", *METRICS, "variety"):
            values = [metrics[key] for name in names if (key := f"{prefix}_{name}_{score}") in metrics]
            if values and len(values) == len(names):
                means[f"{prefix}_{score}"] = sum(values) / len(values)
        self.log(dict(means))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, means)
        return means

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        has_references = "target" in test_dataset.column_names
        self.references = list(test_dataset["target"]) if has_references else []
        with (
            changed(self.args, predict_with_generate=True),
            changed(self, compute_metrics=self._score),
            self._as_evaluated(gen_kwargs),
        ):
            output: PredictionOutput = super().predict(test_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        if not has_references:  # nothing is scored
            token_ids = np.asarray(output.predictions)[: len(test_dataset)]
            self.translations = decode_predictions(self.processing_class, token_ids)
        return output

    @contextmanager
    def _as_evaluated(self, gen_kwargs: dict[str, Any]) -> Iterator[None]:
        """A context with the weights that are evaluated, which keeps the data's order and the random generators."""
        if not self.translates:
            yield
            return
        with ExitStack() as stack:
            # The order of the data is the order of the references; grouping by length would shuffle it.
            stack.enter_context(changed(self.args, train_sampling_strategy="random"))
            stack.enter_context(torch.random.fork_rng(range(torch.cuda.device_count())))
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, (MovingAverageCallback, HeadGatesCallback)):
                    stack.enter_context(callback.applied())
            if self.is_fsdp_enabled and self.args.predict_with_generate:
                gen_kwargs["synced_gpus"] = False
                stack.enter_context(whole_model_generates(self.model, self.args.device))
            if (gen_kwargs.get("num_beams") or self.args.generation_num_beams) == 1:
                # transformers warns of settings that greedy search does not use.
                greedy = copy.deepcopy(self.model.generation_config)
                greedy.length_penalty = greedy.early_stopping = None
                stack.enter_context(changed(self.model, generation_config=greedy))
            yield

    def _score(self, prediction: EvalPrediction) -> dict[str, float]:
        # With several processes the last batch is padded with repeated sentences.
        token_ids = np.asarray(prediction.predictions)[: len(self.references)]
        self.translations = decode_predictions(self.processing_class, token_ids)
        _, note = find_tokenizer(self.target_lang, self.args.bleu_tokenize)
        tokenize = "char" if note else self.args.bleu_tokenize  # the note was printed before training
        self.scores = score_translations(self.translations, self.references, self.target_lang, tokenize)
        found = {"bleu": self.scores.bleu, "chrf": self.scores.chrf, "exact_match": self.scores.exact_match}
        if (varied := variety(self.translations, self.references)) is not None:
            found["variety"] = varied
        return found if reads_tokens(self.model.config) else found | error_rates(self.translations, self.references)

    def evaluation_loop(self, dataloader: DataLoader[Any], *args: Any, **kwargs: Any) -> EvalLoopOutput:
        # transformers' loop, but the loss is the mean over tokens, as in training, not over sentences.
        self._likelihood = torch.zeros(2, dtype=torch.float64)
        self._evaluation_data, self._batches_seen = dataloader.dataset, 0
        output: EvalLoopOutput = super().evaluation_loop(dataloader, *args, **kwargs)
        if not self.translates:
            return output
        total, tokens = self.accelerator.reduce(self._likelihood.to(self.args.device, torch.float32), "sum").tolist()
        loss = {f"{kwargs.get('metric_key_prefix', 'eval')}_loss": total / tokens} if tokens else {}
        return output._replace(metrics={**(output.metrics or {}), **loss})

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Any, Any]:
        with self.signals.in_evaluation(self.args) if self.is_in_train else nullcontext():
            if self.translates:
                return self._translation_step(model, inputs, prediction_loss_only, ignore_keys, **gen_kwargs)
            found: tuple[Any, Any, Any] = super().prediction_step(
                model, inputs, prediction_loss_only, ignore_keys, **gen_kwargs
            )
            return found

    def _translation_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, *args: Any, **gen_kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """`prediction_step`, which counts the batch's loss and its tokens."""
        # Without labels, transformers' collator has labels=None, for which transformers would compute a loss.
        inputs = {name: value for name, value in inputs.items() if value is not None and name != "line"}
        if self.args.world_size > 1 and "labels" in inputs and has_length(self._evaluation_data):
            # Repeated sentences only pad the last round of several processes.
            before = (self._batches_seen * self.args.world_size + self.args.process_index) * self.args.eval_batch_size
            self._batches_seen += 1
            labels = inputs["labels"].clone()
            labels[max(0, len(self._evaluation_data) - before) :] = -100
            inputs = {**inputs, "labels": labels}
        # transformers fills the model's generation config with global defaults here, a max_length of 20 among them.
        with changed(self.model, generation_config=copy.deepcopy(self.model.generation_config)):
            if self.is_in_train and self.args.eval_max_extra_tokens is not None:
                self.model.generation_config.update(max_extra_tokens=self.args.eval_max_extra_tokens)
            try:
                loss, generated, labels = super().prediction_step(
                    model, inputs, prediction_loss_only, *args, **gen_kwargs
                )
            except NaNScoresError:
                if not self.is_in_train:
                    raise
                # The next step of training fails, too, and names the sentences.
                loss, _, _ = super().prediction_step(model, inputs, True)
                source = inputs[self.model.main_input_name]
                generated = torch.full((len(source), 1), -100, device=source.device)
                labels = inputs.get("labels")
        if loss is not None:
            tokens = int((inputs["labels"] != -100).sum())
            self._likelihood += torch.tensor([float(loss) * tokens, tokens])
        return loss, generated, labels


@contextmanager
def changed(target: Any, **values: Any) -> Iterator[None]:
    """In this context an object has these values for its attributes."""
    before = {name: getattr(target, name) for name in values}
    try:
        for name, value in values.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
