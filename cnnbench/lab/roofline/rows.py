"""The rows of a roofline, from the operations of profiled steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from cnnbench.models.declare import Flops
from cnnbench.records.roofline import Machine, RooflineRow
from cnnbench.records.step_profile import Part
from cnnbench.run.observe.work import OperationWork, flops_by_part


def rows_of(
    steps: Sequence[Mapping[tuple[str, str], float]],
    work: Callable[[str, str], OperationWork],
    flops: Mapping[str, Flops],
    machine: Machine,
    step_seconds: float,
) -> tuple[RooflineRow, ...]:
    """The rows of profiled steps.

    Args:
      steps: seconds of operations by name and type, of each profiled step.
      work: of an operation by name and type.
      flops: of all devices in a step, by layer.

    Returns:
      Rows of mean times, ordered as `Roofline` has them.
    """
    seconds: defaultdict[Part, float] = defaultdict(float)
    moved: defaultdict[Part, int] = defaultdict(int)
    works = {one: work(*one) for step in steps for one in step}
    for operation, (part, _, size) in works.items():
        seconds[part] += fmean(step.get(operation, 0.0) for step in steps)
        moved[part] += size
    counted = flops_by_part(works.values(), flops)
    rows = [
        RooflineRow(
            *part,
            time,
            counted.get(part, 0),
            moved[part],
            machine.seconds(counted.get(part, 0), moved[part]),
            time / step_seconds,
        )
        for part, time in seconds.items()
    ]
    return tuple(
        sorted(
            rows, key=lambda row: (-row.winnable_seconds, -row.seconds, row.layer, row.direction)
        )
    )
