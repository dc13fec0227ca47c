"""Computes metrics of the current weights on the validation subset, and publishes them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from cnnbench.base.job import cpu_of_device, is_cpu
from cnnbench.data.dataset import InputSource, TowerBatch
from cnnbench.errors import BenchmarkError, DataError
from cnnbench.models.graph import GraphNetwork, Reader
from cnnbench.models.spec import VariableSpec
from cnnbench.plan import RunPlan
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.console import Console, DisplayInterval
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.host_metrics import HostMetricsExecutor, Rows
from cnnbench.run.driver.observers.observer import Observer
from cnnbench.run.driver.shared_interrupts import SharedInterrupts
from cnnbench.run.runtime.convolutions import (
    doubtful_layer_notice,
    resolve_data_format,
    uses_onednn_convolutions,
)
from cnnbench.run.step.batch_norm import broadcast_averages
from cnnbench.run.step.tower_copier import TowerCopier
from cnnbench.run.step.tracing import TracedFunction
from cnnbench.variable_mgr import towers
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.towers import TowerVariable

# Key under which the weight of each example is added to the result of `Model.host_rows`. Padding
# has the weight 0.
_WEIGHTS = "/weights"


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


class Evaluator:
    """Traces the evaluation step once and runs it over a number of batches.

    Args:
      manager: contains the weights. Each tower evaluates its own copy of the weights.
      inputs: validation batches with weights (0 for padding).
      averages: moving averages by the name of their variable. Copy 0 of an average is evaluated
        instead of its variable.

    Attributes:
      notices: lines about how the evaluation was built, for the user.
    """

    def __init__(
        self,
        plan: RunPlan,
        manager: VariableMgr,
        inputs: InputSource,
        host: HostMetricsExecutor,
        averages: Mapping[str, TowerVariable],
    ) -> None:
        self._averages = averages
        self._plan = plan
        self._model = plan.network.model
        self._manager = manager
        self.inputs = inputs
        self.host = host
        self._devices = manager.get_devices()
        kind = "cpu" if is_cpu(self._devices[0]) else "gpu"
        self._data_format = resolve_data_format(plan.params.data_format, kind)
        self._avoids_doubtful = kind == "cpu" and uses_onednn_convolutions(plan)
        self._warm = False
        self.notices: list[str] = []
        # The step is traced here, before the first evaluation, so that the first printed rate
        # excludes the tracing time.
        self._function = TracedFunction("the evaluation", self._build, inputs.step_argument_specs)
        doubt = doubtful_layer_notice(plan, self._devices[0], self._function.concrete.graph)
        if doubt:
            self.notices.append(doubt)

    def run(
        self, global_step: int, console: Console, interrupts: SharedInterrupts
    ) -> PendingEvaluation:
        """Evaluates the planned number of batches, and repeats the data if it has fewer batches.

        The first evaluation begins with an untimed step. The results of this step are ignored.

        Args:
          global_step: global step of the weights, for the result.
          interrupts: interrupts of the workers that evaluate together.

        Returns:
          Metrics and mean loss (without the L2 loss) over examples, without padding.

        Raises:
          KeyboardInterrupt: one of the workers was interrupted.
        """
        broadcast_averages(self._manager)
        self._manager.wait_for_assignments(self.inputs.devices)
        if not self._warm:
            # The first call is not timed, because TensorFlow optimizes the graph in it.
            self.inputs.restart()
            self._function(*self.inputs.next())[0].numpy()
            self._warm = True
        self.inputs.restart()
        totals: list[float] = []
        rows: list[Mapping[str, Any]] = []
        start = window = time.perf_counter()
        check = 1
        shown, interval = 0, DisplayInterval(self._plan.params.display_every)
        for batch in range(1, self._plan.length.eval_batches + 1):
            sums, collected = self._function(*self.inputs.next())
            values = sums.numpy().tolist()
            totals = [a + b for a, b in zip(totals or [0.0] * len(values), values, strict=True)]
            rows += [_copy_unpadded(of_tower) for of_tower in collected if of_tower]
            if interval.advance_if_due(batch):
                now = time.perf_counter()
                images = self._manager.num_towers * self.inputs.spec.batch_per_device
                console.print_evaluation_row(batch, images * (batch - shown) / (now - window))
                shown, window = batch, now
            if batch == check:
                check += interrupts.sync_interrupts((time.perf_counter() - start) / batch)
        elapsed = time.perf_counter() - start
        # The input is closed after each evaluation; otherwise, its prefetching would slow down the
        # training.
        self.inputs.close()
        return self._combine(totals, _joined_rows(rows), elapsed, global_step)

    def _combine(
        self, totals: list[float], rows: Rows, elapsed: float, global_step: int
    ) -> PendingEvaluation:
        """Combines the sums and `Model.host_rows` values of all workers into one evaluation."""
        workers = self._manager.workers
        if workers is not None:
            totals = workers.sum_over_workers(np.array(totals)).tolist()
            packed = io.BytesIO()
            if rows:
                np.savez(packed, **rows)
            gathered = workers.gather_bytes(packed.getvalue())
            rows = _joined_rows([np.load(io.BytesIO(part)) for part in gathered if part])
        *sums, loss, count = totals
        if not count:
            raise DataError("no example of the validation subset could be used")
        evaluation = Evaluation(
            global_step=global_step,
            loss=loss / count,
            examples=round(count),
            images_per_sec=count / elapsed,
        )
        means = dict(zip(self._model.metric_names, (s / count for s in sums), strict=True))
        return PendingEvaluation(evaluation, means, self.host.submit(rows))

    def _build(self, *batches: TowerBatch) -> tuple[tf.Tensor, list[dict[str, tf.Tensor]]]:
        """Evaluates one batch per tower, inside of the traced function.

        Returns sums over all towers, [metrics ..., loss, examples], and the rows of each tower.
        """
        make: Callable[..., Any] = self._build_tower
        if len(self._devices) > 1:
            make = TowerCopier(make, self.notices.append)

        def build(tower: int) -> Any:
            # If towers train independently, only the network of tower 0 is evaluated, because
            # checkpoints contain only that one.
            source = tower if self._manager.replicas_in_sync else 0

            def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                if spec.name in self._averages:
                    return tf.cast(towers.read(self._averages[spec.name].primary), dtype)
                return self._manager.read(source, spec.name, dtype)

            device = self._devices[tower]
            with tf.device(device), tf.name_scope(f"evaluation_{tower}"):
                host = device if is_cpu(device) else cpu_of_device(device)
                return make(read, self.inputs.get_tower_batch(tower, batches), host)

        results = self._manager.run_towers(build)
        with tf.device(self._devices[0]):
            return tf.add_n([sums for sums, _ in results]), [rows for _, rows in results]

    def _build_tower(
        self, read: Reader, batch: TowerBatch, host: str
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Evaluates one tower's batch. Returns sums over examples, and `Model.host_rows` values."""
        outputs = GraphNetwork(
            self._model,
            self._plan.network.spec.num_classes,
            read,
            training=False,
            data_format=self._data_format,
            compute_dtype=self._plan.numerics.dtype,
            avoids_doubtful=self._avoids_doubtful,
        ).forward(batch.features)
        losses = self._model.loss(outputs, batch.labels)
        metrics = self._model.metrics(outputs, batch.labels)
        named = [metrics[name] for name in self._model.metric_names]
        columns = tf.stack([*named, losses, tf.ones_like(losses)])
        # The CPU runs `Model.host_rows`, because some of its operations have no GPU kernel.
        with tf.device(host):
            rows = dict(self._model.host_rows(batch.features, outputs, batch.labels))
        if batch.weights is not None:
            # Rows of padding are replaced by 0: if their loss is infinite, multiplying it by the
            # weight 0 would give NaN.
            columns = tf.where(batch.weights > 0, columns, 0.0)
            if rows:
                rows[_WEIGHTS] = batch.weights
        return tf.reduce_sum(columns, axis=1), rows


def _joined_rows(rows: Sequence[Mapping[str, Any]]) -> Rows:
    return {name: np.concatenate([part[name] for part in rows]) for name in rows[0]} if rows else {}


def _copy_unpadded(rows: Mapping[str, tf.Tensor]) -> dict[str, Any]:
    """Copies `Model.host_rows` values of one tower's batch to the host, without padding."""
    values = {name: value.numpy() for name, value in rows.items()}
    weights = values.pop(_WEIGHTS, None)
    return values if weights is None else {name: v[weights > 0] for name, v in values.items()}


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
        """Whether the metrics of the oldest unpublished evaluation are computed."""
        return bool(self._waiting) and self._waiting[0].host.done()

    def publish(self) -> None:
        """Publishes complete evaluations in order, up to the first incomplete evaluation."""
        while self.is_next_ready:
            # If computing the metrics failed, the next line raises the error, and the evaluation
            # stays in the queue until `close`.
            metrics = self._waiting[0].metrics
            evaluated = self._waiting.popleft()
            self._run.console.print_evaluation(metrics, evaluated.evaluation.examples)
            self._record(evaluated.evaluation, metrics)

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
        """Records the evaluations that have not been published yet.

        If metrics have not been computed yet, leaves them out, and prints a warning.
        """
        with contextlib.suppress(BenchmarkError):
            self.publish()
        missing = []
        while self._waiting:
            evaluated = self._waiting.popleft()
            complete = evaluated.host.done() and not evaluated.host.exception()
            metrics = evaluated.metrics if complete else evaluated.means
            self._record(evaluated.evaluation, metrics)
            if not complete:
                missing.append(str(evaluated.evaluation.global_step))
        if missing:
            steps = ", ".join(missing)
            text = f"metrics that need all examples are missing: evaluations at global_step {steps}"
            self._run.messages.warning(text, "eval_metrics")
        self._host.close()

    def _record(self, evaluation: Evaluation, metrics: Mapping[str, float]) -> None:
        """Passes an evaluation with its metrics to the record and the observers."""
        others = dict(metrics)
        # A record has separate fields for the top-1 and top-5 accuracies, outside of the other
        # metrics.
        top_1, top_5 = others.pop("top_1", None), others.pop("top_5", None)
        evaluation = dataclasses.replace(evaluation, top_1=top_1, top_5=top_5, metrics=others)
        self._run.measurements.add_evaluation(evaluation)
        for observer in self._observers:
            observer.evaluation_completed(evaluation)
