"""The comparison on emulated GPUs: its tables by hand, and a step that is measured."""

from __future__ import annotations

import json
from pathlib import Path

import compare_emulated_gpus as compare
import pytest
from peers.readers import MARKER

CHILDREN = Path(compare.__file__).parent / "peers" / "children"
_COPIES = {f"{way}{unit}": 4.0 for way in ("htod", "dtoh", "dtod") for unit in ("", "_bytes")}


def step(cpu=0.0, wall=0.0):
    return {**_COPIES, "kernels": 7.0, "cpu": cpu, "wall": wall, "idle": 0.25}


def test_ratios_and_differences_are_formed_within_rounds():
    ours, peer = {1: step(0.1), 2: step(0.4)}, {1: step(0.2), 2: step(0.8), 3: step(9.0)}
    _, of_ours, of_peer = compare.host_table(8, {"cnnbench": ours, "peer": peer})
    assert of_ours.split()[-1] == "250.0"
    assert of_peer.split()[-5:] == ["800.0", "0.500", "0.500", "..", "0.500"]
    rounds = {"independent": {1: step(wall=1), 2: step(wall=2)}, "nccl": {2: step(wall=2.5)}}
    assert compare.reductions_table(rounds)[-1].split() == ["nccl", "1", "2500", "500", "0.25"]


@pytest.mark.parametrize("program", ["bare", "cnnbench"])
def test_work_of_a_step(emulated, program):
    argv = [program, "--model=trivial", "--gpus=2", "--batch_size=2", "--batches=5", "--warmup=2"]
    argv += ["--learning_rate=0.01", "--weight_decay=0.0001"]
    ours = ["--variable_update=replicated", "--all_reduce_spec=nccl"]
    run = f"sys.argv[1:] = {argv + ours * (program == 'cnnbench')}\n"
    run += f"sys.path.insert(0, {str(CHILDREN)!r})\n"
    run += "import emulated_steps\nsys.exit(emulated_steps.main())"
    # Kernels take longer than the host's work.
    found = emulated(before="import sys\n" + run, record=False, skip=1, kernel_us=3000)
    assert found.status == 0, found.err
    (line,) = (line for line in found.out.splitlines() if line.startswith(MARKER))
    measured = json.loads(line[len(MARKER) :])
    assert measured["kernels"] > 20
    assert measured["synchronous"] == 0
    assert 0 < measured["cpu"] < measured["wall"]
    assert 0 <= measured["idle"] < 0.5
    # The loss alone.
    assert measured["dtoh"] == pytest.approx(1, abs=0.3)
    assert measured["dtod"] == pytest.approx(1, abs=0.3)
