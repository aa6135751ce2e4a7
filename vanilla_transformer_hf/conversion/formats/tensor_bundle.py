"""
TensorFlow's checkpoints of the second format, PREFIX.index and PREFIX.data-*-of-*, read without TensorFlow.

The index is a sorted table of LevelDB's kind (github.com/google/leveldb, doc/table_format.md; in TensorFlow
core/lib/io/format.cc) from tensor names to `BundleEntryProto` messages (core/protobuf/tensor_bundle.proto), which say
where in the data files a tensor lies. Every block and every tensor has a CRC-32C; all that is used are checked.
"""

import glob
import itertools
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ...common import settings
from ..source import ConversionError, Tensors
from .files import checked
from .protobuf import read_fields, read_number


MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER = 48  # two block handles, zeros up to 40 bytes, and the magic number

LONGEST_NAME = 1_000  # bytes; names leave out what they share with the one before
MOST_NAMES = 50_000

# core/framework/types.proto
TYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    4: torch.uint8,
    6: torch.int8,
    9: torch.int64,
    10: torch.bool,
    14: torch.bfloat16,
    19: torch.float16,
}


class Entry(NamedTuple):
    """The location of a tensor; the fields of BundleEntryProto."""

    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    in_slices: bool


def masked_checksum(data: bytes | np.ndarray) -> int:
    """CRC-32C as it is stored, rotated and shifted: checksums of checksums stay useful (LevelDB, util/crc32c.h)."""
    try:
        import google_crc32c
    except ImportError as error:
        raise ConversionError("TensorFlow's checkpoints need google-crc32c: pip install google-crc32c") from error
    crc, step = 0, 1 << 20
    for start in range(0, len(data), step):
        crc = google_crc32c.extend(crc, bytes(data[start : start + step]))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _block(file: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block, whose keys leave out what they share with the one before."""
    data, kind, stored = file[offset : offset + size], file[offset + size], file[offset + size + 1 : offset + size + 5]
    if kind != 0:
        raise ValueError("it is compressed, which TensorFlow's own are not")
    if struct.unpack("<I", stored)[0] != masked_checksum(data + b"\0"):
        raise ValueError("a checksum is wrong")
    end = size - 4 * (1 + struct.unpack("<I", data[-4:])[0])  # places to start reading at, and their number
    key, position = b"", 0
    while position < end:
        shared, position = read_number(data, position)
        unshared, position = read_number(data, position)
        length, position = read_number(data, position)
        key = key[:shared] + data[position : position + unshared]
        if len(key) > LONGEST_NAME:
            raise ValueError(f"a name of {len(key):,} bytes")
        position += unshared + length
        yield key, data[position - length : position]


def _handle(data: bytes, position: int = 0) -> tuple[int, int, int]:
    offset, position = read_number(data, position)
    size, position = read_number(data, position)
    return offset, size, position


def _entry(message: bytes) -> Entry:
    fields = list(read_fields(message))
    numbers = dict.fromkeys(range(8), 0) | {number: value for number, value, _ in fields}
    parts = {number: part for number, _, part in fields}
    # TensorShapeProto, its field 2 a dimension, whose field 1 is the size
    shape = tuple(_first(dimension) for number, _, dimension in read_fields(parts.get(2, b"")) if number == 2)
    checksum = int.from_bytes(parts.get(6, b""), "little")
    return Entry(numbers[1], shape, numbers[3], numbers[4], numbers[5], checksum, 7 in parts)


def _first(message: bytes) -> int:
    """The number in field 1."""
    return next((value for number, value, _ in read_fields(message) if number == 1), 0)


class TensorBundle(Tensors):
    """The tensors of a checkpoint PREFIX, read lazily; each is compared with its checksum."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        index = Path(f"{prefix}.index")
        try:
            table = self._read_table(settings.read_bounded(checked(index)))
            header = table.pop("")
            self.shards = _first(header)
            if any(number == 2 and value for number, value, _ in read_fields(header)):
                raise ValueError("its numbers are big-endian")
            self.entries = {name: _entry(message) for name, message in table.items()}
            there = sum(1 for _ in prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"))
            if not 0 < self.shards <= max(there, len(self.entries)):
                raise ValueError(f"it names {self.shards:,} data files, and there are {there}")
            if any(entry.shard >= self.shards for entry in self.entries.values()):
                raise ValueError("it names more data files than there are")
            for name, entry in self.entries.items():
                if min((*entry.shape, entry.shard, entry.offset, entry.size), default=0) < 0 or len(entry.shape) > 8:
                    raise ValueError(f"{name} has the shape {entry.shape} in {entry.size:,} bytes")
                needed = math.prod(entry.shape) * TYPES[entry.kind].itemsize if entry.kind in TYPES else 0
                if entry.kind in TYPES and not entry.in_slices and needed != entry.size:
                    claim = f"the shape {entry.shape}, {needed:,} bytes"
                    raise ValueError(f"{name} claims {claim}, and has {entry.size:,}")
        except (ValueError, IndexError, KeyError, struct.error) as error:
            raise ConversionError(f"{index} is not a complete checkpoint index: {error}; copy it again") from error

    @staticmethod
    def _read_table(file: bytes) -> dict[str, bytes]:
        if file[-8:] != MAGIC:
            raise ValueError("it does not end as one")
        _, _, position = _handle(file, len(file) - FOOTER)  # the block of blocks about blocks is not needed
        offset, size, _ = _handle(file, position)
        blocks = [_handle(handle) for _, handle in _block(file, offset, size)]
        if sum(size for _, size, _ in blocks) > len(file):
            raise ValueError("its blocks lie over each other")
        pairs = (pair for offset, size, _ in blocks for pair in _block(file, offset, size))
        table = {key.decode(errors="backslashreplace"): value for key, value in itertools.islice(pairs, MOST_NAMES)}
        if next(pairs, None) is not None:
            raise ValueError(f"it has more than {MOST_NAMES:,} names")
        return table

    def files(self) -> tuple[Path, ...]:
        """The files of the checkpoint."""
        parts = (f"{self.prefix}.data-{shard:05d}-of-{self.shards:05d}" for shard in range(self.shards))
        return (Path(f"{self.prefix}.index"), *map(Path, parts))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name].shape

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self.entries[name]
        if entry.in_slices or entry.kind not in TYPES:
            what = "is stored in slices" if entry.in_slices else f"has the type number {entry.kind}"
            raise ConversionError(f"{self.prefix}: {name} {what}, which is not read")
        path = self.files()[1 + entry.shard]
        if not path.is_file():
            raise ConversionError(f"{path} is missing")
        checked(path)
        if not entry.size:
            return torch.zeros(entry.shape, dtype=TYPES[entry.kind])
        whole = path.stat().st_size >= entry.offset + entry.size
        data = np.memmap(path, np.uint8, "c", entry.offset, entry.size) if whole else np.zeros(0, np.uint8)
        if not whole or masked_checksum(data) != entry.checksum:
            raise ConversionError(f"{path} is damaged: the checksum of {name} is wrong; copy it again")
        return torch.from_numpy(data).view(TYPES[entry.kind]).reshape(entry.shape)
