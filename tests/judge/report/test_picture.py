"""The picture of a machine: limits, rooflines and how to reproduce it, by hand.

Tests cnnbench/judge/report/sections/steps.py, cnnbench/judge/report/sections/baseline.py,
cnnbench/judge/report/sections/quantities.py, cnnbench/judge/report/sections/runs.py,
cnnbench/judge/report/sections/all_reduce.py, cnnbench/judge/report/sections/roofline.py and
cnnbench/judge/report/sections/tune.py.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from golden import golden
from pages import HOSTILE, Page, report_of, rows, section
from studies import SWEEP, roofline, step_profile, tuning

from cnnbench import __version__
from cnnbench.judge.report import build, gather, load, render
from cnnbench.judge.report.sections.tune import (
    searched_network,
)
from cnnbench.records.run import ConditionNote, Conditions

GOLDEN = Path(__file__).parent / "golden" / "picture.md"


@pytest.fixture(scope="module")
def report(folder):
    return build(gather(folder))


def test_the_machine_reaches_the_fastest_configuration_of_each_network_and_format(report):
    assert [(row["configuration"], row["format"]) for row in rows(report, "reach")] == [
        *(("lenet, batch 8, 1 cpu, bf16", "bf16"), ("lenet, batch 8, 1 cpu, forward_only", "fp32")),
        *(("lenet, batch 8, 2 cpu, replicated", "fp32"), ("lenet, batch 16, 1 cpu", "fp32")),
        ("resnet20, cifar10, batch 8, 1 cpu", "fp32"),
    ]
    two_devices, other_batch = rows(report, "reach")[2:4]
    # 181 images/sec * 6 GFLOP over the 4 TFLOP/s of two devices.
    assert two_devices["MFU"] == "27.2 %"
    # A roofline of another batch than the fastest has a row: 16 images in 34 ms.
    assert other_batch["roofline estimate, images/sec"] == "470.6"
    assert other_batch["of the estimate"] == "25.1 %"
    # No second place of the page names a fastest configuration.
    assert not any("fastest" in name or "highest" in name for name, _ in report.highlights)


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


def test_conditions_of_profiled_runs_and_of_reductions_count(full_runs, measured):
    note = ConditionNote(id="load", when="during", text="others kept 1.5 CPUs", advice="stop")
    profiled = roofline(full_runs(100, conditions=Conditions(before={})))
    reduced = dataclasses.replace(measured, conditions=Conditions(before={}, notes=(note,)))
    answer = report_of(reductions=[reduced], studies=[profiled]).answers[-1]
    assert answer.tone == "unsure"
    assert answer.text.startswith("1 of 2 processes")


@pytest.mark.parametrize("command", [None, "cnnbench", [1, 2], []])
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


def test_markdown_is_golden(report):
    text = render(report, "markdown").replace(__version__, "VERSION")
    assert text == golden(GOLDEN, text)


def test_documents_of_the_page_are_read_and_faulty_ones_are_a_line_each(
    folder, full_runs, tmp_path
):
    studies = (*folder.studies, step_profile(full_runs))
    for index, one in enumerate((*folder.all_records, *studies), start=10):
        (tmp_path / f"{index}.json").write_text(one.to_json())
    first = folder.studies[0].to_dict()
    faulty = {
        " rows: ": {**first, "rows": []},
        " rows[0].seconds: ": {**first, "rows": [{**first["rows"][0], "seconds": -1.0}]},
        " machine.bytes_per_sec: ": {
            **first,
            "machine": {**first["machine"], "bytes_per_sec": 0.0},
        },
        " run: ": {**first, "run": {**first["run"], "batch": None}},
    }
    for number, document in enumerate(faulty.values()):
        (tmp_path / f"a{number}.json").write_text(json.dumps(document))
    loaded = load([str(tmp_path)])
    assert loaded.studies == studies
    for defect, place in zip(loaded.defects, faulty, strict=True):
        assert ("roofline" in defect.reason, place in defect.reason) == (True, True)


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
        words = ("started_at", "status", "verdict")
        names = {one.name for one in dataclasses.fields(value)}.difference(words)
        return dataclasses.replace(value, **{n: hostile(getattr(value, n)) for n in names})
    return value


@pytest.mark.slow
def test_hostile_names_are_text(full_runs):
    run = full_runs(100, sweep=SWEEP)
    plain = roofline(full_runs(100)), tuning(), step_profile(full_runs)
    documents = [*map(hostile, plain)]
    page = Page(render(report_of(hostile(run), studies=documents), "html"))
    tags = [tag for tag, _ in page.elements]
    assert (tags.count("script"), {"img", "b"} & {*tags}) == (1, set())
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")


def test_the_network_of_a_search():
    assert searched_network(tuning()) == "lenet"
    assert searched_network(tuning(command=("cnnbench", "--xla"))) == "the default network"
