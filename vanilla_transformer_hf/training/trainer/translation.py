"""The Trainer of translation models: token batches, R-Drop, scores of generated text, runs that can be continued."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import datasets
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PrinterCallback, ProgressCallback
from transformers.trainer_pt_utils import LengthGroupedSampler

from ...model.layers.loss import RowLoss
from ..data.collators import TranslationCollator
from ..data.token_batches import TokenBatchSampler, TokenBatchStream
from ..objectives.distillation import distillation_rows, logits_of
from ..objectives.r_drop import r_drop_rows
from .progress import TOKENS_PER_SECOND, Progress, Speedometer
from .publishing import PublishingTrainer


class EpochLengthSampler(LengthGroupedSampler):
    """
    transformers' sampler, with an order that depends only on seed and epoch, so that runs continue inside an
    epoch.
    """

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths, generator=torch.Generator())
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Epochs differ in their order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(hash((self.seed, self.epoch)))
        return super().__iter__()


class TranslationTrainer(PublishingTrainer):
    """
    transformers' `Seq2SeqTrainer`, with scores of generated text against the "target" column of the data.

    Afterwards `translations` holds the generated texts in the order of the data and `scores` the scores with their
    signatures. `evaluate` generates if `predict_with_generate` says so, `predict` always.

    With `tokens_per_step` batches are filled by tokens; `train_dataset` then has the column "length", may be a stream
    (`datasets.IterableDataset`), and has its own `train_collator` if one is given. Weights, order of the
    data and random numbers depend only on the seed and the step: a run continued from any of its checkpoints gives bit
    by bit the same weights as an uninterrupted one.

    Its cards contain its measurements and `facts`.

    Raises:
        FloatingPointError: From `train`, when a loss is NaN or infinite, before the weights are changed.
        TrainingInterrupted: From `train`, after SIGTERM or Ctrl-C, once a checkpoint is saved.
        OSError: A checkpoint cannot be written. Those before it are intact.
    """

    def __init__(
        self,
        *args: Any,
        train_collator: TranslationCollator | None = None,
        teacher: PreTrainedModel | None = None,
        **kwargs: Any,
    ):
        self.train_collator, self.teacher = train_collator, teacher
        self._batches: TokenBatchSampler | TokenBatchStream | None = None
        self._lines: list[int] = []
        super().__init__(*args, **kwargs)
        self._speedometer = Speedometer()
        self.add_callback(self._speedometer)
        if self.pop_callback(ProgressCallback) or self.pop_callback(PrinterCallback):  # in notebooks it is neither
            self.add_callback(Progress)

    def get_train_dataloader(self) -> DataLoader:
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
        self._batches = TokenBatchSampler(data.with_format("numpy")["length"][:], **sampling)
        return DataLoader(data, batch_sampler=self._batches, **common)

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*dict.fromkeys([*self._signature_columns, "line"])]

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
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
                "changed by it. If the text is correct, try a lower learning rate, more warmup_steps, or "
                "max_grad_norm."
            )
        return loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        if not (self.args.r_drop or self.teacher) or not model.training:
            inputs = {**inputs, "return_logits": not model.training or return_outputs}
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
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
        else:
            inputs = {name: torch.cat((value, value)) for name, value in inputs.items()}
            row_loss = partial(r_drop_rows, smoothing, self.args.r_drop)
        count = {"num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs, **count, labels=labels, return_logits=return_outputs, row_loss=row_loss)
        loss = outputs.loss
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes
        return (loss, outputs) if return_outputs else loss

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        # transformers drops the stored lengths before it reads them, and would then count every sentence's tokens.
        if self.args.train_sampling_strategy == "group_by_length" and self.train_dataset is not None:
            size = self.args.train_batch_size * self.args.gradient_accumulation_steps
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return EpochLengthSampler(size, list(self.train_dataset["length"]), seed)
        return super()._get_train_sampler(train_dataset)
