"""The job of a run according to flags and environment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping

from cnnbench.base.jobs.job import WORKER, Task
from cnnbench.base.jobs.resolve import EVALUATOR, mpi_ranks, resolve
from cnnbench.errors import FlagError
from cnnbench.flags.declare import FlagSpec, specs_of
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.groups.run import trains
from cnnbench.flags.params import FLAGS, Params
from cnnbench.machine.host import Host
from cnnbench.variable_mgr.modes import Processes

ADDRESSES = ("job_name", "task_index", "worker_hosts", "ps_hosts", "controller_host")
"""The flags that --cluster replaces where it names an environment."""

_VERSIONS = ("cnnbench_version", "tensorflow_version")

_OWN = {
    # The handshake compares the addresses themselves.
    *ADDRESSES,
    *("cluster", "cluster_ps", "cluster_timeout", "stall_timeout", "rendezvous"),
    # Machines may keep data in different places and have different GPUs.
    *("data_dir", "gpu_indices"),
    *(spec.name for spec in specs_of(OutputParams)),
}
"""Flags that may differ between the processes of a job."""


def agreed_facts(params: object, specs: Iterable[FlagSpec] = FLAGS) -> dict[str, str]:
    """Facts, by name, that must be equal in all processes (`run.cluster.handshake.meet`)."""
    from cnnbench.machine.software import packages

    versions = packages(Host())
    flags = {f"--{s.name}": s.text(getattr(params, s.name)) for s in specs if s.name not in _OWN}
    return {**{name: str(versions[name]) for name in _VERSIONS}, **flags}


def digest_of(value: object) -> str:
    """A digest of plain data, for facts too long to show."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def with_job_from_env(params: Params, environ: Mapping[str, str]) -> Params:
    """The parameters with the job that --cluster finds in the environment.

    With --cluster=mpi the addresses are placeholders for ranks until `with_exchanged_addresses`.
    Unchanged for a process in no job of several, such as an evaluator of TF_CONFIG.
    """
    if params.cluster == "flags" or params.worker_hosts:
        return params
    job, _ = resolve(params.cluster, params.cluster_ps, environ)
    if job.task.job == EVALUATOR and not params.eval:
        reason = "this task is an evaluator, apart from the job: it needs --eval, --train_dir=DIR"
        raise FlagError("cluster", params.cluster, f"{reason} and --eval_interval_secs=SECONDS")
    if not job.in_cluster:
        return params
    return params.replace(
        job_name=job.task.job,
        task_index=job.task.index,
        worker_hosts=",".join(job.worker_hosts),
        ps_hosts=",".join(job.ps_hosts),
        controller_host=job.controller_host,
    )


def with_exchanged_addresses(
    params: Params, environ: MutableMapping[str, str], tell: Callable[[str], None]
) -> Params:
    """The validated parameters with exchanged addresses and GPUs; to be called once, by the run.

    With --cluster=mpi the processes exchange their addresses, and `tell` prints a line about
    missing ones; BenchmarkError after --cluster_timeout. A process whose number on its machine is
    known gets its own GPUs: CUDA_VISIBLE_DEVICES in `environ` is changed.
    """
    if params.cluster not in ("slurm", "mpi"):
        return params
    from cnnbench.base.jobs.rendezvous import exchange  # late: --help and refused flags load none

    job, local_rank = resolve(params.cluster, params.cluster_ps, environ)
    if params.device != "cpu" and not params.gpu_indices:
        _take_gpus(params, job.task, local_rank, environ)
    ranks = mpi_ranks(environ) if params.cluster == "mpi" else None
    if ranks is None:
        return params
    hosts = exchange(ranks, params.rendezvous, params.cluster_timeout, tell)
    workers = job.num_workers
    return params.replace(
        worker_hosts=",".join(hosts[:workers]), ps_hosts=",".join(hosts[workers:])
    )


def _take_gpus(
    params: Params, task: Task, local_rank: int | None, environ: MutableMapping[str, str]
) -> None:
    from cnnbench.machine.gpu import share_of_gpus, visible_gpus

    host = Host(environ=environ)
    if local_rank is not None:
        share = share_of_gpus(host, local_rank, params.num_gpus)
        if share is not None:
            environ["CUDA_VISIBLE_DEVICES"] = share
    elif task.job == WORKER and len(visible_gpus(host)) > params.num_gpus:
        raise FlagError(
            "cluster",
            params.cluster,
            f"{len(visible_gpus(host))} GPUs are to be divided, and the launcher does not number "
            "the processes of a machine; give --gpu_indices, or each process a "
            "CUDA_VISIBLE_DEVICES of its own",
        )


def without_outputs(params: Params) -> Params:
    """The parameters without outputs that only the chief writes."""
    quiet = params.replace(**{spec.name: spec.default for spec in specs_of(OutputParams)})
    quiet.mark_validated()
    return quiet


def asynchronous(params: Params) -> bool:
    """Whether workers train asynchronously."""
    apart = coordinated(params) or not params.cross_replica_sync
    return trains(params) and bool(params.job_name) and apart


def coordinated(params: Params) -> bool:
    """Whether a coordinator process schedules the updates of all workers."""
    return params.update_mode.processes is Processes.COORDINATOR


def tolerates_loss_of(params: Params) -> Callable[[Task, str], bool]:
    """Predicate of a task and its state: whether the job survives the loss of the task.

    A coordinator can take an update back only from a worker that is gone, not from one that hangs.
    """
    chief = params.job.chief
    alone = asynchronous(params)
    may_stand_still = not coordinated(params)

    def spares(task: Task, state: str) -> bool:
        from cnnbench.base.jobs.probe import REFUSED  # late: refused flags load no sockets

        worker = alone and task.job == WORKER and task != chief
        return worker and (may_stand_still or state == REFUSED)

    return spares
