"""What a run does, and which task of a job this process is."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from cnnbench.base.job import LOCAL, WORKER, Job, Task, split_hosts
from cnnbench.base.rules import FlagRule, raise_first_refusal, refuse, refuse_any_value
from cnnbench.flags.declare import RunPart, names_of_flags
from cnnbench.flags.groups.run import EVAL_DURING_TRAINING, RunParams
from cnnbench.flags.params import FLAGS, Params
from cnnbench.variable_mgr.modes import Mode, Processes, built_in_names

# What a run does: training, evaluation, forward passes only, or input only.


class WorkKind(enum.Enum):
    """What a run does. The values are printed in the header of the output."""

    TRAINING = "training"
    TRAINING_AND_EVALUATION = "training + evaluation"
    EVALUATION = "evaluation"
    FORWARD = "forward only"
    INPUT = "input only"

    @classmethod
    def of(cls, flags: RunParams) -> WorkKind:
        """Returns what a run with these flags does."""
        if flags.eval:
            return cls.EVALUATION
        if flags.forward_only:
            return cls.FORWARD
        if flags.input_only:
            return cls.INPUT
        during = any(getattr(flags, name) for name in EVAL_DURING_TRAINING)
        return cls.TRAINING_AND_EVALUATION if during else cls.TRAINING

    @property
    def trains(self) -> bool:
        """Whether the run updates the weights."""
        return self in (WorkKind.TRAINING, WorkKind.TRAINING_AND_EVALUATION)

    @property
    def evaluates(self) -> bool:
        """Whether the run evaluates the weights on the validation subset."""
        return self in (WorkKind.EVALUATION, WorkKind.TRAINING_AND_EVALUATION)

    @property
    def only_forward(self) -> bool:
        """Whether the run computes forward passes only, without gradients."""
        return self in (WorkKind.EVALUATION, WorkKind.FORWARD)

    @property
    def subsets(self) -> tuple[str, ...]:
        """The subsets of the data set that the run reads, "train" and "validation"."""
        if self is WorkKind.EVALUATION:
            return ("validation",)
        return ("train", "validation") if self.evaluates else ("train",)


# The task of this process in its job, from the flags.

ADDRESSES = names_of_flags(FLAGS, RunPart.TASK)
"""Flags of a task and its addresses. --cluster sets them if it names an environment."""


class JobFlagNames(NamedTuple):
    """Names of the flags that describe a job, as error messages print them.

    The defaults are the flags of ``cnnbench run``; ``cnnbench launch`` has other flags.
    """

    job: str = "--job_name"
    towers: str = "--num_gpus"


OF_A_PROCESS = JobFlagNames()


class _RequestedPlace(NamedTuple):
    """The flags and the mode from which `PlaceInJob` is resolved. Addresses are not checked yet."""

    params: Params
    mode: Mode
    names: JobFlagNames


def _given_address_flags(wanted: _RequestedPlace) -> list[str]:
    return [name for name in ADDRESSES if "_host" in name and getattr(wanted.params, name)]


def _has_client_per_worker(wanted: _RequestedPlace) -> bool:
    return bool(wanted.params.job_name) and wanted.mode.processes is Processes.CLIENT_PER_WORKER


_IN_SEVERAL = built_in_names(lambda other: other.processes is not Processes.ONE)
RULES: tuple[FlagRule[_RequestedPlace], ...] = (
    refuse_any_value(
        "job_name",
        lambda p: not p.params.job_name and _given_address_flags(p),
        lambda p: (
            f"is missing; with --{_given_address_flags(p)[-1]}, it says whether this process is "
            "a worker, a ps task or the controller"
        ),
    ),
    refuse(
        "task_index",
        lambda p: not p.params.job_name,
        "needs --job_name and the addresses of that job",
    ),
    refuse(
        "server_protocol",
        lambda p: p.params.job_name,
        "must be grpc, the only protocol of TensorFlow's own servers",
    ),
    refuse(
        "variable_update",
        lambda p: p.params.job_name and p.mode.processes is Processes.ONE,
        lambda p: f"works in one process only; with {p.names.job} use one of {_IN_SEVERAL}",
    ),
    refuse_any_value(
        "ps_hosts",
        lambda p: p.params.job_name and p.mode.uses_ps and not p.params.ps_hosts,
        lambda p: (
            f"--variable_update={p.mode.name} with {p.names.job} "
            "needs tasks that store the variables; --variable_update=collective_all_reduce needs "
            "none"
        ),
    ),
    refuse(
        "ps_hosts",
        lambda p: p.params.job_name and not p.mode.uses_ps,
        lambda p: f"--variable_update={p.mode.name} uses no parameter servers; leave the flag out",
    ),
    refuse(
        "controller_host",
        _has_client_per_worker,
        lambda p: f"--variable_update={p.mode.name} has no controller: every worker runs a step",
    ),
    refuse(
        "input_only",
        _has_client_per_worker,
        lambda p: f"measures one process; leave out {p.names.job}",
    ),
)


@dataclass(frozen=True, kw_only=True)
class PlaceInJob:
    """The task of this process in its job, and how the workers of the job update the variables.

    Attributes:
      mode: the mode of --variable_update, which determines the processes of a job.
      job: all tasks. With --device=auto, the job's towers are on CPU devices.
      asynchronous: whether workers update the variables independently. If so, a step is an update
        by one worker.
      coordinated: whether a coordinator process schedules the updates of all workers.
      names: names of the job's flags for error messages.
    """

    mode: Mode
    job: Job
    asynchronous: bool
    coordinated: bool
    names: JobFlagNames

    @classmethod
    def resolved(cls, flags: Params, work: WorkKind, mode: Mode, names: JobFlagNames) -> PlaceInJob:
        """Determines the task of this process, and the other tasks of its job, from the flags.

        FlagError for invalid addresses, a task outside the job, or a mode that does not fit it.
        """
        raise_first_refusal(RULES, _RequestedPlace(flags, mode, names))
        coordinated = mode.processes is Processes.COORDINATOR
        without_sync = coordinated or not flags.cross_replica_sync
        return cls(
            mode=mode,
            job=Job(
                task=Task(flags.job_name or LOCAL, flags.task_index),
                worker_addresses=split_hosts(flags.worker_hosts),
                ps_addresses=split_hosts(flags.ps_hosts),
                controller_address=flags.controller_host or None,
                client_per_worker=mode.processes is Processes.CLIENT_PER_WORKER,
                towers_per_worker=flags.num_gpus,
                device="gpu" if flags.device == "gpu" else "cpu",
            ),
            asynchronous=work.trains and bool(flags.job_name) and without_sync,
            coordinated=coordinated,
            names=names,
        )

    @property
    def towers_per_step(self) -> int:
        """Number of towers that contribute gradients to one update of the variables."""
        return self.job.towers_per_worker if self.asynchronous else self.job.num_towers

    def tolerates_loss_of(self, task: Task, state: str) -> bool:
        """Whether the job continues without `task`, which was lost in `state` (ended or silent).

        A coordinator can reassign an update only if the worker has ended, not if it hangs.
        """
        # The late import keeps socket code out of commands that only check flags.
        from cnnbench.base.probe import REFUSED

        worker = self.asynchronous and task.job == WORKER and task != self.job.chief
        return worker and (not self.coordinated or state == REFUSED)
