"""Publishes evaluations when all of their metrics are computed."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple

from cnnbench.errors import BenchmarkError
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.host_metrics import HostMetricsExecutor
from cnnbench.run.driver.observers.observer import Observer


class PendingEvaluation(NamedTuple):
    """An evaluation whose `Model.host_metrics` may still be in computation.

    Attributes:
      evaluation: the evaluation without metrics.
      means: metrics that are means over examples, in the model's order.
      host: metrics that the model computes from all rows.
    """

    evaluation: Evaluation
    means: Mapping[str, float]
    host: Future[dict[str, float]]

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics in the order in which they are printed. Waits until they are computed."""
        return {**self.means, **self.host.result()}


class EvaluationPublisher:
    """Passes evaluations to console, record and observers, in the order in which they were made.

    Args:
      host: computes metrics; closed together with this object.
    """

    def __init__(
        self, run: RunContext, host: HostMetricsExecutor, observers: Sequence[Observer]
    ) -> None:
        self._run = run
        self._host = host
        self._observers = observers
        self._waiting: deque[PendingEvaluation] = deque()

    def add(
        self,
        evaluated: PendingEvaluation,
        loop_seconds: float | None = None,
        wall_seconds: float | None = None,
    ) -> None:
        """Adds an evaluation; publishes it if its metrics and all earlier evaluations are complete.

        Raises:
          BenchmarkError: metrics of this or an earlier evaluation cannot be computed.
        """
        evaluation = dataclasses.replace(
            evaluated.evaluation, loop_seconds=loop_seconds, wall_seconds=wall_seconds
        )
        self._waiting.append(evaluated._replace(evaluation=evaluation))
        self.publish()

    @property
    def is_next_ready(self) -> bool:
        """Whether the metrics of the next evaluation are computed, so that it can be published."""
        return bool(self._waiting) and self._waiting[0].host.done()

    def publish(self) -> None:
        """Publishes complete evaluations in order, up to the first incomplete evaluation."""
        while self.is_next_ready:
            # If the metrics could not be computed, the evaluation stays in the queue until `close`.
            metrics = self._waiting[0].metrics
            evaluated = self._waiting.popleft()
            self._run.console.evaluation_result(metrics, evaluated.evaluation.examples)
            self._record_evaluation(evaluated.evaluation, metrics)

    def publish_all(self, timeout: float | None = None) -> None:
        """Waits for all evaluations, at most `timeout` seconds, and publishes them."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._waiting:
            remaining = None if end is None else end - time.monotonic()
            if remaining is not None and remaining <= 0:
                return
            wait([self._waiting[0].host], remaining)
            self.publish()

    def close(self) -> None:
        """Records unpublished evaluations without the missing metrics, with a warning."""
        with contextlib.suppress(BenchmarkError):
            self.publish()
        missing = []
        while self._waiting:
            evaluated = self._waiting.popleft()
            complete = evaluated.host.done() and not evaluated.host.exception()
            metrics = evaluated.metrics if complete else evaluated.means
            self._record_evaluation(evaluated.evaluation, metrics)
            if not complete:
                missing.append(str(evaluated.evaluation.global_step))
        if missing:
            steps = ", ".join(missing)
            text = f"metrics that need all examples are missing: evaluations at global_step {steps}"
            self._run.messages.warning(text, "eval_metrics")
        self._host.close()

    def _record_evaluation(self, evaluation: Evaluation, metrics: Mapping[str, float]) -> None:
        """Passes an evaluation with its metrics to the record and the observers."""
        others = dict(metrics)
        # A record has separate fields for the top-1 and top-5 accuracies.
        top_1, top_5 = others.pop("top_1", None), others.pop("top_5", None)
        evaluation = dataclasses.replace(evaluation, top_1=top_1, top_5=top_5, metrics=others)
        self._run.measurements.add_evaluation(evaluation)
        for observer in self._observers:
            observer.evaluation_completed(evaluation)
