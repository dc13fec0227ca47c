"""Points and series: what belongs together."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from cnnbench.errors import FlagError
from cnnbench.judge.history import METRICS, HistoryEntry, Selection, all_series


def test_runs_of_a_commit_are_a_point_with_a_spread(by_commit, series_of):
    # One of them was measured again after the next.
    records = [by_commit(100, "a"), by_commit(110, "a"), by_commit(50, "b"), by_commit(90, "a")]
    (series,) = series_of(records)
    assert series.configuration == "lenet, batch 8, 1 cpu"
    assert series.machine == "Fast CPU, 8 CPUs"
    assert [point.name for point in series.points] == ["a", "b"]
    assert series.points[0].value == pytest.approx(100)
    assert sorted(series.points[0].values) == pytest.approx([90, 100, 110])


def test_configurations_and_machines_are_series_of_their_own(by_commit, series_of):
    records = [
        by_commit(1, "a"),
        by_commit(1, "a", flags={"model": "resnet20"}),
        by_commit(1, "a", facts={"cpu_model": "Slow CPU"}),
        by_commit(1, "a", facts={"hostname": "box2"}),
        by_commit(1, "a", facts={"gpu_names": ["H", "H"]}),
        by_commit(1, "a", facts={"tensorflow_version": "9"}),
        by_commit(1, "a", facts={"architecture": "riscv"}),
    ]
    found = {
        (one.configuration, one.machine): {point.title: len(point.runs) for point in one.points}
        for one in series_of(records)
    }
    assert found == {
        # Of one commit, but of two versions of TensorFlow: one series, two points.
        ("lenet, batch 8, 1 cpu", "Fast CPU, 8 CPUs"): {
            "a (unknown TensorFlow)": 2,
            "a (TensorFlow 9)": 1,
        },
        ("lenet, batch 8, 1 cpu", "Fast CPU, 8 CPUs #2"): {"a": 1},
        ("lenet, batch 8, 1 cpu", "Slow CPU, 8 CPUs"): {"a": 1},
        ("lenet, batch 8, 1 cpu", "2 x H"): {"a": 1},
        ("resnet20, batch 8, 1 cpu", "Fast CPU, 8 CPUs"): {"a": 1},
    }


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("commit", ["a", "2026-11-20", "f" * 40]),
        ("day", ["2026-11-20 (a)", "2026-11-20 (unknown revision)", f"2026-11-20 ({'f' * 12})"]),
        ("run", ["run0", "run1", "run2"]),
        ("hostname", ["box1 (a)", "box1 (unknown revision)", f"box1 ({'f' * 12})"]),
        ("branch", ["unknown (a)", "unknown (unknown revision)", "dev"]),
    ],
)
def test_what_a_point_is(by_commit, series_of, by, names):
    records = [
        by_commit(1, "a"),
        by_commit(2),
        by_commit(3, facts={"git_commit": "f" * 40}, flags={"result_label": "branch=dev"}),
    ]
    (series,) = series_of(records, by=by)
    assert [point.title for point in series.points] == names


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (Selection(), 4),
        (Selection(model="lenet"), 3),
        (Selection(model="res*"), 1),
        (Selection(model="len"), 0),
        (Selection(configuration="batch 8"), 4),
        (Selection(machine="slow"), 1),
        (Selection(machine="box2"), 1),
        (Selection(machine="*8 CPUs"), 4),
        (Selection(since=datetime(2096, 1, 1, tzinfo=timezone.utc)), 0),
    ],
)
def test_selections(by_commit, series_of, selection, count):
    records = [
        by_commit(1, "a"),
        by_commit(1, "b", facts={"hostname": "box2"}),
        by_commit(1, "c", facts={"cpu_model": "Slow CPU"}),
        by_commit(1, "d", flags={"model": "resnet20"}),
    ]
    found = series_of(records, selection=selection)
    assert sum(len(one.points) for one in found) == count


def test_points_by_what_nothing_has_are_refused(by_commit, series_of):
    records = [by_commit(1, flags={"result_label": "branch=dev"})]
    for by, words in (("branches", "branch"), ("xyz", "branch"), ("comit", "commit")):
        with pytest.raises(FlagError, match=f"^--by={by}: .*{words}"):
            series_of(records, by=by)
    with pytest.raises(FlagError) as refused:
        series_of([by_commit(1)], by="xyz")
    assert "labels" not in str(refused.value)
    assert series_of([], by="xyz") == ()


def test_failed_runs_are_no_values_and_join_the_configuration_they_can_be_of(by_commit, series_of):
    records = [
        by_commit(1, "a"),
        by_commit(1, "b", error="no memory"),
        by_commit(1, "c", error="early", placed=False, flags={"device": "auto"}),
        by_commit(1, "a", error="once"),
    ]
    (series,) = series_of(records)
    assert [point.name for point in series.points] == ["a"]
    assert series.points[0].failed == 1
    assert [point.name for point in series.empty] == ["b", "c"]


def test_values_without_a_logarithm_are_left_out(by_commit):
    (entry,) = HistoryEntry.all_of(by_commit(100, "a"))
    (series,) = all_series([replace(entry, values={"throughput": 0.0})], METRICS["throughput"])
    assert series.points == ()


def test_a_point_knows_its_runs(by_commit, series_of):
    records = [
        by_commit(90, "a" * 40, facts={"hostname": "box2"}),
        by_commit(110, "a" * 40, facts={"hostname": "box2"}),
        by_commit(1, "a" * 40, error="no memory", facts={"hostname": "box2"}),
        by_commit(120, "a" * 40, facts={"hostname": "box2"}),
        by_commit(1, "b", error="once"),
    ]
    (series,) = series_of(records)
    (point,), (empty,) = series.points, series.empty
    assert (point.value, point.values) == (pytest.approx(110), pytest.approx((90, 110, 120)))
    assert (point.failed, point.hosts, point.hostnames) == (1, ("box2",) * 3, ("box2",))
    assert point.run_ids == tuple(record.run_id for record in records[:4])
    assert point.started_at == records[0].started_at.replace("Z", "+00:00")
    assert (point.commit, point.title, point.short_title) == ("a" * 40, "a" * 40, "a" * 12)
    assert (point.newest, empty.newest) == (True, False)
    assert (empty.values, empty.failed, empty.commit) == ((), 1, "b")
    (nameless,) = series_of([by_commit(1)])[0].points
    assert nameless.commit is None


def test_points_of_another_metric(by_commit, series_of):
    loss = by_commit(100, "a"), by_commit(100, "b", step_seconds=(0.1,) * 3, losses=())
    (series,) = series_of(loss)
    found = series.of_metric(METRICS["final_loss"])
    assert [point.name for point in series.points] == ["a", "b"]
    assert [point.name for point in found.points] == ["a"]
    assert [point.name for point in found.empty] == ["b"]
    assert found.points[0].values == (loss[0].losses[-1],)
