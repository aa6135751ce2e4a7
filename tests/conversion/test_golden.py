"""
What the small checkpoint of every source becomes, as recorded. A change that means to change none of it leaves this
file as it is; `python tests/conversion/test_golden.py` prints what it is now.

Numbers are sums of weights, which processors round differently: they are compared with a tolerance, all else exactly.
"""

import hashlib
import json
import math
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from checkpoints import WRITERS, write
from safetensors.torch import load_file

from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import convert
from vanilla_transformer_hf.conversion.verification import try_tokenizer


RECORDED = Path(__file__).parent / "recorded" / "golden.json"

# Their tokenizers are trained on the spot, in which equal counts are taken in any order.
TRAINED = {"bert", "gpt2", "whisper", "speech_to_text"}


def fingerprint(tensors) -> float:
    """A number that changes with each weight, and with the name that it stands under."""
    total = 0.0
    for place, (_, tensor) in enumerate(sorted(tensors.items())):
        values = tensor.double().flatten()
        total += math.cos(place) * (values * torch.arange(1, len(values) + 1).remainder(97).double()).sum().item()
    return total


def summary(source: str, folder: Path) -> dict:
    """What is written for the checkpoint of a source."""
    torch.manual_seed(0)
    done = convert(source, write(source, folder / "run"), folder / "out")
    tensors = load_file(folder / "out" / "model.safetensors")
    shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in sorted(tensors.items())]
    ours = VanillaTransformerConfig.__annotations__  # transformers adds fields of its own, other ones in each release
    config = {name: getattr(done.config, name) for name in sorted(ours) if hasattr(done.config, name)}
    path = folder / "out" / "generation_config.json"
    search = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    search.pop("transformers_version", None)
    ids = None
    if source not in TRAINED and (folder / "out" / "tokenizer.json").is_file():
        tokenizer = VanillaTransformerTokenizer.from_pretrained(folder / "out")
        ids = ["an error" if isinstance(each, str) else each for each in try_tokenizer(tokenizer)]
    return {
        "tensors": digest(shapes),
        "weights": fingerprint(tensors),
        "config": digest(config),
        "search": search,
        "ids": digest(ids),
        "notes": done.notes,
    }


def digest(value) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@pytest.mark.parametrize("source", WRITERS)
def test_nothing_of_it_has_changed(source, tmp_path):
    expected = json.loads(RECORDED.read_text(encoding="utf-8"))[source]
    weights = expected.pop("weights")
    found = summary(source, tmp_path)
    assert found.pop("weights") == pytest.approx(weights, rel=1e-4)
    assert found == expected


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent / "sources"))
    found = {}
    for source in WRITERS:
        with tempfile.TemporaryDirectory() as folder:
            found[source] = summary(source, Path(folder))
    print(json.dumps(found, indent=1))
