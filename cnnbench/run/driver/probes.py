"""Profilers attached to single warm-up steps."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

from cnnbench.base.text.progress import Messages
from cnnbench.flags import Params
from cnnbench.models.declare import scope_flops
from cnnbench.records.files import write_bytes, write_text
from cnnbench.run.driver.outputs import partition_file
from cnnbench.run.driver.plan import Plan
from cnnbench.run.observe import layers
from cnnbench.run.observe.graphs import writing_partitions
from cnnbench.run.observe.operations import operations, table
from cnnbench.run.observe.profile import profiling
from cnnbench.run.observe.xplane import XPlane
from cnnbench.version import __version__


class Probe(NamedTuple):
    """A profiler of one step.

    Attributes:
      step: its number in the warm-up, from 1.
      look: entered before the step and left after it, outside of any step's time.
    """

    step: int
    look: AbstractContextManager[None]


Looks = Callable[[Plan, Any], Iterable[Probe]]
"""Probes of a run, given its plan and the graph of the step as traced."""


def make_probes(
    params: Params, plan: Plan, graph: Any, messages: Messages, looks: Looks | None = None
) -> tuple[Probe, ...]:
    """The profilers that the parameters ask for."""
    probes = [] if looks is None else [*looks(plan, graph)]
    if params.partitioned_graph_file_prefix:
        # The runtime divides a graph among the devices when it runs for the first time.
        probes.append(Probe(1, _partitions(params.partitioned_graph_file_prefix, messages)))
    if params.trace_file or params.tfprof_file or params.profile_layers:
        # As tf_cnn_benchmarks: one more step lies between the profiled one and the timed ones.
        step = max(1, plan.warmup - 1)
        folder = None if params.use_chrome_trace_format else params.trace_file or None
        probes.append(Probe(step, profiling(folder, _Report(params, plan, graph, step))))
    return tuple(probes)


class _Report:
    """Writes the files of a profile."""

    def __init__(self, params: Params, plan: Plan, graph: Any, step: int) -> None:
        self._params = params
        self._plan = plan
        self._graph = graph
        self._title = (
            f"warm-up step {step} of {plan.model.name}, {plan.batch_per_device} images per device"
        )

    def __call__(self, planes: Sequence[XPlane]) -> None:
        """Writes the requested files."""
        params = self._params
        if params.trace_file and params.use_chrome_trace_format:
            trace = chrome_trace(planes, {"step": self._title, "cnnbench": __version__})
            write_bytes("trace_file", params.trace_file, encoded(trace, params.trace_file))
        made = operations(planes, layers.of_step(self._graph))
        if params.tfprof_file:
            title = f"operations of {self._title}"
            write_text("tfprof_file", params.tfprof_file, table(made, title))
        if params.profile_layers:
            found = layers.layers_of(made, self._graph, self._flops(), params.num_gpus)
            for path in params.profile_layers.split(","):
                layers.write("profile_layers", path, found, f"layers of {self._title}")

    def _flops(self) -> dict[str, int]:
        """FLOPs of the batch of one device, by layer."""
        plan = self._plan
        flops = scope_flops(plan.model, plan.spec.num_classes, training=plan.trains)
        return {name: plan.batch_per_device * one.training for name, one in flops.items()}


@contextmanager
def _partitions(prefix: str, messages: Messages) -> Iterator[None]:
    written: list[str] = []
    path_of = partial(partition_file, prefix)
    with writing_partitions("partitioned_graph_file_prefix", path_of, written):
        yield
    for line in written:
        messages.notice(line)


_MICROSECONDS = 1e-6  # per picosecond


def chrome_trace(planes: Iterable[XPlane], about: Mapping[str, Any]) -> dict[str, Any]:
    """The trace, about what `about` says: a process for every plane, a thread for every line.

    Moments without a duration are left out: they are bookkeeping of thread pools.
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
    """Content of a trace file: JSON, compressed by gzip if the name ends in .gz."""
    text = json.dumps(trace, allow_nan=False).encode("ascii")
    return gzip.compress(text, mtime=0) if path.endswith(".gz") else text


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
