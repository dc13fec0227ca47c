"""Measures the candidates of races in short processes, while time remains.

A first process measures the step time with the given flags; it determines the number of timed steps
that take a few seconds. A round runs its candidates in random order. If processes can run
interleaved (docs/ab.md), up to eight processes are alive at a time, so that disturbances of the
machine affect all of them.

Only the time of processes counts, and no recorded process runs again. So a resumed search makes the
same decisions.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from cnnbench.base.stats import median
from cnnbench.campaigns.ab.lengths import LENGTHS, StepCountEstimate
from cnnbench.campaigns.ab.side import AbSide, make_process_request
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.campaigns.processes import (
    JOURNAL,
    LOGS,
    PROCESS,
    Campaign,
    CampaignKind,
    Journal,
    ProcessRequests,
    ProcessResult,
    RequestBatch,
    ResultsFolder,
)
from cnnbench.campaigns.tune import environment, phrases
from cnnbench.campaigns.tune.race import FINALISTS, CandidateRace, RaceRound, SearchOutcome
from cnnbench.campaigns.tune.space import (
    Candidate,
    SearchSpace,
    Settings,
    candidates_of_group,
)
from cnnbench.errors import BenchmarkError
from cnnbench.flags import FLAGS, RunPart, names_of_flags
from cnnbench.judge.metrics.policy import Policy
from cnnbench.machine.cpu import MemoryCapacity
from cnnbench.records.metrics.figures import throughput, throughputs
from cnnbench.records.run import RunRecord

FEWEST_PAIRS, MOST_PAIRS = 6, 16
"""Minimum and maximum number of pairs in the proof. With fewer than six pairs, no verdict is
possible.
"""

_FIRST_STEPS = 20
_LATEST = 3  # Number of the last processes, whose durations predict the next duration.
_PROOF_SHARE, _MOST_PROOF_SHARE = 0.4, 2 / 3
# No process runs again: with another result, a resumed search would make other decisions.
_ANSWERS = ("ok", "failed", "timed_out", "killed", "out_of_memory")
_MOST_AT_A_TIME = 8  # Maximum number of simultaneous processes.
_MEMORY = 0.8  # Maximum share of the available memory that simultaneous processes use.

MOST_MINUTES = 10080
"""Maximum duration of a search in minutes."""

RACE_SECONDS = 1.0
"""Seconds of timed steps in a race. Twice as many seconds hardly reduce the differences between
processes.
"""

FEWEST_STEPS = 10
"""Minimum number of timed steps in a process."""

PROOF_LENGTH = 2.0
"""Number of timed steps of a process in the proof, divided by the number in a race."""

_MOST_STEPS = 5000
_MOST_WARMUP, _FEWEST_WARMUP = 10, 2
_WARMUP = {"autotune_threshold", *names_of_flags(FLAGS, RunPart.WARM_UP)}

_RACES, PROOF = "race", "final"
"""Folders of the races and of the proof."""

_ROUNDS = 2
"""A race should have time for this number of rounds. The second round should have time for
`FINALISTS`, or for a third of the affordable processes. Candidates without time in the first round
are not tried.
"""

_FEWEST_PROCESSES = 2
"""Minimum number of processes in a race: the best of the previous groups, and a candidate."""

_LEAST_SHARE = 6
"""Minimum number of processes for a small group, if its share of the time would allow fewer."""

TUNE = CampaignKind(command="tune", noun="search", subfolders=(LOGS,))
"""Kind of campaign for searches. ``race/`` contains a record for each process of the races.
``final/`` is a folder of `cnnbench ab`.
"""


class ProcessStepCounts(StepCountEstimate):
    """Chooses how many steps the processes of races and of the proof run, from the record of a
    first process.

    `fixed` contains the names of given flags, which keep their values. `batch` is the number of
    images in a step of the first record.
    """

    def __init__(self, fixed: Collection[str], record: RunRecord) -> None:
        if not record.step_seconds or record.batch is None:
            raise BenchmarkError("with the given flags, no step was timed")
        super().__init__(RACE_SECONDS, median(record.step_seconds), FEWEST_STEPS, _MOST_STEPS)
        self.batch = record.batch.global_
        self._fixed = frozenset(fixed)

    def step_count_flags(self, batch: int, factor: float = 1.0) -> dict[str, int]:
        """Flags for the number of steps of a process, by flag name.

        `batch` is its number of images in a step. The process gets `factor` times as many images as
        in a race.
        """
        lengths = {}
        if not LENGTHS & self._fixed:
            lengths["num_batches"] = self.number_of_steps(factor * self.batch / batch)
        if not _WARMUP & self._fixed:
            lengths["num_warmup_batches"] = min(max(_FEWEST_WARMUP, self.wanted), _MOST_WARMUP)
        if "peak_flops" not in self._fixed:
            lengths["peak_flops"] = 0  # With 0, the peak FLOP/s is not measured.
        return lengths

    @property
    def extra_proof_seconds(self) -> float:
        """Seconds that the timed steps of a process take longer in the proof than in a race."""
        if LENGTHS & self._fixed:
            return 0.0
        more = self.number_of_steps(PROOF_LENGTH) - self.number_of_steps()
        return more * self.step_seconds


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a search for the fastest flags.

    Attributes:
      space: makes the candidates.
      as_given: the candidate with the given flags, with which the search starts.
      groups: settings by name of the group. Candidates in the race of a group add one of these
        settings to the best flags of the previous groups.
      policy: decision thresholds of the proof. Candidates are adopted with the same threshold.
      seconds: seconds for the whole search.
      command: argv of the search.
      timeout: seconds for each process.
      memory: bytes of memory for simultaneous processes; None if unknown.
      seed: seed of all random orders.
      turn_seconds: seconds that a process runs before the next simultaneous process continues; 0 if
        processes run one after the other.
    """

    space: SearchSpace
    as_given: Candidate
    groups: Mapping[str, Sequence[Settings]]
    policy: Policy
    seconds: float
    command: Sequence[str]
    timeout: float
    memory: MemoryCapacity | None
    seed: int
    turn_seconds: float

    def make_side(self, candidate: Candidate, flags: Mapping[str, object]) -> AbSide:
        """Creates an `AbSide`, which runs with `flags` and with the environment variables of a
        candidate.
        """
        side = AbSide(variables=candidate.variables, resolved=candidate.resolved)
        return side.with_added_flags(flags)

    def command_of(self, candidate: Candidate) -> tuple[str, ...]:
        """The cnnbench command line that runs with a candidate's flags."""
        # "run" is omitted before flags, because it is the default command.
        words = flags_to_arguments(candidate.flags) or ("run",)
        variables = environment.assignments(candidate.variables)
        env = ["env", *variables] if variables else []
        return (*env, "cnnbench", *words)


class RaceBenchmark:
    """Measures candidates in processes, and computes how many fit into the remaining time.

    Attributes:
      lengths: numbers of steps of the processes; set by `measure_first_process`.
      needs_proof: whether the leader needs a proof, because it differs from the given flags. If it
        needs none, the races can use the time for all but the minimum number of pairs.
      races: the races so far. If the search was interrupted, the last one may not be over.
    """

    lengths: ProcessStepCounts

    def __init__(self, folder: ResultsFolder, campaign: Campaign, settings: SearchSettings) -> None:
        self.folder = folder
        self.campaign = campaign
        self.settings = settings
        self.needs_proof = True
        self.races: list[CandidateRace] = []
        self._spent: list[float] = []

    def measure_first_process(self) -> ProcessRequests[None]:
        """Runs a first process with the given flags to measure the step time.

        Raises BenchmarkError if this process fails.
        """
        as_given, fixed = self.settings.as_given, self.settings.space.given_texts
        lengths = {} if LENGTHS & set(fixed) else {"num_batches": _FIRST_STEPS}
        (ended,) = yield from self._run_candidates(
            "first process", {f"first-{as_given.key}": as_given}, lengths
        )
        if ended.status != "ok":
            raise BenchmarkError(f"the given flags fail: {ended.message}")
        self.lengths = ProcessStepCounts(fixed, ended.record)
        if lengths:
            self.campaign.reporter.notice(str(self.lengths))

    @property
    def mean_process_seconds(self) -> float:
        """Mean wall time in seconds of the processes in the races so far."""
        return fmean(self._durations)

    @property
    def proof_process_seconds(self) -> float:
        """Estimated seconds of a process in the proof, from the last processes of the races."""
        return fmean(self._durations[-_LATEST:]) + self.lengths.extra_proof_seconds

    @property
    def _durations(self) -> list[float]:
        """Seconds of each process so far, except the first process, which is shorter."""
        return self._spent[1:] or self._spent or [0.0]

    @property
    def races_seconds(self) -> float:
        """Total wall time in seconds of the processes in the races so far."""
        return sum(self._spent)

    @property
    def seconds_left(self) -> float:
        """Remaining seconds of the whole search; negative if the time was exceeded."""
        journal = Journal(self.folder.folder / PROOF / JOURNAL)
        pairs = sum(float(event["seconds"]) for event in journal.read(PROCESS))
        return self.settings.seconds - self.races_seconds - pairs

    @property
    def reserved_seconds(self) -> float:
        """Seconds that are reserved for the proof. 0 if the whole search has too little time for
        the minimum number of pairs.
        """
        total = self.settings.seconds
        fewest, most = map(self._seconds_for_pairs, (FEWEST_PAIRS, MOST_PAIRS))
        wanted = max(fewest, min(_PROOF_SHARE * total, most)) if self.needs_proof else fewest
        if len(self._spent) > 1 and fewest > _MOST_PROOF_SHARE * total:
            return 0.0
        return min(wanted, _MOST_PROOF_SHARE * total)

    def estimate_search_minutes(self, more_processes: int, more_pairs: int) -> int | None:
        """Estimated minutes of the whole search with more processes in races and more pairs.

        None if this exceeds the maximum duration of a search.
        """
        more = more_processes * self.mean_process_seconds
        proof = self._seconds_for_pairs(more_pairs)
        enough = max(
            self.settings.seconds - self.seconds_left + more + proof,
            (self.races_seconds + more) / (1 - _PROOF_SHARE),
            proof / _MOST_PROOF_SHARE,
        )
        minutes = max(math.ceil(enough / 60), math.floor(self.settings.seconds / 60) + 1)
        return minutes if minutes <= MOST_MINUTES else None

    def _seconds_for_pairs(self, pairs: int) -> float:
        return 2 * pairs * self.proof_process_seconds

    @property
    def affordable_processes(self) -> int:
        """Number of processes of races for which the remaining time is sufficient."""
        # The reserve also covers pairs of the proof that an earlier session has measured, so a
        # resumed search gets the same number.
        seconds = self.settings.seconds - self.races_seconds - self.reserved_seconds
        return max(0, int(seconds / max(self.mean_process_seconds, 1e-3)))

    def measure_round(
        self, group: str, number: int, candidates: Sequence[Candidate], reserved_processes: int
    ) -> ProcessRequests[RaceRound]:
        """Runs a round of a race: measures each candidate once, as long as there is time.

        Rounds are numbered from 1. `reserved_processes` is the number of later processes that must
        still fit into the remaining time.
        """
        waiting = self._candidate_order(group, number, candidates)
        chunks: list[dict[str, RunRecord]] = []
        failed: dict[str, str] = {}
        most = self._most_at_a_time(waiting)
        while waiting:
            parts = math.ceil(len(waiting) / most)  # The chunks have nearly equal sizes.
            fitting = self.affordable_processes - reserved_processes
            size = min(math.ceil(len(waiting) / parts), fitting)
            if size < 1:
                text = phrases.TIME_IS_UP.format(group=group, round=number)
                self.campaign.reporter.notice(text)
                break
            chunk, waiting = waiting[:size], waiting[size:]
            names = {f"{group}-{candidate.key}-r{number}": candidate for candidate in chunk}
            later = min(len(waiting), fitting)
            results = yield from self._run_candidates(f"{group} {number}", names, later=later)
            records = {}
            for candidate, ended in zip(chunk, results, strict=True):
                if ended.status == "ok" and throughput(ended.record):
                    records[candidate.key] = ended.record
                else:
                    failed[candidate.key] = ended.message or phrases.NO_STEP
            chunks.append(records)
        taken = {key: record for records in chunks for key, record in records.items()}
        # `throughputs` gets all records together, so that it can remove rare disturbances.
        speeds = dict(zip(taken, throughputs([*taken.values()]), strict=True))
        # If processes run one after the other, all processes of a round are one block.
        blocks = chunks if self.settings.turn_seconds else [taken]
        return RaceRound(
            blocks=[{key: speed for key in block if (speed := speeds[key])} for block in blocks],
            failed=failed,
            late=[candidate.key for candidate in waiting],
        )

    def _candidate_order(
        self, group: str, number: int, candidates: Sequence[Candidate]
    ) -> list[Candidate]:
        """The candidates in the order of a round: the first one, then the others in random order.

        The first round may end early, so candidates that change few flags come before others, and
        among those the ones that --allow names.
        """
        first, *others = candidates
        random.Random(f"{self.settings.seed} {group} {number}").shuffle(others)
        if number == 1:
            others.sort(key=lambda candidate: (len(candidate.settings), not candidate.changes))
        return [first, *others]

    def _most_at_a_time(self, candidates: Collection[Candidate]) -> int:
        """Number of processes that may be alive at the same time."""
        most, memory = _MOST_AT_A_TIME if self.settings.turn_seconds else 1, self.settings.memory
        if memory is not None:
            needed = max(candidate.resolved.needed_bytes for candidate in candidates)
            most = max(1, min(most, int(_MEMORY * memory.available / max(1, needed))))
        return most

    def _run_candidates(
        self,
        label: str,
        candidates: Mapping[str, Candidate],
        length_flags: Mapping[str, int] | None = None,
        later: int = 0,
    ) -> ProcessRequests[list[ProcessResult]]:
        """Runs a process for each candidate, by the name of the process. Several processes run
        interleaved.

        If `length_flags` is None, processes have the length for a race. `later` is the number of
        similar processes that will probably follow.
        """
        requests = []
        for name, candidate in candidates.items():
            length = length_flags
            if length is None:
                length = self.lengths.step_count_flags(candidate.resolved.global_batch)
            requests.append(
                make_process_request(
                    self.folder,
                    name,
                    self.settings.make_side(candidate, {**candidate.flags, **length}),
                    label=f"{label}: {candidate.name}",
                    key=label,
                    target=self.folder.folder / _RACES / f"{name}.json",
                    answers=_ANSWERS,
                    facts={"candidate": candidate.name},
                )
            )
        ended = yield RequestBatch(
            folder=self.folder,
            requests=requests,
            later_keys=[label] * later,
            timeout=min(self.settings.timeout, max(self.seconds_left, 10.0)),
            turn_seconds=self.settings.turn_seconds,
            label=f"{label}: {len(requests)} interleaved",
        )
        # If an earlier session was killed, the duration of its last processes is unknown.
        self._spent += [result.seconds or self.mean_process_seconds for result in ended]
        return [*ended]


def race_groups(bench: RaceBenchmark) -> ProcessRequests[SearchOutcome]:
    """Runs the races of all groups. Each race starts with the best candidate of the previous race.

    A candidate is adopted if its gain exceeds the threshold of the search.
    """
    settings = bench.settings
    leader = settings.as_given
    weights = [len(choices) for choices in settings.groups.values()]
    for at, (group, choices) in enumerate(settings.groups.items()):
        candidates, dropped = candidates_of_group(settings.space, choices, leader)
        race = CandidateRace(group, candidates, settings.policy.threshold, dropped)
        bench.races.append(race)
        if len(candidates) > 1:
            bench.needs_proof = True
            there_is = bench.affordable_processes
            share = there_is * weights[at] // sum(weights[at:])
            # Each race must leave time for a few processes of every later group.
            own, *later = (min(_ROUNDS * many, _LEAST_SHARE) for many in weights[at:])
            share = min(there_is, max(min(share, there_is - sum(later)), own))
            if share >= _FEWEST_PROCESSES:
                yield from _run_race(race, bench, share, there_is - share)
        leader = race.leader
    return SearchOutcome(tuple(bench.races))


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
        # A later group may find a leader that needs a proof, so the time of the proof is not used
        # for races.
        bench.needs_proof = reserved > 0 or race.leader.key != bench.settings.as_given.key
        affordable = bench.affordable_processes - reserved
        if eliminated := race.eliminate_after_round(max(0, affordable)):
            reasons = Counter(row.left for row in eliminated)
            counts = ", ".join(f"{many} {reason}" for reason, many in reasons.items())
            best = race.fastest.name
            text = phrases.ELIMINATED.format(
                group=race.group, round=number, counts=counts, best=best
            )
            bench.campaign.reporter.notice(text)
