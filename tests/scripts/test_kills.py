"""A few of the kills of scripts/kills."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from forked import Forked, killed_writer

from cnnbench.records.files import write_atomically

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_what_is_written_survives_kills(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(SCRIPTS)!r}]; import json, kills; "
        "run = kills.kill_writer_repeatedly; "
        "print(json.dumps(run('result files', 3, 7) + run('make-imagenet', 1, 7)))"
    )
    out, err = tmp_path / "out", tmp_path / "err"
    assert Forked(code, [], out, err).end(120) == (0, False), err.read_text()
    assert json.loads(out.read_text()) == []


def test_stopped_runs_leave_what_they_have_measured_and_end_in_time(tmp_path: Path) -> None:
    code = f"""
import sys; sys.path[:0] = [{str(SCRIPTS)!r}]
import dataclasses, json, random, signal
from stops import DisturbedRunCase, run_cases
case = DisturbedRunCase.draw(random.Random(1))
case = dataclasses.replace(case, rows=2, delay=0.2, folder="", to_group=False, again=False)
print(json.dumps(run_cases(dataclasses.replace(case, workers=1, **fields) for fields in (
    dict(work="steps", number=signal.SIGUSR1, saves=True),
    dict(work="steps", number=None, saves=False, folder="is made anew"),
))))
"""
    out, err = tmp_path / "out", tmp_path / "err"
    assert Forked(code, [], out, err).end(120) == (0, False), err.read_text()
    assert json.loads(out.read_text()) == []


def test_a_write_removes_what_a_killed_one_left_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    elsewhere, other = tmp_path / ".cnnbench-00000000-aa.tmp", tmp_path / "notes.tmp"
    for path in (elsewhere, other):
        path.write_text("half")
    alive = killed_writer(tmp_path / "run.json")
    with alive.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        abandoned = killed_writer(tmp_path / "run.json")
        write_atomically(tmp_path / "run.json", b"{}")
    assert not abandoned.exists()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([alive.name, elsewhere.name, "notes.tmp", "run.json"])
