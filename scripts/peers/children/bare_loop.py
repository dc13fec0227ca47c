"""Measures cnnbench's harness against a bare loop over the same step.

One process runs the bare loop, then the run of cnnbench, and then the bare loop again. The bare
loop only calls the traced function and reads the loss, because otherwise it would not wait for the
step. Fetching a batch and naming the results are work of the harness. Arguments are flags of
``cnnbench``.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from steps import report  # type: ignore[import-not-found] # the file beside this

from cnnbench.cli.commands import run
from cnnbench.records.run import RunRecord
from cnnbench.run.driver import benchmark_cnn

WARMUP = 50


class BetweenBareLoops(benchmark_cnn.BenchmarkCNN):
    """A run of cnnbench between two bare loops, each with half of the bare steps."""

    bare_seconds = 0.0

    def build(self) -> Any:
        """Builds the run, and runs the first bare loop."""
        self._built: Any = super().build()
        self._bare_loop()
        return self._built

    def run(self) -> RunRecord:
        """Runs cnnbench and the second bare loop, and prints the measurement."""
        record = super().run()
        self._bare_loop()
        # The wall time of the whole loop includes everything that happens between two steps.
        steps, seconds = len(record.step_seconds), record.measured.loop_seconds
        report(
            batch=self.plan.length.global_batch,
            step_seconds=[(seconds or 0.0) / steps] * steps,
            bare_steps_per_sec=2 * (self.plan.length.batches // 2) / self.bare_seconds,
        )
        return record

    def _bare_loop(self) -> None:
        import tensorflow as tf  # Imported here, because the run configures TensorFlow first.

        # With synthetic data, the step function takes only the learning rate.
        # It runs one training step, and returns a tuple that begins with the loss.
        step, rate = self._built.step.function, tf.constant(0.0)
        for _ in range(WARMUP):
            float(step(rate)[0])
        start = time.perf_counter()
        for _ in range(self.plan.length.batches // 2):
            float(step(rate)[0])
        self.bare_seconds += time.perf_counter() - start


if __name__ == "__main__":
    benchmark_cnn.BenchmarkCNN = BetweenBareLoops  # type: ignore[misc]
    run.main(sys.argv[1:])
