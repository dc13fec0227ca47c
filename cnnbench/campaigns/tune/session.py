"""A session of `cnnbench tune`: races, proof that the best flags are faster, comparison of weights.

The proof measures new pairs, so a leader that was lucky in its races has no advantage. If
candidates are equally fast, the leader is called faster in at most 2 % of searches. Then the given
flags and the leader train a few steps, and their weights are compared. Both trainings use the same
kernels, because different kernels round differently, which changes gradients near 0 by several
percent.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from dataclasses import fields as fields_of
from datetime import datetime
from pathlib import Path
from typing import Any

from cnnbench.base.charts import HIGHER, Axis, ChartSeries, LineChart
from cnnbench.base.document import Content, Paragraph, make_table
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.inference import ANALYSIS_STEP, AdditiveModel, fit_additive_blocks
from cnnbench.base.stats import CONFIDENCE, median
from cnnbench.base.terminal import csv_text, wrap_text
from cnnbench.base.text import count_text, first_few, format_duration, percent, selection_text
from cnnbench.campaigns.ab.pairs import (
    AB,
    SIDES,
    ExperimentRunner,
    ExperimentSettings,
    ExperimentState,
    PairFailedError,
    find_experiment,
)
from cnnbench.campaigns.ab.side import make_process_request
from cnnbench.campaigns.launch import flags_to_arguments, run_command_words
from cnnbench.campaigns.processes.campaign import Campaign, ProcessRequests, run_process
from cnnbench.campaigns.processes.journal import END, SESSION
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.strategies import (
    CHECKPOINTS,
    compare_and_remove_checkpoints,
    flags_of_weights_process,
    stored_weight_distances,
    weights_tolerance,
)
from cnnbench.campaigns.tune.bench import (
    BEHIND,
    FAILED,
    FEWEST_PAIRS,
    FINAL,
    FINALISTS,
    FINALS,
    MOST_PAIRS,
    RACED_SLOWER,
    UNTRIED,
    CandidateRace,
    RaceBenchmark,
    SearchOutcome,
    SearchSettings,
    unmeasured_row,
)
from cnnbench.campaigns.tune.space import (
    COMPUTING,
    Candidate,
    DroppedCandidate,
    SearchSpace,
    Settings,
    candidate_name,
    candidates_of_group,
    group_names_by_reason,
)
from cnnbench.errors import UsageError
from cnnbench.judge.compare import DEFAULT_METRICS, Criteria
from cnnbench.judge.compare.configuration import MODEL_SIZE, WORK
from cnnbench.judge.report.sections.campaigns import RACE_MEDIAN, candidate_row, tune_verdict
from cnnbench.machine import repository
from cnnbench.records.campaigns import (
    AS_GIVEN,
    FASTER,
    NONE,
    OPEN,
    VERDICTS,
    RefusedCandidate,
    TuneDocument,
    TuneRow,
)
from cnnbench.variable_mgr import modes

# Writes the results of a search as table, CSV, flag file and chart.

NEXT = 5
"""Number of candidates in the table besides the leader."""

_NAMED = 6
_REASONS = 5
_DRAWN = 6
_HOWS = {
    RACED_SLOWER: "slower beyond doubt",
    BEHIND: "left behind for lack of time",
    FAILED: "failed",
    UNTRIED: "not tried for lack of time",
}
_CSV_HEADER = ("candidate", "group", "round", "images_per_sec")

FLAG_FILE_HEAD = "# cnnbench tune"


def table_text(tuning: TuneDocument) -> str:
    """The results of a search as text: best command line, proof, and a table of candidates."""
    weights = f"{tuning.weights[:1].upper()}{tuning.weights[1:]}."
    measured = [row for row in tuning.rows if row.processes]
    shown = measured[: NEXT + 1]
    shown += [row for row in measured if row.candidate == AS_GIVEN and row not in shown]
    more = len(measured) - len(shown)
    spent = f"{format_duration(tuning.seconds)} of {format_duration(tuning.budget_seconds)}"
    contents: tuple[Sequence[Content], ...] = (
        (Paragraph(shlex.join(tuning.command), whole=True),),
        (_answer_text(tuning), weights if tuning.weights else None),
        (
            make_table(
                (candidate_row(row, with_elimination_reason=False) for row in shown),
                spare=("processes", RACE_MEDIAN),
            ),
            _gains_text(tuning, shown),
            f"{more} more were measured" if more else None,
        ),
        (
            *_eliminated_texts(tuning.rows),
            *_texts_of_dropped(
                DroppedCandidate(refusal.candidate, refusal.reason) for refusal in tuning.refused
            ),
            None
            if tuning.scatter is None
            else f"{spent}; processes with equal flags varied by {percent(tuning.scatter)} in "
            "the races",
        ),
    )
    return sections_to_text(contents)


def _answer_text(tuning: TuneDocument) -> str:
    text, _ = tune_verdict(tuning)
    if tuning.is_leader_proven_faster:
        return f"{text}."
    why = f": {tuning.reason}" if tuning.verdict == OPEN and tuning.reason else ""
    return f"These are the flags as given: {text}{why}."


def _gains_text(tuning: TuneDocument, shown: Sequence[TuneRow]) -> str | None:
    """What the gains are estimated from, if the table `shown` or the answer contains any."""
    if all(row.gain is None or row.candidate == AS_GIVEN for row in shown):
        return None
    text = "a gain in races is estimated within rounds, not from the medians"
    return text if tuning.gain is None else f"{text}; the answer is from the pairs"


def _eliminated_texts(rows: Sequence[TuneRow]) -> Iterator[Paragraph]:
    for how, title in _HOWS.items():
        eliminated = [row for row in rows if row.left == how]
        if not eliminated:
            continue
        named = []
        for row in eliminated:
            why = "" if how == BEHIND else f": {row.reason}"
            when = "" if how == UNTRIED else f" ({row.group} {row.after}{why})"
            named.append(f"{row.candidate}{when}")
        yield Paragraph(f"{title}: {first_few(named, _NAMED)}", hanging=2)


def _texts_of_dropped(dropped: Iterable[DroppedCandidate]) -> Iterator[Paragraph]:
    by_reasons = group_names_by_reason(dropped)
    for reason, names in list(by_reasons.items())[:_REASONS]:
        yield Paragraph(f"cannot run: {reason}: {first_few(names, 2)}", hanging=2)
    if len(by_reasons) > _REASONS:
        more = count_text(len(by_reasons) - _REASONS, "other reason", "other reasons")
        yield Paragraph(f"cannot run for {more}: --list names all")


def candidates_text(space: SearchSpace, first: Candidate) -> str:
    """Text for --list: the candidates of each group, and dropped candidates by reason."""
    lines = []
    for name, choices in space.groups.items():
        candidates, dropped = candidates_of_group(space, choices, first)
        lines.append(f"{name}: {count_text(len(candidates), 'candidate', 'candidates')}")
        for candidate in candidates:
            marked = f" ({', '.join(candidate.changes)})" if candidate.changes else ""
            lines.append(f"  {candidate.name}{marked}")
        for reason, names in group_names_by_reason(dropped).items():
            lines += wrap_text(f"dropped: {reason}: {'; '.join(names)}", "  ", "    ")
    return "\n".join(lines)


def candidates_csv(tuning: TuneDocument) -> str:
    """Results of a search as CSV with one line for each candidate. Numbers are not rounded."""
    header = [field.name for field in fields_of(TuneRow)]
    rows = (
        {
            **asdict(row),
            "flags": shlex.join(row.flags),
            "variables": shlex.join(_assignments(row.variables)),
            "changes": " ".join(row.changes),
        }
        for row in tuning.rows
    )
    return csv_text(header, (row.values() for row in rows))


def processes_csv(outcome: SearchOutcome) -> str:
    """Speeds in the races as CSV with one line for each process. Numbers are not rounded."""
    rows = [
        (candidate.name, race.group, at, math.exp(values[candidate.key]))
        for race in outcome.races
        for at, values in enumerate(race.rounds, start=1)
        for candidate in race.candidates
        if candidate.key in values
    ]
    return csv_text(_CSV_HEADER, rows)


def flag_file_text(tuning: TuneDocument) -> str:
    """The flags of a search's best command line, in the format of ``--flagfile``.

    A flag file cannot set environment variables, so they are in comments.
    """
    # In the command line of a job, the flags of its processes follow "--".
    behind = tuning.command.index("--") if "--" in tuning.command else 0
    flags = [word for word in tuning.command[behind + 1 :] if word.startswith("--")]
    variables = [
        f"# Set this environment variable, too: {one}" for one in command_variables(tuning)
    ]
    return "\n".join([f"{FLAG_FILE_HEAD}: {_answer_text(tuning)}", *variables, *flags]) + "\n"


def command_variables(tuning: TuneDocument) -> tuple[str, ...]:
    """The environment variables of a search's best command line, such as "LD_PRELOAD=lib.so"."""
    return tuple(map(shlex.quote, tuning.command[1 : tuning.command.index("cnnbench")]))


def _assignments(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def _gain_estimates(
    blocks: Sequence[Sequence[Mapping[str, float]]], first: str
) -> dict[str, list[tuple[int, float]]]:
    """Estimated speed gains of all candidates against the candidate `first`, by candidate key.

    Each gain is a list of points for a chart. A point consists of the number of a round (from 1) in
    which the candidate ran, and the estimate after that round.
    """
    estimates: dict[str, list[tuple[int, float]]] = {}
    for many in range(1, len(blocks) + 1):
        fitted = fit_additive_blocks(blocks[:many])
        if first not in fitted.names:
            continue
        for key in (key for block in blocks[many - 1] for key in block):
            gain = math.expm1(fitted.difference(key, first))
            estimates.setdefault(key, []).append((many, gain))
    return estimates


def gains_chart(outcome: SearchOutcome, first: Candidate, title: str) -> LineChart:
    """Draws the estimated speed gains of the fastest candidates after every round."""
    curves = _gain_estimates(outcome.log_speeds_by_round_and_block, first.key)
    names = {candidate.key: candidate.name for candidate in outcome.candidates}
    last = sorted(curves, key=lambda key: curves[key][-1][1], reverse=True)
    drawn = [outcome.leader.key, *(key for key in last if key != outcome.leader.key)][:_DRAWN]
    series = [
        ChartSeries(
            name=names[key],
            points=tuple((float(at), gain) for at, gain in curves[key]),
            hints=tuple(f"{names[key]}: {percent(gain, signed=True)}" for _, gain in curves[key]),
        )
        for key in drawn
        if key in curves
    ]
    which = selection_text(len(series), "fastest", len(curves), "candidate", "candidates")
    rounds = range(1, len(outcome.log_speeds_by_round_and_block) + 1)
    return LineChart(
        title=f"{title}: {which}",
        x=Axis(
            label="round of the races",
            ticks=tuple(map(float, rounds)),
            tick_texts=tuple(map(str, rounds)),
        ),
        y=Axis(label="speed above the flags as given", format="percent", better=HIGHER),
        series=tuple(series),
        note="A curve is an estimate from all rounds so far; it ends where its candidate left.",
    )


# The final compares the best candidate of the races with the user's flags, as `cnnbench ab` does.

WEIGHTS_STEPS = 3
_PLAN, _PROOF = "final", "proof"  # Names of the journal's notes about finals and proofs.


class _TimeLimitedExperiment(ExperimentRunner):
    """An experiment that ends when the search has no time for another pair.

    `is_late` is whether the experiment ended for lack of time.
    """

    def __init__(
        self, experiment: ExperimentSettings, results: ResultsFolder, bench: RaceBenchmark
    ) -> None:
        super().__init__(experiment, results, bench.campaign)
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
                reason = "no time for any candidate"
                return self._tune_document(outcome, OPEN, reason, more_pairs_help=True)
            return self._tune_document(outcome, NONE)
        plans = {note["leader"]: note for note in self.folder.earlier_journal_notes(_PLAN)}
        plan = plans.get(leader.key)
        if plan is not None:
            pairs, number = plan["plan"]["pairs"], plan["plan"]["number"]
        else:
            number = 1 + len(plans)
            pairs = self._plan_affordable_pairs(leader, number, 0)
        if pairs < FEWEST_PAIRS:
            reason = f"no time for the {FEWEST_PAIRS} pairs that a verdict needs"
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
        with ResultsFolder(AB, place, resume=True, within=self.folder) as results:
            earlier = find_experiment(results.folder)
            experiment = self._make_experiment(
                outcome.leader, most_pairs, self._alpha_of_final(final_number), earlier
            )
            pairs = _TimeLimitedExperiment(experiment, results, self.bench)
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
            more = f"; --minutes={document.enough_minutes} would be enough"
            return replace(document, reason=document.reason + more)
        return document

    def _command(self, candidate: Candidate) -> tuple[str, ...]:
        """The cnnbench command line that runs with a candidate's flags."""
        layout, flags = self.settings.space.layout, flags_to_arguments(candidate.flags)
        words = run_command_words(layout, flags)
        variables = _assignments(candidate.variables)
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

    def _make_experiment(
        self, leader: Candidate, most_pairs: int, alpha: float, earlier: ExperimentState | None
    ) -> ExperimentSettings:
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
        work = [name for name in WORK if name not in MODEL_SIZE] if leader.changes else []
        return ExperimentSettings(
            sides=sides,
            most_pairs=most_pairs,
            earlier=earlier,
            seed=self.settings.seed,
            burn_in=0,
            timeout=self.settings.timeout,
            turn_seconds=self.settings.turn_seconds,
            criteria=Criteria(
                policy=self.settings.policy.replace(alpha=alpha),
                metrics=DEFAULT_METRICS[:1],
                fail_on=(FASTER,),  # The verdict must say whether the leader is faster.
                allow_different=work,
            ),
        )

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
        both = f" with {candidate_name(computing)}" if computing else ""
        try:
            reference = self.settings.space.make_candidate(computing)
        except UsageError as error:
            text = f"weights are not compared: the flags as given cannot run{both}: {error}"
            return replace(document, weights=text)
        if reference.key == leader.key:
            text = "weights are not compared: only how operations compute differs"
            return replace(document, weights=text)
        as_given = self._command(self.settings.first)
        distances = stored_weight_distances(self.folder, leader.key)
        if distances is None:
            folders, checkpoints = {}, self.folder.folder / CHECKPOINTS
            for name, candidate in (("as given", reference), ("tuned", leader)):
                folders[name] = checkpoints / name.replace(" ", "-")
                problem = yield from self._train_weights(name, candidate, folders[name])
                if problem:
                    self.folder.remove(checkpoints)
                    text = f"weights could not be compared: {name}: {problem}"
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
        return replace(document, weights=_same_weights_text(document, both))

    def _why_weights_may_differ(self, leader: Candidate) -> str:
        """Returns why a candidate may train other weights than the given flags, or "" if it trains
        the same weights.
        """
        config = leader.resolved.config
        if config.get("forward_only"):
            return "nothing is trained"
        if leader.changes:
            return f"it trains differently: {', '.join(leader.changes)}"
        for candidate in (self.settings.first, leader):
            mode = modes.find_mode(str(candidate.resolved.config["variable_update"]))
            if mode.apart or not mode.in_sync:
                return f"weights are not compared: {mode.name} trains its towers apart"
            if candidate.resolved.asynchronous:
                return "weights are not compared: workers train asynchronously"
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


# Runs one search, from its first process to its document.

_ROUNDS = 2
"""A race should have time for this number of rounds. The second round should have time for
`FINALISTS`, or for a third of the affordable processes. Candidates without time in the first round
are not tried.
"""

_FEWEST = 2
"""Minimum number of processes in a race: the best of the previous groups, and a candidate."""

_LEAST = 6
"""Minimum number of processes for a small group, if its share of the time would allow fewer."""


def search_requests(
    settings: SearchSettings, folder: ResultsFolder, campaign: Campaign
) -> ProcessRequests[tuple[TuneDocument, SearchOutcome]]:
    """Requests all processes of a search: races, proof that the best candidate is faster, and
    comparison of weights.

    Returns the document and the result of the races. Measurements in the folder are not repeated.
    """
    space = settings.space
    folder.add_session_start(minutes=settings.seconds / 60)
    bench = RaceBenchmark(folder, campaign, settings)
    yield from bench.measure_first_process()
    outcome = yield from race_groups(space, settings.first, bench, settings.policy.threshold)
    folder.write(folder.folder / "race.csv", processes_csv(outcome).encode())
    final = FinalComparison(bench)
    document = yield from final.measure_proof(outcome)
    proven = final.last_proven_settings()
    if document.verdict != FASTER and proven is not None:
        # The races now have another leader, but only the earlier leader is proven to be faster.
        outcome = outcome._replace(leader=space.make_candidate(proven))
        document = yield from final.measure_proof(outcome)
    if document.verdict == FASTER:
        document = yield from final.compare_weights(document, outcome.leader)
    folder.journal.add(END, document=document.to_dict())
    # `cnnbench report` reads tune.json.
    folder.write(folder.folder / "tune.json", document.to_json().encode("ascii"))
    return document, outcome


def race_groups(
    space: SearchSpace, first: Candidate, bench: RaceBenchmark, threshold: float
) -> ProcessRequests[SearchOutcome]:
    """Runs the races of all groups. Each race starts with the best candidate of the previous race.

    A candidate is adopted if its gain exceeds `threshold`.
    """
    leader = first
    races: list[CandidateRace] = []
    weights = [len(choices) for choices in space.groups.values()]
    for at, (group, choices) in enumerate(space.groups.items()):
        candidates, dropped = candidates_of_group(space, choices, leader)
        race = CandidateRace(group, candidates, threshold, dropped)
        if len(candidates) > 1:
            there_is = bench.affordable_processes(True)
            share = there_is * weights[at] // sum(weights[at:])
            # Each race must leave time for a few processes of every later group.
            own, *later = (min(_ROUNDS * many, _LEAST) for many in weights[at:])
            share = min(there_is, max(min(share, there_is - sum(later)), own))
            if share >= _FEWEST:
                yield from _run_race(race, bench, there_is - share, share, first)
        leader = race.leader
        races.append(race)
    return SearchOutcome(tuple(races), leader)


def _same_weights_text(document: TuneDocument, computing: str) -> str:
    """Text that says whether both trainings led to the same weights.

    `computing` names the flags for kernels of both trainings.
    """
    distance, steps = document.weight_distance, f"after {document.weights_steps} steps{computing}"
    if not document.trains_alike:
        size = f"{distance:.2g} of its largest value"
        more = f"more than {document.weights_tolerance:g}"
        return f"weights differ {steps}: {document.weight_variable} by {size}, {more}"
    close = f"within {distance:.1g} of the largest value" if distance else "all bits"
    return f"weights are the same {steps}, {close}"


def _run_race(
    race: CandidateRace,
    bench: RaceBenchmark,
    reserved_processes: int,
    group_processes: int,
    reference: Candidate,
) -> ProcessRequests[None]:
    """Runs the rounds of a race until the race is over or its time is used.

    `reserved_processes` is the number of processes for later groups, `group_processes` for this
    group.
    """
    names = {candidate.key: candidate.name for candidate in race.entered}
    while not race.is_over:
        running = [candidate for candidate in race.entered if candidate.key in race.remaining]
        number = len(race.rounds) + 1
        again = 0 if race.rounds else min(FINALISTS, len(running), group_processes // 3)
        measured = yield from bench.measure_round(
            race.group, number, running, reserved_processes + again
        )
        race.add_round(measured)
        if not measured.speeds:
            break
        # A later group may find a leader that needs a proof, so its processes are not spent here.
        needs_proof = reserved_processes > 0 or race.leader.key != reference.key
        eliminated = race.eliminate_after_round(
            max(0, bench.affordable_processes(needs_proof) - reserved_processes)
        )
        best = names[race.ranked_keys(race.fitted_model)[0]]
        bench.print_round_result(race.group, number, eliminated, best)


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
        rows.append(replace(row, left=UNTRIED, reason="no time for it"))
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
