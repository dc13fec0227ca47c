"""The wire format of protocol buffers, for messages of TensorFlow without an API to read them.

A message is a sequence of fields, each a key (number and wire type) and a value:
https://protobuf.dev/programming-guides/encoding/. No TensorFlow here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = "int | bytes"

_FIXED = {1: struct.Struct("<Q"), 5: struct.Struct("<I")}
_VARINT, _LENGTH_DELIMITED = 0, 2


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yields number and value of each field: unsigned integers (see `signed`) or bytes.

    Fixed-width numbers are their bits; texts and inner messages are bytes.
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if kind in _FIXED:
            size = _FIXED[kind].size
        elif kind == _LENGTH_DELIMITED:
            size, position = _varint(message, position)
        else:
            raise ValueError(f"no field has the wire type {kind}")
        chunk = message[position : position + size]
        if len(chunk) != size:
            raise ValueError("a field is cut off")
        position += size
        yield number, _FIXED[kind].unpack(chunk)[0] if kind in _FIXED else chunk


def parts(message: bytes, number: int) -> Iterator[bytes]:
    """Yields the texts, bytes or inner messages of all fields with a number."""
    for found, value in fields(message):
        if found == number and isinstance(value, bytes):
            yield value


def field_of(number: int, value: Value) -> bytes:
    """Encodes a field: a non-negative integer, or bytes."""
    if isinstance(value, int):
        return _encoded(number << 3 | _VARINT) + _encoded(value)
    return _encoded(number << 3 | _LENGTH_DELIMITED) + _encoded(len(value)) + value


def signed(value: int) -> int:
    """An int64 from its unsigned form."""
    return value - (1 << 64) if value >> 63 else value


def double(value: int) -> float:
    """A double from its bits."""
    (number,) = struct.unpack("<d", struct.pack("<Q", value))
    return float(number)


def _encoded(value: int) -> bytes:
    rest = bytearray()
    while value > 0x7F:
        rest.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*rest, value])


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Decodes an integer of seven bits per byte, lowest first; returns it and where it ends."""
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise ValueError("a number is cut off")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
