"""The rows of a corpus of recordings or images: sources as tensors, with the ids of their texts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset


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
