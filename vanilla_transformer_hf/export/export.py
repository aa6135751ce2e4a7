"""The export, the same for every engine: check the config, write to a temporary folder, reopen, compare, rename."""

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig

from ..common.files import check_new, new_folder
from ..common.opening import settings_without_ours
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..publishing.weight_files import open_config
from . import ExportError
from .comparison import Comparison


# Names of the engines, and of their modules here. A module has `problems` (fields of a config that it cannot express)
# and `write` (from model, tokenizer, folder, comparison and options to the measured difference and notes).
ENGINES = ("ctranslate2", "onnx", "torch_export")


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
    if getattr(config, "quantization_config", None):
        raise ExportError(f"{model_folder}: its weights are quantized; export the model that it was made from")
    if problems := module.problems(config):
        raise ExportError(f"{engine} cannot express these fields:\n  " + "\n  ".join(problems))
    model = VanillaTransformerForConditionalGeneration.from_pretrained(model_folder, dtype=torch.float32).eval()
    model.requires_grad_(False)
    has_tokenizer = (Path(model_folder) / "tokenizer.json").is_file()
    tokenizer = VanillaTransformerTokenizer.from_pretrained(model_folder) if has_tokenizer else None
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
