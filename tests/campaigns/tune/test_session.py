"""Whole searches with processes that never run, and what is written about a search.

Races by themselves are in test_search.py, the comparison of weights in test_final.py.

Tests cnnbench/campaigns/tune/texts.py, cnnbench/campaigns/tune/search.py, and the outcome of
cnnbench/campaigns/tune/race.py.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import golden
from stand_ins import StandIns, failed, value_of, well
from studies import tuning

from cnnbench.campaigns.launch import JobLayout
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.strategies.weights import WeightDistance
from cnnbench.campaigns.tune import phrases
from cnnbench.campaigns.tune.bench import TUNE, RaceBenchmark, SearchSettings
from cnnbench.campaigns.tune.race import CandidateRace, RaceRound, SearchOutcome
from cnnbench.campaigns.tune.search import document_so_far, run_search
from cnnbench.campaigns.tune.space import Candidate, SearchSpace, Settings
from cnnbench.campaigns.tune.texts import (
    candidates_csv,
    candidates_text,
    command_variables,
    flag_file_text,
    gains_chart,
    processes_csv,
    table_text,
)
from cnnbench.errors import BenchmarkError
from cnnbench.flags import args_from_values, parse_flag_texts
from cnnbench.flags.params import SPECS
from cnnbench.judge.compare import Policy
from cnnbench.records.campaigns import AS_GIVEN, TuneDocument, TuneRow
from cnnbench.records.run import RunRecord

TRANSCRIPTS = Path(__file__).parent / "golden"
GIVEN = {"batch_size": "4", "device": "cpu", "model": "lenet", "num_gpus": "2"}
WORDS = ("--batch_size=4", "--device=cpu", "--model=lenet", "--num_gpus=2")
MODES = tuple({"variable_update": mode} for mode in ("replicated", "mirrored_strategy"))


def stand_ins(
    runs: Callable[..., RunRecord], factors: Mapping[str, float], failing: Sequence[str]
) -> StandIns:
    """Processes of 4 seconds at the speed 100, times the factors of words; some words fail."""

    def end(command: BenchmarkCommand) -> ProcessResult:
        speed = 100.0 * (1 + 0.001 * ((len(campaign.started) - 1) % 3))
        for word, factor in factors.items():
            speed *= factor if word in command.words else 1.0
        mode = value_of(command, "variable_update", "parameter_server")
        record = runs(speed, devices=2, flags={"batch_size": 4, "variable_update": mode})
        if {*failing} & {*command.words}:
            return failed(record, "no kernel", 4.0)
        return well(record, 4.0)

    campaign = StandIns(end)
    return campaign


Search = Callable[..., tuple[TuneDocument, SearchOutcome, StandIns]]


@pytest.fixture
def search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Callable[..., RunRecord]
) -> Search:
    """search({WORD: FACTOR}, SECONDS): a search over three modes, and what it has started."""

    def search(
        factors: Mapping[str, float],
        seconds: float = 600.0,
        *,
        distance: tuple[float, str] = (0.0, ""),
        resume: bool = False,
        failing: Sequence[str] = (),
    ) -> tuple[TuneDocument, SearchOutcome, StandIns]:
        monkeypatch.setattr(
            "cnnbench.campaigns.strategies.weights.weight_distances",
            lambda folders: {"tuned": WeightDistance(*distance)},
        )
        space = SearchSpace(
            args=args_from_values(parse_flag_texts(GIVEN, SPECS)), groups={"modes": ({}, *MODES)}
        )
        settings = SearchSettings(
            space=space,
            first=space.make_candidate({}),
            policy=Policy(),
            seconds=seconds,
            command=("cnnbench", "tune", *WORDS),
            timeout=60,
            seed=1,
        )
        campaign = stand_ins(runs, factors, failing)
        with ResultsFolder(TUNE, tmp_path / "results", resume=resume) as folder:
            found = campaign.run_requests(run_search(RaceBenchmark(folder, campaign, settings)))
        return *found, campaign

    return search


FAST = {"--variable_update=replicated": 1.2, "--variable_update=mirrored_strategy": 0.5}


def test_the_fastest_candidate_is_proven_and_its_weights_are_compared(
    search: Search, tmp_path: Path
) -> None:
    found, outcome, campaign = search(FAST)
    assert (found.verdict, found.leader) == ("faster", "variable_update=replicated")
    best = ("cnnbench", *WORDS, "--variable_update=replicated")
    assert sorted(found.command) == sorted(best)
    assert found.search_command == ("cnnbench", "tune", *WORDS)
    assert sorted(found.given) == sorted(WORDS)
    assert found.gain == pytest.approx(0.2, abs=0.01)
    assert found.low < found.gain < found.high
    assert (found.trains_alike, found.weights_steps, found.weight_distance) == (True, 3, 0.0)
    assert (found.failure, found.enough_minutes, found.budget_seconds) == ("", None, 600.0)
    rows = {row.candidate: row for row in found.rows}
    assert [*rows] == ["variable_update=replicated", AS_GIVEN, "variable_update=mirrored_strategy"]
    assert rows[AS_GIVEN].gain == 0.0
    slow = rows["variable_update=mirrored_strategy"]
    assert (slow.left, slow.gain) == ("slower", pytest.approx(-0.5, abs=0.01))
    assert (slow.low < slow.gain < slow.high, slow.processes >= 2) == (True, True)
    assert slow.images_per_sec == pytest.approx(50.0, rel=0.01)
    # A first process, the races, the pairs, and two that train weights.
    races = sum(row.processes for row in found.rows)
    assert len(campaign.started) == 1 + races + 2 * found.pairs + 2
    assert found.seconds == 4.0 * (1 + races + 2 * found.pairs)
    lines = (tmp_path / "results" / "race.csv").read_text().splitlines()
    assert lines == processes_csv(outcome).splitlines()
    assert len(lines) == 1 + races
    stored = (tmp_path / "results" / "tune.json").read_text()
    assert TuneDocument.from_json(stored) == found


def test_a_search_that_goes_on_measures_nothing_again(search: Search) -> None:
    first, *_ = search(FAST)
    again, _, campaign = search(FAST, resume=True)
    assert campaign.started == []
    assert again == first


@pytest.mark.parametrize(
    ("factor", "last_round", "verdict"), [(1.2, 1, None), (1.2, 2, "open"), (0.5, 2, "none")]
)
def test_an_interrupted_search_knows_what_the_races_have_measured(
    search: Search,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    last_round: int,
    verdict: str | None,
) -> None:
    known: list[TuneDocument | None] = []
    measure = RaceBenchmark.measure_round

    def interrupted(bench: RaceBenchmark, group: str, number: int, *others: Any) -> Any:
        if number == last_round:
            known.append(document_so_far(bench))
            raise KeyboardInterrupt
        return measure(bench, group, number, *others)

    monkeypatch.setattr(RaceBenchmark, "measure_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search({**FAST, "--variable_update=replicated": factor})
    (found,) = known
    assert (found and found.verdict) == verdict
    if found is not None:
        assert found.reason in " ".join(table_text(found).split())
        assert (found.pairs, sum(row.processes for row in found.rows)) == (0, 3)
        assert found.leader == (AS_GIVEN if factor < 1 else "variable_update=replicated")
        assert sorted(found.command) == sorted(("cnnbench", *WORDS))


def test_a_search_that_is_interrupted_before_the_weights_says_so(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[TuneDocument | None] = []

    def interrupted(bench: RaceBenchmark, *_: Any) -> Any:
        known.append(document_so_far(bench))
        raise KeyboardInterrupt

    monkeypatch.setattr("cnnbench.campaigns.tune.search.compare_weights", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search(FAST)
    (found,) = known
    assert found is not None
    assert (found.verdict, found.trains_alike) == ("faster", None)
    assert found.weights == phrases.WEIGHTS_INTERRUPTED
    assert found.weights[1:] in " ".join(table_text(found).split())


def test_candidates_that_are_not_faster_leave_the_flags_as_given(search: Search) -> None:
    found, _, campaign = search({"--variable_update=mirrored_strategy": 0.5})
    assert (found.verdict, found.leader, found.pairs) == ("none", AS_GIVEN, 0)
    assert sorted(found.command) == sorted(("cnnbench", *WORDS))
    assert (found.weights, found.trains_alike) == ("", None)
    assert not any("final" in name or "weights" in name for name in campaign.names)


def test_a_leader_that_trains_other_weights_is_not_proposed(search: Search) -> None:
    found, *_ = search(FAST, distance=(0.5, "w"))
    assert (found.verdict, found.trains_alike) == ("faster", False)
    assert sorted(found.command) == sorted(("cnnbench", *WORDS))
    assert (found.weight_distance, found.weight_variable) == (0.5, "w")


def test_too_little_time_is_said_with_what_is_enough(search: Search) -> None:
    found, outcome, campaign = search(FAST, 10.0)
    assert (found.verdict, found.pairs, found.leader) == ("open", 0, AS_GIVEN)
    assert outcome.tried_no_candidate
    assert len(campaign.started) == 1
    assert found.enough_minutes is not None
    assert found.reason.endswith(f"--minutes={found.enough_minutes} would be enough")
    assert {row.left for row in found.rows} == {"", "untried"}
    # With that time there is an answer, and what was measured stays.
    found, _, later = search(FAST, 60.0 * found.enough_minutes, resume=True)
    assert found.verdict == "faster"
    assert not {*campaign.names} & {*later.names}


def test_time_for_races_but_not_for_a_proof(search: Search) -> None:
    found, _, campaign = search(FAST, 60.0)
    assert (found.verdict, found.pairs, found.leader) == ("open", 0, "variable_update=replicated")
    assert "6 pairs" in found.reason
    assert sorted(found.command) == sorted(("cnnbench", *WORDS))
    assert len(campaign.started) > 1


def test_a_candidate_that_fails_leaves(search: Search) -> None:
    found, *_ = search(FAST, failing=["--variable_update=mirrored_strategy"])
    (row,) = (row for row in found.rows if row.left == "failed")
    assert (row.candidate, row.reason) == ("variable_update=mirrored_strategy", "no kernel")
    assert (row.processes, row.images_per_sec, row.gain) == (0, None, None)
    assert found.rows[-1] == row
    assert found.verdict == "faster"


def test_flags_as_given_that_fail_end_the_search(search: Search) -> None:
    with pytest.raises(BenchmarkError, match="no kernel"):
        search(FAST, failing=["--model=lenet"])


def test_the_table_and_the_flag_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    row = tuning().rows[0]
    named = [
        replace(row, candidate=f"xla=true {number}", left="behind", group="a", after=2, reason="r")
        for number in range(8)
    ]
    failed = replace(row, candidate="b=1", left="failed", group="b", after=1, reason="no kernel")
    texts = [
        table_text(one) + flag_file_text(one)
        for one in (
            tuning(weights="weights are the same after 3 steps, all bits"),
            tuning(rows=(*tuning().rows, *named, failed), refused=()),
            tuning(verdict="open", reason="p = 0.1", weights="", pairs=6, scatter=None),
            tuning(verdict="open", leader=AS_GIVEN, reason="no time", pairs=0),
            tuning(verdict="none", leader=AS_GIVEN, pairs=0),
            tuning(verdict="same", pairs=6),
        )
    ]
    golden(TRANSCRIPTS / "tune.txt", "\n".join(texts))


def test_the_flag_file_of_a_job_has_the_flags_of_its_processes() -> None:
    command = ("env", "LD_PRELOAD=a b.so", "cnnbench", "launch", "--workers=2", "--", "--xla=true")
    found = tuning(command=command)
    head, variable, *flags = flag_file_text(found).splitlines()
    assert head.startswith("# cnnbench tune: ")
    assert variable.startswith("#")
    assert variable.endswith("'LD_PRELOAD=a b.so'")
    assert flags == ["--xla=true"]
    assert command_variables(found) == ("'LD_PRELOAD=a b.so'",)
    assert command_variables(tuning()) == ()


def test_the_table_as_csv_has_all_digits() -> None:
    row = replace(tuning().rows[0], gain=1 / 3, variables={"A": "b c"}, changes=("x", "y"))
    (line,) = csv.DictReader(io.StringIO(candidates_csv(tuning(rows=(row,)))))
    assert [*line] == list(TuneRow.__dataclass_fields__)
    assert float(line["gain"]) == 1 / 3
    assert (line["variables"], line["changes"]) == ("'A=b c'", "x y")
    assert line["flags"] == f"'{' '.join(row.flags)}"  # no spreadsheet takes it for a formula


def candidate(name: str) -> Candidate:
    return Candidate(name, {}, {}, name)


def outcome_of(*rounds: Mapping[str, float]) -> SearchOutcome:
    """A race of candidates, by their speeds; the first name is that of the flags as given."""
    names = list(dict.fromkeys(name for one in rounds for name in one))
    race = CandidateRace("g", [candidate(name) for name in names])
    for one in rounds:
        race.add_round(RaceRound([one]))
        race.eliminate_after_round(10**6)
    return SearchOutcome((race,), race.leader)


def test_speeds_of_processes_as_csv() -> None:
    text = processes_csv(outcome_of({"a": 100.0, "b": 120.0}, {"a": 101.0, "b": 119.0}))
    head, *lines = csv.reader(io.StringIO(text))
    assert head == ["candidate", "group", "round", "images_per_sec"]
    assert [line[:3] for line in lines] == [[n, "g", r] for r in "12" for n in "ab"]
    assert [float(line[3]) for line in lines] == pytest.approx([100.0, 120.0, 101.0, 119.0])


def test_gains_are_drawn_after_each_round_the_leader_first() -> None:
    made = outcome_of({"a": 100.0, "b": 90.0, "c": 120.0}, {"a": 100.0, "b": 90.0, "c": 120.0})
    chart = gains_chart(made, candidate("a"), "lenet")
    assert [series.name for series in chart.series] == ["c", "a", "b"]
    points = {series.name: series.points for series in chart.series}
    assert points["c"] == ((1.0, pytest.approx(0.2)), (2.0, pytest.approx(0.2)))
    assert points["b"][0] == (1.0, pytest.approx(-0.1))
    assert chart.x.ticks == (1.0, 2.0)
    many = outcome_of({chr(97 + n): 100.0 + n for n in range(9)})
    assert len(gains_chart(many, candidate("a"), "lenet").series) == 6


def test_candidates_are_listed_by_group_with_what_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    groups: dict[str, tuple[Settings, ...]] = {
        "modes": ({}, *MODES, {"variable_update": "independent"}),
        "precision": ({}, {"precision": "bf16"}),
    }
    args = args_from_values(parse_flag_texts(GIVEN, SPECS))
    space = SearchSpace(args=args, groups=groups, allowed=frozenset({"precision"}))
    text = candidates_text(space, space.make_candidate({}))
    golden(TRANSCRIPTS / "tune_list.txt", text)


def test_a_job_is_started_by_launch() -> None:
    layout = JobLayout(workers=2)
    args = args_from_values(parse_flag_texts({**GIVEN, "num_gpus": "1"}, SPECS))
    space = SearchSpace(args=args, layout=layout)
    assert space.assumed_mode_flags == {"variable_update": "collective_all_reduce"}
    assert space.initial_mode == "collective_all_reduce"
    with_ps = replace(space, layout=JobLayout(workers=2, ps=1))
    assert (with_ps.assumed_mode_flags, with_ps.initial_mode) == ({}, "parameter_server")


@pytest.mark.parametrize(("late", "none"), [("bc", True), ("c", False), ("", False)])
def test_a_search_that_tried_one_candidate_tried_some(late: str, none: bool) -> None:
    race = CandidateRace("g", [candidate(name) for name in "abc"])
    speeds = dict.fromkeys((name for name in "abc" if name not in late), 100.0)
    race.add_round(RaceRound([speeds], late=[*late]))
    assert SearchOutcome((race,), race.leader).tried_no_candidate is none
