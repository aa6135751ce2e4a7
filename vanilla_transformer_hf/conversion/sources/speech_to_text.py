"""
Speech2Text: folders that transformers saved for `Speech2TextForConditionalGeneration`, fairseq's models of speech
recognition and translation, with its processor.

After transformers/models/speech_to_text/{configuration,modeling}_speech_to_text.py.
"""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig, Speech2TextFeatureExtractor, Speech2TextProcessor

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..key_table import KeyTable, filled, wrong_types
from ..source import Checkpoint, Source
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


# Speech2TextConfig
OPTIONS: dict[str, Any] = {
    "vocab_size": 10000,
    "encoder_layers": 12,
    "encoder_ffn_dim": 2048,
    "encoder_attention_heads": 4,
    "encoder_layerdrop": 0.0,
    "decoder_layers": 6,
    "decoder_ffn_dim": 2048,
    "decoder_attention_heads": 4,
    "decoder_layerdrop": 0.0,
    "activation_function": "relu",
    "d_model": 256,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": True,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "max_source_positions": 6000,
    "max_target_positions": 1024,
    "num_conv_layers": 2,
    "conv_kernel_sizes": [5, 5],
    "conv_channels": 1024,
    "input_feat_per_channel": 80,
    "input_channels": 1,
    "tie_word_embeddings": True,
}
CLASSES = ("Speech2TextForConditionalGeneration",)
TRAINING = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}

KEYS: KeyTable = {
    **STACK_KEYS,
    **FINAL_NORM_KEYS,
    **{
        f"model.encoder.conv.conv_layers.{{}}.{kind}": f"model.encoder.front_end.convolutions.{{}}.{kind}"
        for kind in ("weight", "bias")
    },
    # Sinusoids, which older versions of transformers saved.
    **{f"model.{stack}.embed_positions.weights": None for stack in ("encoder", "decoder")},
    "lm_head.weight": "lm_head.weight",
}


def keys(config: VanillaTransformerConfig, checkpoint: Checkpoint) -> KeyTable:
    """The table, the same for all."""
    return KEYS


def recognises(path: Path) -> bool:
    """Whether config.json names this model type."""
    return is_saved_model(path, "speech_to_text")


def read(path: Path, trust: bool = False) -> Checkpoint:
    """
    Raises:
        ConversionError: A file is missing or damaged, or config.json is another model's.
    """
    return read_saved_model(path, "speech_to_text", trust)


def unsupported(checkpoint: Checkpoint) -> list[str]:
    """A line for each option that our model does not support."""
    if problems := wrong_types(filled({}, checkpoint.options), OPTIONS):
        return problems
    options, problems = filled(OPTIONS, checkpoint.options), architecture(checkpoint, CLASSES)
    kernels = options["conv_kernel_sizes"]
    if len(kernels) != options["num_conv_layers"] or len(set(kernels)) != 1:
        problems.append(
            f"conv_kernel_sizes={kernels}: must be num_conv_layers={options['num_conv_layers']} times one size"
        )
    if options["pad_token_id"] == 0:
        problems.append("pad_token_id=0: Speech2Text then gives no frame a position")
    return problems


def to_config(checkpoint: Checkpoint) -> VanillaTransformerConfig:
    """Config of the model that the options describe."""
    options = filled(OPTIONS, checkpoint.options)
    return speech_config(
        **{name: options[name] for name in FIELDS if name in OPTIONS},
        front_end="speech",
        vocab_size=options["vocab_size"],
        num_mel_bins=options["input_feat_per_channel"] * options["input_channels"],
        conv_strides=[2] * options["num_conv_layers"],
        conv_kernel_size=options["conv_kernel_sizes"][0],
        conv_channels=options["conv_channels"],
        conv_activation="glu",
        position_encoding="sinusoidal_halves_inclusive",
        position_offset=options["pad_token_id"] + 1,
        max_position_embeddings=options["max_source_positions"],
        decoder_max_position_embeddings=options["max_target_positions"],
        embedding_sharing="all" if options["tie_word_embeddings"] else "none",
    )


def to_tokenizer(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> VanillaTransformerTokenizer | None:
    """None: `to_processor` has it."""
    return None


def to_processor(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> Any:
    """transformers' own, whose tokenizer needs sentencepiece."""
    from transformers import Speech2TextTokenizer  # here, because the class cannot be had without sentencepiece

    names = ("vocab.json", "sentencepiece.bpe.model")
    return processor_of(
        checkpoint, config, Speech2TextProcessor, (Speech2TextFeatureExtractor, Speech2TextTokenizer), names, names
    )


def to_generation_config(checkpoint: Checkpoint, config: VanillaTransformerConfig) -> GenerationConfig:
    """generation_config.json, or config.json."""
    return generation_config(checkpoint, OPTIONS)


def decoding_notes(checkpoint: Checkpoint) -> list[str]:
    """Differences in the padding, and in training."""
    return [
        "a recording gives in a batch what it gives alone; Speech2Text's convolutions read biases behind its end",
        *only_in_training(filled(OPTIONS, checkpoint.options), TRAINING),
    ]


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
    toolkit_model=lambda checkpoint: toolkit_model(checkpoint, OPTIONS),
)
