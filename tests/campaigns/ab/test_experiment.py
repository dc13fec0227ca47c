"""Experiments as they are stored: settings that are loaded whole, and what was analysed.

Tests cnnbench/campaigns/ab/sessions.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cnnbench.campaigns.ab.experiment import Experiment, ExperimentSide
from cnnbench.campaigns.ab.sessions import ExperimentState, find_experiment
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.launch import JobLayout
from cnnbench.campaigns.processes.identity import Identity
from cnnbench.campaigns.processes.journal import JOURNAL, Journal
from cnnbench.campaigns.processes.results_dir import settings_path
from cnnbench.errors import PathError
from cnnbench.judge.compare import Criteria, Policy
from cnnbench.judge.metrics.rules import Acceptance, ConfigurationRule, Rules
from cnnbench.records.codec import encode

RULES = Rules(
    source="cnnbench.toml",
    rules=(ConfigurationRule(configurations=("vgg*",), threshold=5.0),),
    accept=(Acceptance(reason="known", commit="a" * 40),),
)


def experiment(**more: Any) -> Experiment:
    identity = Identity(plans={}, code={}, software={}, policy={})
    return Experiment(identity=identity, seed=1, most_pairs=16, timeout=60.0, **more)


def stored(folder: Path, own: Experiment, *sessions: dict[str, Any]) -> ExperimentState:
    """Writes the settings and the starts of sessions, and reads the experiment."""
    settings_path(folder).write_text(own.to_json())
    for session in sessions or ({},):
        Journal(folder / JOURNAL).add("session", campaign="ab", **{"pairs": 16, **session})
    found = find_experiment(folder)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "own",
    [
        experiment(),
        experiment(given={"pairs": 8}, common=("--xla",), turn_seconds=0.3, timed_seconds=None),
        experiment(repeat=("gate", "a" * 12, "b" * 12), sequential=False),
        experiment(criteria=Criteria(allow_changed_work=True, allow_different=("cpu_model",))),
        experiment(criteria=Criteria(policy=Policy(alpha=0.01), rules=RULES)),
        experiment(criteria=Criteria(metrics=("throughput", "memory"), fail_on=("slower",))),
    ],
)
def test_settings_are_loaded_as_they_were_stored(tmp_path: Path, own: Experiment) -> None:
    assert stored(tmp_path, own).experiment == own


def test_sides_are_stored_without_secrets_and_temporary_folders(tmp_path: Path) -> None:
    for name in ("worktree", "code"):
        (tmp_path / name).mkdir()
    a = AbSide(
        flags=("--model=lenet", "--xla"),
        own=("--xla",),
        layout=JobLayout(workers=2),
        checkout=tmp_path / "worktree",
        revision="main",
        commit="a" * 40,
        variables={"TOKEN": "swordfish"},
    )
    b = AbSide(flags=("--model=lenet",), python="/opt/python", checkout=tmp_path / "code")
    own = experiment(criteria=Criteria(allow_different=("cpu_model",))).with_sides({"a": a, "b": b})
    assert own.a == ExperimentSide(
        description=a.description(),
        flags=("--model=lenet", "--xla"),
        launch=tuple(JobLayout(workers=2).flags),
        revision="main",
        variables=("TOKEN",),
    )
    assert (own.b.python, own.b.launch) == ("/opt/python", None)
    assert own.b.checkout == str(tmp_path / "code")
    assert {"xla", "env_TOKEN", "tensorflow", "cpu_model"} <= {*own.criteria.allow_different}
    text = own.to_json()
    assert "swordfish" not in text
    assert "worktree" not in text
    assert stored(tmp_path, own).experiment == own


def test_a_later_session_may_change_what_belongs_to_it(tmp_path: Path) -> None:
    state = stored(
        tmp_path,
        experiment(criteria=Criteria(fail_on=("faster",))),
        {},
        {"criteria": encode(Criteria(rules=RULES))},
        {"pairs": 24},
    )
    assert state.experiment.criteria == Criteria(rules=RULES)
    assert (state.pair_limits[0], state.pair_limits[-1]) == (16, 24)


def test_settings_that_are_missing_are_named(tmp_path: Path) -> None:
    stored(tmp_path, experiment())
    settings_path(tmp_path).unlink()
    with pytest.raises(PathError, match=r"settings\.json"):
        find_experiment(tmp_path)


ANALYSED = {"event": "analysed"}
END = {"event": "end", "failure": "", "lost": False, "judged": True, "interrupted": False}
FIRST, SECOND = (8, 0.2), (12, 0.45)


def analysed(*analyses: tuple[int, float]) -> list[dict[str, Any]]:
    return [{**ANALYSED, "pairs": pairs, "spent": spent} for pairs, spent in analyses]


def stop(pairs: int) -> dict[str, Any]:
    return {**END, "pairs": pairs, "judged": False}


def end(pairs: int, spent: float, clear: bool) -> dict[str, Any]:
    return {**END, "pairs": pairs, "spent": spent, "clear": clear}


SESSION = {"event": "session", "campaign": "ab", "pairs": 16}
LONGER = {**SESSION, "pairs": 24}
PLAN = {"event": "note", "note": "plan", "pairs": 8}


@pytest.mark.parametrize(
    ("events", "made", "clear", "pairs"),
    [
        ([SESSION], (), False, (16, 16)),
        ([SESSION, *analysed(FIRST)], (FIRST,), False, (16, 16)),
        ([SESSION, end(*FIRST, clear=True)], (FIRST,), True, (16, 16)),
        # A stop is no analysis.
        ([SESSION, *analysed(FIRST), stop(13)], (FIRST,), False, (16, 16)),
        (
            [
                SESSION,
                *analysed(FIRST),
                stop(13),
                LONGER,
                *analysed(SECOND),
                end(20, 0.8, clear=False),
            ],
            (FIRST, SECOND, (20, 0.8)),
            False,
            (16, 24),
        ),
        # The analysis after the last pair is repeated if the session was killed meanwhile.
        ([SESSION, *analysed(FIRST), SESSION, *analysed(FIRST)], (FIRST,), False, (16, 16)),
        ([{**SESSION, "pairs": 6}, PLAN, LONGER], (), False, (8, 24)),
    ],
)
def test_what_was_analysed_is_known(
    tmp_path: Path,
    events: list[dict[str, Any]],
    made: tuple[tuple[int, float], ...],
    clear: bool,
    pairs: tuple[int, int],
) -> None:
    settings_path(tmp_path).write_text(experiment().to_json())
    for event in events:
        Journal(tmp_path / JOURNAL).add(**event)
    found = find_experiment(tmp_path)
    assert found is not None
    assert tuple(map(tuple, found.past_analyses)) == made
    assert (found.has_clear_verdict, found.is_resumable) == (clear, not clear)
    assert (found.pair_limits[0], found.pair_limits[-1]) == pairs
    schedule = found.further_schedule
    assert (schedule.planned, schedule.made) == (pairs[0], found.past_analyses)


def test_a_part_of_another_campaign_is_not_resumed(tmp_path: Path) -> None:
    part = Experiment(seed=1, most_pairs=16, timeout=60.0)
    assert not stored(tmp_path, part).is_resumable
