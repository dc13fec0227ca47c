"""Numbers of the sections, by hand.

Tests cnnbench/judge/report/sections/__init__.py, cnnbench/judge/report/sections/baseline.py,
cnnbench/judge/report/sections/all_reduce.py,
cnnbench/judge/report/sections/environment.py, cnnbench/judge/report/sections/runs.py,
cnnbench/judge/report/sections/quantities.py, cnnbench/judge/report/sections/scaling.py and
cnnbench/judge/report/sections/steps.py.
"""

import dataclasses
import itertools
import math

import pytest
from pages import report_of, rows, section
from step_profiles import changed

from cnnbench.base.charts import HIGHER, LOWER, RowChart
from cnnbench.base.document import ChartGroup, Paragraph, Table
from cnnbench.base.document.console import sections_to_text
from cnnbench.judge.compare import compare_records
from cnnbench.judge.explain import explain
from cnnbench.judge.explain.blocks import causes_table
from cnnbench.judge.metrics.rules import Acceptance
from cnnbench.judge.report import build, gather
from cnnbench.records.load import Loaded
from cnnbench.records.run import Imported, Measured, ResourceUse, StartupSeconds
from cnnbench.records.subject import Subject
from cnnbench.variable_mgr.packing import Packing


def test_sections_without_anything_to_say_are_left_out(full_runs):
    nothing = {"measured": Measured(), "startup_seconds": StartupSeconds(), "environment": {}}
    bare = full_runs(100, losses=(), warmup_losses=(), **nothing)
    assert [one.key for one in report_of(bare).sections] == [
        *("reach", "reproduce", "throughput", "mfu", "warmup", "steps")
    ]


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


def test_a_slower_configuration_has_the_same_numbers_everywhere(full_runs):
    base, new = (
        full_runs.of(110, 111, 109, 110, 112, 110),
        full_runs.of(100, 101, 99, 100, 102, 100),
    )
    report = report_of(*new, base=base)
    (row,) = rows(report, "baseline")
    main = compare_records(base, new).entries[0].main
    judged = main.judgement
    # What counts comes first, before what a narrow screen cuts off.
    assert [*row.items()][1:3] == [
        ("verdict", "slower"),
        ("change", f"{100 * judged.change:+.1f} %"),
    ]
    assert row["p"] == f"{judged.p_adjusted:.2g}"
    *others, method = section(report, "baseline").blocks
    assert (method.title, method.folded) == ("How it was judged", True)
    (group,) = (one for one in others if isinstance(one, ChartGroup))
    (strip,), changes = group.charts, report.answers[0].chart
    (bar,) = changes.rows
    assert (bar.centre, bar.low, bar.high) == (judged.change, judged.low, judged.high)
    assert (bar.tone, changes.limit[0], changes.x.better) == ("bad", 0.0, HIGHER)
    assert [row.label for row in strip.rows] == ["BASE", "NEW"]
    drawn = [tuple(value for value, _ in row.values) for row in strip.rows]
    assert drawn == [tuple(main.base), tuple(main.new)]
    assert [row.centre for row in strip.rows] == [judged.base_median, judged.new_median]
    answer = report.answers[0]
    assert "% slower" not in " ".join(answer.details)  # said in the headline


def test_another_network_is_an_answer_and_no_change(full_runs):
    sizes = {"parameters": 40, "training_flops_per_image": 12 * 10**9}
    wider = dataclasses.replace(full_runs(1).model, **sizes)
    base, new = full_runs.of(100, 101, 99, 100), full_runs.of(432, 433, 431, 432, model=wider)
    blocks = section(report_of(*new, base=base), "baseline").blocks
    (row, *_) = (block.rows[0] for block in blocks if isinstance(block, Table))
    assert {cell.tone for cell in row} == {"", "changed"}
    assert not any(isinstance(block, ChartGroup) for block in blocks)


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


def test_a_page_has_one_median_of_a_configuration(full_runs):
    """Which disturbances are rare is decided for A and B together, in the report as well."""
    base, new = full_runs.of(*[100.0] * 6), full_runs.of(*[100.0] * 6)
    for place in range(4):  # rare among all twelve processes would be three
        *steps, last = new[place].step_seconds
        new[place] = dataclasses.replace(new[place], step_seconds=(*steps, 30 * (place + 1) * last))
    report = report_of(*new, base=base)
    judged, own = (rows(report, key)[0] for key in ("baseline", "throughput"))
    assert judged["new"] == own["median images/sec"]


def test_a_fact_of_any_name_hides_no_other_column(full_runs):
    facts = [{"run": one, "memory_bytes": 25276502016 + place} for place, one in enumerate("xy")]
    records = [full_runs(100, environment=one) for one in facts]
    (first, _) = rows(report_of(*records), "environment")
    assert (first["run"], first["memory_bytes"]) == (records[0].run_id[:8], "23.5 GiB")


def test_reductions_are_in_order_of_their_start_in_any_time_zone(everything):
    starts = ("12:00:00+00:00", "08:00:00-05:00", "13:00:00+02:00")
    (record,) = everything.allreduces
    records = [dataclasses.replace(record, started_at=f"2026-11-20T{one}") for one in starts]
    found = gather(Loaded((), (), tuple(records))).allreduces
    assert [one.started_at[11:] for one in found] == [starts[2], starts[0], starts[1]]


def test_a_page_has_the_newest_of_many_configurations(full_runs):
    revisions = [f"{number:040x}"[::-1] for number in range(80)]
    report = report_of(
        *(
            full_runs(100, subject=Subject(repository="nets", revision=revision))
            for revision in revisions
        )
    )
    assert max(len(one.rows) for one in report.charts if isinstance(one, RowChart)) == 24
    (shown,) = [one for one in section(report, "memory").blocks if isinstance(one, Table)]
    names = [row[0].text for row in shown.rows]
    assert len({*names}) == 60
    assert names[0].endswith(revisions[20][:12])
    (extent,) = [one for one in report.answers if one.name == "Extent"]
    assert "60 of 80" in extent.text


def test_only_tables_of_cnnbench_have_commands_of_imported_runs(full_runs):
    def imported(file, command):
        made = Imported(program="x", file=file, sha256="0" * 64, part=1, values={})
        return full_runs(100, imported=made, command=command)

    unknown = imported("log.txt", ())
    assert "reproduce" not in {one.key for one in report_of(unknown).sections}
    (row,) = rows(report_of(unknown, imported("x.csv", ("cnnbench",))), "reproduce", 1)
    assert (row["command"], row["processes"]) == ("cnnbench", "1")


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


def test_headlines_are_short_and_details_have_the_rest(full_runs):
    base, new = full_runs.of(*[100.0] * 6), full_runs.of(*[80.0] * 6)
    comparison = compare_records(base, new)
    (entry,) = comparison.entries
    acceptance = Acceptance(commit="1234567", reason="a reason to accept it", until="2999-01-01")
    results = (dataclasses.replace(entry.main, accepted=acceptance), *entry.results[1:])
    entries = (dataclasses.replace(entry, results=results),)
    accepted = dataclasses.replace(comparison, entries=entries)
    answer = build(gather(Loaded(tuple(new), ()), comparison=accepted)).answers[0]
    assert answer.text == comparison.answer_lines[0]
    assert any("a reason to accept it" in one for one in answer.details)
    assert all(one in accepted.answer for one in (answer.text, *accepted.answer_lines))


NUMBER, SHARE, BYTES = ("number", "percent", "bytes")
RATES = ("images/sec over the timed steps", NUMBER, True, HIGHER)
MEMORY = ("peak memory", BYTES, True, LOWER)
SECONDS = ("seconds to the end of the first step", NUMBER, True, LOWER)


def test_axes_of_the_charts_of_values_of_processes(report):
    (shares,) = [one for one in report.charts if one.title.endswith("share of the peak")]
    assert shares.limit[0] == 1.0
    found = {
        chart.title: (chart.x.label, chart.x.format, chart.x.zero, chart.x.better)
        for chart in report.charts
        if isinstance(chart, RowChart)
    }
    assert found == {
        "lenet, batch 8: throughput": RATES,
        "resnet20, cifar10: throughput": RATES,
        "lenet, batch 8: share of the peak": ("achieved over peak FLOP/s", SHARE, True, HIGHER),
        "lenet, batch 8: peak memory": MEMORY,
        "resnet20, cifar10: peak memory": MEMORY,
        "resnet20, cifar10: top-1 accuracy": ("top-1 of the last evaluation", SHARE, True, HIGHER),
        "lenet, batch 8: start-up": SECONDS,
        "resnet20, cifar10: start-up": SECONDS,
    }


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


def test_memory_and_cpus_of_several_processes_are_medians(full_runs):
    first = use((1 << 20, 3 << 20, 4 << 20, 2 << 20), (0.5, 1.0, 2.0, 0.5), 3.0)
    second = use((5 << 20, 4 << 20, 3 << 20), (1.0, 1.0, 3.0), 3.0, sampler_cpu_seconds=0.3)
    unknown = use((7 << 20, 9 << 20), (4.0, 4.0))
    records = [full_runs(100, resources=one) for one in (first, second, unknown)]
    report = report_of(*records, full_runs(100))
    (row,) = rows(report, "use")
    # Largest: 4, 5 and 9 MiB; growth: 1 and -1 MiB; medians: 0.75, 1 and 4; 0.3 of 3 seconds.
    assert {
        "most memory": "5 MiB",
        "growth in the timed loop": "+0 B",
        "median of CPUs in use": "1.000",
        "CPU time of the sampler": "10.0 %",
        "processes": "3",
    }.items() <= row.items()
    memory, cpus = (
        one for one in report.charts if " of the process" in one.title or "CPUs in" in one.title
    )
    assert [one.name for one in memory.series] == ["process 1", "process 2", "process 3"]
    assert cpus.series[0].points == ((1.0, 0.5), (2.0, 1.0), (3.0, 2.0), (4.0, 0.5))


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
    (series,) = (one for one in report.charts if "1 cpu: " in one.title)
    # Two warm-up steps, at -1 and 0.
    assert [x for x, _ in series.series[0].points] == [float(x) for x in range(-1, 12)]
    assert series.series[0].points[2:4] == ((1.0, pytest.approx(10)), (2.0, pytest.approx(20)))
    assert series.shaded == (-1.5, 0.5, "warm-up")
    # 1.6 times the 95th percentile of the slowest process, 105 ms.
    assert series.y.limit == pytest.approx(168.0)


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
