"""The rows of a roofline: what was measured, and what the machine could do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from cnnbench.lab.roofline.work import FORWARD, TO_INPUT, TO_KERNEL, Part, Work
from cnnbench.models.declare import Flops


@dataclass(frozen=True)
class Machine:
    """What the devices of a run can do at most, all together.

    Attributes:
      flops_per_sec: of matrix products in the dtype of the run.
      bytes_per_sec: read and written by copying memory.
      flops_source, bytes_source: how these are known.
    """

    flops_per_sec: float
    bytes_per_sec: float
    flops_source: str = ""
    bytes_source: str = ""

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which both rates bound alike."""
        return self.flops_per_sec / self.bytes_per_sec

    def seconds(self, flops: float, moved: float) -> float:
        """The least time for that many FLOPs and bytes."""
        return max(flops / self.flops_per_sec, moved / self.bytes_per_sec)


@dataclass(frozen=True)
class Row:
    """Operations of one kind and direction in one layer, or a sum over layers.

    Attributes:
      layer, kind, direction: see `Part`; "" where rows are added up over them.
      seconds: of the wall time of a step.
      flops: of convolutions and matrix products in a step, all devices together; 0 for others.
      bytes: read and written in a step.
      bound_seconds: the least time that the machine would need; of a sum, the sum of its rows'.
    """

    layer: str
    kind: str
    direction: str
    seconds: float
    flops: int
    bytes: int
    bound_seconds: float

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None without FLOPs."""
        return self.flops / self.bytes if self.flops and self.bytes else None

    @property
    def share_of_bound(self) -> float | None:
        """The bound over the measured time; above 1 where caches are faster than memory."""
        return self.bound_seconds / self.seconds if self.seconds and self.bound_seconds else None

    @property
    def winnable_seconds(self) -> float:
        """What the time is above the bound."""
        return max(0.0, self.seconds - self.bound_seconds)


@dataclass(frozen=True)
class Roofline:
    """What a step does, against what the machine could do.

    Attributes:
      rows: the one with the most time to win first; those without any by their time.
      machine: the bound.
      step_seconds: of the profiled steps whose operations these are, their mean.
      unprofiled_seconds: of steps without a profiler, chosen alike.
    """

    rows: tuple[Row, ...]
    machine: Machine
    step_seconds: float
    unprofiled_seconds: float

    @property
    def remainder_seconds(self) -> float:
        """What no operation has of a profiled step: time in which none ran."""
        return self.step_seconds - sum(row.seconds for row in self.rows)

    @property
    def kinds(self) -> list[Row]:
        """The sums by kind of operation and direction, the longest first."""
        return self._sums(lambda row: ("", row.kind, row.direction))

    @property
    def total(self) -> Row:
        """The sum of all rows."""
        return self._sums(lambda row: ("", "", ""))[0]

    def _sums(self, key: Callable[[Row], tuple[str, str, str]]) -> list[Row]:
        groups: defaultdict[tuple[str, str, str], list[Row]] = defaultdict(list)
        for row in self.rows:
            groups[key(row)].append(row)
        sums = [
            Row(
                *names,
                sum(row.seconds for row in rows),
                sum(row.flops for row in rows),
                sum(row.bytes for row in rows),
                sum(row.bound_seconds for row in rows),
            )
            for names, rows in groups.items()
        ]
        return sorted(sums, key=lambda row: -row.seconds)


def faster_half(seconds: Sequence[float]) -> list[int]:
    """Which steps count: those that the machine disturbed least.

    A mean over whole steps is the sum of its operations' means and of the time between them, as
    medians are not.

    Args:
      seconds: of each step.

    Returns:
      Their numbers from 0, at least one.
    """
    order = sorted(range(len(seconds)), key=lambda step: seconds[step])
    return order[: (len(seconds) + 1) // 2]


def rows_of(
    steps: Sequence[Mapping[tuple[str, str], float]],
    work: Callable[[str, str], Work],
    flops: Mapping[str, Flops],
    machine: Machine,
) -> tuple[Row, ...]:
    """The rows of profiled steps.

    Args:
      steps: seconds of operations by name and type, of each profiled step.
      work: of an operation by name and type.
      flops: of all devices in a step, by layer.
      machine: what it can do.

    Returns:
      Rows of mean times, ordered as `Roofline` has them.
    """
    seconds: defaultdict[Part, float] = defaultdict(float)
    moved: defaultdict[Part, int] = defaultdict(int)
    products: defaultdict[str, dict[str, Part]] = defaultdict(dict)
    for operation in {operation for step in steps for operation in step}:
        part, is_product, size = work(*operation)
        seconds[part] += fmean(step.get(operation, 0.0) for step in steps)
        moved[part] += size
        if is_product:
            products[part.layer][part.direction] = part
    counted: defaultdict[Part, int] = defaultdict(int)
    for layer, parts in products.items():
        for part, count in _by_part(flops.get(layer, Flops()), parts):
            counted[part] += count
    rows = [
        Row(*part, time, counted[part], moved[part], machine.seconds(counted[part], moved[part]))
        for part, time in seconds.items()
    ]
    return tuple(
        sorted(
            rows, key=lambda row: (-row.winnable_seconds, -row.seconds, row.layer, row.direction)
        )
    )


def _by_part(flops: Flops, parts: Mapping[str, Part]) -> Iterable[tuple[Part, int]]:
    """The FLOPs of a layer's directions, each with the products that do them.

    Where gradients of both factors of a product look alike, as in attention, they are one part.
    """
    for direction, count in zip((FORWARD, TO_INPUT, TO_KERNEL), flops, strict=True):
        other = TO_INPUT if direction == TO_KERNEL else TO_KERNEL
        found = parts.get(direction) or (None if direction == FORWARD else parts.get(other))
        if count and found is not None:
            yield found, count
