"""Runs a list of command lines, and compares the first loss of each training with a stored value.

The values were computed with one version of Python and TensorFlow. With any other supported
version, the same command line computes the same loss, up to the rounding of its kernels. Commands
without a training only have to succeed.

Usage: python scripts/first_losses.py [NAME ...]

The exit status is 0 if all hold, 1 if not.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TOLERANCE = 2e-3
"""Largest relative difference of two first losses."""
SECONDS = 300

COMMON = (
    "--device=cpu",
    "--batch_size=4",
    "--num_batches=2",
    "--num_warmup_batches=1",
    "--num_intra_threads=1",
    "--quiet_conditions=all",
)
TWO = ("--model=resnet20", "--num_gpus=2")


class Case(NamedTuple):
    """A command line. `loss` is the first loss, also of the warm-up; None without a training."""

    name: str
    words: Sequence[str]
    loss: float | None = None
    code: int = 0


def training(name: str, loss: float, *flags: str, launch: Sequence[str] = ()) -> Case:
    """A training with the flags that all have, alone or as a job."""
    command = ["launch", *launch, "--"] if launch else ["run"]
    return Case(name, [*command, *COMMON, *flags, f"--result_json={name}.json"], loss)


MODES = (
    "parameter_server",
    "replicated",
    "distributed_replicated",
    "collective_all_reduce",
    "mirrored_strategy",
    "central_storage_strategy",
)
_JPEGS = """
import pathlib, tensorflow as tf
for number in range(24):
    path = pathlib.Path(f"images/{'ab'[number % 2]}/{number}.jpg")
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = [64, 80, 3]
    image = tf.random.stateless_uniform(shape, [number, 0], 0, 256, tf.int32)
    path.write_bytes(tf.io.encode_jpeg(tf.cast(image // 64 * 64, tf.uint8)).numpy())
"""
_RECORDS = ("--model=resnet18", "--image_size=32", "--data_dir=records", "--data_name=imagenet")

CASES = (
    training("resnet50", 7.93647, "--model=resnet50", "--image_size=64"),
    training("bf16", 3.21683, "--model=resnet20", "--precision=bf16"),
    training("xla", 3.21783, "--model=resnet20", "--xla_compile"),
    *(training(mode, 3.04082, *TWO, f"--variable_update={mode}") for mode in MODES),
    training(
        "distributed_all_reduce",
        3.04082,
        *TWO,
        "--variable_update=distributed_all_reduce",
        "--all_reduce_spec=xring",
    ),
    training("one_device", 3.21783, "--model=resnet20", "--variable_update=one_device_strategy"),
    training("independent", 3.07111, *TWO, "--variable_update=independent"),
    training("ring", 3.04082, *TWO, "--variable_update=replicated", "--all_reduce_spec=xring"),
    training("keras", 6.87754, "--model=keras:MobileNetV2", "--image_size=64"),
    training(
        "keras_own", 8.15098, "--model=keras:ResNet50", "--image_size=64", "--keras_layers=own"
    ),
    Case("forward", ["run", *COMMON, "--model=resnet20", "--forward_only"]),
    Case("images", [sys.executable, "-c", _JPEGS]),
    Case("records", ["data", "make-imagenet", "images", "records", "--train_shards=2"]),
    Case("check", ["data", "check", "records"]),
    training("tfrecords", 8.23836, *_RECORDS),
    training("checkpoint", 3.21783, "--model=resnet20", "--train_dir=training"),
    training("resume", 0.118313, "--model=resnet20", "--train_dir=training", "--num_batches=6"),
    training(
        "job",
        3.04082,
        "--model=resnet20",
        "--variable_update=collective_all_reduce",
        launch=["--workers=2"],
    ),
    training(
        "multi_worker",
        3.04082,
        "--model=resnet20",
        "--variable_update=multi_worker_mirrored_strategy",
        launch=["--workers=2"],
    ),
    training(
        "coordinated",
        3.21783,
        "--model=resnet20",
        "--variable_update=parameter_server_strategy",
        launch=["--workers=1", "--ps=1"],
    ),
    # One pair is no verdict, so the exit code is 3.
    Case("ab", ["ab", "--b=--optimizer=adam", "--pairs=1", "--results=ab", "--", *COMMON], code=3),
    Case("report", ["report", "resnet50.json", "replicated.json", "--output=report.html"]),
    Case("table", ["report", "resnet50.json", "--format=csv"]),
)


def first_loss(path: Path) -> float:
    """Returns the first loss in a record, of the warm-up if there was one."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return float([*record["warmup_losses"], *record["losses"]][0])


def problem_of(case: Case, folder: Path) -> tuple[str, str]:
    """Runs a case. Returns its result, and why it does not hold; "" if it does."""
    own = case.words[0] == sys.executable
    words = case.words if own else [sys.executable, "-m", "cnnbench", *case.words]
    try:
        done = subprocess.run(
            [*words], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"has not ended after {SECONDS} s"
    if done.returncode != case.code:
        lines = done.stderr.strip().splitlines() or ["no output"]
        errors = [line for line in lines if re.search(r"error: ", line)] or lines[-1:]
        return "", f"exit code {done.returncode}: {errors[-1]}"
    if case.loss is None:
        return "ok", ""
    loss = first_loss(folder / f"{case.name}.json")
    differs = abs(loss - case.loss) > TOLERANCE * abs(case.loss)
    return f"{loss:.6g}", f"the first loss is {loss:.6g}, not {case.loss:.6g}" if differs else ""


def main(names: Sequence[str]) -> int:
    """Runs the cases with these names, or all. Returns the exit status."""
    failed = 0
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            if names and case.name not in names:
                continue
            began = time.monotonic()
            result, problem = problem_of(case, Path(scratch))
            failed += bool(problem)
            seconds = time.monotonic() - began
            word = "FAILS" if problem else "holds"
            print(f"{word} {seconds:6.1f} s  {case.name:24} {problem or result}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
