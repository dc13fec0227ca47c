"""Commands of the processes of a job, by number of workers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cnnbench.base.jobs.job import CONTROLLER, WORKER, Job, Task
from cnnbench.base.jobs.ports import LOWEST
from cnnbench.base.text.progress import Messages
from cnnbench.campaigns.processes.child import program
from cnnbench.campaigns.processes.commands import Resolved, of_plan, stored
from cnnbench.errors import FlagError
from cnnbench.flags import ParsedArgs, parse_args, parse_flags
from cnnbench.flags.declare import named, specs_of, texts_of
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS, params_of
from cnnbench.flags.groups.cluster import ClusterParams
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.flags.params import ACCEPTED, FLAGS
from cnnbench.flags.roles import RunPart
from cnnbench.lab.all_reduce import plan as all_reduce_plan
from cnnbench.machine.gpu import share_of_gpus
from cnnbench.machine.host import Host
from cnnbench.plan import Setup, make_plan
from cnnbench.plan.machine import MachinePlan
from cnnbench.plan.place import ADDRESSES, JobFlagNames
from cnnbench.plan.resolve import of_args
from cnnbench.records.all_reduce import AllReduceRecord
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
    """Numbers of processes by kind; with a controller, a separate process drives the workers.

    `options` are other flags of launch.
    """

    workers: int = 1
    ps: int = 0
    controller: bool = False
    options: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.workers + self.ps + self.controller

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of launch for this layout."""
        ps = (f"--ps={self.ps}",) if self.ps else ()
        controller = ("--controller",) if self.controller else ()
        return (f"--workers={self.workers}", *ps, *controller, *self.options)

    def with_coordinator(self, run: ParsedArgs) -> JobLayout:
        """The layout with a controller, if the built-in mode of a run needs one."""
        given = run.given.get("variable_update")
        needed = any(m.name == given for m in BUILT_IN if m.processes is Processes.COORDINATOR)
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


@dataclass(frozen=True, kw_only=True)
class TaskCommand:
    """The command of every process of a job: its flags as typed, and what they mean."""

    name: str
    words: tuple[str, ...]
    args: ParsedArgs

    def of_task(self, job: Job, towers: int | None, **more: object) -> tuple[str, ...]:
        """The words that start a process of a job, with more flags for all of them."""
        own = command_words({**more, **task_flags(job, towers)})
        return (*program(), self.name, *self.words, *own)

    def alone(self, towers: int) -> tuple[str, ...]:
        """The flags of a run in one process whose towers exchange nothing."""
        of_jobs = {spec.name for group in _OF_JOBS for spec in specs_of(group)} | {"num_gpus"}
        kept = {n: v for n, v in self.args.given.items() if n not in of_jobs and v is not None}
        texts = {**texts_of(kept, ACCEPTED), "variable_update": "independent", "num_gpus": towers}
        return command_words(texts)


def task_command(words: Sequence[str]) -> TaskCommand:
    """Parses the words after -- of the processes of a job; their command is `run` by default."""
    if words and words[0] == "allreduce":
        specs = (*all_reduce_plan.WITHOUT_EFFECT, *ALL_REDUCE_FLAGS)
        args = ParsedArgs(parse_flags(words[1:], specs))
        return TaskCommand(name=words[0], words=tuple(words[1:]), args=args)
    return TaskCommand(name="run", words=tuple(words), args=parse_args(words))


def check(layout: JobLayout, command: TaskCommand, towers: int | None) -> Setup:
    """Refuses flags that the processes would refuse, before any is started.

    Returns the setup of the chief; UsageError as `chief_setup`, BenchmarkError for unusable data.
    """
    if command.name == "run":
        return make_plan(chief_setup(command.args, layout, towers))
    given = command.args.given
    if layout.ps:
        raise FlagError("ps", layout.ps, "cnnbench allreduce has no use for them")

    def of_task(own: Mapping[str, Any], names: JobFlagNames) -> Setup:
        values = {**given, **own, **({} if towers is None else {"num_gpus": (towers,)})}
        return all_reduce_plan.make_plan(params_of(values), tuple(values), names).run

    return _of_tasks(given, layout, towers, of_task)


def chief_setup(args: ParsedArgs, layout: JobLayout | None, towers: int | None = None) -> Setup:
    """The setup of a run, or of the chief of a job; then that of each kind of process is checked.

    UsageError names the flags of launch (such as --towers) where a process would name those it was
    given for them.
    """
    if layout is None:
        return of_args(args)
    given, layout = args.given, layout.with_coordinator(args)
    return _of_tasks(given, layout, towers, lambda own, names: of_args(args.including(own), names))


def resolve_run(args: ParsedArgs, layout: JobLayout | None = None) -> Resolved:
    """Resolves a run, or a job of runs, whose record the caller stores; loads no TensorFlow.

    UsageError or DataError says why it cannot be run.
    """
    return of_plan(make_plan(chief_setup(stored(args), layout)))


def _of_tasks(
    given: Mapping[str, Any],
    layout: JobLayout,
    towers: int | None,
    of_task: Callable[[Mapping[str, Any], JobFlagNames], Setup],
) -> Setup:
    """The setup of the chief, made as for each kind of process, from its own flags."""
    for name, reason in _RESERVED.items():
        if name in given:
            raise FlagError(name, given[name], reason)
    if towers is not None and given.get("num_gpus", towers) not in (towers, (towers,)):
        raise FlagError("num_gpus", given["num_gpus"], f"contradicts --towers={towers}")
    called: dict[str, tuple[str, object]] = {
        "worker_hosts": ("workers", layout.workers),
        "ps_hosts": ("ps", layout.ps),
        "controller_host": ("controller", str(layout.controller).lower()),
    }
    names = JobFlagNames("launch")
    if towers is not None:
        called["num_gpus"], names = ("towers", towers), JobFlagNames("launch", "--towers")
    job = layout.job_to_check()
    kinds = {task.job: task for task in reversed(job.tasks)}.values()
    try:
        *_, chief = [of_task(task_flags(replace(job, task=task), towers), names) for task in kinds]
    except FlagError as error:
        name, value = called.get(error.flag, (error.flag, error.value))
        raise FlagError(name, value, error.reason) from error
    return chief


def check_files(command: TaskCommand, chief: Setup) -> None:
    """Refuses output files that the chief, with the setup from `check`, could not write."""
    given, reduces = command.args.given, command.name == "allreduce"
    written = (REDUCTIONS, AllReduceRecord.kind) if reduces else (RUNS, RunRecord.kind)
    results = ResultFiles(given.get("result_json"), given.get("result_csv"), *written)
    with outputs.held(chief, results, Messages.silent()):
        pass


def command_words(flags: Mapping[str, object]) -> tuple[str, ...]:
    """The words of flags by name on a command line; True stands for a flag without a value."""
    return tuple(f"--{n}" if value is True else f"--{n}={value}" for n, value in flags.items())


def run_words(layout: JobLayout | None, flags: Sequence[str]) -> tuple[str, ...]:
    """The command line, after the program, of a run or of a job of runs with these flags each."""
    if layout is None:
        return ("run", *flags)
    return ("launch", *layout.flags, "--", *flags)


def task_flags(job: Job, towers: int | None) -> dict[str, Any]:
    """The flags, by name, that make a process this task of a job; `towers` if they are set."""
    own = {f"{name}_hosts": ",".join(job.addresses_of(name)) for name in ("worker", "ps")}
    own |= {"controller_host": job.controller_host or "", "job_name": job.task.job}
    values = {**own, "task_index": job.task.index, "num_gpus": towers}
    return {name: value for name, value in values.items() if value not in ("", None)}


def gpu_variables(job: Job, machine: MachinePlan) -> dict[str, str]:
    """Environment variables that give the process of a job its own GPUs."""
    if machine.device == "cpu" or machine.gpu_indices or job.task.job != WORKER:
        return {}
    number, each = machine.num_gpus, machine.gpus_per_card
    share = share_of_gpus(Host(), job.task.index, number, each)
    everybody = share_of_gpus(Host(), job.num_workers - 1, number, each)
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
