"""
Front ends, as the config has them: what a source is, and what makes the input of the encoder's first layer of it.
A row each; `front_ends.py` computes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .kinds import Kind


# Tokens or frames of an example.
SOME_LENGTH = 40


def behind_strides(config: Any, length: int) -> int:
    """Positions that a sequence of this length becomes."""
    for stride in FRONT_ENDS[config.front_end].strides(config):
        length = -(-length // stride)
    return length


def frames_of_positions(config: Any) -> int:
    """Frames that become as many positions as the encoder has."""
    return int(config.max_position_embeddings * prod(FRONT_ENDS[config.front_end].strides(config)))


def shape_of_frames(config: Any) -> tuple[int, ...]:
    """Some frames (F, M)."""
    return SOME_LENGTH, config.num_mel_bins


@dataclass(frozen=True, kw_only=True)
class FrontEndKind(Kind):
    """How a source becomes the encoder's input."""

    # The model's argument for a source, and functions of the config: by how much each step shortens the sequence, so
    # that L positions become ⌈L / stride⌉; with the shape of a batch of sources, the positions of the encoder's input;
    # and the shape of one source, of any length where sources differ in it.
    input_name: str
    strides: Callable[[Any], list[int]] = lambda config: []
    length: Callable[[Any, Sequence[int]], int] = lambda config, shape: behind_strides(config, shape[1])
    shape: Callable[[Any], tuple[int, ...]] = lambda config: (SOME_LENGTH,)
    has_padding: bool = True  # whether the source's `attention_mask` is used; if not, each position is attended to


def strides_of_convolutions(config: Any) -> list[int]:
    """Those of the config, or two of 2."""
    return [2, 2] if config.conv_strides is None else config.conv_strides


MEL_OPTIONS = ("num_mel_bins",)
CONVOLUTION_OPTIONS = ("conv_strides", "conv_kernel_size", "conv_channels", "conv_activation")
IMAGE_OPTIONS = ("num_channels", "image_height", "image_width", "patch_height", "patch_width")

# `front_end` -> what the config has of it
FRONT_ENDS: dict[str, FrontEndKind] = {
    "tokens": FrontEndKind(input_name="input_ids"),
    "speech": FrontEndKind(
        module="front_ends",
        options=MEL_OPTIONS + CONVOLUTION_OPTIONS,
        input_name="input_features",
        strides=strides_of_convolutions,
        shape=shape_of_frames,
    ),
    "speech_whisper": FrontEndKind(
        module="front_ends",
        options=MEL_OPTIONS + CONVOLUTION_OPTIONS,
        input_name="input_features",
        strides=strides_of_convolutions,
        length=lambda config, shape: behind_strides(config, shape[-1]),
        shape=lambda config: (config.num_mel_bins, frames_of_positions(config)),
        has_padding=False,
    ),
    "speech_stacked": FrontEndKind(
        module="front_ends",
        options=(*MEL_OPTIONS, "stacked_frames"),
        input_name="input_features",
        strides=lambda config: [config.stacked_frames],
        shape=shape_of_frames,
    ),
    "image": FrontEndKind(
        module="front_ends",
        options=IMAGE_OPTIONS,
        input_name="pixel_values",
        length=lambda config, _: (
            (config.image_height // config.patch_height) * (config.image_width // config.patch_width)
        ),
        shape=lambda config: (config.num_channels, config.image_height, config.image_width),
    ),
}


# A model's argument for a source -> the classes that take it.
CLASSES_OF_INPUTS = {
    "input_ids": "AutoModelForSeq2SeqLM",
    "input_features": "AutoModelForSpeechSeq2Seq",
    "pixel_values": "AutoModelForImageTextToText",
}


def reads_tokens(config: Any) -> bool:
    """Whether the source is token ids, as in all recurrent models."""
    return getattr(config, "front_end", "tokens") == "tokens"


def input_name_of(config: Any) -> str:
    """The model's argument for a source: input_ids, input_features or pixel_values."""
    return FRONT_ENDS[getattr(config, "front_end", "tokens")].input_name


def has_padding(config: Any) -> bool:
    """Whether the `attention_mask` of a source is used, so that sources of several lengths may stand in a batch."""
    return FRONT_ENDS[getattr(config, "front_end", "tokens")].has_padding


def shortened_padding(config: Any, padding: Any) -> Any:
    """1 for a position of the encoder's input, 0 for padding (B, S), from that of the source, as frames (B, F)."""
    # None stays None, and None is that of a front end without padding.
    if padding is None or not has_padding(config):
        return None
    for stride in FRONT_ENDS[config.front_end].strides(config):
        padding = padding[:, ::stride]
    return padding


def source_length(config: Any, shape: Sequence[int]) -> int:
    """Positions of the encoder's input for a batch of sources of this shape."""
    return FRONT_ENDS[config.front_end].length(config, shape)


def check_sources(model: Any, given: dict[str, Any], token_type_ids: Any, global_attention_mask: Any) -> None:
    """A `ValueError` if a source is `given` that is not the model's, or none, or what only other encoders have."""
    name, front_end = model.main_input_name, model.config.front_end
    others = {"input_ids", "inputs_embeds"} if name == "input_ids" else {name}
    for other in given.keys() - others:
        if given[other] is not None:
            raise ValueError(f"{type(model).__name__}: {other} given; front_end={front_end!r} reads {name}")
    if name != "input_ids" and given[name] is None:
        raise ValueError(f"{type(model).__name__}: no {name} given, which front_end={front_end!r} reads")
    if token_type_ids is not None and not model.config.type_vocab_size:
        raise ValueError(
            "token_type_ids: this model has no segments (type_vocab_size=0); leave them out, or set the config's "
            "type_vocab_size and train"
        )
    if global_attention_mask is not None and model.config.encoder_attention_type != "window_global":
        raise ValueError(
            "global_attention_mask: this encoder has no global tokens; leave it out, or train a model with "
            "encoder_attention_type='window_global'"
        )
