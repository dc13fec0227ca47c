"""What a step does on GPUs, as emulated ones count it: kernels, copies and bytes per device.

In every mode a step copies the learning rate to each GPU, the other towers' losses to the first
GPU, and one packed result to the host, which is all that waits for a GPU. No kernel is launched
synchronously. Beyond that there is the batch, where it does not stay on the GPU, and what the
table has of each mode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from data_sets import write_cifar10
from short_runs import NETWORKS

pytestmark = pytest.mark.slow

NORMAL = {"plugin": NETWORKS, "model": "normal"}

GRADIENTS = 22228
"""Bytes of the gradients, or of the trainable variables, of a tower."""

SCALARS = 120
"""Bytes at most that a device gets beside: losses, L2 losses, moments of four channels."""

_COUNT = """
import ctypes, json, os
from cnnbench.run.driver.step_loop import StepLoop

counters = ctypes.CDLL(os.environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"]).hostgpu_counters
run = StepLoop.run

def read():
    rows = []
    for device in range(int(os.environ["HOSTGPU_COUNT"])):
        values = (ctypes.c_int64 * 10)()
        counters(device, values)
        rows.append(list(values)[:8])
    return rows

def counted(self, steps, *given, **named):
    before = read()
    done = run(self, steps, *given, **named)
    pairs = (zip(*rows) for rows in zip(before, read()))
    with open("counts.jsonl", "a") as file:
        file.write(json.dumps([[(end - start) / steps for start, end in one] for one in pairs]))
        file.write("\\n")
    return done

StepLoop.run = counted
"""


class Work(NamedTuple):
    """What a device does in a step, on average over the timed loop."""

    kernels: float
    synchronous: float
    from_host: float
    from_host_bytes: float
    to_host: float
    to_host_bytes: float
    from_gpus: float
    from_gpus_bytes: float


def work_of(emulated: Any, flags: Mapping[str, Any]) -> list[Work]:
    """The work of each device; of the first timed loop."""
    given = {"batch_size": 2, "num_batches": 10, "num_warmup_batches": 2, **flags}
    words = [f"--{name}={value}" for name, value in given.items()]
    count = flags["num_gpus"]
    found = emulated(*words, gpus=count, before=_COUNT)
    loops = [json.loads(row) for row in (found.folder / "counts.jsonl").read_text().splitlines()]
    return [Work(*row) for row in loops[1][:count]]  # the warm-up is the first loop


REPLICATED = {"variable_update": "replicated"}
NCCL = {**REPLICATED, "all_reduce_spec": "nccl"}
ON_HOST = {"local_parameter_device": "cpu"}


# How often the bytes of all gradients go from GPU to GPU, and from and to the host; of n towers.
@pytest.mark.parametrize(
    ("flags", "between", "with_host"),
    [
        ({"num_gpus": 1}, 0, 0),
        ({"num_gpus": 2}, 2, 0),
        ({"num_gpus": 2, **ON_HOST}, 0, 2),
        ({"num_gpus": 2, **REPLICATED}, 2, 0),
        ({"num_gpus": 2, **NCCL}, 0, 0),
        ({"num_gpus": 2, "variable_update": "distributed_replicated"}, 2, 0),
        ({"num_gpus": 2, "variable_update": "mirrored_strategy"}, 0, 0),
    ],
)
def test_a_step(emulated, flags: dict[str, Any], between: int, with_host: int) -> None:
    devices = work_of(emulated, {**NORMAL, **flags})
    assert all(one.kernels > 0 and one.kernels == int(one.kernels) for one in devices)
    assert not any(one.synchronous for one in devices)
    some = SCALARS * len(devices)
    assert 0 <= sum(one.from_gpus_bytes for one in devices) - between * GRADIENTS <= some
    assert 0 <= sum(one.to_host_bytes for one in devices) - with_host * GRADIENTS <= some
    assert 0 <= sum(one.from_host_bytes for one in devices) - with_host * GRADIENTS <= some
    if not with_host:
        assert [one.to_host for one in devices] == [1, *[0] * (len(devices) - 1)]
        assert [one.from_host for one in devices] == [1] * len(devices)


def test_batches_of_a_data_set_are_copied_once(emulated, tmp_path: Path) -> None:
    images = np.zeros([40, 32, 32, 3], np.uint8)
    write_cifar10(tmp_path, images, np.arange(40) % 10)
    flags = {"model": "trivial", "data_dir": tmp_path, "data_name": "cifar10", "num_gpus": 2}
    for device in work_of(emulated, {**flags, **NCCL}):
        image = 32 * 32 * 3 * 4
        assert 2 * image <= device.from_host_bytes <= 2 * image + SCALARS


def test_accumulation_keeps_one_copy_of_the_gradients(emulated) -> None:
    """Tensors on the GPU take the memory of one pass and one copy of the gradients, to 2 %.

    The gradients are some 14 % of the memory of one pass, so that no copy and a second copy are
    noticed. The order of the operations, and with it the peak, differs between executions.
    """
    words = ["--model=resnet20", "--data_name=cifar10", "--batch_size=4"]
    words += ["--num_batches=1", "--num_warmup_batches=1"]
    one, several = (
        emulated(*words, f"--gradient_accumulation_steps={passes}", gpus=1).record
        for passes in (1, 3)
    )
    gradients = 4 * one["model"]["trainable_parameters"]
    images = 2 * 4 * (32 * 32 * 3 * 4 + 8)  # synthetic images of the other passes
    peaks = [record["measured"]["peak_memory_bytes"] for record in (one, several)]
    assert gradients > 0.035 * peaks[0]
    assert abs(peaks[1] - gradients - images - peaks[0]) < 0.02 * peaks[0]


CHILDREN = Path(__file__).parents[2] / "scripts" / "peers" / "children"


@pytest.mark.parametrize("program", ["bare", "cnnbench"])
def test_what_scripts_compare_peers_measures(emulated, program: str) -> None:
    argv = [f"--program={program}", "--model=trivial", "--workers=2", "--batch_size=4"]
    argv += ["--dtype=fp32", "--batches=5", "--warmup=2", "--learning_rate=0.01"]
    argv += ["--weight_decay=0.0001"]
    ours = ["--variable_update=replicated", "--all_reduce_spec=nccl"]
    run = f"import sys\nsys.argv[1:] = {argv + ours * (program == 'cnnbench')}\n"
    run += f"sys.path.insert(0, {str(CHILDREN)!r})\n"
    run += "import emulated_steps\nsys.exit(emulated_steps.main())"
    # Kernels take longer than the host's work.
    found = emulated(before=run, record=False, skip=1, kernel_us=3000)
    line = found.out.splitlines()[-1]
    measured = json.loads(line.removeprefix("MEASURED "))
    assert measured["kernels"] > 20
    assert measured["synchronous"] == 0
    assert 0 < measured["cpu"] < measured["wall"]
    assert 0 <= measured["idle"] < 0.5
    # The loss alone.
    assert measured["dtoh"] == pytest.approx(1, abs=0.3)
    assert measured["dtod"] == pytest.approx(1, abs=0.3)
