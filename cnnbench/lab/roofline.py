"""Implements `cnnbench roofline`, which compares the time of each layer with limits of the machine.

Source: Williams, Waterman, Patterson, "Roofline", Communications of the ACM 52 (4), 2009.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cnnbench.base.stats import faster_half
from cnnbench.base.tables import csv_text
from cnnbench.base.text import count_text, format_bytes
from cnnbench.errors import BenchmarkError
from cnnbench.machine.cpu import Host, available_cpu_count, convolution_kernels
from cnnbench.models.declaration import FlopCounts
from cnnbench.plan import Runnable, RunPlan
from cnnbench.records.codec import encode
from cnnbench.records.profiles import StepPartKey
from cnnbench.records.roofline import Machine, Roofline, RooflineRow, sort_roofline_rows
from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN
from cnnbench.run.observe.work import OperationWork, flops_by_part
from cnnbench.run.runtime.peak_flops import peak_flops

if TYPE_CHECKING:
    from cnnbench.records.run import RunRecord

_COPIED_BYTES = 256 << 20  # Size of the copied memory, which is larger than all caches.
_COPIES = 8


def roofline_rows(
    steps: Sequence[Mapping[tuple[str, str], float]],
    work: Callable[[str, str], OperationWork],
    flops: Mapping[str, FlopCounts],
    machine: Machine,
    step_seconds: float,
) -> tuple[RooflineRow, ...]:
    """Computes the rows of a roofline table from profiled training steps.

    `steps` contains, for each step, the seconds of each operation by name and type. `work` returns
    the work of an operation with this name and type. `flops` includes all devices.
    """
    seconds: defaultdict[StepPartKey, float] = defaultdict(float)
    moved: defaultdict[StepPartKey, int] = defaultdict(int)
    works = {profile_row: work(*profile_row) for step in steps for profile_row in step}
    for operation, (part, _, size) in works.items():
        seconds[part] += fmean(step.get(operation, 0.0) for step in steps)
        moved[part] += size
    counted = flops_by_part(works.values(), flops)
    rows = [
        RooflineRow(
            *part,
            time,
            counted.get(part, 0),
            moved[part],
            machine.least_seconds(counted.get(part, 0), moved[part]),
            time / step_seconds,
        )
        for part, time in seconds.items()
    ]
    return sort_roofline_rows(rows)


def measure_roofline(run: Runnable, **options: Any) -> tuple[Roofline, RunPlan]:
    """Runs a benchmark with profiled steps, and returns the roofline and the plan of the run.

    The last warm-up steps are profiled, as many as there are timed steps. The limits of the machine
    are measured after the run. `options` are passed to `BenchmarkCNN`.
    """
    benchmark = BenchmarkCNN(run, **options)
    plan = benchmark.plan
    profiler = benchmark.profile_warm_up_steps(plan.length.batches)
    record = benchmark.run()
    machine, steps = _measure_machine(plan, record), profiler.steps
    profiled = record.warmup_step_seconds[-len(steps) :]
    kept, plain = faster_half(profiled), faster_half(record.step_seconds)
    seconds = fmean(profiled[step] for step in kept)
    # A run without result files does not measure the peak FLOP rate, so it is measured here.
    figures = dataclasses.replace(
        record.measured,
        peak_flops_per_sec=machine.flops_per_sec,
        peak_flops_source=machine.flops_source,
    )
    of_steps = [steps[step].seconds for step in kept]
    on_cpu = record.placement is not None and record.placement.kind == "cpu"
    roofline = Roofline(
        roofline_rows(of_steps, profiler.work_finder, profiler.flops, machine, seconds),
        machine,
        seconds,
        fmean(record.step_seconds[step] for step in plain),
        dataclasses.replace(record, measured=figures),
        convolution_kernels(Host()) if on_cpu else None,
    )
    return roofline, plan


def _measure_machine(plan: RunPlan, record: RunRecord) -> Machine:
    placement = record.placement
    assert placement is not None
    dtype = plan.numerics.dtype
    devices = placement.devices
    peak = peak_flops(placement.kind, devices, dtype, plan.params.peak_flops)
    if peak is None:
        raise BenchmarkError(
            f"the peak rate of the device in {dtype} is unknown; set it with --peak_flops"
        )
    rate, source = _measure_bandwidth(placement.kind, devices[0])
    parts = len(devices) if placement.kind == "gpu" else 1
    return Machine(peak.flops_per_sec, parts * rate, peak.source, source)


def _measure_bandwidth(device_kind: str, device: str) -> tuple[float, str]:
    """Measures the memory bandwidth of a device. Returns bytes per second, and a description of the
    measurement.

    The bandwidth counts bytes that are read and bytes that are written. The result is from the
    fastest of several copies of 256 MiB, which take about one second together. On a CPU, there is
    one thread for each usable processor, and the target memory is already mapped. (Operations of a
    step may write to new memory, for which the system must first provide pages.)
    """
    if device_kind == "cpu":
        threads = available_cpu_count()
        seconds, how = _host_copy_seconds(threads), count_text(threads, "thread", "threads")
    else:
        seconds, how = _gpu_copy_seconds(device), "one GPU"
    return 2 * _COPIED_BYTES / seconds, f"measured: copying {format_bytes(_COPIED_BYTES)}, {how}"


def _host_copy_seconds(threads: int) -> float:
    source = np.ones(_COPIED_BYTES // 4, np.float32)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return _min_seconds(lambda: list(pool.map(lambda part: np.copyto(*part), parts)))


def _gpu_copy_seconds(device: str) -> float:
    import tensorflow as tf

    with tf.device(device):
        source = tf.ones([_COPIED_BYTES // 4])

        def copy() -> None:
            copied = tf.raw_ops.DeepCopy(x=source)
            # The call that reads an element returns only when the copy is complete.
            copied[:1].numpy()

        return _min_seconds(copy)


def _min_seconds(copy: Callable[[], object]) -> float:
    times = []
    for _ in range(_COPIES):
        start = time.perf_counter()
        copy()
        times.append(time.perf_counter() - start)
    return min(times)


def roofline_to_csv(roofline: Roofline) -> str:
    """Formats a roofline as CSV: one line for each row, and one line for the remaining time of the
    step.

    Numbers are not rounded.
    """
    rest = roofline.remainder_seconds
    remainder = RooflineRow("", "remainder", "", rest, 0, 0, 0.0, rest / roofline.step_seconds)
    rows = [cast("dict[str, Any]", encode(row)) for row in (*roofline.rows, remainder)]
    return csv_text(rows[0], (row.values() for row in rows))
