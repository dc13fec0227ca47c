"""Flags for jobs of several processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnnbench.base.job import is_address
from cnnbench.flags.declare import Affects, ComparedBy, RunPart, flag

_discovery = partial(flag, affects=Affects.NOTHING, part=RunPart.DISCOVERY)


@dataclass(frozen=True, kw_only=True)
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
        "TF_CONFIG, or from the environment of Slurm, Kubernetes or MPI (docs/cluster.md).",
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
