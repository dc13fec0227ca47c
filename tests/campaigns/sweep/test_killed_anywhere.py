"""A sweep killed at any moment resumes without loss and without counting twice.

As a program, which has not loaded TensorFlow: for each of some moments, spread over the life of a
sweep, a fork runs the sweep in a folder of its own and dies there by SIGKILL, a second fork resumes
and dies at another moment, a third resumes to the end.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.sweep import document, planning, schema
from cnnbench.campaigns.sweep.runner import Store, Sweep
from cnnbench.judge.compare import load_records

MOMENTS = 3
SUITE = """
entries:
  - {name: a, repeats: 2, flags: {num_intra_threads: 0, batch_size: 4}}
  - name: b
    repeats: 1
    flags: {num_intra_threads: 1, batch_size: 16}
    max_batch_search: {limit: 24, multiple_of: 8}
"""
FAKE = {"by_threads": [{"pause": 0.05}, {"capacity": 23, "message": "out of memory: too much"}]}
FACTS = {"hostname": "here"}
WATCHED = tuple(os.sep + part for part in (f"sweep{os.sep}", f"processes{os.sep}", "files.py"))


@pytest.mark.timeout(200)
def test_killed_at_any_line(write, fake_python, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE", json.dumps(FAKE))
    command = [sys.executable, __file__, write(SUITE), str(tmp_path), fake_python]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr


def fork(plan, folder, python, resume=True, line=None):
    """Runs in a child that is killed at a line, if it gets there; whether it was."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if not any(part in frame.f_code.co_filename for part in WATCHED):
            return None
        if event == "line":
            lines += 1
            if lines == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    if line is not None:
        sys.settrace(trace)
    with Store(folder, planning.question_of(plan, FACTS, 1), resume=resume) as store:
        campaign = Campaign(Reporter(io.StringIO()), FACTS)
        program = (python, "-c", "cnnbench", "")
        Sweep(plan, store, campaign, seed=1, resume=resume, program=program).run()
    sys.settrace(None)
    Path(folder, "lines").write_text(str(lines))
    os._exit(0)


def main(suite, results, python):
    plan = planning.make_plan(schema.check(document.load(suite)), FACTS)
    expected = sorted((case.key, n) for case in plan.cases for n in range(1, case.repeats + 1))
    whole = os.path.join(results, "whole")
    assert not fork(plan, whole, python, resume=False, line=10**9)
    lines = int(Path(whole, "lines").read_text())
    for moment in range(MOMENTS):
        folder = os.path.join(results, str(moment))
        first = 1 + lines * moment // MOMENTS
        assert fork(plan, folder, python, resume=False, line=first), moment
        # What is there now must be sound, and stay.
        kept = set()
        if list(Path(folder).glob("*.json")):
            between = load_records([folder])
            assert between.skipped == (), moment
            kept = {one.run_id for one in between.records if one.status == "ok"}
        fork(plan, folder, python, line=1 + (lines - first) // 2)
        fork(plan, folder, python)
        loaded = load_records([folder])
        assert loaded.skipped == (), moment
        assert {one.status for one in loaded.records} == {"ok"}, moment
        assert kept <= {one.run_id for one in loaded.records}, moment
        places = [one.sweep for one in loaded.records]
        assert sorted((one["key"], one["repeat"]) for one in places) == expected, moment
        assert not [*Path(folder).rglob("*.tmp"), *Path(folder).rglob("*.part")], moment


if __name__ == "__main__":
    main(*sys.argv[1:])
