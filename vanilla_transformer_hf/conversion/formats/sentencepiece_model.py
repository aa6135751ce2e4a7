"""
SentencePiece models (`.model`, `.spm`) without the library: the fields of sentencepiece_model.proto that decide how a
text is cut.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from ..key_table import ConversionError
from .files import checked
from .protobuf import read_fields


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


def _piece(message: bytes) -> Piece:
    piece = Piece()
    for number, value, part in read_fields(message):
        if number == 1:
            piece.text = part.decode("utf-8")
        elif number == 2:
            (piece.score,) = struct.unpack("<f", part)
        elif number == 3:
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
        for number, _, part in read_fields(checked(path).read_bytes()):
            if number == 1:
                model.pieces.append(_piece(part))
            elif number == 2:
                trainer = {field: value for field, value, _ in read_fields(part)}
                model.model_type = MODEL_TYPES[trainer.get(3, 1)]
                model.byte_fallback = bool(trainer.get(35, 0))
                model.suffix_whitespace = bool(trainer.get(24, 0))
            elif number == 3:
                for field, value, charsmap in read_fields(part):
                    if field == 2:
                        model.precompiled_charsmap = charsmap
                    elif field in names:
                        setattr(model, names[field], bool(value))
    except (IndexError, ValueError, KeyError, struct.error) as error:
        raise ConversionError(f"{path} is no whole SentencePiece model ({error})") from error
    if not model.pieces:
        raise ConversionError(f"{path} is no SentencePiece model: it has no pieces")
    return model
