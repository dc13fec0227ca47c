"""Origins: whatever reads records, no interval, median or verdict ever spans two of them.

Tests cnnbench/judge/metrics/measurement.py and cnnbench/judge/report/results.py.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.judge.compare import Criteria, Verdict, compare_records, judge
from cnnbench.judge.metrics.measurement import readable_fact, short_commit
from cnnbench.judge.metrics.origin import (
    Origin,
    fill_in_origins,
    machine_name,
    machine_names,
    origin_titles,
    varying_parts,
)
from cnnbench.judge.report.results import gather as report_of
from cnnbench.judge.report.results import group_runs
from cnnbench.judge.report.tables import frame
from cnnbench.records.load import Loaded
from cnnbench.records.run import ModelInfo, RunRecord
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
    revisions = [f"{number:03}" + "f" * 37 for number in range(103)]
    base = made([(Subject(revision=revision), {}, 100.0) for revision in revisions])
    new = made([(Subject(revision="b" * 40), {}, 100.0) for _ in range(8)])
    found = compare_records(base, new, Criteria(metrics=["throughput"]))
    reason = found.entries[0].main.judgement.reason
    assert reason.startswith("revision is 000fffffffff, 001fffffffff, 002fffffffff or 100 others")


def test_facts_of_any_type_are_read(made):
    # Records may come from anywhere.
    facts = {"git_commit": "c" * 40, "git_dirty": ["x"], "tensorflow_version": {"a": [1]}}
    (record,) = made([(None, {**facts, "cpu_model": [None], "usable_cpus": {}}, 100.0)])
    assert [one.name for one in group_runs([record])] == ["lenet, batch 8, 1 cpu"]


def test_names_of_gpus_that_cannot_be_read_are_shown_as_they_are():
    deep = "[" * 100_000
    assert machine_name({"gpu_names": deep}) == deep
    assert machine_name({"gpu_names": '["a", "a"]'}) == "2 x a"


MODEL = ModelInfo(
    name="x",
    parameters=1234,
    trainable_parameters=1234,
    forward_flops_per_image=20,
    training_flops_per_image=60,
)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"dirty": True, "changes": "0123456789"}, ""),
        ({"revision": "v1"}, "v1"),
        ({"revision": "a" * 40, "dirty": False, "changes": "0123456789"}, "a" * 12),
        ({"revision": "a" * 40, "dirty": True, "changes": "0123456789"}, "a" * 12 + "+0123456"),
        ({"revision": "a" * 40, "dirty": True}, "a" * 12 + "+"),
    ],
)
def test_short_revisions(parts, text):
    assert Origin(**parts).short_revision == text


def test_only_whole_commits_are_shortened():
    assert short_commit("a" * 40) == "a" * 12
    for text in ("a" * 39, "a" * 41, "A" * 40, "g" * 40):
        assert short_commit(text) == text


def test_sizes_of_networks():
    assert Origin().network_text == ""
    own = replace(MODEL, trainable_parameters=1000)
    assert Origin(network=own).network_text == "network of 1,234/1,000 parameters, 60/20 FLOPs"
    same = replace(MODEL, forward_flops_per_image=60)
    assert Origin(network=same).network_text == "network of 1,234 parameters, 60 FLOPs"


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({}, "unknown machine"),
        ({"cpu_model": "Fast CPU", "usable_cpus": "1"}, "Fast CPU, 1 CPU"),
        ({"cpu_model": "Fast CPU", "usable_cpus": "2"}, "Fast CPU, 2 CPUs"),
        (
            {"usable_cpus": "2", "cgroup_cpu_limit": "1.5"},
            "unknown machine, 2 CPUs, limited to 1.5",
        ),
        ({"gpu_names": '["H", "H", "G"]', "cpu_model": "Fast CPU"}, "2 x H, G"),
        ({"gpu_names": "H", "cpu_model": "Fast CPU"}, "H"),
        ({"gpu_names": '{"a": 1}'}, '{"a": 1}'),
        ({"gpu_names": "", "cpu_model": "Fast CPU"}, "Fast CPU"),
    ],
)
def test_names_of_machines(facts, name):
    assert machine_name(facts) == name


def on(*names, **parts):
    return [Origin(machine=(("cpu_model", "CPU"), ("x", name)), **parts) for name in names]


def test_machines_of_one_name_are_numbered():
    first, second, third = on("a", "b", "c")
    other = Origin(machine=(("cpu_model", "Other"),))
    again = replace(first, revision="r")
    found = machine_names([first, other, second, again, third])
    assert [found[one] for one in (first, other, second, again, third)] == [
        *("CPU", "Other", "CPU #2", "CPU", "CPU #3")
    ]


def test_titles_have_what_differs():
    assert origin_titles([Origin(revision="a")] * 2) == {Origin(revision="a"): ""}
    one, other = Origin(revision="a", tensorflow="2.21"), Origin(revision="b", tensorflow="2.21")
    assert origin_titles([one, other]) == {one: "a", other: "b"}
    third = Origin(side="a", tensorflow="2.20")
    assert origin_titles([one, third]) == {
        one: "unknown side, a, TensorFlow 2.21",
        third: "side A, unknown revision, TensorFlow 2.20",
    }
    first, second = on("a", "b", revision="r")
    assert origin_titles([first, second]) == {first: "CPU", second: "CPU #2"}
    assert origin_titles([first, second], without=("machine",)) == {first: "", second: "#2"}
    # What no text tells apart is numbered.
    states = [Origin(revision="a", dirty=dirty) for dirty in (None, False)]
    assert [*origin_titles(states).values()] == ["", "#2"]
    more = [*states, Origin(revision="b"), Origin(revision="b", dirty=False)]
    assert [*origin_titles(more).values()] == ["a", "a, #2", "b", "b, #2"]


def test_parts_that_vary():
    one, other = Origin(revision="a"), Origin(revision="b", tensorflow="2.21")
    assert varying_parts([one, other, one]) == {
        "revision": ("a", "b"),
        "TensorFlow": ("unknown", "2.21"),
    }
    assert varying_parts([one]) == {}
    assert varying_parts(on("a", "b", "c")) == {"machine": ("#1", "#2", "#3")}


@pytest.mark.parametrize(
    ("revisions", "expected"),
    [
        (["a" * 7, "a" * 40], ["a" * 40, "a" * 40]),
        (["a" * 6, "a" * 40], ["a" * 6, "a" * 40]),
        (["a" * 39, "a" * 40], ["a" * 40, "a" * 40]),
        # Of several commits that begin so, none is meant.
        (["a" * 7, "a" * 39 + "b", "a" * 40], ["a" * 7, "a" * 39 + "b", "a" * 40]),
        (["a" * 7, "a" * 9, "a" * 40], ["a" * 40] * 3),
        (["a" * 7, "b" * 40], ["a" * 7, "b" * 40]),
        (["f" * 7, "f" * 40], ["f" * 40, "f" * 40]),
        (["v1", "v12"], ["v1", "v12"]),
    ],
)
def test_abbreviated_commits_are_completed(revisions, expected):
    origins = [Origin(revision=revision) for revision in revisions]
    whole = fill_in_origins(origins)
    assert [whole[one].revision for one in origins] == expected


def test_runs_that_ended_early_have_the_network_of_the_first_one():
    early, first, second = (
        Origin(revision="a", network=network)
        for network in (None, MODEL, replace(MODEL, parameters=9))
    )
    found = fill_in_origins([early, first, second])
    assert (found[early], found[first], found[second]) == (first, first, second)
    other = Origin(revision="b")
    assert fill_in_origins([other, first])[other] == other
    short = Origin(revision="c" * 7)
    long = Origin(revision="c" * 40, network=MODEL)
    assert fill_in_origins([short, long])[short] == long


@pytest.mark.parametrize(
    ("subject", "facts", "expected"),
    [
        (None, {"git_commit": "c" * 40}, ("c" * 40, None, "")),
        (
            None,
            {"git_commit": "c" * 40, "git_dirty": True, "git_changes": "12"},
            ("c" * 40, True, "12"),
        ),
        (None, {"git_commit": 3}, ("", None, "")),
        (Subject(revision="a" * 40, dirty=False), {"git_commit": "c" * 40}, ("a" * 40, False, "")),
        (Subject(unknown="no git"), {"git_commit": "c" * 40}, ("", None, "")),
        # Code outside of a repository has changes, but no revision of its own.
        (Subject(changes="45"), {"git_commit": "c" * 40}, ("c" * 40, True, "45")),
        (
            Subject(changes="45"),
            {"git_commit": "c" * 40, "git_dirty": False, "git_changes": "12"},
            ("c" * 40, True, "4512"),
        ),
    ],
)
def test_the_commit_of_cnnbench_stands_for_code_without_one(lenet_runs, subject, facts, expected):
    run = lenet_runs()(100.0, subject=subject, environment=facts)
    found = Origin.of(run)
    assert (found.revision, found.dirty, found.changes) == expected
    assert found.network == run.model


def test_facts_for_people():
    found = [readable_fact("memory_bytes", value) for value in (2048, 2048.5, True, [1, "a"])]
    assert found == ["2 KiB", "2048.5", "true", '[1, "a"]']
    assert readable_fact("bytes", 2048) == readable_fact("x", "2048") == "2048"
