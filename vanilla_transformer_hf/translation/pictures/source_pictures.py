"""
Sources that can be seen: the spectrogram of a recording or an image, and the part of it that each position of the
encoder stands for.

Shapes: S positions of the encoder, F frames, M mel filters, C channels, H and W pixels.
"""

from dataclasses import dataclass
from typing import Any

import torch

from ...model.config.front_ends import FRONT_ENDS, source_length


@dataclass(frozen=True)
class SourcePicture:
    """What a model reads of a file, as a picture."""

    kind: str  # "speech" or "image"
    # Features, the highest mel filter in the first row (M, F); or pixels from 0 to 1 (H, W) or (H, W, 3).
    values: torch.Tensor
    # The part of the picture of each position (S, 4): left, top, right and bottom in frames or pixels.
    cells: torch.Tensor
    names: list[str]  # what each position is called: its time, as "0.12 s", or the row and column of its patch
    seconds: float | None = None  # of a frame; None of images, and where the feature extractor does not tell it
    seen: int = 0  # frames that each position is computed from by the front end; 0 of images

    @property
    def is_row(self) -> bool:
        """Whether the positions lie beside each other in one row, each as high as the picture."""
        return bool((self.cells[:, 1] == self.cells[0, 1]).all())

    @property
    def used(self) -> int:
        """Positions up to the last that is not blank: images in which they lie in a row may be padded on the right."""
        written = (self.values != self.values[:, -1:]).any(dim=0).nonzero()[:, 0]  # columns, each once for a colour
        if self.kind == "speech" or not self.is_row or not len(written):
            return len(self.cells)
        return int((self.cells[:, 0] <= written.max()).sum())


def picture_of(config: Any, processor: Any, source: torch.Tensor) -> SourcePicture:
    """The picture of a source without padding in time, of `recognition.READERS`: frames (F, M) or pixels (C, H, W)."""
    is_image = FRONT_ENDS[config.front_end].input_name == "pixel_values"
    return (image_picture if is_image else spectrogram_picture)(config, processor, source)


def spectrogram_picture(config: Any, processor: Any, source: torch.Tensor) -> SourcePicture:
    """Frames (F, M), or (M, F) of Whisper's extractor, with time from left to right."""
    count = source_length(config, (1, *source.shape))
    source = source.t() if config.front_end == "speech_whisper" else source
    frames, bins = source.shape
    stride, seen, shift = 1, 1, 0.0
    strides = FRONT_ENDS[config.front_end].strides(config)
    for each in strides:
        # A convolution is centred on a frame, a stack of frames begins with it.
        kernel = each if config.front_end == "speech_stacked" else config.conv_kernel_size
        seen, stride = seen + (kernel - 1) * stride, stride * each
    if config.front_end != "speech_stacked":
        shift = (1 - stride) / 2
    left = torch.arange(count) * float(stride) + shift
    right = left + stride
    cells = torch.stack((left, torch.zeros(count), right, torch.full((count,), float(bins))), dim=1)
    cells[:, [0, 2]] = cells[:, [0, 2]].clamp(0, frames)
    extractor = processor.feature_extractor  # this package's, or one with `hop_length`
    hop = getattr(extractor, "hop", None) or getattr(extractor, "hop_length", None)
    seconds = hop / extractor.sampling_rate if hop else None  # from a frame to the next
    starts = range(0, count * stride, stride)
    names = [f"frame {start}" if seconds is None else f"{start * seconds:.2f} s" for start in starts]
    return SourcePicture("speech", source.t().flip(0), cells, names, seconds, seen)


def image_picture(config: Any, processor: Any, source: torch.Tensor) -> SourcePicture:
    """Pixels (C, H, W) as they were before the image processor's mean and deviation; patches row by row."""
    patch = config.patch_height, config.patch_width
    rows, columns = config.image_height // patch[0], config.image_width // patch[1]
    at = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float().view(-1, 2)
    top, left = at[:, 0] * patch[0], at[:, 1] * patch[1]
    cells = torch.stack((left, top, left + patch[1], top + patch[0]), dim=1)
    names = [f"patch {int(column)}" if rows == 1 else f"patch {int(row)}, {int(column)}" for row, column in at]
    pixels, makes = source.float(), processor.image_processor
    if getattr(makes, "do_normalize", False):
        mean, deviation = (torch.tensor(getattr(makes, name)) for name in ("image_mean", "image_std"))
        pixels = pixels * deviation.view(-1, 1, 1) + mean.view(-1, 1, 1)
    pixels = pixels.clamp(0, 1)
    return SourcePicture("image", pixels.permute(1, 2, 0) if len(pixels) == 3 else pixels.mean(dim=0), cells, names)
