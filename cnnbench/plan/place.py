"""Determines from the flags what a run does, and which task of a job this process is."""

from __future__ import annotations

from typing import NamedTuple

from cnnbench.base.job import LOCAL, Job, Task, split_hosts
from cnnbench.base.rules import FlagRule, raise_first_refusal, refuse, refuse_any_value
from cnnbench.flags import (
    FLAGS,
    JobFlagNames,
    Params,
    PlaceInJob,
    RunPart,
    WorkKind,
    names_of_flags,
)
from cnnbench.flags.groups.run import EVAL_DURING_TRAINING
from cnnbench.variable_mgr.modes import Mode, Processes, built_in_names

ADDRESSES = names_of_flags(FLAGS, RunPart.TASK)
"""Flags of a task and its addresses. --cluster sets them if it names an environment."""

OF_A_PROCESS = JobFlagNames()


def work_of(flags: Params) -> WorkKind:
    """Returns what a run with these flags does."""
    if flags.eval:
        return WorkKind.EVALUATION
    if flags.forward_only:
        return WorkKind.FORWARD
    if flags.input_only:
        return WorkKind.INPUT
    during = any(getattr(flags, name) for name in EVAL_DURING_TRAINING)
    return WorkKind.TRAINING_AND_EVALUATION if during else WorkKind.TRAINING


class _RequestedPlace(NamedTuple):
    """The flags and the mode from which `PlaceInJob` is resolved. Addresses are not checked yet."""

    params: Params
    mode: Mode
    names: JobFlagNames


def _address_flags(wanted: _RequestedPlace) -> list[str]:
    return [name for name in ADDRESSES if "_host" in name and getattr(wanted.params, name)]


def _has_clients(wanted: _RequestedPlace) -> bool:
    return bool(wanted.params.job_name) and wanted.mode.processes is Processes.CLIENT_PER_WORKER


_IN_SEVERAL = built_in_names(lambda other: other.processes is not Processes.ONE)
RULES: tuple[FlagRule[_RequestedPlace], ...] = (
    refuse_any_value(
        "job_name",
        lambda p: not p.params.job_name and _address_flags(p),
        lambda p: (
            f"is missing; with --{_address_flags(p)[-1]}, it says whether this process is "
            "a worker, a ps task or the controller"
        ),
    ),
    refuse(
        "task_index",
        lambda p: not p.params.job_name,
        "needs --job_name and the addresses of that job",
    ),
    refuse(
        "server_protocol",
        lambda p: p.params.job_name,
        "must be grpc, the only protocol of TensorFlow's own servers",
    ),
    refuse(
        "variable_update",
        lambda p: p.params.job_name and p.mode.processes is Processes.ONE,
        lambda p: f"works in one process only; with {p.names.job} use one of {_IN_SEVERAL}",
    ),
    refuse_any_value(
        "ps_hosts",
        lambda p: p.params.job_name and p.mode.uses_ps and not p.params.ps_hosts,
        lambda p: (
            f"--variable_update={p.mode.name} with {p.names.job} "
            "needs tasks that store the variables; --variable_update=collective_all_reduce needs "
            "none"
        ),
    ),
    refuse(
        "ps_hosts",
        lambda p: p.params.job_name and not p.mode.uses_ps,
        lambda p: f"--variable_update={p.mode.name} uses no parameter servers; leave the flag out",
    ),
    refuse(
        "controller_host",
        _has_clients,
        lambda p: f"--variable_update={p.mode.name} has no controller: every worker runs a step",
    ),
    refuse(
        "input_only",
        _has_clients,
        lambda p: f"measures one process; leave out {p.names.job}",
    ),
)


def resolve_place(flags: Params, work: WorkKind, mode: Mode, names: JobFlagNames) -> PlaceInJob:
    """Determines the task of this process, and the other tasks of its job, from the flags.

    FlagError for invalid addresses, a task outside the job, or a mode that does not fit it.
    """
    raise_first_refusal(RULES, _RequestedPlace(flags, mode, names))
    coordinated = mode.processes is Processes.COORDINATOR
    without_sync = coordinated or not flags.cross_replica_sync
    job = Job(
        task=Task(flags.job_name or LOCAL, flags.task_index),
        worker_addresses=split_hosts(flags.worker_hosts),
        ps_addresses=split_hosts(flags.ps_hosts),
        controller_address=flags.controller_host or None,
        client_per_worker=mode.processes is Processes.CLIENT_PER_WORKER,
        towers_per_worker=flags.num_gpus,
        device="gpu" if flags.device == "gpu" else "cpu",
    )
    return PlaceInJob(
        mode=mode,
        job=job,
        asynchronous=work.trains and bool(flags.job_name) and without_sync,
        coordinated=coordinated,
        names=names,
    )
