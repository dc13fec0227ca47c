"""Weights of the leader and of the flags as given, and the minutes that a search asks for.

Tests cnnbench/campaigns/tune/search.py and cnnbench/campaigns/tune/phrases.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins import StandIns, well
from studies import tuning

from cnnbench.campaigns.launch import JobLayout
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.strategies.weights import WeightDistance
from cnnbench.campaigns.tune.bench import TUNE, RaceBenchmark, SearchSettings
from cnnbench.campaigns.tune.search import compare_weights, minutes_for_an_answer
from cnnbench.campaigns.tune.space import Candidate, SearchSpace, Settings
from cnnbench.errors import UsageError
from cnnbench.flags import ParsedArgs, parse_flag_texts
from cnnbench.flags.params import SPECS
from cnnbench.judge.compare import Policy
from cnnbench.records.run import RunRecord

TINY = {"model": "trivial", "device": "cpu"}
TOWERS = {**TINY, "num_gpus": "2", "batch_size": "2"}


@pytest.fixture
def weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Callable[..., RunRecord]
) -> Callable[..., tuple[tuple[str, bool | None], list[str]]]:
    """weights({FLAG: TEXT}, FIXED, ...): of a leader that adds flags to the fixed ones.

    Also the command lines of the processes that would train them.
    """

    def weights(
        leader: Settings,
        fixed: Settings = TOWERS,
        layout: JobLayout | None = None,
        refused: str = "",
        distance: tuple[float, str] = (0.0, ""),
    ) -> tuple[tuple[str, bool | None], list[str]]:
        campaign = StandIns(lambda command: well(runs(100.0), 0.0))

        class Refusing(SearchSpace):
            def make_candidate(self, settings: Settings) -> Candidate:
                if set(settings) == {refused}:
                    raise UsageError("not here")
                return super().make_candidate(settings)

        def distances(folders: dict[str, Path]) -> dict[str, WeightDistance]:
            assert list(folders) == ["as given", "tuned"]
            assert all(one.is_dir() for one in folders.values())
            return {"tuned": WeightDistance(*distance)}

        monkeypatch.setattr("cnnbench.campaigns.strategies.weights.weight_distances", distances)
        given = ParsedArgs(parse_flag_texts(fixed, SPECS))
        space = Refusing(args=given, allowed=frozenset({"consistency"}), layout=layout)
        with ResultsFolder(TUNE, tmp_path / "results", resume=True) as folder:
            folder.add_session_start(minutes=0)
            question = SearchSettings(
                space=space,
                first=space.make_candidate({}),
                policy=Policy(),
                seconds=0.0,
                command=(),
                timeout=120.0,
            )
            bench = RaceBenchmark(folder, campaign, question)
            proven = tuning(weights="", trains_alike=None)
            requests = compare_weights(bench, proven, space.make_candidate(leader))
            document = campaign.run_requests(requests)
        assert not (tmp_path / "results" / "checkpoints").exists()
        assert (document.command == proven.command) == (document.trains_alike is not False)
        started = [" ".join(one.words) for one in campaign.started]
        return (document.weights, document.trains_alike), started

    return weights


MODE = {"variable_update": "replicated"}
PS = {**TINY, "variable_update": "parameter_server"}
JOB = {"layout": JobLayout(workers=2, ps=1)}
NOT_COMPARED = "weights are not compared: "


@pytest.mark.parametrize(
    ("leader", "given", "text"),
    [
        ({**MODE, "variable_consistency": "relaxed"}, {}, "it trains differently: consistency"),
        ({"num_intra_threads": "1"}, {}, f"{NOT_COMPARED}only how operations compute differs"),
        (
            {**MODE, "xla_compile": "true"},
            {"refused": "xla_compile"},
            f"{NOT_COMPARED}the flags as given cannot run with xla_compile=true: not here",
        ),
        (
            {"local_parameter_device": "cpu"},
            {**JOB, "fixed": {**PS, "cross_replica_sync": "false"}},
            f"{NOT_COMPARED}workers train asynchronously",
        ),
    ],
)
def test_weights_that_need_not_be_the_same_are_not_trained(
    weights: Callable[..., Any], leader: Settings, given: dict[str, Any], text: str
) -> None:
    assert weights(leader, **given) == ((text, None), [])


SAME = "weights are the same after 3 steps"


@pytest.mark.parametrize(
    ("distance", "text", "alike"),
    [
        ((0.0, ""), f"{SAME}, all bits", True),
        ((2e-5, "w"), f"{SAME}, within 2e-05 of the largest value", True),
        (
            (0.5, "w"),
            "weights differ after 3 steps: w by 0.5 of its largest value, more than 0.0001",
            False,
        ),
    ],
)
def test_weights_of_leader_and_flags_as_given_are_compared(
    weights: Callable[..., Any], distance: tuple[float, str], text: str, alike: bool
) -> None:
    found, started = weights(MODE, distance=distance)
    assert found == (text, alike)
    assert len(started) == 2


def test_weights_are_compared_with_the_same_kernels(weights: Callable[..., Any]) -> None:
    """Others round otherwise: gradients of batch norm's shifts differ by per cents then."""
    found, started = weights({**MODE, "num_intra_threads": "1"})
    assert found == (f"{SAME} with num_intra_threads=1, all bits", True)
    assert ["--num_intra_threads=1" in words for words in started] == [True, True]
    assert ["--variable_update=replicated" in words for words in started] == [False, True]


def test_weights_of_jobs_are_trained_by_jobs(weights: Callable[..., Any]) -> None:
    found, started = weights({"local_parameter_device": "cpu"}, PS, **JOB)
    assert found == (f"{SAME}, all bits", True)
    assert len(started) == 2
    for words in started:
        assert " launch --workers=2 --ps=1 -- " in words


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
    assert minutes_for_an_answer(races, bench, *proof) == asked
