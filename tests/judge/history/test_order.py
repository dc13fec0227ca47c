"""The order of revisions, and which is the newest: never the base of an experiment."""

from __future__ import annotations

import itertools
import json

import pytest

from cnnbench.judge.history import METRICS, trend
from cnnbench.judge.history.document import json_text
from cnnbench.judge.history.formats import figures
from cnnbench.judge.report import exports
from cnnbench.records.subject import Subject

SPEED = METRICS["throughput"]
SEEDS = itertools.count(1)


@pytest.fixture
def gate(runs):
    """Makes the records of an experiment; NEW of a pair is measured first."""

    def make(base, new, speeds=(787.5, 500.0), *, pairs=2, seed=None, new_parts=None):
        seed = next(SEEDS) if seed is None else seed
        found = []
        for pair in range(1, pairs + 1):
            for side, revision, speed in (("b", new, speeds[1]), ("a", base, speeds[0])):
                subject = Subject(repository="nets", revision=revision, dirty=False, side=side)
                place = {"side": side, "seed": seed, "pair": pair, "position": 1}
                more = (new_parts or {}) if side == "b" else {}
                found.append(runs(speed, subject=subject, ab=place, **more))
        return found

    return make


@pytest.fixture
def plain(runs):
    """Makes the record of a run by itself."""

    def make(revision, speed=100.0, **parts):
        subject = Subject(repository="nets", revision=revision, dirty=False)
        return runs(speed, subject=subject, **parts)

    return make


def names(series):
    return [point.name for point in series.points]


def exported(all_series):
    """Values by title in the formats that are of one commit."""
    found = figures([trend(one, SPEED) for one in all_series], SPEED)
    bencher = json.loads(exports.render(found, "bencher").text)
    action = json.loads(exports.render(found, "github-action-benchmark").text)
    values = {name: one["throughput (images/sec)"]["value"] for name, one in bencher.items()}
    assert sorted(values.values()) == sorted(one["value"] for one in action)
    return values


def test_a_gate_has_its_base_first_and_exports_its_head(gate, series_of):
    all_series = series_of(gate("base", "head"))
    (series,) = all_series
    assert names(series) == ["base", "head"]
    assert list(exported(all_series).values()) == pytest.approx([500.0])
    points = json.loads(json_text([trend(series, SPEED)], SPEED))["series"][0]["points"]
    assert [point["name"] for point in points] == ["base", "head"]


def test_a_base_that_was_measured_after_its_head_comes_before_it(gate, plain, series_of):
    all_series = series_of([plain("head"), *gate("base", "head")])
    assert names(all_series[0]) == ["base", "head", "head"]
    assert sorted(exported(all_series).values()) == pytest.approx([100.0, 500.0])


def test_a_row_of_gates_is_in_the_order_of_the_commits(gate, series_of):
    # With one seed for all, as a CI sets it.
    records = [one for pair in ("ab", "bc", "cd") for one in gate(*pair, seed=7)]
    all_series = series_of(records)
    assert names(all_series[0]) == ["a", "b", "b", "c", "c", "d"]
    assert len(exported(all_series)) == 1


def test_later_measurements_outrank_an_earlier_gate(gate, plain, series_of):
    assert list(exported(series_of([*gate("a", "b"), plain("c")])).values()) == [100.0]


def test_git_decides_between_commits_but_never_for_a_base(gate, plain, series_of):
    # The main branch moved on while the head of the gate was written.
    order = {"old": 0, "head": 1, "main": 2}
    all_series = series_of([plain("old"), *gate("main", "head")], order=order)
    assert names(all_series[0]) == ["old", "head", "main"]
    assert list(exported(all_series).values()) == pytest.approx([500.0])
    order = {"new": 9, "old": 0}
    all_series = series_of([plain("new", 1.0), plain("old", 2.0)], order=order)
    assert list(exported(all_series).values()) == pytest.approx([1.0])


def test_sides_of_one_revision_are_base_and_head_too(gate, series_of):
    all_series = series_of(gate("one", "one"))
    assert [point.title for point in all_series[0].points] == ["one (side A)", "one (side B)"]
    assert list(exported(all_series).values()) == pytest.approx([500.0])


def test_a_side_measured_twice_is_the_newest(runs, series_of):
    subject = Subject(repository="nets", revision="one", dirty=False, side="a")
    places = [{"side": "a", "seed": 1, "pair": pair} for pair in (1, 1, 2, 2)]
    all_series = series_of([runs(100.0, subject=subject, ab=place) for place in places])
    assert list(exported(all_series).values()) == pytest.approx([100.0])


def test_a_head_that_failed_leaves_nothing_to_export(gate, series_of):
    parts = {"status": "failed", "error": "no memory"}
    all_series = series_of(gate("base", "head", new_parts=parts))
    assert exported(all_series) == {}
    found = figures([trend(one, SPEED) for one in all_series], SPEED)
    left_out = exports.render(found, "bencher").left_out
    assert left_out == "the newest commit has no value; 1 other value left out"


def test_commits_have_one_order_on_all_machines(plain, series_of):
    slow = {"facts": {"cpu_model": "Slow CPU"}}
    records = [plain("a"), plain("b"), plain("b", **slow), plain("a", **slow)]
    assert [names(one) for one in series_of(records)] == [["a", "b"], ["a", "b"]]


def test_experiments_in_a_circle_have_an_order(gate, series_of):
    all_series = series_of([*gate("a", "b"), *gate("b", "a")])
    assert sorted(names(all_series[0])) == ["a", "a", "b", "b"]
    assert exported(all_series)


def test_days_are_in_order_of_time(gate, plain, series_of):
    records = [
        plain("new", started_at="2026-11-21T00:00:00+00:00"),
        plain("old", started_at="2026-11-22T00:00:00+00:00"),
    ]
    (series,) = series_of(records, by="day", order={"old": 0, "new": 1})
    assert names(series) == ["2026-11-21", "2026-11-22"]
    (series,) = series_of(gate("base", "head"), by="day")
    assert [point.title for point in series.points] == [
        "2026-11-20 (side A, base)",
        "2026-11-20 (side B, head)",
    ]
