"""The picture of a machine: limits, modes, rooflines and how to reproduce it, by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import studies
from golden import golden
from pages import HOSTILE, Page, charts, rows, section

from cnnbench import __version__
from cnnbench.judge.report import build, gather, load, render
from cnnbench.judge.report.document import Text
from cnnbench.records.load import Loaded
from cnnbench.records.parts import ConditionNote, Conditions
from cnnbench.records.strategies import DIFFERENT
from cnnbench.records.subject import Subject

GOLDEN = Path(__file__).parent / "golden" / "picture.md"
SWEEP = {"suite": "throughput", "case": "a", "key": "0" * 12, "repeat": 1, "seed": 1}
NETS = Subject(repository="nets", revision="b" * 40)
COMMAND = ["cnnbench", "sweep", "throughput", "--", "--device=cpu"]


@pytest.fixture(scope="module")
def folder(make_runs, measured):
    """What a sweep, strategies, roofline and allreduce leave of one machine."""
    runs = make_runs()
    place = {**SWEEP, "command": COMMAND}
    records = [
        *runs.of(100, 101, 99, 100.5, 99.5, 102, sweep=place),
        *runs.of(120, flags={"batch_size": 16}, sweep=place),
        *runs.of(150, flags={"precision": "bf16"}, subject=NETS),
        *runs.of(300, flags={"forward_only": True}),
        *runs.of(180, 182, devices=2, flags={"variable_update": "replicated"}),
    ]
    profiled = runs(
        118,
        flags={"batch_size": 16, "num_batches": 10},
        command=("cnnbench", "roofline", "lenet", "--batch_size=16"),
    )
    other = runs(390, flags={"model": "resnet20", "data_name": "cifar10"})
    found = (studies.roofline(profiled), studies.roofline(other), studies.tuning())
    found = (*found, studies.strategies())
    return Loaded(tuple(records), (), (measured,), found)


@pytest.fixture(scope="module")
def report(folder):
    return build(gather(folder))


def test_the_order_of_the_page(report):
    assert [one.key for one in report.sections] == [
        *("reach", "flags", "modes", "scaling", "allreduce", "throughput", "mfu", "roofline"),
        *("memory", "accuracy", "warmup", "steps", "environment", "reproduce", "runs"),
    ]


def test_sections_need_their_data(runs, measured):
    bare = runs(100, measured=runs(1).measured.__class__())
    keys = {one.key for one in build(gather(Loaded((bare,), (), (measured,)))).sections}
    assert {"reach", "flags", "modes", "roofline"}.isdisjoint(keys)
    assert {"throughput", "allreduce", "reproduce"} <= keys


def test_the_machine_reaches_the_fastest_configuration_of_each_network_and_format(report):
    found = rows(report, "reach")
    speeds = next(one for one in charts(report) if one.title == "images/sec")
    assert [row.label for row in speeds.rows] == [
        *("lenet, bf16", "lenet, batch 8, 2 cpu, replicated", "lenet, batch 16, 1 cpu"),
        *("lenet, inference, fp32", "resnet20, cifar10, fp32"),
    ]
    # 181 images/sec * 6 GFLOP over the 4 TFLOP/s of two devices.
    assert found[1]["MFU"] == "27.2 %"
    assert found[1]["roofline bound, images/sec"] == "-"
    # A roofline of another batch than the fastest has a row: 16 images in 34 ms.
    assert found[2]["roofline bound, images/sec"] == "470.6"
    assert found[2]["of the bound"] == "25.1 %"
    highlights = dict(report.highlights)
    assert highlights["highest MFU, median"].startswith("45.0 % (lenet, batch 8, 1 cpu, bf16")


def test_a_roofline_of_the_same_work_is_the_bound_of_the_row(runs):
    loaded = Loaded((runs(200),), (), (), (studies.roofline(runs(190)),))
    (row,) = rows(build(gather(loaded)), "reach")
    assert row["median images/sec"] == "200.0"
    assert row["roofline bound, images/sec"] == "235.3"  # 8 images in 34 ms
    assert row["of the bound"] == "85.0 %"


def test_sides_of_an_experiment_are_no_picture_of_the_machine(runs):
    sides = [runs(100, subject=Subject(side=side)) for side in ("a", "b")]
    assert "reach" not in {one.key for one in build(gather(Loaded(tuple(sides), ()))).sections}


def test_the_peak_that_a_roofline_measured_counts_for_all(runs):
    given = runs(1).measured
    own = dataclasses.replace(given, peak_flops_per_sec=1e12, peak_flops_source="measured: x")
    high = dataclasses.replace(given, peak_flops_per_sec=2e12, peak_flops_source="measured: x")
    profiled = studies.roofline(runs(100, measured=high, flags={"batch_size": 16}))
    (row,) = rows(build(gather(Loaded((runs(100, measured=own),), (), (), (profiled,)))), "mfu")
    assert row["peak, GFLOP/s"] == "2,000"
    assert row["source of the peak"] == "measured: x, the highest of 2 processes"


def test_modes_that_train_otherwise_or_overlap_are_told(folder):
    document = studies.strategies()
    server, replicated = document.rows[1:3]
    changed = (
        dataclasses.replace(server, high=190.0),
        dataclasses.replace(
            replicated, weights=DIFFERENT, weight_distance=float("nan"), problem="died"
        ),
    )
    document = dataclasses.replace(document, rows=(document.rows[0], *changed))
    report = build(gather(Loaded((), (), (), (document,))))
    (answer,) = report.answers
    assert (answer.text.split()[0], answer.tone) == ("parameter_server", "bad")
    tones = [one.tone for one in section(report, "modes").blocks if isinstance(one, Text)]
    assert tones == ["", "bad", "bad"]
    assert report.title == "Speed of lenet"
    near = studies.strategies(rows=(document.rows[0], changed[0], replicated))
    (answer,) = build(gather(Loaded((), (), (), (near,)))).answers
    assert answer.details[0] == "not told apart from parameter_server: their ranges overlap"


def test_the_best_flags_have_their_command_first_and_their_proof(report):
    answer = report.answers[0]
    assert answer.name == "Best flags of lenet"
    assert answer.text == "12.0 % (10.0 to 14.0 %) faster than the flags as given, 12 pairs"
    assert answer.tone == "good"
    assert answer.details == (
        "cnnbench --model=lenet --num_gpus=2 --variable_update=replicated",
        "it trains the same weights, all bits",
    )
    (drawn,) = (one for one in charts(report) if "gain over the flags" in one.title)
    assert drawn.limit == 0.0  # the flags as given
    (command,) = rows(report, "flags")
    assert command["command"] == answer.details[0]
    best, given, left, untried = rows(report, "flags", 1)
    assert (best["gain"], best["95 % interval"]) == ("+13.0 %", "+10.0 % to +16.0 %")
    assert (given["gain"], given["left"]) == ("+0.0 %", "-")
    assert left["candidate"] == "precision=bf16 (precision)"
    assert left["left"] == "slower after round 3 of formats: by 25 %"
    assert untried["left"] == "untried: no time for it"
    assert rows(report, "flags", 2)[0]["reason"] == "no GPU"


@pytest.mark.parametrize(
    ("parts", "text", "tone"),
    [
        ({"trains_alike": False}, "faster, but trains other weights", "bad"),
        ({"verdict": "open"}, "it is not proven that variable_update=replicated is", "unsure"),
        ({"verdict": "open", "leader": "as given"}, "no candidate was tried", "unsure"),
        ({"verdict": "same"}, "the flags as given are the best found; variable_update", ""),
        ({"verdict": "none", "gain": None}, "the flags as given are the best found", ""),
    ],
)
def test_what_is_not_proven_is_not_said_to_be(parts, text, tone):
    loaded = Loaded((), (), (), (studies.tuning(**parts),))
    report = build(gather(loaded))
    (answer,) = report.answers
    assert text in answer.text
    assert answer.tone == tone
    assert report.title == "Speed of lenet"


def test_conditions_of_profiled_runs_and_of_reductions_count(runs, measured):
    note = ConditionNote(id="load", when="during", text="others kept 1.5 CPUs", advice="stop")
    profiled = studies.roofline(runs(100, conditions=Conditions(before={})))
    reduced = dataclasses.replace(measured, conditions=Conditions(before={}, notes=(note,)))
    answer = build(gather(Loaded((), (), (reduced,), (profiled,)))).answers[-1]
    assert (answer.text, answer.tone) == ("1 of 2 processes was disturbed", "unsure")


def test_two_rooflines_of_one_configuration_have_their_times(runs):
    pair = tuple(studies.roofline(runs(100)) for _ in range(2))
    found = rows(build(gather(Loaded((), (), (), pair))), "roofline")
    names = [f"lenet, batch 8, 1 cpu, 2026-11-20 00:0{at}:00" for at in range(2)]
    assert [one["configuration"] for one in found] == names


def test_campaigns_are_reproduced_by_their_own_command(report):
    versions = rows(report, "reproduce")
    assert [(one["TensorFlow"], one["its commit"], one["processes"]) for one in versions] == [
        ("2.21.0", "-", "13"),
        ("2.21.0", "b" * 40, "1"),
    ]
    found = {one["measures"]: one["command"] for one in rows(report, "reproduce", 1)}
    assert found["suite throughput"] == " ".join(COMMAND)
    assert found["modes of lenet, batch 8, 2 cpu"].startswith("cnnbench strategies --model=")
    assert found["lenet, batch 16, 1 cpu, profiled"] == "cnnbench roofline lenet --batch_size=16"
    assert found["all-reduce"] == "cnnbench allreduce --num_gpus=2"
    assert found["lenet, batch 8, 2 cpu, replicated"] == "cnnbench --model=lenet --num_gpus=2"


@pytest.mark.parametrize("command", [None, "cnnbench", [1, 2], [], {"a": 1}])
def test_a_place_in_a_sweep_may_hold_anything(runs, command):
    record = runs(100, sweep={**SWEEP, "command": command})
    (row,) = rows(build(gather(Loaded((record,), ()))), "reproduce", 1)
    assert row["command"] == "cnnbench --model=lenet --num_gpus=1"


def test_processes_of_a_comparison_of_modes_need_no_command_of_their_own(runs):
    record = runs(180, devices=2, run_id="replicated1")
    report = build(gather(Loaded((record,), (), (), (studies.strategies(),))))
    (row,) = rows(report, "reproduce", 1)
    assert row["measures"] == "modes of lenet, batch 8, 2 cpu"


def test_markdown_is_golden(report):
    text = render(report, "markdown").replace(__version__, "VERSION")
    assert text == golden(GOLDEN, text)


def test_documents_of_the_page_are_read_and_faulty_ones_are_a_line_each(folder, tmp_path):
    for index, one in enumerate((*folder.everything, *folder.studies)):
        (tmp_path / f"{index}.json").write_text(one.to_json())
    assert load([str(tmp_path)]).studies == folder.studies
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
    assert loaded.studies == folder.studies
    assert [one.reason for one in loaded.defects] == [
        "not a roofline: rows: none",
        "not a roofline: rows[0].seconds: -1.0 is not an amount",
        "not a roofline: machine.bytes_per_sec: 0.0 is not an amount",
        "not a roofline: run: its batch and placement are unknown",
        "not a comparison of modes: rows.weights: 'alike' is none of reference, equal, different, "
        "not compared, ",
        "not a comparison of modes: started_at: 'now' is not an ISO 8601 time",
        "not a comparison of modes: schema: 2 is not known to this version, which reads 1",
        "not a search of flags: verdict: 'great' is none of faster, same, slower, open, none",
        "not a search of flags: rows.gain: nan is not finite",
    ]


def test_hostile_names_are_text(runs, report):
    row = dataclasses.replace(studies.ROWS[0], layer=HOSTILE, kind=HOSTILE, direction=HOSTILE)
    machine = dataclasses.replace(studies.MACHINE, flops_source=HOSTILE)
    profiled = studies.roofline(
        runs(100, flags={"model": HOSTILE}, command=(HOSTILE,)), rows=(row,), machine=machine
    )
    plain = studies.strategies()
    modes = dataclasses.replace(
        plain,
        rows=tuple(
            dataclasses.replace(
                one, mode=HOSTILE, all_reduce=HOSTILE, problem=HOSTILE, weight_variable=HOSTILE
            )
            for one in plain.rows
        ),
        processes=tuple(dataclasses.replace(one, mode=HOSTILE) for one in plain.processes),
        config={"model": HOSTILE, "data_name": [HOSTILE], "num_gpus": {HOSTILE: 1}},
        command=(HOSTILE,),
    )
    names = {"candidate": HOSTILE, "left": HOSTILE, "reason": HOSTILE}
    plain_tuning = studies.tuning()
    tuned = dataclasses.replace(
        plain_tuning,
        command=(HOSTILE, f"--model={HOSTILE}"),
        leader=HOSTILE,
        weights=HOSTILE,
        rows=tuple(dataclasses.replace(one, **names) for one in plain_tuning.rows),
        refused=tuple(dataclasses.replace(one, reason=HOSTILE) for one in plain_tuning.refused),
    )
    place = {**SWEEP, "suite": HOSTILE, "command": [HOSTILE]}
    loaded = Loaded((runs(100, sweep=place),), (), (), (profiled, modes, tuned))
    found = Page(render(build(gather(loaded)), "html"))
    known = Page(render(report, "html"))
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in known.elements}
    for _, attributes in found.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")
