"""Folders that transformers saved: how they are read, and what MarianMT and FSMT have in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from ..formats.files import named, read_json
from ..formats.safe_load import SafetensorsFiles, load_torch
from ..source import Checkpoint, ConversionError


# Fields of a config whose names and meanings are ours.
FIELDS = (
    *("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"),
    *("encoder_ffn_dim", "decoder_ffn_dim", "dropout", "attention_dropout", "activation_dropout"),
    *("activation_function", "scale_embedding", "max_position_embeddings"),
    *("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"),
)

# Both stacks, whose names are ours.
STACK_KEYS = {
    name: name
    for stack, attentions in {"encoder": ["self_attn"], "decoder": ["self_attn", "encoder_attn"]}.items()
    for name in (
        f"model.{stack}.embed_tokens.weight",
        f"model.{stack}.embed_positions.weight",
        *(
            f"model.{stack}.layers.{{}}.{part}.{kind}"
            for part in (
                *(f"{attention}.{letter}_proj" for attention in attentions for letter in ("q", "k", "v", "out")),
                *(f"{attention}_layer_norm" for attention in attentions),
                "fc1",
                "fc2",
                "final_layer_norm",
            )
            for kind in ("weight", "bias")
        ),
    )
}


def _weights(folder: Path, trust: bool) -> tuple[Mapping[str, torch.Tensor], list[Path]]:
    """
    The tensors of a folder that transformers saved, in one file or several, and all files that were read.

    Raises:
        ConversionError: There are no weights, or they are damaged.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (index := folder / f"{name}.index.json").is_file():
            places = read_json(index).get("weight_map")
            if not isinstance(places, dict) or not all(isinstance(part, str) for part in places.values()):
                raise ConversionError(f"{index} does not say which file holds which tensor")
            paths, files = [named(folder, part) for part in sorted(set(places.values()))], [index]
        elif (folder / name).is_file():
            paths, files = [folder / name], []
        else:
            continue
        if name.endswith(".safetensors"):
            return SafetensorsFiles(paths), files + paths
        parts = {path: load_torch(path, trust) for path in paths}
        for path, part in parts.items():
            if not isinstance(part, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in part.values()):
                raise ConversionError(f"{path} holds something else than named tensors")
        return {key: tensor for part in parts.values() for key, tensor in part.items()}, files + paths
    raise ConversionError(f"{folder} holds neither model.safetensors nor pytorch_model.bin")


def is_saved_model(path: Path, model_type: str) -> bool:
    """Whether a folder that transformers saved, or a file in it, belongs to a model of this type."""
    config = (path if path.is_dir() else path.parent) / "config.json"
    return config.is_file() and read_json(config).get("model_type") == model_type


def read_saved_model(path: Path, model_type: str, trust: bool = False) -> Checkpoint:
    """
    A folder that transformers saved, or a file in it: the fields of its config and its weights.

    Raises:
        ConversionError: A file is missing or damaged, or config.json is another model's.
    """
    folder = path if path.is_dir() else path.parent
    config = folder / "config.json"
    options = read_json(config)
    if (found := options.get("model_type")) != model_type:
        raise ConversionError(f"{config}: model_type={found!r}, must be {model_type!r}")
    tensors, files = _weights(folder, trust)
    return Checkpoint(options, tensors, None, folder, [config, *files])


def generation_config(checkpoint: Checkpoint, defaults: Mapping[str, Any]) -> GenerationConfig:
    """generation_config.json; before there was one, what config.json says of decoding."""
    if (path := checkpoint.folder / "generation_config.json").is_file():
        return GenerationConfig.from_dict(read_json(checkpoint.uses(path)))
    options = {**defaults, **checkpoint.options}
    names = GenerationConfig().to_dict().keys() - {"transformers_version"}
    return GenerationConfig(**{name: options[name] for name in names & options.keys()})
