"""Operations in a profile: which took how long, one by one, by name and by type."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cnnbench.base.text.numbers import number, percent
from cnnbench.base.text.table import aligned
from cnnbench.run.observe.xplane import Event, Plane

MOST = 20
"""Operations in the table of single ones."""

_GPU = "/device:GPU:"
_ON_HOST = re.compile(r"([\w.][\w./>-]*):([A-Za-z_]\w*)")
# What a kernel says of the operation that launched it; another key in older versions.
_LAUNCHED_BY = ("tf_op", "kernel_annotation")
_PICOSECONDS = 1e-12


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that ran.

    Attributes:
      name: in the graph.
      type: of its kernel.
      seconds: it kept its thread (CPU), or its kernels and copies took (GPU).
    """

    name: str
    type: str
    seconds: float


class _Run(NamedTuple):
    """One run of an operation, in picoseconds from a common origin."""

    name: str
    type: str
    start: int
    duration: int


def operations(planes: Iterable[Plane]) -> list[Operation]:
    """The operations of a profile.

    Where GPUs were profiled, only what ran on them counts: on the host an operation of a GPU
    is over when its kernels are launched.

    Args:
      planes: of one host.
    """
    return [Operation(run.name, run.type, run.duration * _PICOSECONDS) for run in _runs(planes)]


def wall_seconds(planes: Iterable[Plane]) -> dict[tuple[str, str], float]:
    """What each operation has of the wall time, by name and type.

    Where several run at the same moment, each has an equal part of that moment, so that the
    values add up to the time during which any operation ran.

    Args:
      planes: of one host.
    """
    edges: list[tuple[int, bool, int, tuple[str, str]]] = []
    for index, run in enumerate(run for run in _runs(planes) if run.duration):
        key = (run.name, run.type)
        edges += [(run.start, True, index, key), (run.start + run.duration, False, index, key)]
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    active: dict[int, tuple[str, str]] = {}
    before = 0
    for moment, begins, index, key in sorted(edges):
        for one in active.values():
            seconds[one] += (moment - before) * _PICOSECONDS / len(active)
        before = moment
        if begins:
            active[index] = key
        else:
            del active[index]
    return dict(seconds)


def _runs(planes: Iterable[Plane]) -> list[_Run]:
    planes = tuple(planes)
    on_gpus = list(_read([p for p in planes if p.name.startswith(_GPU)], _of_kernel))
    return on_gpus or list(_read([p for p in planes if not p.name.startswith(_GPU)], _of_host))


def _read(
    planes: Iterable[Plane], read: Callable[[Event], tuple[str, str] | None]
) -> Iterator[_Run]:
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                names = read(event)
                if names is not None:
                    yield _Run(*names, event.start, event.duration)


def _of_host(event: Event) -> tuple[str, str] | None:
    match = _ON_HOST.fullmatch(event.name)
    return (match[1], match[2]) if match else None


def _of_kernel(event: Event) -> tuple[str, str] | None:
    for key in _LAUNCHED_BY:
        text = event.stats.get(key)
        if isinstance(text, str):
            # The outermost of nested annotations is the operation.
            match = _ON_HOST.match(text)
            if match:
                return match[1], match[2]
    return None


def table(made: Sequence[Operation], title: str) -> str:
    """The times by type of operation, and the operations that took longest.

    Args:
      made: operations of one step.
      title: the first line.
    """
    total = sum(operation.seconds for operation in made)
    lines = [title]
    lines += ["times of operations that run side by side add up", ""]
    by_type = _grouped(made, lambda operation: operation.type)
    lines += [*aligned(_rows("type", by_type, total)), ""]
    by_name = _grouped(made, lambda operation: f"{operation.name}:{operation.type}")
    lines += aligned(_rows(f"the {MOST} longest operations", by_name[:MOST], total))
    return "\n".join(lines) + "\n"


def _grouped(
    made: Iterable[Operation], key: Callable[[Operation], str]
) -> list[tuple[str, list[float]]]:
    """The times by key, the largest sum first."""
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for operation in made:
        groups[key(operation)].append(operation.seconds)
    return sorted(groups.items(), key=lambda item: (-sum(item[1]), item[0]))


def _rows(title: str, groups: Iterable[tuple[str, list[float]]], total: float) -> list[list[str]]:
    rows = [[title, "ms", "share", "count"]]
    for name, seconds in groups:
        share = sum(seconds) / total if total else None
        rows.append([name, number(sum(seconds) * 1e3), percent(share), str(len(seconds))])
    return rows
