"""
What makes the input of the encoder's first layer of speech and images: frames shortened to positions, patches row by
row. The front end of token ids is the encoder's `embed_tokens`, an `nn.Embedding`.

Shapes: B sources, F frames, S positions, D = encoder_d_model, M = num_mel_bins, C channels, H and W pixels.
"""

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from .config.front_ends import frames_of_positions, strides_of_convolutions
from .config.stacks import StackSizes
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import FRONT_END_CLASSES


class FrontEndBase(nn.Module):
    """What makes the input of the encoder's first layer of a source."""

    def __init_subclass__(cls, kind: str | None = None, **kwargs: object) -> None:
        """`class Frames(FrontEndBase, kind="frames")` is what a config calls "frames"."""
        super().__init_subclass__(**kwargs)
        if kind is not None:
            FRONT_END_CLASSES.add(kind, cls)

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.width, self.bins = StackSizes(config, "encoder").width, config.num_mel_bins

    @abstractmethod
    def forward(self, source: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """The source, and 1 or 0 for padding of it or None, to embeddings (B, S, D), before they are scaled."""

    def drawn_as_embeddings(self, last: Any, config: VanillaTransformerConfig) -> Any:
        """The last map, to be drawn so that what it makes is as small as embeddings."""
        # Where these are scaled by √D, positions of another size than the rest of the sum would be found late.
        last.init_gain = self.width**-0.5 if config.scale_embedding else 1.0
        return last


def shape_error(name: str, expected: str, source: torch.Tensor) -> ValueError:
    """The error about a source of a wrong shape."""
    found = ", ".join(map(str, source.shape))
    return ValueError(f"{name}: expected {expected}, got a tensor of shape ({found})")


def check_frames(frames: torch.Tensor, padding: torch.Tensor | None, bins: int) -> None:
    """A `ValueError` if the frames are not (B, F, M) with at least one frame, or the mask is not (B, F)."""
    if frames.dim() != 3 or frames.shape[1] == 0 or frames.shape[2] != bins:
        raise shape_error(
            "input_features", f"(recordings, frames, {bins}) with at least one frame (num_mel_bins={bins})", frames
        )
    if padding is not None and padding.shape != frames.shape[:2]:
        raise shape_error(
            "attention_mask", f"1 or 0 for each frame of input_features, ({len(frames)}, {frames.shape[1]})", padding
        )


def without_padding(frames: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    """Frames (B, F, ·) with zeros in the place of padding (B, F), as behind the end of a recording alone."""
    return frames if padding is None else frames * padding.to(frames.dtype)[:, :, None]


class ConvolutionFrontEnd(FrontEndBase, kind="speech"):
    """Convolutions over time, an activation behind each, by default two of stride 2: Speech2Text, arXiv 2010.05171."""

    # As in Dong et al. 2018; strides 1 and 2 are Whisper's (Radford et al. 2022, arXiv 2212.04356).

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        strides, kernel = strides_of_convolutions(config), config.conv_kernel_size
        width, gates = self.width, config.conv_activation == "glu"
        inner = config.conv_channels or width
        # A gated convolution has twice the outputs, of which the gate leaves half.
        outputs = [inner] * (len(strides) - 1) + [2 * width if gates else width]
        inputs = [config.num_mel_bins] + [size // 2 if gates else size for size in outputs[:-1]]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(size, out, kernel, stride=stride, padding=kernel // 2)
            for size, out, stride in zip(inputs, outputs, strides, strict=True)
        )
        self.drawn_as_embeddings(self.convolutions[-1], config)
        self.activation = nn.GLU(dim=1) if gates else ACT2FN[config.conv_activation]

    def forward(self, source: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """Frames (B, F, M) and their padding (B, F) to embeddings (B, S, D)."""
        check_frames(source, padding, self.bins)
        convolutions: Any = self.convolutions
        states = source.to(convolutions[0].weight.dtype)
        for convolution in convolutions:
            # Between convolutions, too: a bias would make something of padding, and the next would read it.
            states = without_padding(states, padding).transpose(1, 2)
            states = self.activation(convolution(states)).transpose(1, 2)
            padding = None if padding is None else padding[:, :: convolution.stride[0]]
        return states


class WhisperFrontEnd(ConvolutionFrontEnd, kind="speech_whisper"):
    """Convolutions over frames as `WhisperFeatureExtractor` makes them."""

    # All recordings have one length, silence behind their end, because the model has learned to read this silence:
    # nothing is hidden as padding.

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.frames = frames_of_positions(config)

    def forward(self, source: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """Frames (B, M, F) to embeddings (B, S, D); the padding is not read."""
        if source.dim() != 3 or tuple(source.shape[1:]) != (self.bins, self.frames):
            raise shape_error(
                "input_features",
                f"(recordings, {self.bins}, {self.frames}), num_mel_bins and the frames of max_position_embeddings "
                "positions",
                source,
            )
        return super().forward(source.transpose(1, 2), None)


class StackedFramesFrontEnd(FrontEndBase, kind="speech_stacked"):
    """A linear map of n = `stacked_frames` neighbouring frames, as in Sak et al. 2015, arXiv 1507.06947."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        frames = nn.Linear(config.stacked_frames * config.num_mel_bins, self.width)
        self.projection = self.drawn_as_embeddings(frames, config)
        self.count = config.stacked_frames

    def forward(self, source: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """Frames (B, F, M) and their padding (B, F) to embeddings (B, ⌈F / n⌉, D)."""
        check_frames(source, padding, self.bins)
        frames = without_padding(source.to(self.projection.weight.dtype), padding)
        frames = F.pad(frames, (0, 0, 0, -frames.shape[1] % self.count))
        embeddings: torch.Tensor = self.projection(frames.unflatten(1, (-1, self.count)).flatten(2))
        return embeddings


class PatchFrontEnd(FrontEndBase, kind="image"):
    """One linear map of the pixels of each patch, Dosovitskiy et al. 2021, arXiv 2010.11929, equation 1."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.patch = config.patch_height, config.patch_width
        self.shape = config.num_channels, config.image_height, config.image_width
        pixels = config.num_channels * config.patch_height * config.patch_width
        self.projection = self.drawn_as_embeddings(nn.Linear(pixels, self.width), config)

    def forward(self, source: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """Pixels (B, C, H, W), and 1 or 0 for each patch (B, S) or None, to embeddings (B, S, D)."""
        if source.dim() != 4 or tuple(source.shape[1:]) != self.shape:
            sizes = ", ".join(map(str, self.shape))
            raise shape_error("pixel_values", f"(images, {sizes}), as num_channels, image_height, image_width", source)
        patches = F.unfold(source.to(self.projection.weight.dtype), self.patch, stride=self.patch)
        if padding is not None and padding.shape != (len(source), patches.shape[2]):
            raise shape_error("attention_mask", f"1 or 0 for each patch, ({len(source)}, {patches.shape[2]})", padding)
        embeddings: torch.Tensor = self.projection(patches.transpose(1, 2))
        return embeddings
