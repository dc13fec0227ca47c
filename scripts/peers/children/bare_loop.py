"""Measures cnnbench's harness against a bare loop over the same step.

One process: bare loop, the command's own run, bare loop again. The bare loop only
calls the traced function and reads the loss, without which a step would not be
waited for; fetching a batch and naming the results are the harness's own work.
Arguments are flags of ``cnnbench``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cnnbench.cli.commands import run
from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN

WARMUP = 50


def run_between(flags: Sequence[str], bare: Callable[[Callable[[], Any]], None]) -> None:
    """Runs ``cnnbench FLAGS`` with a call of ``bare(function)`` before and after its own loop.

    The only place that depends on the driver: ``build()`` returns the built run, and with synthetic
    data its ``step.function`` takes the learning rate alone, runs one training step, and returns a
    tuple with the loss in front.
    """
    original = BenchmarkCNN.build
    built: list[Any] = []

    def build(self: BenchmarkCNN) -> Any:
        built.append(original(self))
        bare(_step_of(built[0]))
        return built[0]

    BenchmarkCNN.build = build  # type: ignore[method-assign]
    run.main(flags)
    bare(_step_of(built[0]))


def _step_of(built: Any) -> Callable[[], Any]:
    import tensorflow as tf  # late: the run configures it

    return partial(built.step.function, tf.constant(0.0))


def main(flags: Sequence[str]) -> None:
    """Entry point."""
    # Half of the bare steps before the harness, half after, as many as the harness times.
    count = int(next(f.split("=")[1] for f in flags if f.startswith("--num_batches="))) // 2
    spent: list[float] = []

    def bare(function: Callable[[], Any]) -> None:
        for _ in range(WARMUP):
            float(function()[0])
        start = time.perf_counter()
        for _ in range(count):
            float(function()[0])
        spent.append(time.perf_counter() - start)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        run_between([*flags, f"--result_json={path}"], bare)
        record = json.loads(path.read_text(encoding="utf-8"))
    # The whole wall time of the harness's loop, so that nothing between two steps is missed.
    steps = len(record["step_seconds"])
    batch = record["batch"]["global"]
    seconds = steps * batch / record["summary"]["total_images_per_sec"]
    result = {
        "batch": batch,
        "step_seconds": [seconds / steps] * steps,
        "bare_steps_per_sec": len(spent) * count / sum(spent),
    }
    print("\nMEASURED " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
