"""What the sessions of an experiment of ``cnnbench ab`` have done, and the interim analyses that
remain. Reads the results directory; see `cnnbench.campaigns.ab.experiment` for its layout.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cnnbench.base.inference import AnalysisSchedule, InterimAnalysis, interim_analyses
from cnnbench.base.text import count_text
from cnnbench.campaigns.ab.experiment import (
    AB,
    EXPLANATION,
    PLAN,
    SIDES,
    Experiment,
    pair_file_prefix,
)
from cnnbench.campaigns.processes import (
    END,
    JOURNAL,
    RESTORE,
    SESSION,
    Journal,
    check_records,
    load_settings,
    read_record,
    settings_path,
)
from cnnbench.errors import PathError
from cnnbench.judge.compare import Comparison, Criteria, compare_records, load_records
from cnnbench.judge.compare.result import without_tests
from cnnbench.records.codec import decode
from cnnbench.records.explanation import Explanation
from cnnbench.records.run import RunRecord


def load_complete_pairs(folder: Path) -> list[tuple[RunRecord, ...]]:
    """Reads the pairs of records in an experiment's folder, up to the first incomplete pair."""
    pairs: list[tuple[RunRecord, ...]] = []
    for number in itertools.count(1):
        paths = (folder / side / f"{pair_file_prefix(number)}-{side}.json" for side in SIDES)
        records = [read_record(path) for path in paths]
        pair = tuple(record for record in records if isinstance(record, RunRecord))
        if len(pair) < len(SIDES) or any(record.status != "ok" for record in pair):
            break
        pairs.append(pair)
    return pairs


@dataclass(frozen=True)
class ExperimentState:
    """What earlier sessions of an experiment have done.

    Attributes:
      folder: results directory.
      experiment: the settings, as the last session has changed them.
      events: the events of all sessions.
    """

    folder: Path
    experiment: Experiment
    events: Sequence[Mapping[str, Any]] = field(repr=False)

    @cached_property
    def pair_limits(self) -> list[int]:
        """The maximum number of pairs that was set for each session."""
        limits: list[int] = []
        for event in self.events:
            if event["event"] == SESSION:
                limits.append(event["pairs"])
            elif event.get("note") == PLAN:
                limits[-1] = event["pairs"]
        return limits

    @cached_property
    def last_end_event(self) -> Mapping[str, Any] | None:
        """The event that ended the last session; None if the session was killed."""
        last = (event for event in reversed(self.events) if event["event"] in (SESSION, END))
        event = next(last)
        return event if event["event"] == END else None

    @cached_property
    def _analyses(self) -> dict[int, Mapping[str, Any]]:
        """The last analysis of each number of pairs, by this number."""
        made = {event["pairs"]: event for event in self.events if "spent" in event}
        return dict(sorted(made.items()))

    @property
    def past_analyses(self) -> tuple[InterimAnalysis, ...]:
        """The interim analyses that were made in all sessions so far, by number of pairs."""
        return tuple(
            InterimAnalysis(pairs, float(event["spent"])) for pairs, event in self._analyses.items()
        )

    @property
    def has_clear_verdict(self) -> bool:
        """Whether the verdict answers what was asked, so that no further pairs are needed."""
        return bool(self._analyses) and bool([*self._analyses.values()][-1].get("clear"))

    @property
    def is_alpha_spent(self) -> bool:
        """Whether no further analysis is possible, because alpha (the error rate) is used up."""
        return any(analysis.spent >= 1 for analysis in self.past_analyses)

    @property
    def is_resumable(self) -> bool:
        """Whether `cnnbench ab --resume` can continue the experiment.

        This is impossible if the verdict is clear, if the whole significance level is used, or if
        the experiment is a part of another campaign.
        """
        is_whole = self.experiment.identity is not None
        return is_whole and not (self.has_clear_verdict or self.is_alpha_spent)

    @property
    def further_schedule(self) -> AnalysisSchedule:
        """The interim analyses of further pairs of the experiment.

        If the whole significance level is used, further pairs belong to a new experiment.
        """
        experiment, planned = self.experiment, self.pair_limits[0]
        return _further_schedule(experiment.smallest_alpha, planned, self.past_analyses)

    def final_comparison(self, fail_on: tuple[str, ...] | None = None) -> Comparison | None:
        """The comparison that ended the experiment, at the last interim analysis.

        Further pairs are judged by `further_schedule` or, if the experiment is a part of another
        campaign, in a new experiment. `fail_on` replaces the words of the experiment's --fail_on.
        If the last session was killed, or stopped before an analysis, the comparison contains no
        tests. None if no pair is complete.
        """
        end = self.last_end_event
        if end is not None:
            base, new = (load_records([str(self.folder / side)]).records for side in SIDES)
        else:
            pairs = load_complete_pairs(self.folder)
            if not pairs:
                return None
            base, new = zip(*pairs, strict=True)
        experiment = self.experiment
        if fail_on is not None:
            criteria = replace(experiment.criteria, fail_on=fail_on)
            experiment = replace(experiment, criteria=criteria)
        is_part = experiment.identity is None
        plan = AnalysisSchedule(experiment.smallest_alpha) if is_part else self.further_schedule
        comparison = compare_pairs(experiment, base, new, self.past_analyses, plan)
        is_judged = self.has_clear_verdict if end is None else end["judged"]
        if not is_judged:
            comparison = stopped_before_verdict(comparison, len(base))
        with contextlib.suppress(LookupError, ValueError):
            *_, note = (event for event in self.events if event.get("note") == EXPLANATION)
            comparison = replace(comparison, explanation=Explanation.from_dict(note["document"]))
        return comparison


def stopped_before_verdict(comparison: Comparison, pairs: int) -> Comparison:
    """Returns the comparison of an experiment that was stopped after this number of pairs: what is
    known, without tests.

    An experiment that is stopped and resumed must be able to prove as much as one that is not
    stopped, so a stop uses no part of the significance level.
    """
    reason = f"stopped after {count_text(pairs, 'pair', 'pairs')}, before a verdict"
    return without_tests(comparison, reason)


def find_experiment(folder: Path) -> ExperimentState | None:
    """Reads the state of the experiment in a results folder; None if there is no experiment.

    Raises PathError if the settings or an event cannot be read, or if a record is missing or was
    exchanged.
    """
    events = [*Journal(folder / JOURNAL).read()]
    if not AB.is_campaign(events):
        return None
    path = settings_path(folder)
    experiment = load_settings(path, Experiment)
    if experiment is None:
        raise PathError(str(path), f"is missing; {RESTORE}")
    check_records(folder, events, AB.pending)
    for changed in (event["criteria"] for event in events if "criteria" in event):
        experiment = replace(experiment, criteria=decode(Criteria, changed))
    return ExperimentState(folder, experiment, events)


def find_only_experiment(folder: Path) -> ExperimentState | None:
    """Reads the state of an experiment in a folder or its subfolders.

    Returns None unless there is exactly one experiment.
    """
    try:
        own = find_experiment(folder)
        below = () if own else (path for path in folder.iterdir() if path.is_dir())
        experiments = [own] if own else [state for state in map(find_experiment, below) if state]
    except OSError:
        return None
    return experiments[0] if len(experiments) == 1 else None


class Analyses(NamedTuple):
    """The interim analyses of an experiment, over all of its sessions. All of them together spend
    at most `alpha`.

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
        return _further_schedule(self.alpha, self.planned, self.up_to(pairs))


def _further_schedule(
    alpha: float, planned: int, made: tuple[InterimAnalysis, ...]
) -> AnalysisSchedule:
    """The analyses of pairs that are measured after the analyses `made`.

    If these use the whole significance level, later pairs belong to a new experiment.
    """
    if any(analysis.spent >= 1 for analysis in made):
        return AnalysisSchedule(alpha)
    return AnalysisSchedule(alpha, planned, made)


def plan_analyses(experiment: Experiment, state: ExperimentState | None) -> Analyses:
    """Plans the interim analyses of a session, given the state after earlier sessions, if any."""
    alpha, most = experiment.smallest_alpha, experiment.most_pairs
    if state is None or not experiment.sequential:
        left = interim_analyses(most, alpha, experiment.sequential)
    elif state.has_clear_verdict:
        left = state.past_analyses[-1:]
    else:
        left = state.further_schedule.analyses(most)
    if state is None:
        return Analyses(alpha, left[-1].pairs, (), left)
    return Analyses(alpha, state.pair_limits[0], state.past_analyses, left)


def compare_pairs(
    experiment: Experiment,
    base: Sequence[RunRecord],
    new: Sequence[RunRecord],
    looks: tuple[InterimAnalysis, ...],
    plan: AnalysisSchedule | None,
) -> Comparison:
    """Judges pairs of an experiment. See `Criteria` for `looks` and `plan`."""
    criteria = replace(experiment.criteria, paired=True, looks=looks, plan=plan)
    return compare_records(base, new, criteria, labels=experiment.labels)
