"""Profiles of A and B whose processes never start."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from step_profiles import Profiles

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab.explain import (
    PROFILES_OF_SIDES,
    AbProfiler,
    NotExplainedError,
    explain_or_notice,
)
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.records.explanation import Explanation
from cnnbench.records.profiles import StepProfile
from cnnbench.records.run import RunRecord


class Profiled(Campaign):
    """Runs nothing: each process leaves the next profile, or its text.

    Args:
      record: of all processes.
      left: what processes leave; None for nothing.
      ended: how they end.
    """

    def __init__(
        self, record: RunRecord, left: Sequence[StepProfile | str | None], ended: ProcessResult
    ) -> None:
        super().__init__(ChildProcessReporter(io.StringIO()))
        self._record, self._left, self._ended = record, list(left), ended
        self.started: list[tuple[str, ...]] = []

    def run(
        self, commands: Sequence[BenchmarkCommand], timeout: float, turn_seconds: float = 0.0
    ) -> list[ProcessResult]:
        (command,) = commands
        self.started.append(tuple(command.words))
        for word in command.words:
            if word.startswith("--profile_json="):
                content = self._left.pop(0)
                if content is not None:
                    text = content if isinstance(content, str) else content.to_json()
                    Path(word.partition("=")[2]).write_text(text)
        return [replace(self._ended, document=self._record.to_dict())]


OK = ProcessResult(0, 1.0, status="ok")


@pytest.fixture
def profile(lenet_runs: type) -> StepProfile:
    make = lenet_runs()
    return Profiles(lambda flags, step_seconds: make(step_seconds=step_seconds, losses=()))()


@pytest.fixture
def profiler(tmp_path: Path, profile: StepProfile) -> Callable[..., Any]:
    """profiler([CONTENT, ...]): what profiles A and B in two rounds, and its campaign."""
    opened: list[ResultsFolder] = []

    def profiler(
        left: Sequence[StepProfile | str | None], ended: ProcessResult = OK, **config: Any
    ) -> tuple[AbProfiler, Profiled]:
        opened.append(ResultsFolder(PROFILES_OF_SIDES, tmp_path / "explain"))
        sides = {
            name: AbSide(flags=(f"--batch_size={4 + at}",), resolved=ResolvedRun(config=config))
            for at, name in enumerate("ab")
        }
        campaign = Profiled(profile.record, left, ended)
        made = AbProfiler(sides=sides, results=opened[-1], campaign=campaign, rounds=2, steps=7)
        return made, campaign

    yield profiler
    for folder in opened:
        folder.__exit__()


def test_processes_alternate_and_their_profiles_are_explained(
    profiler: Callable[..., Any], profile: StepProfile, tmp_path: Path
) -> None:
    made, campaign = profiler([profile] * 4)
    explanation = made.explain(store=True)
    order = [
        next(word for word in words if word.startswith("--batch_size="))
        for words in campaign.started[:4]
    ]
    assert [word[-1] for word in order] == ["4", "5", "5", "4"]
    for words in campaign.started[:4]:
        assert {"--profile_steps=7", "--num_warmup_batches=12", "--num_batches=7"} <= {*words}
        assert "--warmup=fixed" in words
    assert (explanation.base_processes, explanation.new_processes) == (2, 2)
    assert explanation.difference == pytest.approx(0.0, abs=0.1)
    stored = (tmp_path / "explain" / "explanation.json").read_text()
    assert json.loads(stored)["answer"] == explanation.answer
    names = sorted(path.name for path in (tmp_path / "explain").rglob("*.profile"))
    assert names == ["0001-a.profile", "0001-b.profile", "0002-a.profile", "0002-b.profile"]


@pytest.mark.parametrize(
    ("left", "ended", "text"),
    [
        ([None], OK, "profile 1 A: no profile; see "),
        (["{half"], OK, "profile 1 A: no profile; see "),
        ([None], ProcessResult(4, 1.0, status="failed", message="no good"), "A: no good; see "),
    ],
)
def test_a_process_without_a_profile_is_no_explanation(
    profiler: Callable[..., Any],
    left: Sequence[str | None],
    ended: ProcessResult,
    text: str,
    tmp_path: Path,
) -> None:
    made, campaign = profiler(left, ended)
    with pytest.raises(NotExplainedError) as refused:
        made.explain()
    assert text in str(refused.value)
    assert str(refused.value).endswith(".log")
    assert len(campaign.started) == 1
    assert not (tmp_path / "explain" / "explanation.json").exists()


@pytest.mark.parametrize("flag", ["eval", "input_only"])
def test_runs_without_steps_are_not_profiled(profiler: Callable[..., Any], flag: str) -> None:
    made, campaign = profiler([], **{flag: True})
    with pytest.raises(NotExplainedError, match=f"side A .*--{flag}"):
        made.explain()
    assert campaign.started == []


def test_epochs_keep_their_length(profiler: Callable[..., Any], profile: StepProfile) -> None:
    made, campaign = profiler([profile] * 4)
    sides = {
        name: replace(side, flags=(*side.flags, "--num_epochs=1"))
        for name, side in made.sides.items()
    }
    replace(made, sides=sides).explain()
    assert not any("--num_batches=7" in words for words in campaign.started)


def test_what_prevents_an_explanation_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    results = ResultsFolder(PROFILES_OF_SIDES, tmp_path / "r")

    def fail() -> Explanation:
        raise NotExplainedError("no steps")

    def interrupt() -> Explanation:
        raise KeyboardInterrupt

    with results:
        assert explain_or_notice(results, fail, "verdict", said.append) is None
        assert explain_or_notice(results, interrupt, "verdict", said.append) is None
    assert ["no steps" in said[0], "verdict" in said[1]] == [True, True]
