"""Looking at every record of a data set."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tensorflow as tf

from cnnbench.data import cifar10_files, imagenet_files, imagenet_records, tfrecord
from cnnbench.data.dataset import Dataset
from cnnbench.data.imagenet_records import RecordDefect, RecordFacts
from cnnbench.data.open import CIFAR10, IMAGENET, find_subsets
from cnnbench.errors import DataError

_CHUNK = 256


@dataclass
class SubsetReport:
    """What one subset holds.

    Attributes:
      subset: "train" or "validation".
      files: their number.
      file_bytes: of all files together.
      records: sound ones.
      labels: sound records per label.
      heights: sound records per image height in pixels.
      widths: sound records per image width in pixels.
      image_bytes: of all images as stored.
      boxes: of all sound records together.
      defects: one line each, naming file and record.
    """

    subset: str
    files: int = 0
    file_bytes: int = 0
    records: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    heights: Counter[int] = field(default_factory=Counter)
    widths: Counter[int] = field(default_factory=Counter)
    image_bytes: int = 0
    boxes: int = 0
    defects: list[str] = field(default_factory=list)

    def add(self, facts: RecordFacts) -> None:
        """Counts a sound record."""
        self.records += 1
        self.labels[facts.label] += 1
        self.heights[facts.height] += 1
        self.widths[facts.width] += 1
        self.image_bytes += facts.jpeg_bytes
        self.boxes += facts.boxes

    def lines(self) -> list[str]:
        """The statistics for people, one line each."""
        head = (
            f"{self.subset}: {self.records} sound records in {self.files} files, "
            f"{self.file_bytes:,} bytes"
        )
        if not self.records:
            return [head]
        per_class = self.labels.values()
        return [
            head,
            f"  labels: {len(self.labels)} different from {min(self.labels)} to "
            f"{max(self.labels)}, {min(per_class)} to {max(per_class)} records each",
            f"  images: {min(self.heights)} to {max(self.heights)} high, {min(self.widths)} to "
            f"{max(self.widths)} wide, {self.image_bytes / self.records:,.0f} bytes on average, "
            f"{self.boxes} boxes",
        ]


def check(data_dir: str, dataset: Dataset, num_classes: int) -> list[SubsetReport]:
    """Reads every record of the subsets that are there.

    Args:
      data_dir: the directory.
      dataset: ImageNet or CIFAR-10.
      num_classes: labels must be in [0, num_classes).

    Raises:
      UsageError: the directory holds no files of this data set.
    """
    check_subset = _CHECKS[dataset.name]
    reports = []
    for subset, files in find_subsets(data_dir, dataset).items():
        report = SubsetReport(subset, len(files), sum(path.stat().st_size for path in files))
        check_subset(report, files, num_classes)
        reports.append(report)
    return reports


def _check_cifar10(report: SubsetReport, files: list[Path], num_classes: int) -> None:
    size = cifar10_files.SIZE
    for path in files:
        try:
            part = cifar10_files.read_file(path, num_classes)
        except DataError as error:
            report.defects.append(str(error))
            continue
        for label in part.labels.tolist():
            report.add(RecordFacts(label, size, size, part.images[0].nbytes, 0))


def _check_imagenet(report: SubsetReport, files: list[Path], num_classes: int) -> None:
    for name in imagenet_files.missing_shards(files):
        report.defects.append(f"{files[0].parent / name}: this file is missing")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in files:
            look = partial(_examine, path, num_classes)
            for chunk in _chunks(_read(path), _CHUNK):
                for outcome in pool.map(look, chunk):
                    if isinstance(outcome, str):
                        report.defects.append(outcome)
                    else:
                        report.add(outcome)
    if not report.records and not report.defects:
        report.defects.append(f"{files[0].parent}: the {report.subset} files hold no records")


def _examine(
    path: Path, num_classes: int, numbered: tuple[int, bytes | DataError]
) -> RecordFacts | str:
    """The facts of a record, or what is wrong with it."""
    number, data = numbered
    if isinstance(data, DataError):
        return str(data)
    try:
        return imagenet_records.examine(data, num_classes)
    except RecordDefect as defect:
        return f"{path}: record {number}: {defect}"


def _read(path: Path) -> Iterator[tuple[int, bytes | DataError]]:
    """Numbers and data of all records; for a damaged record the error instead.

    TensorFlow's reader checks the checksums quickly, but it stops at the first damage, and
    takes a header that is cut off for the end of the file. From there on our own goes on, as
    long as the framing holds.
    """
    sound = 0
    with contextlib.suppress(tf.errors.OpError):
        for data in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            yield sound, data
            sound += 1
    try:
        for frame in itertools.islice(tfrecord.frames(path), sound, None):
            try:
                yield frame.record, tfrecord.read_data(path, frame)
            except DataError as error:
                yield frame.record, error
    except DataError as error:
        yield -1, error


def _chunks(
    records: Iterable[tuple[int, bytes | DataError]], size: int
) -> Iterator[list[tuple[int, bytes | DataError]]]:
    iterator = iter(records)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


_CHECKS: dict[str, Callable[[SubsetReport, list[Path], int], None]] = {
    IMAGENET.name: _check_imagenet,
    CIFAR10.name: _check_cifar10,
}
