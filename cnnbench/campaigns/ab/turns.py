"""Whether two sides can step in turn (`cnnbench.campaigns.processes.turns`)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from cnnbench.base.text.numbers import binary
from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.ab.side import Side, SideFlags, ask
from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.machine.gpu import gpu_memory
from cnnbench.machine.memory import main_memory
from cnnbench.run.driver.memory import computes_on_cpu, estimate
from cnnbench.run.driver.plan import Plan

TURN_SECONDS = 0.3
"""Length of a turn; docs/methodology.md has others."""

# Looks at files: an editable installation hands out its own modules for those that a checkout
# lacks.
_WAITS = ("run/runtime/turns.py", "runtime/turns.py")  # the latter in earlier versions
_PROBE = (
    "import os, cnnbench; home = os.path.dirname(cnnbench.__file__); "
    f"sys.exit(not any(os.path.isfile(os.path.join(home, name)) for name in {_WAITS}))"
)
_SECONDS = 60.0


def obstacle(params: Params, plan: Plan) -> str | None:
    """Why a run cannot step in turn with another one like it; None if it can.

    Args:
      params, plan: what it runs.
    """
    if plan.job.in_cluster:
        return "a job of several processes keeps all of them at work"
    if params.eval or params.input_only or plan.num_eval_batches:
        return "only training and forward passes have steps that can wait for one another"
    if params.data_dir is not None:
        return "the input pipeline would read ahead while the other side has its turn"
    on_cpu = computes_on_cpu(params)
    if not on_cpu and not params.allow_growth:
        return "on GPUs it needs --allow_growth: the first process would take all of their memory"
    there = main_memory() if on_cpu else gpu_memory()
    needed = 2 * estimate(params, plan, "cpu" if on_cpu else "gpu").total
    if there is not None and needed > there.available:
        return f"two processes take about {binary(needed)}, and {binary(there.available)} is free"
    return None


def sides_obstacle(sides: Mapping[str, Side], resolved: Mapping[str, SideFlags]) -> str | None:
    """Why two sides cannot step in turn; None if they can.

    Args:
      sides: by name.
      resolved: their flags, by the same names.
    """
    for name, side in sides.items():
        found = resolved.get(name, SideFlags()).no_turns
        if found is None and not side.is_this_cnnbench and not _knows_turns(side):
            found = "its cnnbench is of a version that cannot"
        if found is not None:
            return f"side {name.upper()}: {found}"
    return None


def turn_seconds(
    pairing: str, sides: Mapping[str, Side], resolved: Mapping[str, SideFlags], reporter: Reporter
) -> float:
    """The length of a turn; 0 where the processes of a pair run one after the other.

    Args:
      pairing: value of --pairing.
      sides, resolved: as of `sides_obstacle`.
      reporter: gets a line where "auto" cannot be turns.

    Raises:
      FlagError: turns are asked for and cannot be.
    """
    if pairing == "alternate":
        return 0.0
    found = sides_obstacle(sides, resolved)
    if found is None:
        return TURN_SECONDS
    if pairing == "turns":
        raise FlagError("pairing", "turns", f"cannot be: {found}; leave it out, or alternate")
    reporter.notice(f"the sides alternate, since they cannot step in turn: {found}")
    return 0.0


def _knows_turns(side: Side) -> bool:
    """Asks the cnnbench of a side."""
    try:
        return ask(side, _PROBE, ours=False, seconds=_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
