"""From what a process printed or wrote to a ``Reading``.

Everything here raises ``ValueError`` with a one-line reason when the output is
not what a finished measurement looks like.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from peers.measurement import Reading
from peers.process import Line

# A peer in children/ prints one line: this word and a JSON object.
MARKER = "MEASURED "
STEP_LINE = re.compile(r"^(\d+)\timages/sec: ")
TOTAL_LINE = re.compile(r"^total images/sec: (\d+\.\d+)$")


def child_reading(lines: Sequence[Line]) -> Reading:
    """The reading of a peer in ``children/``; the keys are attributes of ``Reading``."""
    for line in reversed(lines):
        if line.text.startswith(MARKER):
            values = json.loads(line.text[len(MARKER) :])
            values["step_seconds"] = tuple(values.get("step_seconds", ()))
            return Reading(**values)
    raise ValueError("it ended without a measurement")


def record_reading(record: Mapping[str, Any]) -> Reading:
    """The reading of a cnnbench run record (schema 1)."""
    if record.get("schema") != 1 or record.get("status") != "ok":
        raise ValueError(f"the record has status {record.get('status')!r}, not 'ok'")
    facts = record.get("environment", {})
    versions = [
        f"{name} {facts[key]}"
        for name, key in (("cnnbench", "cnnbench_version"), ("tensorflow", "tensorflow_version"))
        if key in facts
    ]
    return Reading(
        batch=int(record["batch"]["global"]),
        step_seconds=tuple(float(s) for s in record["step_seconds"]),
        flops_per_image=float(record["model"]["training_flops_per_image"]),
        versions=", ".join(versions),
    )


def ancestor_reading(lines: Sequence[Line], batch: int) -> Reading:
    """The reading of tf_cnn_benchmarks run with ``--display_every=1``.

    Its step lines show a running mean rounded to one decimal, too coarse for the
    time of a step; when each line arrived is exact to well below a millisecond.
    The first step has no line before it and is left out. The printed total has to
    agree with the arrival times, else lines came late (a buffered stream, say).
    """
    arrivals = [line.seconds for line in lines if STEP_LINE.match(line.text)]
    totals = [float(found[1]) for line in lines if (found := TOTAL_LINE.match(line.text))]
    if len(arrivals) < 3 or not totals:
        raise ValueError(f"{len(arrivals)} step lines and {len(totals)} totals in its output")
    steps = tuple(later - earlier for earlier, later in itertools.pairwise(arrivals))
    speed = batch * len(steps) / sum(steps)
    if not 0.8 < speed / totals[-1] < 1.25:
        message = f"its step lines arrived at {speed:.2f} images/sec, it says {totals[-1]:.2f}"
        raise ValueError(message)
    return Reading(batch=batch, step_seconds=steps)


def first_step_seconds(lines: Sequence[Line]) -> float:
    """Seconds from the start of the process to the line of the first timed step."""
    for line in lines:
        found = STEP_LINE.match(line.text)
        if found and found[1] == "1":
            return line.seconds
    raise ValueError("it printed no line for step 1")


def memory_reading(lines: Sequence[Line], steps: int) -> Reading:
    """Resident memory at the line of the first timed step and at that of the last."""
    seen = {
        int(found[1]): line.resident_bytes
        for line in lines
        if (found := STEP_LINE.match(line.text)) and line.resident_bytes
    }
    if 1 not in seen or steps not in seen:
        raise ValueError(f"no resident memory for steps 1 and {steps}: Linux is needed for that")
    return Reading(bytes_first=seen[1], bytes_last=seen[steps])
