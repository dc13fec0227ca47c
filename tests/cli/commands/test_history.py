"""`cnnbench history`: what it writes, where, and how it ends."""

import pytest

from cnnbench.judge.history import METRICS
from cnnbench.records.subject import Subject


@pytest.fixture
def folder(lenet_runs, tmp_path, saved):
    """A record per commit, the last four of twelve a fifth slower."""
    run = lenet_runs()
    records = (
        run(
            (100.0, 100.4, 99.7)[number % 3] * (1.0 if number < 8 else 0.8),
            started_at=f"2026-11-{number + 1:02}T00:00:00+00:00",
            flags={"result_label": f"commit=c{number}"},
        )
        for number in range(12)
    )
    return saved(tmp_path / "results", records)


def test_names_last_good_and_first_bad_and_fails_where_that_is_asked_for(call, folder):
    assert "last good c7, first bad c8" in call("history", folder).out
    out, err = call("history", folder, "--fail_on=step", code=1)
    assert "first bad c8" in out
    assert err == "cnnbench: --fail_on=step: 1 step for the worse stands\n"
    assert "no step" in call("history", folder, "--fail_on=step", "--threshold=30").out
    # Of speed more is better, of time less.
    call("history", folder, "--fail_on=step", "--metric=step_seconds", code=1)


@pytest.mark.parametrize("metric", [name for name, one in METRICS.items() if "run" in one.kinds])
def test_all_metrics(call, folder, metric):
    assert call("history", folder, f"--metric={metric}").out.startswith(f"{metric}, ")


def test_selections(call, folder):
    out = call("history", folder, "--since=2026-11-09", "--machine=bo*", "--last=2", "--by=run").out
    assert "2 earlier points" in out
    assert "run11" in out
    assert "none of 12 runs" in call("history", folder, "--machine=gone", code=2).err


@pytest.fixture
def measured(lenet_runs, saved, tmp_path):
    """measured(SUBJECT...): the folder with a run of each."""
    run = lenet_runs()
    return lambda *subjects: saved(
        tmp_path / "measured", [run(100.0 + n, subject=one) for n, one in enumerate(subjects)]
    )


def test_uncommitted_states_of_a_commit_are_points_and_rows_of_their_own(call, measured):
    commit = {"repository": "nets", "revision": "a" * 40}
    states = [Subject(**commit, dirty=True, changes=digit * 16) for digit in "121"]
    folder = measured(Subject(**commit, dirty=False), *states)
    out, err = call("history", folder)
    assert err == ""
    points = {line.split("  ")[2]: line.split()[-1] for line in out.splitlines() if "n=" in line}
    short = "a" * 12
    assert points == {
        f"{short} ({short})": "n=1",
        f"{short} ({short}+1111111)": "n=2",
        f"{short} ({short}+2222222)": "n=1",
    }
    rows = call("report", folder, "--format=csv").out.splitlines()[1:]
    assert len(rows) == 3
    out = call("history", folder, "--format=openmetrics").out
    assert 'changes="1111111111111111"' in out


@pytest.mark.parametrize("command", ["history", "report --format=csv"])
def test_it_is_said_that_commits_are_unknown(call, measured, command):
    folder = measured(
        Subject(unknown="not safe"), Subject(unknown="not safe"), Subject(revision="b")
    )
    words = command.split()
    _, err = call(words[0], folder, *words[1:])
    said = "the commit of 2 measurements is unknown, and may be several"
    assert err == f"cnnbench: warning: {said}: not safe\n"
