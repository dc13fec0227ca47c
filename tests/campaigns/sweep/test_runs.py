"""``cnnbench sweep`` over a stand-in for ``cnnbench run``: failures, resuming, searches.

Tests cnnbench/campaigns/sweep/run.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from edits import rewrite

from cnnbench.campaigns.sweep import summary
from cnnbench.data import InputSpec
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


@pytest.fixture(autouse=True)
def estimated(monkeypatch):
    """estimated((FITS, DOES_NOT)): sets the estimated batch sizes, unknown until then."""
    limits = [None]
    name = "cnnbench.campaigns.processes.resolved.batch_size_limits"
    monkeypatch.setattr(name, lambda plan: limits[-1])
    return limits.append


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


def ends():
    """The ends of processes that are no trials of a batch size."""
    return [one for one in journal() if one["repeat"]]


def ended(case, repeat=1):
    """The last end of a process, and its record."""
    *_, end = (one for one in ends() if (one["case"], one["repeat"]) == (case, repeat))
    return end, json.loads(Path("results", end["record"]).read_text())


def given_up(case):
    """The last end of a process of a case that has no result, and its record."""
    *_, end = (one for one in journal() if one["case"] == case)
    (path,) = Path("results").glob(f"*{end['key']}.r1.*.json")
    return end, json.loads(path.read_text())


def runs_of(printed, case):
    """The number of processes of a configuration, from the table: as in 2 ok, 1 failed."""
    (line,) = (line for line in printed.out.splitlines() if line.startswith(f"{case}  "))
    return re.search(r"\d+ ok(, \d+ failed)?", line)[0]


def tried():
    return [one["batch_size"] for one in journal() if not one["repeat"]]


def test_every_run_leaves_a_record_and_a_log(sweep, holds):
    sweep(
        entry("a", repeats=2, matrix={"num_gpus": [1, 2]}),
        entry("b", "exit", flags={"model": "lenet"}),
        code=4,
    )
    assert sorted((end["case"], end["repeat"]) for end in ends()) == [
        *((f"a num_gpus={n}", repeat) for n in (1, 2) for repeat in (1, 2)),
        ("b", 1),
    ]
    loaded = load_records(["results"])
    assert (len(loaded.records), loaded.skipped) == (5, ())
    for end in ends():
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
    assert sorted(one["case"] for one in ends()) == ["a", "a", "b", "b"]
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
    assert [one["repeat"] for one in ends()] == [1, 2, 3]
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
    assert [one["case"] for one in ends()][2:] == ["j workers=4"]


SEARCH = {"limit": 1000, "multiple_of": 1, "num_batches": 7}


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ((20, 24), [20, 22, 23]),
        ((30, 1000), [30, 15, 22, 26, 24, 23]),
    ],
)
def test_a_search_starts_from_the_estimate(sweep, estimated, limits, sizes):
    estimated(limits)
    sweep(entry("a", "oom", max_batch_search=SEARCH))
    assert tried() == sizes
    assert ended("a")[1]["batch"]["per_device"] == 23


def test_search_runs_in_fresh_processes_and_its_batch_is_measured(sweep):
    searched = entry("a", "oom", repeats=2, max_batch_search=SEARCH, flags={"num_epochs": 2})
    printed = sweep(searched)
    fits = {one["batch_size"]: one["status"] == "ok" for one in journal() if not one["repeat"]}
    assert list(fits.items()) == [
        *((4, True), (8, True), (16, True), (32, False)),
        *((24, False), (20, True), (22, True), (23, True)),
    ]
    for repeat in (1, 2):
        end, record = ended("a", repeat)
        assert end["status"] == "ok"
        assert record["sweep"]["requested_batch_size"] == 4
        assert record["config"]["batch_size"] == record["batch"]["per_device"] == 23
        assert "--num_epochs=2" in record["command"]
    assert len(load_records(["results"]).records) == 2  # trials leave none
    assert "a: largest batch: 23 per device" in printed.err
    logs = [re.search(r"batch(\d+)", path.name) for path in Path("results").glob("*batch*.log")]
    assert sorted(int(match[1]) for match in logs) == [4, 8, 16, 20, 22, 23, 24, 32]


def test_a_search_with_mixed_images_tries_even_batches(sweep, monkeypatch):
    monkeypatch.setattr(InputSpec, "required_batch_multiple", 2)
    printed = sweep(entry("a", "oom", max_batch_search=SEARCH))
    assert tried() == [4, 8, 16, 32, 24, 20, 22]
    assert "a: largest batch: 22 per device" in printed.err


def test_a_shape_bug_is_not_walked_down(sweep):
    searched = entry("a", "bug", repeats=2, max_batch_search=SEARCH)
    sweep(searched, entry("b", flags={"num_gpus": 2}), code=4)
    assert tried() == [4, 8, 16, 32]
    assert [(end["case"], end["repeat"]) for end in ends()] == [("b", 1)]
    end, record = given_up("a")
    assert (end["status"], end["problem"]) == ("failed", "shapes do not fit")
    assert record["config"]["batch_size"] == 32
    assert ended("b")[0]["status"] == "ok"


@pytest.mark.parametrize(
    ("searched", "status", "sizes"),
    [
        (entry("a", "hang", timeout=0.2, max_batch_search=SEARCH), "timed_out", [4]),
        (
            entry("a", "oom", flags={"batch_size": 64}, max_batch_search={"multiple_of": 32}),
            "out_of_memory",
            [64, 32, 32],
        ),
    ],
)
def test_a_search_without_a_result(sweep, searched, status, sizes):
    sweep(searched, code=4)
    assert given_up("a")[0]["status"] == status
    assert tried() == sizes


def test_a_search_ends_at_its_limit(sweep):
    err = sweep(entry("a", max_batch_search={"limit": 10})).err
    assert "10 per device, the limit of the search" in err


def test_a_search_that_was_killed_goes_on_where_it_was(sweep, call, tmp_path, monkeypatch):
    searched = entry("a", "oom", max_batch_search=SEARCH)
    once = tmp_path / "once"
    once.touch()
    killed = {"interrupt": ["24"], "parent": os.getpid(), "once": str(once)}
    say = {"by_threads": [{**deed, **killed} for deed in DEEDS.values()]}
    monkeypatch.setenv("FAKE", json.dumps(say))
    sweep(searched, code=130)
    assert not once.exists()
    sweep(searched, resume=True)
    assert ended("a")[0]["status"] == "ok"
    assert tried() == [4, 8, 16, 32, 24, 20, 22, 23]  # none of them twice
    before = len(journal())
    assert runs_of(sweep(searched, resume=True), "a") == "1 ok"
    left = call("sweep", "suite.yaml", "--resume", "--repeats=2", "--dry_run").out
    assert left.startswith("# 1 a #2, at most ")
    assert left.endswith(" --batch_size=23\n")
    assert left.count("\n") == 2
    assert len(journal()) == before


def test_the_command_that_is_advised_runs_as_many_processes_as_it_says(
    sweep, call, estimated, monkeypatch
):
    monkeypatch.setattr(summary, "processes_to_detect", lambda *_: 4)
    entries = [entry("a", "oom"), entry("b", "oom", flags={"num_gpus": 2}), entry("c", "hang")]
    Path("suite.yaml").write_text(json.dumps({"entries": entries}))
    flags = ("--filter=a|b", "--max_batch_search", "--results=r", "--timeout=60")
    flags += ("--repeats=2", "--", "--xla_compile")
    (line,) = (
        line
        for line in call("sweep", "suite.yaml", *flags).err.splitlines()
        if " of BASE and of NEW" in line
    )
    many, words = re.search(r" NEW, (\d+) processes more in all; .* or (.*)", line).groups()
    journal = Path("r", "events.jsonl")
    before = len(journal.read_text())
    estimated((16, 1000))  # a search would begin with another batch size
    call(*shlex.split(words)[1:])
    added = journal.read_text()[before:]
    assert '"repeat": 0' not in added
    assert added.count('"event": "process"') == int(many)


def test_results_that_can_no_longer_be_written_end_the_sweep(sweep, little_disk):
    with little_disk(4096):
        err = sweep(entry("a"), entry("b", flags={"num_gpus": 2}), code=4).err
    assert "File too large" in err
    assert len(journal()) <= 1
