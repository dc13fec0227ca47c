"""Profiles that TensorFlow's profiler writes: one message XSpace per host (`*.xplane.pb`).

A profile has planes (host, GPUs), a plane has lines (threads, streams), a line has events. Names
are stored once per plane and referenced by number. No TensorFlow here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cnnbench.run.observe.protobuf import Value, double, fields, parts, signed

# Numbers of fields; those of XStat name the type of its value.
_PLANES = 1
_PLANE_NAME, _PLANE_LINES, _EVENT_NAMES, _STAT_NAMES = 2, 3, 4, 5
_LINE_NAME, _LINE_START, _LINE_EVENTS, _LINE_SHOWN = 2, 3, 4, 11
_EVENT_KEY, _EVENT_OFFSET, _EVENT_DURATION, _EVENT_STATS = 1, 2, 3, 4
_KEY, _ENTRY = 1, 2
_NAME = 2
_STAT_KEY, _STAT_DOUBLE, _STAT_UNSIGNED, _STAT_SIGNED, _STAT_TEXT, _STAT_REFERENCE = (
    1,
    2,
    3,
    4,
    5,
    7,
)


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
class XLine:
    """A thread of the host, or a stream of a GPU."""

    name: str
    events: tuple[XEvent, ...]


@dataclass(frozen=True, slots=True)
class XPlane:
    """A host ("/host:CPU") or a GPU ("/device:GPU:0")."""

    name: str
    lines: tuple[XLine, ...]


def read(message: bytes) -> tuple[XPlane, ...]:
    """The planes of a profile that have events."""
    planes = (_Plane(part).plane() for part in parts(message, _PLANES))
    return tuple(plane for plane in planes if plane.lines)


class _Plane:
    """Reads one plane, whose names may come before or after its lines."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._events = dict(_entry(part) for part in parts(message, _EVENT_NAMES))
        self._stats = dict(_entry(part) for part in parts(message, _STAT_NAMES))

    def plane(self) -> XPlane:
        (name,) = parts(self._message, _PLANE_NAME)
        lines = map(self._line, parts(self._message, _PLANE_LINES))
        return XPlane(_text(name), tuple(line for line in lines if line.events))

    def _line(self, message: bytes) -> XLine:
        name = shown = ""
        start = 0
        events = []
        for number, value in fields(message):
            if number == _LINE_START and isinstance(value, int):
                start = value
            elif number == _LINE_NAME:
                name = _text(value)
            elif number == _LINE_SHOWN:
                shown = _text(value)
            elif number == _LINE_EVENTS and isinstance(value, bytes):
                events.append(value)
        return XLine(shown or name, tuple(self._event(event, start * 1000) for event in events))

    def _event(self, message: bytes, line_start: int) -> XEvent:
        key = offset = duration = 0
        stats = {}
        for number, value in fields(message):
            if isinstance(value, bytes):
                if number == _EVENT_STATS:
                    name, known = self._stat(value)
                    stats[name] = known
            elif number == _EVENT_KEY:
                key = value
            elif number == _EVENT_OFFSET:
                offset = signed(value)
            elif number == _EVENT_DURATION:
                duration = value
        return XEvent(self._events.get(key, ""), line_start + offset, duration, stats)

    def _stat(self, message: bytes) -> tuple[str, int | float | str]:
        name = ""
        known: int | float | str = 0
        for number, value in fields(message):
            if isinstance(value, bytes):
                known = _text(value) if number == _STAT_TEXT else known
            elif number == _STAT_KEY:
                name = self._stats.get(value, "")
            elif number == _STAT_REFERENCE:
                known = self._stats.get(value, "")
            elif number == _STAT_DOUBLE:
                known = double(value)
            elif number in (_STAT_UNSIGNED, _STAT_SIGNED):
                known = signed(value) if number == _STAT_SIGNED else value
        return name, known


def _entry(message: bytes) -> tuple[int, str]:
    key, name = 0, ""
    for number, value in fields(message):
        if number == _KEY and isinstance(value, int):
            key = value
        elif number == _ENTRY and isinstance(value, bytes):
            name = next(map(_text, parts(value, _NAME)), "")
    return key, name


def _text(value: Value) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
