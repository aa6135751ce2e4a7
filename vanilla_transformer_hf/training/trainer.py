"""The Trainer of translation models: token batches, R-Drop, scores of generated text, runs that can be continued."""

import copy
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Seq2SeqTrainer,
)
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, has_length
from transformers.utils import logging

from ..evaluation.scores import Scores, score_translations
from ..publishing.hub import Published, one_line, publish_folder
from ..publishing.model_card import CURVES_FILE, CardFacts, write_card
from . import curves
from .averaging import MovingAverageCallback, load_average
from .checkpoints import (
    UNFINISHED,
    StopOnSignal,
    is_complete,
    is_planned,
    move_in,
    remove,
    remove_surplus,
    resumable_files,
)
from .corpus import IGNORED_LABEL, TranslationCollator
from .progress import TOKENS_PER_SECOND, Progress, Speedometer
from .r_drop import r_drop_loss
from .recipe import TranslationTrainingArguments
from .sharding import (
    gather_optimizer_state,
    gather_weights,
    load_optimizer_state,
    shard,
)
from .token_batches import TokenBatchSampler, TokenBatchStream


logger = logging.get_logger(__name__)

# Facts for a card as the host's `push_to_hub` calls them -> as ours; None: the tokenizer and the model tell.
HOST_FACTS = {
    **{"finetuned_from": "base_model", "dataset": "corpus", "dataset_tags": "datasets", "model_name": "name"},
    **dict.fromkeys(("tasks", "tags", "language", "dataset_args")),
}


def _known_facts(model: PreTrainedModel) -> CardFacts:
    """What a model tells by itself: the repository that it was opened from."""
    name = model.name_or_path
    return CardFacts(further=bool(name), base_model=None if not name or Path(name).exists() else name)


def _stated_facts(arguments: dict[str, Any]) -> dict[str, Any]:
    """Facts for a card in our names; `datasets` as a list, since the host takes one too."""
    named = {HOST_FACTS.get(name, name): value for name, value in arguments.items() if value is not None}
    stated = {name: value for name, value in named.items() if name is not None}
    if isinstance(stated.get("datasets"), str):
        stated["datasets"] = [stated["datasets"]]
    return stated


class EpochLengthSampler(LengthGroupedSampler):
    """The host's, in an order that depends on seed and epoch alone, so that a run can be continued inside an epoch."""

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths, generator=torch.Generator())
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Epochs differ in their order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(hash((self.seed, self.epoch)))
        return super().__iter__()


class TranslationTrainer(Seq2SeqTrainer):
    """
    The host's `Seq2SeqTrainer`, scoring generated text against the "target" column of the data it is given.

    Afterwards `translations` holds the generated texts in the order of the data and `scores` the scores with their
    signatures. `evaluate` generates if `predict_with_generate` says so, `predict` always.

    With `tokens_per_step` batches are filled by tokens; `train_dataset` then has the column "length", may be a stream
    (`datasets.IterableDataset`), and has its own `train_collator` if one is given. Weights, order of the data and
    random numbers depend on the seed and the step alone: a run continued from any of its checkpoints ends bit by bit
    like one that was never interrupted.

    Its cards say what it measures, and `facts`.

    Raises:
        FloatingPointError: From `train`, when a loss is NaN or infinite; before the weights are touched.
        TrainingInterrupted: From `train`, after SIGTERM or Ctrl-C, when a checkpoint is saved.
        OSError: A checkpoint cannot be written. Those before it are intact.
    """

    # What the host leaves open.
    model: PreTrainedModel
    args: TranslationTrainingArguments
    processing_class: PreTrainedTokenizerBase
    data_collator: TranslationCollator
    train_dataset: Any
    eval_dataset: Any
    lr_scheduler: Any

    references: list[str]
    translations: list[str]
    scores: Scores

    def __init__(
        self,
        *args: Any,
        target_lang: str | None = None,
        train_collator: TranslationCollator | None = None,
        facts: CardFacts | None = None,
        **kwargs: Any,
    ):
        self.target_lang = target_lang
        self.train_collator = train_collator
        self._batches: TokenBatchSampler | TokenBatchStream | None = None
        self._lines: list[int] = []
        self._checkpoint_place: Path | None = None
        self._began_from: Path | None = None
        self._likelihood = torch.zeros(2, dtype=torch.float64)  # of an evaluation: nats, tokens
        super().__init__(*args, **kwargs)
        self.facts = facts or _known_facts(self.model)
        if self.args.predict_with_generate:
            self.compute_metrics = self._score
        self._stop_on_signal = StopOnSignal()
        self.add_callback(self._stop_on_signal)
        self._speedometer = Speedometer()
        self.add_callback(self._speedometer)
        if self.pop_callback(ProgressCallback) or self.pop_callback(PrinterCallback):  # in notebooks it is neither
            self.add_callback(Progress)

    # ---- Training ----

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with self._stop_on_signal.listening():
            return super().train(*args, **kwargs)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_fsdp_enabled:
            shard(self.model, self.accelerator.state.fsdp_plugin)
        return super()._prepare_for_training(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        if self.args.tokens_per_step is None:
            return super().get_train_dataloader()
        common: dict[str, Any] = {
            "collate_fn": self.train_collator or self.data_collator,
            "num_workers": self.args.dataloader_num_workers,
            "pin_memory": self.args.dataloader_pin_memory,
            # Its own generator: the one that draws the dropout masks is not to know of new iterations.
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
        self._batches = TokenBatchSampler(data.with_format("numpy")["length"][:], **sampling)
        return DataLoader(data, batch_sampler=self._batches, **common)

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*dict.fromkeys([*self._signature_columns, "line"])]

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # Continuing a run that is complete already, or was stopped early, the host would add one step to it.
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        parts: tuple[Any, ...] = (self._batches, kwargs["train_dataloader"].collate_fn)
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(kwargs["epoch"])
        super()._run_epoch(*args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        samples, target_tokens = super().get_batch_samples(*args, **kwargs)
        if target_tokens is not None:
            self._speedometer.add(target_tokens)
        return samples, target_tokens

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs[TOKENS_PER_SECOND] = self._speedometer.read()
        super().log(logs, start_time)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self._lines = inputs.pop("line", torch.empty(0)).tolist()
        return super()._prepare_inputs(inputs)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        if not loss.isfinite():
            pairs = ", ".join(str(line + 1) for line in sorted(self._lines))
            raise FloatingPointError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}, at learning rate "
                f"{self._get_learning_rate():.3g}, on sentence pairs {pairs} of the training text; nothing was "
                "changed by it. A lower learning rate, more warmup_steps or max_grad_norm help where the text is "
                "sound."
            )
        return loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        if not self.args.r_drop or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        shift: Any = self.model.prepare_decoder_input_ids_from_labels
        inputs["decoder_input_ids"] = shift(labels)
        outputs = model(**{name: torch.cat((value, value)) for name, value in inputs.items()})
        smoothing = self.model.config.label_smoothing
        loss = r_drop_loss(outputs.logits, labels, smoothing, self.args.r_drop, num_items_in_batch)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes
        return (loss, outputs) if return_outputs else loss

    # ---- Evaluation ----

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        # Of several datasets the host evaluates one after the other, here.
        if self.args.predict_with_generate and not isinstance(data, dict):
            self.references = list(data["target"])
        self._keep_in_step(kwargs)
        with self._evaluating():
            return super().evaluate(eval_dataset, *args, **kwargs)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        self.references = list(test_dataset["target"])
        before = self.args.predict_with_generate, self.compute_metrics
        self.args.predict_with_generate, self.compute_metrics = True, self._score
        self._keep_in_step(kwargs)
        try:
            with self._evaluating():
                return super().predict(test_dataset, *args, **kwargs)
        finally:
            self.args.predict_with_generate, self.compute_metrics = before

    def _keep_in_step(self, generation: dict[str, Any]) -> None:
        # Each process holds a part of every weight, so none may end its search before the others.
        if self.is_fsdp_enabled:
            generation["synced_gpus"] = True

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """With the moving average of the weights, if there is one, and without drawing from the random numbers."""
        average = self._moving_average()
        devices = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices), average.applied() if average is not None else nullcontext():
            yield

    def _moving_average(self) -> MovingAverageCallback | None:
        callbacks = self.callback_handler.callbacks
        return next((callback for callback in callbacks if isinstance(callback, MovingAverageCallback)), None)

    def _score(self, prediction: EvalPrediction) -> dict[str, float]:
        # Several processes fill up their last batch with repeated sentences.
        token_ids = np.asarray(prediction.predictions)[: len(self.references)]
        self.translations = decode_predictions(self.processing_class, token_ids)
        self.scores = score_translations(self.translations, self.references, self.target_lang, self.args.bleu_tokenize)
        return {"bleu": self.scores.bleu, "chrf": self.scores.chrf, "exact_match": self.scores.exact_match}

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """The host's, with the loss as the mean over tokens, as in training. The host's is one over sentences."""
        self._likelihood = torch.zeros(2, dtype=torch.float64)
        self._evaluation_data, self._batches_seen = dataloader.dataset, 0
        output = super().evaluation_loop(dataloader, *args, **kwargs)
        total, tokens = self.accelerator.reduce(self._likelihood.to(self.args.device, torch.float32), "sum").tolist()
        loss = {f"{kwargs.get('metric_key_prefix', 'eval')}_loss": total / tokens} if tokens else {}
        return output._replace(metrics={**(output.metrics or {}), **loss})

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        # The host fills the model's generation config with global defaults here, a max_length of 20 among them.
        generation_config = self.model.generation_config
        self.model.generation_config = copy.deepcopy(generation_config)
        if self._gen_kwargs.get("num_beams") == 1:  # the host warns of what a greedy search has no use for
            self.model.generation_config.length_penalty = self.model.generation_config.early_stopping = None
        inputs = self._without_repeats(inputs)
        try:
            loss, generated, labels = super().prediction_step(model, inputs, *args, **kwargs)
        finally:
            self.model.generation_config = generation_config
        if loss is not None:
            tokens = int((inputs["labels"] != -100).sum())
            self._likelihood += torch.tensor([float(loss) * tokens, tokens])
        return loss, generated, labels

    def _without_repeats(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The batch; repeated sentences, which fill up the last round of several processes, have no labels in it."""
        if self.args.world_size == 1 or "labels" not in inputs or not has_length(self._evaluation_data):
            return inputs
        before = (self._batches_seen * self.args.world_size + self.args.process_index) * self.args.eval_batch_size
        self._batches_seen += 1
        labels = inputs["labels"].clone()
        labels[max(0, len(self._evaluation_data) - before) :] = -100
        return {**inputs, "labels": labels}

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        # The host drops the stored lengths before it asks for them, and would then read every sentence to count it.
        if self.args.train_sampling_strategy == "group_by_length" and self.train_dataset is not None:
            size = self.args.train_batch_size * self.args.gradient_accumulation_steps
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return EpochLengthSampler(size, list(self.train_dataset["length"]), seed)
        return super()._get_train_sampler(train_dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        # The order of the data is the order of the references; grouping by length would shuffle it.
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None

    # ---- Checkpoints ----

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._checkpoint_place or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """The host's checkpoint, written beside its place and moved there when every process has written its part."""
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

    def _remove_what_a_signal_left(self, newest: Path) -> None:
        """
        Delete the checkpoint that this run went on from, if it was not due: an average over the last checkpoints would
        be another than that of a run without interruptions.
        """
        began, self._began_from = self._began_from, None
        if began is None or began.parent.resolve() != newest.parent.resolve() or began.name == newest.name:
            return
        is_best = self.state.best_model_checkpoint and Path(self.state.best_model_checkpoint).name == began.name
        if not is_best and is_complete(began) and not is_planned(began, self.args, self.state.save_steps):
            remove(began)

    # ---- Publishing ----

    def current_facts(self) -> CardFacts:
        """What is known of the model at this step, for its card."""
        is_stream = isinstance(self.train_dataset, datasets.IterableDataset)  # of which the host knows no epochs
        epochs = 0.0 if is_stream else float(self.state.epoch or 0)
        return replace(self.facts, steps=self.state.global_step, epochs=epochs)

    def plot_curves(self, path: str | os.PathLike) -> None:
        """Write the picture of this run's losses and scores, and of the model's score where it has been measured."""
        bleu = next((part.scores.bleu for part in self.facts.scored if part.role == "validation"), None)
        log = self.state.log_history
        epochs = self.current_facts().epochs
        curves.plot_curves(log, path, best_step=self.state.best_global_step, published=bleu, epochs=epochs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """
        Write card and curves beside the model that `save_model` has written to `output_dir`.

        Args:
            args: None: facts have names.
            kwargs: Facts for the card, as in `push_to_hub`.

        Raises:
            OSError: There is no model in `output_dir`.
            TypeError: There is no such fact.
        """
        if args:
            raise TypeError(f"create_model_card takes facts by their names, such as license, and not {args!r}")
        folder = Path(str(self.args.output_dir))
        if self.is_world_process_zero():
            self.plot_curves(folder / CURVES_FILE)
            write_card(replace(self.current_facts(), **_stated_facts(kwargs)), folder)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """
        Raises:
            PublishError: The repository can be neither found nor made.
        """
        with one_line(str(self.args.hub_model_id), token or self.args.hub_token):
            super().init_hf_repo(token=token, private=private)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """
        Publish the model as `hub.publish_folder` does, with its card and curves, and wait until it is there.

        Args:
            kwargs: Facts for the card, as fields of `CardFacts` or as the host calls them (`finetuned_from`).

        Returns:
            Where it is (`hub.Published`); None on other processes than the first.

        Raises:
            PublishError: The Hub did not take it.
            TypeError: There is no such fact.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        stated = _stated_facts(kwargs)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        with tempfile.TemporaryDirectory() as folder:
            self.save_model(folder, _internal_call=True)
            if not self.is_world_process_zero():
                return None
            return self.publish(folder, commit_message, token=token, revision=revision, **stated)

    def publish(
        self, folder: str | os.PathLike, message: str | None, *, token: str | None = None, **options: Any
    ) -> Published:
        """
        Publish a folder that this Trainer has written in the repository of its arguments, with the card of this step.

        `options` are those of `hub.publish_folder`.

        Raises:
            PublishError: The Hub did not take it.
        """
        with tempfile.TemporaryDirectory() as place:
            for path in Path(folder).iterdir():
                Path(place, path.name).symlink_to(path.resolve())
            Path(place, CURVES_FILE).unlink(missing_ok=True)
            self.plot_curves(Path(place, CURVES_FILE))
            return publish_folder(
                place,
                str(self.hub_model_id),
                message=message or "Upload model",
                token=token or self.args.hub_token,
                revision=options.pop("revision", None) or self.args.hub_revision,
                facts=self.current_facts(),
                say=logger.info,
                **options,
            )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Publish a checkpoint that is whole; with it, by `hub_strategy`, what a run needs to continue from it."""
        strategy = HubStrategy(self.args.hub_strategy)
        if self._checkpoint_place is not None or strategy == HubStrategy.END or not self.is_world_process_zero():
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        folder = Path(checkpoint_folder)
        places = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: folder.name}
        beside = resumable_files(folder, places[strategy]) if strategy in places else {}
        try:
            self.publish(folder, f"Training in progress, step {self.state.global_step}", beside=beside)
        except (OSError, ValueError) as error:
            logger.warning(f"{error} Training goes on; the next checkpoint will be published again.")

    # Sharded over processes (FSDP2) or not, a checkpoint holds whole tensors in the same files, and a run continues
    # on any number of processes. The host's own files of sharded runs fit sharded runs alone.

    def gather_weights(self) -> dict[str, torch.Tensor] | None:
        """The whole weights of a model that is sharded, or None. Every process has to call this."""
        return gather_weights(self.model) if self.is_fsdp_enabled else None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if not self.is_fsdp_enabled:
            super().save_model(output_dir, _internal_call)
            return
        self._save(output_dir, state_dict=self.gather_weights())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # The host leaves its arguments beside the weights; the token among them is nobody else's.
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


def decode_predictions(tokenizer: PreTrainedTokenizerBase, token_ids: np.ndarray) -> list[str]:
    """Texts of generated ids (N, T); the -100 with which the host fills up a batch becomes padding."""
    return tokenizer.batch_decode(
        np.where(token_ids == IGNORED_LABEL, tokenizer.pad_token_id, token_ids), skip_special_tokens=True
    )
