"""Converts a command line or flag values to a `RunPlan`, and refuses invalid flags.

All errors that can be found without a device are raised here: unknown models and data sets, empty
data directories, impossible step counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, cast

from cnnbench.base import plugins
from cnnbench.base.job import PS, WORKER, Task
from cnnbench.base.rendezvous import (
    EVALUATOR,
    detect_launcher,
    exchange_addresses,
    mpi_ranks,
    resolve_job,
)
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.params import SPECS, Params
from cnnbench.flags.parse import ParsedArgs, parse_args
from cnnbench.machine.cpu import Host
from cnnbench.plan.notices import unused_flag_notices
from cnnbench.plan.place import (
    ADDRESSES,
    OF_A_PROCESS,
    JobFlagNames,
    PlaceInJob,
    WorkKind,
    raise_first_refusal,
)
from cnnbench.plan.refusals import NETWORK, refuse_contradictions
from cnnbench.plan.run_plan import RunPlan
from cnnbench.plan.setup import GradientExchangePlan, NumericsPlan
from cnnbench.variable_mgr import all_reduce, modes


def parse_run(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> RunPlan:
    """Checks a command line of ``cnnbench run`` and returns its plan, without reading data.

    UsageError names the wrong flag.
    """
    return make_plan(parse_args(argv), environ, resolve_data=False)


@plugins.reporting_plugin_errors(UsageError)
def make_plan(
    run: Params | ParsedArgs | RunPlan,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[str], None] | None = None,
    *,
    names: JobFlagNames = OF_A_PROCESS,
    resolve_data: bool = True,
) -> RunPlan:
    """Checks the flags of a run, loads the plug-ins that they name, and resolves the flags to a
    plan.

    Args:
      run: the flags; or a plan, whose flags are already checked.
      environ: the environment in which --cluster finds the job. CUDA_VISIBLE_DEVICES is changed
        if `tell` is given (see `locate_job`).
      tell: a function that prints a line. If `tell` is given, this process joins the job (see
        `locate_job`).
      names: names of a job's flags for error messages.
      resolve_data: whether network, data set and lengths are resolved, too.

    Raises:
      FlagError: a wrong value, a contradiction, an unknown model, data set or all-reduce algorithm,
        an impossible evaluation point, label smoothing for a loss without labels, or a missing
        backbone.
    """
    plan = run if isinstance(run, RunPlan) else _make_checked_plan(run, environ, names)
    if tell is not None:
        params, _ = locate_job(plan.params, environ, tell=tell)
        if params is not plan.params:
            resolved = _resolve_flags(params, plan.place.names)
            plan = replace(resolved, explicit_flags=plan.explicit_flags, notices=plan.notices)
    if resolve_data:
        raise_first_refusal(NETWORK, plan)
        # A size flag that equals the model's default is unset, so that equal runs have equal flags.
        changes: dict[str, Any] = dict.fromkeys(plan.network.own_sizes)
        layout = plan.network.model.data_format
        if layout != "auto":
            changes["data_format"] = layout
        if changes:
            plan = plan.with_changes(params=plan.params.replace(**changes))
        if plan.params.all_reduce_spec is not None:
            # Names are checked after plug-ins are loaded, because plug-ins can register algorithms.
            spec = plan.params.all_reduce_spec
            spec.check_algorithm_names(all_reduce.names(spec.algorithm_names))
        for part in ("length", "rates", "input"):
            getattr(plan, part)
    return plan


def _make_checked_plan(
    run: Params | ParsedArgs, environ: Mapping[str, str], names: JobFlagNames
) -> RunPlan:
    """Checks each flag and all combinations of flags. Returns the plan with its notices."""
    args = run if isinstance(run, ParsedArgs) else None
    flags = run.params if isinstance(run, ParsedArgs) else run
    explicit = None if args is None else tuple(args.given)
    params, notices = locate_job(flags, environ, explicit)
    plugins.load_plugins_of_flags(vars(params))
    plan = _check_and_resolve_flags(params, names)
    if args is None or explicit is None:
        return plan
    # --variable_update=horovod has set --cluster, as if the user had given it.
    if params.cluster != flags.cluster:
        explicit = (*explicit, "cluster")
    notices = (*args.notices, *notices, *unused_flag_notices(plan, explicit))
    return replace(plan, explicit_flags=explicit, notices=notices)


def _check_and_resolve_flags(params: Params, names: JobFlagNames) -> RunPlan:
    """Creates a plan from the flags. Raises FlagError for invalid or contradictory flags."""
    for spec in SPECS.values():
        value = getattr(params, spec.name)
        if value is not spec.default:
            spec.check(value)
    plan = _resolve_flags(params, names)
    refuse_contradictions(plan)
    return plan


def plan_before_plugins(
    flags: Params,
    environ: Mapping[str, str] = os.environ,
    names: JobFlagNames = OF_A_PROCESS,
    explicit: tuple[str, ...] | None = None,
) -> RunPlan | None:
    """Creates the plan of a run without loading plug-ins; None if a flag may need a plug-in.

    For example, an unknown --model may be the name of a plug-in's model. FlagError for flags that
    are wrong with any plug-in. For `explicit`, see `locate_job`.
    """
    try:
        return _check_and_resolve_flags(locate_job(flags, environ, explicit)[0], names)
    except FlagError as error:
        if plugins.is_name_flag(error.flag):
            return None
        raise


def _resolve_flags(params: Params, names: JobFlagNames) -> RunPlan:
    """Creates a plan from the flags. Network and data set are not resolved yet."""
    work = WorkKind.of(params)
    place = PlaceInJob.resolved(params, work, modes.find_mode(params.variable_update), names)
    numerics = NumericsPlan.resolved(params, work)
    return RunPlan(
        params=params,
        work=work,
        place=place,
        numerics=numerics,
        exchange=GradientExchangePlan.resolved(params, work, place, numerics),
    )


# Finds the tasks and addresses of a job in the flags and in environment variables.

_WITHOUT_PS = "collective_all_reduce"
"""The mode of a job without parameter servers and controller, if no mode is given."""

HOROVOD = "horovod"
"""A value of --variable_update in tf_cnn_benchmarks. cnnbench runs this mode without Horovod."""

_HOROVOD_NOTICE = (
    "--variable_update=horovod runs as collective_all_reduce, without Horovod (docs/cluster.md)"
)
_VARIABLES_OF_HOROVOD = {
    "HOROVOD_TIMELINE": "--trace_file",
    "HOROVOD_AUTOTUNE": "cnnbench tune",
    "HOROVOD_FUSION_THRESHOLD": "--gradient_bucket_bytes",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "--all_reduce_spec=copy/collective",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "--stall_timeout",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "--stall_timeout",
    "HOROVOD_STALL_CHECK_DISABLE": "--stall_timeout=0",
    "HOROVOD_LOG_LEVEL": "TF_CPP_MIN_LOG_LEVEL",
}
"""Replacements in cnnbench of Horovod's environment variables."""


def locate_job(
    flags: Params,
    environ: Mapping[str, str],
    explicit: tuple[str, ...] | None = None,
    tell: Callable[[str], None] | None = None,
) -> tuple[Params, tuple[str, ...]]:
    """Finds the processes of the job in the environment of the launcher that --cluster names.

    Returns the flags with the addresses of these processes, and notices for the user.

    With --cluster=mpi, the addresses are placeholders for ranks until `tell` is given. The flags
    are unchanged if this process runs alone, such as an evaluator or a chief without workers.

    Args:
      explicit: names of the flags of a command line. If they are given, there are notices about
        Horovod's mode, and about a job in the environment that --cluster does not select. If they
        contain no mode, a job without parameter servers uses `_WITHOUT_PS`.
      tell: a function that prints a line. A process that runs or serves passes it, once. With
        --cluster=mpi the processes then exchange their addresses, and `tell` prints a line about
        missing addresses. A process whose number on its machine is known gets its own GPUs:
        CUDA_VISIBLE_DEVICES in `environ` is changed.

    Raises:
      FlagError: an address contradicts --cluster, or this task is an evaluator without --eval.
      BenchmarkError: addresses are missing after --cluster_timeout.
    """
    notices: tuple[str, ...] = ()
    if explicit is not None:
        flags, notices = _resolve_horovod_mode(flags, explicit, environ)
    if flags.cluster != "flags" and not flags.worker_hosts:
        flags, alone = _read_job_from_environment(flags, environ)
        notices += (alone,) if alone and explicit is not None else ()
    if explicit is not None and _needs_other_mode(flags, explicit):
        flags = flags.replace(variable_update=_WITHOUT_PS)
        notices += (f"--variable_update={_WITHOUT_PS}: the job has no parameter servers",)
    if tell is not None and flags.cluster in ("slurm", "mpi"):
        flags = _assign_gpus_and_exchange_addresses(
            flags, cast("MutableMapping[str, str]", environ), tell
        )
    return flags, notices


def _needs_other_mode(flags: Params, explicit: Sequence[str]) -> bool:
    """Whether this is a job whose processes cannot run the default mode, and no mode was given."""
    drives_itself = flags.worker_hosts and not (flags.ps_hosts or flags.controller_host)
    return bool(drives_itself) and "variable_update" not in explicit


def _resolve_horovod_mode(
    flags: Params, explicit: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[Params, tuple[str, ...]]:
    """Replaces --variable_update=horovod by collective_all_reduce, and sets --cluster for it.

    Returns the flags, and notices about Horovod and about a launcher whose job the run ignores.
    """
    notices: tuple[str, ...] = ()
    others = None
    if not {"cluster", *ADDRESSES}.intersection(explicit):
        others = detect_launcher(environ, flags.eval)
    if flags.variable_update == HOROVOD:
        flags = flags.replace(variable_update=_WITHOUT_PS)
        notices += (_HOROVOD_NOTICE,)
        uses = [f"{b} for {a}" for a, b in _VARIABLES_OF_HOROVOD.items() if environ.get(a)]
        if uses:
            notices += (f"Horovod's variables have no effect; use {', '.join(uses)}",)
        # Users of Horovod start one process per device, so a detected launcher's job is joined.
        if others is not None:
            flags = flags.replace(cluster=others[1])
    elif others is not None:
        what, cluster = others
        alone = f"{what}; this run is a job of one process: --cluster={cluster} joins the job"
        notices += (f"{alone}, --cluster=flags hides this notice",)
    if flags.cluster != "flags":
        for name in ADDRESSES:
            if name in explicit:
                where = f"--cluster={flags.cluster}, which finds it in the environment"
                raise FlagError(name, getattr(flags, name), f"contradicts {where}")
    return flags, notices


def _read_job_from_environment(flags: Params, environ: Mapping[str, str]) -> tuple[Params, str]:
    """Reads the job from the environment that --cluster names. Returns flags with its addresses.

    Also returns a notice if this process runs alone; otherwise an empty string.
    """
    job, _ = resolve_job(flags.cluster, flags.cluster_ps, environ)
    if job.task.job == EVALUATOR and not flags.eval:
        reason = "this task is an evaluator, apart from the job: it needs --eval, --train_dir=DIR"
        raise FlagError("cluster", flags.cluster, f"{reason} and --eval_interval_secs=SECONDS")
    if job.task.job == EVALUATOR:
        return flags, f"this task is the evaluator of --cluster={flags.cluster}: running alone"
    if len(job.tasks) == 1 and job.task.job != PS:
        return flags, f"--cluster={flags.cluster} lists only this process: running alone"
    found = flags.replace(
        job_name=job.task.job,
        task_index=job.task.index,
        worker_hosts=",".join(job.worker_addresses),
        ps_hosts=",".join(job.ps_addresses),
        controller_host=job.controller_address,
    )
    return found, ""


def _assign_gpus_and_exchange_addresses(
    flags: Params, environ: MutableMapping[str, str], tell: Callable[[str], None]
) -> Params:
    """Assigns GPUs to this process. With --cluster=mpi, exchanges addresses with all MPI ranks."""
    job, local_rank = resolve_job(flags.cluster, flags.cluster_ps, environ)
    if flags.device != "cpu" and not flags.gpu_indices:
        _assign_gpus(flags, job.task, local_rank, environ)
    ranks = mpi_ranks(environ) if flags.cluster == "mpi" and flags.worker_hosts else None
    if ranks is None:
        return flags
    hosts = exchange_addresses(ranks, flags.rendezvous, flags.cluster_timeout, tell)
    workers = job.num_workers
    return flags.replace(worker_hosts=",".join(hosts[:workers]), ps_hosts=",".join(hosts[workers:]))


def _assign_gpus(
    flags: Params, task: Task, local_rank: int | None, environ: MutableMapping[str, str]
) -> None:
    """Sets CUDA_VISIBLE_DEVICES to this process's share of the GPUs of the machine."""
    from cnnbench.machine.gpu import visible_devices_of_process, visible_gpus

    host = Host(environ=environ)
    if local_rank is not None:
        share = visible_devices_of_process(host, local_rank, flags.num_gpus, flags.gpus_per_card)
        if share is not None:
            environ["CUDA_VISIBLE_DEVICES"] = share
    elif task.job == WORKER and len(visible_gpus(host)) * flags.gpus_per_card > flags.num_gpus:
        raise FlagError(
            "cluster",
            flags.cluster,
            f"the processes of this machine must divide {len(visible_gpus(host))} GPUs, but the "
            "launcher does not number these processes; set --gpu_indices or CUDA_VISIBLE_DEVICES "
            "for each process",
        )
