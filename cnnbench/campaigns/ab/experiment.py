"""The settings of an experiment of ``cnnbench ab``, and the layout of its results directory.

In a results directory, the subfolders ``a`` and ``b`` contain one record per process; the i-th
records of A and B are a pair. ``discarded`` contains the records of burn-in processes and of
incomplete pairs, ``logs`` the output of the processes, ``explain`` the profiles that are measured
later, ``settings.json`` the `Experiment`, and ``events.jsonl`` the journal. ``cnnbench compare
DIR/a DIR/b --paired`` reads the directory. Only records that are used are named ``*.json``, because
commands such as ``cnnbench history DIR`` read the whole directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.processes import LOGS, CampaignKind, Settings
from cnnbench.judge.compare import DEFAULT_METRICS, Criteria
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT

SIDES = ("a", "b")
DISCARDED = "discarded"

MOST_PAIRS = 1000
"""Maximum number of pairs in an experiment."""

EXPLANATION = "explanation"
"""Name of the journal's note that contains the causes of the difference between A and B."""

PLAN = "plan"
"""Name of the journal's note that contains a changed maximum number of pairs (`pairs`)."""

PROFILES = "explain"
"""Name of the subfolder with the profiles that are measured after the pairs."""

# Recorded properties that may differ if A and B use different Python interpreters.
_OF_PYTHON = ("tensorflow",)


@dataclass(frozen=True, kw_only=True)
class ExperimentSide:
    """A or B of an experiment: what its processes run.

    Attributes:
      description: the settings that only A or only B has, in one line.
      flags: flags of the runs, including those that A and B share.
      launch: flags of the job; None for runs in one process.
      python: path of the interpreter; None for that of cnnbench.
      checkout: working directory; None for the current folder and for a temporary worktree.
      revision: text with which the user named the checkout.
      variables: names of environment variables. Their values are left out: they may be secrets.
    """

    description: str = ""
    flags: tuple[str, ...] = ()
    launch: tuple[str, ...] | None = None
    python: str | None = None
    checkout: str | None = None
    revision: str | None = None
    variables: tuple[str, ...] = ()

    @classmethod
    def of(cls, side: AbSide) -> ExperimentSide:
        """The settings of a side, without what its processes need besides."""
        is_folder = side.checkout is not None and side.commit is None
        return cls(
            description=side.description(),
            flags=side.flags,
            launch=None if side.layout is None else tuple(side.layout.flags),
            python=side.python,
            checkout=str(side.checkout) if is_folder else None,
            revision=side.revision,
            variables=tuple(side.variables),
        )


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """The settings of an experiment that compares A and B in pairs of processes.

    Attributes:
      a, b: A (BASE) and B (NEW).
      given: values of the given flags of `cnnbench ab`, by name, as JSON values. The values of
        environment variables are left out: they may be secrets.
      common: flags that were given for both A and B.
      repeat: words after "cnnbench" of the command that repeats the experiment in a new folder. A
        gate names its commits by their hashes. Empty for a part of another campaign.
      seed: seed of the order of A and B in each pair.
      most_pairs: maximum number of pairs.
      sequential: whether interim analyses may end the experiment.
      burn_in: number of processes of A and of B before the first pair. Their results are not used.
      cool_down: seconds between processes.
      timeout: time limit of each process in seconds.
      turn_seconds: length of a time slice if the processes of a pair run interleaved; 0 to run one
        process after the other.
      timed_seconds: seconds of timed steps in each process, from which the number of steps is
        computed after the burn-in; None to choose the seconds from the noise, 0 if the flags of A
        and B determine the number of steps.
      criteria: by what the pairs are judged, without the interim analyses. The alpha of the policy
        is the level of all interim analyses together.
    """

    campaign: str = "ab"
    a: ExperimentSide = field(default_factory=ExperimentSide)
    b: ExperimentSide = field(default_factory=ExperimentSide)
    given: Mapping[str, Any] = field(default_factory=dict)
    common: tuple[str, ...] = ()
    repeat: tuple[str, ...] = ()
    seed: int
    most_pairs: int
    sequential: bool = True
    burn_in: int = 1
    cool_down: float = 0.0
    timeout: float
    turn_seconds: float = 0.0
    timed_seconds: float | None = 0.0
    criteria: Criteria = field(default_factory=Criteria)

    def with_sides(self, sides: Mapping[str, AbSide]) -> Experiment:
        """Returns a copy that compares A and B. What they define differently may differ."""
        a, b = (sides[name] for name in SIDES)
        names = (*names_that_may_differ(a, b), *self.criteria.allow_different)
        criteria = replace(self.criteria, allow_different=names)
        return replace(self, a=ExperimentSide.of(a), b=ExperimentSide.of(b), criteria=criteria)

    @property
    def is_of_gate(self) -> bool:
        """Whether `cnnbench gate` runs the experiment. Then its folder is in that of the gate."""
        return self.repeat[:1] == ("gate",)

    @property
    def values_given(self) -> dict[str, Any]:
        """The values of the given flags of `cnnbench ab`, by name; see `given`."""
        items = self.given.items()
        return {name: tuple(value) if isinstance(value, list) else value for name, value in items}

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of A and B in a comparison."""
        return f"A: {self.a.description}", f"B: {self.b.description}"

    @property
    def smallest_alpha_share(self) -> float:
        """If several metrics are judged, they divide the significance level. This is the smallest
        share.
        """
        metrics = self.criteria.metrics
        return self.criteria.rules.smallest_share if metrics is None else 1 / len(metrics)

    @property
    def smallest_alpha(self) -> float:
        """The significance level of the test with the smallest share, over all analyses."""
        return self.criteria.policy.alpha * self.smallest_alpha_share

    @property
    def judges_step_statistics(self) -> bool:
        """Whether metrics are requested that may need many steps, such as percentiles."""
        usual = (*DEFAULT_METRICS, THROUGHPUT.name, CPU_TIME.name)
        return not {*(self.criteria.metrics or ())} <= {*usual}


def names_that_may_differ(a: AbSide, b: AbSide) -> tuple[str, ...]:
    """Names of flags and recorded properties that may differ between A and B, as in
    --allow_different.
    """
    flags, new_flags = a.given_flags, b.given_flags
    names = [name for name in {**flags, **new_flags} if flags.get(name) != new_flags.get(name)]
    variables = {*a.variables.items()} ^ {*b.variables.items()}
    names += [f"env_{name}" for name in sorted({name for name, _ in variables})]
    if a.python != b.python:
        names += _OF_PYTHON
    return tuple(names)


AB = CampaignKind(
    command="ab",
    noun="experiment",
    # Records of burn-in processes remain in the folder "discarded".
    pending=f"{DISCARDED}/{{}}.{DISCARDED}",
    subfolders=(*SIDES, DISCARDED, LOGS),
    settings=Experiment,
)
"""Kind of campaign for experiments, which have a folder of records for A and another for B."""


def pair_file_prefix(number: int) -> str:
    """Start of the file names of pair `number`, such as "0001". Numbers start at 1."""
    return f"{number:04d}"
