"""``cnnbench launch``: refusals, what is printed and kept, and a real job that leaves nothing."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cnnbench import cli
from cnnbench.base.jobs.probe import REFUSED, probe
from cnnbench.base.lock import LOGS, FolderLock
from cnnbench.records.outputs import Output, check_outputs

FAKE = Path(__file__).parents[2] / "campaigns" / "launch" / "fake_task.py"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def launch(monkeypatch, capfd, lenet_runs, tmp_path):
    """launch("--workers=2", ...): exit code, stdout and stderr of a job of fakes."""
    template = tmp_path / "template.json"
    template.write_text(lenet_runs()().to_json())
    monkeypatch.setattr(
        "cnnbench.cli.commands.launch.program", lambda: (sys.executable, "-IS", str(FAKE))
    )
    monkeypatch.setenv("FAKE_TEMPLATE", str(template))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return (cli.main(["launch", *words]), *capfd.readouterr())

    return run


def test_a_job(launch, tmp_path):
    status, out, err = launch("--workers=2", "--ps=1", "--", "--model=lenet")
    assert status == 0
    assert out.replace("\r", "").startswith("chief")
    assert "[worker:1] to stdout" in err
    assert [path.name for path in tmp_path.iterdir()] == ["template.json"]


def test_a_job_that_fails_keeps_its_logs(launch, monkeypatch):
    monkeypatch.setenv("FAKE_DO", "ps:0=kill,worker:0=4")
    status, _, err = launch("--workers=2", "--ps=1", "--", "--model=lenet")
    assert status == 4
    (log,) = re.findall(r"cnnbench: error: ps:0 was ended by SIGKILL; (\S+)", err)
    assert "to stdout" in Path(log).read_text()


def test_a_job_that_is_interrupted_keeps_nothing(launch, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_DO", "worker:1=interrupt,worker:0=sleep")
    monkeypatch.setenv("FAKE_LAUNCH", str(os.getpid()))
    status, _, err = launch("--workers=2", "--ps=1", "--", "--model=lenet")
    assert (status, err.splitlines()[-1]) == (130, "cnnbench: error: interrupted")
    assert "[worker:0] interrupted" in err
    assert [path.name for path in tmp_path.iterdir()] == ["template.json"]


def test_folders_of_launches_that_were_killed_are_removed(launch, tmp_path):
    lives, killed = (f"cnnbench-launch-{name}" for name in ("lives", "killed"))
    with FolderLock(_made(tmp_path / lives)):
        code = "import os, sys; from cnnbench.base.lock import FolderLock; "
        code += "FolderLock(sys.argv[1]); os.kill(os.getpid(), 9)"
        subprocess.run([sys.executable, "-c", code, _made(tmp_path / killed)], timeout=60)
        _made(tmp_path / "cnnbench-launch-kept")
        assert launch("--ps=1", "--", "--model=lenet")[0] == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"template.json", lives, "cnnbench-launch-kept"}


def _made(folder):
    folder.mkdir()
    (folder / "worker-0.log").write_text("printed")
    return folder


def test_logs_in_a_folder_of_ones_own(launch, tmp_path):
    assert launch("--workers=2", "--ps=1", "--log_dir=a/b", "--", "--model=lenet")[0] == 0
    names = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert names == ["ps-0.log", "worker-0.log", "worker-1.log"]


def test_a_second_launch_into_a_folder_of_logs_is_refused(launch, tmp_path):
    logs = _made(tmp_path / "logs")
    with FolderLock(logs, file=LOGS):
        status, out, err = launch("--ps=1", "--log_dir=logs", "--", "--model=lenet")
    assert (status, out, err.count("\n")) == (2, "", 1)
    holder = f"another process is writing there: pid {os.getpid()} on "
    assert err.startswith(f"cnnbench: error: --log_dir=logs: {holder}")
    assert [path.name for path in logs.iterdir()] == ["worker-0.log"]
    assert (logs / "worker-0.log").read_text() == "printed"
    with FolderLock(logs):  # of the checkpoints that are there too
        assert launch("--ps=1", "--log_dir=logs", "--", "--model=lenet")[0] == 0


def test_scaling(launch, tmp_path):
    words = ("--ps=1", "--scaling=2,1", "--repeats=2", "--link=tcp25")
    files = ("--output=t.csv", "--plot=p.svg", "--results=r")
    status, out, err = launch(*words, *files, "--", "--model=lenet", "--device=cpu")
    assert status == 0, err
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [row["workers"] for row in rows] == ["1", "2"]
    check_outputs(Output("output", str(tmp_path / name)) for name in ("t.csv", "p.svg"))
    assert all(float(row["predicted_images_per_sec"]) > 0 for row in rows)
    assert all(float(row["efficiency_low"]) <= float(row["efficiency_high"]) for row in rows)
    assert "--repeats" not in err
    assert [line.split()[0] for line in out.splitlines()][-3:] == ["workers", "1", "2"]
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    records = sorted(path.name for path in (tmp_path / "r").glob("*.json"))
    assert records == sorted(
        f"{name}-{repeat}.json" for name in ("alone", "workers-1", "workers-2") for repeat in (1, 2)
    )
    flags = json.loads((tmp_path / "r" / "alone-1.json").read_text())["command"]
    assert "--variable_update=independent" in flags
    assert not any(word.startswith("--worker_hosts") for word in flags)


def test_scaling_by_single_runs_asks_for_more(launch):
    status, out, err = launch("--ps=1", "--scaling=1", "--", "--model=lenet", "--device=cpu")
    assert status == 0
    assert "cnnbench: --repeats=1: single runs scatter" in err
    assert out.splitlines()[-1].split()[6] == "-"


def test_scaling_of_a_job_that_fails(launch, monkeypatch):
    monkeypatch.setenv("FAKE_DO", "worker:0=4")
    status, out, err = launch("--ps=1", "--scaling=1", "--", "--model=lenet", "--device=cpu")
    assert (status, out) == (4, "")
    assert "cnnbench: error: workers-1-1 failed; its logs are in scaling/workers-1-1" in err


def _alive(group):
    """The processes of a session, by its leader."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[3] in group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_a_real_job_that_is_killed_leaves_nothing(tmp_path):
    """The launch is ended by SIGKILL in mid-training, as nobody can clean up after."""
    flags = ("--model=trivial", "--device=cpu", "--batch_size=2", "--num_batches=1000000")
    words = ("--workers=1", "--ps=1", f"--log_dir={tmp_path}", "--", *flags, "--display_every=1")
    out = tmp_path / "out"
    with open(out, "wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "cnnbench", "launch", *words],
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        try:
            deadline = time.monotonic() + 200
            while b"images/sec" not in out.read_bytes():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            # The guards lead sessions of their own.
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
            assert len(children) == 2
            assert len(_alive(children)) >= 4
            ports = re.findall(rb"localhost:(\d+)", commands[0])
            assert probe(f"localhost:{int(ports[0])}") != REFUSED
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    deadline = time.monotonic() + 20
    while _alive(children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _alive(children) == []
    assert {probe(f"localhost:{int(port)}") for port in ports} == {REFUSED}
