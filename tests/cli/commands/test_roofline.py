"""cnnbench roofline from the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cnnbench.cli.commands import roofline as command
from cnnbench.lab import roofline
from cnnbench.machine import cpu
from cnnbench.models import get_model
from cnnbench.models.declaration import declare
from cnnbench.records.profiles import FORWARD, TO_INPUT, TO_KERNEL
from cnnbench.records.roofline import Machine, Roofline, RooflineRow
from cnnbench.run.runtime import loading

SIGNUM = Path(__file__).parents[3] / "docs" / "examples" / "signum_plugin.py"

RUN = (
    *("roofline", "lenet", "--device=cpu", "--batch_size=4", "--num_batches=2"),
    *("--num_warmup_batches=1", "--quiet_conditions=all", "--peak_flops=1e11"),
)


@pytest.mark.slow
def test_all_flops_of_a_training_step_have_a_row(call, quick_start, limits, tmp_path):
    limits(roofline, _COPIED_BYTES=1 << 20)
    files = [tmp_path / "all.json", tmp_path / "all.svg"]
    written = [f"--csv={tmp_path}/rows.csv", f"--json={files[0]}", f"--plot={files[1]}"]
    table = tmp_path / "table.txt"
    assert not call(*RUN, "--num_gpus=2", "--variable_update=replicated", *written, "-o", table).out
    out = table.read_text()
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    spec = declare(get_model("lenet", "imagenet"), 1001)
    assert sum(int(row["flops"]) for row in rows) == 2 * 4 * spec.training_flops_per_image
    seconds = [float(row["seconds"]) for row in rows]
    document = json.loads(files[0].read_text())
    assert sum(seconds) == pytest.approx(document["step_seconds"])
    assert document["run"]["command"][:3] == ["cnnbench", *RUN[:2]]
    assert document["run"]["measured"]["peak_flops_per_sec"] == 1e11
    kernels = cpu.convolution_kernels(cpu.Host())
    assert document["kernels"] == kernels
    assert f"\nconvolutions: {cpu.describe_kernels(kernels)}\n" in out
    page = call("report", str(files[0]), "--format=markdown").out
    assert "## What the machine reaches" in page
    assert "lenet, batch 4, 2 cpu, replicated: by kind of operation" in page
    by_part = {(row["layer"], row["direction"]): row for row in rows if int(row["flops"])}
    first = by_part["conv0", FORWARD]
    assert first["kind"] == "convolution 5x5"
    # On each device four images, the kernel, and 32 channels that come out of it, in float32.
    least = 2 * 4 * (4 * 28 * 28 * (3 + 32) + 5 * 5 * 3 * 32)
    assert least <= int(first["bytes"]) <= 1.1 * least
    assert ("conv0", TO_INPUT) not in by_part  # nobody needs the gradient of the images
    for direction in (TO_INPUT, TO_KERNEL):
        assert by_part["conv1", direction]["flops"] == by_part["conv1", FORWARD]["flops"]
        assert by_part["affine0", direction]["kind"] == "dense"
    kinds = {row["kind"] for row in rows}
    assert {"update", "reduction", "pooling", "remainder"} <= kinds
    assert "in operations and" in out
    assert files[1].read_text().startswith("<?xml")
    # Its own files may be overwritten: what is refused is another flag.
    err = call(*RUN, *written, "-o", tmp_path, "--device=gpu", code=2).err
    assert f"--output={tmp_path}: is a folder; name a file" in err
    err = call(*RUN, *written, "--device=gpu", "--num_gpus=99", code=2).err
    assert "--num_gpus=99: TensorFlow sees" in err


def test_a_plug_in_that_adds_flags_is_loaded_for_the_devices_of_the_run(
    call, tmp_path, monkeypatch
):
    monkeypatch.setattr(loading, "early_setup", [])
    check = "from cnnbench.run.runtime import loading\nassert loading.early_setup\n"
    (tmp_path / "own.py").write_text(f"{check}{SIGNUM.read_text()}")
    words = ("roofline", "lenet", f"--plugin={tmp_path}/own.py", "--optimizer=signum")
    assert "--eval=true: is not supported" in call(*words, "--signum_beta=2", "--eval", code=2).err
    assert not loading.early_setup
    assert "--signum_beta=2: must be at least 0" in call(*words, "--signum_beta=2", code=2).err


@pytest.mark.parametrize(("bound_seconds", "warned"), [(0.021, True), (0.02, False), (0.0, False)])
def test_a_step_that_is_faster_than_the_estimate_is_warned_of(
    call, lenet_runs, monkeypatch, bound_seconds, warned
):
    """Sums count: one of two operations may be faster than its estimate."""
    monkeypatch.setattr(command, "fork_supervised", lambda: None)
    asked = []

    def measured(plan, *, command, messages, progress):
        asked.append((plan.network.model.name, plan.length.batch_per_device, command))
        rows = (
            RooflineRow(
                "conv0", "convolution 3x3", FORWARD, 0.01, 10**9, 10**7, bound_seconds, 0.5
            ),
            RooflineRow("Relu", "ReLU", FORWARD, 0.01, 0, 10**7, 0.0, 0.5),
        )
        machine = Machine(flops_per_sec=1e11, bytes_per_sec=1e10)
        return Roofline(rows, machine, 0.02, 0.02, lenet_runs()(100)), plan

    monkeypatch.setattr(command, "measure_roofline", measured)
    out, err = call(*RUN)
    assert asked == [("lenet", 4, ("cnnbench", *RUN))]
    assert out.startswith("roofline of lenet, training, fp32, 4 images on 1 device")
    assert ("faster than the estimate" in err) == warned
