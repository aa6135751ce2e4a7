"""Folders that transformers saved: what MarianMT, FSMT, the models of one stack and those of speech share."""

import json
import reprlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig, PreTrainedConfig

from ...common.opening import check_one_set, open_by
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats.files import named, read_bounded, read_json
from ..formats.safe_load import SafetensorsFiles, load_torch
from ..key_table import LARGEST_OPTION, written_out
from ..source import ConversionError, Source, both_stacks


# Fields of a config whose names and meanings are ours.
FIELDS = (
    *("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"),
    *("encoder_ffn_dim", "decoder_ffn_dim", "dropout", "attention_dropout", "activation_dropout"),
    *("activation_function", "scale_embedding", "max_position_embeddings"),
    *("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"),
)

# Names of both stacks, which are ours, too; and the norms on top of pre-norm stacks.
STACK_KEYS = {
    name: name
    for name in written_out(
        dict.fromkeys(
            (
                "model.{encoder,decoder}.{embed_tokens,embed_positions}.weight",
                "model.{encoder,decoder}.layers.{}.self_attn.{q,k,v,out}_proj.{weight,bias}",
                "model.decoder.layers.{}.encoder_attn.{q,k,v,out}_proj.{weight,bias}",
                "model.{encoder,decoder}.layers.{}.{self_attn_layer_norm,fc1,fc2,final_layer_norm}.{weight,bias}",
                "model.decoder.layers.{}.encoder_attn_layer_norm.{weight,bias}",
            )
        )
    )
}
FINAL_NORM_KEYS = {name: name for name in written_out({"model.{encoder,decoder}.layer_norm.{weight,bias}": None})}

# Options of classifiers, for transformers' classes and ours.
LABELS = ("id2label", "label2id", "problem_type")

# Roles of special tokens in transformers' tokenizers.
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Settings of processors, of which transformers wrote one or the other.
PROCESSOR_SETTINGS = ("processor_config.json", "preprocessor_config.json")
# Entries of settings that name code or places.
OF_ORIGIN = (
    *("auto_map", "custom_pipelines", "name_or_path", "tokenizer_file", "vocab_file", "merges_file", "spm_file"),
    *("is_local", "local_files_only"),
)


def saved_weights(folder: Path, trust: bool) -> tuple[Mapping[str, torch.Tensor], list[Path]]:
    """The tensors of a folder that transformers saved, in one file or several, and all files that were read."""
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


def _without_origin(value: Any) -> Any:
    """Settings without entries that name code of a repository, or files of another machine."""
    if isinstance(value, dict):
        return {name: _without_origin(each) for name, each in value.items() if name not in OF_ORIGIN}
    return value


class SavedModel(Source):
    """A folder that transformers saved, or a file in it; the options are those of config.json."""

    # `model_type` -> transformers' class of the config, which has the options, their types and defaults.
    hosts: Mapping[str, type[PreTrainedConfig]]
    # Options that may not be null, although the class allows it.
    needed: Sequence[str] = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    # Transformers' classes that may stand in `architectures` -> ours; without any, it is not read.
    classes: Mapping[str, str] = {}
    # Options that change what is computed -> the value that is supported.
    fixed: Mapping[str, Any] = {}
    # Options that change training alone, and are not done here -> the value that changes nothing.
    training: Mapping[str, Any] = {}

    @classmethod
    def recognises(cls, path: Path) -> bool:
        config = (path if path.is_dir() else path.parent) / "config.json"
        return config.is_file() and read_json(config).get("model_type") in cls.hosts

    @classmethod
    def read(cls, path: Path, trust: bool = False) -> Self:
        folder = path if path.is_dir() else path.parent
        config = folder / "config.json"
        options = read_json(config)
        if (found := options.get("model_type")) not in cls.hosts:
            raise ConversionError(f"{config}: model_type={found!r}, must be {' or '.join(map(repr, cls.hosts))}")
        tensors, files = saved_weights(folder, trust)
        return cls(options, tensors, None, folder, [config, *files])

    @property
    def host(self) -> type[PreTrainedConfig]:
        """transformers' class of the config."""
        return self.hosts[self.options["model_type"]]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options that transformers' class declares, with its defaults. Others of a file are never passed on."""
        names = self.host.__annotations__
        given = {name: value for name, value in self.options.items() if name in names}
        return {name: given.get(name, getattr(self.host, name)) for name in names}

    def unsupported(self) -> list[str]:
        """The options with a value that is an error in transformers' class, or too large to be a size."""
        problems, host = [], self.host()
        for name, value in self.settings.items():
            if value is None and name in self.needed:
                problems.append(f"{name}: null (expected a number)")
            elif isinstance(value, int) and abs(value) >= LARGEST_OPTION:
                problems.append(f"{name}: {reprlib.repr(value)} (a smaller number is needed)")
            else:
                try:
                    setattr(host, name, value)  # a strict class, which checks the type
                except StrictDataclassError:
                    kind = self.host.__annotations__[name]
                    needed = kind.__name__ if isinstance(kind, type) else kind
                    problems.append(f"{name}: {reprlib.repr(value)} (expected {needed})")
        if problems:
            return problems
        named = self.options.get("architectures")
        if self.classes and named not in [[name] for name in self.classes]:
            return [f"architectures={named!r}: must be one of {', '.join(self.classes)}"]
        options = {**self.settings, **self.options}
        return [
            f"{name}={options[name]!r}: must be {value!r}"
            for name, value in self.fixed.items()
            if options.get(name, value) != value
        ]

    def to_generation_config(self, config: VanillaTransformerConfig) -> GenerationConfig:
        """generation_config.json, or in older folders the decoding options of config.json."""
        if (path := self.folder / "generation_config.json").is_file():
            return GenerationConfig.from_dict(read_json(self.uses(path)))
        options = {**self.settings, **self.options}
        names = GenerationConfig().to_dict().keys() - {"transformers_version"}
        return GenerationConfig(**{name: options[name] for name in names & options.keys()})

    def decoding_notes(self) -> list[str]:
        return [
            f"{name}={self.settings[name]}: not done in training here"
            for name, off in self.training.items()
            if self.settings[name] != off
        ]

    def toolkit_model(self) -> Any:
        host = getattr(transformers, self.options["architectures"][0])
        labels = {name: self.options[name] for name in LABELS if name in self.options}
        config = host.config_class(**self.settings, **labels)
        config._attn_implementation = "eager"
        tensors = {name: self.tensors[name] for name in self.tensors}
        return open_by(host, None, config=config, state_dict=tensors, dtype=torch.float32)

    def config_of_one_stack(self, sizes: Mapping[str, Any], **fields: Any) -> VanillaTransformerConfig:
        """The config of a model of one stack; `sizes` are fields of both stacks without the words for these."""
        labels = {name: value for name in LABELS if (value := self.options.get(name)) is not None}
        return VanillaTransformerConfig(
            **both_stacks(**sizes),
            **labels,
            **fields,
            architectures=[self.classes[self.options["architectures"][0]]],
            is_encoder_decoder=False,
            vocab_size=self.settings["vocab_size"],
            scale_embedding=False,
            position_encoding="learned",
            embedding_sharing="all" if self.settings["tie_word_embeddings"] else "none",
            attention_bias=True,
            label_smoothing=0.0,
        )

    def speech_config(self, **fields: Any) -> VanillaTransformerConfig:
        """The config of a model of speech, as Whisper and Speech2Text have it: norms before, biases of projections."""
        options = self.settings
        return VanillaTransformerConfig(
            **{**{name: options[name] for name in FIELDS if name in options}, **fields},
            vocab_size=options["vocab_size"],
            max_position_embeddings=options["max_source_positions"],
            decoder_max_position_embeddings=options["max_target_positions"],
            **both_stacks(norm_position="pre"),
            embedding_sharing="all" if options["tie_word_embeddings"] else "none",
            attention_bias=True,
            label_smoothing=0.0,
        )

    def _has_tokenizer(self, names: Sequence[str]) -> bool:
        return (self.folder / "tokenizer.json").is_file() or all((self.folder / name).is_file() for name in names)

    def _copy_files(self, names: Sequence[str], place: str) -> None:
        """Copy those of the files that there are; each counts as used."""
        for name in ("tokenizer.json", "added_tokens.json", *names):
            if (self.folder / name).exists():
                Path(place, name).write_bytes(read_bounded(self.uses(self.folder / name)))

    def processor_of(
        self, config: VanillaTransformerConfig, classes: Sequence[Any], names: Sequence[str], needed: Sequence[str]
    ) -> Any:
        """transformers' processor in the folder; None if files are missing."""
        # `classes` are those of a processor, its feature extractor and its tokenizer, `names` files of the tokenizer
        # beside tokenizer.json, `needed` those without which there is no tokenizer, unless there is a tokenizer.json.
        if not self._has_tokenizer(needed) or not any((self.folder / name).is_file() for name in PROCESSOR_SETTINGS):
            return None
        with TemporaryDirectory() as place:  # transformers would open a file of any kind and size
            for name in (*PROCESSOR_SETTINGS, "tokenizer_config.json", "special_tokens_map.json"):
                if (self.folder / name).exists():
                    settings = _without_origin(read_json(self.uses(self.folder / name)))
                    Path(place, name).write_text(json.dumps(settings), encoding="utf-8")
            self._copy_files(names, place)
            extractor, tokenizer = (open_by(each, place, local_files_only=True) for each in classes[1:])
            tokenizer.init_kwargs = _without_origin(tokenizer.init_kwargs)
        if extractor.feature_size != config.num_mel_bins:
            raise ConversionError(
                f"the feature extractor makes {extractor.feature_size} mel bins, and the model reads "
                f"{config.num_mel_bins}"
            )
        return classes[0](extractor, tokenizer)

    def tokenizer_of(self, host: Any, names: Sequence[str]) -> VanillaTransformerTokenizer | None:
        """Our tokenizer for that of the class `host` of transformers in the folder; None if files are missing."""
        if not self._has_tokenizer(names):
            return None
        with TemporaryDirectory() as place:  # transformers would open a file of any kind and size
            self._copy_files(("tokenizer_config.json", "special_tokens_map.json", *names), place)
            theirs = open_by(host, place, local_files_only=True)
        roles = {role: theirs._special_tokens_map.get(role) for role in ROLES}
        return VanillaTransformerTokenizer(
            tokenizer_object=theirs.backend_tokenizer,
            model_max_length=theirs.model_max_length,
            model_input_names=theirs.model_input_names,
            **{role: token for role, token in roles.items() if token is not None},
        )
