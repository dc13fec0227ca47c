"""Conditions for two sides to step in turn (`cnnbench.campaigns.processes.turns`)."""

from __future__ import annotations

from collections.abc import Mapping

from cnnbench.base.text.numbers import binary
from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.ab.side import Side, SideFlags, has_module
from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.machine.cpu import main_memory
from cnnbench.machine.gpu import gpu_memory
from cnnbench.run.driver.estimates import computes_on_cpu, estimate
from cnnbench.run.driver.plan import Plan

TURN_SECONDS = 0.3
"""Length of a turn; docs/methodology.md compares others."""

# Present where a cnnbench supports turns; the latter path in earlier versions.
_WAITS = ("run/runtime/turns.py", "runtime/turns.py")


_OF_JOBS = "a job of several processes keeps all of them at work"


def obstacle(params: Params, plan: Plan) -> str | None:
    """Why a run cannot step in turn with another one like it; None if it can."""
    if plan.job.in_cluster:
        return _OF_JOBS
    if params.eval or params.input_only or plan.num_eval_batches:
        return "only training and forward passes have steps that can wait for one another"
    if params.data_dir is not None:
        return "the input pipeline would read ahead while the other side has its turn"
    on_cpu = computes_on_cpu(params)
    if not on_cpu and not params.allow_growth:
        return "on GPUs it needs --allow_growth: the first process would take all of their memory"
    there = main_memory() if on_cpu else gpu_memory(params.gpu_indices, params.num_gpus)
    needed = 2 * estimate(params, plan, "cpu" if on_cpu else "gpu").total
    if there is not None and needed > there.available:
        return f"two processes take about {binary(needed)}, and {binary(there.available)} is free"
    return None


def sides_obstacle(sides: Mapping[str, Side], resolved: Mapping[str, SideFlags]) -> str | None:
    """Why two sides cannot step in turn; None if they can."""
    for name, side in sides.items():
        found = _OF_JOBS if side.layout else resolved.get(name, SideFlags()).no_turns
        if found is None and not side.is_this_cnnbench and not has_module(side, *_WAITS):
            found = "its cnnbench is of a version that cannot"
        if found is not None:
            return f"side {name.upper()}: {found}"
    return None


def turn_seconds(
    pairing: str, sides: Mapping[str, Side], resolved: Mapping[str, SideFlags], reporter: Reporter
) -> float:
    """The length of a turn, 0 without turns; FlagError if --pairing=turns is impossible."""
    if pairing == "alternate":
        return 0.0
    found = sides_obstacle(sides, resolved)
    if found is None:
        return TURN_SECONDS
    if pairing == "turns":
        raise FlagError("pairing", "turns", f"cannot be: {found}; leave it out, or alternate")
    reporter.notice(f"the sides alternate, since they cannot step in turn: {found}")
    return 0.0
