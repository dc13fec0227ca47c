"""Runs on emulated GPUs, as mappings of flags, and the losses that they must have.

The expected losses are those of a run on CPUs that is as simple as possible. The cases of modes and
reductions, which scripts/check_emulated_gpus runs, are pairs of values, not all products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from covering import covering_pairs

from cnnbench.errors import UsageError
from cnnbench.flags import Params
from cnnbench.models import registry
from cnnbench.optimizers import OPTIMIZERS as REGISTERED
from cnnbench.plan import check_flags
from cnnbench.variable_mgr.all_reduce.registry import names

Flags = Mapping[str, Any]

JOB = ("workers", "ps")
"""What is not a flag of a run, but the number of tasks of a job."""

# Gradients are not added up in the same order on both sides.
TOLERANCES = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 2e-2}
"""Largest relative difference of a loss by --precision."""

FORWARD_LOSS = """
from cnnbench.run.driver.training import Training
values = Training._step_values
Training._step_values = lambda run, result: values(run, result)._replace(loss=float(result.loss))
"""
"""Python that makes the loss of a forward-only run the mean of its outputs, in place of 0."""

# What does not change what a run computes.
_SAME = (
    *("data_format", "xla_compile", "freeze_when_forward_only", "local_parameter_device"),
    *("all_reduce_spec", "all_reduce_group_size", "hierarchical_copy", "cross_device_ops"),
    *("gradient_repacking", "agg_small_grads_max_bytes", "gradient_bucket_bytes"),
    *("variable_caching", "gpus_per_card", *JOB),
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


def machine(flags: Flags) -> dict[str, int]:
    """Number of emulated cards of a run or job, and of GPUs on each."""
    parts = int(flags.get("gpus_per_card", 1))
    return {"gpus": math.ceil(towers(flags) / parts), "parts": parts}


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


TRAINED = {"eval_during_training_every_n_steps": 5, "num_eval_batches": 1}
FORWARD = {"forward_only": True}

PRECISIONS: Sequence[Flags] = (
    {},
    {"precision": "fp16"},
    {"precision": "fp16", "fp16_enable_auto_loss_scale": True},
    {"precision": "bf16"},
)
LAYOUTS: Sequence[Flags] = ({}, {"data_format": "NHWC"}, {"xla_compile": True})
MODES: Sequence[Flags] = (
    {"variable_update": "parameter_server"},
    {"variable_update": "parameter_server", "local_parameter_device": "cpu"},
    {"variable_update": "parameter_server", "staged_vars": True},
    {"variable_update": "replicated", "all_reduce_spec": "nccl"},
    {"variable_update": "replicated", "local_parameter_device": "cpu"},
    {"variable_update": "distributed_replicated"},
    {"variable_update": "distributed_replicated", "local_parameter_device": "cpu"},
    {"variable_update": "distributed_all_reduce", "all_reduce_spec": "pscpu:2K:xring"},
    {"variable_update": "collective_all_reduce"},
    {"variable_update": "independent"},
    *(
        {"variable_update": "mirrored_strategy", "cross_device_ops": ops}
        for ops in ("auto", "nccl", "hierarchical_copy", "reduction_to_one_device")
    ),
    {"variable_update": "multi_worker_mirrored_strategy"},
    {"variable_update": "central_storage_strategy"},
)
OPTIMIZERS: Sequence[Flags] = (
    {},
    {"optimizer": "momentum", "gradient_clip": 1.0},
    {"optimizer": "rmsprop", "loss_type_to_report": "base_loss"},
    {"optimizer": "adam", "weight_decay": 0.0},
    *({"optimizer": name} for name, spec in REGISTERED.items() if spec.update),
)
MOMENTS: Sequence[Flags] = ({}, {"bn_stats": "mean"}, {"bn_stats": "sync"})
TOWERS: Sequence[Flags] = ({"num_gpus": 2}, {"num_gpus": 8})
STEPS: Sequence[Flags] = (TRAINED, FORWARD, {**FORWARD, "freeze_when_forward_only": True})

PACKINGS: Sequence[Flags] = (
    {},
    {"gradient_repacking": 2},
    {"agg_small_grads_max_bytes": 1000},
    {"gradient_bucket_bytes": 100_000},
)
DEFERRALS: Sequence[Flags] = ({}, {"variable_consistency": "relaxed"})
COPIES: Flags = {"variable_update": "replicated"}
REDUCTIONS: Sequence[Flags] = (
    *({"all_reduce_spec": name} for name in names()),
    {"all_reduce_spec": "xring#2"},
    {"all_reduce_spec": "nccl/rechd", "all_reduce_group_size": 2},
    {"all_reduce_spec": "nccl/pscpu", "all_reduce_group_size": 2},
    {"hierarchical_copy": True},
)

_WORKERS = {"workers": 2, "num_gpus": 2}
_PS = {**_WORKERS, "ps": 2, "variable_update": "parameter_server"}
JOBS: Sequence[Flags] = (
    _PS,
    {**_PS, "variable_caching": "consumer"},
    {**_PS, "variable_caching": "cpu"},
    {**_PS, "cross_replica_sync": False},
    {**_PS, "variable_update": "distributed_replicated"},
    {**_WORKERS, "variable_update": "distributed_all_reduce", "all_reduce_spec": "xring"},
    {**_WORKERS, "variable_update": "distributed_all_reduce", "all_reduce_spec": "nccl/xring"},
    {**_WORKERS, "variable_update": "collective_all_reduce"},
    {**_WORKERS, "variable_update": "collective_all_reduce", "bn_stats": "sync"},
    {**_WORKERS, "variable_update": "multi_worker_mirrored_strategy"},
    {**_PS, "variable_update": "parameter_server_strategy", "num_gpus": 1},
)
"""Flags, and how many "workers" and "ps" tasks a job has."""


def _joined(parts: Sequence[Flags]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _allowed(*parts: Flags) -> bool:
    try:
        params = Params.from_dict({"device": "gpu", "num_batches": 10, **_joined(parts)})
        check_flags(params)
    except UsageError:
        return False
    return True


def modes(model: Flags) -> list[dict[str, Any]]:
    """Pairs of mode, optimizer, precision, layout, batch-norm statistics, towers and step."""
    return _pairs(model, {}, MODES, OPTIMIZERS, PRECISIONS, LAYOUTS, MOMENTS, TOWERS, STEPS)


def reductions(model: Flags) -> list[dict[str, Any]]:
    """Pairs of all-reduce, packing, deferral, precision, layout and towers."""
    return _pairs(model, COPIES, REDUCTIONS, PACKINGS, DEFERRALS, PRECISIONS, LAYOUTS[:2], TOWERS)


def divided(model: Flags) -> Iterator[dict[str, Any]]:
    """Every mode, algorithm and job that works on parts of cards, also of one that two share."""
    one, two = {"num_gpus": 4, "gpus_per_card": 4}, {"num_gpus": 8, "gpus_per_card": 4}
    single = [{**cards, **mode} for cards in (one, two) for mode in MODES]
    single += [{**one, **COPIES, **reduction} for reduction in REDUCTIONS]
    jobs = [{**job, "gpus_per_card": parts} for job in JOBS for parts in (2, 4)]
    yield from ({**model, **flags, **TRAINED} for flags in single if _allowed(flags))
    yield from ({**model, **flags} for flags in jobs if "nccl" not in str(flags))


def _pairs(model: Flags, same: Flags, *dimensions: Sequence[Flags]) -> list[dict[str, Any]]:
    cases = covering_pairs(*dimensions, allowed=lambda *case: _allowed(same, *case))
    return [{**model, **same, **_joined(case)} for case in cases]


def networks() -> Iterator[dict[str, Any]]:
    """Every network: training (with evaluation), and forward-only, on two and on eight towers."""
    for dataset in registry.datasets():
        for name in registry.model_names(dataset):
            yield from network({"model": name, "data_name": dataset})


def network(model: Flags) -> list[dict[str, Any]]:
    """The cases of a network, whatever the mode; the shortest that there are on eight towers."""
    replicated = {"variable_update": "replicated", "all_reduce_spec": "nccl", "num_gpus": 2}
    shared = {"variable_update": "parameter_server", "num_gpus": 8}
    short = {**shared, "batch_size": 1, "num_batches": 2}
    on_two = [{**model, **replicated, **steps} for steps in (TRAINED, FORWARD)]
    return [*on_two, *({**model, **short, **steps} for steps in ({}, FORWARD))]
