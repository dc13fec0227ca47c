"""The processes of a job that `cnnbench launch` runs: layouts, command lines and plans."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cnnbench.base.job import CONTROLLER, WORKER, Job, Task
from cnnbench.base.ports import LOWEST
from cnnbench.base.terminal import MessageWriter
from cnnbench.base.text import count_text
from cnnbench.campaigns.processes import (
    STORED,
    ResolvedRun,
    own_command_prefix,
    resolve_plan,
)
from cnnbench.errors import FlagError
from cnnbench.flags import (
    FLAGS,
    Params,
    ParsedArgs,
    RunPart,
    names_of_flags,
    parse_args,
    parse_flags,
)
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS, params_from_values
from cnnbench.lab.all_reduce import plan as all_reduce_plan
from cnnbench.machine.cpu import Host
from cnnbench.machine.gpu import visible_devices
from cnnbench.plan import ADDRESSES, JobFlagNames, RunPlan, check_flags, resolve
from cnnbench.records.result_files import REDUCTIONS, RUNS, ResultFiles
from cnnbench.run.driver import preflight
from cnnbench.variable_mgr.modes import BUILT_IN, Processes

# `cnnbench launch` sets these flags, so users must not set them.
_RESERVED = {
    **dict.fromkeys(ADDRESSES, "is set by launch for every process"),
    **dict.fromkeys(
        names_of_flags(FLAGS, RunPart.DISCOVERY), "launch gives every process its flags"
    ),
    "cluster_ps": "launch has --ps for this",
}


class JobLayout(NamedTuple):
    """The number of processes of each kind in a job: workers, parameter servers and controller.

    `controller` is whether a separate process runs the steps of all workers.
    """

    workers: int = 1
    ps: int = 0
    controller: bool = False

    @property
    def size(self) -> int:
        """Number of all processes of the job."""
        return self.workers + self.ps + self.controller

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags with which `cnnbench launch` starts a job of this layout."""
        own = {"workers": self.workers, "ps": self.ps, "controller": self.controller}
        given = {name: value for name, value in own.items() if value}
        return flags_to_arguments(given)

    def with_needed_controller(self, run: ParsedArgs) -> JobLayout:
        """Returns the layout, with a controller if the run's --variable_update needs one."""
        mode = run.given.get("variable_update")
        needed = any(m.name == mode for m in BUILT_IN if m.processes is Processes.COORDINATOR)
        return self._replace(controller=self.controller or needed)

    def make_job(self, ports: Sequence[int]) -> Job:
        """Creates the job whose processes use these ports on this machine, from the view of the
        chief.
        """
        hosts = tuple(f"localhost:{port}" for port in ports)
        return Job(
            task=Task(CONTROLLER if self.controller else WORKER),
            worker_addresses=hosts[: self.workers],
            ps_addresses=hosts[self.workers : self.workers + self.ps],
            controller_address=hosts[-1] if self.controller else None,
        )


class TaskCommand(NamedTuple):
    """The cnnbench command that all processes of a job run: its flags as given and as parsed."""

    name: str
    words: tuple[str, ...]
    args: ParsedArgs

    def task_command_line(self, job: Job, towers: int | None) -> tuple[str, ...]:
        """The command line of one process of a job."""
        own = flags_to_arguments(task_flags(job, towers))
        return (*own_command_prefix(), self.name, *self.words, *own)


def parse_task_command(words: Sequence[str]) -> TaskCommand:
    """Parses the command line of a job's processes: "run" or "allreduce", and flags.

    It follows "--" on the command line of `cnnbench launch`. The default command is "run".
    """
    if words and words[0] == "allreduce":
        specs = (*all_reduce_plan.WITHOUT_EFFECT, *ALL_REDUCE_FLAGS)
        args = ParsedArgs(parse_flags(words[1:], specs))
        return TaskCommand(name=words[0], words=tuple(words[1:]), args=args)
    return TaskCommand(name="run", words=tuple(words), args=parse_args(words))


def check_job_flags(layout: JobLayout, command: TaskCommand, towers: int | None) -> RunPlan:
    """Checks the flags of all processes of a job before they start, and returns the chief's plan.

    Raises UsageError like `plan_chief`, and BenchmarkError for unusable data.
    """
    if command.name == "run":
        return resolve(plan_chief(command.args, layout, towers))
    values_of_flags = command.args.given
    if layout.ps:
        raise FlagError("ps", layout.ps, "has no effect in cnnbench allreduce; leave it out")

    def plan_task(own: Mapping[str, Any], names: JobFlagNames) -> RunPlan:
        values = {**values_of_flags, **own}
        if towers is not None:
            values["num_gpus"] = (towers,)
        return all_reduce_plan.make_plan(params_from_values(values), tuple(values), names).run

    return _plan_job(values_of_flags, layout, towers, plan_task)


def plan_chief(args: ParsedArgs, layout: JobLayout | None, towers: int | None = None) -> RunPlan:
    """Plans a run, or all processes of a job; returns the plan of the run or of the job's chief.

    Messages of UsageError name flags of launch, such as --towers, instead of the flags that launch
    passes to processes.
    """
    if layout is None:
        return check_flags(args)
    layout = layout.with_needed_controller(args)

    def plan_task(own: Mapping[str, Any], names: JobFlagNames) -> RunPlan:
        return check_flags(args.including(own), names=names)

    return _plan_job(args.given, layout, towers, plan_task)


def resolve_run(args: ParsedArgs, layout: JobLayout | None = None) -> ResolvedRun:
    """Resolves the flags of a run, or of a job. A campaign will store its record.

    TensorFlow is not loaded. Raises UsageError or DataError if the run is impossible.
    """
    return resolve_plan(resolve(plan_chief(args.including(STORED), layout)))


def _plan_job(
    flag_values: Mapping[str, Any],
    layout: JobLayout,
    towers: int | None,
    plan_task: Callable[[Mapping[str, Any], JobFlagNames], RunPlan],
) -> RunPlan:
    """Plans one process of each kind (worker, ps, controller); returns the plan of the chief.

    `flag_values` are the given flags of the job by name.
    """
    for name, reason in _RESERVED.items():
        if name in flag_values:
            raise FlagError(name, flag_values[name], reason)
    if towers is not None and flag_values.get("num_gpus", towers) not in (towers, (towers,)):
        raise FlagError("num_gpus", flag_values["num_gpus"], f"contradicts --towers={towers}")
    called: dict[str, tuple[str, object]] = {
        "worker_hosts": ("workers", layout.workers),
        "ps_hosts": ("ps", layout.ps),
        "controller_host": ("controller", str(layout.controller).lower()),
    }
    names = JobFlagNames("launch")
    if towers is not None:
        called["num_gpus"], names = ("towers", towers), JobFlagNames("launch", "--towers")
    # The port numbers are placeholders, because plans do not use them.
    job = layout.make_job(range(LOWEST, LOWEST + layout.size))
    kinds = {task.job: task for task in reversed(job.tasks)}.values()
    try:
        plans = [plan_task(task_flags(replace(job, task=task), towers), names) for task in kinds]
    except FlagError as error:
        name, value = called.get(error.flag, (error.flag, error.value))
        raise FlagError(name, value, error.reason) from error
    return plans[-1]


def check_output_files(command: TaskCommand, chief: RunPlan) -> None:
    """Raises an error if the chief of a job could not write one of its output files.

    `chief` is the plan that `check_job_flags` has returned.
    """
    values, table = command.args.given, REDUCTIONS if command.name == "allreduce" else RUNS
    results = ResultFiles(values.get("result_json"), values.get("result_csv"), table)
    with preflight.locked_outputs(chief, results, MessageWriter.silent()):
        pass


def flags_to_arguments(flags: Mapping[str, object]) -> tuple[str, ...]:
    """Converts flags, given as values by name, to command-line arguments. True becomes a flag
    without a value.
    """
    return tuple(f"--{n}" if value is True else f"--{n}={value}" for n, value in flags.items())


def run_command_words(layout: JobLayout | None, flags: Sequence[str]) -> tuple[str, ...]:
    """Returns the arguments with which cnnbench starts a run (`layout` is None) or a job."""
    if layout is None:
        return ("run", *flags)
    return ("launch", *layout.flags, "--", *flags)


def task_flags(job: Job, towers: int | None) -> dict[str, Any]:
    """The flags, by name, that tell a process its task in a job and all addresses."""
    own = {f"{name}_hosts": ",".join(job.addresses_of(name)) for name in ("worker", "ps")}
    own |= {"controller_host": job.controller_address or "", "job_name": job.task.job}
    values = {**own, "task_index": job.task.index, "num_gpus": towers}
    return {name: value for name, value in values.items() if value not in ("", None)}


def gpu_variables(job: Job, flags: Params) -> dict[str, str]:
    """Environment variables that restrict a process of a job to its own GPUs."""
    if flags.device == "cpu" or flags.gpu_indices or job.task.job != WORKER:
        return {}
    number, per_card = flags.num_gpus, flags.gpus_per_card
    share = visible_devices(Host(), job.task.index, number, per_card)
    everybody = visible_devices(Host(), job.num_workers - 1, number, per_card)
    return {"CUDA_VISIBLE_DEVICES": share} if share and everybody else {}


def divide_cores(tasks: int) -> list[set[int]]:
    """Divides the CPUs of this process among processes, which get neighbouring CPU numbers."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < tasks:
        cpus = count_text(cores, "CPU", "CPUs")
        raise FlagError("affinity", "true", f"{cpus} cannot be divided among {tasks} processes")
    edges = [len(cores) * i // tasks for i in range(tasks + 1)]
    return [set(cores[a:b]) for a, b in itertools.pairwise(edges)]
