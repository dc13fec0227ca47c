"""``cnnbench run --repeats`` with processes that only write records; see fake_python.py.

Tests cnnbench/cli/commands/run.py.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from types import SimpleNamespace

import pytest

from cnnbench.campaigns.ab import side
from cnnbench.cli import main
from cnnbench.judge.compare import load_records
from cnnbench.records.metrics.figures import throughputs

TINY = ("--model=trivial", "--device=cpu", "--batch_size=2")


@pytest.fixture
def repeated(tmp_path, monkeypatch, fake_python, quick_processes):
    """repeated(FLAG..., **SAY): the exit code; the results folder is `results`."""
    monkeypatch.setattr(side, "sys", SimpleNamespace(executable=fake_python))

    def run(*flags, **say):
        fake = {"parent": os.getpid(), "trace": str(tmp_path / "trace"), "scatter": 0.02, **say}
        monkeypatch.setenv("FAKE", json.dumps(fake))
        return main(["run", *TINY, f"--results={tmp_path / 'results'}", *flags])

    return run


def test_each_process_is_printed_and_their_mean_with_an_interval(repeated, tmp_path, capsys):
    assert repeated("--repeats=6", "--num_batches=3") == 0
    out = capsys.readouterr().out.splitlines()
    speeds = throughputs(load_records([tmp_path / "results"]).records)
    shown = [float(line.split()[1]) for line in out[1:7]]
    assert shown == pytest.approx(speeds, rel=1e-3)
    found = re.fullmatch(
        r"(\S+) images/sec: mean of 6 processes, 95 % interval (\S+) to (\S+) "
        r"\(\+/- (\S+) %\)",
        out[-1],
    )
    mean, low, high, share = (float(text.replace(",", "")) for text in found.groups())
    half = 2.570582 * statistics.stdev(speeds) / 6**0.5  # Student's t, 5 degrees of freedom
    expected = [statistics.fmean(speeds) + side * half for side in (0, -1, 1)]
    assert [mean, low, high] == pytest.approx(expected, abs=0.051)
    assert share == pytest.approx(100 * half / mean, abs=0.06)
    # The report of the folder has the same headline.
    assert main(["report", str(tmp_path / "results"), "--format=markdown"]) == 0
    head = capsys.readouterr().out.partition("## ")[0]
    assert f": {found[1]} images/sec\n  - M{out[-1].partition(': m')[2]}\n" in head


@pytest.mark.parametrize(
    ("repeats", "said"), [(1, "one process, which cannot show"), (2, "an interval needs three")]
)
def test_few_processes_have_no_interval(repeats, said, repeated, capsys):
    assert repeated(f"--repeats={repeats}") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert said in out
    assert "95 %" not in out


def test_seconds_choose_the_steps_after_a_first_process(repeated, tmp_path, capsys):
    assert repeated("--repeats=2", "--seconds=3") == 0
    assert (tmp_path / "trace").read_text().split() == ["burn-in", "r1", "r2"]
    records = load_records([tmp_path / "results"]).records
    assert len(records) == 2
    commands = (" ".join(record.command) for record in records)
    (steps,) = {re.search(r"--num_batches=(\d+)", command)[1] for command in commands}
    assert f"{steps} timed steps in each process, about 3 s" in capsys.readouterr().err


def test_a_failure_is_named_and_the_others_are_printed(repeated, capsys):
    assert repeated("--repeats=4", fail=["r3"], message="no good") == 4
    done = capsys.readouterr()
    assert "mean of two processes" in done.out
    assert "cnnbench: error: process r3 failed: no good" in done.err


def test_an_interrupt_keeps_what_was_measured(repeated, capsys):
    assert repeated("--repeats=4", interrupt=["r2"]) == 130
    done = capsys.readouterr()
    assert "one process" in done.out
    assert done.err.endswith("cnnbench: error: interrupted\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seconds=3"], "--seconds=3: needs --repeats=N"),
        ([], "needs --repeats=N"),
        (["--repeats=0"], "--repeats=0: must be from 1 to 1000"),
        (["--repeats=2", "--result_json=x.json"], "--result_json=x.json: cannot be used with"),
        (["--repeats=2", "--worker_hosts=a:1,b:1"], "cannot be used with --repeats"),
        (["--repeats=2", "--only_check_args"], "cannot be used with --repeats"),
        (["--repeats=2", "--seconds=2", "--num_batches=3"], "--num_batches=3: cannot be used with"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags, said, repeated, tmp_path, capsys):
    assert repeated(*flags) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
