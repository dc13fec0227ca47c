"""Estimates the memory and the duration of a run from its plan, before the run begins.

`scripts/measure_memory` compares estimated memory with the measured peak (docs/evidence.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from cnnbench.base.terminal import MessageWriter
from cnnbench.base.text import format_bytes
from cnnbench.base.urls import is_url, local_or_url_path
from cnnbench.errors import FlagError, OutOfMemoryError
from cnnbench.machine.cpu import Host, MemoryCapacity, read_memory_capacity
from cnnbench.machine.gpu import count_gpus, least_free_gpu_memory
from cnnbench.models.declaration import bytes_per_image
from cnnbench.models.spec import MASTER_BYTES
from cnnbench.plan import RunPlan, WorkKind, card_numbers
from cnnbench.records.measurements import Measurements
from cnnbench.run.runtime.peak_flops import sum_published_peak_flops
from cnnbench.variable_mgr.modes import Copies

PROCESS_BYTES = 620 * 2**20
"""Memory of a process with TensorFlow 2.21 and a traced step, without tensors."""

_SHUFFLE_BUFFER = 10_000
"""Number of records in the shuffle buffer, see `InputSpec.shuffle_buffer`."""

_CERTAIN = 1.5
"""Ratio of estimated to existing memory above which a run is refused."""
_NEAR = 0.9
"""Ratio of estimated to available memory above which a run causes a warning."""

_START_SECONDS = {"cpu": 7.0, "gpu": 20.0}
"""Seconds to import TensorFlow, trace the step, and determine the peak FLOP rate."""

_STEP_SECONDS = 0.003
"""Seconds of a step in addition to its arithmetic."""

_EFFICIENCY = {"cpu": 0.5, "gpu": 0.3}
"""Share of the peak FLOP rate that networks reach."""

_MATRIX = 1024
_RATE_SECONDS = 0.2


class MemoryEstimate(NamedTuple):
    """Estimated memory of a process with CPU devices, or of one GPU, in bytes.

    Attributes:
      fixed: bytes that do not depend on the batch size.
      per_image: bytes for one more image on each device of the process.
      batch: images per device.
    """

    fixed: int
    per_image: int
    batch: int

    @property
    def total(self) -> int:
        """Bytes that a step with the whole batch needs."""
        return self.fixed + self.per_image * self.batch

    def largest_batch(self, memory: int) -> int:
        """The largest batch size per device that fits into `memory` bytes; 0 if none fits."""
        return max(0, (memory - self.fixed) // max(1, self.per_image))


def available_memory(plan: RunPlan, device_kind: str) -> MemoryCapacity | None:
    """Returns the machine's memory if `device_kind` is "cpu", one GPU's memory if it is "gpu".

    None if it is unknown.
    """
    if device_kind == "cpu":
        return read_memory_capacity()
    return least_free_gpu_memory(card_numbers(plan.params), plan.params.gpus_per_card)


def computes_on_cpu(plan: RunPlan) -> bool:
    """Whether a run will probably compute on the CPU. Does not load TensorFlow."""
    device = plan.params.device
    return device == "cpu" or (device == "auto" and not _count_gpus())


@cache
def _count_gpus() -> int:
    return count_gpus(Host())


def estimate_memory(plan: RunPlan, device_kind: str) -> MemoryEstimate:
    """Estimates the peak memory of the process (`device_kind` is "cpu") or of each GPU ("gpu")."""
    towers = plan.params.num_gpus if device_kind == "cpu" else 1
    fixed = PROCESS_BYTES + _encoded_bytes(plan) if device_kind == "cpu" else 0
    per_image = 0
    if plan.work is not WorkKind.INPUT:
        fixed += _variable_bytes(plan, towers)
        per_image = _activation_bytes(plan, plan.work.trains)
    # Synthetic examples stay on the device, one batch for each pass of an update.
    waiting = passes = plan.params.gradient_accumulation_steps
    if plan.params.data_dir:
        together = plan.params.steps_per_execution
        waiting = plan.input.training.datasets_prefetch_buffer_size
        waiting += 1 if together == 1 else together * passes
        # Mixing combines pairs of images, so both images of a pair are in memory.
        waiting += 2 * plan.input.training.mixes_images
    example = MASTER_BYTES * sum(math.prod(element.sizes) for element in plan.network.spec.elements)
    waiting *= example
    step = MemoryEstimate(fixed, towers * (per_image + waiting), plan.length.batch_per_device)
    if not plan.length.eval_batches or not plan.work.trains:
        return step
    per_image = towers * (_activation_bytes(plan, False) + waiting)
    evaluation = MemoryEstimate(step.fixed, per_image, plan.length.eval_batch_per_device)
    return max(step, evaluation, key=lambda phase: phase.total)


def _activation_bytes(plan: RunPlan, training: bool) -> int:
    return bytes_per_image(
        plan.network.model,
        plan.network.spec,
        training=training,
        value_bytes=plan.numerics.activation_bytes,
        recomputes=plan.recomputed_flops is not None,
    )


def _variable_bytes(plan: RunPlan, towers: int) -> int:
    """Bytes of variables, gradients and optimizer slots on the devices of `towers` towers."""
    size = sum(variable.bytes for variable in plan.network.spec.variables)
    copies = 1 if plan.place.mode.copies is Copies.ONE else towers
    # With 16-bit arithmetic, each 32-bit weight also has a 16-bit copy.
    width = 1.0 if plan.numerics.activation_bytes == 4 else 1.5
    if not plan.work.trains:
        return round(size * copies * width)
    slots = _slots_per_weight(plan)
    # Each tower stores its gradients. Each device with a copy of the variables also stores the sum
    # of all gradients.
    gradients = towers + (1 if copies == 1 else towers)
    if plan.params.gradient_accumulation_steps > 1:
        gradients += towers  # The sum over the passes of an update.
    return round(size * (copies * (width + slots) + gradients))


def _slots_per_weight(plan: RunPlan) -> int:
    """Number of values that the optimizer stores for each weight."""
    return len(plan.numerics.optimizer_spec.slots) + bool(plan.params.ema_decay)


def _encoded_bytes(plan: RunPlan) -> int:
    """Bytes of encoded examples in the shuffle buffer or cache of the input pipeline."""
    if plan.params.data_dir is None:
        return 0
    subset = "validation" if plan.work is WorkKind.EVALUATION else "train"
    files = plan.network.dataset.find(plan.params.data_dir, subset)
    # For shards behind a URL, only the size of one shard is requested; the other shards are assumed
    # to have the same size.
    measured = files[:1] if is_url(plan.params.data_dir) else files
    total = sum(local_or_url_path(file).stat().st_size for file in measured)
    size = total * len(files) // len(measured)
    if plan.input.training.datasets_use_caching or not plan.network.dataset.skips_bad_records:
        return size
    share = min(1.0, _SHUFFLE_BUFFER / max(1, plan.length.train_examples))
    return 0 if plan.work is WorkKind.EVALUATION else math.ceil(size * share)


def check_memory_estimate(
    needed: MemoryEstimate, memory: MemoryCapacity, plan: RunPlan, *, refuse: bool = True
) -> str | None:
    """Compares estimated with existing memory. Returns a warning, or None if the memory suffices.

    Args:
      refuse: whether to raise an error if the memory is much too small.

    Raises:
      FlagError: the memory is much too small. The error contains both sizes.
    """
    gpus = plan.params.num_gpus
    figures = f"takes about {format_bytes(needed.total)} of memory with --num_gpus={gpus}, but "
    if refuse and needed.total > _CERTAIN * memory.total:
        most = needed.largest_batch(memory.available)
        advice = f"a batch of {most} should fit"
        if not most:
            one = format_bytes(needed.fixed + needed.per_image)
            advice = f"a batch of 1 takes {one}, and {format_bytes(memory.available)} is available"
            advice += "; lower --num_gpus" if gpus > 1 else ""
        flag = "batch_size" if most or gpus == 1 else "num_gpus"
        value = needed.batch if flag == "batch_size" else gpus
        raise FlagError(flag, value, f"{figures}there is {format_bytes(memory.total)}; {advice}")
    if needed.total > _NEAR * memory.available:
        return (
            f"--batch_size={needed.batch} {figures}{format_bytes(memory.available)} is available; "
            "lower --batch_size or --num_gpus if the run runs out of memory"
        )
    return None


def check_memory(
    plan: RunPlan, measurements: Measurements, messages: MessageWriter, device_kind: str
) -> None:
    """Checks the memory that a run needs, and records the estimate. Warns if it may not suffice.

    `device_kind` is "cpu" or "gpu".

    Raises:
      FlagError: the run needs much more than the main memory.
      OutOfMemoryError: the same, if --find_batch_size can try a smaller batch.
    """
    needed = estimate_memory(plan, device_kind)
    measurements.update_record("measured", estimated_memory_bytes=needed.total)
    memory = available_memory(plan, device_kind)
    if memory is None:
        return
    try:
        warning = check_memory_estimate(needed, memory, plan, refuse=device_kind == "cpu")
    except FlagError as error:
        if measurements.can_halve_batch:
            raise OutOfMemoryError(str(error)) from error
        raise
    if warning is not None:
        messages.warning(warning, "fit")


@dataclass(frozen=True)
class RunComputation:
    """The amount of computation of a run, from which its duration is estimated.

    Attributes:
      kind: kind of device, "cpu" or "gpu".
      dtype: compute dtype.
      steps: number of warm-up, timed and evaluation steps.
      flops: FLOPs of all steps together; on GPUs, FLOPs of one device.
    """

    kind: str
    dtype: str
    steps: int
    flops: float

    def estimate_seconds(self, facts: Mapping[str, Any]) -> float | None:
        """Estimates the seconds of the run on a machine with the recorded properties `facts`.

        Returns None if the peak FLOP rate of the GPU is unknown.
        """
        if self.kind == "cpu":
            rate = measure_cpu_flops()
        else:
            names = facts.get("gpu_names")
            if not isinstance(names, list):
                return None
            peak = sum_published_peak_flops(names[:1], self.dtype, tf32=True)
            if peak is None:
                return None
            rate = peak.flops_per_sec
        computing = self.flops / (rate * _EFFICIENCY[self.kind])
        return _START_SECONDS[self.kind] + self.steps * _STEP_SECONDS + computing


def estimate_run_computation(plan: RunPlan) -> RunComputation:
    """Computes numbers of steps and FLOPs of a run from its plan."""
    on_cpu = computes_on_cpu(plan)
    spec = plan.network.spec
    training, forward = spec.training_flops_per_image, spec.forward_flops_per_image
    devices = plan.params.num_gpus if on_cpu else 1
    steps, passes = plan.length.training_steps, plan.params.gradient_accumulation_steps
    per_image = training + (plan.recomputed_flops or 0) if plan.work.trains else forward
    flops = float(steps * passes * plan.length.batch_per_device * per_image)
    if plan.work is WorkKind.INPUT:
        flops = 0.0
    if plan.work.trains and plan.length.eval_batches:
        evaluations = max(1, len(plan.length.eval_steps)) * plan.length.eval_batches
        steps += evaluations
        flops += evaluations * plan.length.eval_batch_per_device * forward
    kind = "cpu" if on_cpu else "gpu"
    return RunComputation(kind, plan.numerics.dtype, steps, flops * devices)


@cache
def measure_cpu_flops() -> float:
    """Measures the FLOP/s of a matrix product on the CPU, once per process."""
    import numpy as np

    matrix = np.ones((_MATRIX, _MATRIX), np.float32)
    best, end = float("inf"), time.perf_counter() + _RATE_SECONDS
    while (start := time.perf_counter()) < end or best == float("inf"):
        np.matmul(matrix, matrix)
        best = min(best, time.perf_counter() - start)
    return 2 * _MATRIX**3 / best
