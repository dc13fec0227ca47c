"""Readers of the output of programs.

A reader raises ``ValueError`` with a one-line reason when the output is not that of a finished
measurement.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from peers.measurement import Reading
from peers.process import STEP_LINE, Line, Process

# Takes a finished process and the file that it may have written its record to.
Reader: TypeAlias = Callable[[Process, Path], Reading]

# A peer in children/ prints one line: this word and a JSON object.
_MARKER = "MEASURED "
_TOTAL_LINE = re.compile(r"^total images/sec: (\d+\.\d+)$")


def steps_of(lines: list[Line]) -> dict[int, Line]:
    """The lines of steps, by number of the step."""
    found = ((STEP_LINE.match(line.text), line) for line in lines)
    return {int(match[1]): line for match, line in found if match}


def between_step_lines(finished: Process) -> tuple[float, ...]:
    """Seconds from each line of a step that counts to the next."""
    arrivals = [line.seconds for line in steps_of(finished.lines[finished.counted :]).values()]
    return tuple(later - earlier for earlier, later in itertools.pairwise(arrivals))


def measured_by_child(finished: Process) -> dict[str, Any]:
    """The measurement that a peer in ``children/`` has printed."""
    for line in reversed(finished.lines):
        if line.text.startswith(_MARKER):
            found: dict[str, Any] = json.loads(line.text[len(_MARKER) :])
            return found
    raise ValueError("it ended without a measurement")


def read_child(finished: Process, _: Path) -> Reading:
    """The reading of a peer; the keys are attributes of ``Reading``."""
    values = measured_by_child(finished)
    return Reading(**{**values, "step_seconds": tuple(values.get("step_seconds", ()))})


def read_document(finished: Process, _: Path) -> Reading:
    """Work of a step; see ``Meter.measured`` in ``children/emulated_steps.py``."""
    return Reading(document=measured_by_child(finished))


def read_record(_: Process, path: Path) -> Reading:
    """The reading of a cnnbench run record (schema 1)."""
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
    """The reading of a record in which every step took its share of the loop.

    Batches of ``--input_only`` and updates of several workers come in bursts, so that the median
    step says little.
    """
    reading = read_record(finished, path)
    measured = json.loads(path.read_text(encoding="utf-8"))["measured"]
    steps = len(reading.step_seconds)
    seconds = (float(measured["loop_seconds"]) / steps,) * steps
    return dataclasses.replace(reading, step_seconds=seconds, flops_per_image=None)


def ancestor_reader(batch: int, versions: str) -> Reader:
    """A reader for tf_cnn_benchmarks run with ``--display_every=1``.

    Its step lines show a running mean rounded to one decimal, too coarse for the
    time of a step; when each line arrived is exact to well below a millisecond.
    The first step has no line before it and is left out. The printed total has to
    agree with the arrival times, else lines came late (a buffered stream, say); it knows nothing
    of the time that the process was stopped.
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
    """Seconds from the start of the process to the line of the first timed step."""
    first = steps_of(finished.lines).get(1)
    if first is None:
        raise ValueError("it printed no line for step 1")
    return Reading(seconds=first.seconds)


def read_first_line(finished: Process, _: Path) -> Reading:
    """Seconds from the start of the process to its first line."""
    if not finished.lines:
        raise ValueError("it printed nothing")
    return Reading(seconds=finished.lines[0].seconds)


def read_duration(finished: Process, _: Path) -> Reading:
    """Seconds from start to end."""
    return Reading(seconds=finished.seconds)


def memory_reader(first: int, last: int) -> Reader:
    """A reader of the resident memory at the lines of two steps."""

    def read(finished: Process, _: Path) -> Reading:
        steps = steps_of(finished.lines)
        seen = [steps[n].resident_bytes if n in steps else None for n in (first, last)]
        if not all(seen):
            message = f"no resident memory for steps {first} and {last}: Linux is needed"
            raise ValueError(message)
        return Reading(bytes_first=seen[0], bytes_last=seen[1])

    return read
