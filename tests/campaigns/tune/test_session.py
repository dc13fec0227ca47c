"""Searches with processes that only write records, and weights of two that train."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.launch.tasks import JobLayout
from cnnbench.campaigns.processes import campaign, child
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.processes.results_dir import Journal
from cnnbench.campaigns.strategies.weights import WeightDistance
from cnnbench.campaigns.tune import final, race, session
from cnnbench.campaigns.tune.bench import BenchSetting, RaceBench
from cnnbench.campaigns.tune.dimensions import Settings
from cnnbench.campaigns.tune.final import Weights
from cnnbench.campaigns.tune.results import TuneFolder, seed_of
from cnnbench.campaigns.tune.search import SearchOutcome
from cnnbench.campaigns.tune.session import TuneQuestion, tune
from cnnbench.campaigns.tune.space import (
    Candidate,
    CandidateMaker,
    FlagGroup,
    Maker,
    Space,
)
from cnnbench.campaigns.tune.text import table
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.judge.compare import Policy, load_records
from cnnbench.records.tune import AS_GIVEN, TuneDocument

FIXED = {"model": "lenet", "device": "cpu", "num_gpus": "2", "batch_size": "4"}
MODES = ("replicated", "mirrored_strategy", "central_storage_strategy")
MODE_FLAGS = ({}, *({"variable_update": mode} for mode in MODES))
GROUPS = (FlagGroup("modes", MODE_FLAGS), FlagGroup("threads", ({}, {"num_intra_threads": "1"})))
FAST = {"--variable_update=replicated": 1.2, "--variable_update=central_storage_strategy": 0.5}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(
    tmp_path: Path, fake_python: str, quick_processes: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., TuneDocument]:
    """Runs a search whose processes have speeds by their flags.

    They are forked, one after the other, and taken to last equally long; with two lanes they are
    started, and step in turn.
    """
    monkeypatch.setattr(final.Final, "weights", lambda self, leader: Weights("not now"))
    monkeypatch.setattr(race, "MOST_ROUNDS", 4)

    def run(
        seconds: float = 120.0, *, resume: bool = False, lanes: int = 1, **say: object
    ) -> TuneDocument:
        if lanes > 1:
            monkeypatch.setattr(campaign, "execute", child.execute)
        else:
            monkeypatch.setattr(RaceBench, "process_seconds", 0.1)
        said = {"parent": os.getpid(), "trace": str(tmp_path / "trace"), **say}
        monkeypatch.setenv("FAKE", json.dumps(said))
        space = Space(fixed=FIXED, groups=GROUPS)
        make = CandidateMaker(space)
        question = TuneQuestion(
            space=space,
            first=make({}),
            make=make,
            policy=Policy(threshold=0.01),
            seconds=seconds,
            command=("cnnbench", "tune"),
        )
        asked = {"flags": FIXED, "seed": 3}
        with TuneFolder(str(tmp_path / "results"), asked, resume=resume) as folder:
            processes = Campaign(Reporter(io.StringIO()), grace=1.0)
            setting = BenchSetting(seed=3, timeout=60.0, lanes=lanes, python=fake_python)
            found, *_ = tune(question, folder, processes, setting)
        return found

    return run


def events(folder: Path) -> list[dict[str, Any]]:
    """What a search has noted."""
    return list(Journal(folder / "results" / "journal.jsonl").read())


def test_the_fastest_is_found_and_proven(
    run: Callable[..., TuneDocument], tmp_path: Path, holds: Callable[..., None]
) -> None:
    found = run(by_flag=FAST, lanes=2)
    assert found.verdict == "faster"
    assert found.leader == "variable_update=replicated"
    given = [f"--{name}={text}" for name, text in FIXED.items()]
    assert found.command == ("cnnbench", *given, "--variable_update=replicated")
    assert found.gain == pytest.approx(0.2, abs=0.01)
    assert found.low < found.gain < found.high
    assert found.pairs == 8  # the first interim analysis
    rows = {row.candidate: row for row in found.rows}
    assert list(rows)[-1] == "variable_update=central_storage_strategy"
    assert rows["variable_update=central_storage_strategy"].left == "slower"
    assert rows["variable_update=central_storage_strategy"].gain == pytest.approx(-0.5, abs=0.02)
    assert rows[AS_GIVEN].gain == 0.0
    holds("tune", json.loads(found.to_json()))
    assert TuneDocument.from_json(found.to_json()) == found
    folder = tmp_path / "results"
    races = load_records([folder / "race"]).records
    assert len(races) == sum(row.processes for row in found.rows) + 1  # the first process
    assert len(load_records([folder / "final"]).records) == 16
    table = (folder / "race.csv").read_text().splitlines()
    assert table[0] == "candidate,group,round,images_per_sec"
    assert len(table) == len(races)
    events = list(Journal(folder / "journal.jsonl").read())
    holds("journal", *events)
    assert events[-1]["document"] == json.loads(found.to_json())
    assert seed_of(str(folder)) == 3


def test_a_candidate_that_fails_leaves_and_the_flags_as_given_must_not(
    run: Callable[..., TuneDocument], tmp_path: Path
) -> None:
    first, *modes = (CandidateMaker(Space(fixed=FIXED, groups=GROUPS))(one) for one in MODE_FLAGS)
    name = f"modes-{modes[-1].key}-r1"
    found = run(by_flag=FAST, fail=[name], message="no kernel")
    row = next(row for row in found.rows if "central" in row.candidate)
    assert (row.left, row.reason, row.processes) == ("failed", "no kernel", 0)
    assert found.verdict == "faster"
    os.rename(tmp_path / "results", tmp_path / "before")
    with pytest.raises(BenchmarkError, match="the flags as they are given fail: no kernel"):
        run(by_flag=FAST, fail=[f"first-{first.key}"], message="no kernel")


def test_an_interrupted_search_goes_on_where_it_was(
    run: Callable[..., TuneDocument], tmp_path: Path
) -> None:
    whole = run(by_flag=FAST)
    order = (tmp_path / "trace").read_text().split()
    os.rename(tmp_path / "results", tmp_path / "whole")
    (tmp_path / "trace").unlink()
    (tmp_path / "once").touch()
    at = order[4]  # in the first round
    with pytest.raises(KeyboardInterrupt):
        run(by_flag=FAST, interrupt=[at], once=str(tmp_path / "once"))
    assert (tmp_path / "trace").read_text().split() == order[:5]
    with pytest.raises(FlagError, match="go on with what is there by --resume, or name another"):
        run()
    journal = tmp_path / "results" / "journal.jsonl"
    began = "2026-01-02T03:04:05+00:00"
    first = events(tmp_path)[0]["time"]
    journal.write_text(journal.read_text().replace(first, began, 1))
    resumed = run(by_flag=FAST, resume=True)
    assert resumed.started_at == began
    found = (tmp_path / "trace").read_text().split()
    assert found.count(at) == 2
    assert found[:5] == order[:5]
    assert found[5:9] == order[4:8]  # what was done is not measured again
    assert (resumed.verdict, resumed.leader) == (whole.verdict, whole.leader)
    again = run(by_flag=FAST, resume=True)
    assert (tmp_path / "trace").read_text().split() == found  # all is there
    assert again.rows == resumed.rows
    assert (again.gain, again.pairs) == (resumed.gain, resumed.pairs)


def test_a_search_with_too_little_time_says_so(run: Callable[..., TuneDocument]) -> None:
    found = run(seconds=1.0, by_flag=FAST, wait=0.1)
    assert found.verdict in ("open", "none")
    assert found.command[1:] == found.given
    if found.verdict == "open":
        assert "--minutes=1 would be enough" in found.reason
    assert any(row.left == "untried" for row in found.rows)


def test_a_search_that_has_no_time_for_any_candidate_is_open(
    run: Callable[..., TuneDocument],
) -> None:
    found = run(seconds=0.01, by_flag=FAST)
    assert (found.verdict, found.leader, found.pairs) == ("open", "as given", 0)
    assert found.reason == "no time for any candidate; --minutes=1 would be enough"
    assert f"These are the flags as given: {found.reason}." in table(found)


def test_more_time_lets_a_search_go_on_where_its_time_was_up(
    run: Callable[..., TuneDocument], tmp_path: Path
) -> None:
    short = run(seconds=0.4, by_flag=FAST)
    assert any(row.left == "untried" for row in short.rows)
    assert short.verdict in ("open", "none")
    before = (tmp_path / "trace").read_text().split()
    assert run(seconds=0.4, by_flag=FAST, resume=True).rows == short.rows
    assert (tmp_path / "trace").read_text().split() == before  # no more time, nothing more
    found = run(seconds=120.0, by_flag=FAST, resume=True)
    assert (found.verdict, found.leader) == ("faster", "variable_update=replicated")
    assert not any(row.left == "untried" for row in found.rows)
    assert found.budget_seconds == 120.0
    done = (tmp_path / "trace").read_text().split()
    assert done[: len(before)] == before
    assert len(set(done)) == len(done) > len(before)  # what was measured stays
    os.rename(tmp_path / "results", tmp_path / "before")
    (tmp_path / "trace").unlink()
    whole = run(seconds=120.0, by_flag=FAST)
    assert set((tmp_path / "trace").read_text().split()) == set(done)  # the same way
    assert (whole.leader, whole.command) == (found.leader, found.command)


def test_a_final_that_had_time_for_few_pairs_gets_more_of_the_same_level(
    run: Callable[..., TuneDocument], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RaceBench, "final_seconds", 7.0)
    say = {"by_flag": {"--variable_update=replicated": 1.03}, "scatter": 0.1}
    short = run(**say)
    assert (short.verdict, short.pairs) == ("open", 8)
    found = run(seconds=300.0, resume=True, **say)
    assert found.pairs > 8
    plans = [event["plan"] for event in events(tmp_path) if event["event"] == "final"]
    assert [(plan["pairs"], plan["number"]) for plan in plans] == [(8, 1), (16, 1)]
    assert plans[1]["alpha"] == plans[0]["alpha"] == 0.04
    journal = Journal(tmp_path / "results" / "final" / "journal.jsonl").read()
    looks = {one["pairs"]: one["alpha"] for one in journal if one["event"] == "look"}
    assert set(looks) > {8}
    assert sum(looks.values()) < 0.04
    done = (tmp_path / "trace").read_text().split()
    assert len(set(done)) == len(done)


def test_a_leader_that_is_proven_stays_until_another_one_is(
    run: Callable[..., TuneDocument], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven = run(by_flag=FAST)
    searched = session.search

    def another(*args: Any) -> SearchOutcome:
        return replace(searched(*args), leader=args[2]({"variable_update": "mirrored_strategy"}))

    monkeypatch.setattr(session, "search", another)
    found = run(seconds=600.0, by_flag=FAST, resume=True)
    assert list((tmp_path / "results" / "final-2").glob("a/*.json"))
    assert (found.verdict, found.leader) == ("faster", proven.leader)
    assert (found.command, found.gain) == (proven.command, proven.gain)
    # Processes of both searches count.
    journals = (tmp_path / "results").rglob("journal.jsonl")
    events = [event for path in journals for event in Journal(path).read()]
    processes = [event["seconds"] for event in events if event["event"] == "process"]
    assert found.seconds > sum(processes) > 0
    folder = TuneFolder(str(tmp_path / "results"), {"flags": FIXED, "seed": 3}, resume=True)
    with folder:
        assert folder.seconds_of_pairs > 0
        numbers = {event["plan"]["number"] for event in folder.events("final")}
    assert numbers == {1, 2}


def test_another_search_is_refused(run: Callable[..., TuneDocument], tmp_path: Path) -> None:
    with TuneFolder(str(tmp_path / "results"), {"flags": {}, "seed": 3}, resume=False):
        pass
    with pytest.raises(
        FlagError, match="holds a search that differs in flags; name another folder"
    ):
        run(resume=True)


def final_of(
    space: Space, make: Maker, folder: TuneFolder, by: type[Campaign], **setting: Any
) -> final.Final:
    """The end of a search of which only the weights are asked."""
    return final.Final(
        space=space,
        first=make({}),
        make=make,
        folder=folder,
        campaign=by(Reporter(io.StringIO())),
        budget=None,
        bench=None,
        setting=BenchSetting(seed=1, timeout=120.0, **setting),
        policy=Policy(),
    )


def test_weights_of_the_leader_are_compared_by_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "execute", forked.execute)
    fixed = {"model": "trivial", "device": "cpu", "num_gpus": "2", "batch_size": "2"}
    space = Space(fixed=fixed, groups=(), allowed=frozenset({"consistency"}))
    make = CandidateMaker(space)
    with TuneFolder(str(tmp_path / "results"), {}, resume=False) as folder:
        end = final_of(space, make, folder, Campaign)
        relaxed = end.weights(
            make({"variable_consistency": "relaxed", "variable_update": "replicated"})
        )
        assert relaxed == Weights("it trains differently: consistency")
        found = end.weights(make({"variable_update": "replicated"}))
    assert found.alike is True
    assert found.text.startswith("weights are the same after 3 steps, ")
    assert not (tmp_path / "results" / "checkpoints").exists()


class Standing(Campaign):
    """Runs nothing, and keeps the words of what it was to run."""

    trained: list[list[str]]

    def run(self, commands: Any, timeout: float, turn_seconds: float = 0.0) -> list[Ended]:
        self.trained.extend(list(one.words) for one in commands)
        return [Ended(0, 0.0, status="ok") for _ in commands]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of processes that were to train weights, which are the same."""
    words: list[list[str]] = []
    monkeypatch.setattr(Standing, "trained", words, raising=False)
    same = {"tuned": WeightDistance(0.0)}
    monkeypatch.setattr("cnnbench.campaigns.strategies.weights.between", lambda folders: same)
    return words


def test_weights_are_compared_with_the_same_kernels(
    tmp_path: Path, trained: list[list[str]]
) -> None:
    """Others round otherwise: gradients of batch norm's shifts differ by per cents then."""
    space = Space(fixed={"model": "trivial", "device": "cpu", "num_gpus": "2"}, groups=())
    make = CandidateMaker(space)
    with TuneFolder(str(tmp_path / "results"), {}, resume=False) as folder:
        end = final_of(space, make, folder, Standing)
        threads = {"num_intra_threads": "1"}
        only = "weights are not compared: only how operations compute differs"
        assert end.weights(make(threads)) == Weights(only)
        assert trained == []
        found = end.weights(make({**threads, "variable_update": "replicated"}))
        text = "weights are the same after 3 steps with num_intra_threads=1, all bits"
        assert found == Weights(text, True)
        both = ["--num_intra_threads=1" in words for words in trained]
        modes = ["--variable_update=replicated" in words for words in trained]
        assert (both, modes) == ([True, True], [False, True])


def test_kernels_that_the_flags_as_given_cannot_have(
    tmp_path: Path, trained: list[list[str]]
) -> None:
    space = Space(fixed={"model": "trivial", "device": "cpu", "num_gpus": "2"}, groups=())
    make = CandidateMaker(space)

    def refusing(settings: Settings) -> Candidate:
        if set(settings) == {"xla_compile"}:
            raise UsageError("not here")
        return make(settings)

    with TuneFolder(str(tmp_path / "results"), {}, resume=False) as folder:
        end = final_of(space, refusing, folder, Standing)
        found = end.weights(make({"xla_compile": "true", "variable_update": "replicated"}))
    reason = "the flags as given cannot run with xla_compile=true: not here"
    assert found == Weights(f"weights are not compared: {reason}")
    assert trained == []


def test_weights_of_jobs_are_trained_by_jobs(tmp_path: Path, trained: list[list[str]]) -> None:
    fixed = {"model": "trivial", "device": "cpu", "variable_update": "parameter_server"}
    layout = JobLayout(workers=2, ps=1)
    space = Space(fixed=fixed, groups=())
    make = CandidateMaker(space, layout=layout)
    with TuneFolder(str(tmp_path / "results"), {}, resume=False) as folder:

        def compared(maker: CandidateMaker) -> Weights:
            end = final_of(space, maker, folder, Standing, layout=layout)
            return end.weights(maker({"local_parameter_device": "cpu"}))

        assert compared(make) == Weights("weights are the same after 3 steps, all bits", True)
        assert len(trained) == 2
        for words in trained:
            at = words.index("launch")
            assert words[at : at + 4] == ["launch", "--workers=2", "--ps=1", "--"]
            assert any(word.startswith("--train_dir=") for word in words)
        apart = replace(space, fixed={**fixed, "cross_replica_sync": "false"})
        found = compared(CandidateMaker(apart, layout=layout))
    assert found == Weights("weights are not compared: workers train asynchronously")


@pytest.mark.parametrize(
    ("proof", "asked"),
    [
        ({"verdict": "open", "more": True}, (6, 6)),
        ({"verdict": "open", "more": True, "pairs": 8}, (6, 8)),
        ({"verdict": "faster", "pairs": 8}, (6, 0)),
        ({"verdict": "open", "pairs": 8}, None),  # pairs scatter so much that more will not help
        ({"verdict": "open", "more": True, "failure": "no good"}, None),
    ],
)
def test_minutes_are_proposed_where_they_may_change_the_answer(
    proof: dict[str, Any], asked: tuple[int, int] | None
) -> None:
    untried = [SimpleNamespace(key=key) for key in "abc"]
    races: Any = SimpleNamespace(races=[SimpleNamespace(untried=untried)], leavers={})
    bench: Any = SimpleNamespace(enough_minutes=lambda *asked: asked)
    assert session._enough(races, final.Proof(**proof), bench) == asked
