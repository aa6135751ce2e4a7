"""
Recordings or images with their texts, their batches, and the masks of SpecAugment.

Shapes: B sources, F frames, M mel bins, T target positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from ...translation.recognition import batch_of
from ..data.collators import IGNORED_LABEL


@dataclass(frozen=True)
class Masks:
    """SpecAugment (Park et al. 2019, arXiv 1904.08779) without warping: bands of frames and mel bins become 0."""

    time_masks: int = 0  # bands of each recording
    longest_time_mask: int = 20  # a band has a random number of frames or bins up to this
    frequency_masks: int = 0
    widest_frequency_mask: int = 8

    def apply(self, frames: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Frames (F, M) with bands set to zero."""
        frames = frames.clone()
        for count, widest, axis in (
            (self.time_masks, self.longest_time_mask, 0),
            (self.frequency_masks, self.widest_frequency_mask, 1),
        ):
            size = frames.shape[axis]
            for _ in range(count):
                width = int(rng.integers(0, min(widest, size) + 1))
                frames.narrow(axis, int(rng.integers(0, size - width + 1)), width).zero_()
        return frames


@dataclass
class RecognitionCollator:
    """Rows of `SourcesWithTexts` to the model's arguments, padded with zeros on the right; labels with -100."""

    # `input_features` (B, F, M) and `attention_mask` (B, F), or `pixel_values` (B, C, H, W); and `labels` (B, T).
    # Masks depend on the seed and on the rows of a batch alone, so that a run continues exactly.

    input_name: str
    masks: Masks = Masks()
    seed: int = 0

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        lines = [row["line"] for row in rows]
        labels = [torch.tensor(row["labels"]) for row in rows]
        batch = {"labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED_LABEL)}
        batch["line"] = torch.tensor(lines)
        rng = np.random.default_rng([self.seed, *lines])
        sources = [self.masks.apply(row["source"], rng) if row["is_masked"] else row["source"] for row in rows]
        return {**batch, **batch_of(self.input_name, sources)}


class SourcesWithTexts(Dataset[dict[str, Any]]):
    """Sources, frames (F, M) or pixels (C, H, W), with labels; as in `datasets`, a name gives a column."""

    column_names = ("source", "labels", "length", "target", "line", "is_masked")

    def __init__(
        self,
        sources: Sequence[torch.Tensor],
        labels: Sequence[list[int]],
        texts: Sequence[str],
        is_masked: bool = False,
    ):
        self.columns: dict[str, Sequence[Any]] = {
            "source": sources,
            "labels": labels,
            # Of recordings; images have one size, and their texts differ in length.
            "length": [
                each.shape[0] if each.dim() == 2 else len(ids) for each, ids in zip(sources, labels, strict=True)
            ],
            "target": texts,
            "line": range(len(texts)),
            "is_masked": [is_masked] * len(texts),
        }

    def __len__(self) -> int:
        return len(self.columns["target"])

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            return self.columns[place]
        return {name: values[place] for name, values in self.columns.items()}
