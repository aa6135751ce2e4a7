"""Training of one stack: predicting masked tokens, continuing texts, classifying texts and their words."""

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import processors
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    EvalPrediction,
)

from ...common.column_names import SIDES
from ...common.corpus_files import holds_both_sides
from ...common.lines import read_lines
from ...model.single_stacks.causal_lm import VanillaTransformerForCausalLM
from ...model.single_stacks.encoder_models import (
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..checkpoints.resume import Start
from ..checks import check_evaluation, refuse_unused
from ..data.collators import IGNORED_LABEL
from ..data.parts import ROLES, refuse_several
from ..model import check_lengths, choose_attention, new_config
from ..pretraining.denoising import MASK_TOKEN
from ..tokenizer import tokenizer_of_texts
from .task import Task


def share_of_tokens(shift: int) -> Callable[[EvalPrediction], dict[str, float]]:
    """The share of correctly predicted tokens; a state predicts the label `shift` positions later."""

    def measure(prediction: EvalPrediction) -> dict[str, float]:
        labels: Any = prediction.label_ids
        found: Any = prediction.predictions
        labels, found = labels[:, shift:], found[:, : found.shape[1] - shift]
        real = labels != IGNORED_LABEL
        return {"accuracy": 100 * float((labels[real] == found[real]).mean())}

    return measure


def share_of_classes(prediction: EvalPrediction) -> dict[str, float]:
    """The share of correctly classified texts or words, and that of always answering the most frequent class."""
    labels: Any = prediction.label_ids
    found: Any = prediction.predictions
    labels, found = labels[labels != IGNORED_LABEL], found[labels != IGNORED_LABEL]
    return {
        "accuracy": 100 * float((labels == found).mean()),
        "most_frequent": 100 * float(np.bincount(labels).max() / len(labels)),
    }


def label_words(text: str, offsets: Sequence[tuple[int, int]], classes: Sequence[int]) -> list[int]:
    """One label per token: the first token of a word gets its class, the others are ignored, as in BERT."""
    # `offsets` are the start and end of each token in the text; a token may include the space before its word.
    words, labels = list(re.finditer(r"\S+", text)), [IGNORED_LABEL] * len(offsets)
    number = 0
    for place, (begin, end) in enumerate(offsets):
        while number < len(words) and words[number].end() <= begin:
            number += 1
        if number < len(words) and max(begin, words[number].start()) < end:
            labels[place] = classes[number]
            number += 1
    return labels


def read_texts(data: Any, role: str, by_word: bool) -> tuple[list[str], list[list[str]] | None]:
    """The lines of a text, and, if it has classes, those of each line: of its words, or one, which may have spaces."""
    source, target = getattr(data, f"{role}_source"), getattr(data, f"{role}_target")
    for path in filter(None, (source, target)):
        if holds_both_sides(path):
            raise ValueError(f"{path} is not plain text: task={data.task} reads files with a text on each line.")
    texts = list(read_lines(source))
    if not texts:
        raise ValueError(f"{source} is empty: expected a text on each line.")
    if target is None:
        return texts, None
    classes = [line.split() if by_word else [line] for line in read_lines(target)]
    if len(classes) != len(texts):
        raise ValueError(f"{target} has {len(classes):,} lines and {source} {len(texts):,}: expected as many.")
    for number, (text, found) in enumerate(zip(texts, classes), start=1):
        if by_word and len(found) != len(text.split()):
            raise ValueError(
                f"line {number:,} of {target} has {len(found):,} classes and that of {source} {len(text.split()):,} "
                "words: expected a class for each word, separated by spaces."
            )
    return texts, classes


class OneStack(Task):
    """An encoder alone or a decoder alone."""

    kind: Any  # class of the model
    collator_of: Any  # a tokenizer -> the collator of its examples
    classified: Literal["line", "word"] | None = None  # what has a class in `train_target`, if anything
    ends = False  # whether texts end with the end token
    scores: Any = staticmethod(share_of_classes)  # of held-out texts, in percent
    names: Sequence[str] = ()  # of the classes

    @staticmethod
    def prepare(tokenizer: VanillaTransformerTokenizer) -> None:
        """Add the special tokens that the task needs."""

    def check(self, settings: dict[str, Any]) -> None:
        data, name = self.run.data, self.run.data.task
        refuse_several(data, f"task={name}")
        if not data.train_source:
            raise ValueError("train_source is not given: name the text to train on.")
        texts = (f"{role}_{side}" for role in ROLES for side in SIDES)
        refuse_unused(self.run, settings, (*texts, "max_source_length"))
        check_evaluation(self.run, ("loss", "accuracy"))
        for role in ROLES:
            source, target = getattr(data, f"{role}_source"), getattr(data, f"{role}_target")
            if source and self.classified and not target:
                each = f"each {self.classified}"
                raise ValueError(f"{role}_target is not given: name the file with the class of {each} of {source}.")
            if target and not (source and self.classified):
                raise ValueError(f"{role}_target={target} has no effect with task={name}: remove it.")

    def load(self) -> dict[str, Any]:
        data, by_word = self.run.data, self.classified == "word"
        texts = {role: read_texts(data, role, by_word) for role in ROLES if getattr(data, f"{role}_source")}
        self.names = sorted(set(chain.from_iterable(texts["train"][1] or ())))
        return texts

    def make_tokenizer(self, texts: dict[str, Any], folder: Path, start: Start | None = None) -> Any:
        longest = self.run.data.max_source_length
        return tokenizer_of_texts(self.run, texts["train"][0], folder, self.prepare, model_max_length=longest)

    def make_data(self, texts: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        places = {name: number for number, name in enumerate(self.names)}
        data = {}
        for role, (lines, classes) in texts.items():
            if unknown := sorted(set(chain.from_iterable(classes or ())) - set(places)):
                raise ValueError(f"class {unknown[0]!r} is not one of the training text: {', '.join(self.names)}.")
            numbers = None if classes is None else [[places[name] for name in each] for each in classes]
            data[role] = self.examples(tokenizer, lines, numbers)
        return data

    def examples(self, tokenizer: Any, texts: list[str], classes: list[list[int]] | None) -> list[dict[str, Any]]:
        """The collator's inputs: texts that are truncated, with the numbers of their classes."""
        by_word, longest = self.classified == "word", self.run.data.max_source_length - self.ends
        encoded = tokenizer(texts, truncation=True, max_length=longest, return_offsets_mapping=by_word)
        rows = encoded["input_ids"]
        if self.ends:
            rows = [[*row, tokenizer.eos_token_id] for row in rows]
        examples: list[dict[str, Any]] = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]
        for index, numbers in enumerate(classes or ()):
            examples[index]["labels"] = (
                label_words(texts[index], encoded["offset_mapping"][index], numbers) if by_word else numbers[0]
            )
        return examples

    def make_model(self, tokenizer: Any, data: dict[str, Any]) -> Any:
        run, labels = self.run, dict[str, Any]()
        if self.classified:
            labels["id2label"] = dict(enumerate(self.names))
            labels["label2id"] = {name: number for number, name in enumerate(self.names)}
        config = new_config(run, tokenizer, **labels)
        config._attn_implementation = choose_attention(run, config).get("attn_implementation")
        model = self.kind(config)
        check_lengths(model, data)
        return model

    def trainer_options(self, model: Any, tokenizer: Any) -> dict[str, Any]:
        return {
            "data_collator": self.collator_of(tokenizer),
            "compute_metrics": self.scores,
            # The ids of the highest logits, so that evaluation does not keep logits.
            "preprocess_logits_for_metrics": lambda out, _: (out[0] if isinstance(out, tuple) else out).argmax(-1),
        }

    def measure(self, trainer: Any, folder: Path, role: str, data: Any) -> dict[str, float]:
        found = trainer.evaluate(data, metric_key_prefix=role)
        names = ("loss", "accuracy", "most_frequent")
        scores = {name: found[key] for name in names if (key := f"{role}_{name}") in found}
        return scores if self.classified else {**scores, "perplexity": math.exp(scores["loss"])}


@dataclass
class DrawnFromRows:
    """A collator whose masks depend on the seed and on the rows of a batch alone, so that a run continues exactly."""

    collator: DataCollatorForLanguageModeling
    seed: int

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        digest = hashlib.sha256(repr((self.seed, [row["input_ids"] for row in rows])).encode()).digest()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little"))
            return self.collator(rows)


class MaskedLM(OneStack):
    """Masked tokens are predicted: 15 % of them, of which 80 % are masked and 10 % replaced, as in BERT."""

    kind = VanillaTransformerForMaskedLM
    scores = staticmethod(share_of_tokens(0))

    @staticmethod
    def prepare(tokenizer: VanillaTransformerTokenizer) -> None:
        if tokenizer.mask_token is None:
            tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})

    def collator_of(self, tokenizer: Any) -> Any:
        collator = DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.15)
        return DrawnFromRows(collator, self.run.training.seed)


class CausalLM(OneStack):
    """Each token is predicted from the earlier ones."""

    kind = VanillaTransformerForCausalLM
    collator_of = staticmethod(partial(DataCollatorForLanguageModeling, mlm=False))
    ends = True
    scores = staticmethod(share_of_tokens(1))

    @staticmethod
    def prepare(tokenizer: VanillaTransformerTokenizer) -> None:
        # Texts begin with the end token, as in GPT-2, and do not end with it: a prompt has no end.
        end = str(tokenizer.eos_token)
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{end} $A", pair=f"{end} $A $B", special_tokens=[(end, tokenizer.eos_token_id)]
        )


class Classification(OneStack):
    """Texts have classes."""

    kind = VanillaTransformerForSequenceClassification
    collator_of = DataCollatorWithPadding
    classified = "line"


class TokenClassification(OneStack):
    """Words have classes."""

    kind = VanillaTransformerForTokenClassification
    collator_of = DataCollatorForTokenClassification
    classified = "word"
