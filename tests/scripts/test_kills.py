"""A few of the kills of scripts/kills."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cnnbench.records.files import write_whole

SCRIPT = Path(__file__).parents[2] / "scripts/kills.py"


@pytest.mark.timeout(200)
def test_what_is_written_survives_kills() -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(SCRIPT.parent)!r}]; import tensorflow, json, kills; "
        "print(json.dumps(kills.run('result files', 3, 7) + kills.run('make-imagenet', 1, 7)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180
    )
    assert json.loads(finished.stdout) == [], finished.stderr


def test_a_write_removes_what_a_killed_one_left_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    import fcntl

    abandoned, alive = (tmp_path / f".cnnbench-1-{name}.tmp" for name in ("aa", "bb"))
    other = tmp_path / "notes.tmp"
    for path in (abandoned, alive, other):
        path.write_text("half")
    with alive.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_whole(tmp_path / "run.json", b"{}")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [alive.name, "notes.tmp", "run.json"]
