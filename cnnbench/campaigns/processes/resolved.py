"""Resolves and checks the flags of child commands without running them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.text import format_bytes
from cnnbench.flags import ACCEPTED, FlagSpec
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS, params_from_values
from cnnbench.lab.all_reduce import plan as all_reduce_plan
from cnnbench.plan import RunPlan, WorkKind, refuse_files_of_run
from cnnbench.plan.identity import identity_on_this_machine
from cnnbench.records.codec import encode
from cnnbench.records.files import check_outputs
from cnnbench.run.driver import preflight
from cnnbench.run.driver.estimates import (
    RunComputation,
    available_memory,
    computes_on_cpu,
    estimate_memory,
    estimate_run_computation,
)
from cnnbench.variable_mgr.all_reduce.registry import names

STORED = {"result_json": "record.json"}
"""Flags of a run or an all-reduce whose record is stored. Some notices depend on these flags."""

NO_TURNS_OF_JOBS = "a job of several processes keeps all of them at work"


@dataclass(frozen=True)
class ResolvedRun:
    """Properties of one run that follow from its resolved flags. The default values mean: unknown.

    Attributes:
      config: all parameters as JSON values, for the record of a run that wrote none.
      notices: lines that the command would print about its flags.
      identity: parameters that distinguish the run from other runs.
      batch_size, global_batch: images per step on one device and on all devices; 0 for all-reduces.
      needed_bytes: estimated memory of the process or, on GPUs, of each GPU; 0 for all-reduces.
      rows: number of configurations that one process measures; each gets its own verdict.
      work: amount of computation; None for all-reduces.
      parts: files that the plug-ins use; see `plugins.parts`.
      packages: packages that were imported when the flags were resolved, and their folders.
      no_turns: reason why two equal runs cannot run interleaved; None if they can.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    explicit_flags: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 0
    global_batch: int = 0
    needed_bytes: int = 0
    rows: int = 1
    work: RunComputation | None = None
    parts: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    no_turns: str | None = None


@cache
def flag_specs_of(command: str) -> Mapping[str, FlagSpec]:
    """Declarations of all flags of the command "run" or "allreduce", by flag name."""
    return {spec.name: spec for spec in ALL_REDUCE_FLAGS} if command == "allreduce" else ACCEPTED


def resolve_plan(plan: RunPlan) -> ResolvedRun:
    """Creates the `ResolvedRun` of a run from its plan.

    Raises FlagError for output files that cannot be written.
    """
    check_outputs(preflight.output_files(plan))
    refuse_files_of_run(preflight.output_files(plan), vars(plan.params))
    preflight.prepare_folders(plan)
    return ResolvedRun(
        config=plan.to_json(),
        explicit_flags=plan.explicit_flags,
        notices=plan.notices,
        identity=plan.identity,
        batch_size=plan.length.batch_per_device,
        global_batch=plan.length.global_batch,
        needed_bytes=estimate_memory(plan, "cpu" if computes_on_cpu(plan) else "gpu").total,
        work=estimate_run_computation(plan),
        parts=plugins.files_used_by_plugins(plan.config),
        no_turns=_why_sequential(plan),
    )


def _why_sequential(plan: RunPlan) -> str | None:
    """Returns why two processes of a run cannot run interleaved (docs/ab.md); None if they can."""
    if plan.place.job.in_cluster:
        return NO_TURNS_OF_JOBS
    if plan.work.evaluates or plan.work is WorkKind.INPUT:
        return "only training and forward passes have steps that can wait for one another"
    if plan.params.data_dir is not None:
        return "the input pipeline would read ahead while the process waits"
    kind = "cpu" if computes_on_cpu(plan) else "gpu"
    if kind == "gpu" and not plan.params.allow_growth:
        return "on GPUs it needs --allow_growth: the first process would take all of their memory"
    there, needed = available_memory(plan, kind), 2 * estimate_memory(plan, kind).total
    if there is not None and needed > there.available:
        free = format_bytes(there.available)
        return f"two processes take about {format_bytes(needed)}, and {free} is free"
    return None


def resolve_all_reduce(values: Mapping[str, Any]) -> ResolvedRun:
    """Checks the flags of an all-reduce benchmark, given as values by flag name.

    Raises UsageError if a flag is invalid.
    """
    values = {**values, **STORED}
    params = params_from_values(values)
    plan = all_reduce_plan.make_plan(params, tuple(values))
    config = {name: encode(value) for name, value in params.as_dict().items()}
    config["sizes"] = [workload.name for workload in plan.workloads]
    # Without --all_reduce_spec, the benchmark measures all algorithms.
    cases = len(plan.specs or names()) * len(plan.packings) + len(plan.peers)
    return ResolvedRun(
        config=config,
        explicit_flags=tuple(values),
        identity=identity_on_this_machine(config),
        parts=plugins.files_used_by_plugins(config),
        rows=cases * len(plan.workloads) * sum(count > 1 for count in plan.counts),
    )
