"""Values that follow from the flags of a run alone (`RunFacts`), and rules that several groups of
flags share.

A group of flags (`cnnbench.flags.groups`) may have two tables of rules: `CONFLICTS`, flags that
exclude each other, and `RULES`. `cnnbench.plan.rules` collects the tables.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cnnbench.base.job import WORKER, Job, Task
from cnnbench.base.rules import FlagRule, HasFlags, Names, no_effect, no_effect_with, refuse
from cnnbench.optimizers.spec import OptimizerSpec
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec
from cnnbench.variable_mgr.distribute import CrossDeviceSpec
from cnnbench.variable_mgr.modes import Mode, built_in_names
from cnnbench.variable_mgr.packing import AggregationSpec

FORWARD = "with --eval or --forward_only"
"""The beginning of reasons why flags have no effect in runs without gradients."""


class WorkKind(enum.Enum):
    """What a run does. The values are printed in the header of the output."""

    TRAINING = "training"
    TRAINING_AND_EVALUATION = "training + evaluation"
    EVALUATION = "evaluation"
    FORWARD = "forward only"
    INPUT = "input only"

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


class JobFlagNames(NamedTuple):
    """Names of the flags that describe a job, as error messages print them.

    The defaults are the flags of ``cnnbench run``; ``cnnbench launch`` has other flags.
    """

    job: str = "--job_name"
    towers: str = "--num_gpus"


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

    @property
    def towers_per_step(self) -> int:
        """Number of towers that contribute gradients to one update of the variables."""
        return self.job.towers_per_worker if self.asynchronous else self.job.num_towers

    def tolerates_loss_of(self, task: Task, ended: bool) -> bool:
        """Whether the job continues without `task`, which has `ended`, or otherwise may hang.

        A coordinator can reassign an update only if the worker has ended.
        """
        worker = self.asynchronous and task.job == WORKER and task != self.job.chief
        return worker and (not self.coordinated or ended)


@dataclass(frozen=True, kw_only=True)
class NumericsPlan:
    """The number formats and the optimizer of a run.

    Attributes:
      dtype: compute dtype, such as "bfloat16".
      loss_scale: factor of the loss in the first step; 1 except for fp16.
      scale_doubles_after: number of steps with finite gradients after which an automatic loss scale
        doubles; None if the scale is constant.
      frozen: whether variables are constants of the graph.
      optimizer_spec: declaration of the optimizer.
    """

    dtype: str
    loss_scale: float
    scale_doubles_after: int | None
    frozen: bool
    optimizer_spec: OptimizerSpec

    @property
    def activation_bytes(self) -> int:
        """Bytes of a value that a layer returns, in estimates of memory."""
        return 4 if self.dtype == "float32" else 2


@dataclass(frozen=True, kw_only=True)
class VariableUpdatePlan:
    """How an update scales, reduces and clips gradients and applies weight decay, with all factors.

    Attributes:
      reduction: "mean" or "sum": how the variable manager combines the gradients of the towers.
      rate_factor: factor of the learning rate. If it is 1 / towers, an update with the sum of the
        gradients has the effect of an update with their mean.
      weight_decay: factor of the L2 loss of a tower.
      decay: factor d in the formula of `cnnbench.plan.setup`, adjusted to the reduction.
      decoupled_decay: factor of the decay that the optimizer applies in place of an L2 loss.
      clip: bounds, by the name of the flag that requests the clipping.
      deferred: whether updates use the gradients of the previous step. If so, each tower removes
        the loss scale and adds decay before the reduction.
      fused: whether decay is a part of the updates (`cnnbench.run.step.fused_decay`) if all devices
        are CPUs.
    """

    reduction: str = "mean"
    rate_factor: float = 1.0
    weight_decay: float = 0.0
    decay: float = 0.0
    decoupled_decay: float = 0.0
    clip: Mapping[str, float] = field(default_factory=dict)
    deferred: bool = False
    fused: bool = False


@dataclass(frozen=True, kw_only=True)
class GradientExchangePlan:
    """Where variables are placed, and how towers exchange gradients.

    Attributes:
      reduces: whether gradients go through an all-reduce.
      exchanges: whether several towers exchange gradients.
      all_reduce: the requested all-reduce, or the default of the mode.
      running: the all-reduce that is used, without levels that have nothing to reduce; None if no
        gradients are reduced.
      aggregation: how gradients are packed and reduced, in modes with one copy of the variables per
        tower.
    """

    reduces: bool
    exchanges: bool
    all_reduce: AllReduceSpec
    running: AllReduceSpec | None
    aggregation: AggregationSpec
    update: VariableUpdatePlan
    cross_device: CrossDeviceSpec


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The part of a plan (`cnnbench.plan.RunPlan`) that rules can use: without network and data."""

    params: Any
    work: WorkKind
    place: PlaceInJob
    numerics: NumericsPlan
    exchange: GradientExchangePlan

    @property
    def feeds_workers(self) -> bool:
        """Whether a coordinator schedules the steps of the workers, and the workers read files."""
        return self.place.coordinated and self.params.data_dir is not None


def runs_only_forward(p: RunFacts) -> bool:
    """Whether a run computes no gradients, because it evaluates or runs forward passes only."""
    return p.work.only_forward


def has_one_tower(p: RunFacts) -> bool:
    """Whether a run has one device only, so that nothing is reduced."""
    return p.place.job.num_towers == 1


def no_effect_input_only(flags: Names) -> FlagRule[HasFlags]:
    """Makes a rule for the notice that flags have no effect in runs that only read input."""
    return no_effect_with(flags, "input_only", ": no network is built")


def no_effect_forward(flags: Names) -> FlagRule[RunFacts]:
    """Makes a rule for the notice that flags have no effect in evaluations and forward passes."""
    return no_effect(flags, runs_only_forward, f"{FORWARD}: they do not train")


def needs_mode(flags: Names, which: Callable[[Mode], bool]) -> FlagRule[RunFacts]:
    """Makes a rule that refuses flags, except in the modes of --variable_update that `which`
    selects.
    """
    return refuse(
        flags,
        lambda p: not which(p.place.mode),
        lambda p: f"needs --variable_update={built_in_names(which)}, not {p.place.mode.name}",
    )


def no_effect_in_modes(
    flags: Names, which: Callable[[Mode], object], why: str = ""
) -> FlagRule[RunFacts]:
    """Makes a rule for the notice that flags have no effect in the modes that `which` selects.

    `why` is appended to the reason "with --variable_update=MODE".
    """
    return no_effect(
        flags,
        lambda p: which(p.place.mode),
        lambda p: f"with --variable_update={p.place.mode.name}{why}",
    )
