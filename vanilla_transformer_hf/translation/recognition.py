"""
Recordings and images to texts: files in, a text of each out.

A corpus of files is a folder with `texts.tsv`, which has a file's path in the folder, a tab and its text on each line.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForImageTextToText, AutoModelForSpeechSeq2Seq
from transformers.utils import logging

from ..common.lines import read_lines
from ..common.opening import open_any_config, open_processor, open_weights, to_device
from ..common.recordings import read_recording
from ..model.config.front_ends import has_padding, input_name_of, source_length
from ..model.tokenizer.failures import failing_in_one_line


TEXTS_FILE = "texts.tsv"
# Of the others that Pillow has, some start programs (EPS: Ghostscript).
IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
MOST_PIXELS = 2**26


def read_texts(folder: Path) -> list[tuple[Path, str]]:
    """The files of a corpus with their texts."""
    table = folder / TEXTS_FILE
    if not table.is_file():
        raise FileNotFoundError(f"{table} does not exist: expected a line 'file<TAB>text' for each file of the folder")
    rows = []
    for number, line in enumerate(read_lines(table), start=1):
        name, tab, text = line.partition("\t")
        if not (name and tab and text.strip()) or "\t" in text:
            raise ValueError(f"line {number:,} of {table}: expected a file, a tab and its text, got {line[:80]!r}")
        if not (folder / name).is_file():
            raise FileNotFoundError(f"line {number:,} of {table}: {folder / name} does not exist")
        rows.append((folder / name, text))
    if not rows:
        raise ValueError(f"{table} is empty: expected a line for each file")
    return rows


def read_speech(path: str | os.PathLike[str], processor: Any, content: bytes | None = None) -> torch.Tensor:
    """The frames of a recording, or of its bytes, that the model reads: (F, M), or (M, F) of Whisper's extractor."""
    return frames_of(*read_recording(path, content), processor, path)


def frames_of(samples: Any, rate: int, processor: Any, name: str | os.PathLike[str]) -> torch.Tensor:
    """The frames, as of `read_speech`, of samples (N) at a rate per second; messages call them by `name`."""
    extractor = processor.feature_extractor
    if rate != extractor.sampling_rate:
        raise ValueError(
            f"{name} has {rate:,} samples per second, and this model reads {extractor.sampling_rate:,}: resample it"
        )
    if len(samples) > (window := getattr(extractor, "n_samples", len(samples))):
        raise ValueError(
            f"{name} has {len(samples) / rate:.1f} seconds, and this model reads {window / rate:g}: cut it into parts"
        )
    try:
        with np.errstate(all="ignore"):  # of silence, about which an error follows
            found: torch.Tensor = extractor(samples, sampling_rate=rate, return_tensors="pt")["input_features"][0]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not found.isfinite().all():
        raise ValueError(f"{name}: its frames are NaN or infinite, as of samples that are, or of pure silence")
    return found


def read_image(path: str | os.PathLike[str], processor: Any, content: bytes | None = None) -> torch.Tensor:
    """The pixels (C, H, W) of an image, or of its bytes."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path if content is None else BytesIO(content), formats=IMAGE_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"it has {image.width * image.height:,} pixels; expected at most {MOST_PIXELS:,}")
            return pixels_of(image, processor)
    except UnidentifiedImageError as error:
        raise ValueError(f"{path} is not an image") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # of damaged files, too
        if isinstance(error, OSError) and error.filename is not None:  # the file itself, not what is in it
            raise
        raise ValueError(f"{path}: {error}") from error


def pixels_of(image: Any, processor: Any) -> torch.Tensor:
    """The pixels (C, H, W) of a PIL image, as `read_image` gives them; `ValueError` where they would lose anything."""
    makes = processor.image_processor
    limit: Any = getattr(makes, "pad_size", None)
    is_filled_up = limit and makes.do_pad and not makes.do_resize
    if is_filled_up and (image.width > limit["width"] or image.height > limit["height"]):
        raise ValueError(
            f"it is {image.width} pixels wide and {image.height} high, and this model reads at most "
            f"{limit['width']} and {limit['height']}: make it smaller, or cut it"
        )
    if image.mode[0] in "IF":  # PIL would cut off whatever is above 255
        raise ValueError(f"it has more than 8 bits for each pixel ({image.mode}): save it with 8 first")
    if image.convert("RGBA").getchannel("A").getextrema()[0] < 255:
        raise ValueError("parts of it are transparent: put it on a background first")
    image = image.convert("RGB")
    if len(makes.image_mean) == 1:  # grey
        image, *others = image.split()
        if any(each.tobytes() != image.tobytes() for each in others):
            raise ValueError("it has colours, and this model reads grey images: convert it to grey first")
    found: torch.Tensor = makes(image, return_tensors="pt")["pixel_values"][0]
    return found


def read_sources(rows: Sequence[tuple[Path, str]], input_name: str, processor: Any) -> list[torch.Tensor]:
    """The sources of a corpus, the rows of `read_texts`; errors name the file and its line of `texts.tsv`."""
    sources = []
    for number, (path, _) in enumerate(rows, start=1):
        try:
            sources.append(READERS[input_name](path, processor))
        except (OSError, ValueError) as error:
            raise ValueError(f"line {number:,} of {TEXTS_FILE}: {error}") from error
    return sources


# A model's argument for a source -> what reads a file, and the Auto class of the model.
READERS: dict[str, Callable[..., torch.Tensor]] = {"input_features": read_speech, "pixel_values": read_image}
CLASSES: dict[str, Any] = {"input_features": AutoModelForSpeechSeq2Seq, "pixel_values": AutoModelForImageTextToText}


def batch_of(input_name: str, sources: Sequence[torch.Tensor], has_padding: bool = True) -> dict[str, torch.Tensor]:
    """The model's arguments: pixels, or frames padded with zeros on the right and their mask, if it `has_padding`."""
    if input_name == "pixel_values" or not has_padding:
        return {input_name: torch.stack(list(sources))}
    mask = pad_sequence([torch.ones(len(each), dtype=torch.long) for each in sources], batch_first=True)
    return {input_name: pad_sequence(list(sources), batch_first=True), "attention_mask": mask}


def check_positions(model: Any, source: torch.Tensor, name: str | os.PathLike[str], most: int | None = None) -> None:
    """Raise `ValueError` for a source that needs more positions than the encoder has, or than `most`."""
    limits = [limit for limit in (model.get_encoder().longest, most) if limit is not None]
    count = source_length(model.config, (1, *source.shape))
    if limits and count > min(limits):
        raise ValueError(f"{name} has {count:,} positions in the encoder; expected at most {min(limits):,}: cut it")


class Recognizer:
    """A model, of a folder or the Hub, that reads recordings or images (`input_name`: which), with its processor."""

    def __init__(self, name: str, input_name: str | None = None, device: str | None = "cpu", dtype: str = "auto"):
        config = open_any_config(name)
        self.input_name, self.has_padding = input_name_of(config), has_padding(config)
        if self.input_name not in READERS or input_name not in (None, self.input_name):
            wanted = input_name or " or ".join(READERS)
            raise ValueError(f"{name} is a model that reads {self.input_name}, not {wanted}")
        self.processor = open_processor(name)
        self.model: Any = to_device(open_weights(name, CLASSES[self.input_name], dtype=dtype).eval(), device)

    def read(self, path: str | os.PathLike[str]) -> torch.Tensor:
        """The frames or pixels of a file, or an error that names it."""
        source = READERS[self.input_name](path, self.processor)
        check_positions(self.model, source, path)
        return source

    def texts(self, files: Sequence[str | os.PathLike[str]], batch_size: int = 32, **search: Any) -> Iterator[str]:
        """The text of each file, in their order, searched with these arguments of `generate`."""
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        for start in range(0, len(files), batch_size):
            sources = [self.read(path) for path in files[start : start + batch_size]]
            batch = batch_of(self.input_name, sources, self.has_padding)
            ids = self.model.generate(**{name: each.to(self.model.device) for name, each in batch.items()}, **search)
            with failing_in_one_line("joins tokens to a text"):
                texts = self.processor.tokenizer.batch_decode(ids, skip_special_tokens=True)
            yield from texts


def open_recognizer(arguments: Any, input_name: str | None = None) -> Recognizer:
    """The model of a command, by its arguments `model`, `device` and `dtype`, without a bar of loading weights."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return Recognizer(arguments.model, input_name, arguments.device, arguments.dtype)
