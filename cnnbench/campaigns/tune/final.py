"""The final of a search: proof that the best flags are faster, and comparison of weights.

The proof measures new pairs, so a leader that was lucky in its races has no advantage. If
candidates are equally fast, the leader is called faster in at most 2 % of searches. Then the given
flags and the leader train a few steps, and their weights are compared. Both trainings use the same
kernels, because different kernels round differently, which changes gradients near 0 by several
percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cnnbench.base.inference import ANALYSIS_STEP, AdditiveModel, fit_additive_blocks
from cnnbench.base.stats import CONFIDENCE, median
from cnnbench.campaigns.ab.experiment import AB, SIDES, Experiment
from cnnbench.campaigns.ab.pairs import ExperimentRunner, PairFailedError
from cnnbench.campaigns.ab.side import AbSide, make_process_request
from cnnbench.campaigns.launch import flags_to_arguments, run_command_words
from cnnbench.campaigns.processes.journal import SESSION
from cnnbench.campaigns.processes.requests import ProcessRequests, run_process
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.strategies.weights import (
    CHECKPOINTS,
    compare_and_remove_checkpoints,
    flags_of_weights_process,
    stored_weight_distances,
    weights_tolerance,
)
from cnnbench.campaigns.tune import phrases
from cnnbench.campaigns.tune.bench import FEWEST_PAIRS, FINAL, FINALS, MOST_PAIRS, RaceBenchmark
from cnnbench.campaigns.tune.race import BEHIND, FINALISTS, UNTRIED, SearchOutcome, unmeasured_row
from cnnbench.campaigns.tune.space import COMPUTING, Candidate, Settings, candidate_name
from cnnbench.campaigns.tune.texts import assignments
from cnnbench.errors import UsageError
from cnnbench.judge.compare import DEFAULT_METRICS, Criteria
from cnnbench.judge.compare.facts import MODEL_SIZE, WORK
from cnnbench.machine import repository
from cnnbench.records.campaigns import (
    FASTER,
    NONE,
    OPEN,
    VERDICTS,
    RefusedCandidate,
    TuneDocument,
    TuneRow,
)
from cnnbench.variable_mgr import modes

WEIGHTS_STEPS = 3
_PLAN, _PROOF = "final", "proof"  # Names of the journal's notes about finals and proofs.


class _TimeLimitedExperiment(ExperimentRunner):
    """An experiment that ends when the search has no time for another pair.

    `is_late` is whether the experiment ended for lack of time.
    """

    def __init__(
        self,
        experiment: Experiment,
        sides: Mapping[str, AbSide],
        results: ResultsFolder,
        bench: RaceBenchmark,
    ) -> None:
        super().__init__(experiment, sides, results, bench.campaign)
        self._bench = bench
        self.is_late = False

    def measure_pair(
        self, number: int, later_burn_ins: int = 0, burn_in: bool = False
    ) -> ProcessRequests[None]:
        """Runs a pair of processes. If too little time is left for a pair, ends the experiment."""
        seconds = self.seconds_per_pair or 0.0
        if number > FEWEST_PAIRS and self._bench.seconds_left < seconds:
            self.is_late = True
            raise PairFailedError("the time is up", lost=True)
        yield from super().measure_pair(number, later_burn_ins, burn_in)


class FinalComparison:
    """Proves that the best candidate is faster than the given flags, and compares their weights.

    This final of a search uses the folder and the remaining time of the races. Its results are
    documents of the whole search.
    """

    def __init__(self, bench: RaceBenchmark) -> None:
        self.bench, self.settings = bench, bench.settings
        self.folder, self.campaign = bench.folder, bench.campaign

    def measure_proof(self, outcome: SearchOutcome) -> ProcessRequests[TuneDocument]:
        """Measures pairs of processes, with the given flags and with the flags of the best
        candidate, until there is a verdict or the time is used.

        After an interrupt, complete pairs are kept.
        """
        leader = outcome.leader
        if leader.key == self.settings.first.key:
            if outcome.tried_no_candidate:
                return self._tune_document(outcome, OPEN, phrases.NO_TIME, more_pairs_help=True)
            return self._tune_document(outcome, NONE)
        plans = {note["leader"]: note for note in self.folder.earlier_journal_notes(_PLAN)}
        plan = plans.get(leader.key)
        if plan is not None:
            pairs, number = plan["plan"]["pairs"], plan["plan"]["number"]
        else:
            number = 1 + len(plans)
            pairs = self._plan_affordable_pairs(leader, number, 0)
        if pairs < FEWEST_PAIRS:
            reason = phrases.NO_TIME_FOR_PAIRS.format(pairs=FEWEST_PAIRS)
            return self._tune_document(outcome, OPEN, reason, more_pairs_help=True)
        document = yield from self._measure_pairs(outcome, pairs, number)
        is_open = document.verdict == OPEN and not document.failure and document.pairs >= pairs
        if plan is not None and is_open and plan["minutes"] < self.settings.seconds / 60:
            more = self._plan_affordable_pairs(leader, number, document.pairs)
            if more > pairs:
                document = yield from self._measure_pairs(outcome, more, number)
        proof = document.to_dict()
        self.folder.add_journal_note(
            _PROOF, leader=leader.key, settings=leader.settings, proof=proof
        )
        return document

    def last_proven_settings(self) -> Settings | None:
        """The flags of the candidate that an earlier session has last proven to be faster than the
        given flags; None if there is no such candidate.
        """
        proven = [
            dict(note["settings"])
            for note in self.folder.earlier_journal_notes(_PROOF)
            if note["proof"]["verdict"] == FASTER
        ]
        return proven[-1] if proven else None

    def _measure_pairs(
        self, outcome: SearchOutcome, most_pairs: int, final_number: int
    ) -> ProcessRequests[TuneDocument]:
        place = self.folder.folder / (FINALS if final_number == 1 else f"{FINALS}-{final_number}")
        sides = self._sides(outcome.leader)
        work = [name for name in WORK if name not in MODEL_SIZE] if outcome.leader.changes else []
        experiment = Experiment(
            most_pairs=most_pairs,
            seed=self.settings.seed,
            burn_in=0,
            timeout=self.settings.timeout,
            turn_seconds=self.settings.turn_seconds,
            criteria=Criteria(
                policy=self.settings.policy.replace(alpha=self._alpha_of_final(final_number)),
                metrics=DEFAULT_METRICS[:1],
                fail_on=(FASTER,),  # The verdict must say whether the leader is faster.
                allow_different=tuple(work),
            ),
        ).with_sides(sides)
        with ResultsFolder(AB, place, experiment, resume=True, within=self.folder) as results:
            pairs = _TimeLimitedExperiment(experiment, sides, results, self.bench)
            yield from pairs.requests()
        main = next((entry.main for entry in pairs.comparison.entries), None)
        failure = "" if pairs.is_late else pairs.failure
        measured = len(pairs.records["a"])
        if main is None or failure:
            return self._tune_document(outcome, OPEN, failure, pairs=measured, failure=failure)
        judged = main.judgement
        word = main.verdict.value
        needed = judged.needed if judged.low is not None else FEWEST_PAIRS
        return self._tune_document(
            outcome,
            word if word in VERDICTS else OPEN,
            judged.reason,
            more_pairs_help=needed is not None and max(needed, measured + 1) <= MOST_PAIRS,
            gain=judged.change,
            low=judged.low,
            high=judged.high,
            confidence=pairs.experiment.criteria.policy.confidence,
            p=judged.p_adjusted,
            pairs=measured,
            threshold=judged.floor,
            pair_scatter=judged.scatter,
            more_pairs=judged.more,
            medians_change=judged.medians_change,
        )

    def _tune_document(
        self,
        outcome: SearchOutcome,
        verdict: str,
        reason: str = "",
        *,
        pairs: int = 0,
        more_pairs_help: bool = False,
        **measured: Any,
    ) -> TuneDocument:
        """Creates the document of a search, without a comparison of weights.

        Args:
          pairs: number of measured pairs.
          more_pairs_help: whether more pairs, up to the maximum for a final, may lead to a verdict.
          measured: other fields about the pairs, by name.
        """
        settings, first = self.settings, self.settings.first
        minutes = minutes_for_an_answer(outcome, self.bench, verdict, pairs, more_pairs_help)
        fitted = (
            fit_additive_blocks(outcome.log_speeds_by_round_and_block)
            if outcome.log_speeds_by_round_and_block
            else None
        )
        first_session = next(self.folder.journal.read(SESSION))
        begun_at = datetime.fromisoformat(first_session["time"])
        unknown: dict[str, Any] = dict.fromkeys(("gain", "low", "high", "confidence"))
        document = TuneDocument(
            started_at=begun_at.isoformat(timespec="seconds"),
            search_command=tuple(settings.command),
            command=self._command(outcome.leader if verdict == FASTER else first),
            verdict=verdict,
            reason=reason,
            leader=outcome.leader.name,
            pairs=pairs,
            weights="",
            trains_alike=None,
            given=flags_to_arguments(first.flags),
            seed=settings.seed,
            seconds=settings.seconds - self.bench.seconds_left,
            budget_seconds=settings.seconds,
            scatter=None if fitted is None else fitted.scatter,
            rows=tuple(_candidate_rows(outcome, fitted, first)),
            refused=tuple(
                RefusedCandidate(group=race.group, candidate=dropped.name, reason=dropped.reason)
                for race in outcome.races
                for dropped in race.dropped
                if not dropped.repeats
            ),
            enough_minutes=minutes,
            **{"failure": "", **unknown, **measured},
        )
        if verdict == OPEN and not pairs and minutes is not None:
            text = phrases.ENOUGH_MINUTES.format(reason=reason, minutes=document.enough_minutes)
            return replace(document, reason=text)
        return document

    def _command(self, candidate: Candidate) -> tuple[str, ...]:
        """The cnnbench command line that runs with a candidate's flags."""
        layout, flags = self.settings.space.layout, flags_to_arguments(candidate.flags)
        words = run_command_words(layout, flags)
        variables = assignments(candidate.variables)
        # The word "run" is omitted, because it is the default command.
        return (
            *(("env", *variables) if variables else ()),
            "cnnbench",
            *(words[1:] if layout is None and flags else words),
        )

    def _alpha_of_final(self, final_number: int) -> float:
        """Significance level for all interim analyses together in a final comparison, by its number
        (from 1).

        Each leader has its own final, with half the level of the previous final. So all levels add
        up to at most twice the first level.
        """
        return self.settings.policy.alpha * 0.5 ** (final_number - 1)

    def _plan_affordable_pairs(
        self, leader: Candidate, final_number: int, existing_pairs: int
    ) -> int:
        """Returns the number of pairs for which there is time, including `existing_pairs`.

        The number is stored in the journal if it is sufficient for a verdict. Finals are numbered
        from 1.
        """
        # Time is reserved for two later processes, which train the weights that are compared.
        seconds = self.bench.seconds_left - 2 * self.bench.mean_process_seconds
        fitting = int(seconds / (2 * self.bench.final_process_seconds))
        # There must be an interim analysis at the maximum number of pairs.
        most = min(existing_pairs + fitting, MOST_PAIRS)
        most = most // ANALYSIS_STEP * ANALYSIS_STEP if most >= 2 * ANALYSIS_STEP else most
        if most >= FEWEST_PAIRS and most > existing_pairs:
            plan = {
                "pairs": most,
                "number": final_number,
                "alpha": self._alpha_of_final(final_number),
            }
            minutes = self.settings.seconds / 60
            self.folder.add_journal_note(_PLAN, leader=leader.key, plan=plan, minutes=minutes)
        return most

    def _sides(self, leader: Candidate) -> dict[str, AbSide]:
        """The given flags (A) and the flags of the best candidate (B), as long as a final."""
        sides = {}
        for name, candidate in zip(SIDES, (self.settings.first, leader), strict=True):
            flags = {
                **candidate.flags,
                **self.bench.lengths.step_count_flags(FINAL, candidate.resolved.global_batch),
            }
            own = {n: text for n, text in candidate.settings.items() if n in candidate.flags}
            sides[name] = replace(
                self.settings.make_side(candidate, flags),
                own=flags_to_arguments(own),
                subject=replace(repository.measured_code(candidate.resolved.config), side=name),
            )
        return sides

    def compare_weights(
        self, document: TuneDocument, leader: Candidate
    ) -> ProcessRequests[TuneDocument]:
        """Trains a few steps with the given flags and with the flags of the best candidate, and
        compares the weights.

        Both trainings use the leader's flags for kernels. Returns the document with the result.
        """
        no_promise = self._why_weights_may_differ(leader)
        if no_promise:
            return replace(document, weights=no_promise)
        computing = {name: text for name, text in leader.settings.items() if name in COMPUTING}
        kernels = candidate_name(computing) if computing else ""
        try:
            reference = self.settings.space.make_candidate(computing)
        except UsageError as error:
            return replace(document, weights=phrases.cannot_run_as_given(error, kernels))
        if reference.key == leader.key:
            return replace(document, weights=phrases.ONLY_KERNELS)
        as_given = self._command(self.settings.first)
        distances = stored_weight_distances(self.folder, leader.key)
        if distances is None:
            folders, checkpoints = {}, self.folder.folder / CHECKPOINTS
            for name, candidate in (("as given", reference), ("tuned", leader)):
                folders[name] = checkpoints / name.replace(" ", "-")
                problem = yield from self._train_weights(name, candidate, folders[name])
                if problem:
                    self.folder.remove(checkpoints)
                    text = phrases.NOT_TRAINED.format(name=name, error=problem)
                    return replace(document, weights=text, trains_alike=False, command=as_given)
            distances = compare_and_remove_checkpoints(self.folder, folders, leader.key)
        distance, variable = distances["tuned"]
        tolerance = weights_tolerance(str(self.settings.first.resolved.config["precision"]))
        alike = distance <= tolerance
        document = replace(
            document,
            trains_alike=alike,
            command=document.command if alike else as_given,
            weights_steps=WEIGHTS_STEPS,
            weight_distance=distance,
            weight_variable=variable,
            weights_tolerance=tolerance,
        )
        return replace(document, weights=phrases.weights(document, kernels))

    def _why_weights_may_differ(self, leader: Candidate) -> str:
        """Returns why a candidate may train other weights than the given flags, or "" if it trains
        the same weights.
        """
        config = leader.resolved.config
        if config.get("forward_only"):
            return phrases.NOTHING_TRAINED
        if leader.changes:
            return phrases.OTHER_TRAINING.format(changes=", ".join(leader.changes))
        for candidate in (self.settings.first, leader):
            mode = modes.find_mode(str(candidate.resolved.config["variable_update"]))
            if mode.apart or not mode.in_sync:
                return phrases.TOWERS_APART.format(mode=mode.name)
            if candidate.resolved.asynchronous:
                return phrases.ASYNCHRONOUS
        return ""

    def _train_weights(self, name: str, candidate: Candidate, target: Path) -> ProcessRequests[str]:
        """Trains the weights of a candidate for the comparison. Returns an error message, or ""
        after a success.
        """
        flags = flags_of_weights_process(candidate.flags, WEIGHTS_STEPS)
        flags["train_dir"] = str(self.folder.unfinished_path(target))
        resolved = replace(candidate.resolved, explicit_flags=())
        training = make_process_request(
            self.folder,
            f"weights-{candidate.key}",
            self.settings.make_side(candidate._replace(resolved=resolved), flags),
            label=f"weights: {name}",
            key="weights",
            leaves=target,
        )
        ended = yield from run_process(self.folder, training, self.settings.timeout)
        return ended.message


def minutes_for_an_answer(
    outcome: SearchOutcome, bench: RaceBenchmark, verdict: str, pairs: int, more_pairs_help: bool
) -> int | None:
    """Estimated --minutes with which the search would have an answer; None if no time would be
    enough.

    Args:
      verdict: the verdict of the search so far.
      pairs: number of measured pairs of the final.
      more_pairs_help: whether more pairs, up to the maximum for a final, may lead to a verdict.
    """
    waiting = {candidate.key for race in outcome.races for candidate in race.untried}
    waiting |= {key for key, row in outcome.eliminated.items() if row.left == BEHIND}
    is_open = verdict == OPEN
    if (is_open and not more_pairs_help) or not (waiting or is_open):
        return None
    again = min(FINALISTS, len(waiting))  # Number of candidates that run in a second round.
    more_pairs = MOST_PAIRS - pairs if pairs else FEWEST_PAIRS
    return bench.estimate_search_minutes(len(waiting) + again, more_pairs if is_open else 0)


def _candidate_rows(
    outcome: SearchOutcome, fitted: AdditiveModel | None, first: Candidate
) -> list[TuneRow]:
    """Makes a table row for each candidate: measured candidates by speed, then candidates that were
    not tried.
    """
    groups = {
        candidate.key: race.group
        for race in reversed(outcome.races)
        for candidate in race.candidates
    }
    rows = []
    for candidate in outcome.candidates:
        speeds = [
            math.exp(values[candidate.key])
            for values in outcome.log_speeds_by_round
            if candidate.key in values
        ]
        group = groups[candidate.key]
        row = outcome.eliminated.get(candidate.key, unmeasured_row(candidate, group))
        rows.append(
            replace(
                row,
                group=group,
                processes=len(speeds),
                images_per_sec=median(speeds) if speeds else None,
                **_gain_fields(fitted, candidate.key, first.key),
            )
        )
    rows.sort(key=lambda row: -math.inf if row.gain is None else row.gain, reverse=True)
    untried = [
        (race, candidate)
        for race in outcome.races
        for candidate in race.untried
        if candidate.key not in groups
    ]
    for race, candidate in untried:
        row = unmeasured_row(candidate, race.group)
        rows.append(replace(row, left=UNTRIED, reason=phrases.NOT_TRIED))
    return rows


def _gain_fields(fitted: AdditiveModel | None, key: str, first: str) -> dict[str, Any]:
    if fitted is None or key not in fitted.names or first not in fitted.names:
        return {}
    difference = fitted.difference(key, first)
    gains = {"gain": math.expm1(difference)}
    reach = None if key == first else fitted.error_quantile(key, first, (1 - CONFIDENCE) / 2)
    if reach is not None:
        gains["low"], gains["high"] = (
            math.expm1(difference - reach),
            math.expm1(difference + reach),
        )
    return gains
