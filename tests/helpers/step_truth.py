"""When steps on emulated GPUs really ended, by the GPUs' own clocks."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from emulated import Outcome

PLUGIN = Path(__file__).parents[2] / "docs" / "examples" / "npz_dataset_plugin.py"
MODEL = (f"--dataset_plugin={PLUGIN}", "--model=small", "--batch_size=2")
"""Two small convolutions; real data, of `write_data`, or synthetic."""

SLOW = "/affine0/MatMul:MatMul"
"""Part of the name of the kernel that a step runs once on each GPU."""


class Case(NamedTuple):
    """A run whose steps have a known pattern.

    Attributes:
      gpus: how many, of all workers.
      rules: of the emulator.
      flags: beside `MODEL`.
      real: whether batches are read from a file, and copied to the GPU.
      workers: processes, with one GPU each.
    """

    gpus: int
    rules: str
    flags: tuple[str, ...] = ()
    real: bool = False
    workers: int = 1

    def command(self, steps: int, folder: Path) -> list[str]:
        """The words behind `cnnbench` of a run with so many timed steps, and data in a folder."""
        flags = [*MODEL, *self.flags, f"--num_gpus={self.gpus // self.workers}"]
        flags.append(f"--num_batches={steps}")
        if self.real:
            write_data(folder)
            flags.append(f"--data_dir={folder}")
        launch = ["launch", f"--workers={self.workers}", "--"]
        return [*(launch if self.workers > 1 else []), *flags, "--result_json=record.json"]


REPLICATED = ("--variable_update=replicated",)
EVALUATED = ("--eval_during_training_every_n_steps=7", "--num_eval_batches=2")
CASES = {
    "equal steps": Case(1, f"{SLOW}=30000"),
    "steps of 1:3": Case(1, f"{SLOW}=15000,45000"),
    "a slow step every tenth": Case(1, f"{SLOW}=9*15000,90000"),
    "forward-only": Case(1, f"{SLOW}=15000,45000", ("--forward_only",)),
    "slow input": Case(1, f"{SLOW}=15000,45000;MemcpyH2D=5*1000,80000", real=True),
    "evaluations": Case(1, f"{SLOW}=15000,45000", EVALUATED, real=True),
    "two GPUs, nccl": Case(2, f"{SLOW}=60000,20000", (*REPLICATED, "--all_reduce_spec=nccl")),
    "eight GPUs": Case(8, f"{SLOW}=90000,30000", REPLICATED),
    "two workers": Case(
        2, f"{SLOW}=60000,20000", ("--variable_update=collective_all_reduce",), workers=2
    ),
}
"""Runs by name."""


def write_data(folder: Path) -> None:
    """Writes a data set for `MODEL`."""
    for subset, count in (("train", 40), ("validation", 10)):
        images = np.zeros((count, 16, 16, 3), np.uint8)
        np.savez(folder / f"{subset}.npz", images=images, labels=np.arange(count) % 10)


def seconds(outcome: Outcome) -> list[tuple[float, float]]:
    """Measured and true seconds of the timed steps of a run, without the first.

    Each operation of a step runs as often as there are steps, so the n-th step ends with the
    last of the n-th executions. A step behind a pause has no true time; here it is too long.
    """
    ends: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for one in outcome.work:
        # A wait for the device is of no step, however often there is one.
        if one.what == "kernel" and not one.operation.startswith("SyncDevice"):
            ends[one.device, one.operation].append(one.end)
    count, _ = Counter(map(len, ends.values())).most_common(1)[0]
    of_steps = zip(*(found for found in ends.values() if len(found) == count), strict=True)
    last = [max(of_step) for of_step in of_steps][len(outcome.record["warmup_step_seconds"]) :]
    measured = outcome.record["step_seconds"][1:]
    true = [end - start for start, end in itertools.pairwise(last)]
    return list(zip(measured, true, strict=False))


def latencies(outcome: Outcome) -> list[tuple[float, float]]:
    """Measured seconds of batches that were launched one at a time, and those of the slow kernel.

    The kernel takes all but a few milliseconds of a batch.
    """
    measured = outcome.record["latency_seconds"]
    slow = [one.end - one.start for one in outcome.work if one.operation.endswith(SLOW)]
    return list(zip(measured, slow[-len(measured) :], strict=True))
