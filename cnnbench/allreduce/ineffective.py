"""Flags that were given but change nothing in a run of `cnnbench allreduce`: one table."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.allreduce.plan import AllReducePlan
from cnnbench.flags.checks import local_groups
from cnnbench.flags.ineffective import HEEDLESS_OF_MEMORY, Unused, notices


def unused_notices(plan: AllReducePlan, explicit_flags: Sequence[str]) -> tuple[str, ...]:
    """One line for every reason why flags that were given change nothing.

    Args:
      plan: of the run.
      explicit_flags: names of the flags that were given.
    """
    return notices(_UNUSED, plan, explicit_flags)


def _uses(plan: AllReducePlan, algorithm: str) -> bool:
    """Whether an algorithm is measured; all are where no spec was given."""
    return plan.specs is None or algorithm in _running(plan)


def _running(plan: AllReducePlan) -> frozenset[str]:
    """Algorithms in the specs that have something to do with some number of devices."""
    return frozenset(
        name
        for spec in plan.specs or ()
        for count in plan.counts
        for name in spec.running(local_groups(count, plan.params.all_reduce_group_size)).names
    )


def _has_two_levels(plan: AllReducePlan) -> bool:
    return any(spec.has_two_levels for spec in plan.specs or ())


def _are_one_group(plan: AllReducePlan, count: int) -> bool:
    return len(local_groups(count, plan.params.all_reduce_group_size)) == 1


_UNUSED: tuple[Unused[AllReducePlan], ...] = (
    Unused(
        ("num_batches", "iterations", "num_warmup_batches", "verbose"),
        lambda plan: plan.length.build_only,
        "with --build_only: nothing is timed but building",
    ),
    Unused(
        ("agg_small_grads_max_group",),
        lambda plan: not any(p.agg_small_grads_max_bytes for p in plan.packings),
        "without --agg_small_grads_max_bytes",
    ),
    Unused(
        ("network_topology",),
        lambda plan: not _uses(plan, "hierarchical_copy"),
        "without hierarchical_copy in --all_reduce_spec",
    ),
    Unused(
        ("local_parameter_device",),
        lambda plan: not _uses(plan, "copy"),
        "without copy in --all_reduce_spec",
    ),
    Unused(
        ("all_reduce_group_size",),
        lambda plan: not _has_two_levels(plan),
        "without a two-level algorithm in --all_reduce_spec",
    ),
    Unused(
        ("all_reduce_group_size",),
        lambda plan: _are_one_group(plan, max(plan.counts)),
        "with so few devices: they are one group",
    ),
    Unused(
        ("all_reduce_spec",),
        lambda plan: (
            _has_two_levels(plan) and any(_are_one_group(plan, count) for count in plan.counts)
        ),
        "where all devices are one group: a group size of less than --num_gpus makes several",
        says="has no second level",
    ),
    Unused(
        ("all_reduce_spec",),
        lambda plan: _has_two_levels(plan) and plan.params.all_reduce_group_size == 1,
        "where every device is a group of its own",
        says="has no first level",
    ),
    Unused(
        ("all_reduce_share_memory",),
        lambda plan: plan.params.device == "gpu",
        "with --device=gpu: GPUs never share memory",
    ),
    Unused(
        ("all_reduce_share_memory",),
        lambda plan: plan.specs is not None and _running(plan) <= HEEDLESS_OF_MEMORY,
        "with copy, collective or nccl: they do the same in either case",
    ),
    Unused(
        ("allreduce_merge_scope",),
        lambda plan: plan.params.allreduce_merge_scope > 1,
        "as profiles show them: --gradient_repacking joins tensors",
        says="changes only the names of operations",
    ),
    Unused(
        ("agg_small_grads_max_bytes",),
        lambda plan: (
            plan.params.agg_small_grads_max_group == 1
            and any(p.agg_small_grads_max_bytes for p in plan.packings)
        ),
        "with --agg_small_grads_max_group=1: each is joined with no other",
    ),
    Unused(
        ("gpu_indices", "gpu_thread_mode", "per_gpu_thread_count", "allow_growth"),
        lambda plan: plan.params.device == "cpu",
        "with --device=cpu",
    ),
)
