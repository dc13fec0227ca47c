"""Flags that were given but change nothing in this run: one table, a line for each flag."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cnnbench.allreduce.plan import Plan
from cnnbench.params.allreduce import AllReduceParams


@dataclass(frozen=True)
class _Unused:
    flags: tuple[str, ...]
    when: Callable[[AllReduceParams, Plan], bool]
    why: str


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
        lambda params, plan: not _uses(plan, "hierarchical_copy"),
        "without hierarchical_copy in --all_reduce_spec",
    ),
    _Unused(
        ("local_parameter_device",),
        lambda params, plan: not _uses(plan, "copy"),
        "without copy in --all_reduce_spec",
    ),
    _Unused(
        ("all_reduce_group_size",),
        lambda params, plan: (
            not any(
                len(part.algorithm.levels) > 1 for spec in plan.specs or () for part in spec.ranges
            )
        ),
        "without a two-level algorithm in --all_reduce_spec",
    ),
    _Unused(
        ("gpu_indices", "gpu_thread_mode", "per_gpu_thread_count", "allow_growth"),
        lambda params, plan: params.device == "cpu",
        "with --device=cpu",
    ),
)


def unused_notices(
    params: AllReduceParams, plan: Plan, explicit_flags: Collection[str]
) -> tuple[str, ...]:
    """A line for every flag that was given and changes nothing."""
    return tuple(
        f"--{name} has no effect {entry.why}"
        for entry in _UNUSED
        for name in entry.flags
        if name in explicit_flags and entry.when(params, plan)
    )


def _uses(plan: Plan, algorithm: str) -> bool:
    """Whether an algorithm is measured; all are where no spec was given."""
    if plan.specs is None:
        return True
    return any(algorithm in part.algorithm.levels for spec in plan.specs for part in spec.ranges)
