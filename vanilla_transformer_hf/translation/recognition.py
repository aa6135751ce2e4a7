"""
Recordings and images to texts: files in, a text of each out.

A corpus of files is a folder with `texts.tsv`, which has a file's path in the folder, a tab and its text on each line.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForImageTextToText, AutoModelForSpeechSeq2Seq, AutoProcessor

from ..common.lines import read_lines
from ..common.opening import open_any_config, open_weights
from ..common.recordings import read_recording
from ..model.config.front_ends import input_name_of


TEXTS_FILE = "texts.tsv"


def read_texts(folder: Path) -> list[tuple[Path, str]]:
    """
    The files of a corpus with their texts.

    Raises:
        FileNotFoundError: The folder has no `texts.tsv`, or this names a file that is not there.
        ValueError: A line is not a path, a tab and a text; or there is none.
    """
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
    """
    The frames (F, M) of a recording.

    Args:
        content: The bytes of the file; read from `path` if not given.

    Raises:
        ValueError: The file is no recording, or of another sampling rate than the model's.
    """
    samples, rate = read_recording(path, content)
    extractor = processor.feature_extractor
    if rate != extractor.sampling_rate:
        raise ValueError(
            f"{path} has {rate:,} samples per second, and this model reads {extractor.sampling_rate:,}: resample it"
        )
    return torch.from_numpy(extractor.frames(samples))


def read_image(path: str | os.PathLike[str], processor: Any, content: bytes | None = None) -> torch.Tensor:
    """
    The pixels (C, H, W) of an image, in grey where the model has one channel.

    Args:
        content: The bytes of the file; read from `path` if not given.

    Raises:
        ValueError: The file is no image, or larger than those of the model.
    """
    from PIL import Image, UnidentifiedImageError

    makes = processor.image_processor
    try:
        with Image.open(path if content is None else BytesIO(content)) as image:
            pixels = makes(image.convert("L" if len(makes.image_mean) == 1 else "RGB"), return_tensors="pt")
    except UnidentifiedImageError as error:
        raise ValueError(f"{path} is not an image") from error
    except (ValueError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's for damaged files, too
        raise ValueError(f"{path}: {error}") from error
    found: torch.Tensor = pixels["pixel_values"][0]
    return found


# A model's argument for a source -> what reads a file, and the Auto class of the model.
READERS: dict[str, Callable[..., torch.Tensor]] = {"input_features": read_speech, "pixel_values": read_image}
CLASSES: dict[str, Any] = {"input_features": AutoModelForSpeechSeq2Seq, "pixel_values": AutoModelForImageTextToText}


def batch_of(input_name: str, sources: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Frames of several lengths padded with zeros on the right, with their mask, or pixels: the model's arguments."""
    if input_name == "pixel_values":
        return {input_name: torch.stack(list(sources))}
    mask = pad_sequence([torch.ones(len(each), dtype=torch.long) for each in sources], batch_first=True)
    return {input_name: pad_sequence(list(sources), batch_first=True), "attention_mask": mask}


class Recognizer:
    """
    A model that reads recordings or images, with its processor.

    Args:
        name: Folder of a model, or the id of a Hub repository.
        input_name: What the model must read, "input_features" or "pixel_values"; None: either.
        device: Where it computes.

    Raises:
        OSError: The model or its processor cannot be opened.
        ValueError: The model reads something else.
    """

    def __init__(self, name: str, input_name: str | None = None, device: str | None = None):
        self.input_name = input_name_of(open_any_config(name))
        if self.input_name not in READERS or input_name not in (None, self.input_name):
            wanted = input_name or " or ".join(READERS)
            raise ValueError(f"{name} is a model that reads {self.input_name}, not {wanted}")
        self.processor = AutoProcessor.from_pretrained(name)
        self.model: Any = open_weights(name, CLASSES[self.input_name]).eval().to(device or "cpu")

    def texts(self, files: Sequence[str | os.PathLike[str]], batch_size: int = 32, **search: Any) -> Iterator[str]:
        """
        The text of each file, in their order.

        Args:
            batch_size: Files that are read and searched together.
            search: Arguments of `generate`.

        Raises:
            OSError, ValueError: A file cannot be read; the message names it.
        """
        read = READERS[self.input_name]
        for start in range(0, len(files), batch_size):
            sources = [read(path, self.processor) for path in files[start : start + batch_size]]
            batch = {name: tensor.to(self.model.device) for name, tensor in batch_of(self.input_name, sources).items()}
            ids = self.model.generate(**batch, **search)
            yield from self.processor.tokenizer.batch_decode(ids, skip_special_tokens=True)
