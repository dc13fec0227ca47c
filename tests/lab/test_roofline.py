"""Times, FLOPs and bytes of a step put together by hand."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from golden import golden

from cnnbench.base.document.console import sections_to_text
from cnnbench.errors import BenchmarkError
from cnnbench.flags import Params
from cnnbench.judge.report.sections.roofline import roofline_sections
from cnnbench.lab import roofline as measuring
from cnnbench.lab.roofline import measure_roofline, roofline_rows, roofline_to_csv
from cnnbench.machine.cpu import Host, convolution_kernels
from cnnbench.models.declaration import FlopCounts
from cnnbench.plan import make_plan
from cnnbench.records.profiles import FORWARD, OUTSIDE, TO_KERNEL, StepPartKey
from cnnbench.records.roofline import Machine, Roofline
from cnnbench.run.observe.work import OperationWork

MACHINE = Machine(flops_per_sec=100e9, bytes_per_sec=10e9)
CONV, GRAD = ("tower_0/conv0/Conv2D", "Conv2D"), ("tower_0/conv0/both", "MatMul")
RELU, APPLY = ("tower_0/Relu", "Relu"), ("apply", "ResourceApplyMomentum")
WORKS = {
    CONV: OperationWork(StepPartKey("conv0", "convolution 3x3", FORWARD), True, 10**7),
    GRAD: OperationWork(StepPartKey("conv0", "convolution 3x3", TO_KERNEL), True, 2 * 10**7),
    RELU: OperationWork(StepPartKey("Relu", "ReLU", FORWARD), False, 10**8),
    APPLY: OperationWork(StepPartKey("step", "update", OUTSIDE), False, 5 * 10**7),
}


@pytest.fixture
def roofline(lenet_runs):
    steps = [
        {CONV: 0.030, GRAD: 0.010, RELU: 0.020, APPLY: 0.008},
        {CONV: 0.050, GRAD: 0.010, RELU: 0.020},
    ]
    flops = {"conv0": FlopCounts(2 * 10**9, 10**9, 10**9)}
    rows = roofline_rows(steps, lambda name, type: WORKS[name, type], flops, MACHINE, 0.080)
    return Roofline(rows, MACHINE, 0.080, 0.078, lenet_runs()(100))


def test_rows_by_hand(roofline):
    found = roofline
    by_part = {(row.layer, row.direction): row for row in found.rows}
    conv = by_part["conv0", FORWARD]
    assert (conv.seconds, conv.flops, conv.bytes) == (0.040, 2 * 10**9, 10**7)
    assert conv.bound_seconds == pytest.approx(0.020)  # 2 GFLOP at 100 GFLOP/s; 1 ms of bytes
    assert conv.share_of_bound == pytest.approx(0.5)
    assert conv.flops_per_byte == pytest.approx(200.0)
    # No product is told to be of the input, so the one that is there has done both.
    assert by_part["conv0", TO_KERNEL].flops == 2 * 10**9
    relu = by_part["Relu", FORWARD]
    assert relu.bound_seconds == pytest.approx(0.010)  # 100 MB at 10 GB/s
    assert relu.flops_per_byte is None
    # The gradients' bound is above their time: nothing to win.
    assert [row.layer for row in found.rows] == ["conv0", "Relu", "conv0", "step"]
    assert [row.winnable_seconds for row in found.rows] == pytest.approx([0.020, 0.010, 0, 0])


def test_table_and_files_say_the_same(roofline, holds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    found = roofline
    rows = list(csv.DictReader(io.StringIO(roofline_to_csv(found))))
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(0.080)
    assert rows[-1]["kind"] == "remainder"
    assert Roofline.from_json(found.to_json()) == found
    document = found.to_dict()
    holds("roofline", document)
    assert document["rows"][0]["winnable_seconds"] == pytest.approx(0.020)
    assert document["total"]["flops"] == 4 * 10**9
    # 8 images in 20 + 10 + 20 + 5 ms.
    assert document["bound_images_per_sec"] == pytest.approx(8 / 0.055)
    text = "\n".join(sections_to_text(roofline_sections(found, "title", most)) for most in (1, 9))
    golden(Path(__file__).parent / "golden" / "roofline.txt", text + "\n")


def test_rows_at_the_bound_are_ordered_by_time():
    seconds = {"a": 0.001, "b": 0.030, "c": 0.020}
    works = {
        name: OperationWork(StepPartKey(name, "other", FORWARD), False, 10**9) for name in seconds
    }
    works["d"] = OperationWork(StepPartKey("d", "other", FORWARD), False, 0)
    step = {(name, "Add"): time for name, time in {**seconds, "d": 0.002}.items()}
    rows = roofline_rows([step], lambda name, type: works[name], {}, MACHINE, 0.053)
    assert [row.layer for row in rows] == ["d", "b", "c", "a"]


@pytest.mark.parametrize("columns", [100, 80])
def test_the_table_fits_the_terminal(roofline, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = sections_to_text(roofline_sections(roofline, "title", 0)).splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("omitted for lack of width: ") for line in lines)
    assert all(any(name in line for line in lines) for name in ("conv0", "Relu", "step"))


SMALL = {
    **{
        "model": "trivial",
        "data_name": "cifar10",
        "device": "cpu",
        "batch_size": 2,
        "num_batches": 2,
        "peak_flops": 1e11,
    },
    **{"num_warmup_batches": 3, "quiet_conditions": "all", "progress": "off"},
}


@pytest.mark.usefixtures("quick_start")
def test_a_run_and_its_machine_are_measured(limits, monkeypatch):
    limits(measuring, _COPIED_BYTES=1 << 20)
    found, plan = measure_roofline(make_plan(Params.from_dict(SMALL)))
    assert plan.length.batches == len(found.run.step_seconds) == 2
    assert (found.machine.flops_per_sec, found.run.measured.peak_flops_per_sec) == (1e11, 1e11)
    assert found.machine.bytes_per_sec > 1e8
    assert "1 MiB" in found.machine.bytes_source
    assert found.kernels == convolution_kernels(Host())
    assert found.unprofiled_step_seconds == min(found.run.step_seconds)
    seconds = sum(row.seconds for row in found.rows)
    assert seconds + found.remainder_seconds == pytest.approx(found.step_seconds)
    monkeypatch.setattr(measuring, "peak_flops", lambda *_: None)
    with pytest.raises(BenchmarkError, match="--peak_flops"):
        measure_roofline(make_plan(Params.from_dict(SMALL)))
