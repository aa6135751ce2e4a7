"""Models that read recordings or images: files in the place of a sentence, and their pictures."""

import base64
import binascii
import os
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import torch

from ..common.white_space import as_text
from ..evaluation.diagonality import diagonality
from ..model.config.front_ends import has_padding, input_name_of
from ..model.feature_extraction_vanilla_transformer import samples_of
from ..translation.pictures.source_pictures import picture_of
from ..translation.recognition import READERS, batch_of, check_positions, frames_of, pixels_of
from .requests import DiagonalityRequest, FileRequest, Request, RequestError, shown
from .results import DiagonalityResult, FileResult, Piece, SourceResult
from .subject import MOST_PIECES, Subject


# Files that a model keeps, and bytes of one.
MOST_FILES, MOST_BYTES = 32, 8 * 2**20


class FileSubject(Subject):
    """A model of this package that reads files: the `text` of a request is the name of one that was opened."""

    def __init__(self, name: str, model: Any, processor: Any):
        self.processor, self.input_name = processor, input_name_of(model.config)
        self.reads = "image" if self.input_name == "pixel_values" else "speech"
        part = "image_processor" if self.reads == "image" else "feature_extractor"
        if not (hasattr(processor, "tokenizer") and hasattr(processor, part)):
            raise RequestError(
                "tokenizer", f"is a {type(processor).__name__}; {name} reads {self.reads}: give its processor"
            )
        super().__init__(name, model, processor.tokenizer)
        self.files = OrderedDict[str, torch.Tensor]()

    def open_file(self, path: str | os.PathLike[str], content: bytes | None = None) -> str:
        """Read a file, or its `content`; its name is the last part of its path, with a number if another has it."""
        return self._keep(Path(path).name, READERS[self.input_name](path, self.processor, content))

    def open_given(self, given: Any) -> str:
        """Open what a notebook has: the path of a file, or what is read already."""
        # A PIL image, or samples (N) with their rate as transformers' pipelines and `datasets` have them, {"raw" or
        # "array": …, "sampling_rate": …}.
        if isinstance(given, str | os.PathLike):
            return self.open_file(given)
        if self.reads == "image":
            from PIL import Image

            if not isinstance(given, Image.Image):
                raise RequestError("image", f"is a {type(given).__name__}; expected a path or a PIL image")
            name = Path(getattr(given, "filename", "") or "image").name
            return self._keep(name, pixels_of(given, self.processor))
        samples = given.get("raw", given.get("array")) if isinstance(given, dict) else None
        rate = given.get("sampling_rate") if isinstance(given, dict) else None
        if samples is None or rate is None:
            raise RequestError(
                "audio", f"is a {type(given).__name__}; expected a path, or {{'raw': samples, 'sampling_rate': …}}"
            )
        frames = frames_of(samples_of(samples, 0), rate, self.processor, "the recording")
        return self._keep("recording", frames)

    def _keep(self, name: str, source: torch.Tensor) -> str:
        """Keep a source; its name, which no other has."""
        check_positions(self.model, source, name, most=MOST_PIECES)
        known, number = as_text(name) or "file", 1
        name = known
        while name in self.files and not torch.equal(self.files[name], source):
            number += 1  # answers about a file are kept by its name
            name = f"{known} ({number})"
        self.files[name] = source
        self.files.move_to_end(name)
        while len(self.files) > MOST_FILES:
            self.files.popitem(last=False)
        self.example = self.example if self.example in self.files else name
        return name

    def read_source(self, request: Any) -> dict[str, torch.Tensor]:
        """The file of a request as the encoder reads it: (1, F, M) with its mask, or (1, C, H, W)."""
        if language := getattr(request, "target_lang", ""):
            raise RequestError("target_lang", f"{shown(language)!r} is given: this model has no target languages")
        if not request.text:
            raise RequestError("text", "is empty: open a file")
        if request.text not in self.files:
            known = f"expected one of {', '.join(self.files)}" if self.files else "none is open"
            raise RequestError("text", f"{shown(request.text)!r} is not an open file: {known}")
        batch = batch_of(self.input_name, [self.files[request.text]], has_padding(self.model.config))
        return {name: tensor.to(self.model.device) for name, tensor in batch.items()}

    def source_pieces(self, source: dict[str, torch.Tensor]) -> list[Piece]:
        """A piece for each position of the encoder, with its time or the place of its patch as text."""
        names = picture_of(self.model.config, self.processor, source[self.input_name][0].cpu()).names
        return [Piece(place, name, False, False, 1, 1) for place, name in enumerate(names)]

    def source_key(self, source: dict[str, torch.Tensor]) -> Hashable:
        """What tells this source from others."""
        return source[self.input_name].cpu().numpy().tobytes()


def check_reads_files(subject: Subject) -> FileSubject:
    if not isinstance(subject, FileSubject):
        raise RequestError("model", f"{subject.name} reads text, no files")
    return subject


def open_file(subject: Subject, request: FileRequest) -> FileResult:
    """Open a file that a page sends."""
    reader = check_reads_files(subject)
    try:
        content = base64.b64decode(request.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError("data", "is not base64") from error
    if not request.name or not content:
        raise RequestError("name" if content else "data", "is empty: send a file")
    if len(content) > MOST_BYTES:
        raise RequestError("data", f"has {len(content):,} bytes; expected at most {MOST_BYTES:,}")
    try:
        name = reader.open_file(Path(request.name).name, content)
    except (OSError, ValueError) as error:
        raise RequestError("data", as_text(" ".join(str(error).split()))) from error
    return FileResult(name, [*reader.files])


def source(subject: Subject, request: Request) -> SourceResult:
    """The picture of an opened file."""
    reader = check_reads_files(subject)
    tensors = reader.read_source(request)
    found = picture_of(reader.model.config, reader.processor, tensors[reader.input_name][0].cpu())
    return SourceResult(found.kind, found.values, found.cells, found.names, found.seconds, found.seen)


def diagonal(subject: Subject, request: DiagonalityRequest) -> DiagonalityResult:
    """How diagonal the cross-attention of a layer is, special tokens and blank positions left out."""
    found = subject.forced(request)
    weights = found.attentions("cross")[found.copy.place("cross", request.layer)][0].float()
    rows = [not piece.special for piece in found.predicted]
    columns = [not piece.special for piece in found.source_pieces]
    if isinstance(subject, FileSubject):
        picture = picture_of(subject.model.config, subject.processor, subject.files[request.text])
        columns = [place < picture.used for place in range(len(picture.cells))]
    if not any(rows) or not any(columns):
        raise RequestError("target_ids", "has special tokens alone: their attention has no order")
    shown_weights = torch.cat((weights.mean(dim=0, keepdim=True), weights))[:, rows][:, :, columns]
    measured = diagonality(shown_weights)
    return DiagonalityResult(measured.order.tolist(), measured.off_diagonal.tolist())
