"""Flags of child commands, resolved and checked without running them; keys of equal runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cnnbench.base.urls import is_url
from cnnbench.errors import FlagError
from cnnbench.flags import Params, parse_args, parse_flags
from cnnbench.flags.declare import FlagSpec
from cnnbench.flags.groups.allreduce import ALLREDUCE_FLAGS, AllReduceParams, params_of
from cnnbench.flags.params import ACCEPTED
from cnnbench.lab.allreduce import plan as allreduce_plan
from cnnbench.machine.repository import PLUGINS
from cnnbench.records.codec import encode
from cnnbench.records.files import check_outputs
from cnnbench.run.driver import outputs
from cnnbench.run.driver.estimates import RunWork, batch_limits, total_of_job, work_of
from cnnbench.run.driver.plan import make_plan
from cnnbench.variable_mgr.all_reduce.registry import names

# The sweep names the result files; how progress is shown does not change what is measured.
_RESERVED = ("result_json", "result_csv")
_RECORD = "--result_json=record.json"
_NOT_IDENTITY = (*_RESERVED, "progress", "display_perf_ewma")
_PATHS = ("data_dir", "train_dir", *PLUGINS)

KEY_LENGTH = 12

# Facts that affect measurements. Load and free memory vary by the minute, and the sources
# themselves cover the commit.
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

OTHER_COMMANDS = ("campaigns/", "judge/", "lab/predict/")
"""Folders of cnnbench that no measuring process imports."""


@dataclass(frozen=True)
class Resolved:
    """The resolved flags of one run; by default nothing is known about them.

    Attributes:
      config: every parameter as JSON values, for the record of a run that left none.
      notices: lines that the command would print about them.
      identity: the parameters that distinguish runs.
      batch_size, global_batch: images per step, of a device and of all; 0 for all-reduces.
      batch_limits: the largest batch per device that should fit into memory, and the smallest
        that a run refuses; None if unknown.
      needed_bytes: estimated memory of all processes, or on GPUs of each GPU; 0 for all-reduces.
      asynchronous: whether every worker updates the variables by itself.
      rows: configurations that one process measures, each with its own verdict.
      work: amount of computation; None for all-reduces.
      no_turns: why the run cannot step in turn with another one, where that was asked; else None.
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
    no_turns: str | None = None


@cache
def flags_of(command: str) -> Mapping[str, FlagSpec]:
    """All flags of a command of a sweep or job, "run" or "allreduce", by name."""
    return {spec.name: spec for spec in ALLREDUCE_FLAGS} if command == "allreduce" else ACCEPTED


def resolve(command: str, flags: Sequence[str]) -> Resolved:
    """Parses and checks flags as the command of a sweep, "run" or "allreduce", will.

    Loads no TensorFlow. UsageError or DataError says why it cannot be run.
    """
    if command == "allreduce":
        return _resolve_allreduce(flags)
    params = parse_args(flags).params
    _refuse_results(params)
    if params.train_dir is not None and not (params.eval or params.forward_only):
        raise FlagError(
            "train_dir",
            params.train_dir,
            "cannot be used for training in a sweep: the second process would resume the "
            "training of the first; leave it out, or evaluate with --eval",
        )
    return resolve_run(flags)


def resolve_run(flags: Sequence[str]) -> Resolved:
    """Resolves the flags of a run whose record the caller stores; see `resolve`."""
    # With the flag the run will get: notices depend on whether there is a record.
    parsed = parse_args((*flags, _RECORD))
    params = parsed.params
    plan = make_plan(params)
    check_outputs(outputs.files(params))
    outputs.prepare_folders(params)
    config = _plain(plan.resolved(params))
    return Resolved(
        config=config,
        explicit_flags=parsed.explicit_flags,
        notices=parsed.notices,
        identity=_identity(config),
        batch_size=plan.batch_per_device,
        batch_limits=batch_limits(params, plan),
        global_batch=plan.global_batch,
        needed_bytes=total_of_job(params, plan),
        asynchronous=plan.asynchronous,
        work=work_of(params, plan),
    )


def environment_identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts about machine and software that identify a run."""
    return {
        **{name: facts[name] for name in _FACTS if name in facts},
        **{name: value for name, value in facts.items() if name.startswith("env_")},
        "sources": source_digest(),
    }


def digest_key(parts: Mapping[str, Any]) -> str:
    """A digest of values with a JSON form, independent of their order."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


@cache
def source_digest() -> str:
    """Digest of the Python files that a run may execute, wherever they are installed.

    Unlike a commit it differs for modified checkouts, and not for changes of documentation.
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


def _resolve_allreduce(flags: Sequence[str]) -> Resolved:
    _refuse_results(params_of(parse_flags(flags, ALLREDUCE_FLAGS)))
    given = parse_flags((*flags, _RECORD), ALLREDUCE_FLAGS)
    params = params_of(given)
    plan = allreduce_plan.make_plan(params, tuple(given))
    config = _plain(params.as_dict())
    config["sizes"] = [workload.name for workload in plan.workloads]
    # All algorithms unless named.
    cases = len(plan.specs or names()) * len(plan.packings) + len(plan.peers)
    return Resolved(
        config=config,
        explicit_flags=tuple(given),
        identity=_identity(config),
        rows=cases * len(plan.workloads) * sum(count > 1 for count in plan.counts),
    )


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    identity = {name: value for name, value in config.items() if name not in _NOT_IDENTITY}
    for name in _PATHS:
        if identity.get(name) and not is_url(identity[name]):
            identity[name] = os.path.abspath(identity[name])
    for name in PLUGINS:
        if identity.get(name):
            with contextlib.suppress(OSError):
                text = Path(identity[name]).read_bytes()
                identity[f"{name} digest"] = hashlib.sha256(text).hexdigest()[:KEY_LENGTH]
    return identity


def _refuse_results(params: Params | AllReduceParams) -> None:
    for name in _RESERVED:
        value = getattr(params, name)
        if value is not None:
            raise FlagError(name, value, "is set by the sweep; see --results")


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encode(value) for name, value in config.items()}
