"""Reads the framing of TFRecord files without TensorFlow, and finds the TFRecord files of a data
set.

A record consists of the length (uint64, little endian), a masked CRC-32C of the length, the data,
and a masked CRC-32C of the data; see https://www.tensorflow.org/tutorials/load_data/tfrecord. In a
run, TensorFlow reads the records. This module counts records and identifies damaged records without
TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, TypeAlias

from cnnbench.base.urls import local_or_url_path
from cnnbench.data.dataset import SUBSETS
from cnnbench.data.folder import (
    SUBSET_FOLDERS,
    cache_by_file_version,
    converting_read_errors,
    find_unfinished,
    os_error_text,
)
from cnnbench.errors import DataError, FlagError, UsageError

# Framing of TFRecord files: offsets, lengths and checksums of records

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
_OVERHEAD = HEADER_BYTES + _FOOTER.size
# First bytes of compressed files (gzip, and zlib at four levels). TensorFlow can write such files.
_COMPRESSED = (b"\x1f\x8b", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda")
_CASTAGNOLI = 0x82F63B78


class FramingError(DataError):
    """Raised if the framing of a TFRecord file is damaged, so that the named record (numbered from
    0) and all later records are lost.
    """

    def __init__(self, path: Path, record: int, problem: str) -> None:
        refused = "a damaged file is refused, also with --on_bad_record=skip"
        super().__init__(f"{path}: record {record}: {problem}; {refused}")
        self.path = path
        self.record = record


Frame: TypeAlias = tuple[int, int, int]
"""Location of a record: number (from 0), offset of its first byte, and length of its data."""


def locate_records(path: Path) -> Iterator[Frame]:
    """Yields number, offset and length of each record. FramingError if the framing is damaged."""
    with _open_unbuffered(path) as file:
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
    """Counts records without reading their data. Raises the errors of `locate_records`."""
    return sum(1 for _ in locate_records(path))


def read_record_data(path: Path, frame: Frame) -> bytes:
    """Reads the data of a record. DataError if the checksum is wrong or the file cannot be read."""
    record, offset, length = frame
    with _open_unbuffered(path) as file:
        file.seek(offset + HEADER_BYTES)
        data = file.read(length)
        (checksum,) = _FOOTER.unpack(file.read(_FOOTER.size))
    if masked_crc32c(data) != checksum:
        raise DataError(f"{path}: record {record}: its checksum is wrong")
    return data


def read_records_from(path: Path, first: int) -> Iterator[tuple[int, bytes | DataError]]:
    """Yields the number and the data of each record in a file, starting with record number
    ``first``.

    For a wrong checksum, yields the error instead of data. If the framing is damaged, the last item
    is the number of the record and the error.
    """
    try:
        for frame in itertools.islice(locate_records(path), first, None):
            try:
                yield frame[0], read_record_data(path, frame)
            except DataError as error:
                yield frame[0], error
    except FramingError as error:
        yield error.record, error


def count_before_damage(path: Path) -> int:
    """Counts the records before the first damage of the framing. DataError if unreadable."""
    try:
        return count_records(path)
    except FramingError as error:
        return error.record


def read_record(path: Path, record: int) -> bytes:
    """Reads the data of record number ``record``. DataError if the record is missing or damaged."""
    for frame in locate_records(path):
        if frame[0] == record:
            return read_record_data(path, frame)
    raise DataError(f"{path}: record {record}: there is no such record")


def find_defect_at(path: Path, offset: int) -> DataError | None:
    """Finds the defect of the record whose header or data begins at ``offset`` in a file; None if
    the record is intact.

    TensorFlow's error messages contain such an offset, but not the name of the file.
    """
    try:
        for frame in locate_records(path):
            _, begin, _ = frame
            if offset in (begin, begin + HEADER_BYTES):
                read_record_data(path, frame)
            if begin >= offset:
                return None
    except DataError as error:
        return error
    return None


def masked_crc32c(data: bytes) -> int:
    """Computes the checksum that TFRecord files use: a CRC-32C, rotated, plus a constant.

    This takes about 100 ns per byte, which is fast enough for headers and for single records.
    """
    crc = 0xFFFFFFFF
    table = _crc_table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _crc_table() -> tuple[int, ...]:
    def crc_table_entry(value: int) -> int:
        for _ in range(8):
            value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
        return value

    return tuple(crc_table_entry(value) for value in range(256))


@contextlib.contextmanager
def _open_unbuffered(path: Path) -> Iterator[BinaryIO]:
    try:
        # With `buffering=0`, Python reads only the 12 bytes of a header instead of 8 KiB.
        with path.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise DataError(f"{path}: {os_error_text(error)}") from error


# TFRecord files of a subset, and their numbers of examples (without TensorFlow)

_SHARD = re.compile(
    r"((?:[a-z]+-)?(?:train|validation))-(\d+)-of-(\d+)((?:\.tfrecords?)?(?:\.gz)?)"
)
# Files that are often next to shards, but contain no examples: indexes (of DALI, for example),
# checksums and backups
_COMPANION = re.compile(r".*(~|\.(idx|index|crc\w*|md5|sha\d+|txt|json))")

PUBLISHED_EXAMPLES = {"train": 1_281_167, "validation": 50_000}
# The published ImageNet always has these numbers of files, so its examples need not be counted.
_PUBLISHED_FILES = {"train": 1024, "validation": 128}

cached_record_count = cache_by_file_version(count_records)


def find_files(data_dir: str, subset: str, prefix: str = "") -> list[Path]:
    """Finds the files (shards) ``<prefix><subset>-i-of-n`` of a subset, in order. FlagError if
    there are none.

    Searches the directory itself, then its subfolders for the subset (`SUBSET_FOLDERS`).
    """
    with converting_read_errors(data_dir):
        shards = _find_shards(local_or_url_path(data_dir), subset, prefix)
        others = (
            []
            if shards
            else [n for n in SUBSETS if _find_shards(local_or_url_path(data_dir), n, prefix)]
        )
        if shards and (unfinished := find_unfinished(shards[0].parent)):
            raise OSError(f"its data set was not finished ({unfinished}); make it again")
    if shards:
        return shards
    hint = f"; it contains only {others[0]} files" if others else ""
    raise FlagError(
        "data_dir", data_dir, f"contains no files {prefix}{subset}-*-of-* (* is a number){hint}"
    )


def _find_shards(data_dir: Path, subset: str, prefix: str) -> list[Path]:
    for folder in (data_dir, *(data_dir / name for name in SUBSET_FOLDERS[subset])):
        paths = _glob(folder, f"{prefix}{subset}-*-of-*") if folder.is_dir() else []
        names = {path.name for path in paths if _SHARD.fullmatch(path.name)}
        # `gunzip --keep` leaves NAME.gz next to NAME. Both contain the same examples, so NAME.gz is
        # ignored.
        if shards := [
            p for p in paths if p.name in names and (not p.suffix or p.stem not in names)
        ]:
            return shards
    return []


def _glob(folder: Path, pattern: str) -> list[Path]:
    # For an unreadable folder, this raises an error; Path.glob would return nothing.
    return sorted(p for p in folder.iterdir() if fnmatchcase(p.name, pattern) and p.is_file())


def find_unread(shards: Sequence[Path]) -> list[Path]:
    """Finds files that are not read although their names resemble the shards of a subset. Indexes,
    checksums and backups are ignored.
    """
    match = _SHARD.fullmatch(shards[0].name)
    alike = _glob(shards[0].parent, f"{match[1]}-*-of-*") if match else []
    return [p for p in alike if p not in set(shards) and not _COMPANION.fullmatch(p.name)]


def count_examples(files: Sequence[Path], subset: str) -> int:
    """Counts the examples in the files of a subset. DataError if a file is truncated or unreadable.

    The published ImageNet is not counted, because the record headers are distributed over 150 GB.
    The published ImageNet is recognised by the number of files and the number of records in the
    first file.
    """
    return sum(count_records_by_file(files, subset))


def count_records_by_file(files: Sequence[Path], subset: str) -> list[int]:
    """Returns the number of records in each file of a subset. For the published ImageNet, only the
    first file is counted.
    """
    number = len(files)
    if number == _PUBLISHED_FILES[subset]:
        published = PUBLISHED_EXAMPLES[subset]
        if abs(cached_record_count(files[0]) - published / number) <= 1:
            return [published * (i + 1) // number - published * i // number for i in range(number)]
    return [cached_record_count(path) for path in files]


def missing_shard_names(files: Sequence[Path]) -> list[str]:
    """Returns the names of missing shards, as the numbers ``-i-of-n`` of the others say."""
    matches = [match for path in files if (match := _SHARD.fullmatch(path.name))]
    present = {match[0] for match in matches}
    promised = {
        f"{match[1]}-{i:0{len(match[2])}}-of-{match[3]}{match[4]}"
        for match in matches
        for i in range(int(match[3]))
    }
    return sorted(promised - present)
