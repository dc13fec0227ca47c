"""Finds the tasks and addresses of a job in the flags and in environment variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence

from cnnbench.base.job import PS, WORKER, Task
from cnnbench.base.launcher import EVALUATOR, detect_launcher, ranks_of, resolve_job
from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.machine.cpu import Host
from cnnbench.plan.place import ADDRESSES
from cnnbench.variable_mgr.modes import Processes, mode_without_ps

_WITHOUT_PS = mode_without_ps(Processes.CLIENT_PER_WORKER).name
"""The mode of a job without parameter servers and controller, if no mode is given."""

HOROVOD = "horovod"
"""A value of --variable_update in tf_cnn_benchmarks. cnnbench runs this mode without Horovod."""

_HOROVOD_NOTICE = (
    "--variable_update=horovod runs as collective_all_reduce, without Horovod "
    "(cnnbench docs cluster)"
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
) -> tuple[Params, tuple[str, ...]]:
    """Finds the processes of the job in the environment of the launcher that --cluster names.

    Returns the flags with the addresses of these processes, and notices for the user.

    With --cluster=mpi or slurm, the addresses are placeholders for ranks (see
    `cnnbench.plan.make.join_job`). The flags are unchanged if this process runs alone, such as an
    evaluator or a chief without workers.

    Args:
      explicit: names of the flags of a command line. If they are given, there are notices about
        Horovod's mode, and about a job in the environment that --cluster does not select. If they
        contain no mode, a job without parameter servers uses `_WITHOUT_PS`.

    Raises:
      FlagError: an address contradicts --cluster, or this task is an evaluator without --eval.
    """
    notices: tuple[str, ...] = ()
    if explicit is not None:
        flags, notices = _resolve_horovod(flags, explicit, environ)
    if flags.cluster != "flags" and not flags.worker_hosts:
        flags, alone = _read_environment(flags, environ)
        notices += (alone,) if alone and explicit is not None else ()
    if explicit is not None and _needs_other_mode(flags, explicit):
        flags = flags.replace(variable_update=_WITHOUT_PS)
        notices += (f"--variable_update={_WITHOUT_PS}: the job has no parameter servers",)
    return flags, notices


def _needs_other_mode(flags: Params, explicit: Sequence[str]) -> bool:
    """Whether this is a job whose processes cannot run the default mode, and no mode was given."""
    drives_itself = flags.worker_hosts and not (flags.ps_hosts or flags.controller_host)
    return bool(drives_itself) and "variable_update" not in explicit


def _resolve_horovod(
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
        # Users of Horovod start one process per device, so the processes that the launcher started
        # form the job.
        if others is not None:
            flags = flags.replace(cluster=others.cluster)
    elif others is not None:
        alone = "this run is a job of one process"
        if others.is_malformed:
            alone = f"{alone}, because of {others.text}"
        else:
            alone = f"{others.text}; {alone}: --cluster={others.cluster} joins the job"
        notices += (f"{alone}; --cluster=flags hides this notice",)
    if flags.cluster != "flags":
        for name in ADDRESSES:
            if name in explicit:
                where = f"--cluster={flags.cluster}, which finds it in the environment"
                raise FlagError(name, getattr(flags, name), f"contradicts {where}")
    return flags, notices


def _read_environment(flags: Params, environ: Mapping[str, str]) -> tuple[Params, str]:
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


def prepare_process(
    flags: Params, environ: MutableMapping[str, str], tell: Callable[[str], None]
) -> Params:
    """Assigns GPUs to this process. With --cluster=mpi or slurm, ranks exchange addresses.

    Returns the flags with the addresses. See `cnnbench.plan.make.join_job`.
    """
    job, local_rank = resolve_job(flags.cluster, flags.cluster_ps, environ)
    if flags.device != "cpu" and not flags.gpu_indices:
        _assign_gpus(flags, job.task, local_rank, environ)
    ranks = ranks_of(flags.cluster, environ) if flags.worker_hosts else None
    if ranks is None:
        return flags
    # Imported late, because a run in one process exchanges no addresses.
    from cnnbench.base.rendezvous import exchange_addresses

    hosts = exchange_addresses(ranks, flags.rendezvous, flags.cluster_timeout, tell)
    workers = job.num_workers
    return flags.replace(worker_hosts=",".join(hosts[:workers]), ps_hosts=",".join(hosts[workers:]))


def _assign_gpus(
    flags: Params, task: Task, local_rank: int | None, environ: MutableMapping[str, str]
) -> None:
    """Sets CUDA_VISIBLE_DEVICES to this process's share of the GPUs of the machine."""
    from cnnbench.machine.gpu import visible_devices, visible_gpus

    host = Host(environ=environ)
    if local_rank is not None:
        share = visible_devices(host, local_rank, flags.num_gpus, flags.gpus_per_card)
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
