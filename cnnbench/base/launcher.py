"""Finds out from the environment variables of a launcher which task of a job this process is.

The values of --cluster select the variables. ``tf_config``: TF_CONFIG, which TensorFlow's
strategies also read. ``slurm``: the variables that srun sets for its tasks. ``kubernetes``: a
StatefulSet or an Indexed Job behind a headless service, as in cli/jobs/kubernetes.yaml. With
``slurm`` and ``mpi``, only the rank is known at first, and the processes exchange their addresses
when the run begins (`cnnbench.base.rendezvous`).
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from cnnbench.base.files import parse_json
from cnnbench.base.job import CONTROLLER, HOST, LARGEST_PORT, PS, WORKER, Job, Task, is_address
from cnnbench.errors import FlagError, UsageError

Environment: TypeAlias = Mapping[str, str]

EVALUATOR = "evaluator"

_TF_CONFIG = ("cluster", "task")
_SPARSE = "sparseCluster"
# Further keys that Vertex AI and TensorFlow's ClusterResolver accept. They contain no addresses, so
# they are ignored.
_TF_OTHERS = ("environment", "job", "trial", "model_dir", "rpc_layer")
_TF_CHIEFS = ("chief", "master")
_TF_JOBS = {WORKER, PS, CONTROLLER, *_TF_CHIEFS}

_KUBERNETES_PORT = 2222
_LONGEST_VALUE = 100

NUMBER = "([0-9]{1,9})"
"""Pattern of a whole number, as a group."""

_JobAndLocalRank: TypeAlias = "tuple[Job, int | None]"  # Result of `resolve_job`.


class LauncherRanks(NamedTuple):
    """The rank of this process and the number of processes, read from the variables of a launcher.

    `local_rank` and `local_size` are rank and number of processes on this machine; None if unknown.
    `job` identifies the job among the jobs of this machine; empty if the launcher sets no such
    variable and is not among the ancestors of this process. If the launcher tells them, `place` is
    the host:port of rank 0 for the exchange of addresses, and `node` the name of this machine.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    job: str
    place: str | None = None
    node: str = ""

    @property
    def exchange_port(self) -> int:
        """A port for the address exchange, which is the same in all processes of the job.

        It is below the range of ports for outgoing connections.
        """
        return 10000 + zlib.crc32(self.job.encode()) % 20000


def resolve_job(cluster: str, ps: int, environ: Environment) -> tuple[Job, int | None]:
    """Finds the job of this process, and its rank on its machine (None if unknown).

    `cluster` is the value of --cluster; with "mpi" and "slurm", the addresses are placeholders that
    contain the ranks. The last `ps` processes are parameter servers (except for TF_CONFIG, which
    lists them).

    Raises:
      UsageError: a variable is missing or malformed.
    """
    return _RESOLVERS[cluster](ps, environ)


class FoundLauncher(NamedTuple):
    """A launcher such as mpirun that has probably started several processes.

    Attributes:
      text: names the variable that shows the launcher or, if `is_malformed`, is the error message
        about this variable.
      cluster: the value of --cluster that reads the variable.
    """

    text: str
    cluster: str
    is_malformed: bool = False


def detect_launcher(environ: Environment, evaluates: bool) -> FoundLauncher | None:
    """Detects whether a launcher such as mpirun has started several processes.

    The result is None if there was no launcher or only one process. The processes need not form one
    job, because a launcher may also start independent runs. A malformed variable may also belong to
    a job. For an evaluator, the result is None if `evaluates`, because the evaluator is started as
    intended.
    """
    names = [name for name in (*_SIZES, "TF_CONFIG") if environ.get(name)]
    if not names:
        return None
    name = names[0]
    cluster = _SIZES.get(name, "tf_config")
    try:
        job = Job() if name in _SIZES else _from_tf_config(0, environ)[0]
        if job.task.job == EVALUATOR:
            return None if evaluates else FoundLauncher(f"{name} is that of an evaluator", cluster)
        size = number(environ, name) if name in _SIZES else len(job.tasks)
        found = FoundLauncher(f"{name} is that of {size} processes", cluster)
        return found if size > 1 else None
    except UsageError as error:
        return FoundLauncher(str(error), cluster, is_malformed=True)


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
    local_size = _local_size(environ, local_sizes[0]) if local_sizes else None
    if size == 1:
        local_rank, local_size = local_rank or 0, 1
    names = [[environ.get(name, "") for name in group] for group in _JOB_VARIABLES[launcher]]
    job = next((".".join(group) for group in names if all(group)), "")
    return LauncherRanks(launcher, rank, size, local_rank, local_size, job or _launcher_process())


def slurm_ranks(environ: Environment) -> LauncherRanks:
    """Reads the rank that srun has set. UsageError for a missing or malformed variable.

    Task 0 runs on the first node, except for an arbitrary distribution, which is refused.
    """
    rank = number(environ, "SLURM_PROCID")
    size = number(environ, "SLURM_NTASKS", most=LARGEST_PORT)
    local = number(environ, "SLURM_LOCALID")
    if rank >= size:
        raise invalid(environ, "SLURM_PROCID", f"SLURM_NTASKS is {size}")
    if "arbitrary" in environ.get("SLURM_DISTRIBUTION", ""):
        reason = "the first task may run on any node; use another distribution"
        raise invalid(environ, "SLURM_DISTRIBUTION", reason)
    step = "SLURM_STEP_NODELIST" in environ
    first = first_node(environ, "SLURM_STEP_NODELIST" if step else "SLURM_JOB_NODELIST")
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    ranks = LauncherRanks("Slurm", rank, size, local, None, job)
    node = environ.get("SLURMD_NODENAME", "")
    return ranks._replace(place=f"{first}:{ranks.exchange_port}", node=node)


def ranks_of(cluster: str, environ: Environment) -> LauncherRanks | None:
    """The ranks of a launcher whose processes must exchange their addresses; else None."""
    if cluster == "slurm":
        return slurm_ranks(environ)
    return mpi_ranks(environ) if cluster == "mpi" else None


def _launcher_process() -> str:
    """Identifies the job by the process that has started all ranks on this machine; "" if it cannot
    be found, for example in a container.

    A rank may be started by a wrapper script, so the launcher need not be the parent.
    """
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for process in psutil.Process().parents():
            if re.fullmatch(_LAUNCHERS, process.name()):
                return f"{process.pid} {process.create_time()}"
    return ""


_RANK_NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
# For each launcher, its variables for rank, size, local rank and local size. The first launcher
# with variables is used. Slurm is last, because in a Slurm allocation its variables are also set
# below mpirun and horovodrun.
_RANK_VARIABLES = {
    "Horovod": tuple(f"HOROVOD_{name}" for name in _RANK_NAMES),
    "Open MPI": tuple(f"OMPI_COMM_WORLD_{name}" for name in _RANK_NAMES),
    "MVAPICH": tuple(f"MV2_COMM_WORLD_{name}" for name in _RANK_NAMES),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # SLURM_NTASKS_PER_NODE is missing unless the user requests a number, so another variable is
    # used.
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}
# For each launcher, the variables that identify the job and have the same values in all of its
# processes on a machine; alternatives are separate tuples. Below mpirun, Slurm's variables may
# differ between processes.
_JOB_VARIABLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "Horovod": (("HOROVOD_GLOO_RENDEZVOUS_PORT",),),
    "Open MPI": (("PMIX_NAMESPACE",), ("OMPI_MCA_ess_base_jobid",)),
    "MVAPICH": (),
    "MPICH": (),
    "Slurm": (("SLURM_JOB_ID", "SLURM_STEP_ID"),),
}
_LAUNCHERS = (
    r"hydra_\w+|mpispawn|mp(iexec|irun)(\.(hydra|gforker|mpich|openmpi))?|orted|prte\w*|slurmstepd"
)
"""Names of processes that start the ranks of a job on a machine. Wrapper scripts of single ranks,
such as mpirun_env.sh, are none of them."""
# SLURM_NTASKS is not in this table: Slurm also sets it for a batch script, so it does not prove
# that several processes were started.
_SIZES = {
    **{row[1]: "mpi" for launcher, row in _RANK_VARIABLES.items() if launcher != "Slurm"},
    "SLURM_STEP_NUM_TASKS": "slurm",
    "CNNBENCH_PROCESSES": "kubernetes",
}


def _local_size(environ: Environment, variable: str) -> int | None:
    """Number of processes on this node. The environment variable contains this number, or Slurm's
    list of the numbers for all nodes.

    Returns None if the list does not contain this node.
    """
    counts = tasks_per_node(environ, variable)
    node = 0 if len(counts) == 1 else number(environ, "SLURM_NODEID", str(len(counts)))
    return counts[node] if node < len(counts) else None


def _job_from_mpi(ps: int, environ: Environment) -> _JobAndLocalRank:
    ranks = mpi_ranks(environ)
    if ranks is None:
        names = ", ".join(names[0] for names in _RANK_VARIABLES.values())
        raise UsageError(f"--cluster=mpi: none of {names} is set; use mpirun, horovodrun or srun")
    return _job_of_rank(ranks.rank, _placeholders(ranks), ps, ranks.local_rank)


def _from_tf_config(ps: int, environ: Environment) -> _JobAndLocalRank:
    if ps:
        reason = "must not be given with --cluster=tf_config: TF_CONFIG lists the parameter servers"
        raise FlagError("cluster_ps", ps, reason)
    try:
        fields = fields_of_job(parse_json(environ.get("TF_CONFIG", "").strip() or "{}"))
    except ValueError as error:
        raise invalid(environ, "TF_CONFIG", str(error)) from None
    return Job(**fields), None


def _from_slurm(ps: int, environ: Environment) -> _JobAndLocalRank:
    ranks = slurm_ranks(environ)
    return _job_of_rank(ranks.rank, _placeholders(ranks), ps, ranks.local_rank)


def _placeholders(ranks: LauncherRanks) -> list[str]:
    """Addresses for the time until the processes have exchanged theirs."""
    return [f"rank-{rank}:{rank + 1}" for rank in range(ranks.size)]


def _from_kubernetes(ps: int, environ: Environment) -> _JobAndLocalRank:
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


# Parsing of the variables: TF_CONFIG, Slurm's lists, whole numbers.


def fields_of_job(config: Any) -> dict[str, Any]:
    """Converts TF_CONFIG to the fields of `Job`. ValueError describes an invalid part.

    A chief becomes the first worker or, if there are parameter servers, the controller. Without a
    cluster, the job consists of this process, which must be its first task. As in tf.distribute, an
    evaluator is not in the cluster, even if TF_CONFIG lists it there.
    """
    cluster, me = (config.get(key, {}) if isinstance(config, dict) else None for key in _TF_CONFIG)
    if not isinstance(cluster, dict) or not isinstance(me, dict):
        raise ValueError('must contain "cluster" and "task", whose values are objects')
    if me.get("type") == EVALUATOR:
        return {"task": Task(EVALUATOR)}
    if not cluster and _SPARSE in config:
        cluster = _dense_cluster(config[_SPARSE])
    if not cluster:
        _check_single_task(config, me)
        return {}
    hosts: dict[str, list[str]] = {}
    for name, value in cluster.items():
        listed: list[Any] = value if isinstance(value, list) else [None]
        if not all(isinstance(host, str) and is_address(host.strip()) for host in listed):
            raise ValueError(f"cluster.{name} must be a list of host:port")
        hosts[str(name)] = [host.strip() for host in listed]
    hosts.pop(EVALUATOR, None)
    job, index = _parse_task(me)
    unknown = sorted(({job} | hosts.keys()) - _TF_JOBS)
    if unknown:
        jobs = ", ".join(sorted(_TF_JOBS))
        raise ValueError(f"{unknown[0]!r} is not a job; must be one of {jobs}")
    if index >= len(hosts.get(job, ())):
        raise ValueError(f"cluster has no task {job}:{index}")
    chiefs = [host for name in _TF_CHIEFS for host in hosts.get(name, [])]
    controllers = hosts.get(CONTROLLER, [])
    workers, servers = hosts.get(WORKER, []), hosts.get(PS, [])
    if len(chiefs) + len(controllers) > 1:
        raise ValueError("cluster has more than one chief")
    if servers:
        controllers = controllers + chiefs
        job = CONTROLLER if job in _TF_CHIEFS else job
    else:
        index += len(chiefs) if job == WORKER else 0
        workers = chiefs + workers
        job = WORKER if job in _TF_CHIEFS else job
    return {
        "task": Task(job, index),
        "worker_addresses": tuple(workers),
        "ps_addresses": tuple(servers),
        "controller_address": controllers[0] if controllers else None,
    }


def _parse_task(task: Mapping[str, Any]) -> tuple[str, int]:
    job, index = task.get("type"), task.get("index", 0)
    if isinstance(index, str) and re.fullmatch(NUMBER, index):
        index = int(index)
    if not isinstance(job, str) or type(index) is not int or not 0 <= index < LARGEST_PORT:
        reason = 'must contain a "type" (a string) and an "index" (a whole number from 0)'
        raise ValueError(f"task {reason}")
    return job, index


def _dense_cluster(sparse: Any) -> dict[str, list[Any]]:
    """Converts the value of `sparseCluster`, which maps numbers of workers to addresses, to the
    form of `cluster`.

    A Kubernetes operator writes it if workers may be added to a job. Its process then knows only
    itself and the parameter servers, so a single worker does not show that it is the only one.
    """
    workers = sparse.get(WORKER) if isinstance(sparse, dict) else None
    if not isinstance(workers, dict) or len(workers) < 2:
        raise ValueError(
            f'"{_SPARSE}" does not list all workers of the job; turn off enableDynamicWorker, or '
            "give the addresses as flags (--cluster=flags)"
        )
    numbers = [str(number) for number in range(len(workers))]
    if workers.keys() != set(numbers):
        raise ValueError(f"{_SPARSE}.worker must have the keys 0 to {len(workers) - 1}")
    return {**sparse, WORKER: [workers[number] for number in numbers]}


def _check_single_task(config: Mapping[str, Any], task: Mapping[str, Any]) -> None:
    """Raises ValueError if a TF_CONFIG without addresses is not that of a job of one process."""
    if unknown := sorted(config.keys() - {*_TF_CONFIG, *_TF_OTHERS}):
        raise ValueError(f'has no "cluster", and the key {unknown[0][:40]!r} is unknown')
    if task:
        job, index = _parse_task(task)
        if job not in {WORKER, *_TF_CHIEFS} or index:
            raise ValueError(
                f'has no "cluster" with the addresses of the job, and {job[:40]}:{index} cannot be '
                "its only task"
            )


def first_node(environ: Environment, variable: str) -> str:
    """Returns the first name in a Slurm node list: n001 for "n[001-002],gpu1"."""
    text = required(environ, variable)
    # Commas within brackets separate numbers, not nodes.
    first = re.match(r"((?:[^\[\],]|\[[^\]]*\])+)(?:,|$)", text)
    name = re.sub(rf"\[{NUMBER}[^\]]*\]", r"\1", first[1]) if first else ""
    if not re.fullmatch(HOST, name):
        raise invalid(environ, variable, "is not a list of nodes such as n[01-04],m7")
    return name


def tasks_per_node(environ: Environment, variable: str) -> list[int]:
    """Expands Slurm's number of tasks on each node: "2(x3),1" becomes 2, 2, 2, 1."""
    text = required(environ, variable)
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", part)
        if match is None:
            raise invalid(environ, variable, "is not a list of numbers such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def required(environ: Environment, variable: str) -> str:
    """Returns the value of a variable; UsageError if it is not set."""
    text = environ.get(variable, "").strip()
    if not text:
        raise UsageError(f"the environment variable {variable} is not set; see --cluster")
    return text


def number(
    environ: Environment,
    variable: str,
    otherwise: str = "",
    *,
    least: int = 0,
    most: int = 999_999_999,
) -> int:
    """Reads a whole number from a variable, or from `otherwise` if the variable is not set.

    UsageError if it is not a number from `least` to `most`.
    """
    text = environ.get(variable, "").strip() or otherwise or required(environ, variable)
    if not re.fullmatch(NUMBER, text) or not least <= int(text) <= most:
        raise invalid(environ, variable, f"must be a whole number from {least} to {most}")
    return int(text)


def invalid(environ: Environment, variable: str, reason: str) -> UsageError:
    """Returns the error for a variable whose value cannot be used, with the value."""
    value = environ[variable]
    short = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}..."
    return UsageError(f"the environment variable {variable}={short}: {reason}")


_RESOLVERS: dict[str, Callable[[int, Environment], _JobAndLocalRank]] = {
    "tf_config": _from_tf_config,
    "slurm": _from_slurm,
    "kubernetes": _from_kubernetes,
    "mpi": _job_from_mpi,
}
