"""Messages of protocol buffers (protobuf.dev/programming-guides/encoding), read without the library."""

from collections.abc import Iterator


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, seven bits in a byte, lowest first, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than 64 bits")


def read_fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The fields of a message: number, value of an integer (else 0), and bytes of anything else."""
    at = 0
    while at < len(message):
        tag, at = read_number(message, at)
        kind, value, part = tag & 7, 0, b""
        if kind == 0:
            value, at = read_number(message, at)
        elif kind in (1, 2, 5):
            size, at = read_number(message, at) if kind == 2 else (8 if kind == 1 else 4, at)
            part, at = message[at : at + size], at + size
            if len(part) != size:
                raise ValueError("a field is cut off")
        else:
            raise ValueError(f"a field of kind {kind}")
        yield tag >> 3, value, part
