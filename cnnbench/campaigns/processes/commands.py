"""Resolves and checks the flags of child commands without running them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.text import binary
from cnnbench.errors import FlagError
from cnnbench.flags import ParsedArgs
from cnnbench.flags.declare import FlagSpec
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS, params_of
from cnnbench.flags.params import ACCEPTED
from cnnbench.lab.all_reduce import plan as all_reduce_plan
from cnnbench.machine.facts import without_places
from cnnbench.plan import RunPlan
from cnnbench.plan.place import Work
from cnnbench.plan.run_plan import KEY_LENGTH, identity_here
from cnnbench.records.codec import encode
from cnnbench.records.files import check_outputs
from cnnbench.run.driver import preflight
from cnnbench.run.driver.preflight import (
    RunWork,
    batch_limits,
    computes_on_cpu,
    estimate,
    memory_of,
    total_of_job,
    work_of,
)
from cnnbench.variable_mgr.all_reduce.registry import names

_RECORD = "record.json"

# Facts that affect measurements. Load and free memory are not included, because they vary all the
# time. The commit is not included, because the source digest identifies the code.
_FACTS = (
    "hostname",
    "architecture",
    "cpu_model",
    "logical_cpus",
    "usable_cpus",
    "cpu_affinity",
    "cgroup_cpu_limit",
    "cgroup_memory_limit_bytes",
    "gpu_names",
    "gpu_driver",
    "python_version",
    "tensorflow_package",
    "tensorflow_version",
    "numpy_version",
    "cnnbench_version",
)

NO_TURNS_OF_JOBS = "a job of several processes keeps all of them at work"

OTHER_COMMANDS = ("campaigns/", "judge/", "lab/predict/")
"""Folders of cnnbench that measuring processes do not import."""


@dataclass(frozen=True)
class RunSummary:
    """The resolved flags of one run. The defaults mean that nothing is known.

    Attributes:
      config: all parameters as JSON values, for the record of a run that wrote none.
      notices: lines that the command would print about its flags.
      identity: parameters that distinguish the run from other runs.
      batch_size, global_batch: images per step on one device and on all devices; 0 for all-reduces.
      batch_limits: largest batch per device that should fit into memory, and smallest batch that a
        run refuses; None if unknown.
      needed_bytes: estimated memory of all processes together or, on GPUs, of each GPU; 0 for
        all-reduces.
      asynchronous: whether every worker updates the variables independently.
      rows: number of configurations that one process measures; each gets its own verdict.
      work: amount of computation; None for all-reduces.
      parts: files that the plug-ins use; see `plugins.parts`.
      no_turns: reason why the run cannot take turns with an equal run; None if it can.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    explicit_flags: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 0
    batch_limits: tuple[int, int] | None = None
    global_batch: int = 0
    needed_bytes: int = 0
    asynchronous: bool = False
    rows: int = 1
    work: RunWork | None = None
    parts: tuple[str, ...] = ()
    no_turns: str | None = None


@cache
def flags_of(command: str) -> Mapping[str, FlagSpec]:
    """All flags, by name, of a command that a sweep or job can run: "run" or "allreduce"."""
    return {spec.name: spec for spec in ALL_REDUCE_FLAGS} if command == "allreduce" else ACCEPTED


def with_stored_record(args: ParsedArgs) -> ParsedArgs:
    """Adds to a run's flags that a record is stored, because notices depend on it."""
    return args.including({"result_json": _RECORD})


def refuse_in_sweep(values: Mapping[str, Any]) -> None:
    """Raises an error for flags that a sweep sets.

    Also refuses trainings that would resume from each other's checkpoints.
    """
    for name in ("result_json", "result_csv"):  # the sweep names the result files
        if values.get(name) is not None:
            raise FlagError(name, values[name], "is set by the sweep; see --results")
    if values.get("train_dir") and not (values.get("eval") or values.get("forward_only")):
        raise FlagError(
            "train_dir",
            values["train_dir"],
            "cannot be used for training in a sweep: the second process would resume the "
            "training of the first; leave it out, or evaluate with --eval",
        )


def of_plan(plan: RunPlan) -> RunSummary:
    """The `RunSummary` of a plan. Raises FlagError for outputs that cannot be written."""
    check_outputs(preflight.files(plan))
    preflight.prepare_folders(plan)
    return RunSummary(
        config=plan.to_json(),
        explicit_flags=plan.explicit_flags,
        notices=plan.notices,
        identity=plan.identity,
        batch_size=plan.length.batch_per_device,
        batch_limits=batch_limits(plan),
        global_batch=plan.length.global_batch,
        needed_bytes=total_of_job(plan),
        asynchronous=plan.place.asynchronous,
        work=work_of(plan),
        parts=plugins.parts(plan.config),
        no_turns=_reason_against_turns(plan),
    )


def _reason_against_turns(plan: RunPlan) -> str | None:
    """The reason why a run cannot take turns with an equal run; None if it can."""
    if plan.place.job.in_cluster:
        return NO_TURNS_OF_JOBS
    if plan.work.evaluates or plan.work is Work.INPUT:
        return "only training and forward passes have steps that can wait for one another"
    if plan.params.data_dir is not None:
        return "the input pipeline would read ahead while the other side has its turn"
    kind = "cpu" if computes_on_cpu(plan) else "gpu"
    if kind == "gpu" and not plan.machine.flags.allow_growth:
        return "on GPUs it needs --allow_growth: the first process would take all of their memory"
    there, needed = memory_of(plan, kind), 2 * estimate(plan, kind).total
    if there is not None and needed > there.available:
        return f"two processes take about {binary(needed)}, and {binary(there.available)} is free"
    return None


def environment_identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts about machine and software that identify a run."""
    return {
        **{name: facts[name] for name in _FACTS if name in facts},
        **{name: without_places(name, facts[name]) for name in facts if name.startswith("env_")},
    }


def digest_key(parts: Mapping[str, Any]) -> str:
    """A digest of JSON values, independent of the order of their keys."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def source_digest() -> str:
    """Digest of the Python files that a run may execute, wherever they are installed.

    Unlike a commit, it includes uncommitted changes, and it does not depend on documentation.
    """
    digest = hashlib.sha256()
    for package in ("cnnbench", "cnnbench.models", "cnnbench.variable_mgr"):
        spec = find_spec(package)
        folders = [] if spec is None else list(spec.submodule_search_locations or [])
        for folder in map(Path, folders):
            for file in sorted(folder.rglob("*.py")):
                inner = file.relative_to(folder).as_posix()
                if package == "cnnbench" and inner.startswith(OTHER_COMMANDS):
                    continue
                digest.update(f"{package}/{inner}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:KEY_LENGTH]


def resolve_all_reduce(values: Mapping[str, Any]) -> RunSummary:
    """Checks the flags (by name) of an all-reduce benchmark.

    Raises UsageError if they are invalid.
    """
    values = {**values, "result_json": _RECORD}
    params = params_of(values)
    plan = all_reduce_plan.make_plan(params, tuple(values))
    config = {name: encode(value) for name, value in params.as_dict().items()}
    config["sizes"] = [workload.name for workload in plan.workloads]
    # All algorithms are measured unless specs are given.
    cases = len(plan.specs or names()) * len(plan.packings) + len(plan.peers)
    return RunSummary(
        config=config,
        explicit_flags=tuple(values),
        identity=identity_here(config),
        parts=plugins.parts(config),
        rows=cases * len(plan.workloads) * sum(count > 1 for count in plan.counts),
    )
