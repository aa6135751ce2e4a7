"""Reading of folders that transformers saved, and the common parts of MarianMT and FSMT."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from ...common.opening import check_one_set, open_by
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats.files import named, read_bounded, read_json
from ..formats.safe_load import SafetensorsFiles, load_torch
from ..source import Checkpoint, ConversionError


# Fields of a config whose names and meanings are ours.
FIELDS = (
    *("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"),
    *("encoder_ffn_dim", "decoder_ffn_dim", "dropout", "attention_dropout", "activation_dropout"),
    *("activation_function", "scale_embedding", "max_position_embeddings"),
    *("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"),
)

# Names of both stacks, which are ours, too.
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

# The norms on top of pre-norm stacks.
FINAL_NORM_KEYS = {
    name: name
    for stack in ("encoder", "decoder")
    for name in (f"model.{stack}.layer_norm.weight", f"model.{stack}.layer_norm.bias")
}


def _weights(folder: Path, trust: bool) -> tuple[Mapping[str, torch.Tensor], list[Path]]:
    """
    The tensors of a folder that transformers saved, in one file or several, and all files that were read.

    Raises:
        ConversionError: The weights are missing or damaged.
    """
    try:
        check_one_set(folder)
    except ValueError as error:
        raise ConversionError(str(error)) from error
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (index := folder / f"{name}.index.json").is_file():
            places = read_json(index).get("weight_map")
            if not isinstance(places, dict) or not all(isinstance(part, str) for part in places.values()):
                raise ConversionError(f"{index} does not map tensors to files")
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
                raise ConversionError(f"{path} does not hold named tensors only")
        return {key: tensor for part in parts.values() for key, tensor in part.items()}, files + paths
    raise ConversionError(f"{folder} holds neither model.safetensors nor pytorch_model.bin")


def is_saved_model(path: Path, *model_types: str) -> bool:
    """Whether a folder that transformers saved, or a file in it, belongs to a model of one of these types."""
    config = (path if path.is_dir() else path.parent) / "config.json"
    return config.is_file() and read_json(config).get("model_type") in model_types


def read_saved_model(path: Path, model_type: str | tuple[str, ...], trust: bool = False) -> Checkpoint:
    """
    A folder that transformers saved, or a file in it: the fields of its config and its weights.

    Raises:
        ConversionError: A file is missing or damaged, or config.json is another model's.
    """
    folder = path if path.is_dir() else path.parent
    config = folder / "config.json"
    options = read_json(config)
    allowed = (model_type,) if isinstance(model_type, str) else model_type
    if (found := options.get("model_type")) not in allowed:
        raise ConversionError(f"{config}: model_type={found!r}, must be {' or '.join(map(repr, allowed))}")
    tensors, files = _weights(folder, trust)
    return Checkpoint(options, tensors, None, folder, [config, *files])


def generation_config(checkpoint: Checkpoint, defaults: Mapping[str, Any]) -> GenerationConfig:
    """generation_config.json, or in older folders the decoding options of config.json."""
    if (path := checkpoint.folder / "generation_config.json").is_file():
        return GenerationConfig.from_dict(read_json(checkpoint.uses(path)))
    options = {**defaults, **checkpoint.options}
    names = GenerationConfig().to_dict().keys() - {"transformers_version"}
    return GenerationConfig(**{name: options[name] for name in names & options.keys()})


# Roles of special tokens in transformers' tokenizers.
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


# Options of classifiers, for transformers' classes and ours.
LABELS = ("id2label", "label2id", "problem_type")


def architecture(checkpoint: Checkpoint, classes: Collection[str]) -> list[str]:
    """A line if config.json names a class that is not supported."""
    named = checkpoint.options.get("architectures")
    if isinstance(named, list) and len(named) == 1 and named[0] in classes:
        return []
    return [f"architectures={named!r}: must be one of {', '.join(classes)}"]


def of_one_stack(checkpoint: Checkpoint, sizes: Mapping[str, Any], **fields: Any) -> VanillaTransformerConfig:
    """The config of a model of one stack; `sizes` are fields of the encoder and the decoder without these words."""
    labels = {name: value for name in LABELS if (value := checkpoint.options.get(name)) is not None}
    both = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in sizes.items()}
    fixed: dict[str, Any] = {
        "is_encoder_decoder": False,
        "scale_embedding": False,
        "position_encoding": "learned",
        "attention_bias": True,
        "label_smoothing": 0.0,
    }
    return VanillaTransformerConfig(**{**fixed, **both, **labels, **fields})


def speech_config(**fields: Any) -> VanillaTransformerConfig:
    """The config of a model of speech, as Whisper and Speech2Text have it: norms before, biases of projections."""
    fixed = {"encoder_norm_position": "pre", "decoder_norm_position": "pre", "attention_bias": True}
    return VanillaTransformerConfig(**{**fixed, "label_smoothing": 0.0, **fields})


def only_in_training(options: Mapping[str, Any], off: Mapping[str, Any]) -> list[str]:
    """A line for each option that changes training alone, and is not done here."""
    return [f"{name}={options[name]}: not done in training here" for name in off if options[name] != off[name]]


def toolkit_model(checkpoint: Checkpoint, known: Collection[str]) -> Any:
    """transformers' own model of the checkpoint, in float32, with the options that its config class has."""
    host = getattr(transformers, checkpoint.options["architectures"][0])
    names = {*known, *LABELS} & checkpoint.options.keys()
    config = host.config_class(**{name: checkpoint.options[name] for name in names})
    config._attn_implementation = "eager"
    tensors = {name: checkpoint.tensors[name] for name in checkpoint.tensors}
    return open_by(host, None, config=config, state_dict=tensors, dtype=torch.float32)


# Settings of processors, of which transformers wrote one or the other.
PROCESSOR_SETTINGS = ("processor_config.json", "preprocessor_config.json")
# Entries of settings that name code or places.
OF_ORIGIN = (
    *("auto_map", "custom_pipelines", "name_or_path", "tokenizer_file", "vocab_file", "merges_file", "spm_file"),
    *("is_local", "local_files_only"),
)


def _without_origin(value: Any) -> Any:
    """Settings without entries that name code of a repository, or files of another machine."""
    if isinstance(value, dict):
        return {name: _without_origin(each) for name, each in value.items() if name not in OF_ORIGIN}
    return value


def _copy_files(checkpoint: Checkpoint, names: tuple[str, ...], place: Path) -> None:
    """Copy those of the files that a checkpoint has; each counts as used."""
    for name in names:
        if (checkpoint.folder / name).exists():
            (place / name).write_bytes(read_bounded(checkpoint.uses(checkpoint.folder / name)))


def processor_of(
    checkpoint: Checkpoint,
    config: VanillaTransformerConfig,
    processor: Any,
    classes: tuple[Any, Any],
    names: tuple[str, ...],
    needed: tuple[str, ...],
) -> Any:
    """
    transformers' processor in the folder; None if files are missing.

    Args:
        processor: Its class.
        classes: Those of its feature extractor and its tokenizer.
        names: Files of the tokenizer beside `tokenizer.json`.
        needed: Those of them without which there is no tokenizer, unless there is a `tokenizer.json`.

    Raises:
        ConversionError: The feature extractor makes other frames than the model reads.
    """
    folder = checkpoint.folder
    has_tokenizer = (folder / "tokenizer.json").is_file() or all((folder / name).is_file() for name in needed)
    if not has_tokenizer or not any((folder / name).is_file() for name in PROCESSOR_SETTINGS):
        return None
    with TemporaryDirectory() as place:  # transformers would open a file of any kind and size
        for name in (*PROCESSOR_SETTINGS, "tokenizer_config.json", "special_tokens_map.json"):
            if (folder / name).exists():
                settings = _without_origin(read_json(checkpoint.uses(folder / name)))
                Path(place, name).write_text(json.dumps(settings), encoding="utf-8")
        _copy_files(checkpoint, ("tokenizer.json", "added_tokens.json", *names), Path(place))
        extractor, tokenizer = (open_by(each, place, local_files_only=True) for each in classes)
        tokenizer.init_kwargs = _without_origin(tokenizer.init_kwargs)
    if extractor.feature_size != config.num_mel_bins:
        raise ConversionError(
            f"the feature extractor makes {extractor.feature_size} mel bins, and the model reads {config.num_mel_bins}"
        )
    return processor(extractor, tokenizer)


def tokenizer_of(checkpoint: Checkpoint, host: Any, names: tuple[str, ...]) -> VanillaTransformerTokenizer | None:
    """Our tokenizer for that of the class `host` of transformers in the folder; None if files are missing."""
    folder = checkpoint.folder
    if not (folder / "tokenizer.json").is_file() and not all((folder / name).is_file() for name in names):
        return None
    with TemporaryDirectory() as place:  # transformers would open a file of any kind and size
        settings = ("tokenizer_config.json", "special_tokens_map.json")
        _copy_files(checkpoint, ("tokenizer.json", *settings, "added_tokens.json", *names), Path(place))
        theirs = open_by(host, place, local_files_only=True)
    roles = {role: theirs._special_tokens_map.get(role) for role in ROLES}
    return VanillaTransformerTokenizer(
        tokenizer_object=theirs.backend_tokenizer,
        model_max_length=theirs.model_max_length,
        model_input_names=theirs.model_input_names,
        **{role: token for role, token in roles.items() if token is not None},
    )
