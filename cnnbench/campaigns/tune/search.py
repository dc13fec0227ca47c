"""A search of `cnnbench tune`: one race after the other, then the proof."""

from __future__ import annotations

from collections import Counter

from cnnbench.campaigns.processes.journal import END
from cnnbench.campaigns.processes.campaign import ProcessRequests
from cnnbench.campaigns.tune import phrases
from cnnbench.campaigns.tune.bench import RaceBenchmark
from cnnbench.campaigns.tune.final import last_proven_settings, measure_proof
from cnnbench.campaigns.tune.race import FINALISTS, CandidateRace, SearchOutcome
from cnnbench.campaigns.tune.space import candidates_of_group
from cnnbench.campaigns.tune.texts import processes_csv
from cnnbench.campaigns.tune.weights import compare_weights
from cnnbench.records.campaigns import FASTER, TuneDocument

_ROUNDS = 2
"""A race should have time for this number of rounds. The second round should have time for
`FINALISTS`, or for a third of the affordable processes. Candidates without time in the first round
are not tried.
"""

_FEWEST = 2
"""Minimum number of processes in a race: the best of the previous groups, and a candidate."""

_LEAST = 6
"""Minimum number of processes for a small group, if its share of the time would allow fewer."""


def search_requests(bench: RaceBenchmark) -> ProcessRequests[tuple[TuneDocument, SearchOutcome]]:
    """Requests all processes of a search: races, proof that the best candidate is faster, and
    comparison of weights.

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
    folder.journal.add(END, document=document.to_dict())
    # `cnnbench report` reads tune.json.
    folder.write(folder.folder / "tune.json", document.to_json().encode("ascii"))
    return document, outcome


def race_groups(bench: RaceBenchmark) -> ProcessRequests[SearchOutcome]:
    """Runs the races of all groups. Each race starts with the best candidate of the previous race.

    A candidate is adopted if its gain exceeds the threshold of the search.
    """
    settings = bench.settings
    leader, threshold = settings.first, settings.policy.threshold
    weights = [len(choices) for choices in settings.space.groups.values()]
    for at, (group, choices) in enumerate(settings.space.groups.items()):
        candidates, dropped = candidates_of_group(settings.space, choices, leader)
        race = CandidateRace(group, candidates, threshold, dropped)
        bench.races.append(race)
        if len(candidates) > 1:
            bench.needs_proof = True
            there_is = bench.affordable_processes
            share = there_is * weights[at] // sum(weights[at:])
            # Each race must leave time for a few processes of every later group.
            own, *later = (min(_ROUNDS * many, _LEAST) for many in weights[at:])
            share = min(there_is, max(min(share, there_is - sum(later)), own))
            if share >= _FEWEST:
                yield from _run_race(race, bench, share, there_is - share)
        leader = race.leader
    return SearchOutcome(tuple(bench.races), leader)


def _run_race(
    race: CandidateRace, bench: RaceBenchmark, share: int, reserved: int
) -> ProcessRequests[None]:
    """Runs the rounds of a race until the race is over or its time is used.

    `share` is the number of processes for this race, `reserved` the number for later races.
    """
    while not race.is_over:
        running = [race.entered[key] for key in race.remaining]
        number = len(race.rounds) + 1
        again = 0 if race.rounds else min(FINALISTS, len(running), share // 3)
        measured = yield from bench.measure_round(race.group, number, running, reserved + again)
        race.add_round(measured)
        if not any(measured.blocks):
            break
        # A later group may find a leader that needs a proof, so its processes are not spent here.
        bench.needs_proof = reserved > 0 or race.leader.key != bench.settings.first.key
        affordable = bench.affordable_processes - reserved
        if eliminated := race.eliminate_after_round(max(0, affordable)):
            reasons = Counter(row.left for row in eliminated)
            counts = ", ".join(f"{many} {reason}" for reason, many in reasons.items())
            best = race.fastest.name
            text = phrases.ELIMINATED.format(
                group=race.group, round=number, counts=counts, best=best
            )
            bench.campaign.reporter.notice(text)
