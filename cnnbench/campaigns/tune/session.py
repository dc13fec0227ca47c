"""One search from its first process to its document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.tune.bench import FEWEST_PAIRS, MOST_PAIRS, BenchSetting, RaceBench
from cnnbench.campaigns.tune.budget import Budget
from cnnbench.campaigns.tune.final import Final, Proof, Weights
from cnnbench.campaigns.tune.outcome import document
from cnnbench.campaigns.tune.race import BEHIND, FINALISTS
from cnnbench.campaigns.tune.results import TuneFolder
from cnnbench.campaigns.tune.search import SearchOutcome, search
from cnnbench.campaigns.tune.space import Candidate, Maker, Space
from cnnbench.campaigns.tune.text import processes_csv
from cnnbench.judge.compare import Policy
from cnnbench.records.tune import FASTER, OPEN, TuneDocument


@dataclass(frozen=True, kw_only=True)
class TuneQuestion:
    """Definition of a search from the given flags, `first`, in `seconds` for all of it.

    The threshold of the policy of the proof is also that of adopting a candidate.
    """

    space: Space
    first: Candidate
    make: Maker
    policy: Policy
    seconds: float
    command: Sequence[str]


def tune(
    question: TuneQuestion, folder: TuneFolder, campaign: Campaign, setting: BenchSetting
) -> tuple[TuneDocument, SearchOutcome, int | None]:
    """Races the candidates, proves the leader, and compares what it trains.

    Returns the document, the races, and for how many minutes the search could continue; None where
    more time would not change the answer. Measurements in the folder are not repeated.
    """
    space, first, policy = question.space, question.first, question.policy
    budget = Budget(question.seconds, folder.seconds_of_races, folder.seconds_of_pairs)
    folder.begin(budget.minutes)
    bench = RaceBench(folder, campaign, budget, setting)
    bench.begin(first, space.fixed)
    found = search(space, first, question.make, bench, policy.threshold)
    folder.write(folder.folder / "race.csv", processes_csv(found).encode())
    final = Final(
        space=space,
        first=first,
        make=question.make,
        folder=folder,
        campaign=campaign,
        budget=budget,
        bench=bench,
        setting=setting,
        policy=policy,
    )
    proof = final.too_late("any candidate") if found.is_late else final.prove(found.leader)
    proven = final.proven_before()
    if proof.verdict != FASTER and proven is not None:
        # More time has led to another leader, of which less is known.
        found = replace(found, leader=question.make(proven))
        proof = final.prove(found.leader)
    minutes = _enough(found, proof, bench)
    if proof.verdict == OPEN and not proof.pairs and minutes is not None:
        reason = f"{proof.reason}; --minutes={minutes} would be enough"
        proof = replace(proof, reason=reason)
    weights = final.weights(found.leader) if proof.verdict == FASTER else Weights()
    outcome = document(
        space,
        first,
        found,
        proof,
        weights,
        started_at=folder.started_at,
        search_command=question.command,
        seed=setting.seed,
        seconds=budget.seconds - budget.left,
        budget_seconds=budget.seconds,
        layout=setting.layout,
    )
    folder.journal.add("outcome", document=outcome.to_dict())
    folder.write(folder.folder / "tune.json", outcome.to_json().encode("ascii"))  # for reports
    return outcome, found, minutes


def _enough(found: SearchOutcome, proof: Proof, bench: RaceBench) -> int | None:
    """Minutes that would suffice for the whole search; None if it needs no more of them."""
    waiting = {one.key for race in found.races for one in race.untried}
    waiting |= {key for key, (_, leaver) in found.leavers.items() if leaver.how == BEHIND}
    is_open = proof.verdict == OPEN
    if proof.failure or (is_open and not proof.more) or not (waiting or is_open):
        return None
    again = min(FINALISTS, len(waiting))  # of a second round
    pairs = MOST_PAIRS - proof.pairs if proof.pairs else FEWEST_PAIRS
    return bench.enough_minutes(len(waiting) + again, pairs if is_open else 0)
