"""Searches whose processes, alive at once, take longer than the first one, which runs alone."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.journal import PROCESS, Journal
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.tune.bench import (
    FEWEST_PAIRS,
    MOST_PAIRS,
    PROOF_LENGTH,
    TUNE,
    ProcessStepCounts,
    RaceBenchmark,
    SearchSettings,
    race_groups,
)
from cnnbench.campaigns.tune.race import SearchOutcome
from cnnbench.campaigns.tune.space import SearchSpace
from cnnbench.flags import args_from_values, parse_flag_texts
from cnnbench.flags.params import SPECS
from cnnbench.judge.compare import Policy
from cnnbench.records.campaigns import AS_GIVEN
from cnnbench.records.run import ErrorInfo, RunRecord

FIXED = {"model": "lenet", "device": "cpu", "num_gpus": "2", "batch_size": "4"}
MODES = ("replicated", "mirrored_strategy", "central_storage_strategy", "parameter_server")
CHOICES = tuple(
    {"variable_update": mode, "num_inter_threads": threads} for mode in MODES for threads in "1234"
)


class Clocked(Campaign):
    """Runs nothing: processes take given times, each with one speed.

    Args:
      runs: makes records.
    """

    def __init__(self, runs: Callable[..., RunRecord]) -> None:
        super().__init__(ChildProcessReporter(io.StringIO()))
        self.now = 0.0
        self.started: list[list[str]] = []
        self._runs = runs
        # Of a process by itself, and of each of several that are alive at once.
        self.seconds = {False: 4.0, True: 8.0}
        self.ended_as: dict[str, Any] = {"status": "ok"}

    def run(
        self, commands: Sequence[BenchmarkCommand], timeout: float, turn_seconds: float = 0.0
    ) -> list[ProcessResult]:
        self.started.append([one.log.stem for one in commands])
        seconds = self.seconds[bool(turn_seconds)]
        self.now += seconds * len(commands)
        record = self._runs(100.0)
        if self.ended_as["status"] != "ok":
            record = replace(record, status="failed", error=ErrorInfo(type="Killed", message="x"))
        return [
            ProcessResult(0, seconds, document=record.to_dict(), **self.ended_as) for _ in commands
        ]


Searched: TypeAlias = Callable[..., tuple[SearchOutcome, Clocked, RaceBenchmark]]


@pytest.fixture
def searched(tmp_path: Path, runs: Callable[..., RunRecord]) -> Iterator[Searched]:
    """searched(SECONDS, FOLDER): a search whose processes take 4 s alone, and 8 s in turn."""
    held = contextlib.ExitStack()

    def searched(
        seconds: float, folder: str = "results"
    ) -> tuple[SearchOutcome, Clocked, RaceBenchmark]:
        space = SearchSpace(args=args_from_values(parse_flag_texts(FIXED, SPECS)))
        question = SearchSettings(
            space=space,
            as_given=space.make_candidate({}),
            groups={"all": ({}, *CHOICES)},
            policy=Policy(threshold=0.01),
            seconds=seconds,
            command=(),
            timeout=60,
            memory=None,
            seed=1,
            turn_seconds=0.3,
        )
        campaign = Clocked(runs)
        results = ResultsFolder(TUNE, tmp_path / folder, resume=folder != "results")
        held.enter_context(results)
        results.add_session_start()
        bench = RaceBenchmark(results, campaign, question)
        campaign.run_requests(bench.measure_first_process())
        found = campaign.run_requests(race_groups(bench))
        return found, campaign, bench

    with held:
        yield searched


def test_what_the_time_is_not_enough_for_leaves_as_untried(
    searched: Searched,
) -> None:
    found, campaign, bench = searched(267.0)
    (race,) = found.races
    assert race.untried
    # The flags as given are of the first that run: gains are measured from them.
    assert race.candidates[0].name == AS_GIVEN
    first, *later = campaign.started[1:]
    assert f"all-{race.candidates[0].key}-r1" in first
    # The best of those that ran are measured again.
    again = [name for names in later for name in names if name.endswith("-r2")]
    assert len(again) >= 3
    assert {key for blocks in found.rounds for block in blocks for key in block} == {
        one.key for one in race.candidates
    }
    assert campaign.now <= 267.0 - bench.reserved_seconds


def test_the_first_round_begins_with_few_flags_and_with_what_the_user_allowed(
    searched: Searched,
) -> None:
    _, campaign, bench = searched(900.0)
    first = bench.settings.as_given
    named = [
        first._replace(key=key, settings=dict.fromkeys(flags, "1"), changes=changes)
        for key, flags, changes in (
            ("both", "ab", ()),
            ("one", "a", ()),
            ("allowed", "b", ("b",)),
            ("allowed and another", "ab", ("b",)),
        )
    ]
    before = len(campaign.started)
    campaign.run_requests(bench.measure_round("all", 1, [first, *named], 0))
    started = [name for names in campaign.started[before:] for name in names]
    assert started == [
        f"all-{key}-r1" for key in (first.key, "allowed", "one", "allowed and another", "both")
    ]


def test_time_that_is_enough_lets_all_of_them_run(
    searched: Searched,
) -> None:
    found, campaign, _ = searched(900.0)
    (race,) = found.races
    assert race.untried == ()
    started = {name for names in campaign.started for name in names}
    for one in race.candidates:
        assert {f"all-{one.key}-r1", f"all-{one.key}-r2"} <= started


def test_a_process_of_the_proof_is_predicted_by_those_of_the_last_round(
    searched: Searched,
) -> None:
    found, campaign, bench = searched(900.0)
    longer = bench.lengths.extra_proof_seconds
    assert (bench.mean_process_seconds, bench.proof_process_seconds) == (8.0, 8.0 + longer)
    campaign.seconds[True] = 6.0
    campaign.run_requests(bench.measure_round("all", 90, found.races[0].candidates[:3], 0))
    assert bench.proof_process_seconds == 6.0 + longer
    assert 6.0 < bench.mean_process_seconds < 8.0


@pytest.mark.parametrize(
    ("step_seconds", "steps", "longer"),
    [
        (0.05, 40, 1.0),
        (0.25, 10, 0.0),  # ten steps at least
        (0.125, 16, 0.75),
    ],
)
def test_processes_of_the_proof_time_more_steps(
    runs: Callable[..., RunRecord], step_seconds: float, steps: int, longer: float
) -> None:
    record = replace(runs(100.0), step_seconds=(step_seconds,) * 3)
    lengths = ProcessStepCounts((), record)
    assert lengths.step_count_flags(lengths.batch, PROOF_LENGTH)["num_batches"] == steps
    assert lengths.extra_proof_seconds == pytest.approx(longer)
    for flag in ("num_epochs", "max_seconds"):
        fixed = ProcessStepCounts((flag,), record)
        assert fixed.extra_proof_seconds == 0.0
        assert "num_batches" not in fixed.step_count_flags(fixed.batch, PROOF_LENGTH)


def test_where_the_flags_as_given_lead_less_time_is_left_to_the_proof(
    searched: Searched,
) -> None:
    _, _, bench = searched(900.0)
    there_is = {}
    for proof in (True, False):
        bench.needs_proof = proof
        there_is[proof] = bench.affordable_processes
        pairs = MOST_PAIRS if proof else FEWEST_PAIRS
        assert bench.reserved_seconds == pytest.approx(2 * pairs * bench.proof_process_seconds)
    assert there_is[False] > there_is[True]


@pytest.mark.parametrize(
    "ended_as",
    [
        {"status": "killed", "message": "killed", "lost": "killed by SIGKILL"},
        {"status": "timed_out", "message": "late", "lost": "stopped", "timed_out": True},
        {"status": "failed", "message": "no kernel"},
    ],
)
def test_a_process_that_fails_is_not_measured_again(
    searched: Searched, ended_as: dict[str, Any]
) -> None:
    found, campaign, bench = searched(900.0)
    one = found.races[0].candidates[0]
    before = len(campaign.started)
    campaign.ended_as = ended_as
    measured = campaign.run_requests(bench.measure_round("all", 90, [one], 0))
    assert measured.failed == {one.key: ended_as["message"]}
    assert len(campaign.started) == before + 1
    # Nor when the search goes on: other results would lead to other decisions.
    folder = bench.folder.folder
    bench.folder.__exit__()
    with ResultsFolder(TUNE, folder, resume=True) as results:
        again = RaceBenchmark(results, campaign, bench.settings)
        again.lengths = bench.lengths
        assert campaign.run_requests(again.measure_round("all", 90, [one], 0)) == measured
    assert len(campaign.started) == before + 1


@pytest.mark.slow
def test_killed_within_a_group_it_goes_on_with_the_same_blocks(
    searched: Searched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, left = Journal.add, []

    def cut(journal: Journal, event: str, **facts: Any) -> None:
        if event == PROCESS and len(left) < 3:
            left.append(shutil.copytree(tmp_path / "results", tmp_path / f"cut-{len(left)}"))
        add(journal, event, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", cut)
        whole, campaign, _ = searched(900.0)
    names = [name for group in campaign.started for name in group]
    for folder in left:
        done = [path.stem for path in folder.rglob("*.json")]
        found, later, _ = searched(900.0, folder.name)
        assert found.rounds == whole.rounds
        assert sorted([*done, *(name for group in later.started for name in group)]) == sorted(
            names
        )
