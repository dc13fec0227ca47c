"""What rules about flags see of the plan of a run, and rules that several groups of flags share.

The facts are those of `cnnbench.plan.RunPlan` before its network and its data are known. A group of
flags (`cnnbench.flags.groups`) may have two tables of rules: `CONFLICTS`, flags that exclude each
other, and `RULES`. `cnnbench.plan.rules` collects the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cnnbench.base.job import Job
from cnnbench.base.rules import FlagRule, HasFlags, Names, no_effect, no_effect_with, refuse
from cnnbench.optimizers.registry import OptimizerSpec
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec
from cnnbench.variable_mgr.modes import Mode, built_in_names

FORWARD = "with --eval or --forward_only"
"""The beginning of reasons why flags have no effect in runs without gradients."""


class WorkFacts(Protocol):
    """What a run does, see `cnnbench.plan.place.WorkKind`."""

    @property
    def trains(self) -> bool: ...  # noqa: D102
    @property
    def evaluates(self) -> bool: ...  # noqa: D102
    @property
    def only_forward(self) -> bool: ...  # noqa: D102


class NamesInMessages(Protocol):
    """Names of a job's flags, see `cnnbench.plan.place.JobFlagNames`."""

    @property
    def towers(self) -> str: ...  # noqa: D102


class PlaceFacts(Protocol):
    """The mode and the job of a run, see `cnnbench.plan.place.PlaceInJob`."""

    @property
    def mode(self) -> Mode: ...  # noqa: D102
    @property
    def job(self) -> Job: ...  # noqa: D102
    @property
    def asynchronous(self) -> bool: ...  # noqa: D102
    @property
    def coordinated(self) -> bool: ...  # noqa: D102
    @property
    def names(self) -> NamesInMessages: ...  # noqa: D102


class NumericsFacts(Protocol):
    """The number formats and the optimizer, see `cnnbench.plan.setup.NumericsPlan`."""

    @property
    def frozen(self) -> bool: ...  # noqa: D102
    @property
    def optimizer_spec(self) -> OptimizerSpec: ...  # noqa: D102


class ExchangeFacts(Protocol):
    """The reduction of gradients, see `cnnbench.plan.setup.GradientExchangePlan`."""

    @property
    def reduces(self) -> bool: ...  # noqa: D102
    @property
    def all_reduce(self) -> AllReduceSpec: ...  # noqa: D102
    @property
    def running(self) -> AllReduceSpec | None: ...  # noqa: D102


class RunFacts(HasFlags, Protocol):
    """The plan of a run, see `cnnbench.plan.RunPlan`."""

    @property
    def work(self) -> WorkFacts: ...  # noqa: D102
    @property
    def place(self) -> PlaceFacts: ...  # noqa: D102
    @property
    def numerics(self) -> NumericsFacts: ...  # noqa: D102
    @property
    def exchange(self) -> ExchangeFacts: ...  # noqa: D102
    @property
    def feeds_coordinated_workers(self) -> bool: ...  # noqa: D102


def runs_only_forward(p: RunFacts) -> bool:
    """Whether a run computes no gradients, because it evaluates or runs forward passes only."""
    return p.work.only_forward


def has_one_tower(p: RunFacts) -> bool:
    """Whether a run has one device only, so that nothing is reduced."""
    return p.place.job.num_towers == 1


def needs_network(flags: Names) -> FlagRule[HasFlags]:
    """A rule for the notice that flags have no effect in runs that read input only."""
    return no_effect_with(flags, "input_only", ": no network is built")


def needs_training(flags: Names) -> FlagRule[RunFacts]:
    """A rule for the notice that flags have no effect in evaluations and forward passes."""
    return no_effect(flags, runs_only_forward, f"{FORWARD}: they do not train")


def needs_mode(flags: Names, which: Callable[[Mode], bool]) -> FlagRule[RunFacts]:
    """A rule that refuses flags except in the modes of --variable_update that `which` selects."""
    return refuse(
        flags,
        lambda p: not which(p.place.mode),
        lambda p: f"needs --variable_update={built_in_names(which)}, not {p.place.mode.name}",
    )


def no_effect_in_modes(
    flags: Names, which: Callable[[Mode], object], why: str = ""
) -> FlagRule[RunFacts]:
    """A rule for the notice that flags have no effect in the modes that `which` selects.

    `why` is appended to the reason "with --variable_update=MODE".
    """
    return no_effect(
        flags,
        lambda p: which(p.place.mode),
        lambda p: f"with --variable_update={p.place.mode.name}{why}",
    )
