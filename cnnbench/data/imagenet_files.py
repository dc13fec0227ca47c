"""TFRecord files of a subset, and their numbers of examples. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from cnnbench.data import tfrecord
from cnnbench.data.dataset import SUBSETS
from cnnbench.data.folder import UNFINISHED, once_per_content, readable
from cnnbench.errors import FlagError

SHARD_NAME = re.compile(r"((?:[a-z]+-)?(?:train|validation))-(\d+)-of-(\d+)")

PUBLISHED_EXAMPLES = {"train": 1_281_167, "validation": 50_000}
# The number of files the published ImageNet is always cut into.
_PUBLISHED_FILES = {"train": 1024, "validation": 128}

count_records = once_per_content(tfrecord.count_records)


def find_files(data_dir: str, subset: str, prefix: str = "") -> list[Path]:
    """The files ``<prefix><subset>-*-of-*`` of a directory, in order; FlagError if none."""
    with readable(data_dir):
        # Not glob, which takes a folder that cannot be read for an empty one.
        entries = sorted(Path(data_dir).iterdir())
        unfinished = [path for path in entries if path.name.startswith(UNFINISHED)]
        partial = any(path.is_dir() and any(path.iterdir()) for path in unfinished)
        paths = [path for path in entries if path.is_file()]
    found = [path for path in paths if _is_of(path, prefix + subset)]
    if found and partial:
        problem = f"its data set was not finished ({unfinished[0].name}); make it again"
        raise FlagError("data_dir", data_dir, problem)
    if found:
        return found
    others = [name for name in SUBSETS if any(_is_of(path, prefix + name) for path in paths)]
    hint = f"; it has {others[0]} files only" if others else ""
    raise FlagError("data_dir", data_dir, f"holds no files {prefix}{subset}-*-of-*{hint}")


def _is_of(path: Path, start: str) -> bool:
    return fnmatchcase(path.name, f"{start}-*-of-*")


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
    matches = [match for path in files if (match := SHARD_NAME.fullmatch(path.name))]
    present = {match[0] for match in matches}
    promised = {
        f"{match[1]}-{i:0{len(match[2])}}-of-{match[3]}"
        for match in matches
        for i in range(int(match[3]))
    }
    return sorted(promised - present)
