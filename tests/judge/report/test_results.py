"""Groups of runs, and what a report is about."""

from __future__ import annotations

import dataclasses

import pytest
from studies import roofline, tuning

from cnnbench.judge.report.results import (
    gather,
    group_runs,
    newest_groups,
    shown_count_text,
    speed_and_certainty,
    split_common,
    split_names,
    start_time_text,
    with_highest_peaks,
    with_start_times,
)
from cnnbench.records.load import Loaded
from cnnbench.records.run import Cluster


def group(*records):
    (found,) = group_runs(records)
    return found


@pytest.mark.parametrize(
    ("speeds", "speed", "values"),
    [
        ((), "no speed", ()),
        ((100.0,), "100.0 images/sec", ()),
        ((100.0, 102.0), "101.0 images/sec", ("100.0", "102.0", "three")),
        # Student's t of 2 degrees of freedom: 4.303 * 2.646 / sqrt(3)
        ((99.0, 100.0, 104.0), "101.0 images/sec", ("3 processes", "94.43 to 107.6", "6.5 %")),
        # No speed is below zero.
        ((1.0, 2.0, 9.0), "4.000 images/sec", ("0 to 14.83",)),
    ],
)
def test_a_speed_and_how_certain_it_is(speeds, speed, values):
    text, certainty = speed_and_certainty(speeds)
    assert text == speed
    assert [value for value in values if value not in certainty] == []


@pytest.mark.parametrize(
    ("options", "noun", "advises"),
    [
        ({}, "process", True),
        ({"imported": True}, "process", False),
        ({"is_job": True}, "job", False),
    ],
)
def test_one_speed_does_not_show_how_certain_it_is(options, noun, advises):
    _, certainty = speed_and_certainty([100.0], **options)
    assert certainty.startswith(f"one {noun}, which cannot show")
    assert ("--repeats=6" in certainty) == advises
    _, certainty = speed_and_certainty([100.0, 101.0, 102.0], **options)
    assert certainty.startswith(f"mean of 3 {noun}")


def test_names_are_split_into_what_they_share():
    assert split_common([("a", "b"), ("a", "c")]) == ("a", ["b", "c"])
    assert split_common([("a", "b"), ("a",)]) == ("", ["a, b", "a"])
    assert split_common([("a", "b", "c"), ("a", "d", "c")], "/") == ("a/c", ["b", "d"])


def test_number_formats_are_in_names_where_they_differ(full_runs):
    plain, other = group(full_runs(100)), group(full_runs(100, flags={"batch_size": 16}))
    half = group(full_runs(100, flags={"precision": "bf16"}))
    assert split_names([plain, other]) == ("lenet, 1 cpu", ["batch 8", "batch 16"])
    shared, names = split_names([plain, half])
    assert (shared, names) == ("lenet, batch 8, 1 cpu", ["fp32", "bf16"])


def test_what_a_group_is_about(full_runs):
    plain = group(full_runs(100))
    assert (plain.model, plain.precision, plain.device_kind) == ("lenet", "fp32", "cpu")
    assert (plain.work_kind, plain.workload, plain.device_count) == ("training", "lenet", 1)
    forward = group(full_runs(100, flags={"forward_only": True, "data_name": "cifar10"}))
    assert (forward.work_kind, forward.workload) == ("inference", "lenet, cifar10, inference")
    assert group(full_runs(100, flags={"eval": True})).work_kind == "evaluation"
    job = Cluster(tasks=(), workers=())
    assert [group(full_runs(100, cluster=one)).is_job for one in (None, job)] == [False, True]
    assert group(full_runs(100, devices=2)).device_count == 2
    assert group(full_runs(100, placement=None)).device_count is None
    unknown = group(full_runs(100, flags={"model": None, "precision": None, "device": None}))
    assert {unknown.model, unknown.precision, unknown.device_kind} == {"unknown"}


def test_values_are_those_of_runs_that_succeeded(full_runs):
    good, bad = full_runs(100), full_runs(50, error=("OSError", "no disk"))
    found = group(good, bad)
    assert found.successful == (good,)
    assert found.throughput.values == found.raw_speeds == pytest.approx((100.0,))
    assert found.process_values(lambda run: float("nan")).values == ()
    # Speeds of a comparison replace them if there is one for each.
    found.use_speeds({"other": 1.0})
    assert found.throughput.values == pytest.approx((100.0,))
    found.use_speeds({good.run_id: 99.0, "other": 1.0})
    assert found.throughput.values == (99.0,)
    assert found.latest.isoformat() == bad.started_at


def test_the_highest_peak_of_a_machine_and_a_number_format_counts(full_runs):
    peak = full_runs.with_peak
    runs = [peak(1e12), peak(2e12), peak(3e12, flags={"precision": "bf16"}), peak(5e12, "given")]
    runs.append(peak(4e12, environment={"cpu_model": "Other CPU"}))
    found = with_highest_peaks(runs)
    peaks = [run.measured.peak_flops_per_sec for run in found]
    assert peaks == [2e12, 2e12, 3e12, 5e12, 4e12]
    assert "2 processes" in found[0].measured.peak_flops_source
    assert found[2:] == runs[2:]
    (run,) = with_highest_peaks([peak(1e12)], [peak(7e12)])
    assert run.measured.peak_flops_per_sec == 7e12


def test_the_newest_groups_and_those_of_priority_are_kept_in_their_order(full_runs):
    runs = [full_runs(100, flags={"batch_size": size}) for size in (4, 8, 16, 32)]
    groups = group_runs(runs[::-1])
    assert [one.flag("batch_size") for one in newest_groups(groups, 2)] == [16, 32]
    first = groups[0].configuration.key
    found = newest_groups(groups, 2, {first})
    assert [one.flag("batch_size") for one in found] == [4, 32]
    assert shown_count_text(2, 1000) == ", the newest 2 of 1,000"
    assert shown_count_text(2, 2) == ""


def test_a_page_keeps_what_has_changed_and_the_newest(full_runs):
    def side(factor):
        sizes = {999: factor, **dict.fromkeys(range(1, 64), 1.0)}
        return tuple(
            full_runs(factor * 100, flags={"batch_size": size})
            for size, factor in sizes.items()
            for _ in range(5)
        )

    subject = gather(Loaded(side(0.5), ()), Loaded(side(1.0), ()))
    limited = subject.limited_to_newest()
    shown, earlier = (
        [one.flag("batch_size") for one in groups]
        for groups in (limited.configured, limited.earlier)
    )
    # The one that has changed is the first that was measured.
    assert shown == [*range(5, 64), 999]
    assert earlier == [1, 2, 3, 4]


def test_studies_by_kind(full_runs, folder):
    found = gather(folder)
    assert len(found.rooflines) == 2
    assert found.tunings == (tuning(),)
    assert found.explanations == ()
    names = [name for name, _ in found.processes]
    assert names.count("all-reduce") == 1
    assert sum(name.endswith(", profiled") for name in names) == 2
    starts = [record.started_at for record in found.runs]
    assert starts == sorted(starts)


def test_documents_of_one_name_have_their_times(full_runs):
    first, second = roofline(full_runs(100)), roofline(full_runs(100))
    second = dataclasses.replace(
        second, run=dataclasses.replace(second.run, started_at="2026-11-20T02:00:00+02:00")
    )
    named = with_start_times([("a", first), ("b", first), ("a", second)])
    assert [name for name, _ in named] == [
        "a, 2026-11-20 00:00:00",
        "b",
        "a, 2026-11-20 00:00:00",
    ]
    assert start_time_text("2026-11-20T23:30:05-01:00") == "2026-11-21 00:30:05"
