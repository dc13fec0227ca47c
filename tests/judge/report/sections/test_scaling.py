"""Curves over devices and over workers: their points, and what they are compared with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pages import report_of, rows, section

from cnnbench.base.document import Paragraph
from cnnbench.judge.report import gather, render
from cnnbench.judge.report.sections.scaling import DEVICES, WORKERS, scaling_curves
from cnnbench.judge.report.tables import configuration_rows
from cnnbench.records.load import Loaded

REPLICATED = {"variable_update": "replicated"}
COLLECTIVE = {"variable_update": "collective_all_reduce"}


def curves(*records, scaled=DEVICES):
    return scaling_curves(gather(Loaded(tuple(records), ())).configured, scaled)


@pytest.fixture
def jobs(full_runs):
    """jobs(SPEED, WORKERS): a run of a job on one machine, with one device a worker."""

    def make(speed, workers, *, devices=1, ps=0, hosts=1, flags=COLLECTIVE, **parts):
        addresses = [f"host{n % hosts}:{n}" for n in range(workers + ps)]
        own = {
            "num_gpus": devices,
            "job_name": "worker",
            "worker_hosts": ",".join(addresses[:workers]),
            "ps_hosts": ",".join(addresses[workers:]),
        }
        run = full_runs(speed, devices=devices * workers, flags={**own, **flags}, **parts)
        return replace(run, placement=replace(run.placement, num_workers=workers))

    return make


def test_points_and_efficiencies_of_a_curve(full_runs):
    records = [full_runs(100 * n**0.5, devices=n, flags=REPLICATED) for n in (4, 1, 2)]
    (curve,) = curves(*records)
    assert [(devices, speed) for devices, speed, _ in curve.points] == [
        (1.0, pytest.approx(100)),
        (2.0, pytest.approx(141.42, rel=1e-4)),
        (4.0, pytest.approx(200)),
    ]
    assert [curve.efficiency(group) for group in curve.members] == pytest.approx([1, 2**-0.5, 0.5])
    assert curve.base is curve.members[0]
    assert "4" not in curve.name


def test_one_device_of_any_mode_is_the_base(full_runs):
    records = [full_runs(100), *(full_runs(90 * n, devices=n, flags=REPLICATED) for n in (2, 4))]
    (curve,) = curves(*records)
    assert curve.base.device_count == 1
    assert [devices for devices, _, _ in curve.points] == [1.0, 2.0, 4.0]
    assert len(curve.members) == 2
    # Without it, the fewest devices are.
    (curve,) = curves(*records[1:])
    assert (curve.base.device_count, len(curve.points)) == (2, 2)


@pytest.mark.parametrize(
    "others",
    [
        [],
        [{"devices": 1, "flags": {"batch_size": 16}}],
        [{"devices": 2, "error": ("E", "x"), "step_seconds": (), "losses": ()}],
    ],
)
def test_one_number_of_devices_is_no_curve(full_runs, others):
    assert curves(full_runs(100), *(full_runs(100, **one) for one in others)) == []


def test_thread_counts_follow_the_number_of_devices(full_runs):
    records = [
        full_runs(100.0 * n, devices=n, flags={**REPLICATED, "num_intra_threads": 8 // n})
        for n in (1, 2)
    ]
    assert len(curves(*records)) == 1


def charts(report, words):
    return [one for one in report.charts if words in one.title]


def test_linear_scaling_has_a_point_for_each_number(full_runs):
    records = [full_runs(100.0 * n**0.5, devices=n, flags=REPLICATED) for n in (2, 4, 8)]
    report = report_of(*records)
    (chart,) = charts(report, "over devices")
    _, linear = chart.series
    assert linear.reference
    first = 100 * 2**0.5
    assert [*linear.points] == [(float(n), pytest.approx(first * n / 2)) for n in (2, 4, 8)]
    assert chart.x.ticks == (2.0, 4.0, 8.0)
    assert (chart.x.log, chart.x.base, chart.y.zero) == (True, 2, True)
    (shares,) = charts(report, "efficiency")
    assert (shares.y.format, shares.y.zero) == ("percent", True)
    assert [share for _, share in shares.series[0].points] == pytest.approx([1, 2**-0.5, 0.5])


def test_curves_with_several_bases_have_no_reference(full_runs):
    records = [
        full_runs(speed * n, devices=n, flags={**REPLICATED, "batch_size": size})
        for size, speed in ((8, 100.0), (16, 150.0))
        for n in (1, 2)
    ]
    (chart,) = charts(report_of(*records), "over devices")
    assert [one.reference for one in chart.series] == [False, False]


def test_intervals_of_six_processes_are_drawn(full_runs):
    one = full_runs.of(*range(100, 106))
    two = full_runs.of(*range(180, 186), devices=2)
    (chart,) = charts(report_of(*one, *two), "over devices")
    assert [*chart.series[0].spans] == [pytest.approx((100, 105)), pytest.approx((180, 185))]
    assert chart.note
    (few,) = charts(report_of(*one[:5], *two[:5]), "over devices")
    assert few.series[0].spans == (None, None)
    assert few.note == ""


def test_members_of_all_curves_are_rows(full_runs):
    records = [full_runs(100.0 * n, devices=n, flags=REPLICATED) for n in (1, 2)]
    found = rows(report_of(*records), "scaling")
    assert [row["devices"] for row in found] == ["1", "2"]
    assert [row["median images/sec per device"] for row in found] == ["100.0", "100.0"]
    assert {row["against"] for row in found} == {found[0]["against"]}


@pytest.mark.parametrize(("device", "told"), [("cpu", 1), ("gpu", 0)])
def test_logical_devices_share_the_cores(full_runs, device, told):
    records = [
        full_runs(100.0 * n, devices=n, flags={**REPLICATED, "device": device}) for n in (1, 2)
    ]
    blocks = section(report_of(*records), "scaling").blocks
    unsure = [one for one in blocks if isinstance(one, Paragraph) and one.tone == "unsure"]
    assert len(unsure) == told


def test_each_network_has_charts(full_runs):
    counts = {"lenet": (1, 2), "overfeat": (2, 4)}
    records = [
        full_runs(100.0 * n, devices=n, flags={**REPLICATED, "model": model})
        for model, some in counts.items()
        for n in some
    ]
    found = charts(report_of(*records), "over devices")
    assert [chart.x.ticks for chart in found] == [(1.0, 2.0), (2.0, 4.0)]
    assert [model in chart.title for model, chart in zip(counts, found, strict=True)] == [True] * 2


def test_workers_are_scaled_as_devices_are(jobs):
    records = [jobs(100 * n**0.5, n) for n in (4, 1, 2)]
    (curve,) = curves(*records, scaled=WORKERS)
    assert [(workers, speed) for workers, speed, _ in curve.points] == [
        (1.0, pytest.approx(100)),
        (2.0, pytest.approx(141.42, rel=1e-4)),
        (4.0, pytest.approx(200)),
    ]
    assert [curve.efficiency(group) for group in curve.members] == pytest.approx([1, 2**-0.5, 0.5])
    assert curve.base is curve.members[0]
    assert curve.name == "lenet, batch 8, 1 cpu, collective_all_reduce"
    assert curves(*records) == []  # each worker has one device


def test_one_worker_of_any_mode_is_the_base(full_runs, jobs):
    server = {"variable_update": "parameter_server", "cross_replica_sync": False}
    with_ps = [jobs(90 * n, n, ps=1, flags=server) for n in (2, 4)]
    (curve,) = curves(full_runs(80), jobs(100, 1), *with_ps, scaled=WORKERS)
    assert curve.base.worker_count == 1
    assert [curve.efficiency(group) for group in curve.members] == pytest.approx([0.9, 0.9])
    assert curve.name.endswith(", 1 ps")
    # A run that is no job is one worker, too; without any, the fewest workers are the base.
    (curve,) = curves(full_runs(80), *with_ps, scaled=WORKERS)
    assert curve.efficiency(curve.members[0]) == pytest.approx(90 / 80)
    (curve,) = curves(*with_ps, scaled=WORKERS)
    assert (curve.base.worker_count, len(curve.points)) == (2, 2)


def test_devices_scale_in_jobs_of_equally_many_workers(jobs):
    grid = [(workers, devices) for workers in (1, 2) for devices in (1, 2)]
    records = [jobs(100.0 * w**0.5 * d, w, devices=d) for w, d in grid]
    one, two = curves(*records)
    assert [count for count, *_ in one.points] == [1, 2]
    assert [count for count, *_ in two.points] == [2, 4]
    assert two.efficiency(two.members[-1]) == pytest.approx(1)
    one, two = curves(*records, scaled=WORKERS)
    assert [count for count, *_ in (*one.points, *two.points)] == [1, 2, 1, 2]
    assert two.efficiency(two.members[-1]) == pytest.approx(2**-0.5)
    # Numbers of parameter servers are no points of one curve.
    assert curves(*(jobs(100.0, 2, ps=n) for n in (1, 2)), scaled=WORKERS) == []


def test_devices_and_workers_have_tables_and_charts_of_their_own(full_runs, jobs):
    devices = [full_runs(100.0 * n**0.5, devices=n, flags=REPLICATED) for n in (1, 2)]
    report = report_of(*devices, *(jobs(100.0 * n**0.5, n) for n in (1, 2, 4)))
    assert [row["devices"] for row in rows(report, "scaling")] == ["1", "2"]
    found = rows(report, "scaling", 1)
    assert [row["workers"] for row in found] == ["1", "2", "4"]
    assert [row["median images/sec per worker"] for row in found] == ["100.0", "70.71", "50.00"]
    assert [row["efficiency"] for row in found] == ["100.0 %", "70.7 %", "50.0 %"]
    assert {row["against"] for row in found} == {
        "lenet, batch 8, 1 cpu, collective_all_reduce, 1 worker"
    }
    (chart,) = charts(report, "over workers")
    assert (chart.x.label, chart.x.ticks) == ("workers", (1.0, 2.0, 4.0))
    assert [one.reference for one in chart.series] == [False, True]
    for name in ("html", "markdown"):
        text = render(report, name)
        assert "efficiency is images/sec per worker" in text
        assert "median images/sec per worker" in text


@pytest.mark.parametrize(
    ("device", "hosts", "told"), [("cpu", 1, 1), ("cpu", 2, 1), ("cpu", 3, 0), ("gpu", 1, 0)]
)
def test_workers_of_one_machine_share_its_cores(jobs, device, hosts, told):
    records = [
        jobs(100.0 * n, n, hosts=hosts, flags={**COLLECTIVE, "device": device}) for n in (1, 3)
    ]
    blocks = section(report_of(*records), "scaling").blocks
    unsure = [one for one in blocks if isinstance(one, Paragraph) and one.tone == "unsure"]
    assert len(unsure) == told


def test_a_table_of_configurations_has_both_efficiencies(full_runs, jobs):
    devices = [full_runs(100.0 * n**0.5, devices=n, flags=REPLICATED) for n in (1, 2)]
    results = gather(Loaded((*devices, jobs(100.0, 1), jobs(160.0, 2)), ()))
    found = {
        (row["variable_update"], row["devices"]): (
            row["scaling_efficiency"],
            row["worker_scaling_efficiency"],
        )
        for row in configuration_rows(results)
    }
    assert found == {
        ("replicated", 1): (1, None),
        ("replicated", 2): (pytest.approx(2**-0.5), None),
        ("collective_all_reduce", 1): (None, 1),
        ("collective_all_reduce", 2): (None, pytest.approx(0.8)),
    }
