"""The safetensors files of a model's folder: found, and checked against the config."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ..common.opening import OwnConfig, check_one_set, check_settings, is_finite, other_class
from ..model import modeling_vanilla_transformer as modeling
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.layers.base_model import SHARD_NAME
from ..recurrent import modeling as recurrent
from .private_text import parse_json


METADATA = {"format": "pt"}


@dataclass(frozen=True)
class CleanedWeights:
    """A safetensors file with a new header; its tensors begin at byte `start` of the old file."""

    weights: Path
    header: bytes
    start: int

    @property
    def size(self) -> int:
        """In bytes."""
        return 8 + len(self.header) + self.weights.stat().st_size - self.start

    def write(self, path: Path):
        """Write the file without loading tensors into memory."""
        with self.weights.open("rb") as source, path.open("wb") as target:
            target.write(len(self.header).to_bytes(8, "little") + self.header)
            source.seek(self.start)
            shutil.copyfileobj(source, target)


def find_weights(folder: Path) -> dict[str, Path | bytes | CleanedWeights]:
    """The files with the weights; a header with additional metadata is replaced by a clean one."""
    files: dict[str, Path | bytes | CleanedWeights] = {
        path.name: without_metadata(path) for path in weight_paths(folder)
    }
    if SAFE_WEIGHTS_NAME in files:
        return files
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    text, names = _read_index(index)
    for file_name in files:
        indexed = {tensor for tensor, place in names.items() if place == file_name}
        if differing := sorted(read_header(folder / file_name)[1].keys() ^ indexed):
            raise ValueError(f"{folder / file_name}: it and {index.name} disagree on whether it holds {differing[0]}.")
    return {index.name: text, **files}


def weight_paths(folder: Path) -> list[Path]:
    """The safetensors files that transformers opens with a folder: one, or those that its index names."""
    check_one_set(folder)
    single, index = folder / SAFE_WEIGHTS_NAME, folder / SAFE_WEIGHTS_INDEX_NAME
    return [single] if single.is_file() else [folder / name for name in sorted(set(_read_index(index)[1].values()))]


def _read_index(index: Path) -> tuple[bytes, dict[str, str]]:
    """The text of an index with only its standard fields, and its tensors with the names of their files."""
    if not index.is_file():
        raise FileNotFoundError(f"{index.parent}: no {SAFE_WEIGHTS_NAME} there; only weights in safetensors are read.")
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        names = dict(content["weight_map"].items())
        total = {key: value for key, value in content.get("metadata", {}).items() if key.startswith("total_")}
        counts = {key: int(value) for key, value in total.items()}
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{index}: damaged ({error}).") from error
    for name in names.values():
        if not isinstance(name, str) or not SHARD_NAME.fullmatch(name):
            raise ValueError(
                f"{index} names {name!r}, which is not the name of a file of weights: expected "
                "model-00001-of-00002.safetensors or another number."
            )
    if absent := sorted(name for name in set(names.values()) if not (index.parent / name).is_file()):
        raise FileNotFoundError(f"{index.parent}: no {', '.join(absent)} there, which {index.name} names.")
    text = json.dumps({"metadata": counts, "weight_map": names}, indent=2, sort_keys=True) + "\n"
    return text.encode(), names


def read_header(weights: Path) -> tuple[int, dict[str, dict[str, Any]], Any]:
    """The data's offset in a safetensors file, its tensors, and other metadata than the format, or None."""
    try:
        with safe_open(weights, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{weights} is damaged or incomplete ({error}).") from error
    with weights.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        text = file.read(size)
    header = parse_json(text, str(weights))
    fields = ("dtype", "shape", "data_offsets")
    plain = {
        name: {field: entry[field] for field in fields} for name, entry in header.items() if name != "__metadata__"
    }
    rest = None if header == {"__metadata__": METADATA, **plain} else header
    return 8 + size, plain, rest


def without_metadata(weights: Path) -> Path | CleanedWeights:
    """A safetensors file with a clean header if its own has more than tensors and their format."""
    start, tensors, rest = read_header(weights)
    if rest is None:
        return weights
    header = json.dumps({"__metadata__": METADATA, **tensors}, separators=(",", ":")).encode()
    return CleanedWeights(weights, header + b" " * (-len(header) % 8), start)  # the format aligns the data


def check_weights(
    config: OwnConfig, sources: dict[str, Path | bytes | CleanedWeights], may_repeat: bool = False
) -> list[str]:
    """Problems of the weights for this config, a sentence each; tied ones may come twice if they `may_repeat`."""
    # Every tensor must occur once, with its shape and finite values.
    name = (config.architectures or ["VanillaTransformerForConditionalGeneration"])[0]
    model_class = getattr(modeling, name, None) or getattr(recurrent, name, None)
    if model_class is None or getattr(config, "quantization_config", None):
        return []  # a model of another package or format
    with torch.device("meta"):
        model = model_class(config)
    tied = model.all_tied_weights_keys.keys()
    expected = {name: list(value.shape) for name, value in model.state_dict().items() if name not in tied}
    found: dict[str, list[int]] = {}
    not_finite: set[str] = set()
    for path in {value.weights if isinstance(value, CleanedWeights) else value for value in sources.values()}:
        if isinstance(path, Path) and path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="pt") as file:
                    found |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
                    not_finite |= {name for name in file.keys() if not is_finite(file.get_tensor(name))}  # noqa: SIM118
            except SafetensorError as error:
                raise ValueError(f"{path} is damaged or incomplete ({error}).") from error
    problems = [f"the weights lack {name}" for name in expected.keys() - found.keys()]
    if not may_repeat:
        problems += [f"the weights hold {name} a second time, tied" for name in found.keys() & tied]
    problems += [f"the weights hold {name}, which the model has not" for name in found.keys() - expected.keys() - tied]
    problems += [f"{name} holds NaN or infinite values" for name in not_finite]
    problems += [
        f"{name} has the shape {found[name]} instead of {expected[name]}"
        for name in expected.keys() & found.keys()
        if found[name] != expected[name]
    ]
    return sorted(problems)


def open_config(folder: Path) -> VanillaTransformerConfig:
    """The config of a saved model whose weights are checked; transformers would draw missing ones at random."""
    if not (folder / CONFIG_NAME).is_file():
        raise FileNotFoundError(f"{folder}: no {CONFIG_NAME} there.")
    check_settings(folder)
    config = VanillaTransformerConfig.from_pretrained(folder)
    if (what := other_class(config)) is not None:
        raise ValueError(f"{folder} cannot translate, it is {what}")
    if problems := check_weights(config, find_weights(folder), may_repeat=True):
        raise ValueError(f"{folder}: weights and {CONFIG_NAME} do not belong together:\n  " + "\n  ".join(problems))
    return config
