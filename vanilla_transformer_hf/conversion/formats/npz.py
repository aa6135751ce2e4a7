"""Archives of numpy (`.npz`): arrays of plain numbers, read without unpickling."""

import math
import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..source import ConversionError, Tensors
from .safe_load import check_archive


# An archive that another program has compressed may inflate to this many times its size: weights hardly shrink.
GROWTH = 4

_DAMAGED = (ValueError, TypeError, KeyError, OSError, EOFError, RecursionError, MemoryError, struct.error, zlib.error)
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Place(NamedTuple):
    """An array: its member of the archive, the bytes before its numbers, its shape, order and type."""

    member: zipfile.ZipInfo
    start: int
    shape: tuple[int, ...]
    by_columns: bool
    kind: np.dtype


class Arrays(Tensors):
    """The arrays of an archive, read lazily unless they are compressed."""

    def __init__(self, path: Path):
        check_archive(path, GROWTH)
        self.path = path
        self.entries: dict[str, Place] = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                try:
                    self.entries[name] = self._place(archive, member)
                except (*_DAMAGED, SyntaxError, tokenize.TokenError) as error:  # a header is Python
                    raise ConversionError(f"{name} in {path} is not an array of plain numbers: {error}") from error

    @staticmethod
    def _place(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Place:
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            header: Any = _READERS[version](file)
            shape, by_columns, kind = header
            start = file.tell()
        if kind.hasobject:
            raise ValueError("objects")
        if any(not isinstance(size, int) or size < 0 for size in shape) or len(shape) > 8:
            raise ValueError(f"a shape of {str(shape)[:80]}")
        if (needed := math.prod(shape) * kind.itemsize) != member.file_size - start:
            raise ValueError(f"{needed:,} bytes are needed, and there are {member.file_size - start:,}")
        return Place(member, start, shape, by_columns, kind)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name].shape

    def pop(self, name: str) -> torch.Tensor:
        """An array, which is then no longer among the tensors."""
        array = self[name]
        del self.entries[name]
        return array

    def __getitem__(self, name: str) -> torch.Tensor:
        place = self.entries[name]
        order: Any = "F" if place.by_columns else "C"
        try:
            if place.member.compress_type == zipfile.ZIP_STORED and 0 not in place.shape:
                with self.path.open("rb") as file:
                    file.seek(place.member.header_offset + 26)
                    # behind them a name, and what the zip adds to it
                    file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
                    start = file.tell() + place.start
                array: Any = np.memmap(self.path, place.kind, "c", start, place.shape, order)
            else:
                with zipfile.ZipFile(self.path) as archive:
                    data = bytearray(archive.read(place.member)[place.start :])
                array = np.frombuffer(data, place.kind).reshape(place.shape, order=order)
            return torch.from_numpy(array)
        except (ValueError, TypeError, struct.error) as error:  # numbers that torch does not have
            raise ConversionError(f"{name} in {self.path} is not an array of plain numbers: {error}") from error
