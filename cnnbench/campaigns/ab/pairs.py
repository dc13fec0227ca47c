"""Experiments that compare A and B in interleaved pairs of processes, and their results.

In a results directory, the subfolders ``a`` and ``b`` contain one record per process; the i-th
records of A and B are a pair. ``discarded`` contains the records of burn-in processes and of
incomplete pairs, ``logs`` the output of the processes, ``explain`` the profiles that are measured
later, ``confirmation-PAIRS`` a second experiment, and ``events.jsonl`` the journal. ``cnnbench
compare DIR/a DIR/b --paired`` reads the directory. Only records that are used are named
``*.json``, because ``--baseline_aa=DIR`` reads the whole directory.

The processes of a pair run interleaved in short time slices (--pairing=turns), or one process runs
after the other. If a process was ended from outside, by a signal or its time-out, its pair is
measured again in the same order, a limited number of times. A process that fails by itself ends the
experiment.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cnnbench.base.inference import (
    FIRST_ANALYSIS,
    AnalysisSchedule,
    InterimAnalysis,
    interim_analyses,
    levels_of_analyses,
    paired_shift_intervals_of_counts,
    smallest_p,
)
from cnnbench.base.text import count_text, percent
from cnnbench.campaigns.ab.lengths import ChosenLength, VerdictPlan, sample_pairs
from cnnbench.campaigns.ab.side import (
    AbSide,
    make_process_request,
    names_that_may_differ,
)
from cnnbench.campaigns.processes.campaign import (
    Campaign,
    ProcessRequest,
    ProcessRequests,
    RequestBatch,
    read_record,
)
from cnnbench.campaigns.processes.child import ProcessResult, ResolvedRun
from cnnbench.campaigns.processes.identity import CodeChangedError
from cnnbench.campaigns.processes.journal import END, JOURNAL, Journal, check_records
from cnnbench.campaigns.processes.results_dir import LOGS, CampaignKind, ResultsFolder
from cnnbench.errors import ExitCode
from cnnbench.judge.compare import (
    DEFAULT_METRICS,
    ComparedConfiguration,
    Comparison,
    Criteria,
    MetricResult,
    Verdict,
    compare_records,
    load_records,
)
from cnnbench.judge.compare.disturbance import mostly_disturbed
from cnnbench.judge.compare.estimate import (
    Samples,
    log_or_value,
    relevance_floor_and_same_margin,
)
from cnnbench.judge.compare.result import with_second_experiment, without_tests
from cnnbench.judge.metrics import CPU_TIME, THROUGHPUT, Policy, questions_of
from cnnbench.judge.metrics.rules import Rules
from cnnbench.records.codec import decode, encode
from cnnbench.records.profiles import Explanation
from cnnbench.records.run import AbPlace, KilledProcess, RunRecord, Subject, add_subject

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from cnnbench.base import lazy_numpy as np

# The results directory of an experiment, and the verdict on the pairs in this directory.

SIDES = ("a", "b")
_DISCARDED = "discarded"

EXPLANATION = "explanation"
"""Name of the journal's note that contains the causes of the difference between A and B."""

PLAN = "plan"
"""Name of the journal's note that contains changed interim analyses (`looks`)."""

PROFILES = "explain"
"""Name of the subfolder with the profiles that are measured after the pairs."""


def confirmation_folder(folder: Path, pairs: int) -> Path:
    """Subfolder for a second experiment, which confirms the verdict of an experiment (--confirm).

    `pairs` is the number of pairs of the first experiment.
    """
    return folder / f"confirmation-{pairs}"


def pair_file_prefix(number: int) -> str:
    """Start of the file names of pair `number`, such as "0001". Numbers start at 1."""
    return f"{number:04d}"


AB = CampaignKind(
    command="ab",
    noun="experiment",
    # Records of burn-in processes remain in the folder "discarded".
    pending=f"{_DISCARDED}/{{}}.{_DISCARDED}",
    subfolders=(*SIDES, _DISCARDED, LOGS),
)
"""Kind of campaign for experiments, which have a folder of records for A and another for B."""


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
    """What earlier sessions of an experiment have done, read from the events in its journal."""

    folder: Path
    sessions: Sequence[Sequence[Mapping[str, Any]]] = field(repr=False)

    @property
    def last_session_settings(self) -> Mapping[str, Any]:
        """The journal's event that began the last session; it contains the values of
        `ExperimentSettings.judging_settings`.
        """
        return self.sessions[-1][0]

    @property
    def most_pairs_of_first_session(self) -> int:
        """Maximum number of pairs that was set for the first session."""
        return int(_looks_of(self.sessions[0])[-1]["pairs"])

    @property
    def most_pairs_of_last_session(self) -> int:
        """Maximum number of pairs that was set for the last session."""
        return int(_looks_of(self.sessions[-1])[-1]["pairs"])

    @cached_property
    def _end_events(self) -> list[Mapping[str, Any] | None]:
        """The event that ended each session; None if the session was killed."""
        return [
            next((event for event in reversed(events) if event.get("event") == END), None)
            for events in self.sessions
        ]

    @property
    def last_end_event(self) -> Mapping[str, Any] | None:
        """The event that ended the last session; None if the session was killed."""
        return self._end_events[-1]

    @cached_property
    def _last_analyses(self) -> dict[int, Mapping[str, Any]]:
        """For each number of pairs, the last interim analysis of exactly this number of pairs."""
        ends: dict[int, Mapping[str, Any]] = {}
        for events, end in zip(self.sessions, self._end_events, strict=True):
            # If a session was stopped, the next session repeats the analysis after the last pair.
            last = max(map(_pair_number_of, events)) if end is None else end["pairs"]
            ends |= {
                analysis["pairs"]: analysis
                for analysis in _looks_of(events)
                if analysis["pairs"] < last
            }
            if end and end["pairs"] and not _is_stop(end):
                ends[end["pairs"]] = end
        return dict(sorted(ends.items()))

    @property
    def past_analyses(self) -> tuple[InterimAnalysis, ...]:
        """The interim analyses that were made in all sessions so far, by number of pairs."""
        return tuple(
            InterimAnalysis(n, float(analysis.get("spent", 1.0)))
            for n, analysis in self._last_analyses.items()
        )

    @property
    def has_clear_verdict(self) -> bool:
        """Whether the verdict answers what was asked, so that no further pairs are needed."""
        last = [*self._last_analyses.values()][-1] if self._last_analyses else {}
        # Only the event at the end of a session says so.
        return bool(last.get("clear"))

    @property
    def is_gate(self) -> bool:
        """Whether `cnnbench gate` began the experiment.

        In this case, the parent folder is the results folder of the gate.
        """
        return bool(self.gate_command)

    @property
    def gate_command(self) -> tuple[str, ...]:
        """The value of `ExperimentSettings.gate_command`."""
        return tuple(self.last_session_settings.get("gate_command", ()))

    @property
    def rules(self) -> Rules:
        """The user's rules (docs/rules.md) by which the pairs of the experiment are judged."""
        return decode(Rules, self.last_session_settings.get("rules", {}))

    @property
    def criteria(self) -> Criteria:
        """By what the pairs are judged, without the interim analyses."""
        settings = self.last_session_settings
        policy = decode(Policy, settings["policy"])
        return Criteria(
            policy=policy.replace(by_interval=settings.get("by_interval", False)),
            metrics=settings["metrics"] if settings["metrics_asked"] else None,
            allow_different=tuple(settings["allowed"]),
            allow_changed_work=settings["allow_changed_work"],
            fail_on=settings.get("fail_on"),
            rules=self.rules,
            paired=True,
        )

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
        is_standalone = "plans" in self.last_session_settings.get("question", {})
        return is_standalone and not (self.has_clear_verdict or self.is_alpha_spent)

    @property
    def further_analysis_schedule(self) -> AnalysisSchedule:
        """The interim analyses of further pairs of the experiment.

        If the whole significance level is used, further pairs belong to a new experiment.
        """
        settings = self.last_session_settings
        alpha = settings["policy"]["alpha"] * settings.get("share", 1.0)
        if self.is_alpha_spent:
            return AnalysisSchedule(alpha)
        return AnalysisSchedule(alpha, self.most_pairs_of_first_session, self.past_analyses)

    @cached_property
    def confirmation(self) -> ExperimentState | None:
        """State of the second experiment, which measured the verdict again (--confirm); None if
        there is no second experiment.
        """
        if self.last_end_event is None:
            return None
        return find_experiment(confirmation_folder(self.folder, self.last_end_event["pairs"]))

    def final_comparison(
        self, judge_together: bool = False, fail_on: Sequence[str] | None = None
    ) -> Comparison | None:
        """The comparison that ended the experiment, at the last interim analysis.

        Further pairs are judged by `further_analysis_schedule` or, if `judge_together`, once,
        together with existing pairs. `fail_on` replaces the words of the experiment's --fail_on.
        If the last session was killed, or stopped before an analysis, the comparison contains no
        tests. None if no pair is complete. The A/A spread has no part in verdicts on pairs, so its
        records are not needed.
        """
        end = self.last_end_event
        if end is not None:
            base, new = (load_records([str(self.folder / side)]).records for side in SIDES)
        else:
            pairs = load_complete_pairs(self.folder)
            if not pairs:
                return None
            base, new = zip(*pairs, strict=True)
        criteria = self.criteria
        criteria = replace(
            criteria,
            fail_on=criteria.fail_on if fail_on is None else fail_on,
            looks=self.past_analyses,
            plan=None if judge_together else self.further_analysis_schedule,
        )
        sides = self.last_session_settings["sides"]
        labels = _labels(sides["a"]["description"], sides["b"]["description"])
        comparison = compare_records(base, new, criteria, labels=labels)
        second = self.confirmation
        if second is not None and second.last_end_event is not None:
            again = second.final_comparison()
            comparison = comparison if again is None else with_second_experiment(comparison, again)
        is_stopped = not self.has_clear_verdict if end is None else _is_stop(end)
        if is_stopped:
            comparison = without_tests(comparison, _stop_reason(len(base)))
        elif self.last_session_settings.get("aa"):
            comparison = replace(comparison, ends_with=ExitCode.OK)
        with contextlib.suppress(LookupError, ValueError):
            events = itertools.chain.from_iterable(self.sessions)
            *_, note = (event for event in events if event.get("note") == EXPLANATION)
            comparison = replace(comparison, explanation=Explanation.from_dict(note["document"]))
        return comparison


def _is_stop(end: Mapping[str, Any]) -> bool:
    """Whether a session was stopped, by an interrupt or a failure: the event `end` is no analysis.

    An experiment that is stopped and resumed must be able to prove as much as one that is not
    stopped, so a stop uses no part of the significance level.
    """
    failed = Verdict.FAILED.value in end.get("verdicts", ())
    return bool(end.get("interrupted") or end.get("failure") or failed)


def _stop_reason(pairs: int) -> str:
    return f"stopped after {count_text(pairs, 'pair', 'pairs')}, before a verdict"


def _looks_of(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The planned interim analyses of a session: of its start, or of a later change of the plan."""
    looks: Sequence[Mapping[str, Any]] = next(
        event["looks"] for event in reversed(events) if event.get("looks")
    )
    return looks


def _pair_number_of(event: Mapping[str, Any]) -> int:
    """The number of the pair to which a journal event belongs; 0 if there is no such pair."""
    names = event.get("names") or [event.get("name", "")]
    number = str(names[0]).partition("-")[0]
    return int(number) if number.isdecimal() else 0


def find_experiment(folder: Path) -> ExperimentState | None:
    """Reads the state of the experiment in a results folder; None if there is no experiment.

    Raises PathError if an event cannot be read, or if a record is missing or was exchanged.
    """
    events = [*Journal(folder / JOURNAL).read()]
    sessions: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event.get("campaign") == AB.command:
            sessions.append([])
        if sessions:
            sessions[-1].append(event)
    if not any(session[0].get("looks") for session in sessions):
        return None
    check_records(folder, events, AB.pending)
    return ExperimentState(folder, sessions)


def find_only_experiment_in_tree(folder: Path) -> ExperimentState | None:
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


def _labels(a: str, b: str) -> tuple[str, str]:
    """Returns the labels of A and B in a comparison, from their descriptions."""
    return f"A: {a}", f"B: {b}"


# Experiments: pairs of processes are measured until the verdict is clear.

MOST_REPEATS = 2
"""Maximum number of further attempts at one pair."""

SMALLEST_CHANCE = 0.05
"""An experiment ends at an interim analysis if a clear verdict is less probable than this."""

_POLICY = Policy()
_DRAWS = 400
_SEED = 1
# Verdicts that more pairs of processes cannot change.
_HOPELESS = (
    Verdict.FAILED,
    Verdict.CHANGED_WORK,
    Verdict.NOT_COMPARABLE,
    Verdict.MISSING,
    Verdict.NOT_MEASURED,
)

_PAIRS_PER_REPEAT = 4
_LEAST_PEAK = 1e9  # --peak_flops refuses smaller values.


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """Settings of an experiment that compares A and B in pairs of processes.

    Attributes:
      sides: A (BASE) and B (NEW). In an A/A measurement, they have the same subject.
      most_pairs: maximum number of pairs. If earlier sessions have a clear verdict, none is added.
      earlier: the state after earlier sessions; None if the experiment begins now.
      sequential: whether interim analyses may end the experiment. If `earlier` is given, it belongs
        to such an experiment.
      command: the command line that `--resume` repeats; empty for other commands.
      burn_in: number of processes of A and of B before the first pair. Their results are not used.
      cool_down: seconds between processes.
      timeout: time limit of each process in seconds.
      turn_seconds: length of a time slice if the processes of a pair run interleaved; 0 to run one
        process after the other.
      timed_seconds: seconds of timed steps in each process, from which the number of steps is
        computed after the burn-in; None to choose the seconds from the noise, 0 if the flags of A
        and B determine the number of steps.
      criteria: by what the pairs are judged. The alpha of its policy is the level of all interim
        analyses together. What A and B define differently may differ in addition.
      aa: runs of an A/A measurement, from which the noise is estimated.
      is_aa: whether the experiment is an A/A measurement, which passes whatever the verdict.
      gate_command: arguments of `cnnbench gate` that repeat the experiment in a new folder, with
        hashes of commits; empty if no gate runs the experiment.
    """

    sides: Mapping[str, AbSide]
    most_pairs: int
    earlier: ExperimentState | None = None
    sequential: bool = True
    command: Sequence[str] = ()
    seed: int
    burn_in: int = 1
    cool_down: float = 0.0
    timeout: float
    turn_seconds: float = 0.0
    timed_seconds: float | None = 0.0
    criteria: Criteria = field(default_factory=Criteria)
    aa: tuple[RunRecord, ...] | None = None
    is_aa: bool = False
    gate_command: tuple[str, ...] = ()

    @property
    def smallest_alpha_share(self) -> float:
        """If several metrics are judged, they divide the significance level. This is the smallest
        share.
        """
        criteria = self.criteria
        if criteria.metrics is None:
            return criteria.rules.smallest_share
        return 1 / len(criteria.metrics)

    @property
    def smallest_alpha(self) -> float:
        """The significance level of the test with the smallest share, over all analyses."""
        return self.criteria.policy.alpha * self.smallest_alpha_share

    @property
    def judges_step_statistics(self) -> bool:
        """Whether metrics are requested that may need many steps, such as percentiles."""
        usual = (*DEFAULT_METRICS, THROUGHPUT.name, CPU_TIME.name)
        return not {*(self.criteria.metrics or ())} <= {*usual}

    @cached_property
    def analyses(self) -> tuple[InterimAnalysis, ...]:
        """The interim analyses, by increasing number of pairs. The experiment ends with the last
        analysis.

        The analyses of all sessions together spend at most the alpha of the policy.
        """
        earlier = self.earlier
        if earlier is None or not self.sequential:
            return interim_analyses(self.most_pairs, self.smallest_alpha, self.sequential)
        return (
            earlier.past_analyses[-1:]
            if earlier.has_clear_verdict
            else earlier.further_analysis_schedule.analyses(self.most_pairs)
        )

    @property
    def pairs_at_last_analysis(self) -> int:
        """Maximum number of pairs: the number at the last interim analysis."""
        return self.analyses[-1].pairs

    def analyses_up_to(self, pairs: int) -> tuple[InterimAnalysis, ...]:
        """The interim analyses at up to `pairs` pairs, in all sessions; the first one if there is
        none.
        """
        before = () if self.earlier is None else self.earlier.past_analyses
        completed = {
            analysis.pairs: analysis
            for analysis in (*before, *self.analyses)
            if analysis.pairs <= pairs
        }
        return tuple(completed.values()) or self.analyses[:1]

    def analysis_schedule_after(self, completed: tuple[InterimAnalysis, ...]) -> AnalysisSchedule:
        """The interim analyses of pairs that are measured after the analyses `completed`.

        If these use the whole significance level, later pairs belong to a new experiment.
        """
        alpha = self.smallest_alpha
        if completed[-1].spent >= 1:
            return AnalysisSchedule(alpha)
        planned = (
            self.pairs_at_last_analysis
            if self.earlier is None
            else self.earlier.most_pairs_of_first_session
        )
        return AnalysisSchedule(alpha, planned, completed)

    @property
    def allowed_differences(self) -> tuple[str, ...]:
        """Names of the flags and recorded properties that may differ between A and B."""
        return (*names_that_may_differ(*self.sides.values()), *self.criteria.allow_different)

    @cached_property
    def judging_settings(self) -> dict[str, Any]:
        """Values for the journal that determine how the pairs are judged, as JSON."""
        sides = {
            name: {
                "description": side.description(),
                "flags": side.flags,
                "launch": None if side.layout is None else side.layout.flags,
                "python": side.python,
                "checkout": side.checkout,
                "revision": side.revision,
                # The values of environment variables are left out: they may be secrets.
                "variables": tuple(side.variables),
            }
            for name, side in self.sides.items()
        }
        stored = (
            *("command", "seed", "burn_in", "cool_down", "timeout", "turn_seconds"),
            "timed_seconds",
        )
        criteria, policy = self.criteria, self.criteria.policy
        return {
            "sides": sides,
            **{name: getattr(self, name) for name in stored},
            "allow_changed_work": criteria.allow_changed_work,
            "metrics": DEFAULT_METRICS if criteria.metrics is None else criteria.metrics,
            "metrics_asked": criteria.metrics is not None,
            "looks": [analysis._asdict() for analysis in self.analyses],
            "allowed": self.allowed_differences,
            "policy": encode(policy.constants),
            **({"fail_on": criteria.fail_on} if criteria.fail_on is not None else {}),
            **({"by_interval": True} if policy.by_interval else {}),
            **({"aa": True} if self.is_aa else {}),
            **({"rules": encode(criteria.rules)} if criteria.rules != Rules() else {}),
            **({"gate_command": self.gate_command} if self.gate_command else {}),
            **({"share": self.smallest_alpha_share} if self.smallest_alpha_share < 1 else {}),
        }


def _requested_results(comparison: Comparison) -> list[MetricResult]:
    """The results of the metrics that decide the verdict of a comparison, in all configurations."""
    return [result for entry in comparison.entries for result in entry.requested_results]


def _is_hopeless(comparison: Comparison) -> bool:
    """Whether more pairs cannot change the verdicts on a configuration, because its runs failed or
    cannot be compared.
    """
    requested = (entry.requested_results for entry in comparison.entries)
    return any(all(result.verdict in _HOPELESS for result in results) for results in requested)


class PairFailedError(Exception):
    """A process of a pair failed. If `lost`, its processes were killed from outside too often.

    The records of both processes are kept.
    """

    def __init__(self, message: str, lost: bool) -> None:
        super().__init__(message)
        self.lost = lost


class ExperimentRunner:
    """Runs an experiment, and contains the records of all its pairs.

    Attributes:
      earlier: number of pairs of earlier sessions, which the folder already contains.
      records: records of all pairs, by "a" and "b".
      comparison: comparison of all complete pairs, which is set by `requests`. Without tests if the
        experiment was stopped.
      failure: the error that ended the experiment, or "".
      lost: whether processes were killed from outside too often.
      interrupted: whether Ctrl-C ended the experiment. False if another campaign contains it.
      is_judged: whether the experiment reached its last analysis; False if it was stopped before.
    """

    comparison: Comparison

    def __init__(
        self, experiment: ExperimentSettings, results: ResultsFolder, campaign: Campaign
    ) -> None:
        self.experiment = experiment
        self.results = results
        self.campaign = campaign
        earlier = load_complete_pairs(results.folder)
        self.earlier = len(earlier)
        self.records: dict[str, list[RunRecord]] = {
            name: [pair[place] for pair in earlier] for place, name in enumerate(SIDES)
        }
        self.failure = ""
        self.lost = self.interrupted = self.is_judged = False
        self._most_repeats = math.ceil(experiment.pairs_at_last_analysis / _PAIRS_PER_REPEAT)
        self._length = ChosenLength(
            experiment.timed_seconds if experiment.burn_in or earlier else 0.0,
            has_pairs=bool(earlier),
            turn_seconds=experiment.turn_seconds,
            needs_many_steps=experiment.judges_step_statistics,
            results=results,
            notice=campaign.reporter.notice,
        )
        # Records of the burn-in, by "a" and "b", and the mean seconds of the processes of a pair.
        self._burn_ins: dict[str, list[RunRecord]] = {name: [] for name in SIDES}
        self._pair_seconds: dict[str, float] = {}

    def requests(self) -> ProcessRequests[None]:
        """Requests the processes of all pairs, and judges the pairs.

        After a failure, an interrupt or a change of the code, the pairs so far are compared without
        tests. As a part of another campaign, the experiment raises the exceptions of interrupts and
        changes of the code instead.
        """
        self.results.add_session_start(**self.experiment.judging_settings)
        closing: Comparison | None = None
        try:
            closing = yield from self._run_until_end()
        except PairFailedError as error:
            self.failure, self.lost = str(error), error.lost
        except (CodeChangedError, KeyboardInterrupt) as error:
            if self.results.identity is None:
                raise
            self.interrupted = isinstance(error, KeyboardInterrupt)
            self.failure = "" if self.interrupted else str(error)
        pairs = len(self.records["a"])
        self.comparison = self._compare_measured_pairs() if closing is None else closing
        self.is_judged = not (self.failure or self.interrupted)
        if not self.is_judged:
            self.comparison = without_tests(self.comparison, _stop_reason(pairs))
        self.results.journal.add(
            END,
            pairs=pairs,
            spent=self.experiment.analyses_up_to(pairs)[-1].spent,
            clear=self.is_judged and self.comparison.is_decided,
            verdicts=[result.verdict.value for result in _requested_results(self.comparison)],
            failure=self.failure,
            lost=self.lost,
            interrupted=self.interrupted,
        )

    def _run_until_end(self) -> ProcessRequests[Comparison | None]:
        """Runs pairs until the experiment ends. Returns its last comparison; None if all pairs were
        analysed before.
        """
        burn_in = (
            self.experiment.burn_in if self.earlier < self.experiment.pairs_at_last_analysis else 0
        )
        for number in range(1, burn_in + 1):
            yield from self.measure_pair(number, later_burn_ins=burn_in - number, burn_in=True)
        analyses = {analysis.pairs: analysis for analysis in self.experiment.analyses}
        first = max(1, self.earlier)
        for pair in range(first, self.experiment.pairs_at_last_analysis + 1):
            if pair > self.earlier:
                yield from self.measure_pair(pair)
            analysis = analyses.get(pair)
            if pair > first and analysis is None:
                continue
            comparison = self._compare_measured_pairs()
            if pair == first and _is_hopeless(comparison):
                return comparison
            if analysis is not None:
                if self._ends_experiment(analysis, comparison):
                    return comparison
                self._choose_length(self.records, analysis.pairs)
        return None

    def _ends_experiment(self, analysis: InterimAnalysis, comparison: Comparison) -> bool:
        """Whether an interim analysis ends the experiment. Prints the verdict so far, which is in
        `comparison`.

        The experiment ends if the verdict is clear, if no pairs are left, or if more pairs would
        probably not give a clear verdict.
        """
        results = _requested_results(comparison)
        last = analysis.pairs == self.experiment.pairs_at_last_analysis
        clear = comparison.is_decided
        chance = None if last or clear else self._chance_of_clear_verdict(comparison.entries)
        futile = chance is not None and chance < SMALLEST_CHANCE
        if not last:
            # Only the end of the experiment gives advice about further pairs.
            verdict = "; ".join(f"{result.word}: {result.what_is_known}" for result in results)
            after = "enough" if clear else "going on"
            if futile:
                most = self.experiment.pairs_at_last_analysis
                after = f"stopped: {most} pairs would hardly give a verdict "
                after += f"(chance below {percent(SMALLEST_CHANCE, 0)})"
            self.campaign.reporter.notice(f"after {analysis.pairs} pairs {verdict}; {after}")
        return clear or last or futile

    def _chance_of_clear_verdict(self, entries: Sequence[ComparedConfiguration]) -> float:
        """The probability that more pairs give a clear verdict, for the least certain metric."""
        pairs = len(self.records["a"])
        later = [analysis for analysis in self.experiment.analyses if analysis.pairs > pairs]
        chances = []
        for entry in entries:
            for result in entry.requested_results:
                # If throughput and CPU time are judged together, either can give the verdict.
                is_joint = result.metric is THROUGHPUT and result.is_joint
                others = [other for other in entry.results if is_joint and other.metric is CPU_TIME]
                tested = [one for one in (result, *others) if one.judgement.p is not None]
                if result.verdict is Verdict.INCONCLUSIVE and tested:
                    chances.append(
                        max(
                            clear_verdict_probability(one.samples, later, one.policy)
                            for one in tested
                        )
                    )
        return min(chances, default=1.0)

    def _compare_measured_pairs(self) -> Comparison:
        experiment, records = self.experiment, self.records
        looks = experiment.analyses_up_to(len(records["a"]))
        criteria = replace(
            experiment.criteria,
            allow_different=experiment.allowed_differences,
            paired=True,
            looks=looks,
            plan=experiment.analysis_schedule_after(looks),
        )
        sides = experiment.sides
        labels = _labels(sides["a"].description(), sides["b"].description())
        return compare_records(
            records["a"], records["b"], criteria, aa=experiment.aa, labels=labels
        )

    @property
    def seconds_per_pair(self) -> float | None:
        """Mean wall time in seconds of the pairs so far; None before the first process."""
        mean = self.campaign.mean_process_seconds(None)
        return None if mean is None else len(SIDES) * (mean + self.campaign.cool_down)

    def measure_pair(
        self, number: int, later_burn_ins: int = 0, burn_in: bool = False
    ) -> ProcessRequests[None]:
        """Runs the processes of pair `number` (from 1), or of a burn-in before the first pair.

        Results of a burn-in are used only if a process fails. `later_burn_ins` is the number of
        burn-in pairs that follow. Raises PairFailedError if a process failed by itself, or if
        processes of the pair were killed from outside too often.
        """
        experiment = self.experiment
        what = f"burn-in {number}" if burn_in else f"pair {number}"
        prefix = f"burn-in-{number}" if burn_in else pair_file_prefix(number)
        # The order of A and B is drawn per pair: a resumed session must not repeat earlier orders.
        coin = random.Random(f"{experiment.seed} {prefix}").random()
        order = SIDES if coin < 0.5 else SIDES[::-1]
        later = (
            later_burn_ins
            + experiment.pairs_at_last_analysis
            - (self.earlier if burn_in else number)
        )
        ended = yield RequestBatch(
            folder=self.results,
            requests=[
                self._process_request(prefix, what, place)
                for place in _make_ab_places(order, experiment.seed, None if burn_in else number)
            ],
            later_keys=[None] * len(SIDES) * later,
            timeout=experiment.timeout,
            turn_seconds=experiment.turn_seconds,
            name=prefix,
            label=what,
            sides=order,
            repeats=MOST_REPEATS,
            most_repeats=self._most_repeats,
        )
        samples = dict(zip(order, ended, strict=True))
        self._pair_seconds[prefix] = fmean(sample.seconds for sample in ended)
        failed = {side: samples[side] for side in SIDES if samples[side].status != "ok"}
        if failed or not burn_in:
            for side in SIDES:
                self.records[side].append(samples[side].record)
        else:
            for side in SIDES:
                self._burn_ins[side].append(samples[side].record)
            if not later_burn_ins:
                self._choose_length(self._burn_ins)
        if failed:
            self._raise_failure(prefix, what, failed)

    def _choose_length(self, measured: Mapping[str, Sequence[RunRecord]], pairs: int = 0) -> None:
        """Chooses the number of timed steps of the processes after `pairs` pairs, from the records
        `measured` of A and B: of the burn-in, or of all pairs so far.
        """
        if not self._length.is_due(pairs):
            return
        base, new = measured["a"], measured["b"]
        disturbed = mostly_disturbed([*base, *new])
        if not all(record.step_seconds for record in (*base, *new)):
            self._length.leave_to_flags()
            return
        if disturbed and not pairs:
            self._plan_pairs_for_two_tests()
        numbers = range(1, len(base) + 1)
        seconds = self._seconds_of_pairs(
            [pair_file_prefix(n) if pairs else f"burn-in-{n}" for n in numbers]
        )
        experiment = self.experiment
        self._length.choose(
            pairs,
            sample_pairs(base, new, seconds, burn_in=not pairs),
            VerdictPlan(
                made=experiment.analyses_up_to(pairs) if pairs else (),
                left=tuple(look for look in experiment.analyses if look.pairs > pairs),
                # Under load, throughput and CPU time share alpha.
                alpha=experiment.smallest_alpha * (0.5 if disturbed else 1.0),
                margin=math.log1p(experiment.criteria.policy.threshold_of(THROUGHPUT)),
                two_sided=len(questions_of(experiment.criteria.fail_on)) > 1,
            ),
        )

    def _seconds_of_pairs(self, prefixes: Sequence[str]) -> list[float]:
        """Mean wall time in seconds of the two processes of each pair, of this session or earlier
        ones. A time that a killed session has not written is replaced by the mean of the others.
        """
        events, times = self.results.last_process_events, dict(self._pair_seconds)
        for prefix in prefixes:
            names = [name for side in SIDES if (name := f"{prefix}-{side}") in events]
            if prefix not in times and names:
                times[prefix] = fmean(float(events[name]["seconds"]) for name in names)
        mean = fmean([times[prefix] for prefix in prefixes if prefix in times] or [0.0])
        return [times.get(prefix, mean) for prefix in prefixes]

    def _plan_pairs_for_two_tests(self) -> None:
        """Plans eight pairs if six or seven were planned. Under load, throughput and CPU time are
        tested, and each has half of alpha.
        """
        experiment = self.experiment
        planned, alpha = experiment.pairs_at_last_analysis, experiment.criteria.policy.alpha
        could_prove = smallest_p(planned, planned, paired=True) <= alpha
        if planned < FIRST_ANALYSIS and could_prove and experiment.sequential:
            self.experiment = replace(experiment, most_pairs=FIRST_ANALYSIS)
            looks = self.experiment.judging_settings["looks"]
            self.results.add_journal_note(PLAN, looks=looks)
            text = f"{FIRST_ANALYSIS} pairs instead of {planned}, because CPU time is tested, too"
            self.campaign.reporter.notice(text)

    def _raise_failure(
        self, prefix: str, pair_label: str, failed: Mapping[str, ProcessResult]
    ) -> None:
        text = "; ".join(f"{side.upper()}: {ended.message}" for side, ended in failed.items())
        lost = all(ended.lost for ended in failed.values())
        if lost:
            had = f"{pair_label} had {len(self.results.killed_processes[prefix])} of {MOST_REPEATS}"
            all_had = (
                f"all pairs {self.results.number_of_repeated_attempts} of {self._most_repeats}"
            )
            text += f"; no repeat is left: {had}, {all_had}"
        raise PairFailedError(text, lost)

    def _process_request(self, prefix: str, pair_label: str, place: AbPlace) -> ProcessRequest:
        """Creates the request for the process of A or B in a pair or in a burn-in."""
        side, name = place.side, f"{prefix}-{place.side}"
        started = self.experiment.sides[side]
        subject = started.subject or Subject(side=side)
        if self.records[side]:  # The record of an earlier pair contains the resolved flags.
            like = self.records[side][-1]
            flags = ResolvedRun(config=like.config, explicit_flags=like.explicit_flags)
            started = replace(started, resolved=flags)
        in_burn_in = place.pair is None
        started = started.with_added_flags({**self._length.flags(in_burn_in), **self._known_peak()})
        if self._length.is_from_noise and not in_burn_in:
            place = replace(place, chose_steps=True)

        def with_ab_placement(
            document: Mapping[str, Any], lost: Sequence[KilledProcess]
        ) -> dict[str, Any]:
            own = encode(replace(place, lost=tuple(lost) or None))
            return add_subject({**document, "ab": own}, subject)

        path = self.results.folder / side / f"{name}.json"
        return make_process_request(
            self.results,
            name,
            started,
            label=f"{pair_label} {side.upper()}",
            target=None if place.pair is None else path,
            failed=path,
            answers=() if place.pair is None else ("ok",),
            place=with_ab_placement,
        )

    def _known_peak(self) -> dict[str, float]:
        """The flag with the peak FLOP/s of the CPU that earlier processes of A and B have measured.

        The measurement takes one or two seconds, so only the first process of A and of B makes it.
        Both get the higher value: different values would look like a difference of the MFU.
        """
        rates, precisions = [], set()
        for of, side in self.experiment.sides.items():
            records = self.records[of] or self._burn_ins[of]
            if not records or side.layout is not None or "peak_flops" in side.given_flags:
                return {}
            measured, config = records[0].measured, records[0].config
            source, rate = measured.peak_flops_source or "", measured.peak_flops_per_sec or 0.0
            if rate < _LEAST_PEAK or not (
                source.startswith("measured") or config.get("peak_flops")
            ):
                return {}
            rates.append(rate)
            precisions.add(config.get("precision"))
        return {"peak_flops": max(rates)} if len(precisions) == 1 else {}


def _make_ab_places(order: Sequence[str], seed: int, pair: int | None) -> list[AbPlace]:
    """Creates an `AbPlace` for the record of each process of a pair: A or B, seed, pair number and
    position.

    `order` contains "a" and "b" in the order in which they run. `pair` is None for a burn-in.
    """
    positions = range(1, len(order) + 1) if pair is not None else [None] * len(order)
    return [
        AbPlace(side=side, seed=seed, pair=pair, position=position)
        for side, position in zip(order, positions, strict=True)
    ]


def clear_verdict_probability(
    samples: Samples, later_analyses: Sequence[InterimAnalysis], policy: Policy = _POLICY
) -> float:
    """The probability that a later interim analysis gives a clear verdict.

    Future pairs are drawn from the measured pairs (a bootstrap), which must all have usable values.
    Each draw is judged at the interim analyses in `later_analyses`. The result is the share of
    draws in which an analysis has a clear verdict. The draws include noise, outliers and the
    apparent change as measured. Stopping for futility cannot turn a verdict into a regression. It
    can only omit a regression, and docs/evidence.md says how rarely that happens.

    `samples` contains the measured pairs and the interim analyses so far.
    """
    metric = samples.metric
    pairs = zip(samples.base, samples.new, strict=True)
    so_far = np.asarray(
        [log_or_value(new, metric) - log_or_value(base, metric) for base, new in pairs]
    )
    floor, margin = (
        log_or_value(1 + limit, metric) if metric.relative else limit
        for limit in relevance_floor_and_same_margin(samples, policy)
    )
    alpha = policy.alpha_share * policy.alpha
    made = [analysis for analysis in samples.looks if analysis.pairs <= len(so_far)]
    levels = levels_of_analyses((*made, *later_analyses), alpha)[len(made) :]
    drawn = _bootstrap_counts(len(so_far), tuple(later_analyses))
    clear = np.zeros(_DRAWS, bool)
    for level, counts in zip(levels, drawn, strict=True):
        low, centre, high = paired_shift_intervals_of_counts(so_far, counts, 1 - level)
        if policy.by_interval:
            clear |= (low > floor) | (high < -floor)
        else:
            clear |= (low * high > 0) & (np.abs(centre) >= floor)
        is_excluded = {"higher": high <= margin, "lower": low >= -margin}
        names = [
            "lower" if (word == "slower") == metric.higher_is_better else "higher"
            for word in policy.questions
        ]
        clear |= np.all([is_excluded[name] for name in names], axis=0)
    return float(clear.mean())


@lru_cache(maxsize=8)
def _bootstrap_counts(
    measured: int, analyses: tuple[InterimAnalysis, ...]
) -> list[NDArray[np.int64]]:
    """Draws further pairs from `measured` pairs. For each analysis, returns how often each draw
    contains each measured pair, [draws, measured]: once as measured, and as often as it was drawn.
    """
    # The seed is fixed, so that the same pairs always give the same probability.
    generator = np.random.default_rng(_SEED)
    populations = generator.choice(measured, (_DRAWS, measured))
    size = (_DRAWS, max(0, analyses[-1].pairs - measured))
    further = np.take_along_axis(populations, generator.integers(measured, size=size), axis=1)
    # All draws are counted together, so the pairs of each draw get numbers of their own.
    further += measured * np.arange(_DRAWS)[:, None]
    drawn = []
    for analysis in analyses:
        number = max(0, analysis.pairs - measured)
        found = np.bincount(further[:, :number].ravel(), minlength=_DRAWS * measured)
        drawn.append(1 + found.reshape(_DRAWS, measured))
    return drawn
