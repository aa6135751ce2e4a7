"""SentencePiece models (`.model`, `.spm`) without the library: the fields that determine the segmentation."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..source import ConversionError
from .files import MOST_TOKENS, read_bounded
from .protobuf import read_fields


# SentencePiece.Type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# SentencePiece's default maximum is 16; the trie of a very long piece overflows the stack.
LONGEST_TOKEN = 1_000

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
            if len(piece.text) > LONGEST_TOKEN:
                raise ValueError(f"a piece of {len(piece.text):,} characters")
        elif number == 2:
            (piece.score,) = struct.unpack("<f", part)
            if not math.isfinite(piece.score):
                raise ValueError(f"{piece.text!r} has the score {piece.score}")
        elif number == 3:
            piece.kind = value
    return piece


def check_charsmap(data: bytes):
    """A table of normalization (normalizer.cc), which the tokenizers library follows without looking."""
    # It is the size of a trie, the trie as a double array (darts-clone) of 32-bit units, and texts with a zero behind
    # each. A unit that leads out of the array or of a text makes the library panic.
    if not data:
        return
    size = int.from_bytes(data[:4], "little")
    texts = data[4 + size :]
    if size % 1024 or not size or len(data) < 4 + size:  # blocks of 256 units
        raise ValueError("its table of normalization is cut off")
    texts.decode("utf-8")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    inner = np.flatnonzero(units < 2**31)  # others are values
    targets = inner ^ ((units[inner] >> 10) << ((units[inner] & 512) >> 6))
    if (targets >= len(units)).any():  # one of a block is in the array as all of it are
        raise ValueError("its table of normalization leads nowhere")
    values = units[targets[(units[inner] & 256) != 0]] & (2**31 - 1)
    starts = np.append((np.frombuffer(texts, np.uint8) & 0xC0) != 0x80, True)  # of characters, and the end
    if (values > len(texts)).any() or not starts[values].all():
        raise ValueError("its table of normalization leads into no text")


def read_sentencepiece(path: Path) -> SentencePieceModel:
    model = SentencePieceModel([])
    names = {3: "add_dummy_prefix", 4: "remove_extra_whitespaces", 5: "escape_whitespaces"}
    try:
        for number, _, part in read_fields(read_bounded(path)):
            if number == 1:
                model.pieces.append(_piece(part))
                if len(model.pieces) > MOST_TOKENS:
                    raise ValueError(f"more than {MOST_TOKENS:,} pieces")
            elif number == 2:
                trainer = {field: value for field, value, _ in read_fields(part)}
                model.model_type = MODEL_TYPES[trainer.get(3, 1)]
                model.byte_fallback = bool(trainer.get(35, 0))
                model.suffix_whitespace = bool(trainer.get(24, 0))
            elif number == 3:
                for field, value, charsmap in read_fields(part):
                    if field == 2:
                        model.precompiled_charsmap = charsmap
                        check_charsmap(charsmap)
                    elif field in names:
                        setattr(model, names[field], bool(value))
    except (IndexError, ValueError, KeyError, struct.error) as error:
        raise ConversionError(f"{path} is not a complete SentencePiece model ({error})") from error
    if not model.pieces:
        raise ConversionError(f"{path} is not a SentencePiece model: it has no pieces")
    return model
