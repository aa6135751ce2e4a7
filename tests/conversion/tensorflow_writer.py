"""
A writer of TensorFlow's checkpoints for the tests, after the format's documents: the index in blocks of a few entries,
with shared beginnings of keys, the tensors over two data files.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import google_crc32c
import torch


KINDS = {torch.float32: 1, torch.int32: 3, torch.int64: 9}


def checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protobuf message; zeros are left out, as proto3 does."""
    out = b""
    for number, value in fields:
        if isinstance(value, bytes):
            out += varint(number << 3 | 2) + varint(len(value)) + value
        elif value:
            out += varint(number << 3) + varint(value)
    return out


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    out, last = b"", b""
    for key, value in entries:
        shared = next((i for i, (a, b) in enumerate(zip(key, last)) if a != b), min(len(key), len(last)))
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return out + struct.pack("<II", 0, 1)  # one place to start reading at


def write_checkpoint(prefix: Path, tensors: Mapping[str, torch.Tensor], entries_in_block: int = 7):
    """PREFIX.index and two PREFIX.data files with the tensors, every second one in the other."""
    shards = [bytearray(), bytearray()]
    table = [(b"", message((1, len(shards)), (3, message((1, 1)))))]
    for index, (name, tensor) in enumerate(sorted(tensors.items())):
        data, shard = tensor.contiguous().numpy().tobytes(), shards[index % 2]
        shape = b"".join(message((2, message((1, size)))) for size in tensor.shape)
        fields = ((1, KINDS[tensor.dtype]), (2, shape), (3, index % 2), (4, len(shard)), (5, len(data)))
        table.append((name.encode(), message(*fields) + varint(6 << 3 | 5) + checksum(data)))
        shard += data
    file, handles = b"", []

    def add(entries: list[tuple[bytes, bytes]]) -> bytes:
        nonlocal file
        content = block(entries)
        handle = varint(len(file)) + varint(len(content))
        file += content + b"\0" + checksum(content + b"\0")
        return handle

    for start in range(0, len(table), entries_in_block):
        part = table[start : start + entries_in_block]
        handles.append((part[-1][0], add(part)))
    footer = add([]) + add(handles)
    file += footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    Path(f"{prefix}.index").write_bytes(file)
    for index, shard in enumerate(shards):
        Path(f"{prefix}.data-{index:05d}-of-{len(shards):05d}").write_bytes(shard)
