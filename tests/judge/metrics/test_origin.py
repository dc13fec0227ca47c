"""Origins: whatever reads records, no interval, median or verdict ever spans two of them.

Tests cnnbench/judge/metrics/measurement.py and cnnbench/judge/report/results.py.
"""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.judge.compare import Criteria, Verdict, compare_records, judge
from cnnbench.judge.metrics.origin import Origin, machine_name, origin_titles, varying_parts
from cnnbench.judge.report.renderers import render
from cnnbench.judge.report.results import gather as report_of
from cnnbench.judge.report.results import group_runs
from cnnbench.judge.report.tables import frame
from cnnbench.records.load import Loaded
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

SUBJECTS = st.none() | st.builds(
    Subject,
    repository=st.sampled_from([None, "github.com/o/nets", "github.com/o/other"]),
    revision=st.sampled_from([None, "a" * 40, "a" * 39 + "b", "v1"]),
    dirty=st.sampled_from([None, False, True]),
    changes=st.sampled_from([None, "1" * 16, "1" * 8 + "2" * 8]),
    unknown=st.sampled_from([None, "no git"]),
    side=st.sampled_from([None, "a", "b"]),
    labels=st.sampled_from([{}, {"job": "1"}, {"job": "2"}]),
)
FACTS = st.fixed_dictionaries(
    {"tensorflow_version": st.sampled_from(["2.20.0", "2.21.0", None])},
    optional={
        "cpu_model": st.sampled_from(["Slow CPU", "Fast CPU"]),
        "cgroup_cpu_limit": st.sampled_from([1.5]),
        "gpu_names": st.sampled_from([["H", "H"], ["G"]]),
        "git_commit": st.sampled_from(["c" * 40, "d" * 40]),
        "git_changes": st.sampled_from(["3" * 16, "4" * 16]),
    },
)
MIXED = st.lists(
    st.tuples(SUBJECTS, FACTS, st.sampled_from([50.0, 100.0])), min_size=1, max_size=12
)
SOME = settings(max_examples=12, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def made(lenet_runs):
    """Makes a run per triple of subject, facts and speed."""
    one = lenet_runs({"hostname": "box"})
    numbers = itertools.count()

    def make(triples):
        found = []
        for subject, facts, speed in triples:
            run = one(speed, subject=subject, environment=facts, run_id=f"r{next(numbers)}")
            found.append(RunRecord.from_json(run.to_json()))
        return found

    return make


def identity(record):
    """What must not be pooled, written down apart from the code under test."""
    subject, facts = record.subject or Subject(), record.environment
    known = subject.revision is not None or subject.unknown is not None
    own = not known and "git_commit" in facts
    machine = ("gpu_names", "cpu_model", "architecture", "usable_cpus", "cgroup_cpu_limit")
    return json.dumps(
        [
            subject.side or "",
            subject.repository or "",
            facts["git_commit"] if own else subject.revision or "",
            None if own else subject.dirty,
            facts.get("git_changes") if own else subject.changes,
            facts.get("tensorflow_version", ""),
            {name: facts.get(name) for name in machine},
        ]
    )


@SOME
@given(MIXED)
def test_an_origin_is_what_must_not_be_pooled(made, triples):
    records = made(triples)
    for one, other in itertools.combinations(records, 2):
        assert (identity(one) == identity(other)) == (Origin.of(one) == Origin.of(other))


@SOME
@given(MIXED)
def test_a_report_pools_one_origin_and_all_of_it(made, triples):
    records = made(triples)
    found = group_runs(records)
    assert len({one.name for one in found}) == len(found) == len({*map(identity, records)})
    for one in found:
        assert len({*map(identity, one.records)}) == 1
        speeds = [r.batch.global_ / r.step_seconds[0] for r in one.records]
        assert sorted(one.throughput.values) == pytest.approx(sorted(speeds))
    rows = frame(report_of(Loaded(tuple(records), ())), "configurations")
    assert sorted(rows["processes"]) == sorted(len(one.records) for one in found)


@SOME
@given(MIXED, st.sampled_from(["commit", "day", "hostname"]))
def test_a_point_of_a_history_is_of_one_origin(made, series_of, triples, by):
    records = made(triples)
    known = {record.run_id: identity(record) for record in records}
    seen = []
    for series in series_of(records, by=by):
        assert len({point.title for point in series.points}) == len(series.points)
        for point in series.points:
            origins = {known[run.run_id] for run in point.runs}
            assert len(origins) == 1
            seen += origins
    assert sorted(seen) == sorted({*known.values()})


@SOME
@given(MIXED, MIXED, st.sampled_from([(), ("tensorflow", "machine", "git_commit")]))
def test_a_verdict_is_of_one_origin_a_side(made, base, new, allowed):
    sides = made(base), made(new)
    criteria = Criteria(allow_different=allowed, metrics=["throughput"])
    found = compare_records(*sides, criteria)
    (entry,) = found.entries
    pure = all(len({*map(identity, side)}) == 1 for side in sides)
    judgement = entry.main.judgement
    if not pure:
        assert entry.main.verdict is Verdict.NOT_COMPARABLE
        assert (judgement.change, judgement.low, judgement.p) == (None, None, None)
    elif allowed:
        assert judgement.change == judge(entry.main.samples).change


def test_nothing_to_tell_apart():
    assert (origin_titles([]), varying_parts([])) == ({}, {})


def test_a_mixture_is_named_with_what_differs(made):
    base = made([(Subject(revision="a" * 40, side=side), {}, 100.0) for side in "ab" * 4])
    new = made([(Subject(revision="b" * 40, side="b"), {}, 100.0) for _ in range(8)])
    (entry,) = compare_records(base, new, Criteria(metrics=["throughput"])).entries
    assert entry.main.judgement.reason.startswith("side is A or B")


def test_of_many_revisions_three_are_named(made):
    revisions = [f"{number:040x}" for number in range(103)]
    base = made([(Subject(revision=revision), {}, 100.0) for revision in revisions])
    new = made([(Subject(revision="b" * 40), {}, 100.0) for _ in range(8)])
    found = compare_records(base, new, Criteria(metrics=["throughput"]))
    reason = found.entries[0].main.judgement.reason
    assert " or 100 others" in reason
    for format in ("table", "markdown", "junit", "github"):
        text = render(found, format)
        assert text.count("0" * 12) < 20
        assert max(map(len, text.splitlines())) < 1_000


def test_facts_of_any_type_are_read(made):
    # Records may come from anywhere.
    facts = {"git_commit": "c" * 40, "git_dirty": ["x"], "tensorflow_version": {"a": [1]}}
    (record,) = made([(None, {**facts, "cpu_model": [None], "usable_cpus": {}}, 100.0)])
    assert Origin.of(record) == Origin.of(record)
    assert [one.name for one in group_runs([record])] == ["lenet, batch 8, 1 cpu"]


def test_names_of_gpus_that_cannot_be_read_are_shown_as_they_are():
    deep = "[" * 100_000
    assert machine_name({"gpu_names": deep}) == deep
    assert machine_name({"gpu_names": '["a", "a"]'}) == "2 x a"


def test_what_varies_names_configurations_and_points(made, series_of):
    gate = [
        Subject(revision="a" * 40, dirty=False, side="a"),
        Subject(revision="b" * 40, dirty=True, side="b"),
    ]
    records = made([(subject, {"tensorflow_version": "2.21.0"}, 100.0) for subject in gate])
    assert [one.name for one in group_runs(records)] == [
        f"lenet, batch 8, 1 cpu, side A, {'a' * 12}",
        f"lenet, batch 8, 1 cpu, side B, {'b' * 12}+",
    ]
    (series,) = series_of(records)
    assert [point.short_title for point in series.points] == ["a" * 12, "b" * 12]
