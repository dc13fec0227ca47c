"""Estimated duration of a run, from its FLOPs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cnnbench.flags import Params
from cnnbench.run.driver.memory import computes_on_cpu
from cnnbench.run.driver.plan import Plan
from cnnbench.run.runtime.peak_flops import published

_START_SECONDS = {"cpu": 7.0, "gpu": 20.0}
"""To import TensorFlow, to build and to trace the step, to measure or look up the peak."""

_STEP_SECONDS = 0.003
"""Of a step without arithmetic."""

_EFFICIENCY = {"cpu": 0.5, "gpu": 0.3}
"""Share of the peak that networks reach."""

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_MATRIX = 1024
_RATE_SECONDS = 0.2


@dataclass(frozen=True)
class RunWork:
    """Amount of computation of a run.

    Attributes:
      kind: of device, "cpu" or "gpu".
      steps: warm-up, timed and of evaluations.
      flops: of all of them together; on GPUs of one device.
    """

    kind: str
    dtype: str
    steps: int
    flops: float

    def seconds(self, facts: Mapping[str, Any]) -> float | None:
        """Estimated seconds on a machine with these facts; None for GPUs of unknown peak."""
        rate = cpu_rate() if self.kind == "cpu" else _gpu_rate(facts, self.dtype)
        if rate is None:
            return None
        computing = self.flops / (rate * _EFFICIENCY[self.kind])
        return _START_SECONDS[self.kind] + self.steps * _STEP_SECONDS + computing


def work_of(params: Params, plan: Plan) -> RunWork:
    """Amount of computation of a run."""
    on_cpu = computes_on_cpu(params)
    training, forward = plan.spec.training_flops_per_image, plan.spec.forward_flops_per_image
    devices = params.num_gpus if on_cpu else 1
    steps = plan.training_steps
    flops = float(steps * plan.batch_per_device * (training if plan.trains else forward))
    if params.input_only:
        flops = 0.0
    if plan.trains and plan.num_eval_batches:
        evaluations = max(1, len(plan.eval_steps)) * plan.num_eval_batches
        steps += evaluations
        flops += evaluations * plan.eval_batch_per_device * forward
    kind = "cpu" if on_cpu else "gpu"
    return RunWork(kind, _DTYPES.get(params.precision, "float32"), steps, flops * devices)


@cache
def cpu_rate() -> float:
    """Current FLOP/s of a matrix product on the CPU, measured once per process."""
    import numpy as np

    matrix = np.ones((_MATRIX, _MATRIX), np.float32)
    best, end = float("inf"), time.perf_counter() + _RATE_SECONDS
    while (start := time.perf_counter()) < end or best == float("inf"):
        np.matmul(matrix, matrix)
        best = min(best, time.perf_counter() - start)
    return 2 * _MATRIX**3 / best


def _gpu_rate(facts: Mapping[str, Any], dtype: str) -> float | None:
    names = facts.get("gpu_names")
    peak = published(names[:1], dtype, tf32=True) if isinstance(names, list) else None
    return None if peak is None else peak.flops_per_sec
