"""Points and series: what belongs together."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from cnnbench.errors import FlagError
from cnnbench.judge.history import METRICS, HistoryEntry, Selection, all_series
from cnnbench.records.run import ModelInfo


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
    ("parts", "count"),
    [
        ({}, 4),
        ({"model": "LENET"}, 3),
        ({"model": "res*"}, 1),
        ({"model": "len"}, 0),
        ({"configuration": "BATCH 16"}, 1),
        ({"configuration": "*16*"}, 1),
        ({"machine": "slow"}, 1),
        ({"machine": "box2"}, 1),
        ({"machine": "*8 CPUs"}, 4),
        ({"machine": "nowhere"}, 0),
        ({"model": "lenet", "configuration": "batch 8"}, 2),
        ({"since": datetime(2026, 11, 20, 0, 0, tzinfo=timezone.utc)}, 4),
        ({"since": datetime(2026, 11, 20, 0, 1, tzinfo=timezone.utc)}, 3),
        ({"since": datetime(2026, 11, 20, 0, 4, tzinfo=timezone.utc)}, 0),
    ],
)
def test_selections(make_by_commit, series_of, parts, count):
    by_commit = make_by_commit()
    records = [
        by_commit(1, "a"),
        by_commit(1, "b", facts={"hostname": "box2"}, flags={"batch_size": 16}),
        by_commit(1, "c", facts={"cpu_model": "Slow CPU"}),
        by_commit(1, "d", flags={"model": "resnet20"}),
    ]
    found = series_of(records, selection=Selection(**parts))
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


def network(parameters):
    sizes = {"trainable_parameters": parameters, "forward_flops_per_image": 20}
    return ModelInfo(name="lenet", parameters=parameters, training_flops_per_image=60, **sizes)


def test_entries_of_records(by_commit, reductions):
    record = by_commit(100, "a", facts={"load_average_1min": 0.5, "x": [1, 2]}, losses=(1.0,) * 3)
    (entry,) = HistoryEntry.all_of(record)
    assert entry.values["throughput"] == pytest.approx(100)
    assert "bus_bandwidth" not in entry.values
    assert (entry.status, entry.error, entry.slow, entry.pair) == ("ok", "", None, None)
    # What changes every second is no property of a run.
    assert "load_average_1min" not in entry.facts
    assert entry.facts["x"] == "[1, 2]"
    assert (entry.hostname, entry.commit, entry.labels["commit"]) == ("box1", "a", "a")
    (failed,) = HistoryEntry.all_of(by_commit(error="no memory"))
    assert (failed.status, failed.error) == ("failed", "E: no memory")
    (some,) = HistoryEntry.all_of(record, ["step_seconds"])
    assert {*some.values} == {"step_seconds"}
    infinite = by_commit(100, "a", losses=(1.0, 1.0, float("nan")))
    assert "final_loss" not in HistoryEntry.all_of(infinite)[0].values
    rows = HistoryEntry.all_of(reductions(6.0, reductions.point(3.0, spec="copy")))
    assert [one.values["bus_bandwidth"] for one in rows] == pytest.approx([6, 3])
    assert {one.slow for one in rows} == {None}
    pausing = by_commit(commit="a", step_seconds=(0.1, 0.1, 0.3) * 10, losses=())
    assert HistoryEntry.all_of(pausing)[0].slow.extra == pytest.approx(0.2)


def test_networks_of_several_sizes_are_series_in_order(by_commit, series_of):
    records = [
        by_commit(100, "a", model=network(10)),
        by_commit(100, "b", model=network(20)),
        by_commit(100, "c", model=network(30)),
        by_commit(100, "d", model=network(20)),
    ]
    found = series_of(records)
    assert [[point.name for point in one.points] for one in found] == [["a"], ["b", "d"], ["c"]]
    sizes = [one.configuration.partition("network of ")[2][:2] for one in found]
    assert sizes == ["10", "20", "30"]
    assert [one.before[:13] for one in found] == ["", "network of 10", "network of 20"]
    (alone,) = series_of(records[:1])
    assert (alone.before, "network" in alone.configuration) == ("", False)
    assert alone.key == found[0].key


def test_a_run_without_a_network_has_that_of_the_run_before(by_commit, series_of):
    records = [
        by_commit(1, "a", error="early", model=None),
        by_commit(100, "b", model=network(10)),
        by_commit(1, "c", error="early", model=None),
        by_commit(100, "d", model=network(20)),
        by_commit(1, "e", error="early", model=None),
    ]
    found = series_of(records)
    names = [
        sorted([*(point.name for point in one.points), *(point.name for point in one.empty)])
        for one in found
    ]
    assert names == [["a", "b", "c"], ["d", "e"]]


def test_series_are_in_natural_order(by_commit, series_of):
    records = [by_commit(1, "a", flags={"batch_size": size}) for size in (16, 128, 4)]
    names = [one.configuration.split(", ")[1] for one in series_of(records)]
    assert names == ["batch 4", "batch 16", "batch 128"]


def test_measurements_of_another_kind_are_no_points(by_commit, series_of, reductions):
    records = [by_commit(100, "a"), reductions(6.0)]
    assert len(series_of(records)) == 1
    assert len(series_of(records, "bus_bandwidth")) == 1
    assert series_of(records[:1], "bus_bandwidth") == ()


def test_slow_steps_of_most_runs_of_a_point(by_commit, series_of):
    pausing = {"step_seconds": (0.1, 0.1, 0.3) * 10, "losses": ()}
    level = {"step_seconds": (0.1,) * 30, "losses": ()}

    def slow(*parts):
        records = [by_commit(commit="a", **one) for one in parts]
        return series_of(records)[0].points[0].common_slow_steps

    assert slow(pausing, pausing, level).extra == pytest.approx(0.2)
    assert slow(pausing, level, level) is None
    assert slow(level) is None


def test_all_points_of_the_newest_revision_are_marked(by_commit, series_of):
    records = [
        by_commit(1, "a"),
        by_commit(1, "b"),
        by_commit(1, "b", facts={"cpu_model": "Slow CPU"}),
        by_commit(1, "a", facts={"cpu_model": "Slow CPU"}),
    ]
    found = series_of(records)
    assert [[point.newest for point in one.points] for one in found] == [[False, True]] * 2
    assert [[point.name for point in one.points] for one in found] == [["a", "b"]] * 2
