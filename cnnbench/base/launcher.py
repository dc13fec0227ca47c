"""Finds out from the environment variables of a launcher which task of a job this process is.

The values of --cluster select the variables. ``tf_config``: TF_CONFIG, which TensorFlow's
strategies also read. ``slurm``: the variables that srun sets for its tasks. ``kubernetes``: a
StatefulSet or an Indexed Job behind a headless service, as in cli/jobs/kubernetes.yaml. ``mpi``:
only the rank is known at first, and the processes exchange their addresses when the run begins
(`cnnbench.base.rendezvous`).
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from cnnbench.base.environ import NUMBER, Environment, invalid, number, required
from cnnbench.base.files import parse_json
from cnnbench.base.job import HOST, LARGEST_PORT, PS, WORKER, Job, Task
from cnnbench.base.slurm import expand_node_list, tasks_per_node
from cnnbench.base.text import count_text
from cnnbench.base.tf_config import EVALUATOR, fields_of_job
from cnnbench.errors import FlagError, UsageError

_KUBERNETES_PORT = 2222

_JobAndLocalRank: TypeAlias = "tuple[Job, int | None]"  # Result of `resolve_job`.


class LauncherRanks(NamedTuple):
    """The rank of this process and the number of processes, read from the variables of a launcher.

    `local_rank` and `local_size` are rank and number of processes on this machine; None if unknown.
    `job` is an identifier of the job.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    job: str

    @property
    def exchange_port(self) -> int:
        """A port for the address exchange, which is the same in all processes of the job.

        It is below the range of ports for outgoing connections.
        """
        return 10000 + zlib.crc32(self.job.encode()) % 20000


def resolve_job(cluster: str, ps: int, environ: Environment) -> tuple[Job, int | None]:
    """Finds the job of this process, and its rank on its machine (None if unknown).

    `cluster` is the value of --cluster; with "mpi", the addresses are placeholders that contain the
    ranks. The last `ps` processes are parameter servers (except for TF_CONFIG, which lists them).

    Raises:
      UsageError: a variable is missing or malformed.
    """
    return _RESOLVERS[cluster](ps, environ)


def detect_launcher(environ: Environment, evaluates: bool) -> tuple[str, str] | None:
    """Detects whether a launcher such as mpirun has started several processes. Returns a
    description for messages and a suitable value of --cluster.

    The result is None if there was no launcher or only one process. The description names the
    variable that shows the launcher. The processes need not form one job, because a launcher may
    also start independent runs. A malformed variable may also belong to a job; then the description
    is the error message. For an evaluator, the result is None if `evaluates`, because the evaluator
    is started as intended.
    """
    names = [name for name in (*_SIZES, "TF_CONFIG") if environ.get(name)]
    if not names:
        return None
    name = names[0]
    cluster = _SIZES.get(name, "tf_config")
    try:
        job = Job() if name in _SIZES else _job_from_tf_config(0, environ)[0]
        if job.task.job == EVALUATOR:
            return None if evaluates else (f"{name} is that of an evaluator", cluster)
        size = number(environ, name) if name in _SIZES else len(job.tasks)
        return (f"{name} is that of {size} processes", cluster) if size > 1 else None
    except UsageError as error:
        return str(error), cluster


def mpi_ranks(environ: Environment) -> LauncherRanks | None:
    """Reads the ranks that horovodrun, mpirun (Open MPI, MPICH or MVAPICH) or srun has set; None
    without them.

    Local rank and local size may come from the variables of a second launcher if its rank and size
    are the same. For example, ``srun --mpi=pmi2`` sets PMI_RANK, but the local rank is only in
    SLURM_LOCALID. If rank or size differ, the variables belong to a different process, such as the
    one that Hydra starts with srun on every node. UsageError for a malformed variable.
    """
    found = {
        launcher: (environ[names[0]], environ[names[1]])
        for launcher, names in _RANK_VARIABLES.items()
        if names[0] in environ and names[1] in environ
    }
    if not found:
        return None
    launcher, values = next(iter(found.items()))
    same = [_RANK_VARIABLES[name] for name in found if found[name] == values]
    first = _RANK_VARIABLES[launcher]
    rank = number(environ, first[0])
    size = number(environ, first[1], most=LARGEST_PORT)
    if rank >= size:
        raise invalid(environ, first[0], f"{first[1]} is {size}")
    local_ranks = [row[2] for row in same if environ.get(row[2])]
    local_sizes = [row[3] for row in same if environ.get(row[3])]
    local_rank = number(environ, local_ranks[0]) if local_ranks else None
    local_size = _processes_on_node(environ, local_sizes[0]) if local_sizes else None
    if size == 1:
        local_rank, local_size = local_rank or 0, 1
    job = next((environ[name] for name in _JOB_VARIABLES if environ.get(name)), None)
    # The PID of the launcher identifies the job: it is the parent of all processes on one machine.
    return LauncherRanks(launcher, rank, size, local_rank, local_size, job or str(os.getppid()))


_RANK_NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
# Maps launchers to their variables for rank, size, local rank and local size; priority by order.
# Slurm is last, because mpirun and horovodrun also leave its variables set in a Slurm allocation.
_RANK_VARIABLES = {
    "Horovod": tuple(f"HOROVOD_{name}" for name in _RANK_NAMES),
    "Open MPI": tuple(f"OMPI_COMM_WORLD_{name}" for name in _RANK_NAMES),
    "MVAPICH": tuple(f"MV2_COMM_WORLD_{name}" for name in _RANK_NAMES),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # SLURM_NTASKS_PER_NODE is not used, because Slurm sets it only if the user requests a number.
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}
_JOB_VARIABLES = (
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_PORT",
    "SLURM_JOB_ID",
)
# SLURM_NTASKS does not count started processes: Slurm also sets it for a batch script.
_SIZES = {
    **{row[1]: "mpi" for launcher, row in _RANK_VARIABLES.items() if launcher != "Slurm"},
    "SLURM_STEP_NUM_TASKS": "slurm",
    "CNNBENCH_PROCESSES": "kubernetes",
}


def _processes_on_node(environ: Environment, name: str) -> int | None:
    """Number of processes on this node. The environment variable `name` contains this number, or
    Slurm's list of the numbers for all nodes.

    Returns None if the list does not contain this node.
    """
    counts = tasks_per_node(environ, name)
    node = 0 if len(counts) == 1 else number(environ, "SLURM_NODEID", str(len(counts)))
    return counts[node] if node < len(counts) else None


def _job_from_mpi(ps: int, environ: Environment) -> _JobAndLocalRank:
    ranks = mpi_ranks(environ)
    if ranks is None:
        names = ", ".join(names[0] for names in _RANK_VARIABLES.values())
        raise UsageError(f"--cluster=mpi: none of {names} is set; use mpirun, horovodrun or srun")
    hosts = [f"rank-{rank}:{rank + 1}" for rank in range(ranks.size)]
    return _job_of_rank(ranks.rank, hosts, ps, ranks.local_rank)


def _job_from_tf_config(ps: int, environ: Environment) -> _JobAndLocalRank:
    if ps:
        reason = "must not be given with --cluster=tf_config: TF_CONFIG lists the parameter servers"
        raise FlagError("cluster_ps", ps, reason)
    try:
        fields = fields_of_job(parse_json(environ.get("TF_CONFIG", "").strip() or "{}"))
    except ValueError as error:
        raise invalid(environ, "TF_CONFIG", str(error)) from None
    return Job(**fields), None


def _job_from_slurm(ps: int, environ: Environment) -> _JobAndLocalRank:
    rank = number(environ, "SLURM_PROCID")
    size = number(environ, "SLURM_NTASKS", most=LARGEST_PORT)
    local = number(environ, "SLURM_LOCALID")
    step = "SLURM_STEP_NODELIST" in environ
    list_name = "SLURM_STEP_NODELIST" if step else "SLURM_JOB_NODELIST"
    counts_name = "SLURM_STEP_TASKS_PER_NODE" if step else "SLURM_TASKS_PER_NODE"
    nodes = expand_node_list(environ, list_name)
    counts = tasks_per_node(environ, counts_name)
    if len(counts) != len(nodes):
        reason = f"{list_name} has {count_text(nodes, 'node', 'nodes')}"
        raise invalid(environ, counts_name, reason)
    if sum(counts) != size:
        raise invalid(environ, counts_name, f"SLURM_NTASKS is {size}")
    places = [(node, i) for node, count in zip(nodes, counts, strict=True) for i in range(count)]
    if rank >= size or places[rank][1] != local:
        reason = f"is not task {local} of its node by blocks; use srun --distribution=block"
        raise invalid(environ, "SLURM_PROCID", reason)
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    first = LauncherRanks("Slurm", rank, size, local, counts[0], job).exchange_port
    return _job_of_rank(rank, [f"{node}:{first + i}" for node, i in places], ps, local)


def _job_from_kubernetes(ps: int, environ: Environment) -> _JobAndLocalRank:
    pod = re.fullmatch(f"({HOST})-{NUMBER}", required(environ, "HOSTNAME"))
    if pod is None:
        reason = (
            "is not of the form NAME-NUMBER, as pods of a StatefulSet or an Indexed Job are called"
        )
        raise invalid(environ, "HOSTNAME", reason)
    name, index = pod[1], int(pod[2])
    service = required(environ, "CNNBENCH_SERVICE")
    if not re.fullmatch(HOST, service):
        raise invalid(environ, "CNNBENCH_SERVICE", "is not a service name")
    size = number(environ, "CNNBENCH_PROCESSES", least=1, most=LARGEST_PORT)
    port = number(environ, "CNNBENCH_PORT", str(_KUBERNETES_PORT), least=1, most=LARGEST_PORT)
    if index >= size:
        raise invalid(environ, "HOSTNAME", f"CNNBENCH_PROCESSES is {size}")
    return _job_of_rank(index, [f"{name}-{i}.{service}:{port}" for i in range(size)], ps, None)


def _job_of_rank(rank: int, hosts: list[str], ps: int, local_rank: int | None) -> _JobAndLocalRank:
    """Creates the job of a process: the last `ps` processes are parameter servers."""
    workers = len(hosts) - ps
    if workers < 1:
        reason = f"there are {len(hosts)} processes, and one must be a worker"
        raise FlagError("cluster_ps", ps, reason)
    job = Job(
        task=Task(WORKER, rank) if rank < workers else Task(PS, rank - workers),
        worker_addresses=tuple(hosts[:workers]),
        ps_addresses=tuple(hosts[workers:]),
    )
    return job, local_rank


_RESOLVERS: dict[str, Callable[[int, Environment], _JobAndLocalRank]] = {
    "tf_config": _job_from_tf_config,
    "slurm": _job_from_slurm,
    "kubernetes": _job_from_kubernetes,
    "mpi": _job_from_mpi,
}
