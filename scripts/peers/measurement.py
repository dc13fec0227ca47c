"""Rounds of measurements: their order, what is measured, and the CSV file of all of them."""

from __future__ import annotations

import csv
import dataclasses
import random
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from cnnbench.base.stats import median

Key: TypeAlias = tuple[str, str]
"""Subject and dtype."""

T = TypeVar("T")

OK, FAILED, NOT_RUN = "ok", "failed", "not run"

# No GPU is used, TensorFlow prints no start-up messages, and byte code is kept, as for users.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "PYTHONDONTWRITEBYTECODE": "",
}


def over(above: float | None, below: float | None) -> float | None:
    """A quotient; None if either number is unknown or zero."""
    return above / below if above and below else None


@dataclasses.dataclass(frozen=True)
class Reading:
    """Measurements of one process; values that do not apply are None.

    Attributes:
      batch: Images per step over all towers.
      step_seconds: Duration of every timed step.
      flops_per_image: FLOPs per image, of training or inference, by the model's own count.
      flops_per_sec: Rate of a bare matrix product.
      seconds: A single duration: of a start, of a command.
      bare_steps_per_sec: Steps per second of the same step without the harness.
      bytes_first: Resident memory after warm-up.
      bytes_last: Resident memory after the last step.
      peak_bytes: The most resident memory of the process from its start to its end.
      versions: Versions of the software that did the work, as ``name version`` words.
      document: Document with the figures of reductions alone and of emulated GPUs.
    """

    batch: int | None = None
    step_seconds: tuple[float, ...] = ()
    flops_per_image: float | None = None
    flops_per_sec: float | None = None
    seconds: float | None = None
    bare_steps_per_sec: float | None = None
    bytes_first: int | None = None
    bytes_last: int | None = None
    peak_bytes: int | None = None
    versions: str = ""
    document: Any = None

    @property
    def median_step_seconds(self) -> float | None:
        """Median duration of the timed steps."""
        return median(self.step_seconds) if self.step_seconds else None

    @property
    def images_per_sec(self) -> float | None:
        """Images per second at the median step."""
        return over(self.batch, self.median_step_seconds)

    @property
    def mean_images_per_sec(self) -> float | None:
        """Images per second over all timed steps."""
        return over(self.batch, over(1, self.steps_per_sec))

    @property
    def steps_per_sec(self) -> float | None:
        """Steps per second over all timed steps."""
        return over(len(self.step_seconds), sum(self.step_seconds))

    @property
    def achieved_flops_per_sec(self) -> float | None:
        """The model's FLOPs per second, or the matrix product's."""
        return self.flops_per_sec or over(self.flops_per_image, over(1, self.images_per_sec))

    @property
    def share_of_bare_loop(self) -> float | None:
        """Steps per second as a share of those of the bare loop."""
        return over(self.steps_per_sec, self.bare_steps_per_sec)

    @property
    def memory_growth(self) -> float | None:
        """Resident memory after the last step as a multiple of that after warm-up."""
        return over(self.bytes_last, self.bytes_first)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A reading and its position in the experiment.

    Attributes:
      round: Its round, from 1; 0 for a peer that was not run at all.
      order: Position within the round, from 1.
      status: ``ok``, ``failed`` or ``not run``.
      reason: Why it failed or was not run, one line.
      others_cpus: CPUs that other processes kept busy meanwhile, on average; None if unknown.
      reading: The reading; None unless ``ok``.
    """

    scenario: str
    round: int
    order: int
    subject: str
    dtype: str
    status: str
    reason: str = ""
    load_average: float | None = None
    others_cpus: float | None = None
    reading: Reading | None = None


def orders(subjects: Sequence[T], rounds: int, seed: int) -> list[list[T]]:
    """One order per round: rotations of a shuffled list, shuffled anew after a full turn.

    Within a full turn every subject stands once at every position, so that
    neither the first place nor the slow drift of a machine favours anybody; the
    shuffling changes who follows whom.
    """
    generator = random.Random(seed)
    current = list(subjects)
    result: list[list[T]] = []
    for index in range(rounds):
        turn = index % len(current) if current else 0
        if turn == 0:
            generator.shuffle(current)
        result.append(current[turn:] + current[:turn])
    return result


_PLACE = tuple(field.name for field in dataclasses.fields(Measurement) if field.name != "reading")
_VALUES = (
    *("batch", "images_per_sec", "mean_images_per_sec", "median_step_seconds"),
    *("achieved_flops_per_sec", "seconds", "steps_per_sec", "bare_steps_per_sec"),
    *("bytes_first", "bytes_last", "peak_bytes", "versions"),
)
COLUMNS = (*_PLACE, "steps", *_VALUES)


class Measurements(list[Measurement]):
    """All measurements; each is also appended to a new CSV file, if there is to be one.

    A value that does not apply is an empty cell.
    """

    def __init__(self, path: str | None) -> None:
        """Creates the file with its header."""
        super().__init__()
        self._path = path
        self._write(COLUMNS, "x")

    def append(self, measurement: Measurement) -> None:
        """Adds one, whose row is then in the file."""
        super().append(measurement)
        reading = measurement.reading or Reading()
        place = [getattr(measurement, name) for name in _PLACE]
        values = [getattr(reading, name) for name in _VALUES]
        row = [*place, len(reading.step_seconds) or None, *values]
        self._write([f"{cell:.9g}" if isinstance(cell, float) else cell for cell in row], "a")

    def _write(self, row: Sequence[object], mode: str) -> None:
        if self._path is not None:
            with open(self._path, mode, newline="", encoding="utf-8") as file:
                csv.writer(file).writerow(row)
