"""One search from its first process to its document."""

from __future__ import annotations

import math
from dataclasses import replace

from cnnbench.base.stats.additive import Additive, fit_blocks
from cnnbench.base.stats.descriptive import median
from cnnbench.campaigns.launch.tasks import command_words, run_words
from cnnbench.campaigns.processes.campaign import Campaign, RunPolicy
from cnnbench.campaigns.tune.bench import (
    FEWEST_PAIRS,
    MOST_PAIRS,
    RaceBench,
    TuneFolder,
    TuneQuestion,
)
from cnnbench.campaigns.tune.final import Final, Proof, Weights
from cnnbench.campaigns.tune.race import BEHIND, FINALISTS, UNTRIED, Race, SearchOutcome
from cnnbench.campaigns.tune.space import Candidate, Space, candidates_of
from cnnbench.campaigns.tune.text import processes_csv
from cnnbench.judge.report.results import CONFIDENCE
from cnnbench.records.codec import gathered
from cnnbench.records.tune import FASTER, OPEN, RefusedCandidate, TuneDocument, TuneRow

_ROUNDS = 2
"""Rounds that the time of a race should be enough for; of the second, for `FINALISTS`, or a third
of the affordable processes. Candidates without time in the first round are not tried.
"""

_FEWEST = 2
"""Processes of a race: the best of the groups before and a candidate."""

_LEAST = 6
"""Processes of a small group, where its share of the time would be less."""


def policy(
    question: TuneQuestion, folder: TuneFolder, campaign: Campaign
) -> RunPolicy[tuple[TuneDocument, SearchOutcome]]:
    """Races the candidates, proves the leader, and compares what it trains.

    Returns the document and the races. Measurements in the folder are not repeated.
    """
    space = question.space
    folder.begin(minutes=question.seconds / 60)
    bench = RaceBench(folder, campaign, question)
    yield from bench.begin()
    found = yield from search(space, question.first, bench, question.policy.threshold)
    folder.write(folder.folder / "race.csv", processes_csv(found).encode())
    final = Final(bench)
    if found.is_late:
        proof = final.too_late("any candidate")
    else:
        proof = yield from final.prove(found.leader)
    proven = final.proven_before()
    if proof.verdict != FASTER and proven is not None:
        # More time has led to another leader, with less evidence.
        found = replace(found, leader=space.make(proven))
        proof = yield from final.prove(found.leader)
    proof = replace(proof, enough_minutes=_enough(found, proof, bench))
    weights = Weights()
    if proof.verdict == FASTER:
        weights = yield from final.weights(found.leader)
    outcome = _document(final, found, proof, weights)
    folder.journal.add("outcome", document=outcome.to_dict())
    folder.write(folder.folder / "tune.json", outcome.to_json().encode("ascii"))  # for reports
    return outcome, found


def search(
    space: Space, first: Candidate, bench: RaceBench, threshold: float
) -> RunPolicy[SearchOutcome]:
    """Races the candidates of all groups; `threshold` is the gain for which one is adopted."""
    leader = first
    races: list[Race] = []
    weights = [len(choices) for choices in space.groups.values()]
    for at, (group, choices) in enumerate(space.groups.items()):
        candidates, dropped = candidates_of(space, choices, leader)
        race = Race(group, candidates, threshold, dropped)
        if len(candidates) > 1:
            there_is = bench.affordable(True)
            share = there_is * weights[at] // sum(weights[at:])
            # A small group has a few processes, wherever it stands.
            own, *later = (min(_ROUNDS * many, _LEAST) for many in weights[at:])
            share = min(there_is, max(min(share, there_is - sum(later)), own))
            if share >= _FEWEST:
                yield from _run(race, bench, there_is - share, share, first)
        leader = race.leader
        races.append(race)
    return SearchOutcome(tuple(races), leader)


def _run(race: Race, bench: RaceBench, kept: int, share: int, given: Candidate) -> RunPolicy[None]:
    """Runs the rounds of a race; `kept` and `share`: processes for later groups and this one."""
    names = {one.key: one.name for one in race.entered}
    while not race.is_over:
        running = [one for one in race.entered if one.key in race.remaining]
        number = len(race.rounds) + 1
        again = 0 if race.rounds else min(FINALISTS, len(running), share // 3)
        measured = yield from bench.measure(race.group, number, running, kept + again)
        race.add(measured)
        if not measured.speeds:
            break
        proof = race.leader.key != given.key
        left = race.drop(max(0, bench.affordable(proof) - kept))
        bench.closed(race.group, number, left, names[race.ranked(race.fitted)[0]])


def _enough(found: SearchOutcome, proof: Proof, bench: RaceBench) -> int | None:
    """Minutes that would suffice for the whole search; None if more would not help."""
    waiting = {one.key for race in found.races for one in race.untried}
    waiting |= {key for key, leaver in found.leavers.items() if leaver.how == BEHIND}
    is_open = proof.verdict == OPEN
    if proof.failure or (is_open and not proof.more) or not (waiting or is_open):
        return None
    again = min(FINALISTS, len(waiting))  # of a second round
    pairs = MOST_PAIRS - proof.pairs if proof.pairs else FEWEST_PAIRS
    return bench.enough_minutes(len(waiting) + again, pairs if is_open else 0)


def _document(final: Final, found: SearchOutcome, proof: Proof, weights: Weights) -> TuneDocument:
    question = final.question
    fitted = fit_blocks(found.blocks) if found.blocks else None
    first, layout = question.first, question.space.layout
    proven = proof.verdict == FASTER and weights.trains_alike is not False
    chosen = command_words((found.leader if proven else first).flags)
    words = run_words(layout, chosen)
    reason = proof.reason
    if proof.verdict == OPEN and not proof.pairs and proof.enough_minutes is not None:
        reason += f"; --minutes={proof.enough_minutes} would be enough"
    return gathered(
        TuneDocument,
        proof,
        weights,
        started_at=str(next(final.folder.journal.read("tune"))["time"]),  # of the first session
        search_command=tuple(question.command),
        # "run" may be left out.
        command=("cnnbench", *(words[1:] if layout is None and chosen else words)),
        reason=reason,
        leader=found.leader.name,
        weights=weights.text,
        given=command_words(first.flags),
        seed=question.seed,
        seconds=question.seconds - final.bench.left,
        budget_seconds=question.seconds,
        scatter=None if fitted is None else fitted.scatter,
        rows=tuple(_rows(found, fitted, first)),
        refused=tuple(
            RefusedCandidate(group=race.group, candidate=one.name, reason=one.reason)
            for race in found.races
            for one in race.dropped
            if not one.repeats
        ),
    )


def _rows(found: SearchOutcome, fitted: Additive | None, first: Candidate) -> list[TuneRow]:
    """The measured candidates, the fastest first, then the untried ones."""
    groups = {one.key: race.group for race in reversed(found.races) for one in race.candidates}
    leavers = found.leavers
    rows = []
    for one in found.candidates:
        speeds = [math.exp(values[one.key]) for values in found.rounds if one.key in values]
        left = leavers.get(one.key)
        rows.append(
            gathered(
                TuneRow,
                *(() if left is None else (left,)),
                candidate=one.name,
                flags=command_words(one.flags),
                changes=one.changes,
                group=groups[one.key],
                processes=len(speeds),
                images_per_sec=median(speeds) if speeds else None,
                **_gain(fitted, one.key, first.key),
                left="" if left is None else left.how,
            )
        )
    rows.sort(key=lambda row: -math.inf if row.gain is None else row.gain, reverse=True)
    untried = [(race, one) for race in found.races for one in race.untried if one.key not in groups]
    for race, one in untried:
        flags = command_words(one.flags)
        row = TuneRow(candidate=one.name, flags=flags, changes=one.changes, group=race.group)
        rows.append(replace(row, left=UNTRIED, reason="no time for it"))
    return rows


def _gain(fitted: Additive | None, key: str, first: str) -> dict[str, float | None]:
    if fitted is None or key not in fitted.names or first not in fitted.names:
        return {}
    difference = fitted.difference(key, first)
    found: dict[str, float | None] = {"gain": math.expm1(difference)}
    reach = None if key == first else fitted.reach(key, first, (1 - CONFIDENCE) / 2)
    if reach is not None:
        found["low"], found["high"] = math.expm1(difference - reach), math.expm1(difference + reach)
    return found
