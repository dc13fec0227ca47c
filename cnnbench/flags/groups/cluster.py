"""Flags for jobs of several processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnnbench.base.job import is_address
from cnnbench.base.rules import FlagRule, no_effect, refuse, refuse_any_value
from cnnbench.flags.declare import Affects, ComparedBy, RunPart, flag
from cnnbench.flags.facts import FORWARD, RunFacts, no_effect_in_modes, runs_only_forward
from cnnbench.variable_mgr.modes import Processes, Reduction, built_in_names

_discovery = partial(flag, affects=Affects.NOTHING, part=RunPart.DISCOVERY)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ClusterParams:
    """Flags for jobs of several processes: the task of this process, and the addresses of all
    processes.
    """

    job_name: str = flag(
        "",
        "Job of this process, such as worker or ps. Empty if there is only one process.",
        choices=("", "ps", "worker", "controller"),
        part=RunPart.TASK,
    )
    ps_hosts: str = flag(
        "",
        "host:port of every parameter server, comma-separated.",
        compared_by=ComparedBy.NUMBER,
        part=RunPart.TASK,
    )
    worker_hosts: str = flag(
        "",
        "host:port of every worker, comma-separated.",
        compared_by=ComparedBy.NUMBER,
        part=RunPart.TASK,
    )
    controller_host: str | None = flag(
        None,
        "host:port of the controller.",
        compared_by=ComparedBy.PRESENCE,
        part=RunPart.TASK,
        unset="",
    )
    task_index: int = flag(
        0,
        "Number of this process within its job.",
        minimum=0,
        affects=Affects.NOTHING,
        part=RunPart.TASK,
    )
    cluster: str = _discovery(
        "flags",
        "Where a process reads its own task and the addresses of the job: from these flags, from "
        "TF_CONFIG, or from the environment of Slurm, Kubernetes or MPI (cnnbench docs "
        "cluster).",
        choices=("flags", "tf_config", "slurm", "kubernetes", "mpi"),
        lower=True,
    )
    cluster_ps: int = _discovery(
        0,
        "Number of parameter servers among the processes with --cluster=slurm, kubernetes or mpi. "
        "The last processes are the parameter servers.",
        minimum=0,
        maximum=65535,
    )
    cluster_timeout: int = flag(
        600,
        "Seconds to wait for the other processes at the start.",
        minimum=1,
        maximum=86400,
        affects=Affects.NOTHING,
    )
    stall_timeout: int = flag(
        600,
        "If no step ends within this many seconds, or within three times the longest step so far, "
        "the job ends and names the process that hangs. The first step, evaluations and "
        "checkpoints may take ten times as long. With 0, there is no limit.",
        minimum=0,
        maximum=604800,
        affects=Affects.NOTHING,
    )
    rendezvous: str | None = _discovery(
        None,
        "With --cluster=mpi, if mpi4py is not installed: host:port at which the process of rank 0 "
        "serves the addresses of all processes.",
        fault=lambda address: "" if is_address(address) else "is not of the form host:port",
    )
    server_protocol: str = flag("grpc", "Protocol between the processes.")
    cross_replica_sync: bool = flag(
        True,
        "Workers wait for each other in every step. If false, workers train asynchronously.",
        part=RunPart.HEADER,
    )


FEWEST_COORDINATED_THREADS = 4
"""Fewest inter-op threads of each process in a job with a coordinator that reads files.

On a worker, the step, the read of a batch and its copy may each block a thread. One more thread
runs the operations for which they wait. With fewer threads, such jobs hang.
"""


def _are_independent(p: RunFacts) -> bool:
    """Whether each worker runs its updates without waiting for the other workers."""
    return p.place.job.in_cluster and not (p.params.cross_replica_sync or p.place.coordinated)


RULES: tuple[FlagRule[RunFacts], ...] = (
    refuse(
        "summary_verbosity",
        # Only worker 0 computes the gradients for summaries. With sync batch norm, worker 0 would
        # wait for the other workers forever.
        lambda p: (
            p.place.job.client_per_worker
            and p.place.job.num_workers > 1
            and p.params.bn_stats == "sync"
            and p.params.summary_verbosity > 1
        ),
        lambda p: f"must be at most 1 with --bn_stats=sync in {p.place.mode.name}",
    ),
    refuse(
        "all_reduce_spec",
        lambda p: (
            p.place.job.in_cluster
            and not p.place.job.client_per_worker
            and p.exchange.all_reduce.names_across_steps
        ),
        lambda p: (
            f"{p.exchange.all_reduce.names_across_steps[0]} does not work if one process controls "
            "the others; use it with --variable_update="
            + built_in_names(
                lambda mode: (
                    mode.reduction is Reduction.ALL_REDUCE
                    and mode.processes is Processes.CLIENT_PER_WORKER
                )
            )
        ),
    ),
    refuse(
        "variable_update",
        lambda p: p.place.coordinated and not p.place.job.in_cluster,
        "needs processes: cnnbench launch --ps=1 starts them, or give --job_name, --worker_hosts, "
        "--ps_hosts and --controller_host",
    ),
    refuse_any_value(
        "controller_host",
        lambda p: p.place.coordinated and not p.params.controller_host,
        lambda p: f"--variable_update={p.place.mode.name} needs a process that coordinates workers",
    ),
    refuse(
        "num_inter_threads",
        lambda p: p.feeds_workers and p.params.num_inter_threads < FEWEST_COORDINATED_THREADS,
        lambda p: (
            f"must be at least {FEWEST_COORDINATED_THREADS} (or 0) with "
            f"--variable_update={p.place.mode.name} and --data_dir, because steps that wait for "
            "their input block threads"
        ),
    ),
    refuse(
        "num_gpus",
        lambda p: p.place.mode.one_tower,
        lambda p: f"--variable_update={p.place.mode.name} {p.place.mode.one_tower}",
    ),
    no_effect(
        "cross_replica_sync",
        lambda p: not p.params.job_name,
        "without --job_name: there are no other workers to wait for",
    ),
    no_effect_in_modes(
        "cross_replica_sync",
        lambda mode: mode.processes is Processes.COORDINATOR,
        ": no worker waits for another",
    ),
    no_effect("cross_replica_sync", runs_only_forward, f"{FORWARD}: they update nothing"),
)

CONFLICTS: tuple[FlagRule[RunFacts], ...] = (
    refuse(
        "cross_replica_sync",
        lambda p: _are_independent(p) and not p.place.mode.asynchronous,
        lambda p: (
            f"--variable_update={p.place.mode.name} waits for all workers; only "
            f"{built_in_names(lambda mode: mode.asynchronous)} does not wait, so leave the "
            "flag true"
        ),
    ),
    refuse(
        "fp16_enable_auto_loss_scale",
        lambda p: _are_independent(p) and p.params.precision == "fp16",
        "needs the gradients of all workers, so leave out --nocross_replica_sync",
    ),
)
