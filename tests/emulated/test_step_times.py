"""Steps of GPUs that run ahead of the host, against the GPUs' own clocks.

The times of steps have to be those of the GPUs, and no GPU waits for what a run does beside its
steps.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulated import EmulatedGpus, Outcome

PLUGIN = Path(__file__).parents[2] / "docs" / "examples" / "npz_dataset_plugin.py"
# Two small convolutions; real data, of `write_data`, or synthetic.
MODEL = (f"--dataset_plugin={PLUGIN}", "--model=small", "--batch_size=2", "--num_warmup_batches=3")
# Part of the name of the kernel that a step runs once on each GPU.
SLOW = "/affine0/MatMul:MatMul"
# Runs of which one has to be good: on a busy machine, threads wait for processors.
ATTEMPTS = 3


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
            flags.append(f"--data_dir={folder}")
        launch = ["launch", f"--workers={self.workers}", "--"]
        return [*(launch if self.workers > 1 else []), *flags, "--result_json=record.json"]


REPLICATED = ("--variable_update=replicated",)
EVALUATED = ("--eval_during_training_every_n_steps=7", "--num_eval_batches=2")
CASES = {
    "equal steps": Case(1, f"{SLOW}=30000"),
    "steps of 1:3": Case(1, f"{SLOW}=15000,45000"),
    "a slow step every eighth": Case(1, f"{SLOW}=7*15000,90000"),
    "forward-only": Case(1, f"{SLOW}=15000,45000", ("--forward_only",)),
    "slow input": Case(1, f"{SLOW}=15000,45000;MemcpyH2D=5*1000,80000", real=True),
    "evaluations": Case(1, f"{SLOW}=15000,45000", EVALUATED, real=True),
    "two GPUs, nccl": Case(2, f"{SLOW}=60000,20000", (*REPLICATED, "--all_reduce_spec=nccl")),
    "eight GPUs": Case(8, f"{SLOW}=90000,30000", REPLICATED),
    "two workers": Case(
        2, f"{SLOW}=60000,20000", ("--variable_update=collective_all_reduce",), workers=2
    ),
}
TIMED = 16


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


@pytest.mark.parametrize("name", CASES)
def test_step_times(emulated: EmulatedGpus, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_data(tmp_path)
    words = case.command(TIMED, tmp_path)
    for _ in range(ATTEMPTS):
        found = emulated(*words, gpus=case.gpus, rules=case.rules, record=False)
        assert found.status == 0, found.err
        # A copy that is issued too late is off by whole steps, in most of them.
        times = seconds(found)
        wrong = [(m, t) for m, t in times if abs(m - t) > max(0.3 * t, 0.005)]
        assert len(times) == TIMED - 1
        if len(wrong) <= TIMED / 4:
            break
    else:
        pytest.fail(f"{len(wrong)} of {TIMED - 1} steps are measured wrong: {wrong}")
    if name == "forward-only":
        # With nothing launched ahead, a batch takes longer than its kernels by the launch.
        alone = latencies(found)
        assert len(alone) == TIMED
        assert all(m > t for m, t in alone), alone
        assert median(m - t for m, t in alone) < 0.02, alone


STEPS = 15
STEP = 0.06
"""Seconds of the one slow kernel of a step on one GPU; the steps of eight take a host longer."""
EVERY = 5

# Flags, and whether the run pauses behind every fifth step.
BESIDE: Mapping[str, tuple[int, tuple[str, ...], bool]] = {
    "batches": (1, (), False),
    "batches on eight GPUs": (8, ("--variable_update=independent",), False),
    "a learning rate that changes in every step": (
        1,
        (
            *("--init_learning_rate=0.1", "--num_epochs_per_decay=0.05"),
            "--learning_rate_decay_factor=0.9",
        ),
        False,
    ),
    "summaries": (
        1,
        ("--train_dir={attempt}", "--summary_verbosity=1", f"--save_summaries_steps={EVERY}"),
        True,
    ),
    "checkpoints": (1, ("--train_dir={attempt}", f"--save_model_steps={EVERY}"), True),
    "profiles": (1, ("--profile_layers=layers.txt", "--trace_file=trace.json"), False),
}


def pauses(outcome: Outcome, device: int) -> list[float]:
    """Seconds in which a GPU runs no kernel between the slow ones of consecutive timed steps."""
    kernels = [one for one in outcome.work if one.what == "kernel" and one.device == device]
    kernels.sort(key=lambda one: one.start)
    slow = [at for at, one in enumerate(kernels) if one.operation.endswith(SLOW)][-STEPS:]
    return [
        sum(max(0.0, b.start - a.end) for a, b in itertools.pairwise(kernels[first : last + 1]))
        for first, last in itertools.pairwise(slow)
    ]


def hidden(outcome: Outcome, device: int) -> float:
    """Share of the time of copies to a GPU, in the timed loop, in which it runs a slow kernel."""
    own = [one for one in outcome.work if one.device == device]
    slow = sorted((one.start, one.end) for one in own if one.operation.endswith(SLOW))[-STEPS:]
    copies = [
        (one.start, one.end)
        for one in own
        if one.what == "MemcpyH2D" and slow[0][0] < one.start and one.end < slow[-1][1]
    ]
    assert len(copies) > 2 * STEPS
    both = itertools.product(copies, slow)
    common = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in both)
    return common / sum(end - start for start, end in copies)


@pytest.mark.parametrize("name", BESIDE)
def test_gpus_do_not_wait_for_the_host(emulated: EmulatedGpus, tmp_path: Path, name: str) -> None:
    gpus, flags, due = BESIDE[name]
    step = STEP if gpus == 1 else 3 * STEP
    copy = step / 4  # images, labels and learning rate are three of them
    write_data(tmp_path)
    for attempt in range(ATTEMPTS):
        done = emulated(
            *(*MODEL, *(flag.format(attempt=tmp_path / f"run{attempt}") for flag in flags)),
            *(f"--data_dir={tmp_path}", f"--num_gpus={gpus}"),
            *("--optimizer=sgd", f"--num_batches={STEPS}"),
            gpus=gpus,
            rules=f"{SLOW}={step * 1e6:.0f};MemcpyH2D={copy * 1e6:.0f}",
        )
        assert done.status == 0, done.err
        overlap = min(hidden(done, device) for device in range(gpus))
        waits = pauses(done, 0)
        between = [wait for at, wait in enumerate(waits, 1) if not due or at % EVERY]
        # Where a step waits for the host, all do, for 2 ms at least, in which it is launched.
        # Several GPUs have their steps launched one after the other.
        wait = 0.0 if gpus > 1 else sorted(between)[len(between) // 3]
        if overlap > 0.4 and wait < 0.0015:
            return
    pytest.fail(f"{overlap:.0%} of the copies' time are hidden; pauses in seconds: {waits}")
