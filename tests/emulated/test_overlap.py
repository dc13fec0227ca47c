"""What a run does beside its steps, while GPUs compute: by the GPUs' own clocks."""

from __future__ import annotations

import itertools

import pytest
from emulated import Outcome
from step_truth import MODEL, SLOW, write_data

STEPS = 24
STEP = 0.06
"""Seconds of the one slow kernel of a step on one GPU; the steps of eight take a host longer."""
EVERY = 6
ATTEMPTS = 3
"""Runs of which one has to be good: what else runs on a machine only adds to pauses."""

# Flags, and whether the run pauses behind every sixth step.
CASES: dict[str, tuple[int, tuple[str, ...], bool]] = {
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


@pytest.mark.parametrize("name", CASES)
def test_gpus_do_not_wait_for_the_host(emulated, tmp_path, name):
    gpus, flags, due = CASES[name]
    step = STEP if gpus == 1 else 3 * STEP
    copy = step / 4  # images, labels and learning rate are three of them
    write_data(tmp_path)
    for attempt in range(ATTEMPTS):
        done = emulated(
            *(*MODEL, *(flag.format(attempt=tmp_path / f"run{attempt}") for flag in flags)),
            *(f"--data_dir={tmp_path}", f"--num_gpus={gpus}"),
            *("--optimizer=sgd", f"--num_batches={STEPS}"),
            gpus=max(gpus, 2),
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
