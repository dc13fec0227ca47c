"""The order of revisions, and which is the newest: never the base of an experiment.

Tests cnnbench/judge/history/series.py.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cnnbench.judge.history import METRICS, trend
from cnnbench.judge.history.page import HistoryDocument, history_metrics
from cnnbench.judge.report import exports
from cnnbench.records.subject import Subject

SPEED = METRICS["throughput"]


@pytest.fixture
def gate(by_commit):
    """Makes the records of an experiment; NEW of a pair is measured first."""

    def make(base, new, **new_parts):
        found = []
        for pair in (1, 2):
            for side, revision, speed, parts in (
                ("b", new, 500.0, new_parts),
                ("a", base, 787.5, {}),
            ):
                subject = Subject(repository="nets", revision=revision, dirty=False, side=side)
                # With one seed for all, as a CI sets it.
                place = {"side": side, "seed": 7, "pair": pair, "position": 1}
                found.append(by_commit(speed, subject=subject, ab=place, **parts))
        return found

    return make


@pytest.fixture
def plain(by_commit):
    """Makes the record of a run by itself."""

    def make(revision, speed=100.0, **parts):
        subject = Subject(repository="nets", revision=revision, dirty=False)
        return by_commit(speed, subject=subject, **parts)

    return make


def names(series):
    return [point.name for point in series.points]


def exported(all_series):
    """Values by title in the formats that are of one commit."""
    found = history_metrics(HistoryDocument(SPEED, [trend(one, SPEED) for one in all_series]))
    bencher = json.loads(exports.bencher(found)[0])
    action = json.loads(exports.github_action_benchmark(found)[0])
    values = {name: one["throughput (images/sec)"]["value"] for name, one in bencher.items()}
    assert sorted(values.values()) == sorted(one["value"] for one in action)
    return values


@pytest.mark.parametrize(
    ("measured", "order", "points", "values"),
    [
        # base>head is an experiment, other words are runs of 100, 101, ... images/sec.
        ("base>head", None, "base head", [500.0]),
        ("head base>head", None, "base head", [500.0]),
        ("a>b b>c c>d", None, "a b c d", [500.0]),
        ("a>b c", None, "a b c", [101.0]),
        ("one>one", None, "one one", [500.0]),
        # The main branch moved on while the head of the gate was written.
        ("old main>head", "old head main", "old head main", [500.0]),
        ("new old unknown older", "older old new", "older old unknown new", [100.0]),
    ],
)
def test_a_base_precedes_its_head_which_is_the_newest(
    gate, plain, series_of, measured, order, points, values
):
    records = []
    for index, word in enumerate(measured.split()):
        base, _, head = word.partition(">")
        records += gate(base, head) if head else [plain(base, 100.0 + index)]
    places = order and {name: place for place, name in enumerate(order.split())}
    all_series = series_of(records, order=places)
    assert names(all_series[0]) == points.split()
    assert sorted(exported(all_series).values()) == pytest.approx(values)


def test_a_side_measured_twice_is_the_newest(by_commit, series_of):
    subject = Subject(repository="nets", revision="one", dirty=False, side="a")
    places = [{"side": "a", "seed": 1, "pair": pair} for pair in (1, 1, 2, 2)]
    all_series = series_of([by_commit(100.0, subject=subject, ab=place) for place in places])
    assert list(exported(all_series).values()) == pytest.approx([100.0])


def test_a_head_that_failed_leaves_nothing_to_export(gate, series_of):
    all_series = series_of(gate("base", "head", status="failed", error="no memory"))
    assert exported(all_series) == {}
    found = history_metrics(HistoryDocument(SPEED, [trend(one, SPEED) for one in all_series]))
    left_out = exports.bencher(found)[1]
    assert "no value; 1 " in left_out


def test_commits_have_one_order_on_all_machines(plain, series_of):
    slow = {"facts": {"cpu_model": "Slow CPU"}}
    records = [plain("a"), plain("b"), plain("b", **slow), plain("a", **slow)]
    assert [names(one) for one in series_of(records)] == [["a", "b"], ["a", "b"]]


def test_experiments_in_a_circle_have_an_order(gate, series_of):
    all_series = series_of([*gate("a", "b"), *gate("b", "a")])
    assert sorted(names(all_series[0])) == ["a", "b"]
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


def test_a_commit_has_one_point_whatever_it_was_compared_with(gate, plain, series_of):
    """As base of several experiments, as head of one, and by itself."""
    records = [*gate("good", "five"), *gate("good", "three"), *gate("base", "good")]
    records = [
        replace(one, ab={**one.ab, "seed": 7 + number // 4}) for number, one in enumerate(records)
    ]
    (series,) = series_of([*records, plain("good")])
    points = [(point.title, len(point.values)) for point in series.points]
    assert points == [("base", 2), ("good", 7), ("five", 2), ("three", 2)]
