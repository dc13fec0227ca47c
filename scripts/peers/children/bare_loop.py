"""Measures cnnbench's harness against a bare loop over the very step that it runs.

One process: bare loop, the command's own run, bare loop again. The bare loop only
calls the step and reads its loss, without which a step would not be waited for.
Arguments are flags of ``cnnbench``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cnnbench.benchmark_cnn import BenchmarkCNN
from cnnbench.commands import run

WARMUP = 50


def run_between(flags: Sequence[str], bare: Callable[[Callable[[], Any]], None]) -> None:
    """Runs ``cnnbench FLAGS`` with a call of ``bare(step)`` before and after its own loop.

    The only place that knows the driver: ``build()`` returns what has been built,
    and its ``step()`` runs one training step, the loss of which is ``.loss``.
    """
    original = BenchmarkCNN.build
    built: list[Any] = []

    def build(self: BenchmarkCNN) -> Any:
        built.append(original(self))
        bare(built[0].step)
        return built[0]

    BenchmarkCNN.build = build  # type: ignore[method-assign]
    run.main(flags)
    bare(built[0].step)


def main(flags: Sequence[str]) -> None:
    """Entry point."""
    # Half of the bare steps before the harness, half after, as many as the harness times.
    count = int(next(f.split("=")[1] for f in flags if f.startswith("--num_batches="))) // 2
    spent: list[float] = []

    def bare(step: Callable[[], Any]) -> None:
        for _ in range(WARMUP):
            float(step().loss)
        start = time.perf_counter()
        for _ in range(count):
            float(step().loss)
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
