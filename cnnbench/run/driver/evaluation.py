"""Evaluation, and metrics that are computed on the host.

They are computed at once, or with --collect_eval_results_async in a process of their own while the
training continues. That process is a fresh interpreter for every evaluation: it finds the model by
its name, loads no TensorFlow, and ends with its result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.base import plugins
from cnnbench.base.interrupts import name_of
from cnnbench.base.job import cpu_of, is_cpu
from cnnbench.data.dataset import InputSource, TowerBatch
from cnnbench.errors import BenchmarkError, DataError, UsageError
from cnnbench.machine import repository
from cnnbench.models import model as registry
from cnnbench.models.graph import DataFormat, GraphNetwork, Reader
from cnnbench.models.model import Model
from cnnbench.models.spec import VariableSpec
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.measurements import Measurements
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.console import Console, DisplayInterval
from cnnbench.run.driver.membership import Interrupts
from cnnbench.run.driver.observers import Observer
from cnnbench.run.runtime import supervisor
from cnnbench.run.step.tower import share_moving_averages
from cnnbench.run.step.train_step import CopiedTowers, TracedFunction
from cnnbench.variable_mgr.base import VariableMgr

# Metrics computed from the rows of all examples, and evaluations that wait for them.

Rows = Mapping[str, Any]
"""NumPy arrays ``[examples, ...]`` by the names of `Model.host_rows`; empty without any."""


class HostMetrics:
    """Computes `Model.host_metrics`: at once, in this process."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def submit(self, rows: Rows) -> Future[dict[str, float]]:
        """Starts the computation from the rows of an evaluation; exceptions may be raised here."""
        done: Future[dict[str, float]] = Future()
        done.set_result(_computed(self._model, rows))
        return done

    def close(self) -> None:
        """Cancels computations that have not ended."""


class InProcess(HostMetrics):
    """Computes metrics in a child process, one evaluation after the other.

    Args:
      model, dataset: names by which the process finds the model.
      files: flags and paths of plug-ins, which it loads before.
    """

    def __init__(self, model: str, dataset: str, files: Sequence[tuple[str, str]] = ()) -> None:
        self._named = (model, dataset, files)
        # A thread of its own waits for the process.
        self._thread = ThreadPoolExecutor(1, "host-metrics")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def submit(self, rows: Rows) -> Future[dict[str, float]]:
        """See `HostMetrics.submit`; the future of a failed process holds a BenchmarkError."""
        return self._thread.submit(self._compute, rows)

    def close(self) -> None:
        """Ends the child process, if there is one; a second call does nothing."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # what it started has its pipes
        self._thread.shutdown(cancel_futures=True)

    def _compute(self, rows: Rows) -> dict[str, float]:
        # The same import path as in this process.
        main = f"import {__name__} as m; m.main({os.getpid()})"
        code = f"import sys; sys.path[:] = {sys.path!r}; {main}"
        with self._lock:
            if self._closed:
                return {}
            self._process = process = subprocess.Popen(
                # Unbuffered: what a plug-in prints would otherwise come after its error.
                [sys.executable, "-u", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**repository.environment(), "CUDA_VISIBLE_DEVICES": ""},
                # Ctrl-C is handled by the run, which ends its processes.
                start_new_session=True,
            )
        found, errors = process.communicate(pickle.dumps((self._named, dict(rows))))
        with self._lock:
            self._process = None
        if process.returncode != 0:
            raise BenchmarkError(_why(self._named[0], process.returncode, errors.decode()))
        if not found:
            raise BenchmarkError(f"{_why(self._named[0], 0, errors.decode())} before its result")
        metrics: dict[str, float] = json.loads(found)
        return metrics


def main(parent: int) -> None:
    """Main program of the child: model and rows from standard input, metrics as JSON to stdout."""
    supervisor.end_with(parent)
    # Output of plug-ins is kept out of the result.
    result = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    (model, dataset, files), rows = pickle.load(sys.stdin.buffer)
    try:
        with plugins.reported(BenchmarkError):
            for flag, path in files:
                plugins.load(path, flag)
            metrics = _computed(registry.get_model(model, dataset), rows)
    except (UsageError, BenchmarkError) as error:
        sys.exit(str(error))
    with result:
        json.dump(metrics, result)


def _computed(model: Model, rows: Rows) -> dict[str, float]:
    found = model.host_metrics(rows) if rows else {}
    return {name: float(value) for name, value in found.items()}


def _why(model: str, status: int, errors: str) -> str:
    ended = f"was ended by {name_of(-status)}" if status < 0 else f"ended with exit status {status}"
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    return f"the process that computes metrics of {model} {ended}{last and ': '}{last}"


@dataclass(frozen=True)
class Evaluated:
    """An evaluation whose host metrics may still be computed.

    Attributes:
      evaluation: without metrics.
      means: the metrics that are means over examples, in the model's order.
      host: those that the model makes of all rows.
    """

    evaluation: Evaluation
    means: Mapping[str, float]
    host: Future[dict[str, float]]

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics, in the order in which they are printed; waits for them."""
        return {**self.means, **self.host.result()}


class EvaluationResults:
    """Passes evaluations to console, record and observers, in their order.

    Args:
      host: computes metrics; closed together with this object.
      warn: prints a line about metrics that are missing in the end.
    """

    def __init__(
        self,
        host: HostMetrics | None,
        console: Console,
        measurements: Measurements,
        observers: Sequence[Observer],
        warn: Callable[[str], None],
    ) -> None:
        self._host = host
        self._console = console
        self._measurements = measurements
        self._observers = observers
        self._warn = warn
        self._waiting: deque[Evaluated] = deque()

    def add(
        self,
        found: Evaluated,
        loop_seconds: float | None = None,
        wall_seconds: float | None = None,
    ) -> None:
        """Adds an evaluation; publishes it if its metrics and all earlier evaluations are complete.

        Raises:
          BenchmarkError: metrics of this one or one before cannot be computed.
        """
        evaluation = dataclasses.replace(
            found.evaluation, loop_seconds=loop_seconds, wall_seconds=wall_seconds
        )
        self._waiting.append(dataclasses.replace(found, evaluation=evaluation))
        self.publish()

    @property
    def ready(self) -> bool:
        """Whether there is an evaluation to publish."""
        return bool(self._waiting) and self._waiting[0].host.done()

    def publish(self) -> None:
        """Publishes complete evaluations."""
        while self.ready:
            metrics = self._waiting[0].metrics  # stays there if this raises, for `close`
            found = self._waiting.popleft()
            self._console.evaluation_result(metrics, found.evaluation.examples)
            self._record(found.evaluation, metrics)

    def finish(self, seconds: float | None = None) -> None:
        """Waits for all evaluations, at most `seconds`, and publishes them."""
        end = None if seconds is None else time.monotonic() + seconds
        while self._waiting:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return
            wait([self._waiting[0].host], left)
            self.publish()

    def close(self) -> None:
        """Records unpublished evaluations without the missing metrics, with a warning."""
        with contextlib.suppress(BenchmarkError):
            self.publish()
        missing = []
        while self._waiting:
            found = self._waiting.popleft()
            known = found.host.done() and not found.host.exception()
            self._record(found.evaluation, found.metrics if known else found.means)
            if not known:
                missing.append(str(found.evaluation.global_step))
        if missing:
            steps = ", ".join(missing)
            self._warn(f"no metrics of all rows for the evaluations at global_step {steps}")
        if self._host is not None:
            self._host.close()

    def _record(self, evaluation: Evaluation, metrics: Mapping[str, float]) -> None:
        others = dict(metrics)
        # The accuracies have fields of their own.
        top_1, top_5 = others.pop("top_1", None), others.pop("top_5", None)
        evaluation = dataclasses.replace(evaluation, top_1=top_1, top_5=top_5, metrics=others)
        self._measurements.add_evaluation(evaluation)
        for observer in self._observers:
            observer.evaluated(evaluation)


# Metrics of the current weights on the validation subset.

# Name of the weights of examples, 0 for padding, among a model's own rows.
_WEIGHTS = "/weights"


class Evaluator:
    """Traces the evaluation step once and runs it over a number of batches.

    Args:
      manager: holds the weights; tower t evaluates its own copy.
      inputs: validation batches with weights (0 for padding).

    Attributes:
      notices: lines about how the evaluation was built, for the user.
    """

    def __init__(
        self,
        plan: RunPlan,
        manager: VariableMgr,
        inputs: InputSource,
        data_format: DataFormat,
        host: HostMetrics,
    ) -> None:
        self._plan = plan
        self._model = plan.network.model
        self._manager = manager
        self.inputs = inputs
        self._data_format = data_format
        self.host = host
        self._devices = manager.get_devices()
        self._warm = False
        self.notices: list[str] = []
        # Traced here, so that the first rate printed is not mostly tracing.
        self._function = TracedFunction("the evaluation", self._step, inputs.signature)

    def run(self, global_step: int, console: Console, interrupts: Interrupts) -> Evaluated:
        """Evaluates the planned batches; starts over at the end of the data.

        The first evaluation begins with an untimed step that counts for nothing.

        Args:
          global_step: global step of the weights, for the result.
          interrupts: interrupts of the workers that evaluate together.

        Returns:
          Metrics and mean loss (without the L2 loss) over examples; padding does not
          count.

        Raises:
          KeyboardInterrupt: one of the workers was interrupted.
        """
        share_moving_averages(self._manager)
        self._manager.settle(self.inputs.devices)
        if not self._warm:
            # The first call optimizes and allocates; its batch is read again.
            self.inputs.restart()
            self._function(*self.inputs.next())[0].numpy()
            self._warm = True
        self.inputs.restart()
        totals: list[float] = []
        rows: list[Mapping[str, Any]] = []
        start = window = time.perf_counter()
        check = 1
        shown, interval = 0, DisplayInterval(self._plan.outputs.display_every)
        for batch in range(1, self._plan.length.num_eval_batches + 1):
            sums, collected = self._function(*self.inputs.next())
            values = sums.numpy().tolist()
            totals = [a + b for a, b in zip(totals or [0.0] * len(values), values, strict=True)]
            rows += [_counted(of_tower) for of_tower in collected if of_tower]
            if interval.is_over(batch):
                now = time.perf_counter()
                images = self._manager.num_towers * self.inputs.spec.batch_per_device
                console.evaluation_row(batch, images * (batch - shown) / (now - window))
                shown, window = batch, now
            if batch == check:
                check += interrupts.check((time.perf_counter() - start) / batch)
        elapsed = time.perf_counter() - start
        # Reading ahead would slow down the training that continues.
        self.inputs.close()
        return self._evaluated(totals, _together(rows), elapsed, global_step)

    def _evaluated(
        self, totals: list[float], rows: Rows, elapsed: float, global_step: int
    ) -> Evaluated:
        """The evaluation from the sums and rows of this worker and of all others."""
        workers = self._manager.workers
        if workers is not None:
            totals = workers.total(np.array(totals)).tolist()
            packed = io.BytesIO()
            if rows:
                np.savez(packed, **rows)
            gathered = workers.gather(packed.getvalue())
            rows = _together([np.load(io.BytesIO(part)) for part in gathered if part])
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
        return Evaluated(evaluation, means, self.host.submit(rows))

    def _step(self, *batches: TowerBatch) -> tuple[tf.Tensor, list[dict[str, tf.Tensor]]]:
        """Sums over all towers, [metrics ..., loss, examples], and each tower's rows."""
        alone = len(self._devices) == 1
        make = self._tower if alone else CopiedTowers(self._tower, self.notices.append)

        def build(tower: int) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            # Towers that train independently are different networks: tower 0's is the one that
            # checkpoints hold, and the one that is evaluated.
            source = tower if self._manager.replicas_in_sync else 0

            def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                return self._manager.read(source, spec.name, dtype)

            device = self._devices[tower]
            with tf.device(device), tf.name_scope(f"evaluation_{tower}"):
                host = device if is_cpu(device) else cpu_of(device)
                return make(read, self.inputs.of_tower(tower, batches), host)

        towers = self._manager.run_towers(build)
        with tf.device(self._devices[0]):
            return tf.add_n([sums for sums, _ in towers]), [rows for _, rows in towers]

    def _tower(
        self, read: Reader, batch: TowerBatch, host: str
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        outputs = GraphNetwork(
            self._model,
            self._plan.network.spec.num_classes,
            read,
            training=False,
            data_format=self._data_format,
            compute_dtype=self._plan.numerics.dtype,
        ).forward(batch.features)
        losses = self._model.loss(outputs, batch.labels)
        metrics = self._model.metrics(outputs, batch.labels)
        named = [metrics[name] for name in self._model.metric_names]
        columns = tf.stack([*named, losses, tf.ones_like(losses)])
        with tf.device(host):  # needed there; some operations lack GPU kernels
            rows = dict(self._model.host_rows(batch.features, outputs, batch.labels))
        if batch.weights is not None:
            # The loss of padding may be infinite.
            columns = tf.where(batch.weights > 0, columns, 0.0)
            if rows:
                rows[_WEIGHTS] = batch.weights
        return tf.reduce_sum(columns, axis=1), rows


def _together(rows: Sequence[Mapping[str, Any]]) -> Rows:
    return {name: np.concatenate([one[name] for one in rows]) for name in rows[0]} if rows else {}


def _counted(rows: Mapping[str, tf.Tensor]) -> dict[str, Any]:
    """Rows of one tower's batch on the host, without padding."""
    values = {name: value.numpy() for name, value in rows.items()}
    weights = values.pop(_WEIGHTS, None)
    return values if weights is None else {name: v[weights > 0] for name, v in values.items()}
