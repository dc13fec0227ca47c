"""The picture of a machine: limits, modes, rooflines and how to reproduce it, by hand.

Tests cnnbench/judge/report/sections/steps.py, cnnbench/judge/report/sections/baseline.py,
cnnbench/judge/report/sections/quantities.py, cnnbench/judge/report/sections/runs.py,
cnnbench/judge/report/sections/all_reduce.py, cnnbench/judge/report/sections/roofline.py,
cnnbench/judge/report/sections/strategies.py and cnnbench/judge/report/sections/tune.py.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from golden import golden
from pages import HOSTILE, Page, report_of, rows, section
from studies import ROWS, SWEEP, roofline, step_profile, strategies, tuning

from cnnbench import __version__
from cnnbench.base.document import Paragraph
from cnnbench.base.document.console import sections_to_text
from cnnbench.judge.report import build, gather, load, render
from cnnbench.judge.report.sections.roofline import roofline_sections
from cnnbench.judge.report.sections.tune import (
    answer_sentence,
    search_verdict,
    searched_network,
)
from cnnbench.records.all_reduce import Copying
from cnnbench.records.campaigns import AS_GIVEN, DIFFERENT, NONE, NOT_FASTER
from cnnbench.records.run import ConditionNote, Conditions
from cnnbench.records.subject import Subject

GOLDEN = Path(__file__).parent / "golden" / "picture.md"


@pytest.fixture(scope="module")
def report(folder):
    return build(gather(folder))


def test_the_machine_reaches_the_fastest_configuration_of_each_network_and_format(report):
    speeds = next(one for one in report.charts if one.title == "Images/sec")
    assert [row.label for row in speeds.rows] == [
        *("lenet, batch 8, 1 cpu, bf16", "lenet, batch 8, 1 cpu, forward_only, fp32"),
        *("lenet, batch 8, 2 cpu, replicated, fp32", "lenet, batch 16, 1 cpu, fp32"),
        "resnet20, cifar10, batch 8, 1 cpu, fp32",
    ]
    assert (speeds.bars, speeds.x.zero, speeds.x.log) == (True, True, False)
    two_devices, other_batch = rows(report, "reach")[2:4]
    # 181 images/sec * 6 GFLOP over the 4 TFLOP/s of two devices.
    assert two_devices["MFU"] == "27.2 %"
    # A roofline of another batch than the fastest has a row: 16 images in 34 ms.
    assert other_batch["roofline estimate, images/sec"] == "470.6"
    assert other_batch["of the estimate"] == "25.1 %"
    # No second place of the page names a fastest configuration.
    assert not any("fastest" in name or "highest" in name for name, _ in report.highlights)


@pytest.mark.slow
def test_what_a_measurement_can_exceed_is_called_no_bound(report, folder):
    text = render(report, "markdown")
    text += "".join(
        sections_to_text(roofline_sections(roofline(one), "", 0)) for one in folder.records[:1]
    )
    assert not re.findall(r"\bbound", text)


def test_configurations_within_noise_are_as_fast(full_runs):
    noisy = (100.0, 104.0, 101.0, 99.0, 98.0, 103.0)
    records = [
        *full_runs.of(*noisy),
        *full_runs.of(*(speed - 1 for speed in noisy), flags={"batch_size": 16}),
        *full_runs.of(*(speed - 50 for speed in noisy), flags={"batch_size": 32}),
    ]
    report = report_of(*records)
    (row,) = rows(report, "reach")
    assert row["configuration"] == "lenet, batch 8, 1 cpu"
    assert row["as fast as"] == "batch 16"
    assert section(report, "reach").visible_when_folded is None
    alone = report_of(records[0], records[6])
    remark = section(alone, "reach").visible_when_folded
    assert "6 processes" in remark.text


def test_rows_of_a_chart_are_named_by_what_differs(full_runs):
    records = [
        full_runs(100),
        full_runs(110, flags={"precision": "bf16"}),
        full_runs(120, flags={"batch_size": 16}),
        full_runs(900, flags={"forward_only": True}),
    ]
    found = [one for one in report_of(*records).charts if one.title.endswith(": throughput")]
    titles = ["lenet, 1 cpu: throughput", "lenet, inference: throughput"]
    assert [one.title for one in found] == titles
    assert [row.label for row in found[0].rows] == [
        "batch 8, fp32",
        "batch 8, bf16",
        "batch 16, fp32",
    ]


def test_candidates_of_a_search_are_named_by_what_differs():
    plain = tuning()
    candidates = [f"num_batches=92 num_intra_threads={n} xla=true" for n in (0, 1)]
    candidate_rows = [
        dataclasses.replace(plain.rows[0], candidate=candidate) for candidate in candidates
    ]
    found = tuning(rows=(*candidate_rows, plain.rows[1]))
    (chart,) = report_of(studies=[found]).charts
    assert chart.title.endswith(", all with num_batches=92 xla=true")
    assert [row.label for row in chart.rows] == ["num_intra_threads=0", "num_intra_threads=1"]


def test_the_command_of_a_search_is_that_of_the_flags_beside_it():
    given = ("cnnbench", "--model=lenet", "--num_gpus=2")
    found = tuning(verdict="open", command=given)
    page = report_of(studies=[found])
    (row,) = rows(page, "flags")
    assert row == {"flags": "as given", "command": "cnnbench --model=lenet --num_gpus=2"}


def test_one_size_of_a_reduction_is_bars(reductions):
    points = [
        reductions.point(speed, spec=spec, bytes=4096, devices=2)
        for spec, speed in (("xring", 2.0), ("copy", 1.0), ("rechd", 3.0))
    ]
    (chart,) = report_of(reductions=[reductions(*points)]).charts
    assert [row.label for row in chart.rows] == ["rechd", "xring", "copy"]
    assert [row.centre for row in chart.rows] == pytest.approx([3.0, 2.0, 1.0])
    assert (chart.bars, chart.x.zero) == (True, True)


@pytest.mark.parametrize(("sizes", "drawn"), [((4096,), False), ((4096, 65536), True)])
def test_the_estimate_by_copies_is_a_curve_over_several_sizes(reductions, sizes, drawn):
    points = [reductions.point(2.0, bytes=size, devices=2) for size in (4096, 65536)]
    copies = tuple(Copying(bytes=size, devices=2, seconds=(1e-6,)) for size in sizes)
    bus, algorithm = report_of(reductions=[reductions(*points, copies=copies)]).charts
    for one in (bus, algorithm):
        assert any(curve.reference for curve in one.series) is drawn


def test_a_profile_is_a_timeline_with_lanes_of_devices(full_runs):
    found = step_profile(full_runs, input_wait_seconds=(0.002,) * 8)
    report = report_of(studies=[found])
    (chart,) = report.charts
    assert chart.title == "lenet, batch 8, 1 cpu: one step"
    lanes = {label: [chart.kinds[one.kind] for one in spans] for label, spans in chart.lanes}
    assert list(lanes) == ["cpu:0", "cpu:0, reduction", "cpu:1", "input pipeline"]
    assert lanes["cpu:0"] == ["forward", "update"]
    assert lanes["cpu:1"] == ["kernel gradient"]
    (input_span,) = chart.lanes[-1][1]
    assert (input_span.start, input_span.end) == pytest.approx((1.0, 4.0))
    assert input_span.hint == "input pipeline, operations, input: 3.000 ms"
    assert "2.000 ms" in chart.note
    times = {row["kind"]: row["median ms of a step"] for row in rows(report, "timeline")}
    assert {"forward", "kernel gradient", "reduction", "update", "no operation"} <= set(times)


def test_a_profile_of_an_earlier_version_has_no_timeline(full_runs):
    found = step_profile(full_runs, timeline=None)
    report = report_of(studies=[found])
    assert "timeline" not in {one.key for one in report.sections}


def test_the_roof_has_a_colour_for_each_kind_and_names_the_longest_layers(report):
    roof = next(one for one in report.charts if "GFLOP/s" in getattr(one, "y", one.x).label)
    top, forward, kernel = roof.series
    assert [rate for rate in ("2,000 GFLOP/s", "40.00 GB/s") if rate not in top.name] == []
    assert (forward.style, kernel.style) == (0, 0)
    assert (forward.mark, kernel.mark) == (0, 1)
    assert forward.texts == kernel.texts == ("conv0",)
    assert kernel.diameters > forward.diameters
    bars = next(one for one in report.charts if one.title.endswith("time of a step in 3 layers"))
    assert [(row.label, row.centre) for row in bars.rows][:2] == [("conv0", 50.0), ("pool0", 10.0)]
    assert bars.rows[0].values[0][0] == pytest.approx(24.0)  # the estimate


def test_a_roofline_of_the_same_work_is_the_estimate_of_the_row(full_runs):
    (row,) = rows(report_of(full_runs(200), studies=[roofline(full_runs(190))]), "reach")
    assert row["median images/sec"] == "200.0"
    assert row["roofline estimate, images/sec"] == "235.3"  # 8 images in 34 ms
    assert row["of the estimate"] == "85.0 %"


def test_sides_of_an_experiment_are_no_picture_of_the_machine(full_runs):
    sides = [full_runs(100, subject=Subject(side=side)) for side in ("a", "b")]
    assert "reach" not in {one.key for one in report_of(*sides).sections}


def test_the_peak_that_a_roofline_measured_counts_for_all(full_runs):
    profiled = roofline(full_runs.with_peak(2e12, flags={"batch_size": 16}))
    (row,) = rows(report_of(full_runs.with_peak(1e12), studies=[profiled]), "mfu")
    assert row["peak, GFLOP/s"] == "2,000"
    assert row["source of the peak"].startswith("measured: x")
    assert "2 processes" in row["source of the peak"]


def test_estimates_are_those_of_the_one_peak_of_the_page(full_runs):
    profiled = roofline(full_runs.with_peak(1.2e12)).with_peak_rate(1.2e12, "measured: x")
    alone = report_of(studies=[profiled])
    beside = report_of(full_runs.with_peak(2e12), studies=[profiled])
    (share,) = (row["of the estimate"] for row in rows(alone, "roofline"))
    assert share == "76.9 %"  # 50 ms of 65
    (share,) = (row["of the estimate"] for row in rows(beside, "roofline"))
    assert share == "52.3 %"  # 34 ms
    assert {row["peak, GFLOP/s"] for row in rows(beside, "reach")} == {"2,000"}
    assert "faster than estimated:" not in str(section(beside, "roofline"))


def test_why_a_row_is_faster_than_its_estimate(full_runs):
    quick = [dataclasses.replace(row, seconds=row.seconds / 2) for row in ROWS]
    above = roofline(full_runs(100), rows=(ROWS[0], *quick[1:3], ROWS[3]))
    found = section(report_of(studies=[above]), "roofline").blocks
    remark = above.faster_rows_remark
    assert [count for count in ("2 rows", "1 limited by bytes") if count not in remark] == []
    texts = [block.text for block in found if isinstance(block, Paragraph)]
    assert f"lenet, batch 8, 1 cpu: {remark}" in texts


def test_modes_that_train_otherwise_or_overlap_are_told(folder):
    document = strategies()
    server, replicated = document.rows[1:3]
    changed = (
        dataclasses.replace(server, high=190.0),
        dataclasses.replace(
            replicated, weights=DIFFERENT, weight_distance=float("nan"), problem="died"
        ),
    )
    document = dataclasses.replace(document, rows=(document.rows[0], *changed))
    report = report_of(studies=[document])
    (answer,) = report.answers
    assert answer.tone == "bad"
    tones = [one.tone for one in section(report, "modes").blocks if isinstance(one, Paragraph)]
    assert tones == ["", "bad", "bad"]
    assert report.title == "Speed of lenet"


def test_gains_of_the_best_flags_are_drawn(report):
    (drawn,) = (one for one in report.charts if "gain" in one.title)
    assert drawn.limit == (0.0, "as given")
    assert [row.label for row in drawn.rows] == ["variable_update=replicated", "precision=bf16"]


def test_conditions_of_profiled_runs_and_of_reductions_count(full_runs, measured):
    note = ConditionNote(id="load", when="during", text="others kept 1.5 CPUs", advice="stop")
    profiled = roofline(full_runs(100, conditions=Conditions(before={})))
    reduced = dataclasses.replace(measured, conditions=Conditions(before={}, notes=(note,)))
    answer = report_of(reductions=[reduced], studies=[profiled]).answers[-1]
    assert answer.tone == "unsure"
    assert answer.text.startswith("1 of 2 processes")


def test_two_rooflines_of_one_configuration_have_their_times(full_runs):
    pair = tuple(roofline(full_runs(100)) for _ in range(2))
    found = rows(report_of(studies=pair), "roofline")
    names = [f"lenet, batch 8, 1 cpu, 2026-11-20 00:0{at}:00" for at in range(2)]
    assert [one["configuration"] for one in found] == names


@pytest.mark.parametrize("command", [None, "cnnbench", [1, 2], [], {"a": 1}])
def test_a_place_in_a_sweep_may_hold_anything(full_runs, command):
    record = full_runs(100, sweep={**SWEEP, "command": command})
    (row,) = rows(report_of(record), "reproduce", 1)
    assert row["command"] == "cnnbench --model=lenet --num_gpus=1"


def test_of_a_suite_in_a_file_the_command_of_each_configuration_is_listed(full_runs):
    """A reader of the page does not have the file."""
    records = [
        full_runs(100, sweep={**SWEEP, "command": ["cnnbench", "sweep", name]})
        for name in ("own.yaml", "throughput")
    ]
    own, built_in = (
        [row["command"] for row in rows(report_of(r), "reproduce", 1)] for r in records
    )
    assert own == ["cnnbench --model=lenet --num_gpus=1"]
    assert built_in == ["cnnbench sweep throughput"]


def test_processes_of_a_comparison_of_modes_need_no_command_of_their_own(full_runs):
    record = full_runs(180, devices=2, run_id="replicated1")
    report = report_of(record, studies=[strategies()])
    (row,) = rows(report, "reproduce", 1)
    assert row["measures"] == "modes of lenet, batch 8, 2 cpu"


def test_markdown_is_golden(report):
    text = render(report, "markdown").replace(__version__, "VERSION")
    assert text == golden(GOLDEN, text)


def test_documents_of_the_page_are_read_and_faulty_ones_are_a_line_each(
    folder, full_runs, tmp_path
):
    studies = (*folder.studies, step_profile(full_runs))
    for index, one in enumerate((*folder.all_records, *studies), start=10):
        (tmp_path / f"{index}.json").write_text(one.to_json())
    assert load([str(tmp_path)]).studies == studies
    first, _, tuned, last = (one.to_dict() for one in folder.studies)
    for name, document in {
        "a": {**first, "rows": []},
        "b": {**first, "rows": [{**first["rows"][0], "seconds": -1.0}]},
        "c": {**first, "machine": {**first["machine"], "bytes_per_sec": 0.0}},
        "d": {**first, "run": {**first["run"], "batch": None}},
        "e": {**last, "rows": [{**last["rows"][0], "weights": "alike"}]},
        "f": {**last, "started_at": "now"},
        "g": {**last, "schema": 2},
        "h": {**tuned, "verdict": "great"},
        "i": {**tuned, "rows": [{**tuned["rows"][0], "gain": "NaN"}]},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    loaded = load([str(tmp_path)])
    assert loaded.studies == studies
    # The kind of document, the place in it, and the value.
    named = [
        ("roofline", " rows: ", "none"),
        ("roofline", " rows[0].seconds: ", "-1.0"),
        ("roofline", " machine.bytes_per_sec: ", "0.0"),
        ("roofline", " run: ", "batch"),
        ("modes", " rows.weights: ", "'alike'"),
        ("modes", " started_at: ", "'now'"),
        ("modes", " schema: ", "2"),
        ("flags", " verdict: ", "'great'"),
        ("flags", " rows.gain: ", "nan"),
    ]
    for defect, words in zip(loaded.defects, named, strict=True):
        assert [word for word in words if word not in defect.reason] == []


def hostile(value):
    """The value with hostile text in place of all text that is not one of a few words."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, (tuple, list)):
        return type(value)(map(hostile, value))
    if isinstance(value, dict):
        more = {HOSTILE: HOSTILE} if any(isinstance(one, str) for one in value.values()) else {}
        return {key: hostile(item) for key, item in value.items()} | more
    if dataclasses.is_dataclass(value):
        words = ("started_at", "status", "verdict", "weights")
        names = {one.name for one in dataclasses.fields(value)}.difference(words)
        return dataclasses.replace(value, **{n: hostile(getattr(value, n)) for n in names})
    return value


@pytest.mark.slow
def test_hostile_names_are_text(full_runs):
    run = full_runs(100, sweep=SWEEP)
    plain = roofline(full_runs(100)), strategies(), tuning(), step_profile(full_runs)
    profiled, modes, tuned, steps = map(hostile, plain)
    documents = profiled, modes, dataclasses.replace(tuned, weights=HOSTILE), steps
    page = Page(render(report_of(hostile(run), studies=documents), "html"))
    tags = [tag for tag, _ in page.elements]
    assert (tags.count("script"), {"img", "b"} & {*tags}) == (1, set())
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")


LEADER = "variable_update=replicated"


@pytest.mark.parametrize(
    ("parts", "text", "tone", "is_best"),
    [
        ({}, "12.0 % (10.0 to 14.0 %) faster than the flags as given, 12 pairs", "good", True),
        ({"trains_alike": None}, None, "good", True),
        ({"low": None, "pairs": 1}, "12.0 % faster than the flags as given, 1 pair", "good", True),
        ({"high": None}, "12.0 % faster than the flags as given, 12 pairs", "good", True),
        (
            {"trains_alike": False},
            f"{LEADER} is 12.0 % (10.0 to 14.0 %) faster, but trains other weights",
            "bad",
            False,
        ),
        ({"verdict": "open", "leader": AS_GIVEN}, "no candidate was tried", "unsure", False),
        (
            {"verdict": "open"},
            f"it is not proven that {LEADER} is faster than the flags as given",
            "unsure",
            False,
        ),
        ({"verdict": "same"}, f"{LEADER} is as fast as the flags as given", "", False),
        ({"verdict": "slower"}, f"{LEADER} is slower than the flags as given", "", False),
        ({"verdict": NOT_FASTER}, f"{LEADER} is not faster than the flags as given", "", False),
        ({"verdict": NONE}, "no candidate was faster than the flags as given", "", False),
    ],
)
def test_outcomes_of_a_search(parts, text, tone, is_best):
    document = tuning(**parts)
    assert search_verdict(document) == (text or search_verdict(tuning())[0], tone)
    if text is None:
        return
    sentence = f"{text}." if is_best else f"These are the flags as given: {text}."
    assert answer_sentence(document) == sentence
    because = answer_sentence(dataclasses.replace(document, reason="no time"))
    is_told = document.verdict in ("open", NONE)
    assert because == (sentence.replace(text, f"{text}: no time") if is_told else sentence)
    (answer,) = report_of(studies=[document]).answers
    assert (answer.name, answer.text, answer.tone) == ("Best flags of lenet", text, tone)
    assert answer.details[0].startswith(f"{LEADER if is_best else AS_GIVEN}: cnnbench ")
    assert answer.details[1:] == (document.weights,)


def test_the_network_of_a_search():
    assert searched_network(tuning()) == "lenet"
    assert searched_network(tuning(command=("cnnbench", "--xla"))) == "the default network"
