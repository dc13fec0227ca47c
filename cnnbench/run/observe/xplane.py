"""Reads profiles of TensorFlow's profiler, which are one XSpace message per host (`*.xplane.pb`).

A profile consists of planes (host, GPUs). A plane consists of lines (threads, streams), and a line
consists of events. Names are stored once per plane and referenced by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cnnbench.run.observe.messages import message_class


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
