"""How often flags are read, checked and planned before anything runs.

Tests cnnbench/campaigns/processes/resolved.py.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cnnbench.campaigns.ab.asking import print_answer
from cnnbench.campaigns.ab.experiment import Experiment
from cnnbench.campaigns.processes.identity import Identity
from cnnbench.campaigns.processes.journal import JOURNAL, Journal
from cnnbench.campaigns.processes.results_dir import settings_path
from cnnbench.cli import main
from cnnbench.cli.commands import launch, sides
from cnnbench.errors import UsageError
from cnnbench.flags import Params, parse
from cnnbench.plan import make
from cnnbench.plan.network import NetworkPlan
from cnnbench.variable_mgr import registry

TINY = ("--model=trivial", "--device=cpu")
JOB = "entries: [{name: a, launch: {workers: 2, ps: 1}, flags: {model: trivial, device: cpu}}]"
COUNTED = {
    parse.parse_args.__code__: "lines",
    parse.parse_flags.__code__: "lines",
    parse.parse_command.__code__: "lines",
    Params.__post_init__.__code__: "params",
    make._plan_of_flags.__code__: "setups",
    NetworkPlan.resolved.__func__.__code__: "networks",  # type: ignore[attr-defined]
    registry.MODES.find.__code__: "modes",
}


@pytest.fixture
def counts() -> Callable[..., list[int]]:
    """counts(FUNCTION, ...): command lines read, values of all flags, setups, networks, modes."""

    def counts(function: Callable[..., Any], *arguments: Any) -> list[int]:
        found: Counter[str] = Counter()

        def count(frame: Any, event: str, _: object) -> None:
            finds = frame.f_code is registry.MODES.find.__code__
            if finds and frame.f_locals["self"] is not registry.MODES:
                return  # a lookup in another registry
            if event == "call" and frame.f_code in COUNTED:
                found[COUNTED[frame.f_code]] += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            function(*arguments)
        finally:
            sys.setprofile(before)
        return [found[name] for name in ("lines", "params", "setups", "networks", "modes")]

    return counts


def test_a_run(counts: Callable[..., list[int]]) -> None:
    length = ("--batch_size=1", "--num_batches=1", "--num_warmup_batches=0", "--peak_flops=0")
    *resolved, modes = counts(main, ["run", *TINY, *length, "--quiet_conditions=all"])
    assert resolved == [1, 1, 1, 1]
    assert modes <= 2


def test_a_case_of_a_sweep(
    counts: Callable[..., list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = counts(main, ["sweep", "smoke", "--list"])
    _, *cases = capsys.readouterr().out.splitlines()  # The table has a heading.
    assert found == [2, *[len(cases)] * 4]  # the line of the command, and the flags behind --
    (tmp_path / "job.yaml").write_text(JOB)
    # Workers and ps tasks have flags of their own, and the plan is the chief's.
    assert counts(main, ["sweep", str(tmp_path / "job.yaml"), "--list"]) == [2, 2, 2, 1, 2]


@pytest.mark.parametrize(("job", "kinds"), [(None, 1), ({"workers": 2, "ps": 1}, 2)])
def test_a_side(counts: Callable[..., list[int]], job: dict[str, int] | None, kinds: int) -> None:
    found = counts(print_answer, json.dumps(job), *TINY)
    assert found == [1, kinds, kinds, 1, kinds]


def test_a_job(counts: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.JobSession, "run", lambda *_: 0)
    words = ["launch", "--workers=2", "--ps=1", "--", *TINY]
    assert counts(main, words) == [2, 2, 2, 1, 2]


@pytest.mark.slow
def test_a_candidate(counts: Callable[..., list[int]]) -> None:
    lines, params, setups, plans, _ = counts(main, ["tune", "--list", *TINY, "--num_gpus=2"])
    assert lines == 2
    assert params == setups >= plans > 1  # a setup that is refused has no plan


def test_an_experiment_that_goes_on_loads_its_flags(
    counts: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored = Experiment(
        identity=Identity(plans={}, code={}, software={}, policy={}),
        **{"seed": 1, "most_pairs": 12, "timeout": 60.0, "common": TINY},
        given={"pairs": 12, "alpha": 0.01, "fail_on": ["slower", "faster"]},
    )
    settings_path(tmp_path).write_text(stored.to_json())
    Journal(tmp_path / JOURNAL).add("session", campaign="ab", pairs=12)
    loaded: list[Any] = []

    def open_sides(options: Any, layout: object, common: tuple[str, ...], *_: object) -> None:
        loaded.extend((options.pairs, options.alpha, options.fail_on, common))
        raise UsageError("nothing is started")

    monkeypatch.setattr(sides, "open_sides", open_sides)
    lines, *_ = counts(main, ["ab", "--resume", f"--results={tmp_path}"])
    assert lines == 1  # the line of this session, and not that of the first one
    assert loaded == [12, 0.01, ("slower", "faster"), TINY]
