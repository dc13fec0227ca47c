"""Definition of an experiment: what is measured, and how pairs are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cnnbench.campaigns.ab.flags import side_differences
from cnnbench.campaigns.ab.sequential import InterimAnalysis, interim_analyses
from cnnbench.campaigns.ab.side import Side
from cnnbench.judge.compare import DEFAULT_METRICS, Policy
from cnnbench.records.codec import encode
from cnnbench.records.run import RunRecord


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Definition of an experiment.

    Attributes:
      sides: by name; A is BASE, B is NEW. Of an A/A measurement both measure the same subject.
      analyses: the interim analyses, by number of pairs; the last one ends the experiment.
      made: those of earlier sessions.
      planned: maximum number of pairs when it was begun; None if it begins now.
      question: settings that another session must agree with; empty for other commands.
      burn_in: processes of each side before the first pair, which do not count.
      cool_down, timeout: seconds between processes and for each.
      turn_seconds: length of the turns of a pair, both alive; 0: one process after the other.
      timed_seconds: of the timed steps of each process, whose number is chosen after the burn-in;
        0: left to the flags.
      disturbed_seconds: the same if other programs used the CPUs during the burn-in.
      policy: its alpha is that of all interim analyses together.
      metrics: the first one decides.
      allow_different: facts that may differ besides those in which the sides differ.
      allow_changed_work: a network or batch of another size is no regression.
      aa: A/A runs, to estimate the noise from.
    """

    sides: Mapping[str, Side]
    analyses: tuple[InterimAnalysis, ...]
    made: tuple[InterimAnalysis, ...] = ()
    planned: int | None = None
    question: Mapping[str, Any] = field(default_factory=dict)
    seed: int
    burn_in: int = 1
    cool_down: float = 0.0
    timeout: float
    turn_seconds: float = 0.0
    timed_seconds: float = 0.0
    disturbed_seconds: float = 0.0
    policy: Policy = field(default_factory=Policy)
    metrics: tuple[str, ...] = DEFAULT_METRICS
    allow_different: tuple[str, ...] = ()
    allow_changed_work: bool = False
    aa: tuple[RunRecord, ...] | None = None

    @property
    def pairs(self) -> int:
        """Largest number of pairs."""
        return self.analyses[-1].pairs

    def level_after(self, pairs: int) -> float:
        """The level of an analysis after an interrupt or a failure, with so many complete pairs."""
        analyses = self.analyses
        if not pairs or (len(analyses) == 1 and analyses[0].alpha >= self.policy.alpha):
            return analyses[0].alpha
        return interim_analyses(
            pairs,
            self.policy.alpha,
            planned=self.planned or self.pairs,
            made=(*self.made, *(one for one in analyses if one.pairs <= pairs)),
        )[-1].alpha

    @property
    def allowed(self) -> tuple[str, ...]:
        """All facts that may differ."""
        return tuple(self.facts["allowed"])

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Facts for the journal, as JSON values; its pairs are judged by them."""
        sides = {
            name: {
                "description": side.description(),
                "flags": side.flags,
                "launch": None if side.layout is None else side.layout.flags,
                "python": side.python,
                "checkout": side.checkout,
                "revision": side.revision,
                # Without their values, which may be secrets.
                "variables": tuple(side.variables),
            }
            for name, side in self.sides.items()
        }
        kept = (
            *("question", "seed", "burn_in", "cool_down", "timeout", "turn_seconds"),
            *("timed_seconds", "disturbed_seconds", "metrics", "allow_changed_work"),
        )
        return {
            "sides": sides,
            **{name: getattr(self, name) for name in kept},
            "looks": [vars(analysis) for analysis in self.analyses],
            "allowed": (*side_differences(*self.sides.values()), *self.allow_different),
            "policy": encode(self.policy),
            "baseline_aa": self.aa is not None,
        }
