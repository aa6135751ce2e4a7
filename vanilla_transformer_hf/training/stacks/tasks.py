"""
Tasks of one stack: predicting masked tokens, continuing texts, classifying texts, classifying their words.

A task defines its model, how texts become training data, and the scores on held-out texts.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import processors
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    EvalPrediction,
)

from ...model.single_stacks.causal_lm import VanillaTransformerForCausalLM
from ...model.single_stacks.encoder_models import (
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer


MASK_TOKEN = "<mask>"
IGNORED = -100  # label of tokens that have none, as in transformers


def add_mask(tokenizer: VanillaTransformerTokenizer) -> None:
    """Add the mask token to a tokenizer that has none."""
    if tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})


def begin_with_end(tokenizer: VanillaTransformerTokenizer) -> None:
    """Let texts begin with the end token, as in GPT-2, and not end with it: a prompt has no end."""
    end, place = str(tokenizer.eos_token), tokenizer.eos_token_id
    template = processors.TemplateProcessing(single=f"{end} $A", pair=f"{end} $A $B", special_tokens=[(end, place)])
    tokenizer.backend_tokenizer.post_processor = template


def keep(tokenizer: VanillaTransformerTokenizer) -> None:
    """Leave a tokenizer as it is."""


def masked_collator(tokenizer: Any, seed: int) -> Any:
    """A collator in which 15 % of the tokens are predicted; 80 % of these are masked and 10 % replaced, as in BERT."""
    return DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.15, seed=seed)


def causal_collator(tokenizer: Any, seed: int) -> Any:
    """A collator in which each token is predicted from the earlier ones."""
    return DataCollatorForLanguageModeling(tokenizer, mlm=False)


def best_ids(logits: Any, labels: Any) -> torch.Tensor:
    """The ids of the highest logits, so that evaluation does not keep logits."""
    found: torch.Tensor = (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)
    return found


def share_of_tokens(shift: int) -> Callable[[EvalPrediction], dict[str, float]]:
    """The share of correctly predicted tokens; a state predicts the label `shift` positions later."""

    def measure(prediction: EvalPrediction) -> dict[str, float]:
        labels: Any = prediction.label_ids
        found: Any = prediction.predictions
        labels, found = labels[:, shift:], found[:, : found.shape[1] - shift]
        real = labels != IGNORED
        return {"accuracy": 100 * float((labels[real] == found[real]).mean())}

    return measure


def share_of_classes(prediction: EvalPrediction) -> dict[str, float]:
    """The share of correctly classified texts or words, and that of always answering the most frequent class."""
    labels: Any = prediction.label_ids
    found: Any = prediction.predictions
    labels, found = labels[labels != IGNORED], found[labels != IGNORED]
    return {
        "accuracy": 100 * float((labels == found).mean()),
        "most_frequent": 100 * float(np.bincount(labels).max() / len(labels)),
    }


def whole_line(line: str) -> list[str]:
    """The class of a text; it may contain spaces."""
    return [line]


@dataclass(frozen=True)
class StackTask:
    """
    A task of one stack.

    Attributes:
        model: Class of the model.
        prepare: A function that adds special tokens to a new tokenizer.
        collator: A function of (tokenizer, seed) that returns a collator.
        measure: Scores of held-out texts, in percent.
        classes_of: A function that reads the classes in a line of `train_target`: `whole_line` for one class per text,
            `str.split` for one class per word, None if the task has no classes.
        ends: Whether texts end with the end token.
    """

    model: Any
    prepare: Callable[[VanillaTransformerTokenizer], None]
    collator: Callable[[Any, int], Any]
    measure: Callable[[EvalPrediction], dict[str, float]]
    classes_of: Callable[[str], list[str]] | None = None
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
        share_of_classes,
        classes_of=whole_line,
    ),
    "token_classification": StackTask(
        VanillaTransformerForTokenClassification,
        keep,
        lambda tokenizer, seed: DataCollatorForTokenClassification(tokenizer),
        share_of_classes,
        classes_of=str.split,
    ),
}


def label_words(text: str, offsets: Sequence[tuple[int, int]], classes: Sequence[int]) -> list[int]:
    """
    One label per token: the first token of a word gets the class of the word, the others are ignored, as in BERT.

    `offsets` are the start and end of each token in the text; a token may include the space before its word.
    """
    words, labels = list(re.finditer(r"\S+", text)), [IGNORED] * len(offsets)
    number = 0
    for place, (begin, end) in enumerate(offsets):
        while number < len(words) and words[number].end() <= begin:
            number += 1
        if number < len(words) and max(begin, words[number].start()) < end:
            labels[place] = classes[number]
            number += 1
    return labels


def to_examples(
    task: StackTask, tokenizer: Any, texts: Sequence[str], classes: Sequence[Sequence[int]] | None, longest: int
) -> list[dict[str, Any]]:
    """The collator's inputs: texts truncated to `longest` tokens, with the numbers of their classes."""
    by_word = task.classes_of is str.split
    encoded = tokenizer(list(texts), truncation=True, max_length=longest - task.ends, return_offsets_mapping=by_word)
    rows = encoded["input_ids"]
    if task.ends:
        rows = [[*row, tokenizer.eos_token_id] for row in rows]
    examples: list[dict[str, Any]] = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]
    for index, numbers in enumerate(classes or ()):
        examples[index]["labels"] = (
            label_words(texts[index], encoded["offset_mapping"][index], numbers) if by_word else numbers[0]
        )
    return examples


def with_perplexity(task: StackTask, scores: dict[str, float]) -> dict[str, float]:
    """The scores, with the perplexity of a language model in place of its loss."""
    if task.classes_of:
        return scores
    return {**scores, "perplexity": math.exp(scores["loss"])}
