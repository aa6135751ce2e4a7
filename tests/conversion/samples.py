"""Real checkpoints made by the toolkits themselves, kept beside the repository; tests on them are skipped without."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from kept_beside import kept_beside


PEERS = kept_beside("peers")


def samples(*patterns: str) -> list:
    """Names of the sample folders that match, as parameters of a test; one that is skipped where there are none."""
    names = sorted(path.name for pattern in patterns for path in PEERS.glob(pattern) if path.is_dir())
    return names or [pytest.param("", marks=pytest.mark.skip(reason=f"no samples {' '.join(patterns)}"))]


def files_on_the_card(folder: Path) -> set[str]:
    """The files whose checksums are on the card of a converted model."""
    facts = json.loads((folder / "card_facts.json").read_text(encoding="utf-8"))
    return {file["name"] for file in facts["conversion"]["files"]}


def write_reference(path: Path, logits: Callable, sizes: Sequence[int], start: int, first: int = 0) -> Path:
    """
    A reference file of three padded sentences, ids drawn by chance from `first` to `sizes` (source, target), with the
    logits (T, V) that `logits(source ids, target ids)` gives for each.
    """
    generator = torch.Generator().manual_seed(1)
    lengths = [(5, 4), (3, 6), (1, 1)]
    arrays = {
        "src_ids": torch.randint(first, sizes[0], (3, 5), generator=generator),
        "src_mask": torch.tensor([[row < s for row in range(5)] for s, _ in lengths]),
        "tgt_in_ids": torch.randint(first, sizes[1], (3, 6), generator=generator),
        "tgt_mask": torch.tensor([[row < t for row in range(6)] for _, t in lengths]),
        "logits": torch.zeros(3, 6, sizes[1]),
    }
    arrays["tgt_in_ids"][:, 0] = start
    for row, (s, t) in enumerate(lengths):
        source, target = arrays["src_ids"][row, :s].tolist(), arrays["tgt_in_ids"][row, :t].tolist()
        arrays["logits"][row, :t] = logits(source, target).float()
    np.savez(path, **{name: array.numpy() for name, array in arrays.items()})
    return path
