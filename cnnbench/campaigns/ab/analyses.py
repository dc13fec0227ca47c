"""The interim analyses of an experiment, over all of its sessions."""

from __future__ import annotations

from typing import NamedTuple

from cnnbench.base.inference import AnalysisSchedule, InterimAnalysis


class Analyses(NamedTuple):
    """The interim analyses of an experiment. All of them together spend at most `alpha`.

    Attributes:
      alpha: significance level of the test with the smallest share.
      planned: number of pairs that was planned in the first session.
      made: the analyses of earlier sessions.
      left: the analyses that remain, by increasing number of pairs; at least one. The experiment
        ends with the last one.
    """

    alpha: float
    planned: int
    made: tuple[InterimAnalysis, ...]
    left: tuple[InterimAnalysis, ...]

    @property
    def most_pairs(self) -> int:
        """Maximum number of pairs: the number at the last analysis."""
        return self.left[-1].pairs

    def is_due(self, pairs: int) -> bool:
        """Whether the first `pairs` pairs are analysed in this session."""
        return any(analysis.pairs == pairs for analysis in self.left)

    def up_to(self, pairs: int) -> tuple[InterimAnalysis, ...]:
        """The analyses at up to `pairs` pairs; the first one if there is none."""
        known = (*self.made, *self.left)
        by_pairs = {analysis.pairs: analysis for analysis in known if analysis.pairs <= pairs}
        return tuple(by_pairs.values()) or self.left[:1]

    def after(self, pairs: int) -> tuple[InterimAnalysis, ...]:
        """The analyses that remain after `pairs` pairs."""
        return tuple(analysis for analysis in self.left if analysis.pairs > pairs)

    def spent(self, pairs: int) -> float:
        """The share of alpha that the analyses of up to `pairs` pairs may spend together."""
        return self.up_to(pairs)[-1].spent

    def schedule_after(self, pairs: int) -> AnalysisSchedule:
        """The analyses of pairs that are measured after the first `pairs` pairs."""
        return further_schedule(self.alpha, self.planned, self.up_to(pairs))


def further_schedule(
    alpha: float, planned: int, made: tuple[InterimAnalysis, ...]
) -> AnalysisSchedule:
    """The analyses of pairs that are measured after the analyses `made`.

    If these use the whole significance level, later pairs belong to a new experiment.
    """
    if any(analysis.spent >= 1 for analysis in made):
        return AnalysisSchedule(alpha)
    return AnalysisSchedule(alpha, planned, made)
