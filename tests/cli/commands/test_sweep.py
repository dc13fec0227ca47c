"""``cnnbench sweep`` from the command line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.sweep.plan import SweepItem
from cnnbench.campaigns.sweep.run import SweepResult
from cnnbench.cli import main
from cnnbench.judge.compare import load_records
from cnnbench.plan import parse_run

SUITE = """
name: tiny
defaults:
  flags: {model: trivial, data_name: cifar10, device: cpu, batch_size: 2, num_batches: 3,
          num_warmup_batches: 1, peak_flops: 1e12}  # so that it is not measured
  timeout: 120
entries:
  - name: a
    repeats: 2
    matrix: {num_gpus: [1, 2]}
"""


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SUITE, encoding="utf-8")
    return tmp_path


def test_list(call, in_folder):
    _, *rows = call("sweep", "tiny.yaml", "--list").out.splitlines()
    assert rows == ["a num_gpus=1           2", "a num_gpus=2           2"]
    out = call("sweep", "--list", "--filter=gpus=2", "tiny.yaml", "--repeats=1").out
    assert out.splitlines()[1:] == ["a num_gpus=2           1"]
    assert not (in_folder / "results").exists()


def test_a_suite_for_gpus_says_how_to_scale_it_to_a_machine_without_one(call, in_folder):
    scaled = 'on_cpu: {flags: {device: cpu, batch_size: 1}, filter: "gpus=1"}'
    suite = in_folder / "big.yaml"
    suite.write_text(SUITE.replace("device: cpu, ", "") + scaled, encoding="utf-8")
    err = call("sweep", "big.yaml", "--list").err
    command = "cnnbench sweep big.yaml --list --filter=gpus=1 -- --device=cpu --batch_size=1"
    assert "tiny is a suite for GPUs, and this machine has no usable GPU; " in err
    assert f"to run it on CPUs: {command}\n" in err
    out, err = call(*command.split()[1:])
    assert out.splitlines()[1:] == ["a num_gpus=1           2"]
    assert "is a suite for GPUs" not in err


def test_dry_run_shows_commands_that_can_be_run(call, in_folder, monkeypatch):
    monkeypatch.setattr("sys.argv", ["__main__.py"])
    command = ["sweep", "tiny.yaml", "--dry_run", "--timeout=9", "--seed=1"]
    lines = call(*command, "--", "--num_batches=7", "--xla").out.splitlines()
    assert len(lines) == 8
    assert lines[0].startswith("# 1 a num_gpus=")
    assert lines[0].endswith(" #1, at most 9 s")
    for line in lines[1::2]:
        words = line.split()
        assert words[words.index("run") - 1].endswith("cnnbench")
        params = parse_run(words[words.index("run") + 1 :]).params
        assert (params.num_batches, params.xla, params.batch_size) == (7, True, 2)
    assert not (in_folder / "results").exists()


def test_violated_bounds_are_told_by_the_exit_code_whoever_reads(call, in_folder, monkeypatch):
    monkeypatch.setattr("cnnbench.campaigns.sweep.run.Sweep.run", lambda self: [])
    monkeypatch.setattr("cnnbench.cli.commands.sweep.exit_code", lambda rows: 1)
    # A stream without buffer, as at a terminal, fails at the first line.
    for flags, status in ((), 1), (["--list"], 4):
        with open("/dev/full", "w", buffering=1) as full, contextlib.redirect_stdout(full):
            err = call("sweep", "tiny.yaml", *flags, code=status).err
        assert err.count("No space left on device") == 1
    with contextlib.redirect_stdout(None):
        call("sweep", "tiny.yaml", "--results=others", code=1)


def test_a_report_of_a_sweep_says_what_the_sweep_said(call, in_folder, lenet_runs, monkeypatch):
    def measured(self):
        self.store.add_session_start(suite=self.plan.suite, stamp="x", cases=2, runs=4)
        make = lenet_runs()
        for number, case in enumerate(self.plan.cases):
            for repeat, speed in enumerate((100.0, 101.0), start=1):
                name = f"a.{case.key}.r{repeat}.20261120T000000000000Z.json"
                path = in_folder / "results" / name
                path.write_text(make(speed * (1 + number), devices=1 + number).to_json())
                ended = ProcessResult(0, 1.0, status="ok")
                self.results.append(SweepResult(SweepItem(case, repeat), path, ended))

    monkeypatch.setattr("cnnbench.campaigns.sweep.run.Sweep.run", measured)
    bounds = "    bounds: {images_per_sec: {min: 120}}\n"
    (in_folder / "tiny.yaml").write_text(SUITE + bounds, encoding="utf-8")
    table = call("sweep", "tiny.yaml", code=1).out
    broken = re.search(r"images_per_sec 100.5 below 120.0", table)[0]
    page = call("report", "results", "--format=markdown").out.replace("\\_", "_")
    first, second = re.findall(r"^ *- (.*)", page, re.M)[:2]
    assert first == "🔴 Suite tiny: 1 of 2 configurations violates a bound"
    # By the name in the suite and by that in the tables of the report.
    assert second == f"a num_gpus=1 (lenet, batch 8, 1 cpu): {broken}"
    assert "| lenet, batch 8, 1 cpu | 100.5 |" in page.partition("\n## Throughput\n")[2]
    assert "\n## Suite" not in page
    # The last sweep of a suite decides.
    (in_folder / "tiny.yaml").write_text(SUITE, encoding="utf-8")
    call("sweep", "tiny.yaml")
    page = call("report", "results", "--format=markdown").out
    assert "- Suite tiny: 2 configurations measured\n" in page


EDITING = """
open("notes", "a").write("1")
from cnnbench.models import register_model
register_model("own", "cifar10", dict)
"""


def test_code_that_is_edited_during_a_sweep_ends_it(call, in_folder, git, loaded_processes):
    """Each process appends a line to a tracked file, as an editor would meanwhile."""
    (in_folder / "net.py").write_text(EDITING)
    (in_folder / "notes").write_text("")
    git(in_folder, "init", "--quiet")
    git(in_folder, "add", ".")
    git(in_folder, "commit", "--quiet", "-m", "suite")
    flags = ["--filter=1", "--seed=1", "--repeats=2", "--", "--plugin=net.py"]
    err = call("sweep", "tiny.yaml", *flags, code=4).err
    error = "cnnbench: error: the measured code was changed (uncommitted changes of net.py); "
    assert err.count(error) == 1
    (path,) = Path("results").glob("*.r*.json")
    subject = json.loads(path.read_text())["subject"]
    assert subject["revision"] == git(in_folder, "rev-parse", "HEAD")
    assert subject["dirty"] is True


@pytest.mark.timeout(280)
def test_end_to_end(in_folder, capfd, loaded_processes):
    """Real runs: interrupted by SIGTERM, resumed, summed up; nothing twice."""
    command = ["sweep", "tiny.yaml", "--resume", "--seed=1", "--repeats=1"]

    def interrupt():
        deadline = time.monotonic() + 120
        while not any(Path("results").glob("*.r*.json")) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.2)  # another run has begun
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    assert main(command) == 130
    interrupted = capfd.readouterr()
    title, row = interrupted.out.splitlines()  # what was measured before
    assert (title.split()[0], row.split()[0]) == ("configuration", "a")
    said = interrupted.err.splitlines()
    begin, *_, further, end = (one for one in said if one.startswith("cnnbench: "))
    assert "2 processes of 2 configurations: about" in begin
    going_on = "cnnbench sweep tiny.yaml --seed=1 --repeats=1 --results=results --resume"
    assert further == f"cnnbench: to go on: {going_on}"
    assert end == "cnnbench: error: interrupted"
    assert len(load_records(["results"]).records) == 1
    assert main([*command, "--dry_run"]) == 0
    captured = capfd.readouterr()
    assert "cnnbench: 1 of 2 runs are done already" in captured.err
    (left,) = re.findall("^# 1 a (num_gpus=[12]),", captured.out, re.MULTILINE)
    assert left not in next(Path("results").glob("*.r*.json")).name
    assert captured.out.count("\n") == 2
    assert main(command) == 0
    captured = capfd.readouterr()
    assert "cnnbench: 1 of 2 runs are done already" in captured.err
    lines = captured.out.splitlines()
    assert lines[0].split()[:4] == ["configuration", "batch", "median", "images/sec"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["a", "num_gpus=1", "2"],
        ["a", "num_gpus=2", "2"],
    ]
    loaded = load_records(["results"])
    assert {record.status for record in loaded.records} == {"ok"}
    assert sorted(record.placement.num_towers for record in loaded.records) == [1, 2]
    assert {len(record.step_seconds) for record in loaded.records} == {3}


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_jobs_of_one_and_two_workers(call, in_folder, monkeypatch):
    """Real jobs of the shipped suite: measured, not measured again, and reported."""
    monkeypatch.setattr("sys.argv", ["cnnbench"])
    suite = ["sweep", "scaling", "--results=r", "--repeats=1", "--resume"]
    flags = "--model=trivial --data_name=cifar10 --device=cpu --batch_size=2 --num_batches=3"
    behind = ["--", *flags.split(), "--num_warmup_batches=1", "--peak_flops=1e12"]
    (row,) = call(*suite, "--filter=workers=2.*ps=1", *behind).out.splitlines()[1:2]
    assert row.startswith("workers workers=2 variable_update=parameter_server ps=1 ")
    out, err = call(*suite, "--filter=workers=1|workers=2.*ps=1", *behind)
    assert "1 of 2 runs are done already" in err
    assert [line.split()[1] for line in out.splitlines()[1:3]] == ["workers=1", "workers=2"]
    records = {record.sweep["case"]: record for record in load_records(["r"]).records}
    placed = {case: (run.placement.num_workers, run.status) for case, run in records.items()}
    assert placed == {
        "workers workers=1 variable_update=collective_all_reduce": (1, "ok"),
        "workers workers=2 variable_update=parameter_server ps=1": (2, "ok"),
    }
    page = call("report", "r", "--format=markdown").out.replace("\\_", "_")
    section = page.partition("\n## Scaling\n")[2].partition("\n## ")[0]
    _, _, *rows = re.findall(r"^\|.*", section, re.M)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[1] for row in cells] == ["1", "2"]
    assert cells[0][4] == "100.0 %"
    assert {row[5] for row in cells} == {"trivial, cifar10, batch 2, 1 cpu, collective_all_reduce"}
    assert "Workers on one machine share its cores" in section
