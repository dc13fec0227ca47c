"""`cnnbench history`: what it writes, where, and how it ends."""

import pytest

from cnnbench.judge.history import METRICS


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
