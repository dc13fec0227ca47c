"""scripts/check_install: what it runs, and what it says of what goes wrong.

The installs themselves take minutes and a package index: the last stage of .ci/run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import check_install
import pytest
from forked import until
from peers.process import Line, Process

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scratch(tmp_path, temporary_folders):
    """Where temporary folders go during a test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    temporary_folders(folder)
    return folder


MADE = ["cnnbench-1.1.0-py3-none-any.whl", "cnnbench-1.1.0.tar.gz"]


class Machine:
    """Stands in for the commands that take minutes; git is the real one."""

    def __init__(self, monkeypatch):
        self.commands = []
        self.failing = {}
        self.present = []
        self._run = check_install.run
        monkeypatch.setattr(check_install, "run", self)

    def __call__(self, command, *, timeout, environment, folder):
        modules = [one for one in ("pip", "venv", "build", "twine") if one in command[1:3]]
        name = modules[0] if modules else Path(command[0]).name
        self.commands.append((name, command, timeout))
        if name in self.failing:
            return self.failing[name]
        if name == "git":
            listed = self._run(command, timeout=timeout, environment=environment, folder=folder)
            listed.lines = [Line(0.0, "setup.py")]  # fewer files to copy
            return listed
        if name == "venv":
            Path(command[-1]).mkdir()
        if name == "build":
            assert (Path(command[-1]) / "setup.py").exists()
            dist = Path(folder) / "dist"
            dist.mkdir()
            for made in MADE:
                (dist / made).touch()
        if name == "twine":
            assert [Path(one).name for one in command[-2:]] == MADE
        if name == "cnnbench":
            assert environment["PYTHONPATH"] == folder
            assert (Path(folder) / "models" / "__init__.py").exists()
            self.present.append((Path(folder).parent / "checkout" / "setup.py").exists())
            flag, _, path = command[-1].partition("=")
            assert flag in ("--result_json", "--output", "tutorial")
            if path:
                Path(path).write_text(json.dumps({"status": "ok", "step_seconds": [1, 1, 1]}))
        return Process(status=0)


@pytest.fixture
def machine(monkeypatch, scratch):
    before = signal.getsignal(signal.SIGTERM)
    yield Machine(monkeypatch)
    signal.signal(signal.SIGTERM, before)


def test_both_ways_are_tried_one_line_each_and_nothing_is_left(machine, scratch, capsys):
    assert check_install.main([]) == 0
    trained = ["pip", *["cnnbench"] * 3]
    built = ["git", "venv", "pip", "build", "twine", "venv", *trained, *trained]
    used = [name for name, _, _ in machine.commands]
    assert used == [*built, "git", "venv", *trained]
    tools, *release, editable = (c for name, c, _ in machine.commands if name == "pip")
    assert tools[-2:] == ["build", "twine"]
    assert [Path(one[-1]).name for one in release] == MADE
    assert ["--force-reinstall" in one for one in release] == [False, True]
    assert editable[-2] == "--editable"
    # Nothing can lean on the sources of a release.
    assert machine.present == [False] * 6 + [True] * 3
    release_line, editable_line = capsys.readouterr().out.splitlines()
    assert release_line.startswith("release: installed and trained in ")
    assert editable_line.startswith("editable: installed and trained in ")
    assert list(scratch.iterdir()) == []


def test_a_failure_is_one_line_and_the_other_way_is_still_tried(machine, scratch, capsys):
    failure = "WARNING: trying\nERROR: No matching distribution found\n"
    machine.failing["pip"] = Process(status=1, errors=failure)
    assert check_install.main(["--timeout=5"]) == 1
    out, err = capsys.readouterr()
    reason = "FAILED: pip: exit status 1: ERROR: No matching distribution found"
    assert err.splitlines() == [f"release: {reason}", f"editable: {reason}"]
    assert out == ""
    assert {timeout for _, _, timeout in machine.commands} == {5}
    assert list(scratch.iterdir()) == []


def test_time_outs_and_missing_programs_are_named(machine, monkeypatch, capsys):
    machine.failing["venv"] = Process(status=-9, seconds=5.2, timed_out=True)
    assert check_install.main(["--way=release"]) == 1
    assert capsys.readouterr().err == "release: FAILED: venv: killed after 5 s\n"
    monkeypatch.setenv("PATH", "/nowhere/at/all")
    assert check_install.main(["--way=release"]) == 1
    expected = "release: FAILED: git: git cannot be started: No such file or directory\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"status": "failed", "step_seconds": [1, 1, 1]}, "does not contain three good steps"),
        ({"status": "ok", "step_seconds": [1]}, "does not contain three good steps"),
        ({"status": "ok"}, r"cannot be used: KeyError\('step_seconds'\)"),
        ([], "cannot be used: TypeError"),
    ],
)
def test_a_wrong_record_is_a_failure(tmp_path, record, reason):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    with pytest.raises(check_install.Failure, match=reason):
        check_install.check_record(path)


def test_the_copy_is_what_a_clone_would_hold(scratch):
    check_install.copy_checkout(scratch, 60)
    for name in ("setup.py", "cnnbench/__init__.py", "models/__init__.py", "scripts/run"):
        assert (scratch / name).read_bytes() == (ROOT / name).read_bytes()
    assert not (scratch / ".git").exists()
    assert not list(scratch.rglob("__pycache__"))


def test_sigterm_cleans_up(tmp_path):
    """A git that hangs stands in for any of the commands."""
    bin_folder, scratch = tmp_path / "bin", tmp_path / "scratch"
    bin_folder.mkdir()
    scratch.mkdir()
    git = bin_folder / "git"
    git.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexec sleep 600\n")
    git.chmod(0o755)
    variables = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "check_install.py"],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until((tmp_path / "started").exists, 60, process)
        process.terminate()
        # The pipes are closed, so the hanging program is gone too.
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (out, err) == ("", "check_install: interrupted\n")
    assert list(scratch.iterdir()) == []


def test_it_is_the_last_stage_of_ci():
    stages = [s for s in (ROOT / ".ci" / "run").read_text().splitlines() if s.startswith("stage ")]
    assert stages[-1] == 'stage install "$ROOT/scripts/check_install"'
