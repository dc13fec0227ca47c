"""`cnnbench history`: what it writes, where, and how it ends."""

import re
import subprocess
from pathlib import Path

import pytest

from cnnbench.judge.history import METRICS
from cnnbench.records.files import resolve_output


@pytest.fixture
def folder(lenet_runs, tmp_path):
    """A record per commit, the last four of twelve a fifth slower."""
    results = tmp_path / "results"
    results.mkdir()
    run = lenet_runs()
    for number in range(12):
        record = run(
            (100.0, 100.4, 99.7)[number % 3] * (1.0 if number < 8 else 0.8),
            started_at=f"2026-11-{number + 1:02}T00:00:00+00:00",
            flags={"result_label": f"commit=c{number}"},
        )
        (results / f"{number}.json").write_text(record.to_json())
    return results


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


def test_the_first_command_of_the_document_has_its_folder(tmp_path, monkeypatch):
    text = (Path(__file__).parents[3] / "docs" / "history.md").read_text(encoding="utf-8")
    block = re.search(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE).group(1)
    lines = block.replace("\\\n", " ").splitlines()
    commands = [line.removeprefix("$ ").split() for line in lines if line.startswith("$ ")]
    monkeypatch.chdir(tmp_path)
    assert commands[0][0] == "mkdir"
    subprocess.run(commands[0], check=True, timeout=10)
    (record,) = [word for word in commands[1] if word.startswith("--result_json=")]
    resolve_output("result_json", record.partition("=")[2])  # which refuses a missing folder
