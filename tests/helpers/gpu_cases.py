"""Runs that scripts/check_emulated_gpus makes.

A case is a mapping of flags. Cases of modes are pairs of values, not all products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from covering import covering_pairs

from cnnbench.errors import UsageError
from cnnbench.flags import Params, validate
from cnnbench.models import registry
from cnnbench.variable_mgr.all_reduce.registry import names

Flags = Mapping[str, Any]

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
        validate(Params.from_dict({"device": "gpu", "num_batches": 10, **_joined(parts)}))
    except UsageError:
        return False
    return True


def modes(model: Flags) -> list[dict[str, Any]]:
    """Pairs of mode, optimizer, precision, layout, batch-norm statistics, towers and step."""
    return _pairs(model, {}, MODES, OPTIMIZERS, PRECISIONS, LAYOUTS, MOMENTS, TOWERS, STEPS)


def reductions(model: Flags) -> list[dict[str, Any]]:
    """Pairs of all-reduce, packing, deferral, precision, layout and towers."""
    return _pairs(model, COPIES, REDUCTIONS, PACKINGS, DEFERRALS, PRECISIONS, LAYOUTS[:2], TOWERS)


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
