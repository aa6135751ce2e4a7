"""Messages of protocol buffers: every kind of field, and messages that are cut off."""

import struct

import pytest
from tensorflow_writer import message, varint

from vanilla_transformer_hf.conversion.formats.protobuf import read_fields


def test_every_kind_of_field():
    fixed = varint(3 << 3 | 5) + struct.pack("<f", 0.5) + varint(4 << 3 | 1) + struct.pack("<d", 0.25)
    fields = list(read_fields(message((1, 300), (2, b"text")) + fixed))
    assert fields == [(1, 300, b""), (2, 0, b"text"), (3, 0, struct.pack("<f", 0.5)), (4, 0, struct.pack("<d", 0.25))]


@pytest.mark.parametrize(
    "whole", [message((1, 300)), message((2, b"text")), varint(3 << 3 | 5) + bytes(4), varint(4 << 3 | 1) + bytes(8)]
)
def test_a_field_that_is_cut_off_is_refused(whole):
    for length in range(1, len(whole)):
        with pytest.raises((IndexError, ValueError)):
            list(read_fields(whole[:length]))


def test_a_field_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="a field of kind 3"):
        list(read_fields(varint(1 << 3 | 3)))
