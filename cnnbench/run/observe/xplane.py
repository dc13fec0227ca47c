"""Profiles that TensorFlow's profiler writes: one message XSpace per host (`*.xplane.pb`).

A profile has planes (host, GPUs), a plane has lines (threads, streams), a line has events. Names
are stored once per plane and referenced by number. No TensorFlow here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cnnbench.run.observe.protobuf import message


@dataclass(frozen=True, slots=True)
class XEvent:
    """An interval, or a point in time if `duration` is 0, in picoseconds from a common origin.

    The name of an operation on the host is "name:type".
    """

    name: str
    start: int
    duration: int
    stats: Mapping[str, int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class XPlane:
    """A host ("/host:CPU") or a GPU ("/device:GPU:0").

    `lines` are threads of the host or streams of the GPU, each with its name and events.
    """

    name: str
    lines: tuple[tuple[str, tuple[XEvent, ...]], ...]


def read(profile: bytes) -> tuple[XPlane, ...]:
    """The planes of a profile that have events."""
    planes = tuple(map(_plane, message("XSpace").FromString(profile).planes))
    return tuple(plane for plane in planes if plane.lines)


def _plane(plane: Any) -> XPlane:
    events, stats = (
        {entry.key: _text(entry.value.name) for entry in names}
        for names in (plane.event_names, plane.stat_names)
    )

    def value_of(field: str, value: Any) -> int | float | str:
        if field == "reference":
            return stats.get(value, "")
        return _text(value) if field == "text" else value

    def read(event: Any, line_start: int) -> XEvent:
        found = {
            stats.get(stat.key, ""): value_of(field.name, value)
            for stat in event.stats
            for field, value in stat.ListFields()
            if field.name != "key"
        }
        start = line_start + event.offset
        return XEvent(events.get(event.key, ""), start, event.duration, found)

    lines = (
        (_text(one.shown or one.name), tuple(read(e, one.start * 1000) for e in one.events))
        for one in plane.lines
    )
    return XPlane(_text(plane.name), tuple((name, made) for name, made in lines if made))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
