"""What tests of sources share: references, a conversion that agrees with one, what a refusal names, sounds."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from make_spoken_digits import write_wave

from vanilla_transformer_hf.conversion import ConversionError, convert


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


def agree(source: str, folder: Path, tmp_path: Path, logits: Callable, sizes: Sequence[int], most: float = 1e-5):
    """The conversion of a checkpoint, whose logits are those of this function."""
    reference = write_reference(tmp_path / "ref.npz", logits, sizes, start=2)
    done = convert(source, folder, tmp_path / "out", reference=reference)
    assert done.reopened == 0 and done.reference <= most
    return done


def named_by(source: str, folder: Path, tmp_path: Path) -> list[str]:
    """What the error of a conversion names, one thing a line; nothing is left of it."""
    with pytest.raises(ConversionError) as error:
        convert(source, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    return [line.split(":")[0].strip() for line in str(error.value).splitlines()[1:]]


def sounds(tone: int, chirp: int) -> list[np.ndarray]:
    """A tone and a chirp of so many samples, 16,000 a second."""
    time = np.arange(max(tone, chirp)) / 16000
    return [np.sin(2000 * time[:tone]).astype("f4"), np.sin(9000 * time[:chirp] ** 2).astype("f4") / 2]


def write_sounds(folder: Path, recordings: list[np.ndarray]) -> list[Path]:
    """Files of them, with what 16 bits leave."""
    files = [folder / "a.wav", folder / "b.wav"]
    for path, samples in zip(files, recordings, strict=True):
        write_wave(path, samples, 16000)
    return files
