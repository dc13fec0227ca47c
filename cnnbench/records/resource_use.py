"""Samples of the memory and CPUs that a process uses over time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from cnnbench.records.run import ResourceUse

MOST_USE_SAMPLES = 600
"""Maximum number of samples in a record's `ResourceUse`."""


USE_PERIOD = 1.0
"""Seconds between two samples; shorter runs have none in their records."""


class ResourceUseSample(NamedTuple):
    """A sample of the memory and CPU time that this process uses.

    Attributes:
      seconds: time since the start of the run.
      memory, device_memory: bytes of this process, and of tensors on its fullest GPU
        (0 without one).
      cpu_seconds: CPU time of this process since its start.
      sampler_seconds: CPU time of the thread that takes the samples.
      loops: how many times the timed loop has begun or ended.
    """

    seconds: float
    memory: float
    device_memory: float
    cpu_seconds: float
    sampler_seconds: float
    loops: float


def resource_use(samples: Sequence[float]) -> ResourceUse | None:
    """Converts samples (the values of `ResourceUseSample`, one sample after the other) to the
    `ResourceUse` of a record; None if the run was shorter than one sampling period.
    """
    width, values = len(ResourceUseSample._fields), [*samples]
    # A process that was killed may have left an incomplete row, which is ignored.
    whole = range(0, len(values) - width + 1, width)
    rows = [ResourceUseSample(*values[at : at + width]) for at in whole]
    if not rows or rows[-1].seconds < USE_PERIOD:
        return None
    first, *later = rows
    size = -(-len(later) // MOST_USE_SAMPLES)
    groups = [later[at : at + size] for at in range(0, len(later), size)]
    ends = [first, *(group[-1] for group in groups)]
    return ResourceUse(
        seconds=tuple(end.seconds for end in ends[1:]),
        memory_bytes=tuple(max(row.memory for row in group) for group in groups),
        device_memory_bytes=tuple(max(row.device_memory for row in group) for group in groups)
        if any(row.device_memory for row in later)
        else (),
        busy_cpus=tuple(
            (end.cpu_seconds - before.cpu_seconds) / max(end.seconds - before.seconds, 1e-9)
            for before, end in itertools.pairwise(ends)
        ),
        loop_start=next((row.seconds for row in rows if row.loops >= 1), None),
        loop_end=next((row.seconds for row in rows if row.loops >= 2), None),
        sampler_cpu_seconds=max(row.sampler_seconds for row in rows),
    )
