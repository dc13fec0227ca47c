"""Reads the profile of a step, finds its operations, and divides the step's wall time among them.

TensorFlow's profiler writes one XSpace message per host (`*.xplane.pb`). A profile consists of
planes (host, GPUs). A plane consists of lines (threads, streams), and a line consists of events.
Names are stored once per plane and referenced by number.

This module does not import TensorFlow.
"""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cnnbench.run.observe.messages import message_class

_GPU = "/device:GPU:"
_ON_HOST = re.compile(r"([\w.][\w./>-]*):([A-Za-z_]\w*)")
# Keys under which a profile names the operation of a GPU kernel, in new and old TensorFlow.
_LAUNCHED_BY = ("tf_op", "kernel_annotation")
PICOSECONDS = 1e-12
_ALLOCATION = "MemoryAllocation"
# Matches names of NCCL's kernels, such as "ncclAllReduce", for which no operation is recorded.
_BY_NCCL = re.compile(r"nccl([A-Z]\w*)")
_COLLECTIVE = re.compile(r"_?(Collective|Nccl)")
_TRANSFER = re.compile(r"_(Host|)(?:Send|Recv)$")
_SENT = re.compile(r"/_\d+$")


def is_collective(type: str) -> bool:
    """Whether operations of this type exchange values between several devices, such as an
    all-reduce.
    """
    return bool(_COLLECTIVE.match(type))


def is_transfer(type: str) -> bool:
    """Whether operations of this type copy a value from one device to another."""
    return bool(_TRANSFER.match(type))


def source_operation_name(name: str) -> str:
    """Returns the name of the operation whose result a copy operation copies between devices.

    Names of other operations are returned unchanged.
    """
    return _SENT.sub("", name)


@dataclass(frozen=True, slots=True)
class XEvent:
    """An event in a profile. Its start and duration are picoseconds from a common origin.

    Operations on the host have names "name:type". An event with duration 0 is a point in time.
    """

    name: str
    start: int
    duration: int
    stats: Mapping[str, int | float | str] = field(default_factory=dict)


class XPlane(NamedTuple):
    """The events of a host ("/host:CPU") or of a GPU ("/device:GPU:0") in a profile.

    `lines` contains the threads of the host or the streams of the GPU, with names and events.
    """

    name: str
    lines: tuple[tuple[str, tuple[XEvent, ...]], ...]


def read_profile(profile: bytes) -> tuple[XPlane, ...]:
    """Reads a serialized profile (XSpace). Returns its planes that contain events."""
    planes = tuple(map(_convert_plane, message_class("XSpace").FromString(profile).planes))
    return tuple(plane for plane in planes if plane.lines)


def _convert_plane(plane: Any) -> XPlane:
    events, stats = (
        {entry.key: _decode_name(entry.value.name) for entry in names}
        for names in (plane.event_names, plane.stat_names)
    )

    def stat_value(field: str, value: Any) -> int | float | str:
        if field == "reference":
            return stats.get(value, "")
        return _decode_name(value) if field == "text" else value

    def read(event: Any, line_start: int) -> XEvent:
        values = {
            stats.get(stat.key, ""): stat_value(field.name, value)
            for stat in event.stats
            for field, value in stat.ListFields()
            if field.name != "key"
        }
        start = line_start + event.offset
        return XEvent(events.get(event.key, ""), start, event.duration, values)

    lines = []
    for line in plane.lines:
        if line.events:
            of_line = tuple(read(event, line.start * 1000) for event in line.events)
            lines.append((_decode_name(line.shown or line.name), of_line))
    return XPlane(_decode_name(plane.name), tuple(lines))


def _decode_name(name: bytes) -> str:
    return name.decode("utf-8", "replace")


class TimePriority(enum.IntEnum):
    """Priority with which operations that run at the same time get the wall time of a step.

    Each moment is attributed to the running operations with the lowest number.
    """

    COMPUTES = 0
    # Collectives and copies overlap with kernels, and wait for other devices. So they get only the
    # time in which nothing is computed (exposed communication).
    WAITS = 1
    OTHER = 2  # Operations outside of the step, such as reading input.


class ExecutedOperation(NamedTuple):
    """One execution of an operation in a profile.

    `start` and `end` are picoseconds from the profile's first operation. `plane` is "/host:CPU" or
    the name of a GPU's plane.
    """

    name: str
    type: str
    plane: str
    start: int
    end: int
    priority: TimePriority

    @property
    def is_of_step(self) -> bool:
        """Whether the operation belongs to the step."""
        return self.priority is not TimePriority.OTHER


class WallTimes(NamedTuple):
    """The wall time of a step from its first to its last operation, divided among operations.

    Attributes:
      seconds: time of each operation of the step, by name and type. Concurrent operations get equal
        shares. Collectives and copies between devices get no time while other operations of the
        step run.
      other_seconds: time in which only operations outside of the step ran.
      idle_seconds: time in which no operations ran.
      counts: number of runs of each operation of the step.
    """

    seconds: dict[tuple[str, str], float]
    other_seconds: float
    idle_seconds: float
    counts: Counter[tuple[str, str]]


def divide_wall_time_of_step(runs: Sequence[ExecutedOperation]) -> WallTimes:
    """Divides the wall time of a step among its operations.

    Operations outside of the step, such as operations of the input pipeline, get no time while an
    operation of the step runs.
    """
    parts, other, idle = _divide_wall_time(runs)
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    counts: Counter[tuple[str, str]] = Counter()
    for run, part in zip(runs, parts, strict=True):
        if run.is_of_step:
            counts[run.name, run.type] += 1
            seconds[run.name, run.type] += part * PICOSECONDS
    return WallTimes(dict(seconds), other * PICOSECONDS, idle * PICOSECONDS, counts)


def sorted_operations(
    planes: Iterable[XPlane], is_own: Callable[[str], bool]
) -> list[ExecutedOperation]:
    """Collects the operations of a profile, sorted by their starts.

    If GPUs were profiled, only operations on GPUs are included: on the host, an operation for a GPU
    ends when its kernels have been launched. `is_own` returns whether the operation with a name
    belongs to the step.
    """
    planes = tuple(planes)
    on_gpus = list(_named_events([p for p in planes if p.name.startswith(_GPU)], _kernel_operation))
    hosts = [p for p in planes if not p.name.startswith(_GPU)]
    read = on_gpus or _named_events(hosts, _host_operation)
    events = sorted(read, key=lambda item: item[1].start)
    first = events[0][1].start if events else 0
    runs = []
    for (name, type, plane), event in events:
        start, priority = event.start - first, _time_priority(name, type, is_own)
        runs.append(ExecutedOperation(name, type, plane, start, start + event.duration, priority))
    return runs


def _time_priority(name: str, type: str, is_own: Callable[[str], bool]) -> TimePriority:
    if _BY_NCCL.fullmatch(name):  # NCCL runs only collectives, which belong to the step.
        return TimePriority.WAITS
    if not is_own(name):
        return TimePriority.OTHER
    return TimePriority.WAITS if is_collective(type) or is_transfer(type) else TimePriority.COMPUTES


def _divide_wall_time(runs: Sequence[ExecutedOperation]) -> tuple[list[float], int, int]:
    """Divides the time from the step's first to its last operation among executed operations.

    Returns the picoseconds of each run (0 for priority `OTHER`), the picoseconds in which only
    operations with priority `OTHER` ran, and the picoseconds in which no operation ran.
    """
    edges: list[tuple[int, bool, int]] = []
    for index, run in enumerate(runs):
        if run.end > run.start:
            edges += [(run.start, True, index), (run.end, False, index)]
    of_step = [moment for moment, _, index in edges if runs[index].is_of_step]
    first, last = min(of_step, default=0), max(of_step, default=0)
    parts = [0.0] * len(runs)
    active: dict[TimePriority, set[int]] = {priority: set() for priority in TimePriority}
    before = first
    other = idle = 0
    for moment, begins, index in sorted(edges):
        until = min(max(moment, first), last)
        spent = until - before
        before = until
        priority = next((priority for priority in TimePriority if active[priority]), None)
        if priority is None:
            idle += spent
        elif priority is TimePriority.OTHER:
            other += spent
        elif spent:
            for event in active[priority]:
                parts[event] += spent / len(active[priority])
        if begins:
            active[runs[index].priority].add(index)
        else:
            active[runs[index].priority].remove(index)
    return parts, other, idle


def count_allocations(planes: Iterable[XPlane]) -> tuple[int, int] | None:
    """Counts memory allocations in a profile, and adds up the requested bytes.

    Returns None if the profile contains no allocations. The allocators of GPUs report all
    allocations. With oneDNN, the CPU allocator reports allocations of at least 256 KiB.
    """
    events = (event for plane in planes for _, line in plane.lines for event in line)
    stats = (event.stats for event in events if event.name == _ALLOCATION)
    sizes = [size for s in stats if isinstance(size := s.get("requested_bytes"), int)]
    return (len(sizes), sum(sizes)) if sizes else None


def _named_events(
    planes: Iterable[XPlane], names_of: Callable[[XEvent], tuple[str, str] | None]
) -> Iterator[tuple[tuple[str, str, str], XEvent]]:
    """Yields the name, type and plane of every operation in the planes, and its event."""
    for plane in planes:
        for _, events in plane.lines:
            for event in events:
                names = names_of(event)
                if names is not None:
                    yield (*names, plane.name), event


def _host_operation(event: XEvent) -> tuple[str, str] | None:
    match = _ON_HOST.fullmatch(event.name)
    return (match[1], match[2]) if match else None


def _kernel_operation(event: XEvent) -> tuple[str, str] | None:
    for key in _LAUNCHED_BY:
        text = event.stats.get(key)
        if isinstance(text, str):
            # The text begins with the name of the operation; annotations may follow.
            match = _ON_HOST.match(text)
            if match:
                # A copy is recorded by the sender or by the receiver. Both get the type of the
                # sender, so that they count as one type.
                return match[1], _TRANSFER.sub(r"_\1Send", match[2])
            if match := _BY_NCCL.match(text):
                return match[0], f"Nccl{match[1]}"
    return None
