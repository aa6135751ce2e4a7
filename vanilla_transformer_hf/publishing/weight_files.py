"""The safetensors files of a model's folder: found, checked against its config, and split where they are large."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ..model import modeling_vanilla_transformer as modeling
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig


# Bytes above which weights are split into several files.
MAX_SHARD_SIZE = 5 * 10**9


@dataclass(frozen=True)
class Shard:
    """A safetensors file with some of the tensors of another one: `parts` are its places there, (start, bytes)."""

    weights: Path
    header: bytes
    parts: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return 8 + len(self.header) + sum(length for _, length in self.parts)

    def write(self, path: Path):
        """Write the file; no tensor is held in memory."""
        with self.weights.open("rb") as source, path.open("wb") as target:
            target.write(len(self.header).to_bytes(8, "little") + self.header)
            for start, length in self.parts:
                source.seek(start)
                while length:
                    block = source.read(min(length, 2**22))
                    target.write(block)
                    length -= len(block)


def find_weights(folder: Path, max_shard_size: int) -> dict[str, Path | bytes | Shard]:
    """
    The files with the weights.

    Raises:
        FileNotFoundError: There are none.
        ValueError: A file is damaged.
    """
    single, index = folder / SAFE_WEIGHTS_NAME, folder / SAFE_WEIGHTS_INDEX_NAME
    if single.is_file():
        return {single.name: single} if single.stat().st_size <= max_shard_size else _split(single, max_shard_size)
    if not index.is_file():
        raise FileNotFoundError(f"{folder}: no {SAFE_WEIGHTS_NAME} there; only weights in safetensors are read.")
    try:
        names = {Path(name).name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index}: damaged ({error}).") from error
    if absent := sorted(name for name in names if not (folder / name).is_file()):
        raise FileNotFoundError(f"{folder}: no {', '.join(absent)} there, which {index.name} names.")
    return {index.name: index, **{name: folder / name for name in sorted(names)}}


def _split(weights: Path, max_shard_size: int) -> dict[str, Path | bytes | Shard]:
    """Several files for one, in the order of its tensors, and the index of them; named as transformers names them."""
    with weights.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    metadata = header.pop("__metadata__", {"format": "pt"})
    groups: list[dict[str, Any]] = [{}]
    filled = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        length = tensor["data_offsets"][1] - tensor["data_offsets"][0]
        if filled + length > max_shard_size and groups[-1]:
            groups.append({})
            filled = 0
        groups[-1][name] = tensor
        filled += length
    sources: dict[str, Path | bytes | Shard] = {}
    places: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        file_name = f"model-{number:05}-of-{len(groups):05}.safetensors"
        first = min(tensor["data_offsets"][0] for tensor in group.values())
        moved = {
            name: {**tensor, "data_offsets": [offset - first for offset in tensor["data_offsets"]]}
            for name, tensor in group.items()
        }
        text = json.dumps({"__metadata__": metadata, **moved}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the format aligns the data
        end = max(tensor["data_offsets"][1] for tensor in group.values())
        sources[file_name] = Shard(weights, text, ((8 + size + first, end - first),))
        places |= dict.fromkeys(group, file_name)
    total = max(tensor["data_offsets"][1] for tensor in header.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    sources[SAFE_WEIGHTS_INDEX_NAME] = (json.dumps(index, indent=2) + "\n").encode()
    return sources


def check_weights(
    config: VanillaTransformerConfig, sources: dict[str, Path | bytes | Shard], may_repeat: bool = False
) -> list[str]:
    """
    What is wrong with the weights for this config: each tensor has to be there once, in its shape; `may_repeat`: tied
    ones may be there twice.

    Raises:
        ValueError: A file is damaged.
    """
    model_class = getattr(modeling, (config.architectures or ["VanillaTransformerForConditionalGeneration"])[0], None)
    if model_class is None or getattr(config, "quantization_config", None):
        return []  # a model of somebody else's, or in a format of its own
    with torch.device("meta"):
        model = model_class(config)
    tied = model.all_tied_weights_keys.keys()
    expected = {name: list(value.shape) for name, value in model.state_dict().items() if name not in tied}
    found: dict[str, list[int]] = {}
    for path in {value.weights if isinstance(value, Shard) else value for value in sources.values()}:
        if isinstance(path, Path) and path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="pt") as file:
                    found |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            except SafetensorError as error:
                raise ValueError(f"{path} is damaged or incomplete ({error}).") from error
    problems = [f"the weights lack {name}" for name in expected.keys() - found.keys()]
    if not may_repeat:
        problems += [f"the weights hold {name} a second time, tied" for name in found.keys() & tied]
    problems += [f"the weights hold {name}, which the model has not" for name in found.keys() - expected.keys() - tied]
    problems += [
        f"{name} has the shape {found[name]} instead of {expected[name]}"
        for name in expected.keys() & found.keys()
        if found[name] != expected[name]
    ]
    return sorted(problems)


def open_config(folder: Path) -> VanillaTransformerConfig:
    """
    The config of a saved model, whose weights are checked; opened as they are, what lacks would be drawn at random.

    Raises:
        FileNotFoundError: There is no config, or no weights in safetensors.
        ValueError: The weights are damaged, or not those of the config.
    """
    if not (folder / CONFIG_NAME).is_file():
        raise FileNotFoundError(f"{folder}: no {CONFIG_NAME} there.")
    config = VanillaTransformerConfig.from_pretrained(folder)
    if problems := check_weights(config, find_weights(folder, 2**62), may_repeat=True):
        raise ValueError(f"{folder}: weights and {CONFIG_NAME} do not belong together:\n  " + "\n  ".join(problems))
    return config
