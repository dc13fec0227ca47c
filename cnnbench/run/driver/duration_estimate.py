"""Estimates the duration of a run from its plan."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cnnbench.plan.place import WorkKind
from cnnbench.plan.run_plan import RunPlan
from cnnbench.run.driver.memory_estimate import computes_on_cpu
from cnnbench.run.runtime.peak_flops import sum_published_peak_flops

_START_SECONDS = {"cpu": 7.0, "gpu": 20.0}
"""Seconds to import TensorFlow, trace the step, and determine the peak FLOP rate."""

_STEP_SECONDS = 0.003
"""Seconds of a step in addition to its arithmetic."""

_EFFICIENCY = {"cpu": 0.5, "gpu": 0.3}
"""Share of the peak FLOP rate that networks reach."""

_MATRIX = 1024
_RATE_SECONDS = 0.2


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
            rate, _ = peak
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
