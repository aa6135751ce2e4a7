"""
Whisper: folders that transformers saved for `WhisperForConditionalGeneration`, with its processor.

After transformers/models/whisper/{configuration,modeling,generation}_whisper.py. Not converted, because `generate()`
has nothing of it: recordings of more than one window, times of words, and finding out the language.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, WhisperFeatureExtractor, WhisperProcessor, WhisperTokenizer

from ...model.config.generation import VanillaTransformerGenerationConfig, is_id
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..formats.files import read_json
from ..key_table import KeyTable, Rule, filled, wrong_types
from ..source import Checkpoint, ConversionError, Source
from .saved_model import (
    FIELDS,
    FINAL_NORM_KEYS,
    STACK_KEYS,
    architecture,
    generation_config,
    is_saved_model,
    only_in_training,
    processor_of,
    read_saved_model,
    speech_config,
    toolkit_model,
)


# WhisperConfig
OPTIONS: dict[str, Any] = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "encoder_ffn_dim": 1536,
    "encoder_attention_heads": 6,
    "encoder_layerdrop": 0.0,
    "decoder_layers": 4,
    "decoder_ffn_dim": 1536,
    "decoder_attention_heads": 6,
    "decoder_layerdrop": 0.0,
    "activation_function": "gelu",
    "d_model": 384,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "pad_token_id": 50256,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "decoder_start_token_id": 50257,
    "tie_word_embeddings": True,
    "apply_spec_augment": False,
    # Of `generate()`, by the command.
    "language": "",
    "task": "",
}
CLASSES = ("WhisperForConditionalGeneration",)
# What only training does.
TRAINING = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False}


def no_bias(tensor: torch.Tensor, config: VanillaTransformerConfig) -> torch.Tensor:
    """A bias of zeros for a matrix that has none."""
    return tensor.new_zeros(len(tensor))


KEYS: KeyTable = {
    **STACK_KEYS,
    **FINAL_NORM_KEYS,
    # Whisper's keys have no bias; one would change no attention weight.
    **{
        name: [name, Rule(name.replace("weight", "bias"), no_bias)]
        for name in STACK_KEYS
        if name.endswith("k_proj.weight")
    },
    **{
        f"model.encoder.conv{number + 1}.{kind}": f"model.encoder.front_end.convolutions.{number}.{kind}"
        for number in (0, 1)
        for kind in ("weight", "bias")
    },
    "proj_out.weight": "lm_head.weight",
}


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table, the same for all."""
    return KEYS


def recognises(path: Path) -> bool:
    """Whether config.json names this model type."""
    return is_saved_model(path, "whisper")


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: A file is missing or damaged, or config.json is another model's.
    """
    return read_saved_model(path, "whisper", trust)


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    return wrong_types(filled({}, checkpoint.options), OPTIONS) or architecture(checkpoint, CLASSES)


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options describe."""
    options = filled(OPTIONS, checkpoint.options)
    return speech_config(
        **{name: options[name] for name in FIELDS if name in OPTIONS},
        front_end="speech_whisper",
        vocab_size=options["vocab_size"],
        num_mel_bins=options["num_mel_bins"],
        conv_strides=[1, 2],
        scale_embedding=False,  # Whisper has the option and does not use it
        position_encoding="learned",
        max_position_embeddings=options["max_source_positions"],
        decoder_max_position_embeddings=options["max_target_positions"],
        embedding_sharing="all" if options["tie_word_embeddings"] else "none",
    )


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
    """None: `to_processor` has it."""
    return None


def to_processor(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> Any:
    """transformers' own, which suits the front end as it is."""
    names = ("vocab.json", "merges.txt", "normalizer.json")
    return processor_of(
        checkpoint, config, WhisperProcessor, (WhisperFeatureExtractor, WhisperTokenizer), names, needed=names[:2]
    )


def _of_generation(checkpoint: Checkpoint) -> dict[str, Any]:
    """The entries of generation_config.json, with language and task of the command."""
    path = checkpoint.folder / "generation_config.json"
    found = read_json(checkpoint.uses(path)) if path.is_file() else {}
    named = {name: value for name in ("language", "task") if (value := checkpoint.options.get(name))}
    forced = {"forced_decoder_ids": checkpoint.options.get("forced_decoder_ids")}
    return {**forced, **{name: value for name, value in found.items() if value is not None}, **named}


def _forced(settings: dict[str, Any]) -> list[int | None]:
    """The ids of `forced_decoder_ids`, an older way to state the prompt: pairs of a position, from 1, and an id."""
    pairs = settings.get("forced_decoder_ids") or []
    return [token for expected, (position, token) in enumerate(pairs, start=1) if position == expected]


def _id_of(settings: dict[str, Any], table: str, option: str, name: str) -> int:
    """
    The id of a language or a task.

    Raises:
        ConversionError: The checkpoint has none for it.
    """
    known = settings.get(table) or {}
    if name not in known:
        names = ", ".join(sorted(each.strip("<|>") for each in known))
        expected = f"expected one of {names}" if names else f"generation_config.json lacks {table}, the ids"
        raise ConversionError(f"{option}={settings[option]!r}: {expected}")
    return int(known[name])


def decoder_prompt(settings: dict[str, Any]) -> list[int | None]:
    """
    The ids behind the start token as Whisper's `generate()` has them without times: language, task, "no timestamps".
    None stands for a language that Whisper would find out.

    Raises:
        ConversionError: The checkpoint has no id for the language or the task.
    """
    language, task = settings.get("language"), settings.get("task")
    ids = [] if language or task else _forced(settings)
    if settings.get("lang_to_id") or language:
        code = f"<|{str(language).lower().strip('<|>')}|>"
        ids[:1] = [_id_of(settings, "lang_to_id", "language", code) if language else (ids or [None])[0]]
    if task or (language and settings.get("task_to_id")):
        settings = {**settings, "task": task or "transcribe"}
        ids.append(_id_of(settings, "task_to_id", "task", settings["task"]))
    without_times = settings.get("no_timestamps_token_id")
    return ids + ([without_times] if without_times is not None and without_times not in ids[-1:] else [])


def guessed(checkpoint: Checkpoint) -> dict[str, Any]:
    """The language, if the model has several and the files name none."""
    return {"language": "en"} if None in decoder_prompt(_of_generation(checkpoint)) else {}


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """
    generation_config.json, or config.json, as far as our search has it, with the prompt as `decoder_prompt_ids`.

    Raises:
        ConversionError: An id of the prompt lies outside the vocabulary.
    """
    found = generation_config(checkpoint, OPTIONS).to_dict()
    known = {name: found[name] for name in GenerationConfig().to_dict().keys() & found.keys()}
    prompt = [token for token in decoder_prompt(_of_generation(checkpoint)) if token is not None]
    if wrong := [token for token in prompt if not is_id(token) or token >= config.vocab_size]:
        raise ConversionError(
            f"generation_config.json: the prompt has the id {wrong[0]!r}, and there are {config.vocab_size} tokens"
        )
    return VanillaTransformerGenerationConfig(**known, **({"decoder_prompt_ids": prompt} if prompt else {}))


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Steps of Whisper that `generate()` does not perform, and those of training."""
    notes = ["recordings of more than one window, times of words and finding out the language are not converted"]
    if _of_generation(checkpoint).get("return_timestamps"):
        notes.append("return_timestamps=True: texts are written without times")
    return notes + only_in_training(filled(OPTIONS, checkpoint.options), TRAINING)


SOURCE = Source(
    options=OPTIONS,
    recognises=recognises,
    read=read,
    unsupported=unsupported,
    to_config=to_config,
    keys=keys,
    to_tokenizer=to_tokenizer,
    to_processor=to_processor,
    to_generation_config=to_generation_config,
    decoding_notes=decoding_notes,
    guessed=guessed,
    settable=("language", "task"),
    toolkit_model=lambda checkpoint: toolkit_model(checkpoint, OPTIONS.keys() - {"language", "task"}),
)
