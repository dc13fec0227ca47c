"""Check of every record of TFRecord files, several at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import tensorflow as tf

from cnnbench.data import tfrecord
from cnnbench.data.findings import Findings, RecordDefect
from cnnbench.data.imagenet_files import missing_shards
from cnnbench.errors import DataError

_CHUNK = 256

F = TypeVar("F")


def check_records(
    files: Sequence[Path], examine: Callable[[bytes], F], add: Callable[[F], None]
) -> Findings:
    """Checks every record; continues after damaged ones while the framing is intact.

    Missing files are defects too. `examine` returns the facts of a serialized record or raises
    `RecordDefect`, in several threads; `add` is called with the facts of each valid record, in
    order.
    """
    missing = [files[0].parent / name for name in missing_shards(files)]
    found = Findings(defects=[f"{path}: this file is missing" for path in missing])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in files:
            look = partial(_examine, path, examine)
            records = _read(path)
            while chunk := list(itertools.islice(records, _CHUNK)):
                for facts, defect in pool.map(look, chunk):
                    if facts is None:
                        found.defects.append(defect)
                    else:
                        found.records += 1
                        add(facts)
    return found


def _examine(
    path: Path, examine: Callable[[bytes], F], numbered: tuple[int, bytes | DataError]
) -> tuple[F | None, str]:
    number, data = numbered
    if isinstance(data, DataError):
        return None, str(data)
    try:
        return examine(data), ""
    except RecordDefect as defect:
        return None, f"{path}: record {number}: {defect}"


def _read(path: Path) -> Iterator[tuple[int, bytes | DataError]]:
    """Numbers and data of all records; an error in place of damaged data.

    TensorFlow's reader checks checksums quickly, but it stops at the first damage, takes a
    truncated header for the end of the file, and allocates as much memory as a wrong length says.
    It therefore reads only as far as the framing is valid; then our own reader continues.
    """
    sound = 0
    try:
        records = tf.data.TFRecordDataset(str(path)).take(tfrecord.framed_records(path))
        with contextlib.suppress(tf.errors.OpError):
            for data in records.as_numpy_iterator():
                yield sound, data
                sound += 1
        yield from tfrecord.read_on(path, sound)
    except DataError as error:
        yield -1, error
