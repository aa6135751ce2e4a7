"""
SentencePiece models (`.model`, `.spm`) without the library: the fields of sentencepiece_model.proto that decide how a
text is cut.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .mapping import ConversionError


# SentencePiece.Type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# TrainerSpec.ModelType
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass
class Piece:
    """A piece of the model, its log probability (unigram) or minus its rank (bpe), and its kind."""

    text: str = ""
    score: float = 0.0
    kind: int = NORMAL


@dataclass
class SentencePieceModel:
    """What decides how a text is cut."""

    pieces: list[Piece]
    model_type: str = "unigram"
    byte_fallback: bool = False
    suffix_whitespace: bool = False
    precompiled_charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer's message: number, and an integer or bytes."""
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, at = _number(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at : at + size], at + size
        elif kind == 2:
            size, at = _number(data, at)
            value, at = data[at : at + size], at + size
            if len(value) != size:
                raise ValueError("a field is cut off")
        else:
            raise ValueError(f"a field of kind {kind}")
        yield tag >> 3, value


def _piece(data: bytes) -> Piece:
    piece = Piece()
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            piece.text = value.decode("utf-8")
        elif number == 2 and isinstance(value, bytes):
            (piece.score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            piece.kind = value
    return piece


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """
    Raises:
        ConversionError: The file is no SentencePiece model, is cut off, or holds none of its kinds of model.
    """
    model = SentencePieceModel([])
    names = {3: "add_dummy_prefix", 4: "remove_extra_whitespaces", 5: "escape_whitespaces"}
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1 and isinstance(value, bytes):
                model.pieces.append(_piece(value))
            elif number == 2 and isinstance(value, bytes):
                trainer = dict(_fields(value))
                model.model_type = MODEL_TYPES[int(trainer.get(3, 1))]
                model.byte_fallback = bool(trainer.get(35, 0))
                model.suffix_whitespace = bool(trainer.get(24, 0))
            elif number == 3 and isinstance(value, bytes):
                normalizer = dict(_fields(value))
                model.precompiled_charsmap = bytes(normalizer.get(2, b""))  # type: ignore[arg-type]
                for field, name in names.items():
                    setattr(model, name, bool(normalizer.get(field, 1)))
    except (IndexError, ValueError, KeyError, struct.error, TypeError) as error:
        raise ConversionError(f"{path} is no whole SentencePiece model ({error})") from error
    if not model.pieces:
        raise ConversionError(f"{path} is no SentencePiece model: it has no pieces")
    return model
