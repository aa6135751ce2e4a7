"""The interface of a source: how a toolkit's checkpoint is recognised, read and mapped to our model."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer


# Largest allowed difference of logits, unless a source explains a wider one.
TOLERANCE = 1e-5

# Types that weights may have.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Tensors may share memory, as tied matrices do, up to this many times the size of the files.
SHARED = 4
SMALL = 64 * 2**20  # bytes that any checkpoint may claim


class ConversionError(ValueError):
    """Why a checkpoint cannot be converted, in words for the user: one line, or a list with a line for each reason."""


class Tensors(Mapping[str, torch.Tensor]):
    """The tensors of a checkpoint under the toolkit's names, read lazily."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read."""


class LoadedTensors(Tensors):
    """
    Tensors that were unpickled, whose memory is the file's.

    Raises:
        ConversionError: A value is not a dense tensor on the CPU, or claims more numbers than the files have.
    """

    def __init__(self, found: Any, size: int):
        if not isinstance(found, Mapping):
            raise ConversionError("the weights are not tensors with names")
        storages: dict[int, int] = {}
        claimed = 0
        for name, tensor in found.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise ConversionError(
                    f"the weights are not tensors with names: {str(name)[:80]!r} is a {type(tensor)}"
                )
            if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type != "cpu":
                kind = "nested" if tensor.is_nested else f"{tensor.layout} on {tensor.device}"
                raise ConversionError(f"{name} is a {kind} tensor; only dense ones with their numbers are read")
            storage = tensor.untyped_storage()
            own = tensor.numel() * tensor.element_size()
            if own > storage.nbytes():
                shape = tuple(tensor.shape)
                raise ConversionError(f"{name} claims the shape {shape} and has {storage.nbytes():,} bytes")
            storages[storage.data_ptr()] = storage.nbytes()
            claimed += own
        if sum(storages.values()) > size + SMALL or claimed > max(SHARED * size, SMALL):
            raise ConversionError(f"the weights claim {claimed:,} bytes, and the files have {size:,}")
        self.found = found

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.found[name].shape)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.found[name]

    def __iter__(self):
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


@dataclass
class Checkpoint:
    """
    The result of a source's `read`, without any computation.

    `options` are the toolkit's own names and values as found, defaults not filled in; `tensors` the toolkit's own
    names, given as what was unpickled or as tensors that stay in their file; `vocabulary` whatever the source's
    `to_tokenizer` needs; `folder` where everything was found; `files` those that were read, some more than once, for
    the model card's checksums.

    Raises:
        ConversionError: As `LoadedTensors`.
    """

    options: dict[str, Any]
    tensors: Any
    vocabulary: Any
    folder: Path
    files: list[Path] = field(default_factory=list)

    def __post_init__(self):
        if not isinstance(self.tensors, Tensors):
            size = sum(path.stat().st_size for path in dict.fromkeys(self.files))
            self.tensors: Tensors = LoadedTensors(self.tensors, size)

    def uses(self, path: Path) -> Path:
        """The path of a file that is about to be read."""
        self.files.append(path)
        return path


@dataclass(frozen=True)
class Source:
    """
    A toolkit whose checkpoints can be converted.

    `recognises` decides from file names only whether a file or folder may be the toolkit's. `read` returns the
    checkpoint; if its second argument is true, it uses Python's own unpickler. `unsupported` lists the options that
    our model cannot express, a line each. `keys` is the table of a checkpoint and the config that it becomes.
    `decoding_notes` lists steps of the toolkit's translation that `generate()` and the tokenizer do not perform.
    `to_processor` makes that of a model of speech or images, with its tokenizer; None of others.
    `target_pieces` is the toolkit's target vocabulary, where it records its outputs as pieces. `toolkit_model` is the
    toolkit's own model, where the toolkit is transformers itself: the converted one must give its outputs. `unstated`
    are the options that the files lack and a reference shows, with their possible values, the default first. `guessed`
    are the options that the files lack although the outputs depend on them, with the value that would be taken: they
    must be given, unless a reference confirms them. `defaulted` are the others that the files lack, with their values.
    `settable` are the names of the options that may be given with the command, dots between sections.
    """

    options: Mapping[str, Any]
    recognises: Callable[[Path], bool]
    read: Callable[[Path, bool], Checkpoint]
    unsupported: Callable[[Checkpoint], list[str]]
    to_config: Callable[[Checkpoint], VanillaTransformerConfig]
    keys: Callable[[VanillaTransformerConfig, Checkpoint], Mapping[str, Any]]
    to_tokenizer: Callable[[Checkpoint, VanillaTransformerConfig], VanillaTransformerTokenizer | None]
    to_generation_config: Callable[[Checkpoint, VanillaTransformerConfig], GenerationConfig]
    decoding_notes: Callable[[Checkpoint], list[str]]
    to_processor: Callable[[Checkpoint, VanillaTransformerConfig], Any] = lambda checkpoint, config: None
    target_pieces: Callable[[Checkpoint], Sequence[str]] = lambda checkpoint: ()
    toolkit_model: Callable[[Checkpoint], Any] | None = None
    unstated: Callable[[Checkpoint], Mapping[str, Sequence[Any]]] = lambda checkpoint: {}
    guessed: Callable[[Checkpoint], Mapping[str, Any]] = lambda checkpoint: {}
    defaulted: Callable[[Checkpoint], Mapping[str, Any]] = lambda checkpoint: {}
    settable: Sequence[str] = ()
    tolerance: float = TOLERANCE
