"""Computes metrics of the current weights on the validation subset."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.base.job import cpu_of_device, is_cpu
from cnnbench.data.dataset import InputSource, TowerBatch
from cnnbench.errors import DataError
from cnnbench.models.graph import GraphNetwork, Reader
from cnnbench.models.spec import VariableSpec
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.console import Console, DisplayInterval
from cnnbench.run.driver.evaluation_results import PendingEvaluation
from cnnbench.run.driver.host_metrics import HostMetricsExecutor, Rows
from cnnbench.run.driver.shared_interrupts import SharedInterrupts
from cnnbench.run.runtime.convolutions import (
    doubtful_layer_notice,
    resolve_data_format,
    uses_onednn_convolutions,
)
from cnnbench.run.step.batch_norm import share_moving_averages
from cnnbench.run.step.tower_copier import TowerCopier
from cnnbench.run.step.tracing import TracedFunction
from cnnbench.variable_mgr import towers
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.towers import TowerVariable

# Name of the example weights (0 for padding) among the values that `Model.host_rows` returns.
_WEIGHTS = "/weights"


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
        # The step is traced here, so that the first printed rate excludes the tracing time.
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
        share_moving_averages(self._manager)
        self._manager.wait_for_assignments(self.inputs.devices)
        if not self._warm:
            # The first call, in which TensorFlow optimizes the graph, is not timed.
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
            rows += [_unpadded(of_tower) for of_tower in collected if of_tower]
            if interval.is_display_due(batch):
                now = time.perf_counter()
                images = self._manager.num_towers * self.inputs.spec.batch_per_device
                console.evaluation_row(batch, images * (batch - shown) / (now - window))
                shown, window = batch, now
            if batch == check:
                check += interrupts.raise_if_any_interrupted((time.perf_counter() - start) / batch)
        elapsed = time.perf_counter() - start
        # If the input stayed open, its prefetching would slow down the training.
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
            # If towers train independently, the network of tower 0 is evaluated, as in checkpoints.
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
            # Padding is replaced by 0, because an infinite loss of padding times 0 would be NaN.
            columns = tf.where(batch.weights > 0, columns, 0.0)
            if rows:
                rows[_WEIGHTS] = batch.weights
        return tf.reduce_sum(columns, axis=1), rows


def _joined_rows(rows: Sequence[Mapping[str, Any]]) -> Rows:
    return {name: np.concatenate([part[name] for part in rows]) for name in rows[0]} if rows else {}


def _unpadded(rows: Mapping[str, tf.Tensor]) -> dict[str, Any]:
    """Copies `Model.host_rows` values of one tower's batch to the host, without padding."""
    values = {name: value.numpy() for name, value in rows.items()}
    weights = values.pop(_WEIGHTS, None)
    return values if weights is None else {name: v[weights > 0] for name, v in values.items()}
