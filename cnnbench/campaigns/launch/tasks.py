"""Commands of the processes of a job, by number of workers."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cnnbench.base.jobs.job import CONTROLLER, PS, WORKER, Job, Task
from cnnbench.base.jobs.ports import LOWEST
from cnnbench.base.text.progress import Messages
from cnnbench.campaigns.processes.commands import flags_of
from cnnbench.errors import FlagError
from cnnbench.flags import parse_flags
from cnnbench.flags.declare import named, specs_of
from cnnbench.flags.groups.allreduce import ALLREDUCE_FLAGS, params_of
from cnnbench.flags.groups.cluster import ClusterParams
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.flags.params import ACCEPTED, FLAGS
from cnnbench.flags.roles import RunPart
from cnnbench.lab.allreduce import plan as allreduce
from cnnbench.machine.gpu import share_of_gpus
from cnnbench.machine.host import Host
from cnnbench.plan import Setup, make_plan, parse_run
from cnnbench.plan.machine import MachinePlan
from cnnbench.plan.place import ADDRESSES
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.result_files import REDUCTIONS, RUNS, ResultFiles
from cnnbench.records.run import RunRecord
from cnnbench.run.driver import outputs
from cnnbench.variable_mgr.modes import BUILT_IN, Processes

# Known only to this command, or contradicting it.
_OF_JOBS = (ClusterParams, VariableUpdateParams)
_RESERVED = {
    **dict.fromkeys(ADDRESSES, "is set by launch for every process"),
    **dict.fromkeys(named(FLAGS, RunPart.DISCOVERY), "launch gives every process its flags"),
    "cluster_ps": "launch has --ps for this",
}


@dataclass(frozen=True, kw_only=True)
class JobLayout:
    """Numbers of processes by kind; with a controller, a separate process drives the workers."""

    workers: int = 1
    ps: int = 0
    controller: bool = False

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.workers + self.ps + self.controller

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of launch for this layout."""
        ps = (f"--ps={self.ps}",) if self.ps else ()
        controller = ("--controller",) if self.controller else ()
        return (f"--workers={self.workers}", *ps, *controller)

    def with_coordinator(self, flags: Sequence[str]) -> JobLayout:
        """The layout with a controller, if the mode in these flags needs one."""
        command, own = command_of(flags)
        if command != "run":
            return self
        mode = parse_flags(own, ACCEPTED.values()).get("variable_update")
        needed = any(one.processes is Processes.COORDINATOR for one in BUILT_IN if one.name == mode)
        return replace(self, controller=self.controller or needed)

    def job(self, ports: Sequence[int]) -> Job:
        """The job on these ports of this machine, as its chief sees it."""
        hosts = tuple(f"localhost:{port}" for port in ports)
        return Job(
            task=Task(CONTROLLER if self.controller else WORKER),
            worker_hosts=hosts[: self.workers],
            ps_hosts=hosts[self.workers : self.workers + self.ps],
            controller_host=hosts[-1] if self.controller else None,
        )

    def job_to_check(self) -> Job:
        """The job on fixed ports, for checking flags."""
        return self.job(range(LOWEST, LOWEST + self.size))


def check(layout: JobLayout, flags: Sequence[str], towers: int | None) -> Setup:
    """Refuses flags that the processes would refuse, before any is started.

    Returns the setup of the chief. UsageError names the flags of launch (such as --towers)
    where a process would name those it was given for them; BenchmarkError is for unusable data.
    """
    command, flags = command_of(flags)
    given = parse_flags(flags, (*allreduce.WITHOUT_EFFECT, *flags_of(command).values()))
    for name, reason in _RESERVED.items():
        if name in given:
            raise FlagError(name, given[name], reason)
    if layout.ps and command == "allreduce":
        raise FlagError("ps", layout.ps, "cnnbench allreduce has no use for them")
    if towers is not None and given.get("num_gpus", towers) not in (towers, (towers,)):
        raise FlagError("num_gpus", given["num_gpus"], f"contradicts --towers={towers}")
    job = layout.job_to_check()
    with _as_given(layout, towers):
        parsed = [
            _setup(command, task_flags(replace(job, task=task), flags, towers))
            for task in {task.job: task for task in reversed(job.tasks)}.values()
        ]
    return parsed[-1]


def check_files(flags: Sequence[str], chief: Setup) -> None:
    """Refuses output files that the chief, with the setup from `check`, could not write."""
    command, flags = command_of(flags)
    given = parse_flags(flags, (*allreduce.WITHOUT_EFFECT, *flags_of(command).values()))
    reduces = command == "allreduce"
    written = (REDUCTIONS, AllReduceRecord.kind) if reduces else (RUNS, RunRecord.kind)
    results = ResultFiles(given.get("result_json"), given.get("result_csv"), *written)
    with outputs.held(chief, results, Messages.silent()):
        pass


def run_words(layout: JobLayout | None, flags: Sequence[str]) -> tuple[str, ...]:
    """The command line, after the program, of a run or of a job of runs with these flags each."""
    if layout is None:
        return ("run", *flags)
    return ("launch", *layout.flags, "--", *flags)


def chief_flags(layout: JobLayout | None, flags: Sequence[str]) -> tuple[str, ...]:
    """The flags that describe a run: its own, or those of the chief of a job on fixed ports.

    Those of a job are checked for each kind of process; see `check`.
    """
    if layout is None:
        return tuple(flags)
    layout = layout.with_coordinator(flags)
    check(layout, flags, None)
    return task_flags(layout.job_to_check(), flags, None)


@contextlib.contextmanager
def _as_given(layout: JobLayout, towers: int | None) -> Iterator[None]:
    """Replaces flags of processes by the flags of launch in error messages."""
    given: dict[str, tuple[str, object]] = {
        "worker_hosts": ("workers", layout.workers),
        "ps_hosts": ("ps", layout.ps),
        "controller_host": ("controller", str(layout.controller).lower()),
    }
    if towers is not None:
        given["num_gpus"] = ("towers", towers)
    try:
        yield
    except FlagError as error:
        name, value = given.get(error.flag, (error.flag, error.value))
        reason = error.reason.replace("--job_name", "launch")
        for flag, (own, _) in given.items():
            reason = reason.replace(f"--{flag}", f"--{own}")
        raise FlagError(name, value, reason) from error


def command_of(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Command and flags of every process, from the words after --; the default is `run`."""
    if words and words[0] == "allreduce":
        return words[0], words[1:]
    return "run", words


def _setup(command: str, flags: Sequence[str]) -> Setup:
    """The setup of one process, or that of a run on its devices."""
    if command == "run":
        setup = parse_run(flags)
        served = setup.place.job.task.job == PS and setup.params.data_dir is not None
        return setup if served else make_plan(setup)  # a ps task needs no data
    given = parse_flags(flags, (*allreduce.WITHOUT_EFFECT, *ALLREDUCE_FLAGS))
    return allreduce.make_plan(params_of(given), tuple(given)).run


def task_flags(job: Job, flags: Sequence[str], towers: int | None) -> tuple[str, ...]:
    """The flags of one process of a job; without `towers`, as many per worker as in `flags`."""
    hosts = {f"{name}_hosts": ",".join(job.addresses_of(name)) for name in ("worker", "ps")}
    own = {**hosts, "controller_host": job.controller_host or "", "job_name": job.task.job}
    own["task_index"] = str(job.task.index)
    own["num_gpus"] = "" if towers is None else str(towers)
    return (*flags, *(f"--{name}={value}" for name, value in own.items() if value))


def flags_alone(flags: Sequence[str], towers: int) -> tuple[str, ...]:
    """The flags of a run in one process whose towers exchange nothing, from those of a job."""
    of_jobs = {spec.name for group in _OF_JOBS for spec in specs_of(group)} | {"num_gpus"}
    given = parse_flags(flags, ACCEPTED.values())
    words = (
        f"--{name}={ACCEPTED[name].text(value)}"
        for name, value in given.items()
        if name not in of_jobs and value is not None
    )
    return (*words, "--variable_update=independent", f"--num_gpus={towers}")


def gpu_variables(job: Job, machine: MachinePlan) -> dict[str, str]:
    """Environment variables that give the process of a job its own GPUs."""
    if machine.device == "cpu" or machine.gpu_indices or job.task.job != WORKER:
        return {}
    share = share_of_gpus(Host(), job.task.index, machine.num_gpus)
    everybody = share_of_gpus(Host(), job.num_workers - 1, machine.num_gpus)
    return {"CUDA_VISIBLE_DEVICES": share} if share and everybody else {}


def shares_of_cores(tasks: int) -> list[set[int]]:
    """Divides the processors of this process among tasks, neighbours together."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < tasks:
        raise FlagError(
            "affinity", "true", f"{len(cores)} processors cannot be divided among {tasks} processes"
        )
    edges = [len(cores) * i // tasks for i in range(tasks + 1)]
    return [set(cores[a:b]) for a, b in itertools.pairwise(edges)]


@contextlib.contextmanager
def on_cores(cores: set[int] | None) -> Iterator[None]:
    """Restricts processes started in the block to these processors; None: no restriction."""
    before = os.sched_getaffinity(0)
    try:
        if cores is not None:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        os.sched_setaffinity(0, before)
