"""
The export, the same for every engine: check the config, write to a temporary folder, reopen, compare, rename; and the
copy of a model for CTranslate2, which is exported once and kept in the assets cache of the Hugging Face libraries.
"""

import hashlib
import importlib
import logging
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from huggingface_hub import cached_assets_path, constants
from transformers import GenerationConfig

from ..common.checksums import digest, verify_folder
from ..common.files import check_new, lock_path, new_folder
from ..common.opening import settings_without_ours
from ..model.config.release import VERSION
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..publishing.weight_files import open_config
from .comparison import Comparison, ExportError


logger = logging.getLogger(__name__)

# Names of the engines, and of their modules here. A module has `problems` (fields of a config that it
# cannot express) and `write` (from model, tokenizer, folder, comparison and options to the measured difference and
# notes).
ENGINES = ("ctranslate2", "onnx", "torch_export")
# What a model is exported from.
EXPORTED = ("*.safetensors", "*.json")


class Exported(NamedTuple):
    """Measurements on random words: largest differences of logits from those in float64; and notes for the user."""

    # Of the engine in float32, and of the model itself.

    difference: float
    own_error: float
    notes: list[str]


def engine_called(name: str) -> ModuleType:
    """The module of this engine; `ExportError` if it is unknown, or what it needs is not installed."""
    if name not in ENGINES:
        raise ExportError(
            f"{name!r} is not an engine: expected one of {', '.join(ENGINES)} (checkpoints of other toolkits: "
            "vanilla-transformer export-checkpoint)"
        )
    try:
        return importlib.import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        raise ExportError(
            f"{name} needs {error.name}, which is not installed: pip install 'vanilla_transformer_hf[export]'"
        ) from error


def export_for(engine: str, model_folder: str | os.PathLike, output: str | os.PathLike, **options: Any) -> Exported:
    """Write the model in `model_folder` for an engine, with its tokenizer, to the new folder `output`."""
    # `options` are those of the engine's `write`. The folder is renamed after the engine has opened it and returned
    # the model's logits.
    module = engine_called(engine)
    check_new(Path(output))
    if not Path(model_folder).is_dir():
        raise ExportError(f"{model_folder} is not a folder: expected the folder of a model")
    config = open_config(Path(model_folder))
    if problems := module.problems(config):
        raise ExportError(f"{engine} cannot express these fields:\n  " + "\n  ".join(problems))
    model = VanillaTransformerForConditionalGeneration.from_pretrained(model_folder, dtype=torch.float32).eval()
    model.requires_grad_(False)
    tokenizer = None
    if (Path(model_folder) / "tokenizer.json").is_file():
        tokenizer = VanillaTransformerTokenizer.from_pretrained(model_folder)
    comparison = Comparison.with_model(model)
    with new_folder(Path(output)) as folder:
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        difference, notes = module.write(model, tokenizer, folder, comparison, **options)
    return Exported(difference, comparison.own_error, notes)


def save_configs(model: VanillaTransformerForConditionalGeneration, folder: Path) -> list[str]:
    """Write the model's configs; return notes on options of our search that the engine does not have."""
    model.config.save_pretrained(folder)
    settings, notes = settings_without_ours(model)
    settings.save_pretrained(folder)
    return notes


def open_configs(folder: Path) -> tuple[VanillaTransformerConfig, GenerationConfig]:
    """The two of `save_configs`."""
    return VanillaTransformerConfig.from_pretrained(folder), GenerationConfig.from_pretrained(folder)


def digest_of_model(folder: Path) -> str:
    """The SHA-256 of all that an export depends on: the names and bytes of the files, and this package's version."""
    files = sorted(path for pattern in EXPORTED for path in folder.glob(pattern) if path.is_file())
    lines = [f"{digest(path)}  {path.name}\n" for path in files]
    return hashlib.sha256("".join([f"{VERSION}\n", *lines]).encode()).hexdigest()


def kept_copy(model: str | os.PathLike, quantization: str | None) -> Path:
    """The copy of a model for CTranslate2, exported if none fits its `SHA256SUMS`; processes wait for it."""
    # Beside the model it would be found by git, by uploads of the folder above, and where nobody may write.
    # It is `vanilla_transformer_hf/ctranslate2/models/NAME-QUANTIZATION-DIGEST` in `HF_ASSETS_CACHE`, by default
    # `~/.cache/huggingface/assets`; nothing else refers to it, so that it may be deleted at any time.
    folder = Path(model)
    if not folder.is_dir():
        raise ValueError(f"{model} is not a folder: engine ctranslate2 needs the folder of a model")
    cache = cached_assets_path("vanilla_transformer_hf", "ctranslate2", "models", assets_dir=constants.HF_ASSETS_CACHE)
    kind = Path(quantization or "as_saved").name  # an unknown one is refused by the export
    copy = cache / f"{folder.resolve().name[:100]}-{kind}-{digest_of_model(folder)[:16]}"
    if not _is_whole(copy):
        with lock_path(cache / ".lock", wait=True):
            if os.path.lexists(copy) and not _is_whole(copy):
                logger.warning("%s is damaged, and made again", copy)
                shutil.rmtree(copy) if copy.is_dir() and not copy.is_symlink() else copy.unlink()
            if not copy.exists():
                export_for("ctranslate2", folder, copy, quantization=quantization)
                logger.warning("%s: exported once for CTranslate2, to %s", model, copy)
    return copy


def _is_whole(copy: Path) -> bool:
    """Whether all files of a copy are as they were written: CTranslate2 computes with any numbers."""
    try:
        return not verify_folder(copy).wrong
    except (OSError, ValueError):
        return False
