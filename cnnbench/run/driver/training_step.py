"""Steps as a training loop sees them: results on the host, interrupts."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from cnnbench.base.interrupts import SIGNALS, interrupt
from cnnbench.base.jobs.job import Task
from cnnbench.run.step.train_step import StepResult
from cnnbench.variable_mgr.worker_group import WorkerGroup

_CHECK_SECONDS = 1.0


class StepValues(NamedTuple):
    """A step's results on the host.

    Attributes:
      metrics: the model's, in its order; empty where they are not computed.
      skipped, staleness: see `StepResult`.
      worker: that made the update; "" where all take part in each.
      stop: whether a worker of the job was interrupted.
    """

    loss: float
    metrics: tuple[float, ...]
    skipped: bool
    stop: bool = False
    staleness: int | None = None
    worker: str = ""

    @classmethod
    def of(
        cls,
        result: StepResult,
        metric_names: Sequence[str],
        workers: Sequence[Task],
        *,
        forward_only: bool,
    ) -> StepValues:
        """Reads the results of a step; `workers` are those that `result.worker` counts."""
        loss = float(result.loss)
        if forward_only and math.isfinite(loss):
            loss = 0.0  # a forward pass has no loss, and tf_cnn_benchmarks prints 0
        names = metric_names if result.metrics else ()
        number = None if result.worker is None else int(result.worker)
        return cls(
            loss=loss,
            metrics=tuple(float(result.metrics[name]) for name in names),
            skipped=result.skipped is not None and bool(result.skipped),
            stop=result.stop is not None and bool(result.stop),
            staleness=None if result.staleness is None else int(result.staleness),
            worker="" if number is None else str(workers[number]),
        )


class Interrupts:
    """Interrupts shared by all workers of a job.

    Attributes:
      pending: whether this process was interrupted and the others do not know yet.
    """

    def __init__(self, workers: WorkerGroup | None) -> None:
        self._workers = workers
        self.pending = False

    def check(self, seconds: float) -> int:
        """Ends all workers by KeyboardInterrupt if one was interrupted; all call it, between steps.

        Args:
          seconds: that a pass of the caller's loop takes here.

        Returns:
          Passes until the next call, about a second by those of the chief.
        """
        if self._workers is None:
            return 1  # nothing is pending without others
        passes = max(1, int(_CHECK_SECONDS / seconds)) if self._workers.is_chief else 0
        pending, passes = self._workers.total([int(self.pending), passes])
        if pending:
            raise KeyboardInterrupt
        return int(passes)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Ctrl-C in one worker ends all of them after the same step; a second one at once."""
        if self._workers is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def handler(number: int, frame: FrameType | None) -> None:
            if self.pending:
                interrupt(number, frame)
            self.pending = True

        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handler) for number in heeded}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)
