"""The weights of checkpoints: safetensors, in which shared matrices occur once, read and averaged tensor by tensor."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ...common.opening import check_one_set
from ...common.settings import read_object
from ...model.configuration_vanilla_transformer import VERSION_FIELD


# Fields of a config that do not affect the weights.
IGNORED_FIELDS = {"transformers_version", VERSION_FIELD, "_name_or_path"}


def read_json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, {})
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file; is {path.parent} a checkpoint?") from error
    except ValueError as error:
        raise ValueError(f"{path}: damaged JSON ({error}).") from error


def open_weights(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file; only weights saved as safetensors are read.") from error
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged or incomplete ({error}).") from error


def save_weights(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt", **metadata})
    except SafetensorError as error:
        raise OSError(f"{path}: cannot be written ({error}).") from error


class CheckpointWeights:
    """The weights of a folder; `tensors` maps each name to its file, type and shape, such as "F32 [99, 32]"."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self.config = read_json(self.folder / CONFIG_NAME)
        check_one_set(self.folder)
        self.files, index = [SAFE_WEIGHTS_NAME], self.folder / SAFE_WEIGHTS_INDEX_NAME
        if not (self.folder / SAFE_WEIGHTS_NAME).is_file() and index.is_file():
            places = read_object(index, {"weight_map": dict})["weight_map"].values()
            self.files = sorted({Path(str(name)).name for name in places})
        self.tensors = {}
        for name in self.files:
            file = open_weights(self.folder / name)
            for tensor in file.keys():  # noqa: SIM118
                stored = file.get_slice(tensor)
                self.tensors[tensor] = (name, f"{stored.get_dtype()} {stored.get_shape()}")

    def path(self, tensor: str) -> Path:
        return self.folder / self.tensors[tensor][0]

    def read(self, tensor: str) -> torch.Tensor:
        # Opened each time: pages read from an open file stay mapped into memory.
        stored: torch.Tensor = open_weights(self.path(tensor)).get_tensor(tensor)
        return stored


def check_same_model(one: CheckpointWeights, other: CheckpointWeights) -> None:
    for field in sorted(one.config.keys() | other.config.keys()):
        ours, theirs = one.config.get(field), other.config.get(field)
        if ours != theirs and field not in IGNORED_FIELDS:
            raise ValueError(
                f"{other.folder / CONFIG_NAME}: {field} is {theirs!r}, but {ours!r} in {one.folder}; only checkpoints "
                "of one model have an average."
            )
    for tensor in sorted(one.tensors.keys() ^ other.tensors.keys()):
        having, lacking = (one, other) if tensor in one.tensors else (other, one)
        raise ValueError(f"{lacking.folder}: holds no tensor {tensor}, but {having.path(tensor)} does.")
    for tensor in one.tensors:
        ours, theirs = one.tensors[tensor][1], other.tensors[tensor][1]
        if ours != theirs:
            raise ValueError(f"{other.path(tensor)}: {tensor} is {theirs}, but {ours} in {one.path(tensor)}.")


def open_checkpoints(folders: Sequence[str | os.PathLike[str]]) -> list[CheckpointWeights]:
    if not folders:
        raise ValueError("No checkpoints to average.")
    checkpoints = [CheckpointWeights(folder) for folder in folders]
    for checkpoint in checkpoints[1:]:
        check_same_model(checkpoints[0], checkpoint)
    return checkpoints


def mean_of(checkpoints: Sequence[CheckpointWeights], tensor: str) -> torch.Tensor:
    """The mean, summed in float64, in the stored type; integers and drawn features are the last checkpoint's."""
    last = checkpoints[-1].read(tensor)
    if not last.is_floating_point() or tensor.endswith(".random_features"):
        return last
    total = torch.zeros(last.shape, dtype=torch.float64)
    for checkpoint in checkpoints:
        value = checkpoint.read(tensor)
        if value.isnan().any():
            raise ValueError(f"{checkpoint.path(tensor)}: {tensor} holds NaN.")
        total += value
    return total.div_(len(checkpoints)).to(last.dtype)


def assign(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a full tensor into one that may be sharded (FSDP2); then every process must call this."""
    if isinstance(target, DTensor):
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    target.copy_(value)
