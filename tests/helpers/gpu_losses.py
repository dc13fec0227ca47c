"""What a run on GPUs has to compute: the losses of a run on CPUs that is as simple as possible."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Flags = Mapping[str, Any]

JOB = ("workers", "ps")
"""What is no flag of a run, but the number of tasks of a job."""

ON_CPUS = {"TF_ENABLE_ONEDNN_OPTS": "0"}
"""Environment in which CPUs have the kernels of the emulated GPUs; see the emulator's README."""

# Gradients are not added up in the same order on both sides.
TOLERANCES = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 2e-2}
"""Largest relative difference of a loss by --precision."""

FORWARD_LOSS = """
from cnnbench.run.driver.training_step import StepValues
of = StepValues.of
StepValues.of = lambda *given, forward_only: of(*given, forward_only=False)
"""
"""Python that makes the loss of a forward-only run the mean of its outputs, in place of 0."""

# What does not change what a run computes.
_SAME = (
    *("data_format", "xla_compile", "freeze_when_forward_only", "local_parameter_device"),
    *("all_reduce_spec", "all_reduce_group_size", "hierarchical_copy", "cross_device_ops"),
    *("gradient_repacking", "agg_small_grads_max_bytes", "gradient_bucket_bytes"),
    *("variable_caching", *JOB),
)
_SHARED = ("parameter_server", "central_storage_strategy")


def command(flags: Flags) -> list[str]:
    """The words of a run, or of the launch of a job, behind `cnnbench`."""
    words = [f"--{name}={value}" for name, value in flags.items() if name not in JOB]
    tasks = [f"--{name}={flags[name]}" for name in JOB if name in flags]
    return ["launch", *tasks, "--", *words] if tasks else words


def towers(flags: Flags) -> int:
    """The number of towers of a run or of all workers of a job."""
    return int(flags.get("num_gpus", 1)) * int(flags.get("workers", 1))


def on_cpus(flags: Flags) -> dict[str, Any]:
    """The simplest run on CPUs that computes the same.

    Moving averages are those of the first tower where towers share variables, otherwise each
    tower's own.
    """
    mode = flags.get("variable_update", "parameter_server")
    kept = {name: value for name, value in flags.items() if name not in _SAME}
    kept |= {"num_gpus": towers(flags), "device": "cpu"}
    if mode != "independent":
        kept["variable_update"] = "parameter_server" if mode in _SHARED else "replicated"
    return kept


def values(record: Mapping[str, Any]) -> dict[str, float]:
    """The losses of a record's steps, and losses and metrics of its evaluations, by name.

    Not accuracies, which the last bit of two equal logits decides.
    """
    losses = enumerate(record["losses"], start=1)
    found = {f"loss {step}": float(loss) for step, loss in losses}
    for one in record["evaluations"]:
        named = {"loss": one["loss"], **one["metrics"]}
        found |= {f"evaluation {n}": float(v) for n, v in named.items() if v is not None}
    return found


def differences(found: Mapping[str, float], expected: Mapping[str, float]) -> dict[str, float]:
    """Relative differences by name; infinite where one side has no finite number."""
    result = {}
    for name in {**found, **expected}:
        mine, right = found.get(name, math.nan), expected.get(name, math.nan)
        far = abs(mine - right) / max(abs(right), 1e-3)
        result[name] = far if math.isfinite(far) else math.inf
    return result
