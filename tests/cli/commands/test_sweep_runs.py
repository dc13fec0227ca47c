"""Whole sweeps over a stand-in for ``cnnbench run``."""

from __future__ import annotations

import io
import json
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.processes import commands
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.sweep.runner import Store, Sweep, largest_batch
from cnnbench.campaigns.sweep.schema import BatchSizeSearch
from cnnbench.campaigns.sweep.summary import exit_code, summarise
from cnnbench.errors import BenchmarkError
from cnnbench.judge.compare import load_records
from cnnbench.records.codec import encode
from cnnbench.records.subject import Subject

pytestmark = pytest.mark.timeout(120)

# What processes do, by the place in this list: --tf_random_seed. See fake_python.py.
DEEDS = {
    "ok": {},
    "exit": {"die": "no more"},
    "hang": {"wait": 600},
    "corrupt": {"cut": 20},
    "failed": {"capacity": 0, "message": "no good"},
    "oom": {"capacity": 23, "message": "out of memory: lower --batch_size"},
    "bug": {"capacity": 23, "kind": "InvalidArgumentError", "message": "shapes do not fit"},
}
COMMAND = ("cnnbench", "sweep", "suite.yaml")
FACTS = {"hostname": "here", "tensorflow_version": "2.21.0"}


def entry(name, deed="ok", **settings):
    flags = {
        "tf_random_seed": list(DEEDS).index(deed),
        "batch_size": 4,
        **settings.pop("flags", {}),
    }
    return {"name": name, "flags": flags, "repeats": 1, **settings}


@pytest.fixture(autouse=True)
def estimated(monkeypatch):
    """estimated((FITS, DOES_NOT)): sets the estimated batch sizes, unknown until then."""
    limits = [None]
    monkeypatch.setattr(commands, "batch_limits", lambda params, plan: limits[-1])
    return limits.append


@pytest.fixture
def sweep(tmp_path, plan, fake_python, monkeypatch):
    """Runs a suite; returns its results by (case, repeat). What it said is in sweep.said."""

    def run(*entries, resume=False, seed=1, subject=None):
        made = plan(json.dumps({"entries": entries}), subject=subject)
        stream = io.StringIO()
        run.said = stream.getvalue
        with Store(str(tmp_path / "results")) as store:
            one = Sweep(
                made,
                store,
                Campaign(Reporter(stream), FACTS, grace=0.2),
                seed=seed,
                resume=resume,
                program=(fake_python, "-c", "cnnbench", ""),
                command=COMMAND,
            )
            results = one.run()
        run.rows = summarise(made.cases, results)
        return {(one.item.case.name, one.item.repeat): one for one in results}

    monkeypatch.setenv("FAKE", json.dumps({"by_seed": list(DEEDS.values())}))
    run.folder = tmp_path / "results"
    return run


def document(result):
    return json.loads(result.path.read_text())


def journal(sweep, event):
    lines = (sweep.folder / "sweep.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == event]


def test_every_run_leaves_a_record_and_a_log(sweep, holds):
    subject = Subject(repository="nets", revision="a" * 40, dirty=False)
    results = sweep(
        entry("a", repeats=2, matrix={"num_gpus": [1, 2]}),
        entry("b", "exit", flags={"model": "lenet"}),
        subject=subject,
    )
    assert set(results) == {(f"a num_gpus={n}", r) for n in (1, 2) for r in (1, 2)} | {("b", 1)}
    loaded = load_records([sweep.folder])
    assert len(loaded.records) == 5
    assert loaded.skipped == ()
    for result in results.values():
        assert result.path.parent == sweep.folder
        assert "about to measure" in result.path.with_suffix(".log").read_text()
        assert document(result)["subject"] == encode(subject)
    assert [path.name for path in (sweep.folder / ".sweep").iterdir()] == []
    holds("journal", *map(json.loads, (sweep.folder / "sweep.jsonl").read_text().splitlines()))
    result = results["a num_gpus=2", 1]
    assert result.ended.status == "ok"
    record = document(result)
    holds("run", record)
    assert record["sweep"] == {
        "suite": "suite",
        "case": "a num_gpus=2",
        "key": result.item.case.key,
        "repeat": 1,
        "seed": 1,
        "command": list(COMMAND),
    }
    # The file that the record has in the end, not the one the child wrote it to.
    assert record["config"]["result_json"] == str(result.path)
    assert record["command"][-1] == f"--result_json={result.path}"
    assert record["command"][:3] == ["cnnbench", "run", "--tf_random_seed=0"]


def test_another_revision_is_another_run(sweep):
    one = entry("a")
    first = sweep(one, subject=Subject(revision="a" * 40, dirty=False))
    again = sweep(one, subject=Subject(revision="a" * 40, dirty=False), resume=True)
    assert again["a", 1].path == first["a", 1].path
    other = sweep(one, subject=Subject(revision="b" * 40, dirty=False), resume=True)
    assert other["a", 1].path != first["a", 1].path
    assert "revision changed since the last sweep" in sweep.said()


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
    results = sweep(*entries, entry("good"))
    assert results[("good", 1)].ended.status == "ok"
    for name, (status, kind) in bad.items():
        result = results[(name, 1)]
        assert (name, result.ended.status) == (name, status)
        assert document(result)["status"] == "failed"
        assert document(result)["error"]["type"] == kind
    loaded = load_records([sweep.folder])
    assert len(loaded.records) == len(bad) + 1
    assert loaded.skipped == ()
    assert exit_code(sweep.rows) == 4
    assert results[("corrupt", 1)].path.with_suffix(".unusable").exists()
    assert "out of memory: out of memory: lower --batch_size" in sweep.said()


def test_resume_skips_what_is_done_and_repeats_what_failed(sweep):
    entries = [entry("a", repeats=2), entry("b", "exit", flags={"num_gpus": 2})]
    first = sweep(*entries)
    before = {path: path.stat().st_mtime_ns for path in sweep.folder.glob("*.json")}
    second = sweep(*entries, resume=True)
    assert "2 of 3 runs are done already" in sweep.said()
    assert [e["case"] for e in journal(sweep, "end")].count("a") == 2
    assert [e["case"] for e in journal(sweep, "end")].count("b") == 2
    after = {path: path.stat().st_mtime_ns for path in sweep.folder.glob("*.json")}
    assert set(after) == set(before)  # the failed record has been replaced, none added
    assert [path for path in after if after[path] != before[path]] == [second[("b", 1)].path]
    assert {k: r.path for k, r in first.items()} == {k: r.path for k, r in second.items()}
    assert [(row.name, row.ok, row.failed) for row in sweep.rows] == [("a", 2, 0), ("b", 0, 1)]


@pytest.mark.parametrize("before", [1, 3])
def test_resume_runs_only_the_repeats_that_are_missing(sweep, before):
    sweep(entry("a", repeats=before))
    sweep(entry("a", repeats=3), resume=True)
    assert f"{before} of 3 runs are done already" in sweep.said()
    assert (", as before" in sweep.said()) == (before < 3)  # its durations are known
    assert [e["repeat"] for e in journal(sweep, "end")] == [1, 2, 3]
    assert len(load_records([sweep.folder]).records) == sweep.rows[0].ok == 3


def test_without_resume_a_sweep_begins_anew_and_keeps_what_is_there(sweep):
    first = sweep(entry("a"))
    second = sweep(entry("a"))
    assert first[("a", 1)].path != second[("a", 1)].path
    assert len(load_records([sweep.folder]).records) == 2
    assert sweep.rows[0].ok == 1


def test_a_record_that_was_damaged_afterwards_is_not_done(sweep):
    path = sweep(entry("a"))[("a", 1)].path
    path.write_bytes(path.read_bytes()[:-30])
    assert sweep(entry("a"), resume=True)[("a", 1)].ended.status == "ok"
    assert len(journal(sweep, "end")) == 2
    assert load_records([sweep.folder]).skipped == ()


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
    assert [t["batch_size"] for t in journal(sweep, "trial")] == sizes
    assert sweep.rows[0].batch_size == 23


def test_search_runs_in_fresh_processes_and_its_batch_is_measured(sweep):
    searched = entry("a", "oom", repeats=2, max_batch_search=SEARCH, flags={"num_epochs": 2})
    results = sweep(searched)
    trials = journal(sweep, "trial")
    assert [(t["batch_size"], t["fits"]) for t in trials] == [
        *((4, True), (8, True), (16, True), (32, False)),
        *((24, False), (20, True), (22, True), (23, True)),
    ]
    assert {result.ended.status for result in results.values()} == {"ok"}
    for result in results.values():
        record = document(result)
        assert record["sweep"]["requested_batch_size"] == 4
        assert record["config"]["batch_size"] == record["batch"]["per_device"] == 23
        assert "--num_epochs=2" in record["command"]
    assert len(load_records([sweep.folder]).records) == 2  # trials leave none
    assert "a: largest batch: 23 per device" in sweep.said()
    assert sweep.rows[0].batch_size == 23
    logs = [re.search(r"batch(\d+)", p.name) for p in sweep.folder.glob("*batch*.log")]
    assert sorted(int(match[1]) for match in logs) == [4, 8, 16, 20, 22, 23, 24, 32]


def test_a_shape_bug_is_not_walked_down(sweep):
    searched = entry("a", "bug", repeats=2, max_batch_search=SEARCH)
    results = sweep(searched, entry("b", flags={"num_gpus": 2}))
    assert [t["batch_size"] for t in journal(sweep, "trial")] == [4, 8, 16]
    assert set(results) == {("a", 1), ("b", 1)}
    assert results[("a", 1)].ended.status == "failed"
    assert results[("a", 1)].ended.message == "shapes do not fit"
    assert document(results[("a", 1)])["config"]["batch_size"] == 32
    assert results[("b", 1)].ended.status == "ok"


@pytest.mark.parametrize(
    ("searched", "status", "sizes"),
    [
        (entry("a", "hang", timeout=0.2, max_batch_search=SEARCH), "timed_out", []),
        (
            entry("a", "oom", flags={"batch_size": 64}, max_batch_search={"multiple_of": 32}),
            "out_of_memory",
            [64, 32],
        ),
    ],
)
def test_a_search_without_a_result(sweep, searched, status, sizes):
    assert sweep(searched)[("a", 1)].ended.status == status
    assert [t["batch_size"] for t in journal(sweep, "trial")] == sizes


def test_a_search_ends_at_its_limit(sweep):
    searched = entry("a", max_batch_search={"limit": 10})
    sweep(searched)
    assert "10 per device, the limit of the search" in sweep.said()


def test_a_search_that_was_killed_goes_on_where_it_was(sweep, monkeypatch):
    searched = entry("a", "oom", max_batch_search=SEARCH)
    once = sweep.folder.with_name("once")
    once.touch()
    killed = {"interrupt": ["24"], "parent": os.getpid(), "once": str(once)}
    say = {"by_seed": [{**deed, **killed} for deed in DEEDS.values()]}
    monkeypatch.setenv("FAKE", json.dumps(say))
    with pytest.raises(KeyboardInterrupt):
        sweep(searched)
    assert not once.exists()
    assert sweep(searched, resume=True)[("a", 1)].ended.status == "ok"
    sizes = [t["batch_size"] for t in journal(sweep, "trial")]
    assert sizes == [4, 8, 16, 32, 24, 20, 22, 23]  # none of them twice
    sweep(searched, resume=True)
    assert len(journal(sweep, "searched")) == 1
    assert sweep.rows[0].ok == 1


def test_results_that_can_no_longer_be_written_end_the_sweep(sweep, little_disk):
    with little_disk(1024), pytest.raises(BenchmarkError, match="File too large"):
        sweep(entry("a"), entry("b", flags={"num_gpus": 2}))
    assert len(journal(sweep, "start")) == 1


def tried(start, search, capacity):
    sizes = []

    def fits(size):
        sizes.append(size)
        return size <= capacity

    return largest_batch(start, search, fits), sizes


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(
    start=st.integers(1, 3000),
    limit=st.integers(1, 3000),
    unit=st.integers(1, 64),
    capacity=st.integers(0, 4000),
)
def test_finds_the_largest_multiple_that_fits(start, limit, unit, capacity):
    limit = max(limit, unit)
    search = BatchSizeSearch(limit=limit, multiple_of=unit)
    found, sizes = tried(start, search, capacity)
    assert found == min(capacity, limit) // unit * unit
    assert len(set(sizes)) == len(sizes) <= 2 * (limit // unit).bit_length() + 2
    assert all(size % unit == 0 and unit <= size <= limit for size in sizes)
