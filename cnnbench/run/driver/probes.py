"""Profilers of single warm-up steps."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.base.files import Scratch
from cnnbench.base.terminal import Messages
from cnnbench.errors import BenchmarkError
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.files import write_bytes, write_text, writing_output
from cnnbench.run.driver.preflight import partition_file
from cnnbench.run.observe import work
from cnnbench.run.observe.graphs import collecting_partitions, write_graph
from cnnbench.run.observe.operations import XPlane, read, sorted_operations, table, wall_times
from cnnbench.run.observe.work import works_of
from cnnbench.run.runtime.loading import without_info_lines
from cnnbench.version import __version__

_MICROSECONDS = 1e-6  # microseconds per picosecond
# Includes all operations of the host and the kernels of GPUs, but no Python functions.
_OPTIONS = {"host_tracer_level": 3, "python_tracer_level": 0, "device_tracer_level": 1}


Probe = tuple[int, AbstractContextManager[None]]
"""A profiler: the number of its step in the warm-up, from 1, and a context manager that is entered
before the step and left after it. Neither is part of a step's time.
"""


def make_probes(plan: RunPlan, graph: Any, messages: Messages) -> Iterator[Probe]:
    """The probes that the parameters request."""
    outputs = plan.outputs
    partitions: list[Any] = []
    if outputs.trace_file or outputs.tfprof_file or outputs.profile_layers:
        # As in tf_cnn_benchmarks, one step is between the profiled step and the timed steps.
        step = max(1, plan.length.warm_up.least - 1)
        folder = None if outputs.use_chrome_trace_format else outputs.trace_file or None
        yield step, profiling(step, folder, partial(_report, plan, graph, partitions, step))
    if outputs.tfprof_file or outputs.profile_layers or outputs.partitioned_graph_file_prefix:
        # The runtime partitions a graph when it runs for the first time. If this step is profiled,
        # too, this probe is left before the profile is read.
        yield 1, _collecting(partitions, outputs.partitioned_graph_file_prefix, messages)


@contextmanager
def profiling(
    step: int, folder: str | None, use: Callable[[tuple[XPlane, ...]], None]
) -> Iterator[None]:
    """Profiles the block, which runs the warm-up step with this number, from 1.

    Copies the profile to `folder` (if given) for `tensorboard --logdir`, and passes its planes to
    `use`. An event with the number marks the step, because TensorBoard's pages about steps need it.
    """
    with Scratch("cnnbench-profile-") as own:
        scratch = own.path / "profile"
        with without_info_lines():
            options = tf.profiler.experimental.ProfilerOptions(**_OPTIONS)
            tf.profiler.experimental.start(os.fspath(scratch), options)
        try:
            # TensorBoard recognizes a step by this name and this root mark.
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                yield
        except BaseException:
            tf.profiler.experimental.stop(save=False)
            raise
        with without_info_lines():
            tf.profiler.experimental.stop()
        written = sorted(scratch.glob("plugins/profile/*/*.xplane.pb"))
        if not written:
            raise BenchmarkError("TensorFlow's profiler wrote no profile")
        if folder is not None:
            with writing_output("trace_file", folder):
                shutil.copytree(scratch, folder, dirs_exist_ok=True)
        use(tuple(plane for path in written for plane in read(path.read_bytes())))


def _report(
    plan: RunPlan, graph: Any, partitions: Sequence[Any], step: int, planes: tuple[XPlane, ...]
) -> None:
    """Writes the requested files of a profile."""
    model, batch = plan.network.model, plan.length.batch_per_device
    together = plan.params.steps_per_execution
    before = (step - 1) // together * together
    steps = f"step {step}" if together == 1 else f"steps {before + 1} to {before + together}"
    title = f"warm-up {steps} of {model.name}, {batch} images per device"
    if plan.outputs.trace_file and plan.outputs.use_chrome_trace_format:
        trace = chrome_trace(planes, {"step": title, "cnnbench": __version__})
        content = json.dumps(trace, allow_nan=False).encode("ascii")
        if plan.outputs.trace_file.endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        write_bytes("trace_file", plan.outputs.trace_file, content)
    if not plan.outputs.tfprof_file and not plan.outputs.profile_layers:
        return
    works = works_of(plan, graph, partitions)
    ran = sorted_operations(planes, works.knows)
    if plan.outputs.tfprof_file:
        write_text("tfprof_file", plan.outputs.tfprof_file, table(ran, f"operations of {title}"))
    if plan.outputs.profile_layers:
        flops = {
            name: batch * plan.length.passes * flops_of_image.training
            for name, flops_of_image in works.image_flops.items()
        }
        layers = work.layers_of(wall_times(ran), works, graph, flops)
        for path in plan.outputs.profile_layers.split(","):
            work.write("profile_layers", path, layers, f"layers of {title}")


@contextmanager
def _collecting(partitions: list[Any], prefix: str | None, messages: Messages) -> Iterator[None]:
    """Appends the partitions of the function that is called in the block to `found`.

    Writes them to numbered paths that begin with `prefix`, if any.
    """
    with collecting_partitions(partitions):
        yield
    if not prefix:
        return
    for number, graph_def in enumerate(partitions):
        path = partition_file(prefix, number)
        write_graph("partitioned_graph_file_prefix", path, graph_def)
        device = next((node.device for node in graph_def.node if node.device), "no device")
        messages.notice(f"{path}: {len(graph_def.node)} operations on {device}")


def chrome_trace(planes: Iterable[XPlane], about: Mapping[str, Any]) -> dict[str, Any]:
    """The trace with the description `about`: a process for every plane, a thread for every line.

    Events without a duration are omitted, because they only show the management of thread pools.
    """
    planes = tuple(planes)
    origin = min((e.start for p in planes for _, line in p.lines for e in line), default=0)
    events: list[dict[str, Any]] = []
    for process, plane in enumerate(planes):
        events.append(_name("process_name", process, 0, plane.name))
        for thread, (name, line) in enumerate(plane.lines):
            events.append(_name("thread_name", process, thread, name))
            for event in line:
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


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
