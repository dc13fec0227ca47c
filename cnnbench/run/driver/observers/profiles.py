"""Profilers of single warm-up steps. Their work is not a part of any step's time."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.base.locks import TemporaryFolder
from cnnbench.base.terminal import MessageWriter
from cnnbench.errors import BenchmarkError
from cnnbench.plan import RunPlan
from cnnbench.records.files import collecting_write_errors, write_bytes
from cnnbench.run.driver.preflight import partition_path
from cnnbench.run.observe.graphs import collecting_partitions, write_graph
from cnnbench.run.observe.operations import XPlane, read_profile
from cnnbench.run.runtime.native_log import without_info_lines
from cnnbench.version import __version__

_MICROSECONDS = 1e-6
"""Microseconds per picosecond."""
# These levels record all operations of the host and all GPU kernels, but no Python functions.
_OPTIONS = {"host_tracer_level": 3, "python_tracer_level": 0, "device_tracer_level": 1}


Probe = tuple[int, AbstractContextManager[None]]
"""A profiler of a warm-up step: the number of the step (from 1), and a context manager.

The context manager is entered before the step and left after it, outside of the step's time.
"""


def make_warm_up_profilers(plan: RunPlan, messages: MessageWriter) -> Iterator[Probe]:
    """Creates the profilers of warm-up steps that the flags request."""
    flags = plan.params
    if flags.trace_file:
        # One more step follows the profiled step before the first timed step, as in
        # tf_cnn_benchmarks.
        step = max(1, plan.length.warm_up.least - 1)
        folder = None if flags.use_chrome_trace_format else flags.trace_file
        yield step, profiling_step(step, folder, partial(_write_trace, plan, step))
    if flags.partitioned_graph_file_prefix:
        # TensorFlow partitions a graph when it runs for the first time, which is the first step.
        yield 1, _writing_partitions(flags.partitioned_graph_file_prefix, messages)


@contextmanager
def profiling_step(
    step: int, folder: str | None, on_profile: Callable[[tuple[XPlane, ...]], None]
) -> Iterator[None]:
    """A context that profiles its block, which runs the warm-up step with the number `step`.

    Copies the profile to `folder` (if given) for `tensorboard --logdir`, and passes its planes to
    `on_profile`. An event with the number marks the step, because TensorBoard's pages about steps
    need it.
    """
    with TemporaryFolder("cnnbench-profile-") as own:
        scratch = own.path / "profile"
        with without_info_lines():
            options = tf.profiler.experimental.ProfilerOptions(**_OPTIONS)
            tf.profiler.experimental.start(os.fspath(scratch), options)
        try:
            # TensorBoard recognizes a step by the name "train" and by `_r`, which marks a root
            # event.
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
            with collecting_write_errors("trace_file", folder):
                shutil.copytree(scratch, folder, dirs_exist_ok=True)
        on_profile(tuple(plane for path in written for plane in read_profile(path.read_bytes())))


def _write_trace(plan: RunPlan, step: int, planes: tuple[XPlane, ...]) -> None:
    """Writes a profile of a step to --trace_file, unless it is a folder for TensorBoard."""
    if not plan.params.use_chrome_trace_format:
        return
    model, batch = plan.network.model, plan.length.batch_per_device
    together = plan.params.steps_per_execution
    before = (step - 1) // together * together
    steps = f"step {step}" if together == 1 else f"steps {before + 1} to {before + together}"
    title = f"warm-up {steps} of {model.name}, {batch} images per device"
    trace = chrome_trace(planes, {"step": title, "cnnbench": __version__})
    content = json.dumps(trace, allow_nan=False).encode("ascii")
    if plan.params.trace_file.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    write_bytes("trace_file", plan.params.trace_file, content)


@contextmanager
def _writing_partitions(prefix: str, messages: MessageWriter) -> Iterator[None]:
    """A context that writes the graph partitions of the function called inside to numbered paths
    that begin with `prefix`.
    """
    partitions: list[Any] = []
    with collecting_partitions(partitions):
        yield
    for number, graph_def in enumerate(partitions):
        path = partition_path(prefix, number)
        write_graph("partitioned_graph_file_prefix", path, graph_def)
        device = next((node.device for node in graph_def.node if node.device), "no device")
        messages.notice(f"{path}: {len(graph_def.node)} operations on {device}")


def chrome_trace(planes: Iterable[XPlane], run_info: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a profile to Chrome's trace format: planes are processes, their lines are threads.

    `run_info` describes the run. Events without a duration are omitted, because they only show the
    management of thread pools.
    """
    planes = tuple(planes)
    origin = min((e.start for p in planes for _, line in p.lines for e in line), default=0)
    events: list[dict[str, Any]] = []
    for process, plane in enumerate(planes):
        events.append(_name_event("process_name", process, 0, plane.name))
        for thread, (name, line) in enumerate(plane.lines):
            events.append(_name_event("thread_name", process, thread, name))
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
    return {"displayTimeUnit": "ms", "otherData": dict(run_info), "traceEvents": events}


def _name_event(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
