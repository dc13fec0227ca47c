"""Framing of TFRecord files: offsets and checksums of records.

A record is its length (uint64, little endian), a masked CRC-32C of the length, the data, and a
masked CRC-32C of the data; see https://www.tensorflow.org/tutorials/load_data/tfrecord. TensorFlow
reads the records of a run; this module, without TensorFlow, counts them and names the damaged one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

from cnnbench.data.folder import reason
from cnnbench.errors import DataError, UsageError

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
_OVERHEAD = HEADER_BYTES + _FOOTER.size
# First bytes of gzip and of zlib at its four levels, as tf.io.TFRecordOptions writes them.
_COMPRESSED = (b"\x1f\x8b", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda")
_CASTAGNOLI = 0x82F63B78


class FramingError(DataError):
    """Damaged framing of a file; nothing after this record (counted from 0) can be read."""

    def __init__(self, path: Path, record: int, problem: str) -> None:
        refused = "a damaged file is refused, also with --on_bad_record=skip"
        super().__init__(f"{path}: record {record}: {problem}; {refused}")
        self.path = path
        self.record = record


Frame: TypeAlias = tuple[int, int, int]
"""Location of a record: number from 0, offset of its first byte, length of its data."""


def frames(path: Path) -> Iterator[Frame]:
    """Iterates over the records of a file without reading their data; FramingError for damage."""
    with _open(path) as file:
        size = path.stat().st_size
        offset = record = 0
        while offset < size:
            file.seek(offset)
            header = file.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES:
                raise FramingError(path, record, "truncated within its header")
            length, checksum = _HEADER.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                if not record and header.startswith(_COMPRESSED):
                    raise UsageError(
                        f"{path}: is compressed (gzip or zlib); decompress the data set"
                    )
                raise FramingError(path, record, "the checksum of its length is wrong")
            if offset + _OVERHEAD + length > size:
                missing = offset + _OVERHEAD + length - size
                raise FramingError(path, record, f"truncated, {missing} bytes are missing")
            yield record, offset, length
            offset += _OVERHEAD + length
            record += 1


def count_records(path: Path) -> int:
    """Number of records in a file, without reading their data; raises as `frames`."""
    return sum(1 for _ in frames(path))


def read_data(path: Path, frame: Frame) -> bytes:
    """The data of a record; DataError if its checksum is wrong or it cannot be read."""
    record, offset, length = frame
    with _open(path) as file:
        file.seek(offset + HEADER_BYTES)
        data = file.read(length)
        (checksum,) = _FOOTER.unpack(file.read(_FOOTER.size))
    if masked_crc32c(data) != checksum:
        raise DataError(f"{path}: record {record}: its checksum is wrong")
    return data


def read_on(path: Path, first: int) -> Iterator[tuple[int, bytes | DataError]]:
    """Numbers and data of the records from number ``first`` on, including damaged ones.

    Yields the error for a wrong checksum. Broken framing ends the iteration with its number and
    error.
    """
    try:
        for frame in itertools.islice(frames(path), first, None):
            try:
                yield frame[0], read_data(path, frame)
            except DataError as error:
                yield frame[0], error
    except FramingError as error:
        yield error.record, error


def framed_records(path: Path) -> int:
    """Number of records before the first framing error; DataError if the file cannot be read."""
    try:
        return count_records(path)
    except FramingError as error:
        return error.record


def find_record(path: Path, record: int) -> bytes:
    """The data of record number ``record``; DataError if it is missing or damaged."""
    for frame in frames(path):
        if frame[0] == record:
            return read_data(path, frame)
    raise DataError(f"{path}: record {record}: there is no such record")


def defect_at(path: Path, offset: int) -> DataError | None:
    """Defect of the record whose first byte or data is at ``offset``, or None.

    TensorFlow reports damage with such an offset, but without the file.
    """
    try:
        for frame in frames(path):
            _, begin, _ = frame
            if offset in (begin, begin + HEADER_BYTES):
                read_data(path, frame)
            if begin >= offset:
                return None
    except DataError as error:
        return error
    return None


def masked_crc32c(data: bytes) -> int:
    """The checksum of TFRecord files: a CRC-32C, rotated and shifted.

    About a hundred nanoseconds per byte: for headers and for single records.
    """
    crc = 0xFFFFFFFF
    table = _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
        return value

    return tuple(entry(value) for value in range(256))


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        # Unbuffered: a buffer would read 8 KiB around every 12-byte header.
        with path.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise DataError(f"{path}: {reason(error)}") from error
