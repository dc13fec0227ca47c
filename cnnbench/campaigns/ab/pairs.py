"""Runs an experiment: pairs of processes of A and B, until the verdict is clear.

The processes of a pair run interleaved in short time slices (--pairing=turns), or one process runs
after the other. If a process was ended from outside, by a signal or its time-out, its pair is
measured again in the same order, a limited number of times. A process that fails by itself ends the
experiment. At each interim analysis, the pairs so far are judged.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from cnnbench.base.inference import FIRST_ANALYSIS, smallest_p
from cnnbench.base.stats import median
from cnnbench.base.terminal import print_warning
from cnnbench.base.text import percent
from cnnbench.campaigns.ab.experiment import PLAN, SIDES, Experiment, pair_file_prefix
from cnnbench.campaigns.ab.futility import SMALLEST_CHANCE, is_futile
from cnnbench.campaigns.ab.lengths import ChosenLength, VerdictPlan
from cnnbench.campaigns.ab.sessions import (
    compare_pairs,
    find_experiment,
    load_complete_pairs,
    plan_analyses,
    stopped_before_verdict,
)
from cnnbench.campaigns.ab.side import AbSide, make_process_request
from cnnbench.campaigns.processes import (
    ANALYSED,
    END,
    Campaign,
    CodeChangedError,
    ProcessRequest,
    ProcessRequests,
    RequestBatch,
    ResolvedRun,
    ResultsFolder,
)
from cnnbench.judge.compare import Comparison, Verdict, processes_needed
from cnnbench.judge.compare.answers import known_text
from cnnbench.judge.compare.compare import are_comparable
from cnnbench.judge.compare.disturbance import mostly_disturbed
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.judge.metrics.policy import asked_directions
from cnnbench.records.codec import encode
from cnnbench.records.metric import METRICS, Metric
from cnnbench.records.run import AbPlace, KilledProcess, RunRecord
from cnnbench.records.subject import Subject, add_subject

# Verdicts that more pairs of processes cannot change.
_HOPELESS = (
    Verdict.FAILED,
    Verdict.CHANGED_WORK,
    Verdict.NOT_COMPARABLE,
    Verdict.MISSING,
    Verdict.NOT_MEASURED,
)

_LEAST_PEAK = 1e9  # --peak_flops refuses smaller values.


class PairFailedError(Exception):
    """A pair was not measured. If `lost`, processes were killed from outside twice in a row, or the
    time is up; otherwise a process failed.

    The records of both processes are kept.
    """

    def __init__(self, message: str, lost: bool) -> None:
        super().__init__(message)
        self.lost = lost


class ExperimentRunner:
    """Runs an experiment, and contains the records of all its pairs.

    Args:
      experiment: the settings. If the folder contains the experiment, its earlier sessions are
        continued, up to the new maximum number of pairs.
      sides: A and B.
      is_time_up: whether the experiment ends before a pair, given its number and the mean seconds
        of the pairs so far (0 before the first one).

    Attributes:
      earlier: number of pairs of earlier sessions, which the folder already contains.
      analyses: the interim analyses of all sessions. They spend at most the alpha of the policy.
      records: records of all pairs, by "a" and "b".
      comparison: comparison of all complete pairs, which is set by `requests`. Without tests if the
        experiment was stopped.
      failure: the error that ended the experiment, or "".
      is_late: whether the experiment ended because the time was up, which is its `failure`, too.
      lost: whether processes were killed from outside twice in a row, or the time was up.
      interrupted: whether Ctrl-C ended the experiment. False if another campaign contains it.
      is_judged: whether the experiment reached its last analysis; False if it was stopped before.
    """

    comparison: Comparison

    def __init__(
        self,
        experiment: Experiment,
        sides: Mapping[str, AbSide],
        results: ResultsFolder,
        campaign: Campaign,
        is_time_up: Callable[[int, float], bool] = lambda pair, seconds: False,
    ) -> None:
        self.experiment = experiment
        self.sides = sides
        self.results = results
        self.campaign = campaign
        self._is_time_up = is_time_up
        self._state = find_experiment(results.folder) if results.resume else None
        self.analyses = plan_analyses(self.experiment, self._state)
        earlier = load_complete_pairs(results.folder)
        self.earlier = len(earlier)
        self.records: dict[str, list[RunRecord]] = {
            name: [pair[place] for pair in earlier] for place, name in enumerate(SIDES)
        }
        self.failure = ""
        self.lost = self.interrupted = self.is_judged = self.is_late = False
        notice = campaign.reporter.notice
        self._length = ChosenLength(experiment, results, notice, has_pairs=bool(earlier))
        # Records of the burn-in, by "a" and "b".
        self._burn_ins: dict[str, list[RunRecord]] = {name: [] for name in SIDES}
        # Wall seconds of the processes of all sessions, by name.
        events = results.last_process_events.items()
        self._seconds = {name: float(event.get("seconds", 0.0)) for name, event in events}

    def requests(self) -> ProcessRequests[None]:
        """Yields the processes to run for all pairs, and judges the pairs.

        After a failure, an interrupt or a change of the code, the pairs so far are compared without
        tests. As a part of another campaign, the experiment raises the exceptions of interrupts and
        changes of the code instead.
        """
        if self.results.is_whole:
            self._announce()
        criteria, then = self.experiment.criteria, self._state
        is_changed = then is not None and then.experiment.criteria != criteria
        changed = {"criteria": encode(criteria)} if is_changed else {}
        self.results.add_session_start(pairs=self.experiment.most_pairs, **changed)
        closing: Comparison | None = None
        try:
            closing = yield from self._run_until_end()
        except PairFailedError as error:
            self.failure, self.lost = str(error), error.lost
        except (CodeChangedError, KeyboardInterrupt) as error:
            if not self.results.is_whole:
                raise
            self.interrupted = isinstance(error, KeyboardInterrupt)
            self.failure = "" if self.interrupted else str(error)
        pairs = len(self.records["a"])
        self.comparison = self._compare() if closing is None else closing
        self.is_judged = not (self.failure or self.interrupted)
        made: dict[str, Any] = {}
        if self.is_judged:
            made = {"spent": self.analyses.spent(pairs), "clear": self.comparison.is_decided}
        else:
            self.comparison = stopped_before_verdict(self.comparison, pairs)
        self.results.journal.add(
            END,
            pairs=pairs,
            judged=self.is_judged,
            **made,
            failure=self.failure,
            lost=self.lost,
            interrupted=self.interrupted,
        )

    def _announce(self) -> None:
        """Prints what is compared, and the maximum number of pairs."""
        notice, experiment = self.campaign.reporter.notice, self.experiment
        for name, side in self.sides.items():
            notice(f"{name.upper()}: {side.description()}")
        most, share = self.analyses.most_pairs, experiment.smallest_alpha_share
        needed = processes_needed(experiment.criteria.policy, paired=True, share=share)
        if most < needed:
            print_warning(f"a verdict needs at least {needed} pairs, not {most}", "pairs")
        notice(f"at most {most} pairs, seed {experiment.seed}, in {self.results.folder}")

    def _run_until_end(self) -> ProcessRequests[Comparison | None]:
        """Runs pairs until the experiment ends. Returns its last comparison; None if all pairs were
        analysed before.

        The experiment ends at an interim analysis if the verdict is clear, if no pairs are left, or
        if more pairs would probably not give a clear verdict. It ends after any pair that cannot be
        compared with the first one.
        """
        burn_in = self.experiment.burn_in if self.earlier < self.analyses.most_pairs else 0
        for number in range(1, burn_in + 1):
            yield from self.measure_pair(number, later_burn_ins=burn_in - number, burn_in=True)
        first = max(1, self.earlier)
        for pair in range(first, self.analyses.most_pairs + 1):
            if pair > self.earlier:
                yield from self.measure_pair(pair)
            is_due = self.analyses.is_due(pair)
            if pair > first and not self._is_like_first_pair(pair):
                text = f"stopped after {pair} pairs: the last one cannot be compared with the first"
                self.campaign.reporter.notice(text)
                return self._compare()
            if pair > first and not is_due:
                continue
            comparison = self._compare()
            if pair == first and any(
                all(result.verdict in _HOPELESS for result in entry.requested_results)
                for entry in comparison.entries
            ):
                return comparison
            if not is_due:
                continue
            most, clear = self.analyses.most_pairs, comparison.is_decided
            last = pair == most
            futile = not (last or clear) and is_futile(comparison, self.analyses.after(pair))
            if not last:  # Only the end of the experiment gives advice about further pairs.
                results = [one for entry in comparison.entries for one in entry.requested_results]
                verdict = "; ".join(f"{result.word}: {known_text(result)}" for result in results)
                after = "enough" if clear else "going on"
                if futile:
                    after = f"stopped: {most} pairs would hardly give a verdict "
                    after += f"(chance below {percent(SMALLEST_CHANCE, 0)})"
                self.campaign.reporter.notice(f"after {pair} pairs {verdict}; {after}")
            if clear or last or futile:
                return comparison
            self._choose_length(self.records, pair)
            # This is the last event of an analysis. If the session is killed before this event, the
            # analysis is repeated.
            self.results.journal.add(ANALYSED, pairs=pair, spent=self.analyses.spent(pair))
        return None

    def measure_pair(
        self, number: int, later_burn_ins: int = 0, burn_in: bool = False
    ) -> ProcessRequests[None]:
        """Runs the processes of pair `number` (from 1), or of a burn-in before the first pair.

        Results of a burn-in are used only if a process fails. `later_burn_ins` is the number of
        burn-in pairs that follow. Raises PairFailedError if a process failed by itself, if
        processes of the pair were killed from outside twice in a row, or if the time is up.
        """
        if self._is_time_up(number, self.seconds_per_pair or 0.0):
            self.is_late = True
            raise PairFailedError("the time is up", lost=True)
        experiment = self.experiment
        what = f"burn-in {number}" if burn_in else f"pair {number}"
        prefix = f"burn-in-{number}" if burn_in else pair_file_prefix(number)
        # The order of A and B is drawn per pair: a resumed session must not repeat earlier orders.
        coin = random.Random(f"{experiment.seed} {prefix}").random()
        order = SIDES if coin < 0.5 else SIDES[::-1]
        places = [AbPlace(side=side, seed=experiment.seed) for side in order]
        most, standing = self.analyses.most_pairs, ""
        if not burn_in:
            asked = experiment.criteria.metrics
            metric = METRICS[asked[0]] if asked else THROUGHPUT
            standing = standing_text(number, most, self.records, metric)
            places = [replace(one, pair=number, position=at) for at, one in enumerate(places, 1)]
        later = later_burn_ins + most - (self.earlier if burn_in else number)
        ended = yield RequestBatch(
            folder=self.results,
            requests=[self._process_request(prefix, what, place) for place in places],
            later_keys=[None] * len(SIDES) * later,
            timeout=experiment.timeout,
            turn_seconds=experiment.turn_seconds,
            name=prefix,
            label=what,
            standing=standing,
            sides=order,
            repeated_if_killed=True,
        )
        samples = dict(zip(order, ended, strict=True))
        self._seconds |= {f"{prefix}-{side}": samples[side].seconds for side in SIDES}
        failed = {side: samples[side] for side in SIDES if samples[side].status != "ok"}
        kept = self.records if failed or not burn_in else self._burn_ins
        for side in SIDES:
            kept[side].append(samples[side].record)
        if failed:
            text = "; ".join(f"{side.upper()}: {ended.message}" for side, ended in failed.items())
            lost = all(ended.lost for ended in failed.values())
            raise PairFailedError(f"{text}; twice in a row" if lost else text, lost)
        if burn_in and not later_burn_ins:
            self._choose_length(self._burn_ins)

    def _process_request(self, prefix: str, pair_label: str, place: AbPlace) -> ProcessRequest:
        """Creates the request for the process of A or B in a pair or in a burn-in."""
        side, name = place.side, f"{prefix}-{place.side}"
        started = self.sides[side]
        subject = started.subject or Subject(side=side)
        if self.records[side]:  # The record of an earlier pair contains the resolved flags.
            like = self.records[side][-1]
            flags = ResolvedRun(config=like.config, explicit_flags=like.explicit_flags)
            started = replace(started, resolved=flags)
        in_burn_in = place.pair is None
        started = started.with_added_flags({**self._length.flags(in_burn_in), **self._peak_flag()})
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

    def _peak_flag(self) -> dict[str, float]:
        """The flag with the peak FLOP/s of the CPU that earlier processes of A and B have measured.

        The measurement takes one or two seconds, so only the first process of A and of B makes it.
        Both get the higher value: different values would look like a difference of the MFU.
        """
        rates, precisions = [], set()
        for of, side in self.sides.items():
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

    def _is_like_first_pair(self, pair: int) -> bool:
        """Whether a pair can be compared with the first pair. If not, more pairs are in vain: for
        example, somebody has edited a file that belongs to A or B, but to no repository.
        """
        base, new = ([self.records[side][at] for at in (0, pair - 1)] for side in SIDES)
        return are_comparable(base, new, self.experiment.criteria)

    def _compare(self) -> Comparison:
        records, pairs = self.records, len(self.records["a"])
        looks, plan = self.analyses.up_to(pairs), self.analyses.schedule_after(pairs)
        return compare_pairs(self.experiment, records["a"], records["b"], looks, plan)

    @property
    def seconds_per_pair(self) -> float | None:
        """Mean wall time in seconds of the pairs so far; None before the first process."""
        mean = self.campaign.mean_process_seconds(None)
        return None if mean is None else len(SIDES) * (mean + self.campaign.cool_down)

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
            self._plan_two_tests()
        numbers = range(1, len(base) + 1)
        seconds = self._pair_seconds(
            [pair_file_prefix(n) if pairs else f"burn-in-{n}" for n in numbers]
        )
        experiment = self.experiment
        plan = VerdictPlan(
            made=self.analyses.up_to(pairs) if pairs else (),
            left=self.analyses.after(pairs),
            # Under load, throughput and CPU time share alpha.
            alpha=experiment.smallest_alpha * (0.5 if disturbed else 1.0),
            margin=math.log1p(experiment.criteria.policy.threshold_of(THROUGHPUT)),
            two_sided=len(asked_directions(experiment.criteria.fail_on)) > 1,
        )
        self._length.choose(pairs, base, new, seconds, plan)

    def _pair_seconds(self, prefixes: Sequence[str]) -> list[float]:
        """Mean wall time in seconds of the two processes of each pair, of this session or earlier
        ones. A time that a killed session has not written is replaced by the mean of the others.
        """
        times = {}
        for prefix in prefixes:
            names = (f"{prefix}-{side}" for side in SIDES)
            if known := [self._seconds[name] for name in names if name in self._seconds]:
                times[prefix] = fmean(known)
        mean = fmean(times.values() or [0.0])
        return [times.get(prefix, mean) for prefix in prefixes]

    def _plan_two_tests(self) -> None:
        """Plans eight pairs if six or seven were planned. Under load, throughput and CPU time are
        tested, and each has half of alpha.
        """
        experiment = self.experiment
        planned, alpha = self.analyses.most_pairs, experiment.criteria.policy.alpha
        could_prove = smallest_p(planned, planned, paired=True) <= alpha
        if planned < FIRST_ANALYSIS and could_prove and experiment.sequential:
            self.experiment = replace(experiment, most_pairs=FIRST_ANALYSIS)
            self.analyses = plan_analyses(self.experiment, self._state)
            self.results.add_journal_note(PLAN, pairs=FIRST_ANALYSIS)
            text = f"{FIRST_ANALYSIS} pairs instead of {planned}, because CPU time is tested, too"
            self.campaign.reporter.notice(text)


def standing_text(
    pair: int, pairs: int, records: Mapping[str, Sequence[RunRecord]], metric: Metric
) -> str:
    """Returns the text that a terminal shows while a pair runs: "pair 8/16, throughput +1.2 % so
    far".

    The change is not tested, so it uses no part of the significance level, and the text contains no
    word of a verdict.

    Args:
      pair: number of the pair that runs, from 1.
      pairs: maximum number of pairs.
      records: records of the complete pairs, by "a" and "b". The change is the median of their
        changes.
      metric: the metric whose change is shown, if it was measured.
    """
    changes = [
        new / base - 1 if metric.relative else new - base
        for base, new in zip(metric.values(records["a"]), metric.values(records["b"]), strict=True)
        if base is not None and new is not None and (base or not metric.relative)
    ]
    so_far = f", {metric.name} {metric.change_text(median(changes))} so far" if changes else ""
    return f"pair {pair}/{pairs}{so_far}"
