"""``cnnbench sweep`` over a stand-in for ``cnnbench run``: failures, resuming, batch sizes.

Tests cnnbench/campaigns/sweep/run.py.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from edits import rewrite

from cnnbench.campaigns.sweep import summary
from cnnbench.judge.compare import load_records

pytestmark = pytest.mark.timeout(120)

# What processes do, by the place in this list: --num_intra_threads. See fake_python.py.
DEEDS = {
    "ok": {},
    "exit": {"die": "no more"},
    "hang": {"wait": 600},
    "corrupt": {"cut": 20},
    "failed": {"capacity": 0, "message": "no good"},
    "oom": {"capacity": 23, "message": "out of memory: lower --batch_size"},
    "bug": {"capacity": 23, "kind": "InvalidArgumentError", "message": "shapes do not fit"},
}


def entry(name, deed="ok", **settings):
    flags = {
        "num_intra_threads": list(DEEDS).index(deed),
        "batch_size": 4,
        **settings.pop("flags", {}),
    }
    return {"name": name, "flags": flags, "repeats": 1, **settings}


@pytest.fixture
def sweep(call, quick_processes, fake_python, tmp_path, monkeypatch):
    """sweep(ENTRY..., code=0): what a sweep of these entries prints."""
    program = (fake_python, "-c", "cnnbench", "")
    monkeypatch.setattr("cnnbench.cli.commands.sweep.own_command_prefix", lambda: program)
    monkeypatch.setenv("FAKE", json.dumps({"by_threads": list(DEEDS.values())}))
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.chdir(tmp_path)

    def sweep(*entries, resume=False, code=0):
        Path("suite.yaml").write_text(json.dumps({"entries": entries}))
        more = ["--resume"] if resume else []
        return call("sweep", "suite.yaml", "--seed=1", *more, code=code)

    return sweep


def journal(event="process"):
    lines = Path("results", "events.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["event"] == event]


def ended(case, repeat=1):
    """The last end of a process, and its record."""
    *_, end = (one for one in journal() if (one["case"], one["repeat"]) == (case, repeat))
    return end, json.loads(Path("results", end["record"]).read_text())


def runs_of(printed, case):
    """The number of processes of a configuration, from the table: as in 2 ok, 1 failed."""
    (line,) = (line for line in printed.out.splitlines() if line.startswith(f"{case}  "))
    return re.search(r"\d+ ok(, \d+ failed)?", line)[0]


def test_every_run_leaves_a_record_and_a_log(sweep, holds):
    sweep(
        entry("a", repeats=2, matrix={"num_gpus": [1, 2]}),
        entry("b", "exit", flags={"model": "lenet"}),
        code=4,
    )
    assert sorted((end["case"], end["repeat"]) for end in journal()) == [
        *((f"a num_gpus={n}", repeat) for n in (1, 2) for repeat in (1, 2)),
        ("b", 1),
    ]
    loaded = load_records(["results"])
    assert (len(loaded.records), loaded.skipped) == (5, ())
    for end in journal():
        log = Path("results", end["record"]).with_suffix(".log")
        assert "about to measure" in log.read_text()
    assert {path.suffix for path in Path("results").iterdir()} == {*(".json", ".jsonl", ".log")}
    holds("journal", *map(json.loads, Path("results", "events.jsonl").read_text().splitlines()))
    end, record = ended("a num_gpus=2")
    assert end["status"] == "ok"
    holds("run", record)
    assert record["sweep"] == {
        "suite": "suite",
        "case": "a num_gpus=2",
        "key": end["key"],
        "repeat": 1,
        "seed": 1,
        "command": ["cnnbench", "sweep", "suite.yaml", "--seed=1"],
    }
    # The file that the record has in the end, not the one the child wrote it to.
    assert record["config"]["result_json"] == f"results/{end['record']}"
    assert record["command"][-1] == f"--result_json=results/{end['record']}"
    assert record["command"][:3] == ["cnnbench", "run", "--num_intra_threads=0"]


def test_what_fails_is_recorded_and_the_rest_goes_on(sweep):
    bad = {
        "exit": ("failed", "ExitStatus"),
        "hang": ("timed_out", "TimedOut"),
        "corrupt": ("failed", "UnusableRecord"),
        "failed": ("failed", "BenchmarkError"),
        "oom": ("out_of_memory", "BenchmarkError"),
    }
    entries = [
        entry(deed, deed, timeout=0.5 if deed == "hang" else 60, flags={"batch_size": 64})
        for deed in bad
    ]
    err = sweep(*entries, entry("good"), code=4).err
    assert ended("good")[0]["status"] == "ok"
    for name, (status, kind) in bad.items():
        end, record = ended(name)
        assert (name, end["status"]) == (name, status)
        assert (record["status"], record["error"]["type"]) == ("failed", kind)
    loaded = load_records(["results"])
    assert (len(loaded.records), loaded.skipped) == (len(bad) + 1, ())
    unusable = Path("results", ended("corrupt")[0]["record"]).with_suffix(".unusable")
    assert unusable.exists()
    assert "oom: out of memory: lower --batch_size (" in err


def test_resume_skips_what_is_done_and_repeats_what_failed(sweep):
    entries = [entry("a", repeats=2), entry("b", "exit", flags={"num_gpus": 2})]
    sweep(*entries, code=4)
    before = {path: path.stat().st_mtime_ns for path in Path("results").glob("*.r*.json")}
    printed = sweep(*entries, resume=True, code=4)
    assert "2 of 3 runs are done already" in printed.err
    assert sorted(one["case"] for one in journal()) == ["a", "a", "b", "b"]
    after = {path: path.stat().st_mtime_ns for path in Path("results").glob("*.r*.json")}
    assert set(after) == set(before)  # the failed record has been replaced, none added
    changed = [path.name for path in after if after[path] != before[path]]
    assert changed == [ended("b")[0]["record"]]
    assert [runs_of(printed, case) for case in "ab"] == ["2 ok", "0 ok, 1 failed"]


@pytest.mark.parametrize("before", [1, 3])
def test_resume_runs_only_the_repeats_that_are_missing(sweep, before):
    sweep(entry("a", repeats=before))
    slow = {"seconds": 60.0}
    rewrite(
        Path("results", "events.jsonl"), lambda one: {**one, **(slow if "seconds" in one else {})}
    )
    printed = sweep(entry("a", repeats=3), resume=True)
    assert f"{before} of 3 runs are done already" in printed.err
    assert (": about 2 min, as before" in printed.err) == (before < 3)
    assert [one["repeat"] for one in journal()] == [1, 2, 3]
    assert len(load_records(["results"]).records) == 3
    assert runs_of(printed, "a") == "3 ok"


def test_without_resume_a_sweep_begins_anew_and_keeps_what_is_there(sweep):
    sweep(entry("a"))
    assert runs_of(sweep(entry("a")), "a") == "1 ok"
    assert len(load_records(["results"]).records) == 2


def test_jobs_with_more_workers_are_added(sweep):
    mode = {"variable_update": "collective_all_reduce"}
    sweep(entry("j", flags=mode, matrix={"workers": [1, 2]}))
    _, record = ended("j workers=2")
    assert record["config"]["worker_hosts"].count(",") == 1
    err = sweep(entry("j", flags=mode, matrix={"workers": [1, 2, 4]}), resume=True).err
    assert "2 of 3 runs are done already" in err
    assert [one["case"] for one in journal()][2:] == ["j workers=4"]


def test_a_batch_size_that_does_not_fit_is_halved_in_every_process(sweep, call):
    found = {"batch_size": 64, "find_batch_size": True}
    printed = sweep(entry("a", "oom", repeats=2, flags=found), entry("b", "ok", flags=found))
    for case, batch in (("a", 16), ("b", 64)):
        end, record = ended(case)
        assert end["status"] == "ok"
        assert record["batch"]["per_device"] == record["config"]["batch_size"] == batch
        words = ["--batch_size=64", "--find_batch_size=true"]
        assert record["command"][3:-1] == words
        assert re.search(rf"^{case} +{batch} ", printed.out, re.MULTILINE)
    assert [run.batch.per_device for run in load_records(["results"]).records] == [16, 16, 64]
    # A later session runs what is missing, and begins with the batch size of the suite again.
    left = call("sweep", "suite.yaml", "--resume", "--repeats=3", "--dry_run").out
    assert left.count(" --batch_size=64 --find_batch_size=true\n") == 3
    printed = sweep(entry("a", "oom", repeats=3, flags=found), resume=True)
    assert runs_of(printed, "a") == "3 ok"
    assert [end["repeat"] for end in journal() if end["case"] == "a"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("deed", "status", "problem"),
    [("bug", "failed", "shapes do not fit"), ("failed", "failed", "no good")],
)
def test_only_a_lack_of_memory_halves_the_batch_size(sweep, deed, status, problem):
    found = {"batch_size": 64, "find_batch_size": True}
    sweep(entry("a", deed, flags=found), entry("b"), code=4)
    end, record = ended("a")
    assert (end["status"], end["problem"]) == (status, problem)
    assert record["config"]["batch_size"] == 64
    assert ended("b")[0]["status"] == "ok"


def test_the_command_that_is_advised_runs_as_many_processes_as_it_says(sweep, call, monkeypatch):
    monkeypatch.setattr(summary, "processes_to_detect", lambda *_: 4)
    entries = [entry("a", "oom"), entry("b", "oom", flags={"num_gpus": 2}), entry("c", "hang")]
    Path("suite.yaml").write_text(json.dumps({"entries": entries}))
    flags = ("--filter=a|b", "--results=r", "--timeout=60", "--repeats=2", "--")
    flags += ("--xla_compile", "--find_batch_size")
    (line,) = (
        line
        for line in call("sweep", "suite.yaml", *flags).err.splitlines()
        if " of BASE and of NEW" in line
    )
    many, words = re.search(r" NEW, (\d+) processes more in all; .* or (.*)", line).groups()
    journal = Path("r", "events.jsonl")
    before = len(journal.read_text())
    call(*shlex.split(words)[1:])
    added = journal.read_text()[before:]
    assert added.count('"event": "process"') == int(many)


def test_results_that_can_no_longer_be_written_end_the_sweep(sweep, little_disk):
    with little_disk(4096):
        err = sweep(entry("a"), entry("b", flags={"num_gpus": 2}), code=4).err
    assert "File too large" in err
    assert len(journal()) <= 1


def test_modes_side_by_side_in_the_table_and_in_the_report(sweep, call):
    modes = ["parameter_server", "replicated", "one_device_strategy"]
    flags = {"model": "trivial", "num_gpus": 2, "device": "cpu"}
    printed = sweep(
        entry(
            "a",
            alternatives=True,
            repeats=6,
            flags=flags,
            matrix={"variable_update": modes},
            include=[{"num_gpus": 1}],
        )
    )
    heading, *lines = printed.out.splitlines()
    assert ("95 % interval" in heading, "of the fastest" in heading) == (True, True)
    measured = {"a num_gpus=1", *(f"a variable_update={mode}" for mode in modes[:2])}
    shares = {line.split("  ")[0]: re.search(r" (\S+) %", line)[1] for line in lines[:3]}
    assert shares.keys() == measured
    assert "100.0" in shares.values()
    reason = "a variable_update=one_device_strategy: left out: --num_gpus=2: --variable_update=one_"
    assert lines[3].startswith(reason)
    call("report", "results", "-o", "page.html")
    page = Path("page.html").read_text()
    assert reason in page
    # The chart has a row for each mode, and one for one device alone.
    (chart, *_) = (
        svg
        for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)
        if "images/sec over the timed steps" in svg
    )
    for label in ("1 cpu", "2 cpu, parameter_server", "2 cpu, replicated"):
        assert f">{label}<" in chart
