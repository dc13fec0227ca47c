"""TFRecord files of a subset, and their numbers of examples. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from cnnbench.base.urls import place
from cnnbench.data import tfrecord
from cnnbench.data.dataset import SUBSETS
from cnnbench.data.folder import SUBSET_FOLDERS, once_per_content, readable, unfinished_in
from cnnbench.errors import FlagError

_SHARD = re.compile(
    r"((?:[a-z]+-)?(?:train|validation))-(\d+)-of-(\d+)((?:\.tfrecords?)?(?:\.gz)?)"
)
# Indexes (of DALI, for example), checksums and backups lie beside shards as a matter of course.
_COMPANION = re.compile(r".*(~|\.(idx|index|crc\w*|md5|sha\d+|txt|json))")

PUBLISHED_EXAMPLES = {"train": 1_281_167, "validation": 50_000}
# The number of files the published ImageNet is always cut into.
_PUBLISHED_FILES = {"train": 1024, "validation": 128}

count_records = once_per_content(tfrecord.count_records)


def find_files(data_dir: str, subset: str, prefix: str = "") -> list[Path]:
    """The shards ``<prefix><subset>-i-of-n`` of a subset, in order; FlagError if there are none.

    They are in the directory itself or else in its folder of the subset (`SUBSET_FOLDERS`).
    """
    with readable(data_dir):
        shards = _shards(place(data_dir), subset, prefix)
        others = [] if shards else [n for n in SUBSETS if _shards(place(data_dir), n, prefix)]
        if shards and (unfinished := unfinished_in(shards[0].parent)):
            raise OSError(f"its data set was not finished ({unfinished}); make it again")
    if shards:
        return shards
    hint = f"; it has {others[0]} files only" if others else ""
    raise FlagError(
        "data_dir", data_dir, f"holds no files {prefix}{subset}-*-of-* (* is a number){hint}"
    )


def _shards(data_dir: Path, subset: str, prefix: str) -> list[Path]:
    for folder in (data_dir, *(data_dir / name for name in SUBSET_FOLDERS[subset])):
        paths = _named(folder, f"{prefix}{subset}-*-of-*") if folder.is_dir() else []
        names = {path.name for path in paths if _SHARD.fullmatch(path.name)}
        # Of a shard and the same with another suffix, as ``gunzip --keep`` leaves them, the former.
        if shards := [
            p for p in paths if p.name in names and (not p.suffix or p.stem not in names)
        ]:
            return shards
    return []


def _named(folder: Path, pattern: str) -> list[Path]:
    # Not glob, which takes a folder that cannot be read for an empty one.
    return sorted(p for p in folder.iterdir() if fnmatchcase(p.name, pattern) and p.is_file())


def left_out(shards: Sequence[Path]) -> list[Path]:
    """Files beside the shards of a subset with names like theirs, except for their companions."""
    match = _SHARD.fullmatch(shards[0].name)
    alike = _named(shards[0].parent, f"{match[1]}-*-of-*") if match else []
    return [p for p in alike if p not in set(shards) and not _COMPANION.fullmatch(p.name)]


def count_examples(files: Sequence[Path], subset: str) -> int:
    """Examples in the files of a subset; DataError if one is truncated or cannot be opened.

    The published ImageNet, recognised by the number of its files and the size of the first, is not
    counted: its record headers are spread over 150 GB.
    """
    return sum(records_by_file(files, subset))


def records_by_file(files: Sequence[Path], subset: str) -> list[int]:
    """Records in each file of a subset; for the published ImageNet equal shares."""
    number = len(files)
    if number == _PUBLISHED_FILES[subset]:
        published = PUBLISHED_EXAMPLES[subset]
        if abs(count_records(files[0]) - published / number) <= 1:
            return [published * (i + 1) // number - published * i // number for i in range(number)]
    return [count_records(path) for path in files]


def missing_shards(files: Sequence[Path]) -> list[str]:
    """Names of missing files according to the numbering ``-i-of-n``."""
    matches = [match for path in files if (match := _SHARD.fullmatch(path.name))]
    present = {match[0] for match in matches}
    promised = {
        f"{match[1]}-{i:0{len(match[2])}}-of-{match[3]}{match[4]}"
        for match in matches
        for i in range(int(match[3]))
    }
    return sorted(promised - present)
