"""Measurements of one process (readings), their order in rounds, and the file of all of them.

A reader raises ``ValueError`` with a one-line reason if the output is not the output of a complete
measurement.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cnnbench.base.stats import median
from cnnbench.records.all_reduce import AllReduceRecord
from peers.process import STEP_LINE, Line, Process

Key: TypeAlias = tuple[str, str]
"""Subject and dtype."""

T = TypeVar("T")

OK, FAILED, NOT_RUN = "ok", "failed", "not run"

# Environment of programs: no GPU, no start-up messages of TensorFlow, and byte code is stored.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "PYTHONDONTWRITEBYTECODE": "",
}


def over(above: float | None, below: float | None) -> float | None:
    """The quotient of two numbers; None if either number is unknown or zero."""
    return above / below if above and below else None


@dataclasses.dataclass(frozen=True)
class Reading:
    """Measurements of one process; values that do not apply are None.

    Attributes:
      batch: Images per step over all towers.
      step_seconds: Duration of every timed step.
      flops_per_image: FLOPs per image, of training or inference, by the model's own count.
      flops_per_sec: Rate of a bare matrix product.
      seconds: A single duration: of a start, of a command, until the end of the last step.
      bare_steps_per_sec: Steps per second of the same step without the harness.
      bytes_first: Resident memory after warm-up.
      bytes_last: Resident memory after the last step.
      peak_bytes: The most resident memory of the process from its start to its end.
      process_seconds: Duration of the process, from its start to its end.
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
    process_seconds: float | None = None
    versions: str = ""
    document: Any = None

    @property
    def median_step_seconds(self) -> float | None:
        """Median duration of the timed steps in seconds."""
        return median(self.step_seconds) if self.step_seconds else None

    @property
    def images_per_sec(self) -> float | None:
        """Images per second, from the median duration of a step."""
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
        """FLOPs per second of the model, or of the matrix product."""
        return self.flops_per_sec or over(self.flops_per_image, over(1, self.images_per_sec))

    @property
    def share_of_bare_loop(self) -> float | None:
        """Steps per second divided by the steps per second of the bare loop."""
        return over(self.steps_per_sec, self.bare_steps_per_sec)

    @property
    def memory_growth(self) -> float | None:
        """Resident memory after the last step, divided by the memory after warm-up."""
        return over(self.bytes_last, self.bytes_first)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A reading, and its scenario, round and position in the experiment.

    Attributes:
      round: Number of the round, from 1; 0 for a peer that was never run.
      order: Position within the round, from 1.
      status: ``ok``, ``failed`` or ``not run``.
      reason: Why the program failed or was not run, in one line.
      others_cpus: Mean number of CPUs that other processes kept busy meanwhile; None if unknown.
      reading: The reading; None unless the status is ``ok``.
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
    """Returns the order of the subjects in each round: a list that rotates from round to round.

    Within a full rotation, every subject has every position once, so that neither the first
    position nor a slow drift of the machine favours a subject. The list is shuffled before each
    full rotation, so that a subject does not always follow the same subject.
    """
    generator = random.Random(seed)
    current = list(subjects)
    result: list[list[T]] = []
    for index in range(rounds):
        rotation = index % len(current) if current else 0
        if rotation == 0:
            generator.shuffle(current)
        result.append(current[rotation:] + current[:rotation])
    return result


_PLACE = tuple(field.name for field in dataclasses.fields(Measurement) if field.name != "reading")
_VALUES = """
    batch images_per_sec mean_images_per_sec median_step_seconds achieved_flops_per_sec
    seconds steps_per_sec bare_steps_per_sec bytes_first bytes_last peak_bytes
    process_seconds versions
""".split()
COLUMNS = (*_PLACE, "steps", *_VALUES)


class Measurements(list[Measurement]):
    """List of all measurements. Each is also appended to a new CSV file, if given.

    A value that does not apply is an empty cell.
    """

    def __init__(self, path: str | None) -> None:
        """Creates the CSV file with its header."""
        super().__init__()
        self._path = path
        self._write(COLUMNS, "x")

    def append(self, measurement: Measurement) -> None:
        """Adds a measurement; its row is then in the file."""
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


# Readers of the output of programs.

# Function that takes a finished process and the path of its record, which may not exist.
Reader: TypeAlias = Callable[[Process, Path], Reading]

# A program in children/ prints its measurement in one line: this word and a JSON object.
_MARKER = "MEASURED "
_TOTAL_LINE = re.compile(r"^total images/sec: (\d+\.\d+)$")


def steps_of(lines: list[Line]) -> dict[int, Line]:
    """Finds the lines that report steps, by step number."""
    found = ((STEP_LINE.match(line.text), line) for line in lines)
    return {int(match[1]): line for match, line in found if match}


def between_step_lines(finished: Process) -> tuple[float, ...]:
    """Returns the seconds between successive step lines, from line `Process.counted` on."""
    arrivals = [line.seconds for line in steps_of(finished.lines[finished.counted :]).values()]
    return tuple(later - earlier for earlier, later in itertools.pairwise(arrivals))


def measured_by_child(finished: Process) -> dict[str, Any]:
    """Returns the measurement that a program in ``children/`` has printed."""
    for line in reversed(finished.lines):
        if line.text.startswith(_MARKER):
            found: dict[str, Any] = json.loads(line.text[len(_MARKER) :])
            return found
    raise ValueError("it ended without a measurement")


def read_child(finished: Process, _: Path) -> Reading:
    """Reads the measurement of a program in ``children/``; keys are `Reading` attributes."""
    values = measured_by_child(finished)
    return Reading(**{**values, "step_seconds": tuple(values.get("step_seconds", ()))})


def read_document(finished: Process, _: Path) -> Reading:
    """Reads the work per step on emulated GPUs; see ``Meter.measured``."""
    return Reading(document=measured_by_child(finished))


def read_reductions(_: Process, path: Path) -> Reading:
    """Reads the record of ``cnnbench allreduce``."""
    return Reading(document=AllReduceRecord.from_json(path.read_bytes()))


def read_record(_: Process, path: Path) -> Reading:
    """Reads the run record of cnnbench (schema 1)."""
    if not path.is_file():
        raise ValueError("it wrote no record")
    record = json.loads(path.read_text(encoding="utf-8"))
    if record.get("schema") != 1 or record.get("status") != "ok":
        raise ValueError(f"the record has status {record.get('status')!r}, not 'ok'")
    facts = record.get("environment", {})
    work = "forward" if record.get("config", {}).get("forward_only") else "training"
    names = [name for name in ("cnnbench", "tensorflow") if f"{name}_version" in facts]
    return Reading(
        batch=int(record["batch"]["global"]),
        step_seconds=tuple(float(s) for s in record["step_seconds"]),
        flops_per_image=float(record["model"][f"{work}_flops_per_image"]),
        versions=", ".join(f"{name} {facts[f'{name}_version']}" for name in names),
    )


def read_loop(finished: Process, path: Path) -> Reading:
    """Reads a run record, and replaces all step times by the mean step time of the loop.

    Batches of ``--input_only`` and updates of several workers arrive in bursts, so that the median
    step time is not meaningful.
    """
    reading = read_record(finished, path)
    measured = json.loads(path.read_text(encoding="utf-8"))["measured"]
    steps = len(reading.step_seconds)
    seconds = (float(measured["loop_seconds"]) / steps,) * steps
    return dataclasses.replace(reading, step_seconds=seconds, flops_per_image=None)


def ancestor_reader(batch: int, versions: str) -> Reader:
    """Creates a reader for tf_cnn_benchmarks with ``--display_every=1``.

    Step lines of tf_cnn_benchmarks show a running mean with one decimal, which is too inexact for
    step times. Arrival times of lines are accurate to well below a millisecond, so differences
    between them are used. The first step has no line before it, so it is omitted. The printed total
    must agree with the arrival times; otherwise lines arrived late, for example because of a
    buffer. The total is not checked if the process was stopped, because it includes that time.
    """

    def read(finished: Process, _: Path) -> Reading:
        steps = between_step_lines(finished)
        lines = (_TOTAL_LINE.match(line.text) for line in finished.lines)
        totals = [float(found[1]) for found in lines if found]
        if len(steps) < 2 or not totals:
            counted = len(steps_of(finished.lines[finished.counted :]))
            raise ValueError(f"{counted} step lines and {len(totals)} totals in its output")
        speed = batch * len(steps) / sum(steps)
        if not finished.waited and not 0.8 < speed / totals[-1] < 1.25:
            message = f"step lines arrived at {speed:.2f} images/sec, its total is {totals[-1]:.2f}"
            raise ValueError(message)
        return Reading(batch=batch, step_seconds=steps, versions=versions)

    return read


def read_first_step(finished: Process, _: Path) -> Reading:
    """Reads the seconds from the process's start to the line of the first timed step."""
    first = steps_of(finished.lines).get(1)
    if first is None:
        raise ValueError("it printed no line for step 1")
    return Reading(seconds=first.seconds)


def until_last_step(read: Reader) -> Reader:
    """Creates a reader that also reads the seconds from start to the last step's line."""

    def read_seconds(finished: Process, path: Path) -> Reading:
        reading = read(finished, path)
        steps = steps_of(finished.lines)
        if not steps:
            raise ValueError("it printed no line of a step")
        seconds = steps[max(steps)].seconds
        return dataclasses.replace(reading, seconds=seconds, flops_per_image=None)

    return read_seconds


def read_first_line(finished: Process, _: Path) -> Reading:
    """Reads the seconds from the process's start to its first line."""
    if not finished.lines:
        raise ValueError("it printed nothing")
    return Reading(seconds=finished.lines[0].seconds)


def read_duration(finished: Process, _: Path) -> Reading:
    """Reads the duration of the whole process."""
    return Reading(seconds=finished.seconds)


def memory_reader(first: int, last: int) -> Reader:
    """Creates a reader of the resident memory at the lines of two steps."""

    def read(finished: Process, _: Path) -> Reading:
        steps = steps_of(finished.lines)
        seen = [steps[n].resident_bytes if n in steps else None for n in (first, last)]
        if not all(seen):
            message = f"no resident memory for steps {first} and {last}: Linux is needed"
            raise ValueError(message)
        return Reading(bytes_first=seen[0], bytes_last=seen[1])

    return read
