"""Batches of tokenized pairs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from ...model.search.generate import check_token_ids


IGNORED_LABEL = -100


def vocabulary_sizes(model_or_tokenizer: PreTrainedModel | PreTrainedTokenizerBase) -> tuple[int, int]:
    """Sizes of the source and of the target vocabulary."""
    is_tokenizer = isinstance(model_or_tokenizer, PreTrainedTokenizerBase)
    holder: Any = model_or_tokenizer if is_tokenizer else model_or_tokenizer.config
    target_size = len(holder) if is_tokenizer else holder.vocab_size
    return getattr(holder, "source_vocab_size", None) or target_size, target_size


@dataclass
class TranslationCollator(DataCollatorForSeq2Seq):
    """Pads a batch to its longest sentence; ids without an embedding in the model raise an error."""

    # `__call__` returns `input_ids`, `attention_mask` (B, S) and `labels` (B, T), padded with -100, and `line` (B,)
    # and `token_type_ids` (B, S) where the pairs have them; the model makes the decoder input by shifting the labels.

    source_vocab_size: int = 0
    target_vocab_size: int = 0

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, torch.Tensor]:
        names = [name for name in ("input_ids", "token_type_ids", "labels") if name in features[0]]
        pairs = [{name: feature[name] for name in names} for feature in features]
        batch: dict[str, torch.Tensor] = super().__call__(pairs, return_tensors)  # type: ignore[no-untyped-call]
        check_token_ids(batch["input_ids"], self.source_vocab_size, "input_ids")
        if (labels := batch["labels"]) is None:  # a text to be translated
            del batch["labels"]
        else:
            check_token_ids(labels[labels != IGNORED_LABEL], self.target_vocab_size, "labels")
        if "line" in features[0]:
            batch["line"] = torch.tensor([feature["line"] for feature in features])
        return batch


def decode_predictions(tokenizer: PreTrainedTokenizerBase, token_ids: np.ndarray) -> list[str]:
    """Texts of generated ids (N, T); transformers' filler -100 becomes padding."""
    return tokenizer.batch_decode(
        np.where(token_ids == IGNORED_LABEL, tokenizer.pad_token_id, token_ids), skip_special_tokens=True
    )
