"""
Tasks of one stack: predicting masked tokens, continuing texts, classifying texts.

A task defines its model, how texts become training data, and the scores on held-out texts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import processors
from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding, EvalPrediction

from ..model.causal_lm_vanilla_transformer import VanillaTransformerForCausalLM
from ..model.encoder_models_vanilla_transformer import (
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
)
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer


TaskName = Literal["translation", "masked_lm", "causal_lm", "classification"]
MASK_TOKEN = "<mask>"


def add_mask(tokenizer: VanillaTransformerTokenizer) -> None:
    """Add the mask token to a new tokenizer."""
    tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})


def begin_with_end(tokenizer: VanillaTransformerTokenizer) -> None:
    """Let texts begin with the end token, as in GPT-2, and not end with it: a prompt has no end."""
    end, place = str(tokenizer.eos_token), tokenizer.eos_token_id
    template = processors.TemplateProcessing(single=f"{end} $A", pair=f"{end} $A $B", special_tokens=[(end, place)])
    tokenizer.backend_tokenizer.post_processor = template


def keep(tokenizer: VanillaTransformerTokenizer) -> None:
    """Leave a new tokenizer as it is."""


def masked_collator(tokenizer: Any, seed: int) -> Any:
    """A collator in which 15 % of the tokens are predicted; 80 % of these are masked and 10 % replaced, as in BERT."""
    return DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.15, seed=seed)


def causal_collator(tokenizer: Any, seed: int) -> Any:
    """A collator in which each token is predicted from the earlier ones."""
    return DataCollatorForLanguageModeling(tokenizer, mlm=False)


def best_ids(logits: Any, labels: Any) -> torch.Tensor:
    """The ids of the highest logits, so that evaluation does not keep logits."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)


def share_of_tokens(shift: int) -> Callable[[EvalPrediction], dict[str, float]]:
    """The share of correctly predicted tokens; a state predicts the label `shift` positions later."""

    def measure(prediction: EvalPrediction) -> dict[str, float]:
        labels: Any = prediction.label_ids
        found: Any = prediction.predictions
        labels, found = labels[:, shift:], found[:, : found.shape[1] - shift]
        real = labels != -100
        return {"accuracy": 100 * float((labels[real] == found[real]).mean())}

    return measure


def share_of_texts(prediction: EvalPrediction) -> dict[str, float]:
    """The share of correctly classified texts, and that of always answering the most frequent class."""
    labels: Any = prediction.label_ids
    return {
        "accuracy": 100 * float((labels == prediction.predictions).mean()),
        "most_frequent": 100 * float(np.bincount(labels).max() / len(labels)),
    }


@dataclass(frozen=True)
class StackTask:
    """
    A task of one stack.

    Attributes:
        model: Class of the model.
        prepare: A function that adds special tokens to a new tokenizer.
        collator: A function of (tokenizer, seed) that returns a collator.
        measure: Scores of held-out texts, in percent.
        has_labels: Whether `train_target` names a file with the class of each line.
        ends: Whether texts end with the end token.
    """

    model: Any
    prepare: Callable[[VanillaTransformerTokenizer], None]
    collator: Callable[[Any, int], Any]
    measure: Callable[[EvalPrediction], dict[str, float]]
    has_labels: bool = False
    ends: bool = False


TASKS: dict[str, StackTask] = {
    "masked_lm": StackTask(VanillaTransformerForMaskedLM, add_mask, masked_collator, share_of_tokens(0)),
    "causal_lm": StackTask(
        VanillaTransformerForCausalLM, begin_with_end, causal_collator, share_of_tokens(1), ends=True
    ),
    "classification": StackTask(
        VanillaTransformerForSequenceClassification,
        keep,
        lambda tokenizer, seed: DataCollatorWithPadding(tokenizer),
        share_of_texts,
        has_labels=True,
    ),
}


def to_examples(
    task: StackTask, tokenizer: Any, texts: Sequence[str], classes: Sequence[int] | None, longest: int
) -> list[dict[str, Any]]:
    """The collator's inputs: texts truncated to `longest` tokens, with their class numbers."""
    rows = tokenizer(list(texts), truncation=True, max_length=longest - task.ends)["input_ids"]
    if task.ends:
        rows = [[*row, tokenizer.eos_token_id] for row in rows]
    examples: list[dict[str, Any]] = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]
    for example, number in zip(examples, classes or ()):
        example["labels"] = number
    return examples


def with_perplexity(task: StackTask, scores: dict[str, float]) -> dict[str, float]:
    """The scores, with the perplexity of a language model in place of its loss."""
    if task.has_labels:
        return scores
    return {**scores, "perplexity": math.exp(scores["loss"])}
