"""The step of a job with a ClusterCoordinator, which runs the step on any idle worker."""

from __future__ import annotations

import logging
import time
from typing import Any

import tensorflow as tf

from cnnbench.data.joined_input import CoordinatedInput
from cnnbench.run.step.tracing import TracedFunction
from cnnbench.run.step.train_step import RATE, StepResult, TrainStep, UpdateCounter
from cnnbench.variable_mgr.strategies import StrategyVariableMgr

_RETRY_SECONDS = 0.05


class CoordinatedStep(TrainStep):
    """A `TrainStep` that a coordinator of tf.distribute runs on any idle worker.

    It needs a counter, and a `CoordinatedInput`, which also reads the worker's number. Random draws
    depend on the worker's number and on the count of updates.
    """

    inputs: CoordinatedInput
    _manager: StrategyVariableMgr
    _updates_counter: UpdateCounter
    _counts_steps = False

    def _trace(self) -> TracedFunction:
        # TensorFlow's messages about lost workers are hidden, because cnnbench reports the losses.
        logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._manager.strategy)
        return TracedFunction("the step", self._build_update, (RATE,))

    def resume(self, global_step: int) -> None:
        """Sets the number of completed updates, which random draws depend on."""
        self._updates_counter.resume(global_step)

    def __call__(self, *learning_rates: float) -> StepResult:
        """Schedules an update on an idle worker, and waits for its result. Thread-safe.

        If the worker is killed, the update is repeated on another worker, although it may have been
        applied.
        """
        self.inputs.next()
        scheduled = time.perf_counter()
        arguments = (self._rate_tensor(*learning_rates),)
        remote = self._coordinator.schedule(self.function.concrete, args=arguments)
        results = self._wait_for_result(remote).numpy()
        fetched = zip(tf.nest.flatten(self._fields), results, strict=True)
        tensors = [tf.cast(tf.constant(value), spec.dtype) for spec, value in fetched]
        values = dict(tf.nest.pack_sequence_as(self._fields, tensors))
        self.inputs.end_step(int(values["worker"].numpy()), scheduled)
        return StepResult(**values)

    def _wait_for_result(self, remote: Any) -> tf.Tensor:
        """Waits for the result of a scheduled update, which another worker repeats after a loss."""
        while True:
            try:
                return remote.get()
            except tf.errors.OpError as error:
                if self.inputs.error is not None:
                    raise self.inputs.error from error
                lost = isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))
                if not lost or "/job:ps" in str(error):
                    raise
            # The worker was killed after the step and before its result was copied.
            # The coordinator repeats the step on another worker, whose result is used.
            time.sleep(_RETRY_SECONDS)

    def _build_update(self, rate: tf.Tensor) -> tf.Tensor:
        """Builds a step that returns its results in one float64 tensor."""
        result = self._build_step(rate)._replace(worker=self.inputs.worker_number())
        scalars = {name: value for name, value in result._asdict().items() if value is not None}
        self._fields = tf.nest.map_structure(lambda x: tf.TensorSpec([], x.dtype), scalars)
        return tf.stack([tf.cast(scalar, tf.float64) for scalar in tf.nest.flatten(scalars)])

    def _build_seed(self, tower: int, count_before: tf.Tensor | None) -> tf.Tensor:
        del tower
        assert count_before is not None
        seed = self._plan.params.tf_random_seed + self.inputs.worker_number()
        return tf.stack([seed, count_before])
