"""Weights of the leader and of the flags as given, and the minutes that a search asks for."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.launch.tasks import JobLayout
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.strategies.weights import WeightDistance
from cnnbench.campaigns.tune import final, session
from cnnbench.campaigns.tune.bench import Budget, RaceBench, TuneQuestion
from cnnbench.campaigns.tune.dimensions import Settings
from cnnbench.campaigns.tune.final import Weights
from cnnbench.campaigns.tune.results import TuneFolder
from cnnbench.campaigns.tune.space import Candidate, Space
from cnnbench.errors import UsageError
from cnnbench.judge.compare import Policy

TINY = {"model": "trivial", "device": "cpu"}
TOWERS = {**TINY, "num_gpus": "2", "batch_size": "2"}


@pytest.fixture
def weights(tmp_path: Path) -> Callable[..., Weights]:
    """weights({flag: text}, fixed, ...): those of a leader that adds flags to the fixed ones."""

    def weights(
        leader: Settings,
        fixed: Settings = TOWERS,
        by: type[Campaign] = Standing,
        layout: JobLayout | None = None,
        refused: str = "",
    ) -> Weights:
        class Refusing(Space):
            def make(self, settings: Settings) -> Candidate:
                if set(settings) == {refused}:
                    raise UsageError("not here")
                return super().make(settings)

        space = Refusing(fixed=fixed, allowed=frozenset({"consistency"}), layout=layout)
        with TuneFolder(str(tmp_path / "results"), {}, resume=True) as folder:
            question = TuneQuestion(
                space=space,
                first=space.make({}),
                policy=Policy(),
                seconds=0.0,
                command=(),
                timeout=120.0,
                seed=1,
            )
            bench = RaceBench(folder, by(Reporter(io.StringIO())), Budget(0.0), question)
            return final.Final(bench).weights(space.make(leader))

    return weights


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


def test_weights_of_the_leader_are_compared_by_training(
    weights: Callable[..., Weights], tmp_path: Path, loaded_processes: None
) -> None:
    found = weights({"variable_update": "replicated"}, by=Campaign)
    assert found[1] is True
    assert found[0].startswith("weights are the same after 3 steps, ")
    assert not (tmp_path / "results" / "checkpoints").exists()


MODE = {"variable_update": "replicated"}
PS = {**TINY, "variable_update": "parameter_server"}
JOB = {"layout": JobLayout(workers=2, ps=1)}


@pytest.mark.parametrize(
    ("leader", "given", "text"),
    [
        (
            {**MODE, "variable_consistency": "relaxed"},
            {},
            "it trains differently: consistency",
        ),
        (
            {"num_intra_threads": "1"},
            {},
            "weights are not compared: only how operations compute differs",
        ),
        (
            {**MODE, "xla_compile": "true"},
            {"refused": "xla_compile"},
            "weights are not compared: the flags as given cannot run with xla_compile=true: "
            "not here",
        ),
        (
            {"local_parameter_device": "cpu"},
            {**JOB, "fixed": {**PS, "cross_replica_sync": "false"}},
            "weights are not compared: workers train asynchronously",
        ),
    ],
)
def test_weights_that_need_not_be_the_same_are_not_trained(
    weights: Callable[..., Weights],
    trained: list[list[str]],
    leader: Settings,
    given: dict[str, Any],
    text: str,
) -> None:
    assert weights(leader, **given) == (text, None)
    assert trained == []


def test_weights_are_compared_with_the_same_kernels(
    weights: Callable[..., Weights], trained: list[list[str]]
) -> None:
    """Others round otherwise: gradients of batch norm's shifts differ by per cents then."""
    found = weights({**MODE, "num_intra_threads": "1"})
    text = "weights are the same after 3 steps with num_intra_threads=1, all bits"
    assert found == (text, True)
    both = ["--num_intra_threads=1" in words for words in trained]
    modes = ["--variable_update=replicated" in words for words in trained]
    assert (both, modes) == ([True, True], [False, True])


def test_weights_of_jobs_are_trained_by_jobs(
    weights: Callable[..., Weights], trained: list[list[str]]
) -> None:
    found = weights({"local_parameter_device": "cpu"}, PS, **JOB)
    assert found == ("weights are the same after 3 steps, all bits", True)
    assert len(trained) == 2
    for words in trained:
        at = words.index("launch")
        assert words[at : at + 4] == ["launch", "--workers=2", "--ps=1", "--"]
        assert any(word.startswith("--train_dir=") for word in words)


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
