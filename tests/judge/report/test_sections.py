"""Numbers of the sections, by hand.

Tests cnnbench/judge/report/sections/__init__.py, cnnbench/judge/report/sections/baseline.py,
cnnbench/judge/report/sections/all_reduce.py,
cnnbench/judge/report/sections/environment.py, cnnbench/judge/report/sections/runs.py,
cnnbench/judge/report/sections/quantities.py, cnnbench/judge/report/sections/scaling.py and
cnnbench/judge/report/sections/steps.py.
"""

import dataclasses
import itertools
import json
import math

import pytest
from pages import report_of, rows, section
from step_profiles import changed
from studies import roofline, tuning

from cnnbench.base.charts import HIGHER, LOWER, LineChart, RowChart
from cnnbench.base.document import ChartGroup, Paragraph, Table
from cnnbench.base.document.console import sections_to_text
from cnnbench.judge.compare import compare_records
from cnnbench.judge.explain import explain
from cnnbench.judge.explain.blocks import causes_table
from cnnbench.judge.report import build, gather, load, render
from cnnbench.judge.report.sections.roofline import roofline_sections
from cnnbench.records.load import Loaded
from cnnbench.records.run import Imported, Measured, ResourceUse, StartupSeconds
from cnnbench.records.subject import Subject
from cnnbench.variable_mgr.packing import Packing


def test_sections_without_anything_to_say_are_left_out(full_runs):
    nothing = {"measured": Measured(), "startup_seconds": StartupSeconds(), "environment": {}}
    bare = full_runs(100, losses=(), warmup_losses=(), **nothing)
    assert [one.key for one in report_of(bare).sections] == [
        *("reach", "reproduce", "throughput", "mfu", "warmup", "steps", "environment", "runs")
    ]


@pytest.mark.parametrize(
    ("key", "row", "expected"),
    [
        # The median of 100, 101, 99, 100.5, 99.5 and 102.
        ("throughput", 0, {"median images/sec": "100.3", "range": "99.00 to 102.0"}),
        ("throughput", 0, {"95 % interval": "99.00 to 102.0", "median step, ms": "79.80"}),
        # Against one device in any mode: 180.5 / 2 / 100.25 and 320 / 4 / 100.25.
        ("scaling", 0, {"devices": "1", "efficiency": "100.0 %"}),
        ("scaling", 1, {"devices": "2", "efficiency": "90.0 %"}),
        ("scaling", 2, {"devices": "4", "efficiency": "79.8 %"}),
        # The mean step equals the median one: 100.25 images/sec * 6 GFLOP / 2 TFLOP/s.
        ("mfu", 0, {"MFU": "30.1 %", "achieved, GFLOP/s": "601.5", "peak, GFLOP/s": "2,000"}),
        ("memory", 0, {"median peak memory, MiB": "510.0"}),
        ("warmup", 0, {"start-up, s": "3.500", "import, s": "2.000", "warm-up steps": "2"}),
        # Two devices at 4 GB/s each copy the 2 S bytes in S / 4 GB/s; measured was S / 2 GB/s.
        ("allreduce", 0, {"size": "4 KiB", "busbw, GB/s": "2.000", "of the copy estimate": "50 %"}),
        ("allreduce", 3, {"busbw, GB/s": "1.000", "#wrong": "3"}),
        ("conditions", 0, {"processes": "1 of 6"}),
        # A run that failed decides, whatever the speed of the others.
        ("baseline", 0, {"verdict": "failed"}),
    ],
)
def test_figures_by_hand(report, key, row, expected):
    found = rows(report, key)[row]
    assert {title: found[title] for title in expected} == expected


def test_charts_of_scaling_have_the_points_of_the_table(report):
    found = {
        one.title.partition(": ")[2]: one.series
        for one in report.charts
        if isinstance(one, LineChart)
    }
    curve, linear = found["median images/sec over devices"]
    assert [devices for devices, _ in curve.points] == [1.0, 2.0, 4.0]
    assert [speed for _, speed in curve.points] == pytest.approx([100.25, 180.5, 320.0])
    assert [speed for _, speed in linear.points] == pytest.approx([100.25, 200.5, 401.0])
    (shares,) = found["scaling efficiency"]
    assert [share for _, share in shares.points] == pytest.approx([1.0, 0.9, 0.798], abs=1e-3)


def test_a_commit_compared_with_several_has_a_row_for_each(full_runs):
    # As in a bisection: GOOD runs against every commit, each time on a machine in another state.
    runs = []
    for seed, (other, speed) in enumerate([("five", 125), ("three", 504)]):
        for pair in (1, 2):
            for side, revision in (("b", other), ("a", "good")):
                place = {"side": side, "seed": seed, "pair": pair}
                subject = Subject(revision=revision, side=side)
                runs.append(full_runs(speed, subject=subject, ab=place))
    # A process without a partner belongs to the first experiment of its commit.
    alone = Subject(revision="good", side="a")
    runs.append(full_runs(125, subject=alone, ab={"side": "a", "seed": 0}))
    found = {
        one.name.partition("side ")[2]: one.throughput.values
        for one in gather(Loaded(tuple(runs), ())).configured
    }
    assert found == {
        "A, good, against five": (125, 125, 125),
        "A, good, against three": (504, 504),
        "B, five": (125, 125),
        "B, three": (504, 504),
    }


def test_scaling_without_one_device_is_against_the_fewest(full_runs):
    two, four = rows(report_of(full_runs(180, devices=2), full_runs(324, devices=4)), "scaling")
    assert (two["efficiency"], four["efficiency"]) == ("100.0 %", "90.0 %")
    assert four["against"] == "lenet, batch 8, 2 cpu, parameter_server"


@pytest.mark.parametrize(
    "other",
    [
        {"flags": {"batch_size": 16}},
        {"flags": {"model": "resnet20"}},
        {"subject": Subject(revision="two")},
    ],
)
def test_other_batches_models_and_revisions_are_other_curves(full_runs, other):
    report = report_of(full_runs(100), full_runs(180, devices=2, **other))
    assert "scaling" not in {one.key for one in report.sections}


def test_steps(report):
    first = rows(report, "steps")[0]
    assert first["timed steps"] == str(6 * 24)
    assert float(first["slowest, ms"]) == pytest.approx(1000 * 8 / 99 * 1.1, rel=1e-3)
    # Steps of 0.9, 1 and 1.1: the quartiles are 0.975 and 1.025. Medians of 8/102 to 8/99 s.
    assert (first["within a process"], first["between processes"]) == ("5.0 %", "3.0 %")


def test_long_unsteady_series_of_many_processes(full_runs):
    # 500 steps of 80 ms, 500 of 100, one of a second.
    seconds = (*[0.08] * 500, *[0.1] * 300, 1.0, *[0.1] * 199)
    records = [full_runs(100, step_seconds=seconds, losses=()) for _ in range(10)]
    report = report_of(*records)
    series, boxes = (one for one in report.charts if "1 cpu: " in one.title)
    assert len(series.series) == len(boxes.rows) == 8
    assert series.note.startswith("8 of 10 ")
    points = series.series[-1].points
    assert len(points) <= 320
    # The part's median, and beside it the step that stands out.
    assert {(-1.0, 80.0), (801.0, 1000.0)} <= set(points)
    assert {round(y) for x, y in points if 0 < x < 500} == {80}
    assert "lenet, batch 8, 1 cpu" in section(report, "warmup").visible_when_folded.text
    (row,) = rows(report, "warmup")
    assert row["steps in order"].startswith("10 ")


@pytest.mark.parametrize(
    ("flags", "mode"), [({"forward_only": True}, "inference"), ({"eval": True}, "evaluation")]
)
def test_modes(full_runs, flags, mode):
    report = report_of(full_runs(100), full_runs(100, flags=flags))
    assert {row["mode"] for row in rows(report, "throughput")} == {"parameter_server", mode}
    assert "6.000" in {row["GFLOP per image"] for row in rows(report, "mfu")}
    forward = mode == "inference"
    assert ("2.000" in {row["GFLOP per image"] for row in rows(report, "mfu")}) == forward
    assert len(rows(report, "accuracy")) == 2 - forward  # a forward pass has no losses


def test_losses_that_are_not_finite_are_told_and_no_value(full_runs):
    both = (full_runs(100, losses=(2.0,) * 23 + (last,)) for last in (1.0, math.nan))
    (row,) = rows(report_of(*both), "accuracy")
    assert (row["last loss"], row["losses"]) == ("1.000", "not finite in 1 of 2")


def test_nothing_at_all():
    report = report_of()
    assert (report.title, report.sections, report.highlights) == ("No results", (), ())
    assert report.answers == ()


def test_a_slower_configuration_is_called_slower_with_the_same_numbers(full_runs):
    base, new = (
        full_runs.of(110, 111, 109, 110, 112, 110),
        full_runs.of(100, 101, 99, 100, 102, 100),
    )
    report = report_of(*new, base=base)
    (row,) = rows(report, "baseline")
    judged = compare_records(base, new).entries[0].main.judgement
    assert row["verdict"] == "slower"
    assert row["change"] == f"{100 * judged.change:+.1f} %"
    assert row["p"] == f"{judged.p_adjusted:.2g}"
    *_, method = section(report, "baseline").blocks
    assert (method.title, method.folded) == ("How it was judged", True)
    (drawn,) = (one for one in report.charts if one.title.startswith("Change of throughput"))
    (bar,) = drawn.rows
    ((change, _),) = bar.values
    assert (change, bar.low, bar.high) == (judged.change, judged.low, judged.high)
    assert (bar.tone, drawn.limit[0], drawn.x.better) == ("bad", 0.0, HIGHER)
    # What counts comes first, before what a narrow screen cuts off.
    assert list(row)[:3] == ["configuration", "verdict", "change"]
    answer = report.answers[0]
    assert answer.tone == "bad"
    assert answer.text.startswith(f"NEW is {-100 * judged.change:.1f} % slower")
    assert "regression" in answer.details[0]
    assert "% slower" not in " ".join(answer.details)  # said in the headline


def test_another_network_is_an_answer_and_no_change(full_runs):
    sizes = {"parameters": 40, "training_flops_per_image": 12 * 10**9}
    wider = dataclasses.replace(full_runs(1).model, **sizes)
    base, new = full_runs.of(100, 101, 99, 100), full_runs.of(432, 433, 431, 432, model=wider)
    report = report_of(*new, base=base)
    answer = report.answers[0]
    assert "10 → 40 parameters, +100.0 % FLOPs" in answer.text
    assert answer.tone == ""
    assert answer.details[0] == "Changed work"
    told = section(report, "baseline")
    (row, *_) = (block.rows[0] for block in told.blocks if isinstance(block, Table))
    assert {cell.tone for cell in row} == {"", "changed"}
    assert not any(isinstance(block, ChartGroup) for block in told.blocks)
    assert "332.0 %" not in render(report, "markdown")


def test_a_cause_names_its_flag_once(full_runs, profiles):
    base = profiles.side(num_intra_threads=2)
    found = explain(base, profiles.side(changed(lambda part: True, 1.5), num_intra_threads=1))
    sides = [tuple(full_runs.of(*[speed] * 4)) for speed in (150.0, 100.0)]
    comparison = dataclasses.replace(compare_records(*sides), explanation=found)
    report = build(gather(Loaded(sides[1], ()), comparison=comparison))
    fact = "2 in A, 1 in B"  # of num_intra_threads
    (cause, *_) = rows(report, "why")
    assert cause["what"].count(fact) == 1
    assert sections_to_text([[causes_table(found)]]).count(fact) == 1


def test_undecided_is_said_once(full_runs):
    base, new = (full_runs.of(*speeds) for speeds in ((100, 105, 95), (101, 106, 97)))
    answer = report_of(*new, base=base).answers[0]
    assert answer.text.startswith("Undecided: ")
    alike = [full_runs.of(*[100, 101, 99] * 4, flags={"batch_size": 16}) for _ in range(2)]
    several = report_of(*new, *alike[0], base=[*base, *alike[1]]).answers[0]
    assert "1 inconclusive, 1 same" in several.details
    for one in (answer, several):
        assert " ".join((one.text, *one.details)).lower().count("undecided") <= 1


def test_a_page_has_one_median_of_a_configuration(full_runs):
    """Which disturbances are rare is decided for A and B together, in the report as well."""
    base, new = full_runs.of(*[100.0] * 6), full_runs.of(*[100.0] * 6)
    for place in range(4):  # rare among all twelve processes would be three
        *steps, last = new[place].step_seconds
        new[place] = dataclasses.replace(new[place], step_seconds=(*steps, 30 * (place + 1) * last))
    report = report_of(*new, base=base)
    judged, own = (rows(report, key)[0] for key in ("baseline", "throughput"))
    assert judged["new"] == own["median images/sec"]


def test_one_peak_per_machine_and_number_format(full_runs):
    measured = full_runs.with_peak
    other = {"cpu_model": "Other CPU"}
    records = (
        *(measured(peak) for peak in (78e9, 152e9, 100e9)),
        measured(90e9, devices=2),
        measured(300e9, flags={"precision": "bf16"}),
        measured(50e9, environment=other),
    )
    results = gather(Loaded(records, ()))
    found = rows(build(results), "mfu")
    assert [row["peak, GFLOP/s"] for row in found] == ["152.0", "50.00", "300.0", "152.0"]
    assert "4 processes" in found[0]["source of the peak"]
    assert not any("MFU" in row for row in found)  # all above the peak
    assert "100 %" in section(build(results), "mfu").visible_when_folded.text
    peaks = [one.records[0].measured.peak_flops_per_sec for one in results.configured]
    achieved = [one.process_values("achieved_flops_per_sec").median for one in results.configured]
    assert peaks == [152e9, 50e9, 300e9, 152e9]
    assert all(value > peak for value, peak in zip(achieved, peaks, strict=True))


def test_steady_is_counted_from_the_first_timed_step(full_runs):
    # Steady from within the warm-up on: there is no step -3.
    step = 0.08
    record = full_runs(
        100,
        warmup_step_seconds=(step * 8, *[step] * 19),
        warmup_losses=(2.0,) * 20,
        step_seconds=(step, step * 1.01) * 12,
    )
    (row,) = rows(report_of(record, record), "warmup")
    assert row["steady from timed step"] == "1"


def test_facts_that_decide_speed_are_pointed_at(full_runs):
    governors = ("performance", "powersave")
    # A fact of any name hides no other column.
    records = [
        full_runs(100, environment={"cpu_governor": one, "run": one, "memory_bytes": 25276502016})
        for one in governors
    ]
    report = report_of(*records)
    alike = {row["fact"]: row["value"] for row in rows(report, "environment")}
    assert alike["memory_bytes"] == "23.5 GiB"
    blocks = section(report, "environment").blocks
    assert any(isinstance(one, Paragraph) and "cpu_governor" in one.text for one in blocks)
    (first, _) = rows(report, "environment", 1)
    assert (first["cpu_governor"], first["run"]) == ("performance", records[0].run_id[:8])


def test_a_reduction_that_failed_says_why(make_reductions):
    reductions = make_reductions()
    bad = reductions.point(None, spec="nccl", devices=2, checked=0, error="no such library")
    report = report_of(reductions=[reductions(reductions.point(2.0, devices=2), bad)])
    good, failed = rows(report, "allreduce")
    assert (good["#wrong"], good["error"]) == ("0", "-")
    assert (failed["#wrong"], failed["error"]) == ("not checked", "no such library")
    assert [failed[title] for title in ("median time, µs", "busbw, GB/s")] == ["-", "-"]


def test_reductions_are_in_order_of_their_start_in_any_time_zone(everything):
    starts = ("12:00:00+00:00", "08:00:00-05:00", "13:00:00+02:00")
    (record,) = everything.allreduces
    records = [dataclasses.replace(record, started_at=f"2026-11-20T{one}") for one in starts]
    found = gather(Loaded((), (), tuple(records))).allreduces
    assert [one.started_at[11:] for one in found] == [starts[2], starts[0], starts[1]]


def test_a_prediction_lies_beside_the_measured_curve(full_runs, tmp_path, call, saved):
    saved(tmp_path, (full_runs(100.0 * n**0.9, devices=n) for n in (1, 4)))
    words = ["allreduce", "--predict", "--model=lenet", "--link=roce100", "--devices=4,64"]
    words += ["--all_reduce_spec=copy,xring", f"--result_json={tmp_path / 'predicted.json'}"]
    call(*words)
    drawn = json.loads((tmp_path / "predicted.json").read_text())["rows"]
    seconds = min(row["allreduce_seconds"] for row in drawn if row["devices"] == 4)
    report = build(gather(load([str(tmp_path)])))
    # Eight images a step at 100 images/sec on one device.
    expected = 4 * 8 / (8 / 100 + seconds)
    speeds = next(one for one in report.charts if one.title.endswith("images/sec over devices"))
    predicted = speeds.series[-1]
    assert predicted.name == "predicted, roce100"
    assert predicted.points == ((1.0, 100.0), (4.0, pytest.approx(expected)))
    one, four = rows(report, "scaling")
    assert one["predicted images/sec"] == "-"
    assert float(four["predicted images/sec"]) == pytest.approx(expected, rel=1e-3)
    # The table names the fastest algorithm on each number of devices.
    listed = rows(report, "predicted")
    for count in ("4", "64"):
        own = [one for one in listed if one["devices"] == count]
        assert [one["algorithm"] for one in own] == ["copy", "xring"]
        times = [float(one["reduction, ms"].replace(",", "")) for one in own]
        assert [one["fastest"] == "yes" for one in own] == [one == min(times) for one in times]
    # Another network has none, and a prediction is about training on one device.
    loaded = load([str(tmp_path)])
    for flags, counts in (({"forward_only": True}, (1, 4)), ({"eval": True}, (1, 4)), ({}, (2, 4))):
        runs = tuple(full_runs(100.0 * n, devices=n, flags=flags) for n in counts)
        other = dataclasses.replace(loaded, records=runs)
        assert "predicted images/sec" not in rows(build(gather(other)), "scaling")[1]
    (of_lenet,) = loaded.predictions
    of_other = dataclasses.replace(loaded, predictions=(dataclasses.replace(of_lenet, model="b"),))
    assert "predicted images/sec" not in rows(build(gather(of_other)), "scaling")[1]


def test_a_page_about_many_results_has_few_charts_and_lists_the_others(full_runs):
    revisions = [f"{number:040x}"[::-1] for number in range(80)]
    loaded = [
        full_runs(100 + number, subject=Subject(repository="nets", revision=revision))
        for number, revision in enumerate(revisions)
    ]
    base = full_runs.of(*(100,) * 4)
    results = gather(Loaded(tuple(loaded), ()), Loaded(tuple(base), ()))
    report = build(results)
    drawn = report.charts
    assert len(drawn) < 30
    assert max(len(one.rows) for one in drawn if isinstance(one, RowChart)) == 24
    sections = {one.key: one for one in report.sections}
    (earlier,) = [one for one in sections["earlier"].blocks if isinstance(one, Table)]
    (shown,) = [one for one in sections["memory"].blocks if isinstance(one, Table)]
    names = [row[0].text for one in (shown, earlier) for row in one.rows]
    assert (len(shown.rows), len(earlier.rows), len({*names})) == (60, 20, 80)
    assert earlier.rows[0][0].text.endswith(f"{revisions[19][:12]}")  # the newest of them
    (extent,) = [one.text for one in report.answers if one.name == "Extent"]
    assert "60 of 80" in extent
    assert len(sections["runs"].blocks[1].rows) == 60
    few = build(gather(Loaded(tuple(loaded[:60]), ())))
    assert "earlier" not in {one.key for one in few.sections}


def test_many_processes_are_listed_in_part(full_runs):
    runs = full_runs.of(*(100.0 + 0.1 * number for number in range(350)))
    report = build(gather(Loaded(tuple(runs), ())))
    sections = {one.key: one for one in report.sections}
    text, listed = sections["runs"].blocks
    assert text.text.endswith("300 of 350.")
    assert len(listed.rows) == 300
    (drawn,) = [one for one in sections["throughput"].blocks if isinstance(one, ChartGroup)]
    (row,) = drawn.charts[0].rows
    values = [value for value, _ in row.values]
    assert len(values) == 40
    assert (min(values), max(values)) == pytest.approx((100, 134.9), rel=0.02)


def used(leak=0, *, gpu=False, loop=(10.0, 50.0)):
    """Samples of a minute; from second 10 on, memory grows by `leak` MiB a second."""
    seconds = tuple(map(float, range(1, 61)))
    memory = tuple(2.0**20 * (100 + leak * max(0, at - 10)) for at in seconds)
    return ResourceUse(
        seconds=seconds,
        memory_bytes=memory,
        device_memory_bytes=(2.0**20,) * 60 if gpu else (),
        busy_cpus=(1.5,) * 60,
        loop_start=loop[0],
        loop_end=loop[1],
        sampler_cpu_seconds=0.015,
    )


def test_memory_and_cpus_are_drawn_over_time(full_runs):
    runs = [full_runs(100, resources=used(leak)) for leak in (1, 1, 2)]
    report = report_of(*runs, full_runs(100), full_runs(200, flags={"model": "resnet20"}))
    (row,) = rows(report, "use")
    assert row["most memory"] == "150 MiB"
    assert row["growth in the timed loop"] == "+40 MiB"
    assert row["median of CPUs in use"] == "1.500"
    assert row["CPU time of the sampler"] == "0.0 %"
    assert row["processes"] == "3"
    (charts,) = (one for one in section(report, "use").blocks if isinstance(one, ChartGroup))
    memory, cpus = charts.charts
    assert memory.shaded == cpus.shaded == (10.0, 50.0, "timed loop")
    assert [one.points[-1] for one in memory.series] == [
        (60.0, 150 * 2**20),
        (60.0, 150 * 2**20),
        (60.0, 200 * 2**20),
    ]
    assert {value for _, value in cpus.series[0].points} == {1.5}
    assert memory.title in render(report, "html")


def test_only_tables_of_cnnbench_have_commands_of_imported_runs(full_runs):
    def imported(file, command):
        made = Imported(program="x", file=file, sha256="0" * 64, part=1, values={})
        return full_runs(100, imported=made, command=command)

    unknown = imported("log.txt", ())
    assert "reproduce" not in {one.key for one in report_of(unknown).sections}
    (row,) = rows(report_of(unknown, imported("x.csv", ("cnnbench",))), "reproduce", 1)
    assert (row["command"], row["processes"]) == ("cnnbench", "1")
    listed = rows(report_of(unknown), "runs")
    assert [one["imported from"] for one in listed] == ["log.txt"]


def test_growth_is_between_the_samples_within_the_loop(full_runs):
    # After thinning, no sample is at the ends of the loop.
    record = full_runs(100, resources=used(1, gpu=True, loop=(10.5, 49.5)))
    report = report_of(record)
    assert rows(report, "use")[0]["growth in the timed loop"] == "+38 MiB"
    assert len([one for one in report.charts if "GPU" in one.title]) == 1


def test_without_a_loop_growth_is_unknown(full_runs):
    report = report_of(full_runs(100, resources=used(1, loop=(None, None))))
    assert rows(report, "use")[0].get("growth in the timed loop") in (None, "", "-", "—")
    assert {one.shaded for one in report.charts if "CPUs in use" in one.title} == {None}


def test_a_page_of_all_reduces_begins_with_the_fastest_ones(measured):
    report = report_of(reductions=[measured])
    answer = report.answers[0]
    assert (answer.name, answer.tone) == ("All-reduce", "bad")
    assert answer.text.startswith("1 reduction ")
    assert [detail.partition(" on ")[0] for detail in answer.details[1:]] == ["4 KiB", "64 KiB"]
    assert all("xring, 2.000 GB/s" in detail for detail in answer.details[1:])
    assert "Not compared with anything" not in {one.text for one in report.answers}
    # What the command prints below its table.
    fastest = [first for first, _ in measured.fastest_points()]
    assert [(point.bytes, point.spec) for point in fastest] == [(4096, "xring"), (65536, "xring")]


def test_a_page_of_a_roofline_begins_with_what_the_command_says(full_runs):
    document = roofline(full_runs(100))
    report = report_of(studies=[document])
    (answer,) = [one for one in report.answers if one.name.startswith("Roofline of lenet")]
    assert [value for value in ("80.00 ms", "34.00 ms") if value not in answer.text] == []
    said = sections_to_text(roofline_sections(document, "x", 0))
    sentence, *to_win = answer.details
    assert sentence in " ".join(said.split())
    most = [(one.partition(" ms ")[0], one.rpartition(" in ")[2]) for one in to_win]
    assert most == [
        ("18.00", "conv0, convolution 5x5, kernel gradient"),
        ("8.000", "conv0, convolution 5x5, forward"),
        ("2.500", "pool0, pooling, forward"),
    ]


def test_commands_on_a_page_name_no_file_that_its_readers_lack(full_runs):
    made = tuning()
    own = dataclasses.replace(made, search_command=(*made.search_command, "--space=own.yaml"))
    for document, command in ((made, made.search_command), (own, made.command)):
        report = report_of(full_runs(100), studies=[document])
        listed = [row["command"] for row in rows(report, "reproduce", 1)]
        assert " ".join(command) in listed
        assert not any(".yaml" in one for one in listed)


def test_slow_steps_of_many_configurations_are_one_note(full_runs):
    def blocks(sizes):
        slow = (0.08, 0.08, 0.2) * 10
        parts = {"step_seconds": slow, "losses": ()}
        runs = [full_runs(100, flags={"batch_size": size}, **parts) for size in sizes]
        return section(report_of(*runs), "throughput").blocks

    def notes(found):
        return [one for one in found if isinstance(one, Paragraph) and one.tone]

    first, second = notes(blocks((8, 16)))
    assert (first.text.count("third step"), second.text.count("third step")) == (1, 1)
    found = blocks((4, 8, 16, 32, 64))
    (note,) = notes(found)
    assert note.text.startswith("5 configurations")
    before = [*itertools.takewhile(lambda one: not isinstance(one, ChartGroup), found)]
    (table,) = [one for one in before if isinstance(one, Table)]
    assert table.folded
    names = [row[0].text.partition(", 1 cpu")[0] for row in table.rows]
    assert names == [f"lenet, batch {size}" for size in (4, 8, 16, 32, 64)]


def test_processes_of_base_and_new_are_dots_on_one_axis(full_runs):
    speeds = (110, 111, 109, 110, 112, 110), (100, 101, 99, 100, 102, 100)
    base, new = (full_runs.of(*side) for side in speeds)
    report = report_of(*new, base=base)
    (group,) = (one for one in section(report, "baseline").blocks if isinstance(one, ChartGroup))
    _, strip = group.charts
    judged = compare_records(base, new).entries[0].main
    assert [row.label for row in strip.rows] == ["BASE", "NEW"]
    drawn = [tuple(value for value, _ in row.values) for row in strip.rows]
    assert drawn == [tuple(judged.base), tuple(judged.new)]
    medians = judged.judgement.base_median, judged.judgement.new_median
    assert tuple(row.centre for row in strip.rows) == medians
    assert strip.x.better == HIGHER
    assert "not begin at 0" in strip.note


def test_of_many_configurations_the_processes_of_the_worst_are_drawn(full_runs):
    sizes = (4, 8, 16, 32, 64)

    def side(factor):
        return [
            run
            for size in sizes
            for run in full_runs.of(
                *(size * factor(size) * n for n in (99, 100, 101, 100, 99, 101)),
                flags={"batch_size": size},
            )
        ]

    report = report_of(*side(lambda size: 0.5 if size == 64 else 1.0), base=side(lambda size: 1.0))
    answer = report.answers[0]
    assert answer.text == "1 of 5 configurations slower"
    changes, strips = (
        one.charts for one in section(report, "baseline").blocks if isinstance(one, ChartGroup)
    )
    assert [len(one.rows) for one in changes] == [5]
    assert len(strips) == 3
    assert "batch 64" in strips[0].title
    assert "batch 64" in answer.details[0]


def test_headlines_are_short_and_details_have_the_rest(full_runs):
    base, new = full_runs.of(*[100.0] * 6), full_runs.of(*[80.0] * 6)
    comparison = compare_records(base, new)
    (entry,) = comparison.entries
    again = dataclasses.replace(entry.main.judgement, reason="a long reason of the second one")
    results = (dataclasses.replace(entry.main, confirmation=again), *entry.results[1:])
    entries = (dataclasses.replace(entry, results=results),)
    confirmed = dataclasses.replace(comparison, entries=entries)
    answer = build(gather(Loaded(tuple(new), ()), comparison=confirmed)).answers[0]
    assert answer.text == comparison.answer_lines[0]
    assert len(answer.text.split()) <= 20
    assert any("a long reason of the second one" in one for one in answer.details)
    assert confirmed.answer.startswith(answer.text)
    assert all(one in confirmed.answer for one in confirmed.answer_lines)


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        ("benchmark_seconds", (0.5, 0.7, 0.6), "0.6000 s"),
        ("benchmark_bytes", (2.0**20,), "1.000 MiB"),
    ],
)
def test_a_report_on_benchmarks_begins_with_their_medians(full_runs, kind, values, text):
    def run(value, name):
        made = Imported(
            program="x", kind=kind, file="a.json", sha256="0" * 64, part=1, values={kind: value}
        )
        parts = {"step_seconds": (), "losses": (), "imported": made}
        return full_runs(100, flags={"benchmark": name}, **parts)

    first = [run(value, "sort") for value in values]
    answer = report_of(*first).answers[0]
    assert answer.text == text
    assert str(len(values)) in answer.details[0]
    others = [run(1.0, f"other{number}") for number in range(4)]
    answer = report_of(*first, *others).answers[0]
    assert answer.text.startswith("5 ")
    assert len(answer.details) == 5  # three, "and 2 more", how to compare them


def test_a_report_without_a_speed_says_so(full_runs):
    report = report_of(full_runs(error=("OSError", "no disk"), step_seconds=(), losses=()))
    first, failed = report.answers[:2]
    assert "No speed" in first.text
    assert failed.tone == "bad"


NUMBER, SHARE, BYTES = ("number", "percent", "bytes")
RATES = ("images/sec over the timed steps", NUMBER, True, HIGHER)
MEMORY = ("peak memory", BYTES, True, LOWER)
SECONDS = ("seconds to the end of the first step", NUMBER, True, LOWER)


def test_axes_of_the_charts_of_values_of_processes(report):
    found = {
        chart.title: (chart.x.label, chart.x.format, chart.x.zero, chart.x.better)
        for chart in report.charts
        if isinstance(chart, RowChart) and not chart.title.endswith("distribution")
    }
    assert found == {
        "Images/sec": ("median images/sec", NUMBER, True, HIGHER),
        "lenet, batch 8: throughput": RATES,
        "resnet20, cifar10: throughput": RATES,
        "lenet, batch 8: share of the peak": ("achieved over peak FLOP/s", SHARE, True, HIGHER),
        "lenet, batch 8: peak memory": MEMORY,
        "resnet20, cifar10: peak memory": MEMORY,
        "resnet20, cifar10: top-1 accuracy": ("top-1 of the last evaluation", SHARE, True, HIGHER),
        "lenet, batch 8: start-up": SECONDS,
        "resnet20, cifar10: start-up": SECONDS,
    }


def test_commits_and_machines_are_counted_if_there_are_several(full_runs):
    def measured(*parts):
        records = [full_runs(100, **one) for one in parts]
        return dict(report_of(*records).highlights)["measured"]

    one, two = ({"subject": Subject(revision=letter * 40)} for letter in "ab")
    there, here = ({"environment": {"hostname": name, "cpu_model": name}} for name in "xy")
    assert measured(one, one) == "1 configuration, 2 processes"
    assert measured(one, two) == "1 configuration, 2 commits, 2 processes"
    assert measured(there, here) == "1 configuration, 2 machines, 2 processes"
    assert measured({}, {"flags": {"batch_size": 16}}) == "2 configurations, 2 processes"


def test_one_device_is_no_answer_of_a_reduction(reductions):
    point = reductions.point

    def answers(*points):
        return [one.text for one in report_of(reductions=[reductions(*points)]).answers]

    alone = point(devices=1, seconds=(0.001,) * 3)
    (text,) = answers(alone, point())
    assert text == answers(point())[0]
    assert "4 devices" in text
    assert answers(alone) == []


def test_curves_and_bars_of_reductions(reductions, measured):
    point = reductions.point

    def charts(*points, **more):
        record = reductions(*points, **more)
        return [one for one in report_of(reductions=[record]).charts if "devices" in one.title]

    bus, algorithm = report_of(reductions=[measured]).charts
    assert bus.title == "2 cpu devices, float32: bus bandwidth"
    # Of two devices, both bandwidths are the same; wrong sums are left out.
    found = {one.name: (one.points, one.reference) for one in bus.series}
    assert found["xring"] == (((4096, pytest.approx(2.0)), (65536, pytest.approx(2.0))), False)
    assert found["pscpu"] == (((4096, pytest.approx(1.0)),), False)
    assert [one.points for one in algorithm.series][:2] == [
        ((4096, pytest.approx(2.0)), (65536, pytest.approx(2.0))),
        ((4096, pytest.approx(1.0)),),
    ]
    # Of several packings, the fastest reduction of a size; on 4 devices busbw is 1.5 algbw.
    sizes = [point(3.0, bytes=4096), point(5.0, bytes=4096), point(4.0, bytes=8192)]
    bus, algorithm = charts(*sizes)
    assert bus.series[0].points == ((4096, pytest.approx(5.0)), (8192, pytest.approx(4.0)))
    assert algorithm.series[0].points[0] == (4096, pytest.approx(5.0 / 1.5))
    # One size is bars, the fastest first, with the middle half of the reductions.
    seconds = (0.001, 0.002, 0.002, 0.002, 0.004)
    (bars,) = charts(point(3.0, spec="copy"), point(None, seconds=seconds, tensors=2))
    assert bars.title == "4 cpu devices, float32, 7.63 MiB: bus bandwidth"
    rows = [(row.label, row.centre, row.low, row.high, row.text) for row in bars.rows]
    assert rows == [
        ("xring, 2 tensors", *[pytest.approx(6.0)] * 3, "6.000"),
        ("copy", *[pytest.approx(3.0)] * 3, "3.000"),
    ]
    assert (bars.limit, bars.bars) == (None, True)
    (bars,) = charts(point(None, seconds=(0.001, 0.002, 0.003, 0.004, 0.005)))
    (row,) = bars.rows
    assert (row.low, row.centre, row.high) == pytest.approx((3.0, 4.0, 6.0))
    assert charts(point(devices=1, seconds=(0.1,)), point(error="lost"), point(wrong=1)) == []


def test_rows_of_reductions(reductions):
    point = reductions.point
    record = reductions(
        point(None, seconds=(0.001, 0.002, 0.004), workload="lenet", tensors=2),
        point(checked=0, packing=Packing(gradient_repacking=8)),
        peers=(point(3.0, spec="nccl_all_reduce", error="lost"),),
    )
    first, second, third = rows(report_of(reductions=[record]), "allreduce")
    expected = {
        **{"algorithm": "xring", "packing": "-", "of": "lenet", "size": "7.63 MiB", "tensors": "2"},
        **{"format": "float32", "devices": "4", "median time, µs": "2,000", "algbw, GB/s": "4.000"},
        **{"busbw, GB/s": "6.000", "longest, µs": "4,000", "#wrong": "0", "error": "-"},
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["packing"], second["of"], second["#wrong"]) == ("packs8", "-", "not checked")
    assert (third["algorithm"], third["error"]) == ("nccl_all_reduce (peer)", "lost")
    assert "measured (UTC)" not in first
    both = rows(report_of(reductions=[record, reductions(6.0)]), "allreduce")
    assert all(row["measured (UTC)"] for row in both)


def test_answers_of_reductions(reductions):
    point = reductions.point

    def answers(*points):
        (answer,) = report_of(reductions=[reductions(*points)]).answers
        return answer.text, answer.details, answer.tone

    small, large, two = point(bytes=4096), point(bytes=8192), point(bytes=4096, devices=2)
    of = "xring, 6.000 GB/s bus bandwidth (median)"
    assert answers(small) == (f"4 KiB on 4 devices: {of}", (), "")
    assert answers(small, point(3.0, bytes=4096, spec="copy")) == answers(small)
    text, details, tone = answers(small, large, two)
    assert (text, tone) == ("The fastest of 2 sizes on 2 or 4 devices", "")
    assert sorted(details) == sorted(
        [f"4 KiB on 4 devices: {of}", f"8 KiB on 4 devices: {of}", f"4 KiB on 2 devices: {of}"]
    )
    text, details, tone = answers(small, point(wrong=1, spec="copy", bytes=4096))
    assert (text, tone) == ("1 reduction failed or summed wrongly", "bad")
    assert details == (f"4 KiB on 4 devices: {of}",)
    assert answers(point(error="lost"))[1:] == ((), "bad")


def test_efficiencies_and_rows_of_a_curve(full_runs):
    records = (full_runs(100), full_runs(150, devices=2), full_runs(200, devices=4))
    found = rows(report_of(*records), "scaling")
    names = ("devices", "median images/sec", "median images/sec per device", "efficiency")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("1", "100.0", "100.0", "100.0 %"),
        ("2", "150.0", "75.00", "75.0 %"),
        ("4", "200.0", "50.00", "50.0 %"),
    ]
    assert "predicted images/sec" not in found[0]


@pytest.mark.parametrize(("number", "is_told"), [(3, True), (4, False)])
def test_of_many_reductions_beside_a_comparison_only_failures_are_answers(
    reductions, full_runs, number, is_told
):
    def answers(*points):
        records = [reductions(*points) for _ in range(number)]
        report = report_of(full_runs(100), base=[full_runs(100)], reductions=records)
        return [one.name for one in report.answers if one.name.startswith("All-reduce")]

    assert len(answers(6.0)) == number * is_told
    assert len(answers(reductions.point(wrong=1))) == number


def use(memory, cpus, end=None, **more):
    """Samples of a process, one a second."""
    seconds = tuple(float(second) for second in range(1, len(memory) + 1))
    values = {"seconds": seconds, "memory_bytes": memory, "busy_cpus": cpus, **more}
    return ResourceUse(**{"sampler_cpu_seconds": 0.0, "loop_start": 2.0, "loop_end": end, **values})


def test_memory_and_cpus_by_hand(full_runs):
    first = use((1 << 20, 3 << 20, 4 << 20, 2 << 20), (0.5, 1.0, 2.0, 0.5), 3.0)
    second = use((5 << 20, 4 << 20, 3 << 20), (1.0, 1.0, 3.0), 3.0, sampler_cpu_seconds=0.3)
    unknown = use((7 << 20, 9 << 20), (4.0, 4.0))
    records = [full_runs(100, resources=one) for one in (first, second, unknown)]
    report = report_of(*records, full_runs(100))
    (row,) = rows(report, "use")
    # Largest: 4, 5 and 9 MiB; growth: 1 and -1 MiB; medians: 0.75, 1 and 4; 0.3 of 3 seconds.
    expected = {
        "most memory": "5 MiB",
        "growth in the timed loop": "+0 B",
        "median of CPUs in use": "1.000",
        "CPU time of the sampler": "10.0 %",
        "processes": "3",
    }
    assert {name: row[name] for name in expected} == expected
    memory, cpus = (
        one for one in report.charts if " of the process" in one.title or "CPUs in" in one.title
    )
    assert memory.shaded == cpus.shaded == (2.0, 3.0, "timed loop")
    assert [one.name for one in memory.series] == ["process 1", "process 2", "process 3"]
    assert cpus.series[0].points == ((1.0, 0.5), (2.0, 1.0), (3.0, 2.0), (4.0, 0.5))
    (row,) = rows(report_of(records[1]), "use")
    assert row["growth in the timed loop"] == "-1 MiB"
    (row,) = rows(report_of(records[2]), "use")
    assert "growth in the timed loop" not in row


def test_steps_of_a_configuration_by_hand(full_runs):
    slow = tuple(0.01 * number for number in range(1, 12))  # 10 to 110 ms
    level = (0.06,) * 11
    records = [full_runs(100, step_seconds=one, losses=()) for one in (slow, level)]
    report = report_of(*records)
    (row,) = rows(report, "steps")
    # Quartiles of the first process: 35, 60 and 85 ms; those of the second are equal.
    expected = {
        "timed steps": "22",
        "median of all steps, ms": "60.00",
        "slowest, ms": "110.0",
        "within a process": "41.7 %",
        "between processes": "0.0 %",
    }
    assert {name: row[name] for name in expected} == expected
    assert "99 %, ms" not in row  # of so few steps
    series, boxes = (one for one in report.charts if "1 cpu: " in one.title)
    # Two warm-up steps, at -1 and 0.
    assert [x for x, _ in series.series[0].points] == [float(x) for x in range(-1, 12)]
    assert series.series[0].points[2:4] == ((1.0, pytest.approx(10)), (2.0, pytest.approx(20)))
    assert series.shaded == (-1.5, 0.5, "warm-up")
    # 1.6 times the 95th percentile of the slowest process, 105 ms.
    assert series.y.limit == boxes.x.limit == pytest.approx(168.0)
    first, second = boxes.rows
    ends = (first.low, *first.box, first.centre, first.high)
    assert ends == pytest.approx((11.0, 35.0, 85.0, 60.0, 109.0))
    assert [value for value, _ in first.values] == pytest.approx([10.0, 110.0])
    assert (second.label, second.style, second.values) == ("process 2", 1, ())


@pytest.mark.parametrize(("steps", "drawn"), [(160, 160), (161, 81), (320, 160), (321, 107)])
def test_long_curves_are_thinned_out(full_runs, steps, drawn):
    none = {"warmup_step_seconds": (), "warmup_losses": (), "losses": ()}
    seconds = (0.1,) * steps
    (chart,) = (
        one
        for one in report_of(full_runs(100, step_seconds=seconds, **none)).charts
        if "in order" in one.title
    )
    assert len(chart.series[0].points) == drawn
    assert chart.shaded is None
