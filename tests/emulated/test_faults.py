"""Faults of GPUs: each ends a run with one clear line, and with what was measured in its record."""

from __future__ import annotations

import signal

import pytest
from emulated import outcome

from cnnbench.run.runtime.supervisor import GUARDED

pytestmark = pytest.mark.slow

SMALL = ("--model=trivial", "--data_name=cifar10", "--batch_size=2", "--num_batches=40")
SMALL += ("--num_warmup_batches=2",)


def last_line(found):
    """The line that says why a run failed; there must be one."""
    lines = [line for line in found.err.splitlines() if "cnnbench: error: " in line]
    assert len(lines) == 1, found.err
    assert "Traceback" not in found.err
    return lines[0].removeprefix("cnnbench: error: ")


def failed(found):
    """The record of a failed run and the line about it, which agree."""
    line = last_line(found)
    assert found.status == 4, found.err
    assert found.record["status"] == "failed"
    assert found.record["error"]["message"] == line
    return found.record, line


STALL = "--stall_timeout=6"  # of first steps, ten times that
# By when: the settings of a run whose memory is too little then.
LENET = ("--model=lenet", "--num_gpus=1", "--num_batches=4", "--num_warmup_batches=1")
EVALUATED = ("--eval_during_training_every_n_steps=3", "--num_eval_batches=1")
OUT_OF_MEMORY = {
    "build": (*LENET, "--batch_size=2", "memory_mb=5"),
    "first step": (*LENET, "--batch_size=256", "memory_mb=30"),
    "evaluation": (
        *(*LENET, *EVALUATED, "--batch_size=2", "--eval_batch_size=512", "memory_mb=50"),
    ),
}
# By what breaks: the settings that break it after some steps.
BROKEN = {
    "kernel": ("--num_gpus=1", "rules=kernel=400*0,fail"),
    "collective": (
        *("--num_gpus=2", "--variable_update=replicated", "--all_reduce_spec=nccl"),
        "rules=NcclAllReduce=50*0,fail",
    ),
}
# By what hangs: as above.
HUNG = {
    "hanging copy": ("--num_gpus=2", "rules=GPU:1 MemcpyH2D=30*0,hang", STALL),
    "hanging collective": (*(word.replace("fail", "hang") for word in BROKEN["collective"]), STALL),
}


@pytest.fixture(scope="module")
def ended(emulated):
    """The outcomes of the runs out of memory and on broken and hanging GPUs, by name.

    They wait ten seconds for memory and six for a GPU that may respond, so they do it at once.
    """
    broken = {name: (*SMALL, *words) for name, words in {**BROKEN, **HUNG}.items()}
    started = {}
    for name, words in {**OUT_OF_MEMORY, **broken}.items():
        flags = [word for word in words if word.startswith("-")]
        settings = dict(word.split("=", 1) for word in words if not word.startswith("-"))
        guard = {GUARDED: None} if name in BROKEN else {}
        started[name] = emulated.start(*flags, environment=guard, **settings)
    return {name: outcome(*one) for name, one in started.items()}


def test_out_of_memory(ended):
    ends = {name: failed(ended[name]) for name in OUT_OF_MEMORY}
    steps = {
        name: (record["placement"] is not None, len(record["step_seconds"]))
        for name, (record, _) in ends.items()
    }
    assert steps == {"build": (True, 0), "first step": (True, 0), "evaluation": (True, 2)}
    assert ends["first step"][0]["startup_seconds"]["build"] is not None
    for name, (record, line) in ends.items():
        assert record["error"]["type"] == "OutOfMemoryError"
        flags = "--batch_size" + " or --eval_batch_size" * (name == "evaluation")
        assert line.startswith(f"out of memory: lower {flags} (counted per device); ")
        assert "GPU:0" in line


def test_a_gpu_that_fails(ended):
    for name in BROKEN:
        record, line = failed(ended[name])
        assert line == "ended by SIGABRT: a GPU failed: Unexpected Event status: 1", name
        assert record["placement"]["devices"], name
        assert len(record["warmup_step_seconds"]) == 2, name
        assert 0 < len(record["step_seconds"]) < 40, name
        assert len(record["losses"]) == len(record["step_seconds"]), name


def test_a_gpu_that_hangs(ended):
    for name in HUNG:
        record, line = failed(ended[name])
        start, _, end = line.partition(f" ({STALL})")
        steps = len(record["step_seconds"])
        last = f"step {steps}" if steps else f"warm-up step {len(record['warmup_step_seconds'])}"
        assert start.startswith("stuck: the run: no progress for "), name
        assert start.endswith(f" s after {last}, waits for the end of a step"), name
        assert end == ("; GPU:1 does not respond" if name == "hanging copy" else ""), name


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--num_gpus=4"], "--num_gpus=4: TensorFlow sees 2 GPU(s)"),
        (["--num_gpus=2", "--gpu_indices=0,5"], "TensorFlow sees GPUs 0 to 1 only"),
    ],
)
def test_gpus_that_are_not_there(emulated, flags, reason):
    found = emulated(*SMALL, *flags, status=2)
    assert reason in last_line(found)
    assert not (found.folder / "record.json").exists()


def test_a_worker_whose_gpu_fails_while_the_others_wait(emulated):
    found = emulated(
        *("launch", "--workers=2", "--log_dir=log", "--", *SMALL, "--num_gpus=1"),
        *("--variable_update=collective_all_reduce", "--result_json=record.json"),
        record=False,
        status=4,
        rules="GPU:0 kernel=900*0,fail",
    )
    reason = "ended by SIGABRT: a GPU failed: Unexpected Event status: 1"
    assert f"[worker:0] cnnbench: error: {reason}\n" in found.err
    assert "[worker:1] cnnbench: error: lost worker:0" in found.err
    assert found.record["error"]["message"] == reason
    assert found.record["step_seconds"]


INTERRUPT = """
import os, signal, threading, time
def interrupt():
    while open("out").read().count("images/sec: ") < 4:
        time.sleep(0.02)
    time.sleep(0.5)
    os.kill(os.getpid(), {number})
threading.Thread(target=interrupt, daemon=True).start()
"""


@pytest.mark.parametrize(
    ("number", "settings"),
    [(signal.SIGTERM, {"kernel_us": 1000}), (signal.SIGINT, {"rules": "MemcpyD2H=14*0,hang"})],
)
def test_an_interrupt_while_a_gpu_works_or_hangs(emulated, number, settings):
    before = INTERRUPT.format(number=int(number))
    flags = ("--num_gpus=1", "--num_batches=4000", "--display_every=1")
    found = emulated(*SMALL, *flags, before=before, timeout=60, status=130, **settings)
    assert last_line(found) == "interrupted"
    assert found.record["status"] == "interrupted"
    steps = len(found.record["step_seconds"])
    assert steps >= 4
    assert found.out.count("images/sec: ") in (steps, steps - 1)
