"""Flags that were given but change nothing in this run: one table, a line for each flag."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cnnbench.allreduce.plan import AllReducePlan
from cnnbench.flags.groups.allreduce import AllReduceParams
from cnnbench.flags.ineffective import HEEDLESS_OF_MEMORY
from cnnbench.flags.shared import local_groups


@dataclass(frozen=True)
class _Unused:
    flags: tuple[str, ...]
    when: Callable[[AllReduceParams, AllReducePlan], bool]
    why: str
    says: str = "has no effect"


_UNUSED = (
    _Unused(
        ("num_batches", "iterations", "num_warmup_batches", "verbose"),
        lambda params, plan: plan.length.build_only,
        "with --build_only: nothing is timed but building",
    ),
    _Unused(
        ("agg_small_grads_max_group",),
        lambda params, plan: not any(p.agg_small_grads_max_bytes for p in plan.packings),
        "without --agg_small_grads_max_bytes",
    ),
    _Unused(
        ("network_topology",),
        lambda params, plan: not _uses(params, plan, "hierarchical_copy"),
        "without hierarchical_copy in --all_reduce_spec",
    ),
    _Unused(
        ("local_parameter_device",),
        lambda params, plan: not _uses(params, plan, "copy"),
        "without copy in --all_reduce_spec",
    ),
    _Unused(
        ("all_reduce_group_size",),
        lambda params, plan: not _has_two_levels(plan),
        "without a two-level algorithm in --all_reduce_spec",
    ),
    _Unused(
        ("all_reduce_group_size",),
        lambda params, plan: _has_two_levels(plan) and _groups(params, max(plan.counts)) == 1,
        "with so few devices: they are one group anyhow",
    ),
    _Unused(
        ("all_reduce_spec",),
        lambda params, plan: (
            _has_two_levels(plan) and any(_groups(params, count) == 1 for count in plan.counts)
        ),
        "where all devices are one group: a group size of less than --num_gpus makes several",
        says="has no second level",
    ),
    _Unused(
        ("all_reduce_spec",),
        lambda params, plan: _has_two_levels(plan) and params.all_reduce_group_size == 1,
        "where every device is a group of its own",
        says="has no first level",
    ),
    _Unused(
        ("all_reduce_share_memory",),
        lambda params, plan: params.device == "gpu",
        "with --device=gpu: GPUs never share memory",
    ),
    _Unused(
        ("all_reduce_share_memory",),
        lambda params, plan: (
            params.device != "gpu"
            and plan.specs is not None
            and _running(params, plan) <= HEEDLESS_OF_MEMORY
        ),
        "with copy, collective or nccl: they do the same in either case",
    ),
    _Unused(
        ("allreduce_merge_scope",),
        lambda params, plan: params.allreduce_merge_scope > 1,
        "as profiles show them: --gradient_repacking joins tensors",
        says="changes only the names of operations",
    ),
    _Unused(
        ("agg_small_grads_max_bytes",),
        lambda params, plan: (
            params.agg_small_grads_max_group == 1
            and any(p.agg_small_grads_max_bytes for p in plan.packings)
        ),
        "with --agg_small_grads_max_group=1: each is joined with no other",
    ),
    _Unused(
        ("gpu_indices", "gpu_thread_mode", "per_gpu_thread_count", "allow_growth"),
        lambda params, plan: params.device == "cpu",
        "with --device=cpu",
    ),
)


def unused_notices(
    params: AllReduceParams, plan: AllReducePlan, explicit_flags: Collection[str]
) -> tuple[str, ...]:
    """A line for every flag that was given and changes nothing."""
    return tuple(
        f"--{name} {entry.says} {entry.why}"
        for entry in _UNUSED
        for name in entry.flags
        if name in explicit_flags and entry.when(params, plan)
    )


def _uses(params: AllReduceParams, plan: AllReducePlan, algorithm: str) -> bool:
    """Whether an algorithm is measured; all are where no spec was given."""
    return plan.specs is None or algorithm in _running(params, plan)


def _running(params: AllReduceParams, plan: AllReducePlan) -> frozenset[str]:
    """Algorithms in the specs that have something to do with some number of devices."""
    return frozenset(
        name
        for spec in plan.specs or ()
        for count in plan.counts
        for name in spec.running(local_groups(count, params.all_reduce_group_size)).names
    )


def _has_two_levels(plan: AllReducePlan) -> bool:
    return any(spec.has_two_levels for spec in plan.specs or ())


def _groups(params: AllReduceParams, count: int) -> int:
    return len(local_groups(count, params.all_reduce_group_size))
