"""Rounds of measurements: their order, one measurement, and the CSV file of all of them."""

from __future__ import annotations

import csv
import dataclasses
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar

from cnnbench.base.interrupts import LONGEST_WAIT_SECONDS
from cnnbench.machine.host import Host
from cnnbench.machine.sampling import CounterChanges, take
from peers.process import ProcessError
from peers.turns import Rotation, Turn

Place: TypeAlias = tuple[str, int, int, str, str]
"""Scenario, round, order, subject and dtype of a measurement."""

T = TypeVar("T")

OK, FAILED, NOT_RUN = "ok", "failed", "not run"

# No GPU is used, TensorFlow prints no start-up messages, and byte code is kept, as it is for users.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "PYTHONDONTWRITEBYTECODE": "",
}


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
      versions: Versions of what did the work, as ``name version`` words.
      document: What the figures of reductions alone and of emulated GPUs are taken from.
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
        return statistics.median(self.step_seconds) if self.step_seconds else None

    @property
    def images_per_sec(self) -> float | None:
        """Images per second at the median step."""
        median = self.median_step_seconds
        return self.batch / median if self.batch and median else None

    @property
    def mean_images_per_sec(self) -> float | None:
        """Images per second over all timed steps."""
        rate = self.steps_per_sec
        return self.batch * rate if self.batch and rate else None

    @property
    def steps_per_sec(self) -> float | None:
        """Steps per second over all timed steps."""
        total = sum(self.step_seconds)
        return len(self.step_seconds) / total if total else None

    @property
    def achieved_flops_per_sec(self) -> float | None:
        """The model's FLOPs per second, or the matrix product's."""
        if self.flops_per_sec is not None:
            return self.flops_per_sec
        speed = self.images_per_sec
        return speed * self.flops_per_image if speed and self.flops_per_image else None

    @property
    def share_of_bare_loop(self) -> float | None:
        """Steps per second as a share of those of the bare loop."""
        mine, bare = self.steps_per_sec, self.bare_steps_per_sec
        return mine / bare if mine and bare else None

    @property
    def memory_growth(self) -> float | None:
        """Resident memory after the last step as a multiple of that after warm-up."""
        if not self.bytes_first or self.bytes_last is None:
            return None
        return self.bytes_last / self.bytes_first


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A reading and its position in the experiment.

    Attributes:
      round: Its round, from 1; 0 for a peer that was not run at all.
      order: Position within the round, from 1.
      status: ``ok``, ``failed`` or ``not run``.
      reason: Why it failed or was not run, one line.
      others_cpus: CPUs that other processes kept busy meanwhile, on average; None if unknown.
      reading: What was read, None unless ``ok``.
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


def measure(place: Place, work: Callable[[Path], Reading | None]) -> Measurement:
    """Runs some work in an empty folder and records the load by other processes.

    Args:
      work: runs a process in the folder and returns its reading; a ProcessError, OSError,
        ValueError, KeyError or TypeError makes the measurement a failed one.
    """
    reading, reason, before = None, "", take(Host())
    with tempfile.TemporaryDirectory(prefix="compare-peers-") as folder:
        try:
            reading = work(Path(folder))
        except ProcessError as error:
            reason = str(error)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
    meanwhile = CounterChanges.between(before, take(Host()))
    status = FAILED if reason else OK
    return Measurement(
        *place, status, reason, meanwhile.load_average, meanwhile.other_cpus, reading
    )


def measure_in_turn(
    places: Sequence[Place],
    works: Sequence[Callable[[Path, Turn], Reading | None]],
    rotation: Rotation,
) -> list[Measurement]:
    """The same for several works at once, whose processes run in turn.

    Args:
      places, works: see `measure`; a work takes the turns of its process besides.
    """
    before = take(Host())
    turns = [rotation.join() for _ in works]

    def one(place: Place, work: Callable[[Path, Turn], Reading | None], turn: Turn) -> Measurement:
        try:
            return measure(place, lambda folder: work(folder, turn))
        finally:
            turn.leave()

    with ThreadPoolExecutor(len(works)) as pool:
        try:
            futures = [pool.submit(one, *each) for each in zip(places, works, turns, strict=True)]
            measured = []
            for future in futures:
                while not wait([future], timeout=LONGEST_WAIT_SECONDS).done:
                    pass
                measured.append(future.result())
        except BaseException:
            rotation.end()
            raise
    meanwhile = CounterChanges.between(before, take(Host()))
    # What the others of the rotation did is no neighbour's.
    load, others = meanwhile.load_average, meanwhile.other_cpus
    return [dataclasses.replace(m, load_average=load, others_cpus=others) for m in measured]


_VALUES = (
    *("batch", "images_per_sec", "mean_images_per_sec", "median_step_seconds"),
    *("achieved_flops_per_sec", "seconds", "steps_per_sec", "bare_steps_per_sec"),
    *("bytes_first", "bytes_last", "peak_bytes", "versions"),
)
_PLACE = tuple(field.name for field in dataclasses.fields(Measurement) if field.name != "reading")
COLUMNS = (*_PLACE, "steps", *_VALUES)


def row(measurement: Measurement) -> dict[str, str]:
    """The cells of a measurement; a value that does not apply is an empty cell."""
    cells = {name: getattr(measurement, name) for name in _PLACE}
    reading = measurement.reading or Reading()
    cells["steps"] = len(reading.step_seconds) or None
    cells.update({name: getattr(reading, name) for name in _VALUES})
    return {name: _cell(value) for name, value in cells.items()}


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


class CsvFile:
    """Appends measurements to a new file, each as soon as it is known."""

    def __init__(self, path: Path) -> None:
        """Creates the file with its header."""
        self._file: TextIO = path.open("x", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        self._writer.writeheader()
        self._file.flush()

    def add(self, measurement: Measurement) -> None:
        """Writes a row and flushes it."""
        self._writer.writerow(row(measurement))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
