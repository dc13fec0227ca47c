"""A search of `cnnbench tune`: one race after the other, then the proof."""

from __future__ import annotations

from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.journal import END
from cnnbench.campaigns.processes.requests import ProcessRequests
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.tune.bench import RaceBenchmark, SearchSettings
from cnnbench.campaigns.tune.final import FinalComparison
from cnnbench.campaigns.tune.race import FINALISTS, CandidateRace, SearchOutcome
from cnnbench.campaigns.tune.space import Candidate, SearchSpace, candidates_of_group
from cnnbench.campaigns.tune.texts import processes_csv
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
