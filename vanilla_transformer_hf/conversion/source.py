"""The interface of a source: how a toolkit's checkpoint is recognised, read and mapped to our model."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

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

    entries: Mapping[str, Any]  # By these names, what is known of each

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class LoadedTensors(Tensors):
    """Tensors that were unpickled, whose memory is the file's: dense, on the CPU, and not larger than the files."""

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
        self.entries = found

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.entries[name].shape)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.entries[name]


class Source:
    """A toolkit whose checkpoints can be converted; an instance is a checkpoint that was read, nothing computed."""

    name: str  # The toolkit's on the command line
    settable: Sequence[str] = ()  # Options that may be given with the command, dots between sections
    table: Mapping[str, Any] = {}  # What `keys` gives, where it is the same for all models
    tolerance: float = TOLERANCE  # Largest allowed difference of logits
    has_model: bool = False  # Whether `toolkit_model` gives the toolkit's own model: the toolkit is transformers

    def __init__(
        self, options: dict[str, Any], tensors: Any, vocabulary: Any, folder: Path, files: Sequence[Path] = ()
    ):
        # The toolkit's own names and values as found, defaults not filled in; and whatever `to_tokenizer` needs.
        self.options, self.vocabulary = options, vocabulary
        self.folder, self.files = folder, list(files)  # the files that were read, some twice, for the model card
        if not isinstance(tensors, Tensors):
            tensors = LoadedTensors(tensors, sum(path.stat().st_size for path in dict.fromkeys(files)))
        self.tensors: Tensors = tensors

    def uses(self, path: Path) -> Path:
        """The path of a file that is about to be read."""
        self.files.append(path)
        return path

    def with_options(self, options: dict[str, Any]) -> Self:
        """The checkpoint with other options."""
        return type(self)(options, self.tensors, self.vocabulary, self.folder, self.files)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether a file or folder may be the toolkit's, by file names alone."""
        return False

    @classmethod
    @abstractmethod
    def read(cls, path: Path, trust: bool = False) -> Self:
        """The checkpoint at a path; with `trust`, by Python's own unpickler."""

    @abstractmethod
    def unsupported(self) -> list[str]:
        """A line for each option that our model cannot express."""

    @abstractmethod
    def to_config(self) -> VanillaTransformerConfig:
        """The config of the model that the options, the names and the shapes describe."""

    def keys(self, config: VanillaTransformerConfig) -> Mapping[str, Any]:
        """The table of the tensors' names, and of what each becomes."""
        return self.table

    def to_tokenizer(self, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
        """The tokenizer with the toolkit's ids; None without the files."""
        return None

    def to_processor(self, config: VanillaTransformerConfig) -> Any:
        """A model of speech or images has one, with its tokenizer; others have None."""
        return None

    @abstractmethod
    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        """The toolkit's settings of its search."""

    def decoding_notes(self) -> list[str]:
        """Steps of the toolkit's translation that `generate()` and the tokenizer do not perform."""
        return []

    def toolkit_model(self) -> Any:
        """The toolkit's own model, in float32, whose outputs the converted one must give."""
        raise NotImplementedError

    def unstated(self) -> dict[str, Sequence[Any]]:
        """Options that the files lack and a reference shows -> their possible values, the default first."""
        return {}

    def guessed(self) -> dict[str, Any]:
        """Options that the files lack although outputs depend on them -> the usual value."""
        # They must be given, unless a reference confirms them.
        return {}

    def defaulted(self) -> dict[str, Any]:
        """The other options that the files lack -> their values."""
        return {}


def both_stacks(**fields: Any) -> dict[str, Any]:
    """Fields of a config with the same values for both stacks, by our names without the stack's."""
    return {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in fields.items()}


def by_stack(encoder: Mapping[str, Any], decoder: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Fields of a config for both stacks: our name without the stack's -> the name of the option in each."""
    stacks = {"encoder": encoder, "decoder": decoder}
    return {f"{stack}_{name}": options[names[name]] for stack, options in stacks.items() for name in names}


def search_settings(config: VanillaTransformerConfig, **settings: Any) -> GenerationConfig:
    """Settings of a search, with the special tokens of a config."""
    names = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id")
    return GenerationConfig(**settings, **{name: getattr(config, name) for name in names})
