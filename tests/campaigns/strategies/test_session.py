"""The order of a comparison of modes, and what it keeps, with processes that never start.

Tests cnnbench/campaigns/strategies/session.py, as do test_plan.py and test_table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from stand_ins import StandIns, failed, well

from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.strategies.session import (
    STRATEGIES,
    StrategiesSession,
    select_strategy_cases,
    strategies_document,
)
from cnnbench.campaigns.strategies.weights import (
    compare_and_remove,
    stored_weight_distances,
    weights_tolerance,
)
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, parse_flags
from cnnbench.records.campaigns import ONE_TOWER
from cnnbench.records.run import RunRecord

SMALL = ("--model=lenet", "--device=cpu", "--num_gpus=2", "--batch_size=4")
MODES = ("parameter_server", "replicated")


@pytest.fixture
def session(tmp_path: Path, make_record: Callable[..., RunRecord]) -> Callable[..., Any]:
    """session(ROUNDS, weights_steps=N): the session, and names of processes in their order."""

    def session(
        rounds: int, *, weights_steps: int = 0, failing: Sequence[str] = (), resume: bool = False
    ) -> tuple[StrategiesSession, list[str]]:
        cases, _ = select_strategy_cases(
            parse_flags(SMALL, FLAGS), MODES, on_gpu=False, weights_steps=weights_steps
        )

        def end(command: BenchmarkCommand) -> ProcessResult:
            return (failed if command.log.stem in failing else well)(make_record())

        campaign = StandIns(end)
        with ResultsFolder(STRATEGIES, tmp_path / "results", resume=resume) as folder:
            folder.add_session_start()
            found = StrategiesSession(cases, folder)
            campaign.run_requests(found.requests(rounds, 3, 60.0))
        return found, campaign.names

    return session


def test_weights_come_first_and_each_round_has_every_case(session: Callable[..., Any]) -> None:
    found, started = session(4, weights_steps=3)
    assert started[:2] == ["parameter_server-weights", "replicated-weights"]
    rounds = [started[at : at + 3] for at in range(2, 14, 3)]
    cases = (ONE_TOWER, *MODES)
    for number, names in enumerate(rounds, start=1):
        assert sorted(names) == sorted(f"{case}-r{number}" for case in cases)
    assert len({tuple(name.partition("-")[0] for name in names) for names in rounds}) > 1
    assert {tuple(found.records[case]) for case in cases} == {(1, 2, 3, 4)}
    assert {name: path.name for name, path in found.checkpoints.items()} == {
        name: name for name in MODES
    }
    assert found.problems == {}
    # What has run is not run again, and rounds may be added.
    again, later = session(5, weights_steps=3, resume=True)
    assert sorted(name for name in later if "-r" in name) == sorted(f"{c}-r5" for c in cases)
    assert len(again.records[ONE_TOWER]) == 5


@pytest.mark.parametrize(("failing", "good"), [("replicated-r2", [1]), ("replicated-weights", [])])
def test_a_case_that_fails_is_not_run_again(
    session: Callable[..., Any], tmp_path: Path, failing: str, good: list[int]
) -> None:
    found, started = session(3, weights_steps=3, failing=[failing])
    assert found.problems == {"replicated": "no good"}
    assert [*found.records["replicated"]] == good
    assert sum(name.startswith("replicated-r") for name in started) == 2 * len(good)
    assert len(found.records["parameter_server"]) == 3
    stem = failing.partition("-")[2]
    assert (tmp_path / "results" / "replicated" / f"{stem}.json").exists()
    document = strategies_document(
        *(found, {}, 1e-4),
        command=("cnnbench", "strategies"),
        started_at=datetime(2026, 11, 20, tzinfo=timezone.utc),
        facts={},
        end="interrupted",
        planned=9,
    )
    assert document.planned == 9
    assert document.incomplete.startswith("interrupted; ")
    assert f"{6 + len(good)} of 9" in document.incomplete


def test_distances_are_stored_and_checkpoints_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = {"parameter_server": (0.0, ""), "replicated": (0.5, "w")}
    monkeypatch.setattr(
        "cnnbench.campaigns.strategies.weights.weight_distances", lambda folders: gaps
    )
    with ResultsFolder(STRATEGIES, tmp_path / "results") as folder:
        folder.add_session_start()
        assert stored_weight_distances(folder) is None
        (tmp_path / "results" / "checkpoints").mkdir()
        assert compare_and_remove(folder, {}) == gaps
        assert not (tmp_path / "results" / "checkpoints").exists()
    with ResultsFolder(STRATEGIES, tmp_path / "results", resume=True) as folder:
        assert stored_weight_distances(folder) == gaps
        assert stored_weight_distances(folder, "other") is None


def test_weights_that_are_known_are_not_trained_again(
    session: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cnnbench.campaigns.strategies.weights.weight_distances", lambda folders: {}
    )
    with ResultsFolder(STRATEGIES, tmp_path / "results") as folder:
        folder.add_session_start()
        compare_and_remove(folder, {})
    _, started = session(1, weights_steps=3, resume=True)
    assert len(started) == 3


@pytest.mark.parametrize(
    "words",
    [
        ("--result_json=r",),
        ("--train_dir=d",),
        ("--eval",),
        ("--staged_vars",),
        ("--check_replica_consistency=1",),
        ("--variable_consistency=relaxed",),
        ("--num_gpus=1",),
    ],
)
def test_flags_that_cannot_be_compared(words: tuple[str, ...]) -> None:
    with pytest.raises(FlagError) as refused:
        select_strategy_cases(parse_flags((*SMALL, *words), FLAGS), None, on_gpu=False)
    assert refused.value.flag == words[0][2:].partition("=")[0]


def test_a_mode_that_there_is_not() -> None:
    with pytest.raises(FlagError, match="--modes=mirored: takes one or more of "):
        select_strategy_cases(parse_flags(SMALL, FLAGS), ["mirored"], on_gpu=False)


def test_the_case_of_one_tower_has_no_global_batch() -> None:
    words = ("--model=lenet", "--device=cpu", "--num_gpus=2", "--global_batch_size=8")
    (alone, _), _ = select_strategy_cases(parse_flags(words, FLAGS), MODES[:1], on_gpu=False)
    assert alone.flags["global_batch_size"] == "0"
    assert (alone.flags["batch_size"], alone.resolved.batch_size) == ("8", 8)


def test_weights_of_sixteen_bits_may_be_further_apart() -> None:
    assert (weights_tolerance("fp32"), weights_tolerance("bf16")) == (1e-4, 0.02)
