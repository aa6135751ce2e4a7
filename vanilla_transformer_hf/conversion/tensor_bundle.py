"""
TensorFlow's checkpoints of the second format, PREFIX.index and PREFIX.data-*-of-*, read without TensorFlow.

The index is a sorted table of LevelDB's kind (github.com/google/leveldb, doc/table_format.md; in TensorFlow
core/lib/io/format.cc) from tensor names to `BundleEntryProto` messages (core/protobuf/tensor_bundle.proto), which say
where in the data files a tensor lies. Every block and every tensor has a CRC-32C; all that is used are checked.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from .mapping import ConversionError


MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER = 48  # two block handles, zeros up to 40 bytes, and the magic number

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
    """Where a tensor lies; the fields of BundleEntryProto."""

    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    in_slices: bool


def masked_checksum(data: bytes | np.ndarray) -> int:
    """
    CRC-32C as it is stored: rotated and shifted, so that checksums of checksums stay useful (LevelDB, util/crc32c.h).

    Raises:
        ConversionError: google-crc32c, which computes it, is not installed.
    """
    try:
        import google_crc32c
    except ImportError as error:
        raise ConversionError("TensorFlow's checkpoints need google-crc32c: pip install google-crc32c") from error
    crc, step = 0, 1 << 20
    for start in range(0, len(data), step):
        crc = google_crc32c.extend(crc, bytes(data[start : start + step]))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, seven bits in a byte, lowest first, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _block(file: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block, whose keys leave out what they share with the one before."""
    data, kind, stored = file[offset : offset + size], file[offset + size], file[offset + size + 1 :][:4]
    if kind != 0:
        raise ValueError("it is compressed, which TensorFlow's own are not")
    if struct.unpack("<I", stored)[0] != masked_checksum(data + b"\0"):
        raise ValueError("a checksum is wrong")
    end = size - 4 * (1 + struct.unpack("<I", data[-4:])[0])  # places to start reading at, and their number
    key, position = b"", 0
    while position < end:
        shared, position = _varint(data, position)
        unshared, position = _varint(data, position)
        length, position = _varint(data, position)
        key = key[:shared] + data[position : position + unshared]
        position += unshared + length
        yield key, data[position - length : position]


def _handle(data: bytes, position: int = 0) -> tuple[int, int, int]:
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return offset, size, position


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The fields of a protobuf message: number, value of a number, bytes of anything else."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        if tag & 7 == 0:
            value, position = _varint(message, position)
            yield tag >> 3, value, b""
        else:
            length, position = {1: (8, position), 5: (4, position)}.get(tag & 7) or _varint(message, position)
            part, position = message[position : position + length], position + length
            yield tag >> 3, int.from_bytes(part, "little") if tag & 7 in (1, 5) else 0, part


def _entry(message: bytes) -> Entry:
    numbers, in_slices = dict.fromkeys(range(8), 0), False
    shape: tuple[int, ...] = ()
    for number, value, part in _fields(message):
        if number == 2:  # TensorShapeProto, its field 2 a dimension, whose field 1 is the size
            shape = tuple(_first(dim) for of_shape, _, dim in _fields(part) if of_shape == 2)
        in_slices |= number == 7
        numbers[number] = value
    return Entry(numbers[1], shape, numbers[3], numbers[4], numbers[5], numbers[6], in_slices)


def _first(message: bytes) -> int:
    """The number in field 1."""
    return next((value for number, value, _ in _fields(message) if number == 1), 0)


class TensorBundle(Mapping):
    """
    The tensors of a checkpoint PREFIX, which stay in the file until they are used; asked for, each is compared with
    its checksum.

    Raises:
        ConversionError: The index or a tensor is damaged, or of a type that is not read.
    """

    def __init__(self, prefix: Path):
        self.prefix = prefix
        index = Path(f"{prefix}.index")
        try:
            table = self._read_table(index.read_bytes())
            header = table.pop("")
            self.shards = _first(header)
            if any(number == 2 and value for number, value, _ in _fields(header)):
                raise ValueError("its numbers are big-endian")
            self.entries = {name: _entry(message) for name, message in table.items()}
            if any(entry.shard >= self.shards for entry in self.entries.values()):
                raise ValueError("it names more data files than there are")
        except (ValueError, IndexError, KeyError, struct.error) as error:
            raise ConversionError(f"{index} is no whole checkpoint index: {error}; copy it again") from error

    @staticmethod
    def _read_table(file: bytes) -> dict[str, bytes]:
        if file[-8:] != MAGIC:
            raise ValueError("it does not end as one")
        _, _, position = _handle(file, len(file) - FOOTER)  # the block of blocks about blocks is not needed
        offset, size, _ = _handle(file, position)
        blocks = [_handle(handle) for _, handle in _block(file, offset, size)]
        return {
            key.decode(errors="backslashreplace"): value
            for offset, size, _ in blocks
            for key, value in _block(file, offset, size)
        }

    def files(self) -> tuple[Path, ...]:
        """The files of the checkpoint."""
        parts = (f"{self.prefix}.data-{shard:05d}-of-{self.shards:05d}" for shard in range(self.shards))
        return (Path(f"{self.prefix}.index"), *map(Path, parts))

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self.entries[name]
        if entry.in_slices or entry.kind not in TYPES:
            what = "is stored in slices" if entry.in_slices else f"has the type number {entry.kind}"
            raise ConversionError(f"{self.prefix}: {name} {what}, which is not read")
        path = self.files()[1 + entry.shard]
        if not path.is_file():
            raise ConversionError(f"{path} is missing")
        if not entry.size:
            return torch.zeros(entry.shape, dtype=TYPES[entry.kind])
        whole = path.stat().st_size >= entry.offset + entry.size
        data = np.memmap(path, np.uint8, "c", entry.offset, entry.size) if whole else np.zeros(0, np.uint8)
        if not whole or masked_checksum(data) != entry.checksum:
            raise ConversionError(f"{path} is damaged: the checksum of {name} is wrong; copy it again")
        return torch.from_numpy(data).view(TYPES[entry.kind]).reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)
