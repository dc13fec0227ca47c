"""A search of `cnnbench tune`: one race after the other, then the proof of the best flags.

The proof measures new pairs, so a leader that was lucky in its races has no advantage. If
candidates are equally fast, the leader is called faster in at most 2 % of searches.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from cnnbench.base.inference import ANALYSIS_STEP
from cnnbench.campaigns.ab.experiment import AB, SIDES, Experiment
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.campaigns.processes import END, SESSION, ProcessRequests, ResultsFolder
from cnnbench.campaigns.tune import phrases
from cnnbench.campaigns.tune.bench import (
    FEWEST_PAIRS,
    MOST_PAIRS,
    PROOF,
    PROOF_LENGTH,
    RaceBenchmark,
    race_groups,
)
from cnnbench.campaigns.tune.race import BEHIND, FINALISTS, SearchOutcome
from cnnbench.campaigns.tune.space import Candidate
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
)


def run_search(bench: RaceBenchmark) -> ProcessRequests[TuneDocument]:
    """Yields all processes of a search to run: races, and pairs that prove that the best candidate
    is faster.

    Returns the document. Measurements in the folder are not repeated.
    """
    folder = bench.folder
    folder.add_session_start()
    yield from bench.measure_first_process()
    outcome = yield from race_groups(bench)
    document = yield from measure_proof(bench, outcome)
    folder.journal.add(END, document=document.to_dict())
    # `cnnbench report` reads tune.json.
    folder.write(folder.folder / "tune.json", document.to_json().encode("ascii"))
    return document


def measure_proof(bench: RaceBenchmark, outcome: SearchOutcome) -> ProcessRequests[TuneDocument]:
    """Measures pairs of processes, with the given flags and with the flags of the best candidate,
    until there is a verdict or the time is used.

    Returns the document of the search. After an interrupt, complete pairs are kept.
    """
    if outcome.leader.key == bench.settings.as_given.key:
        if outcome.tried_no_candidate:
            return _tune_document(bench, outcome, OPEN, phrases.NO_TIME, more_pairs_help=True)
        return _tune_document(bench, outcome, NONE)
    pairs = _affordable_pairs(bench)
    if pairs < FEWEST_PAIRS:
        reason = phrases.NO_TIME_FOR_PAIRS.format(pairs=FEWEST_PAIRS)
        return _tune_document(bench, outcome, OPEN, reason, more_pairs_help=True)
    return (yield from _measure_pairs(bench, outcome, pairs))


def document_so_far(bench: RaceBenchmark) -> TuneDocument | None:
    """The document of an interrupted search; None if no round of a race was measured."""
    if not any(race.rounds for race in bench.races):
        return None
    outcome = SearchOutcome(tuple(bench.races))
    verdict = NONE if outcome.leader.key == bench.settings.as_given.key else OPEN
    return _tune_document(bench, outcome, verdict, phrases.INTERRUPTED)


def _affordable_pairs(bench: RaceBenchmark) -> int:
    """Returns the number of pairs for which there is time after the races."""
    # The number includes pairs that an earlier session has measured.
    seconds = bench.settings.seconds - bench.races_seconds
    pairs = min(int(seconds / (2 * bench.proof_process_seconds)), MOST_PAIRS)
    # There must be an interim analysis at the maximum number of pairs.
    return pairs // ANALYSIS_STEP * ANALYSIS_STEP if pairs >= 2 * ANALYSIS_STEP else pairs


def _measure_pairs(
    bench: RaceBenchmark, outcome: SearchOutcome, most_pairs: int
) -> ProcessRequests[TuneDocument]:
    settings, folder, leader = bench.settings, bench.folder, outcome.leader
    sides = _sides(bench, leader)
    work = [name for name in WORK if name not in MODEL_SIZE] if leader.changes else []
    experiment = Experiment(
        most_pairs=most_pairs,
        seed=settings.seed,
        burn_in=0,
        timeout=settings.timeout,
        turn_seconds=settings.turn_seconds,
        criteria=Criteria(
            policy=settings.policy,
            metrics=DEFAULT_METRICS[:1],
            fail_on=(FASTER,),  # The verdict must say whether the leader is faster.
            allow_different=tuple(work),
        ),
    ).with_sides(sides)
    place = folder.folder / PROOF
    with ResultsFolder(AB, place, experiment, resume=True, within=folder) as results:
        pairs = ExperimentRunner(
            experiment,
            sides,
            results,
            bench.campaign,
            is_time_up=lambda pair, seconds: pair > FEWEST_PAIRS and bench.seconds_left < seconds,
        )
        yield from pairs.requests()
    main = next((entry.main for entry in pairs.comparison.entries), None)
    failure = "" if pairs.is_late else pairs.failure
    measured = len(pairs.records["a"])
    if main is None or failure:
        return _tune_document(bench, outcome, OPEN, failure, pairs=measured, failure=failure)
    judged = main.judgement
    word = main.verdict.value
    needed = judged.needed if judged.low is not None else FEWEST_PAIRS
    return _tune_document(
        bench,
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
    )


def _sides(bench: RaceBenchmark, leader: Candidate) -> dict[str, AbSide]:
    """The given flags (A) and the flags of the best candidate (B), with the number of steps of the
    proof.
    """
    sides = {}
    for name, candidate in zip(SIDES, (bench.settings.as_given, leader), strict=True):
        length = bench.lengths.step_count_flags(candidate.resolved.global_batch, PROOF_LENGTH)
        own = {n: text for n, text in candidate.settings.items() if n in candidate.flags}
        sides[name] = replace(
            bench.settings.make_side(candidate, {**candidate.flags, **length}),
            own=flags_to_arguments(own),
            subject=replace(repository.measured_code(candidate.resolved.config), side=name),
        )
    return sides


def _tune_document(
    bench: RaceBenchmark,
    outcome: SearchOutcome,
    verdict: str,
    reason: str = "",
    *,
    pairs: int = 0,
    more_pairs_help: bool = False,
    **measured: Any,
) -> TuneDocument:
    """Creates the document of a search.

    Args:
      pairs: number of measured pairs.
      more_pairs_help: whether more pairs, up to the maximum of the proof, may lead to a verdict.
      measured: other fields about the pairs, by name.
    """
    settings, as_given, fitted = bench.settings, bench.settings.as_given, outcome.fitted
    minutes = minutes_for_an_answer(bench, outcome, verdict, pairs, more_pairs_help)
    begun_at = datetime.fromisoformat(next(bench.folder.journal.read(SESSION))["time"])
    unknown: dict[str, Any] = dict.fromkeys(("gain", "low", "high", "confidence"))
    document = TuneDocument(
        started_at=begun_at.isoformat(timespec="seconds"),
        search_command=tuple(settings.command),
        command=settings.command_of(outcome.leader if verdict == FASTER else as_given),
        verdict=verdict,
        reason=reason,
        leader=outcome.leader.name,
        pairs=pairs,
        given=flags_to_arguments(as_given.flags),
        seed=settings.seed,
        seconds=settings.seconds - bench.seconds_left,
        budget_seconds=settings.seconds,
        scatter=None if fitted is None else fitted.scatter,
        rows=tuple(outcome.rows(as_given)),
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
        text = phrases.ENOUGH_MINUTES.format(reason=reason, minutes=minutes)
        return replace(document, reason=text)
    return document


def minutes_for_an_answer(
    bench: RaceBenchmark, outcome: SearchOutcome, verdict: str, pairs: int, more_pairs_help: bool
) -> int | None:
    """Estimated --minutes with which a search would have an answer; None if no time would be
    enough.

    Args:
      verdict: the verdict of the search so far.
      pairs: number of measured pairs of the proof.
      more_pairs_help: whether more pairs, up to the maximum of the proof, may lead to a verdict.
    """
    waiting = {candidate.key for race in outcome.races for candidate in race.untried}
    waiting |= {key for key, row in outcome.eliminated.items() if row.left == BEHIND}
    is_open = verdict == OPEN
    if (is_open and not more_pairs_help) or not (waiting or is_open):
        return None
    again = min(FINALISTS, len(waiting))  # Number of candidates that run in a second round.
    more_pairs = MOST_PAIRS - pairs if pairs else FEWEST_PAIRS
    return bench.estimate_search_minutes(len(waiting) + again, more_pairs if is_open else 0)
