"""A sweep killed at any moment resumes without loss and without counting twice."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

MOMENTS = 3
FAKE = runpy.run_path(str(Path(__file__).with_name("fake_run.py")))

SUITE = f"""
entries:
  - name: a
    repeats: 2
    flags: {{tf_random_seed: {FAKE["SLOW"]}, batch_size: 4}}
  - name: b
    repeats: 1
    flags: {{tf_random_seed: {FAKE["OOM"]}, batch_size: 16}}
    max_batch_search: {{limit: 64, multiple_of: 8}}
"""


@pytest.mark.timeout(200)
def test_killed_at_any_line(write, fake, tmp_path):
    driver = Path(__file__).with_name("kill_anywhere.py")
    results = tmp_path / "results"
    results.mkdir()
    command = [sys.executable, str(driver), write(SUITE), str(results), str(fake.template)]
    done = subprocess.run(
        [*command, str(MOMENTS)], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    moments = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(moments) == MOMENTS
    assert all(moment["killed"] for moment in moments)
    for moment in moments:
        assert moment["skipped"] == [], moment
        assert moment["lost"] == [], moment
        assert moment["runs"] == moment["expected"], moment
        assert moment["ok"] == len(moment["expected"]), moment
