"""Evaluation in the Trainer: the loss as a mean over tokens, and scores of generated text."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import SequentialSampler
from transformers import AutoModelForSeq2SeqLM, EvalPrediction, PreTrainedTokenizerBase
from transformers.trainer_utils import has_length

from ...evaluation.scores import Scores, score_translations
from ...model.search.search import NaNScoresError
from ..checkpoints.sharding import gather_weights
from ..data.collators import IGNORED_LABEL
from .checkpointing import CheckpointingTrainer


class EvaluatingTrainer(CheckpointingTrainer):
    """
    Scores generated text against the "target" column of the data it is given.

    Afterwards `translations` holds the generated texts in the order of the data and `scores` the scores with their
    signatures. `evaluate` generates if `predict_with_generate` says so, `predict` always, also for data without
    labels and "target", which gets translations and no scores.
    """

    references: list[str]
    translations: list[str]
    scores: Scores

    def __init__(self, *args: Any, target_lang: str | None = None, **kwargs: Any):
        self.target_lang = target_lang
        self._likelihood = torch.zeros(2, dtype=torch.float64)  # of an evaluation: nats, tokens
        super().__init__(*args, **kwargs)
        if self.args.predict_with_generate:
            self.compute_metrics = self._score

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        # transformers evaluates several datasets one after the other by calling this.
        if self.args.predict_with_generate and not isinstance(data, dict):
            self.references = list(data["target"])
        with self._evaluating(), self._whole_model(kwargs):
            return super().evaluate(eval_dataset, *args, **kwargs)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        has_references = "target" in test_dataset.column_names
        self.references = list(test_dataset["target"]) if has_references else []
        before = self.args.predict_with_generate, self.compute_metrics
        self.args.predict_with_generate, self.compute_metrics = True, self._score
        try:
            with self._evaluating(), self._whole_model(kwargs):
                output = super().predict(test_dataset, *args, **kwargs)
            if not has_references:  # nothing is scored
                token_ids = np.asarray(output.predictions)[: len(test_dataset)]
                self.translations = decode_predictions(self.processing_class, token_ids)
            return output
        finally:
            self.args.predict_with_generate, self.compute_metrics = before

    @contextmanager
    def _whole_model(self, generation: dict[str, Any]) -> Iterator[None]:
        """
        Let a sharded model generate with a whole copy of itself in each process: this package's search reads the
        weights, and each step of transformers' loop would gather all of them.
        """
        if not (self.is_fsdp_enabled and self.args.predict_with_generate):
            yield
            return
        generation["synced_gpus"] = False
        copy_of_all = AutoModelForSeq2SeqLM.from_config(self.model.config)
        copy_of_all.load_state_dict(gather_weights(self.model), strict=False)  # tied matrices are there once
        copy_of_all.to(device=self.args.device, dtype=self.model.dtype).eval()

        def generate(*args: Any, **kwargs: Any) -> Any:
            copy_of_all.generation_config = self.model.generation_config
            return copy_of_all.generate(*args, **kwargs)

        before = vars(self.model).get("generate")
        self.model.generate = generate  # type: ignore[assignment]
        try:
            yield
        finally:
            del self.model.generate
            if before is not None:
                self.model.generate = before

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Use the moving average of the weights, if there is one, and keep the state of the random generators."""
        average = self._moving_average()
        devices = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices), average.applied() if average is not None else nullcontext():
            yield

    def _score(self, prediction: EvalPrediction) -> dict[str, float]:
        # With several processes the last batch is padded with repeated sentences.
        token_ids = np.asarray(prediction.predictions)[: len(self.references)]
        self.translations = decode_predictions(self.processing_class, token_ids)
        self.scores = score_translations(self.translations, self.references, self.target_lang, self.args.bleu_tokenize)
        return {"bleu": self.scores.bleu, "chrf": self.scores.chrf, "exact_match": self.scores.exact_match}

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """transformers' loop, but the loss is the mean over tokens, as in training, not over sentences."""
        self._likelihood = torch.zeros(2, dtype=torch.float64)
        self._evaluation_data, self._batches_seen = dataloader.dataset, 0
        output = super().evaluation_loop(dataloader, *args, **kwargs)
        total, tokens = self.accelerator.reduce(self._likelihood.to(self.args.device, torch.float32), "sum").tolist()
        loss = {f"{kwargs.get('metric_key_prefix', 'eval')}_loss": total / tokens} if tokens else {}
        return output._replace(metrics={**(output.metrics or {}), **loss})

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        # transformers fills the model's generation config with global defaults here, a max_length of 20 among them.
        generation_config = self.model.generation_config
        self.model.generation_config = copy.deepcopy(generation_config)
        if self._gen_kwargs.get("num_beams") == 1:  # transformers warns of settings that greedy search does not use
            self.model.generation_config.length_penalty = self.model.generation_config.early_stopping = None
        # Without labels, transformers' collator has labels=None, for which the host would compute a loss.
        inputs = self._without_repeats({name: value for name, value in inputs.items() if value is not None})
        try:
            loss, generated, labels = super().prediction_step(model, inputs, *args, **kwargs)
        except NaNScoresError:
            if not self.is_in_train:
                raise
            # The next step of training fails, too, and says on which sentences.
            loss, _, _ = super().prediction_step(model, inputs, True)
            generated, labels = inputs["input_ids"].new_full((len(inputs["input_ids"]), 1), -100), inputs.get("labels")
        finally:
            self.model.generation_config = generation_config
        if loss is not None:
            tokens = int((inputs["labels"] != -100).sum())
            self._likelihood += torch.tensor([float(loss) * tokens, tokens])
        return loss, generated, labels

    def _without_repeats(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """
        The batch, with the labels removed from repeated sentences that only pad the last round of several
        processes.
        """
        if self.args.world_size == 1 or "labels" not in inputs or not has_length(self._evaluation_data):
            return inputs
        before = (self._batches_seen * self.args.world_size + self.args.process_index) * self.args.eval_batch_size
        self._batches_seen += 1
        labels = inputs["labels"].clone()
        labels[max(0, len(self._evaluation_data) - before) :] = -100
        return {**inputs, "labels": labels}

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        # The order of the data is the order of the references; grouping by length would shuffle it.
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None


def decode_predictions(tokenizer: PreTrainedTokenizerBase, token_ids: np.ndarray) -> list[str]:
    """Texts of generated ids (N, T); transformers' filler -100 becomes padding."""
    return tokenizer.batch_decode(
        np.where(token_ids == IGNORED_LABEL, tokenizer.pad_token_id, token_ids), skip_special_tokens=True
    )
