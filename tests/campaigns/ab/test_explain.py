"""Profiles of A and B whose processes never start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_ins import StandIns, value_of
from step_profiles import Profiles

from cnnbench.campaigns.ab.explain import (
    PROFILES_OF_SIDES,
    AbProfiler,
    NotExplainedError,
    explain_or_notice,
)
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.records.explanation import Explanation
from cnnbench.records.profiles import StepProfile

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
    ) -> tuple[AbProfiler, StandIns]:
        opened.append(ResultsFolder(PROFILES_OF_SIDES, tmp_path / "explain"))
        sides = {
            name: AbSide(flags=(f"--batch_size={4 + at}",), resolved=ResolvedRun(config=config))
            for at, name in enumerate("ab")
        }
        contents = iter(left)

        def end(command: BenchmarkCommand) -> ProcessResult:
            content = next(contents)
            if content is not None:
                text = content if isinstance(content, str) else content.to_json()
                Path(value_of(command, "profile_json")).write_text(text)
            return replace(ended, document=profile.record.to_dict())

        campaign = StandIns(end)
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
    assert [value_of(one, "batch_size") for one in campaign.started] == [*"4554"]
    for one in campaign.started:
        flags = {"--profile_steps=7", "--num_warmup_batches=12", "--num_batches=7"}
        assert {*flags, "--warmup=fixed"} <= {*one.words}
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
    assert not any("--num_batches=7" in one.words for one in campaign.started)


def test_what_prevents_an_explanation_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    results = ResultsFolder(PROFILES_OF_SIDES, tmp_path / "r")

    def fail() -> Explanation:
        raise NotExplainedError("no steps")

    def interrupt() -> Explanation:
        raise KeyboardInterrupt

    with results:
        assert explain_or_notice(results, fail, said.append) is None
        assert explain_or_notice(results, interrupt, said.append) is None
    assert ["no steps" in said[0], "verdict" in said[1]] == [True, True]
