"""Races of ``cnnbench tune``: rounds of measurements that eliminate slower candidates.

A candidate is a set of flags for a run. The rules for eliminating candidates depend only on
measured speeds.

Every round measures all remaining candidates once. After a round, a candidate is eliminated for one
of these reasons:

* `RACED_SLOWER`: it is significantly slower than the best candidate. The test uses the additive
  model of candidates and rounds (`cnnbench.base.inference`) on logarithms of speeds. The
  significance level of round r is alpha / (r (r - 1)), divided by the number of other candidates
  (Bonferroni). Over all rounds, the levels add up to alpha. So the fastest candidate is eliminated
  in this way in at most a share alpha of races, even if one candidate is noisier than the others.
* `BEHIND`: time is short. The next round may take at most half of the remaining time, so the
  slowest candidates are eliminated until the others fit (successive halving). This does not prove
  that they are slower, and reports say so.
* `FAILED`: its process failed.

A race is over when one candidate remains; when no other candidate can be faster than the best one
by more than the threshold, at level alpha; after `MOST_ROUNDS`; or when there is no time for
another round.

Processes in a race are short. A first process measures the step time with the given flags; it
determines the number of timed steps that take a few seconds. A round runs its candidates in random
order. If processes can run interleaved (docs/ab.md), up to `lanes` processes are alive at a time,
so that disturbances of the machine affect all of them.

Only the time of processes counts. So a resumed search makes the same decisions. If it gets more
time, it decides as if it had had that time from the beginning: more candidates are tried, fewer are
eliminated for lack of time, and recorded processes are not run again.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from cnnbench.base.inference import AdditiveModel, fit_additive_blocks
from cnnbench.base.stats import median
from cnnbench.base.text import percent
from cnnbench.campaigns.ab.side import (
    LENGTHS,
    TURN_SECONDS,
    AbSide,
    StepCountEstimate,
    make_process_request,
)
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.campaigns.processes.campaign import Campaign, ProcessRequests, RequestBatch
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.journal import JOURNAL, PROCESS, Journal
from cnnbench.campaigns.processes.results_dir import LOGS, CampaignKind, ResultsFolder
from cnnbench.campaigns.tune.space import Candidate, DroppedCandidate, SearchSpace
from cnnbench.errors import BenchmarkError
from cnnbench.flags.declare import RunPart, names_of_flags
from cnnbench.flags.params import FLAGS
from cnnbench.judge.metrics import Policy
from cnnbench.machine.cpu import MemoryCapacity
from cnnbench.records.campaigns import TuneRow
from cnnbench.records.metrics.figures import throughput, throughputs
from cnnbench.records.run import RunRecord

# There is one race for each group of flags, one race after the other.
# Each race starts with the best flags of the previous groups.

RACED_SLOWER, BEHIND, FAILED = "slower", "behind", "failed"
UNTRIED = "untried"
"""Mark of a candidate that was not measured for lack of time."""

ALPHA = 0.05
"""Maximum probability that the fastest candidate of a race is eliminated as `RACED_SLOWER`."""

FINALISTS = 3
"""Number of candidates that are not eliminated for lack of time."""

MOST_ROUNDS = 10


@dataclass(frozen=True)
class RaceRound:
    """Results of one round of a race: speeds and errors, by key of the candidate.

    Attributes:
      speeds: images/sec of each candidate.
      failed: error message of each failed candidate.
      blocks: groups of candidates that ran at the same time; if empty, all candidates did.
      late: candidates that did not run, for lack of time.
    """

    speeds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    blocks: list[list[str]] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


class CandidateRace:
    """The state of a race between candidates: measured speeds, and which candidates remain.

    Attributes:
      group: name of the group of flags that the candidates vary.
      entered: all candidates. The first one is the best candidate of the previous groups.
      dropped: candidates that cannot run.
      untried: candidates that there was no time to run once.
      remaining: keys of the candidates that are not eliminated.
      rounds: logarithms of speeds, by key of the candidate, for each round.
      blocks: the same speeds, in blocks of candidates that ran at the same time.
      eliminated: by key and in order, rows of the eliminated candidates, without measurements.
    """

    def __init__(
        self,
        group: str,
        entered: Sequence[Candidate],
        threshold: float = 0.01,
        dropped: Sequence[DroppedCandidate] = (),
    ) -> None:
        self.group = group
        self.entered = tuple(entered)
        self.dropped = dropped
        self.untried = self.entered[1:]
        self.remaining = [candidate.key for candidate in entered]
        self.rounds: list[dict[str, float]] = []
        self.blocks: list[list[dict[str, float]]] = []
        self.eliminated: dict[str, TuneRow] = {}
        # A candidate is adopted only if the logarithm of its gain is larger than this value.
        self._worth = math.log1p(threshold)
        self._short = False

    @property
    def candidates(self) -> list[Candidate]:
        """The first candidate, and the other candidates that were measured at least once."""
        return [candidate for candidate in self.entered if candidate not in self.untried]

    @property
    def is_over(self) -> bool:
        """Whether the race needs no further round."""
        over = len(self.remaining) < 2 or len(self.rounds) >= MOST_ROUNDS or self._short
        return over or self._is_leader_near_best()

    @property
    def fitted_model(self) -> AdditiveModel:
        """The model of candidates and rounds, fitted to all speeds so far.

        At least one speed must have been measured.
        """
        return fit_additive_blocks(self.blocks)

    def add_round(self, round_: RaceRound) -> None:
        """Adds the results of a round to the race, and eliminates candidates that failed.

        Late candidates are removed after the first round. In later rounds, they keep their
        estimates.
        """
        speeds = {key: math.log(speed) for key, speed in round_.speeds.items()}
        if not self.rounds:
            self.untried = tuple(
                candidate for candidate in self.entered[1:] if candidate.key in round_.late
            )
            self.remaining = [candidate.key for candidate in self.candidates]
        self.rounds.append(speeds)
        blocks = round_.blocks or [list(speeds)]
        self.blocks.append(
            [{key: speeds[key] for key in block if key in speeds} for block in blocks]
        )
        for key in [key for key in self.remaining if key in round_.failed]:
            self._eliminate(key, FAILED, round_.failed[key])

    def eliminate_after_round(self, affordable_processes: int) -> list[TuneRow]:
        """Eliminates candidates that are slower, or for which there is no time, after a round.

        Returns all candidates that were eliminated after this round. `affordable_processes` is the
        number of processes that fit into the remaining time.
        """
        if any(self.rounds):
            fitted = self.fitted_model
            self._eliminate_slower(fitted)
            most = max(FINALISTS, affordable_processes // 2)
            for place, key in enumerate(self.ranked_keys(fitted)[most:], start=most + 1):
                self._eliminate(key, BEHIND, place=place)
        self._short = affordable_processes < len(self.remaining)
        return [row for row in self.eliminated.values() if row.after == len(self.rounds)]

    @property
    def leader(self) -> Candidate:
        """The fastest candidate. If its gain is at most the threshold, the first candidate."""
        first = self.entered[0]
        ranked = self.ranked_keys(self.fitted_model) if any(self.rounds) else []
        if not ranked:
            return first
        if (
            first.key in ranked
            and self.fitted_model.difference(ranked[0], first.key) <= self._worth
        ):
            return first
        return next(candidate for candidate in self.entered if candidate.key == ranked[0])

    def ranked_keys(self, fitted: AdditiveModel) -> list[str]:
        """Keys of the remaining measured candidates by estimated speed, the fastest first."""
        known = [key for key in self.remaining if key in fitted.names]
        return sorted(known, key=fitted.effect, reverse=True)

    def _is_leader_near_best(self) -> bool:
        """Whether no candidate is faster than the best one by more than the threshold.

        The test has the significance level `ALPHA`.
        """
        if not any(self.rounds):
            return False
        fitted = self.fitted_model
        ranked = self.ranked_keys(fitted)
        if fitted.scatter is None or len(ranked) < max(2, len(self.remaining)):
            return False
        best, *others = ranked
        tail = ALPHA / len(others)
        return all(fitted.p_value_above(best, name, self._worth) <= tail for name in others)

    def _eliminate_slower(self, fitted: AdditiveModel) -> None:
        number = len(self.rounds)
        ranked = self.ranked_keys(fitted)
        if number < 2 or len(ranked) < 2:
            return
        best, *others = ranked
        level = ALPHA / (number * (number - 1)) / len(others)
        for name in others:
            p = fitted.p_value_above(best, name)
            if p <= level:
                slower_by = -math.expm1(fitted.difference(name, best))
                self._eliminate(name, RACED_SLOWER, slower_by=slower_by, p=p)

    def _eliminate(self, key: str, how: str, reason: str = "", **figures: Any) -> None:
        self.remaining.remove(key)
        candidate = next(candidate for candidate in self.entered if candidate.key == key)
        row = unmeasured_row(candidate, self.group)
        row = replace(row, left=how, after=len(self.rounds), **figures)
        self.eliminated[key] = replace(row, reason=reason or _elimination_reason(row))


def _elimination_reason(row: TuneRow) -> str:
    """The reason why a candidate was eliminated, as text with the numbers in its row."""
    if row.place is not None:
        return f"no time for more measurements; {_ordinal(row.place)} place so far"
    assert row.slower_by is not None
    assert row.p is not None
    return f"{percent(row.slower_by)} slower than the best, p = {row.p:.1g}"


def unmeasured_row(candidate: Candidate, group: str) -> TuneRow:
    """Creates the row of a candidate in the table of results, without measurements."""
    return TuneRow(
        candidate=candidate.name,
        flags=flags_to_arguments(candidate.flags),
        variables=candidate.variables,
        changes=candidate.changes,
        group=group,
    )


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 <= number % 100 <= 20 else ending}"


class SearchOutcome(NamedTuple):
    """Results of the races of all flag groups. `leader` is the best candidate of the last race."""

    races: tuple[CandidateRace, ...]
    leader: Candidate

    @property
    def log_speeds_by_round(self) -> list[dict[str, float]]:
        """Logarithms of speeds by key of the candidate, for each round of all races."""
        return [round_ for race in self.races for round_ in race.rounds if round_]

    @property
    def log_speeds_by_round_and_block(self) -> list[list[dict[str, float]]]:
        """The speeds in `log_speeds_by_round`, in blocks of candidates that ran at the same time.

        See `CandidateRace`.
        """
        return [block for race in self.races for block in race.blocks if any(block)]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates that were measured in any race, without duplicates."""
        by_key: dict[str, Candidate] = {}
        for candidate in (candidate for race in self.races for candidate in race.candidates):
            by_key.setdefault(candidate.key, candidate)
        return tuple(by_key.values())

    @property
    def tried_no_candidate(self) -> bool:
        """Whether the time was too short to measure any candidate besides the given flags."""
        return len(self.candidates) <= 1 and any(race.untried for race in self.races)

    @property
    def eliminated(self) -> dict[str, TuneRow]:
        """Rows of the eliminated candidates by key, with the result of the last race of each
        candidate.
        """
        return {key: row for race in self.races for key, row in race.eliminated.items()}


# Measures candidates in processes while time remains.

FEWEST_PAIRS, MOST_PAIRS = 6, 16
"""Minimum number of pairs in the final. With fewer than six, no verdict is possible."""

_FIRST_STEPS = 20
_LATEST = 3  # Number of the last processes, whose durations predict the next duration.
_FINAL_SHARE, _MOST_FINAL_SHARE = 0.4, 2 / 3
# A resumed search runs a process again if the process has another status.
_ANSWERS = ("ok", "failed", "out_of_memory")
_MEMORY = 0.8  # Maximum share of the available memory that simultaneous processes use.

MOST_MINUTES = 10080
"""Maximum duration of a search in minutes."""

RACE_SECONDS = 1.0
"""Seconds of timed steps in a race. Twice as many seconds hardly reduce the differences between
processes.
"""

FEWEST_STEPS = 10
"""Minimum number of timed steps in a process."""

FINAL = 2.0
"""Number of timed steps of a process in the final, divided by the number in a race."""

_MOST_STEPS = 5000
_MOST_WARMUP, _FEWEST_WARMUP = 10, 2
_WARMUP = {"autotune_threshold", *names_of_flags(FLAGS, RunPart.WARM_UP)}

_RACE, FINALS = "race", "final"
"""Folders of the races and of the proofs. From the second proof on, a number is appended."""


TUNE = CampaignKind(command="tune", noun="search", subfolders=(LOGS,))
"""Kind of campaign for searches. ``race/`` contains a record for each process of the races.
``final/`` is a folder of `cnnbench ab`. If a continued search has a different leader, ``final-2/``
is another one.
"""


class ProcessStepCounts(StepCountEstimate):
    """Chooses how many steps the processes of races and finals run, from the record of a first
    process.

    `fixed` contains the names of given flags, which keep their values. `batch` is the number of
    images in a step of the first record.
    """

    def __init__(self, fixed: Collection[str], record: RunRecord) -> None:
        if not record.step_seconds or record.batch is None:
            raise BenchmarkError("with the given flags, no step was timed")
        super().__init__(RACE_SECONDS, median(record.step_seconds), FEWEST_STEPS, _MOST_STEPS)
        self.batch = record.batch.global_
        self._fixed = frozenset(fixed)

    def step_count_flags(self, factor: float = 1.0, batch: int | None = None) -> dict[str, int]:
        """Flags for the number of steps of a process, by flag name.

        The process gets `factor` times as many images as in a race. `batch` is its number of images
        in a step, if it differs from that of the given flags.
        """
        lengths = {}
        if not LENGTHS & self._fixed:
            lengths["num_batches"] = self.number_of_steps(
                factor * self.batch / (batch or self.batch)
            )
        if not _WARMUP & self._fixed:
            lengths["num_warmup_batches"] = min(max(_FEWEST_WARMUP, self.wanted), _MOST_WARMUP)
        if "peak_flops" not in self._fixed:
            lengths["peak_flops"] = 0  # With 0, the peak FLOP/s is not measured.
        return lengths

    @property
    def extra_final_seconds(self) -> float:
        """Seconds that the timed steps of a process take longer in the final than in a race."""
        more = 0 if LENGTHS & self._fixed else self.number_of_steps(FINAL) - self.number_of_steps()
        return more * self.step_seconds


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a search for the fastest flags, which starts with the candidate `first`.

    Attributes:
      space: the given flags, and the flags that may vary.
      first: the candidate with the given flags.
      policy: decision thresholds of the proof. Candidates are adopted with the same threshold.
      seconds: seconds for the whole search.
      timeout: seconds for each process.
      memory: bytes of memory for simultaneous processes; None if unknown.
      lanes: number of processes that are alive at the same time and run interleaved; 1 to run
        processes one after the other.
    """

    space: SearchSpace
    first: Candidate
    policy: Policy
    seconds: float
    command: Sequence[str]
    timeout: float
    memory: MemoryCapacity | None = None
    seed: int = 0
    lanes: int = 1

    def make_side(self, candidate: Candidate, flags: Mapping[str, object]) -> AbSide:
        """Creates an `AbSide`, which runs with `flags` and with the environment variables of a
        candidate, as one process or as a job.
        """
        return AbSide(
            layout=self.space.layout,
            variables=candidate.variables,
            resolved=candidate.resolved,
        ).with_added_flags(flags)

    @property
    def turn_seconds(self) -> float:
        """Seconds that a process runs before the next process continues; 0 if processes run one
        after the other.
        """
        return TURN_SECONDS if self.lanes > 1 else 0.0


class RaceBenchmark:
    """Measures candidates in processes, and computes how many fit into the remaining time.

    `lengths` is set by `measure_first_process`.
    """

    lengths: ProcessStepCounts

    def __init__(self, folder: ResultsFolder, campaign: Campaign, settings: SearchSettings) -> None:
        self.folder = folder
        self.campaign = campaign
        self.settings = settings
        self._proof = True
        self._spent: list[float] = []

    def measure_first_process(self) -> ProcessRequests[None]:
        """Runs a first process with the given flags to measure the step time.

        Raises BenchmarkError if this process fails.
        """
        first, fixed = self.settings.first, self.settings.space.given_texts
        lengths = {} if LENGTHS & set(fixed) else {"num_batches": _FIRST_STEPS}
        (ended,) = yield from self._run_candidates(
            "first process", {f"first-{first.key}": first}, lengths, []
        )
        if ended.status != "ok":
            raise BenchmarkError(f"the given flags fail: {ended.message}")
        self.lengths = ProcessStepCounts(fixed, ended.record)
        if lengths:
            self.campaign.reporter.notice(str(self.lengths))

    @property
    def mean_process_seconds(self) -> float:
        """Mean wall time in seconds of the processes in the races so far."""
        return fmean(self._process_durations)

    @property
    def final_process_seconds(self) -> float:
        """Estimated seconds of a process in the final, from the last processes of the races."""
        return fmean(self._process_durations[-_LATEST:]) + self.lengths.extra_final_seconds

    @property
    def _process_durations(self) -> list[float]:
        """Seconds of each process so far, except the first process, which is shorter."""
        return self._spent[1:] or self._spent or [0.0]

    @property
    def races_seconds(self) -> float:
        """Total wall time in seconds of the processes in the races so far."""
        return sum(self._spent)

    @property
    def seconds_left(self) -> float:
        """Remaining seconds of the whole search; negative if the time was exceeded."""
        journals = map(Journal, self.folder.folder.glob(f"{FINALS}*/{JOURNAL}"))
        pairs = sum(
            float(event["seconds"]) for journal in journals for event in journal.read(PROCESS)
        )
        return self.settings.seconds - self.races_seconds - pairs

    @property
    def reserved_seconds(self) -> float:
        """Seconds that are reserved for the final and for the comparison of weights.

        0 if the whole search has too little time for the minimum number of pairs.
        """
        total = self.settings.seconds
        fewest, most = map(self._seconds_for_pairs, (FEWEST_PAIRS, MOST_PAIRS))
        wanted = max(fewest, min(_FINAL_SHARE * total, most)) if self._proof else fewest
        if len(self._spent) > 1 and fewest > _MOST_FINAL_SHARE * total:
            return 0.0
        return min(wanted, _MOST_FINAL_SHARE * total)

    def estimate_search_minutes(self, more_processes: int, more_pairs: int) -> int | None:
        """Estimated minutes of the whole search with more processes in races and more pairs.

        None if this exceeds the maximum duration of a search.
        """
        more = more_processes * self.mean_process_seconds
        final = self._seconds_for_pairs(more_pairs)
        enough = max(
            self.settings.seconds - self.seconds_left + more + final,
            (self.races_seconds + more) / (1 - _FINAL_SHARE),
            final / _MOST_FINAL_SHARE,
        )
        minutes = max(math.ceil(enough / 60), math.floor(self.settings.seconds / 60) + 1)
        return minutes if minutes <= MOST_MINUTES else None

    def _seconds_for_pairs(self, pairs: int) -> float:
        # The additional pair is for the two processes whose weights are compared.
        return 2 * (pairs + 1) * self.final_process_seconds

    def affordable_processes(self, needs_proof: bool) -> int:
        """Number of processes of races for which the remaining time is sufficient.

        `needs_proof` is whether the leader needs a proof, because it differs from the given flags.
        Otherwise, the races can use the time for all but the minimum number of pairs.
        """
        self._proof = needs_proof
        return self._processes_that_fit

    def measure_round(
        self, group: str, number: int, candidates: Sequence[Candidate], reserved_processes: int
    ) -> ProcessRequests[RaceRound]:
        """Runs a round of a race: measures each candidate once, as long as there is time.

        Rounds are numbered from 1. `reserved_processes` is the number of later processes that must
        still fit into the remaining time.
        """
        waiting = self._candidate_order(group, number, candidates)
        round_ = RaceRound()
        taken: dict[str, RunRecord] = {}
        blocks: dict[int, list[str]] = {}
        lanes = self._max_parallel_processes(waiting)
        while waiting:
            parts = math.ceil(len(waiting) / lanes)  # The chunks have nearly equal sizes.
            size = min(
                math.ceil(len(waiting) / parts), self._processes_that_fit - reserved_processes
            )
            if size < 1:
                self.campaign.reporter.notice(f"{group}, round {number}: the time is up")
                break
            chunk, waiting = waiting[:size], waiting[size:]
            names = {f"{group}-{candidate.key}-r{number}": candidate for candidate in chunk}
            keys = [(group, number)] * min(
                len(waiting), self._processes_that_fit - reserved_processes
            )
            results = yield from self._run_candidates(f"{group} {number}", names, None, keys)
            # If an earlier session was killed, the group number of its last processes is unknown.
            last = max(ended.group for ended in results) or -len(blocks)
            for candidate, ended in zip(chunk, results, strict=True):
                # If processes run one after the other, all processes of a round are one block.
                block = (ended.group or last) if self.settings.lanes > 1 else 0
                blocks.setdefault(block, []).append(candidate.key)
                if ended.status == "ok" and throughput(ended.record):
                    taken[candidate.key] = ended.record
                else:
                    round_.failed[candidate.key] = ended.message or "it has timed no step"
        round_.blocks.extend(blocks.values())
        round_.late.extend(candidate.key for candidate in waiting)
        # `throughputs` gets all records together, so that it can remove rare disturbances.
        speeds = throughputs([*taken.values()])
        round_.speeds.update(
            (key, speed) for key, speed in zip(taken, speeds, strict=True) if speed
        )
        return round_

    def _candidate_order(
        self, group: str, number: int, candidates: Sequence[Candidate]
    ) -> list[Candidate]:
        """The candidates in the order of a round: the first candidate, then the other candidates in
        random order.

        The first round may end early, so candidates that change few flags come before others, and
        among those the ones that --allow names.
        """
        first, *others = candidates
        random.Random(f"{self.settings.seed} {group} {number}").shuffle(others)
        if number == 1:
            others.sort(key=lambda candidate: (len(candidate.settings), not candidate.changes))
        return [first, *others]

    def print_round_result(
        self, group: str, number: int, eliminated: Sequence[TuneRow], best: str
    ) -> None:
        """Prints how many candidates a round has eliminated, and the name of the best candidate."""
        if eliminated:
            reasons = Counter(row.left for row in eliminated)
            text = ", ".join(f"{many} {reason}" for reason, many in reasons.items())
            self.campaign.reporter.notice(
                f"{group}, round {number}: eliminated: {text}; best so far: {best}"
            )

    @property
    def _processes_that_fit(self) -> int:
        # The reserve also covers pairs of the final that an earlier session has measured.
        seconds = self.settings.seconds - self.races_seconds - self.reserved_seconds
        return max(0, int(seconds / max(self.mean_process_seconds, 1e-3)))

    def _max_parallel_processes(self, candidates: Collection[Candidate]) -> int:
        """Number of processes that may run at the same time: `lanes`, if the memory suffices."""
        lanes, memory = self.settings.lanes, self.settings.memory
        if memory is not None and candidates:
            needed = max(candidate.resolved.needed_bytes for candidate in candidates)
            lanes = max(1, min(lanes, int(_MEMORY * memory.available / max(1, needed))))
        return lanes

    def _run_candidates(
        self,
        label: str,
        candidates_by_process_name: Mapping[str, Candidate],
        length_flags: Mapping[str, int] | None,
        later_keys: Sequence[Hashable],
    ) -> ProcessRequests[list[ProcessResult]]:
        """Runs a process for each candidate. Several processes run interleaved.

        A process that was killed from outside runs once more. If `length_flags` is None, processes
        have the length for a race.
        """
        requests = []
        for name, candidate in candidates_by_process_name.items():
            images = candidate.resolved.global_batch
            length = (
                self.lengths.step_count_flags(batch=images)
                if length_flags is None
                else length_flags
            )
            requests.append(
                make_process_request(
                    self.folder,
                    name,
                    self.settings.make_side(candidate, {**candidate.flags, **length}),
                    label=f"{label}: {candidate.name}",
                    key=later_keys[0] if later_keys else label,
                    target=self.folder.folder / _RACE / f"{name}.json",
                    answers=_ANSWERS,
                    facts={"candidate": candidate.name},
                )
            )
        batch = RequestBatch(
            folder=self.folder,
            requests=requests,
            later_keys=later_keys,
            timeout=min(self.settings.timeout, max(self.seconds_left, 10.0)),
            turn_seconds=self.settings.turn_seconds,
            label=f"{label}: {len(requests)} interleaved",
        )
        ended = [*(yield batch)]
        # If an earlier session was killed, the duration of its last processes is unknown.
        self._spent += [result.seconds or self.mean_process_seconds for result in ended]
        for at, end in enumerate(ended):
            # If another program has ended the process, the process runs once more.
            if end.lost and not end.timed_out:
                (ended[at],) = yield replace(batch, requests=[requests[at]])
                self._spent.append(ended[at].seconds)
        return ended
