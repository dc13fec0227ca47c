"""A profile in Chrome's trace format, for chrome://tracing and https://ui.perfetto.dev.

The format: Google, "Trace Event Format" (2016). No TensorFlow here.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from typing import Any

from cnnbench.run.observe.xplane import Plane

_MICROSECONDS = 1e-6  # per picosecond


def chrome_trace(planes: Iterable[Plane], about: Mapping[str, Any]) -> dict[str, Any]:
    """The trace: a process for every plane, a thread for every line.

    Moments without a duration are left out: they are bookkeeping of thread pools.

    Args:
      planes: of a profile.
      about: what the trace shows; JSON values.
    """
    planes = tuple(planes)
    origin = min((e.start for p in planes for line in p.lines for e in line.events), default=0)
    events: list[dict[str, Any]] = []
    for process, plane in enumerate(planes):
        events.append(_name("process_name", process, 0, plane.name))
        for thread, line in enumerate(plane.lines):
            events.append(_name("thread_name", process, thread, line.name))
            for event in line.events:
                if event.duration:
                    events.append(
                        {
                            "ph": "X",
                            "name": event.name,
                            "pid": process,
                            "tid": thread,
                            "ts": (event.start - origin) * _MICROSECONDS,
                            "dur": event.duration * _MICROSECONDS,
                            "args": dict(event.stats),
                        }
                    )
    return {"displayTimeUnit": "ms", "otherData": dict(about), "traceEvents": events}


def encoded(trace: Mapping[str, Any], path: str) -> bytes:
    """The content of a trace file: JSON, compressed by gzip if the name ends in .gz."""
    text = json.dumps(trace, allow_nan=False).encode("ascii")
    return gzip.compress(text, mtime=0) if path.endswith(".gz") else text


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
