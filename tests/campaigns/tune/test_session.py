"""Whole searches with processes that never run, and what is written about a search.

Races by themselves are in test_search.py.

Tests cnnbench/campaigns/tune/texts.py, cnnbench/campaigns/tune/search.py,
cnnbench/campaigns/tune/phrases.py, and the outcome of cnnbench/campaigns/tune/race.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden import golden
from stand_ins import StandIns, failed, value_of, well
from studies import tuning

from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.tune.bench import TUNE, RaceBenchmark, SearchSettings
from cnnbench.campaigns.tune.race import CandidateRace, RaceRound, SearchOutcome
from cnnbench.campaigns.tune.search import document_so_far, minutes_for_an_answer, run_search
from cnnbench.campaigns.tune.space import Candidate, SearchSpace, Settings
from cnnbench.campaigns.tune.texts import (
    candidates_text,
    command_variables,
    flag_file_text,
    table_text,
)
from cnnbench.errors import BenchmarkError
from cnnbench.flags import args_from_values, parse_flag_texts
from cnnbench.flags.params import SPECS
from cnnbench.judge.compare import Policy
from cnnbench.records.campaigns import AS_GIVEN, TuneDocument
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


Search = Callable[..., tuple[TuneDocument, StandIns]]


@pytest.fixture
def search(tmp_path: Path, runs: Callable[..., RunRecord]) -> Search:
    """search({WORD: FACTOR}, SECONDS): a search over three modes, and what it has started."""

    def search(
        factors: Mapping[str, float],
        seconds: float = 600.0,
        *,
        folder: str = "results",
        resume: bool = False,
        failing: Sequence[str] = (),
    ) -> tuple[TuneDocument, StandIns]:
        space = SearchSpace(args=args_from_values(parse_flag_texts(GIVEN, SPECS)))
        settings = SearchSettings(
            space=space,
            as_given=space.make_candidate({}),
            groups={"modes": ({}, *MODES)},
            policy=Policy(),
            seconds=seconds,
            command=("cnnbench", "tune", *WORDS),
            timeout=60,
            memory=None,
            seed=1,
            turn_seconds=0.0,
        )
        campaign = stand_ins(runs, factors, failing)
        with ResultsFolder(TUNE, tmp_path / folder, resume=resume) as results:
            bench = RaceBenchmark(results, campaign, settings)
            return campaign.run_requests(run_search(bench)), campaign

    return search


FAST = {"--variable_update=replicated": 1.2, "--variable_update=mirrored_strategy": 0.5}


def test_the_fastest_candidate_is_proven(search: Search, tmp_path: Path) -> None:
    found, campaign = search(FAST)
    assert (found.verdict, found.leader) == ("faster", "variable_update=replicated")
    best = ("cnnbench", *WORDS, "--variable_update=replicated")
    assert sorted(found.command) == sorted(best)
    assert found.search_command == ("cnnbench", "tune", *WORDS)
    assert sorted(found.given) == sorted(WORDS)
    assert found.gain == pytest.approx(0.2, abs=0.01)
    assert found.low < found.gain < found.high
    assert (found.failure, found.enough_minutes, found.budget_seconds) == ("", None, 600.0)
    rows = {row.candidate: row for row in found.rows}
    assert [*rows] == ["variable_update=replicated", AS_GIVEN, "variable_update=mirrored_strategy"]
    assert rows[AS_GIVEN].gain == 0.0
    slow = rows["variable_update=mirrored_strategy"]
    assert (slow.left, slow.gain) == ("slower", pytest.approx(-0.5, abs=0.01))
    assert (slow.low < slow.gain < slow.high, slow.processes >= 2) == (True, True)
    assert slow.images_per_sec == pytest.approx(50.0, rel=0.01)
    # A first process, the races, and the pairs.
    races = sum(row.processes for row in found.rows)
    assert len(campaign.started) == 1 + races + 2 * found.pairs
    assert found.seconds == 4.0 * len(campaign.started)
    stored = (tmp_path / "results" / "tune.json").read_text()
    assert TuneDocument.from_json(stored) == found


def test_a_search_that_goes_on_measures_nothing_again(search: Search) -> None:
    first, _ = search(FAST)
    again, campaign = search(FAST, resume=True)
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


def test_candidates_that_are_not_faster_leave_the_flags_as_given(search: Search) -> None:
    found, campaign = search({"--variable_update=mirrored_strategy": 0.5})
    assert (found.verdict, found.leader, found.pairs) == ("none", AS_GIVEN, 0)
    assert sorted(found.command) == sorted(("cnnbench", *WORDS))
    assert len(campaign.started) == 1 + sum(row.processes for row in found.rows)


def test_too_little_time_is_said_with_what_is_enough(search: Search) -> None:
    found, campaign = search(FAST, 10.0)
    assert (found.verdict, found.pairs, found.leader) == ("open", 0, AS_GIVEN)
    assert len(campaign.started) == 1
    assert found.enough_minutes is not None
    assert found.reason.endswith(f"--minutes={found.enough_minutes} would be enough")
    assert {row.left for row in found.rows} == {"", "untried"}
    again, _ = search(FAST, 60.0 * found.enough_minutes, folder="longer")
    assert again.verdict == "faster"


def test_time_for_races_but_not_for_a_proof(search: Search) -> None:
    found, campaign = search(FAST, 60.0)
    assert (found.verdict, found.pairs, found.leader) == ("open", 0, "variable_update=replicated")
    assert "6 pairs" in found.reason
    assert sorted(found.command) == sorted(("cnnbench", *WORDS))
    assert len(campaign.started) > 1


def test_a_candidate_that_fails_leaves(search: Search) -> None:
    found, _ = search(FAST, failing=["--variable_update=mirrored_strategy"])
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
            tuning(),
            tuning(leader="precision=bf16"),
            tuning(rows=(*tuning().rows, *named, failed), refused=()),
            tuning(verdict="open", reason="p = 0.1", pairs=6, scatter=None),
            tuning(verdict="open", leader=AS_GIVEN, reason="no time", pairs=0),
            tuning(verdict="none", leader=AS_GIVEN, pairs=0),
            tuning(verdict="same", pairs=6),
        )
    ]
    golden(TRANSCRIPTS / "tune.txt", "\n".join(texts))


def test_the_flag_file_names_environment_variables_in_comments() -> None:
    found = tuning(command=("env", "LD_PRELOAD=a b.so", "cnnbench", "--xla=true"))
    head, variable, *flags = flag_file_text(found).splitlines()
    assert head.startswith("# cnnbench tune: ")
    assert variable.startswith("#")
    assert variable.endswith("'LD_PRELOAD=a b.so'")
    assert flags == ["--xla=true"]
    assert command_variables(found) == ("'LD_PRELOAD=a b.so'",)
    assert command_variables(tuning()) == ()


def candidate(name: str) -> Candidate:
    return Candidate(name, {}, {}, name)


def test_candidates_are_listed_by_group_with_what_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    groups: dict[str, tuple[Settings, ...]] = {
        "modes": ({}, *MODES, {"staged_vars": "true"}),
        "precision": ({}, {"precision": "bf16"}),
    }
    args = args_from_values(parse_flag_texts(GIVEN, SPECS))
    space = SearchSpace(args=args, allowed=frozenset({"precision"}))
    text = candidates_text(space, space.make_candidate({}), groups)
    golden(TRANSCRIPTS / "tune_list.txt", text)


@pytest.mark.parametrize(("late", "none"), [("bc", True), ("c", False), ("", False)])
def test_a_search_that_tried_one_candidate_tried_some(late: str, none: bool) -> None:
    race = CandidateRace("g", [candidate(name) for name in "abc"])
    speeds = dict.fromkeys((name for name in "abc" if name not in late), 100.0)
    race.add_round(RaceRound([speeds], late=[*late]))
    assert SearchOutcome((race,)).tried_no_candidate is none


@pytest.mark.parametrize(
    ("proof", "asked"),
    [
        (("open", 0, True), (6, 6)),
        (("open", 8, True), (6, 8)),
        (("faster", 8, True), (6, 0)),
        (("open", 8, False), None),  # pairs scatter so much that more will not help
    ],
)
def test_minutes_are_proposed_where_they_may_change_the_answer(
    proof: tuple[str, int, bool], asked: tuple[int, int] | None
) -> None:
    untried = [SimpleNamespace(key=key) for key in "abc"]
    races: Any = SimpleNamespace(races=[SimpleNamespace(untried=untried)], eliminated={})
    bench: Any = SimpleNamespace(estimate_search_minutes=lambda *asked: asked)
    assert minutes_for_an_answer(bench, races, *proof) == asked
