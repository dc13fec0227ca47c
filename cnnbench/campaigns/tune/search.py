"""A search of `cnnbench tune`: one race after the other, then the proof of the best flags, then a
comparison of the weights that the given flags and the best flags train.

The proof measures new pairs, so a leader that was lucky in its races has no advantage. If
candidates are equally fast, the leader is called faster in at most 2 % of searches.

Both trainings whose weights are compared use the same kernels, because different kernels round
differently, which changes gradients near 0 by several percent.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cnnbench.base.inference import ANALYSIS_STEP
from cnnbench.campaigns.ab.experiment import AB, SIDES, Experiment
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.side import AbSide, make_process_request
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.campaigns.processes import (
    END,
    SESSION,
    ProcessRequests,
    ResultsFolder,
    run_process,
)
from cnnbench.campaigns.strategies.weights import (
    CHECKPOINTS,
    compare_and_remove,
    flags_of_weights_process,
    stored_weight_distances,
    weights_tolerance,
)
from cnnbench.campaigns.tune import phrases
from cnnbench.campaigns.tune.bench import (
    FEWEST_PAIRS,
    FINAL,
    FINALS,
    MOST_PAIRS,
    RaceBenchmark,
    race_groups,
)
from cnnbench.campaigns.tune.race import BEHIND, FINALISTS, SearchOutcome
from cnnbench.campaigns.tune.space import COMPUTING, Candidate, Settings, candidate_name
from cnnbench.campaigns.tune.texts import processes_csv
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
)
from cnnbench.variable_mgr import registry

WEIGHTS_STEPS = 3

_PLAN, _PROOF = "final", "proof"  # Notes in the journal: plans of proofs, and proofs.


def run_search(bench: RaceBenchmark) -> ProcessRequests[tuple[TuneDocument, SearchOutcome]]:
    """Yields all processes of a search to run: races, pairs that prove that the best candidate is
    faster, and trainings whose weights are compared.

    Returns the document and the result of the races. Measurements in the folder are not repeated.
    """
    folder = bench.folder
    folder.add_session_start(minutes=bench.settings.seconds / 60)
    yield from bench.measure_first_process()
    outcome = yield from race_groups(bench)
    folder.write(folder.folder / "race.csv", processes_csv(outcome).encode())
    document = yield from measure_proof(bench, outcome)
    proven = last_proven_settings(folder)
    if document.verdict != FASTER and proven is not None:
        # The races now have another leader, but only the earlier leader is proven to be faster.
        outcome = outcome._replace(leader=bench.settings.space.make_candidate(proven))
        document = yield from measure_proof(bench, outcome)
    if document.verdict == FASTER:
        document = yield from compare_weights(bench, document, outcome.leader)
        bench.document = document
    folder.journal.add(END, document=document.to_dict())
    # `cnnbench report` reads tune.json.
    folder.write(folder.folder / "tune.json", document.to_json().encode("ascii"))
    return document, outcome


def measure_proof(bench: RaceBenchmark, outcome: SearchOutcome) -> ProcessRequests[TuneDocument]:
    """Measures pairs of processes, with the given flags and with the flags of the best candidate,
    until there is a verdict or the time is used.

    Returns the document of the search, without a comparison of weights. After an interrupt,
    complete pairs are kept.
    """
    leader, folder = outcome.leader, bench.folder
    if leader.key == bench.settings.first.key:
        if outcome.tried_no_candidate:
            return _tune_document(bench, outcome, OPEN, phrases.NO_TIME, more_pairs_help=True)
        return _tune_document(bench, outcome, NONE)
    plans = {note["leader"]: note for note in folder.earlier_journal_notes(_PLAN)}
    plan = plans.get(leader.key)
    if plan is not None:
        pairs, number = plan["plan"]["pairs"], plan["plan"]["number"]
    else:
        number = 1 + len(plans)
        pairs = _affordable_pairs(bench, leader, number, 0)
    if pairs < FEWEST_PAIRS:
        reason = phrases.NO_TIME_FOR_PAIRS.format(pairs=FEWEST_PAIRS)
        return _tune_document(bench, outcome, OPEN, reason, more_pairs_help=True)
    document = yield from _measure_pairs(bench, outcome, pairs, number)
    is_open = document.verdict == OPEN and not document.failure and document.pairs >= pairs
    if plan is not None and is_open and plan["minutes"] < bench.settings.seconds / 60:
        more = _affordable_pairs(bench, leader, number, document.pairs)
        if more > pairs:
            document = yield from _measure_pairs(bench, outcome, more, number)
    proof = document.to_dict()
    folder.add_journal_note(_PROOF, leader=leader.key, settings=leader.settings, proof=proof)
    bench.document = document
    return document


def document_so_far(bench: RaceBenchmark) -> TuneDocument | None:
    """The document of an interrupted search; None if no round of a race was measured."""
    document = bench.document
    if document is not None and document.verdict == FASTER and not document.weights:
        return replace(document, weights=phrases.WEIGHTS_INTERRUPTED)
    if document is not None or not any(race.rounds for race in bench.races):
        return document
    outcome = SearchOutcome(tuple(bench.races), bench.races[-1].leader)
    verdict = NONE if outcome.leader.key == bench.settings.first.key else OPEN
    return _tune_document(bench, outcome, verdict, phrases.INTERRUPTED)


def last_proven_settings(folder: ResultsFolder) -> Settings | None:
    """The flags of the candidate that an earlier session has last proven to be faster than the
    given flags; None if there is no such candidate.
    """
    proven = [
        dict(note["settings"])
        for note in folder.earlier_journal_notes(_PROOF)
        if note["proof"]["verdict"] == FASTER
    ]
    return proven[-1] if proven else None


def _affordable_pairs(
    bench: RaceBenchmark, leader: Candidate, final_number: int, existing: int
) -> int:
    """Returns the number of pairs for which there is time, including `existing` pairs.

    The number is stored in the journal if it is sufficient for a verdict. Finals are numbered
    from 1.
    """
    # Time is reserved for two later processes, which train the weights that are compared.
    seconds = bench.seconds_left - 2 * bench.mean_process_seconds
    fitting = int(seconds / (2 * bench.final_process_seconds))
    # There must be an interim analysis at the maximum number of pairs.
    most = min(existing + fitting, MOST_PAIRS)
    most = most // ANALYSIS_STEP * ANALYSIS_STEP if most >= 2 * ANALYSIS_STEP else most
    if most >= FEWEST_PAIRS and most > existing:
        alpha = _alpha_of_final(bench, final_number)
        plan = {"pairs": most, "number": final_number, "alpha": alpha}
        minutes = bench.settings.seconds / 60
        bench.folder.add_journal_note(_PLAN, leader=leader.key, plan=plan, minutes=minutes)
    return most


def _alpha_of_final(bench: RaceBenchmark, final_number: int) -> float:
    """Significance level for all interim analyses of a proof together, by the number of the proof
    (from 1).

    Each leader has its own proof, with half the level of the previous proof. So all levels add up
    to at most twice the first level.
    """
    return bench.settings.policy.alpha * 0.5 ** (final_number - 1)


def _measure_pairs(
    bench: RaceBenchmark, outcome: SearchOutcome, most_pairs: int, final_number: int
) -> ProcessRequests[TuneDocument]:
    settings, folder, leader = bench.settings, bench.folder, outcome.leader
    place = folder.folder / (FINALS if final_number == 1 else f"{FINALS}-{final_number}")
    sides = _sides(bench, leader)
    work = [name for name in WORK if name not in MODEL_SIZE] if leader.changes else []
    experiment = Experiment(
        most_pairs=most_pairs,
        seed=settings.seed,
        burn_in=0,
        timeout=settings.timeout,
        turn_seconds=settings.turn_seconds,
        criteria=Criteria(
            policy=settings.policy.replace(alpha=_alpha_of_final(bench, final_number)),
            metrics=DEFAULT_METRICS[:1],
            fail_on=(FASTER,),  # The verdict must say whether the leader is faster.
            allow_different=tuple(work),
        ),
    ).with_sides(sides)
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
        pair_scatter=judged.scatter,
        more_pairs=judged.more,
        medians_change=judged.medians_change,
    )


def _sides(bench: RaceBenchmark, leader: Candidate) -> dict[str, AbSide]:
    """The given flags (A) and the flags of the best candidate (B), with the number of steps of a
    proof.
    """
    sides = {}
    for name, candidate in zip(SIDES, (bench.settings.first, leader), strict=True):
        length = bench.lengths.step_count_flags(FINAL, candidate.resolved.global_batch)
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
    """Creates the document of a search, without a comparison of weights.

    Args:
      pairs: number of measured pairs.
      more_pairs_help: whether more pairs, up to the maximum for a final, may lead to a verdict.
      measured: other fields about the pairs, by name.
    """
    settings, first, fitted = bench.settings, bench.settings.first, outcome.fitted
    minutes = minutes_for_an_answer(outcome, bench, verdict, pairs, more_pairs_help)
    begun_at = datetime.fromisoformat(next(bench.folder.journal.read(SESSION))["time"])
    unknown: dict[str, Any] = dict.fromkeys(("gain", "low", "high", "confidence"))
    document = TuneDocument(
        started_at=begun_at.isoformat(timespec="seconds"),
        search_command=tuple(settings.command),
        command=settings.command_of(outcome.leader if verdict == FASTER else first),
        verdict=verdict,
        reason=reason,
        leader=outcome.leader.name,
        pairs=pairs,
        weights="",
        trains_alike=None,
        given=flags_to_arguments(first.flags),
        seed=settings.seed,
        seconds=settings.seconds - bench.seconds_left,
        budget_seconds=settings.seconds,
        scatter=None if fitted is None else fitted.scatter,
        rows=tuple(outcome.rows(first)),
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


def compare_weights(
    bench: RaceBenchmark, document: TuneDocument, leader: Candidate
) -> ProcessRequests[TuneDocument]:
    """Trains a few steps with the given flags and with the flags of the best candidate, and
    compares the weights.

    Both trainings use the leader's flags for kernels. Returns the document with the result.
    """
    first, folder = bench.settings.first, bench.folder
    no_promise = _why_weights_differ(first, leader)
    if no_promise:
        return replace(document, weights=no_promise)
    computing = {name: text for name, text in leader.settings.items() if name in COMPUTING}
    kernels = candidate_name(computing) if computing else ""
    try:
        reference = bench.settings.space.make_candidate(computing)
    except UsageError as error:
        return replace(document, weights=phrases.not_compared_text(error, kernels))
    if reference.key == leader.key:
        return replace(document, weights=phrases.ONLY_KERNELS)
    as_given = bench.settings.command_of(first)
    distances = stored_weight_distances(folder, leader.key)
    if distances is None:
        folders, checkpoints = {}, folder.folder / CHECKPOINTS
        for name, candidate in (("as given", reference), ("tuned", leader)):
            folders[name] = checkpoints / name.replace(" ", "-")
            problem = yield from _train_weights(bench, name, candidate, folders[name])
            if problem:
                folder.remove(checkpoints)
                text = phrases.NOT_TRAINED.format(name=name, error=problem)
                return replace(document, weights=text, trains_alike=False, command=as_given)
        distances = compare_and_remove(folder, folders, leader.key)
    tuned = distances["tuned"]
    tolerance = weights_tolerance(str(first.resolved.config["precision"]))
    alike = tuned.distance <= tolerance
    document = replace(
        document,
        trains_alike=alike,
        command=document.command if alike else as_given,
        weights_steps=WEIGHTS_STEPS,
        weight_distance=tuned.distance,
        weight_variable=tuned.variable,
        weights_tolerance=tolerance,
    )
    return replace(document, weights=phrases.weights(document, kernels))


def _why_weights_differ(first: Candidate, leader: Candidate) -> str:
    """Returns why a candidate may train other weights than the given flags (`first`), or "" if it
    trains the same weights.
    """
    if leader.resolved.config.get("forward_only"):
        return phrases.NOTHING_TRAINED
    if leader.changes:
        return phrases.OTHER_TRAINING.format(changes=", ".join(leader.changes))
    for candidate in (first, leader):
        mode = registry.find_mode(str(candidate.resolved.config["variable_update"]))
        if mode.apart or not mode.in_sync:
            return phrases.TOWERS_APART.format(mode=mode.name)
        if candidate.resolved.asynchronous:
            return phrases.ASYNCHRONOUS
    return ""


def _train_weights(
    bench: RaceBenchmark, name: str, candidate: Candidate, target: Path
) -> ProcessRequests[str]:
    """Trains the weights of a candidate for the comparison. Returns an error message, or "" after a
    success.
    """
    flags = flags_of_weights_process(candidate.flags, WEIGHTS_STEPS)
    flags["train_dir"] = str(bench.folder.unfinished_path(target))
    resolved = replace(candidate.resolved, explicit_flags=())
    training = make_process_request(
        bench.folder,
        f"weights-{candidate.key}",
        bench.settings.make_side(candidate._replace(resolved=resolved), flags),
        label=f"weights: {name}",
        key="weights",
        leaves=target,
    )
    ended = yield from run_process(bench.folder, training, bench.settings.timeout)
    return ended.message
