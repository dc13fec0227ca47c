"""One step for all workers of a job, run by a ClusterCoordinator on any idle worker."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import tensorflow as tf

from cnnbench.data.joined import CoordinatedInput
from cnnbench.run.step.traced import TracedFunction
from cnnbench.run.step.train_step import RATE, StepResult, TrainStep
from cnnbench.variable_mgr.strategies.base import StrategyVariableMgr

_RETRY_SECONDS = 0.05


class CoordinatedStep(TrainStep):
    """A `TrainStep`, with a counter and a `CoordinatedInput`, that reads its worker's number.

    Draws depend on the number of the worker and on the updates counted before.
    """

    _inputs: CoordinatedInput
    _counts_steps = False

    def _traced(self) -> TracedFunction:
        logging.getLogger("tensorflow").setLevel(logging.CRITICAL)  # cnnbench reports losses
        assert isinstance(self._manager, StrategyVariableMgr)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._manager.strategy)
        self._waited = 0.0
        self._waits = threading.Lock()
        return TracedFunction("the step", self._scheduled, (RATE,))

    @property
    def input_wait_seconds(self) -> float:
        """Mean time that workers spent waiting for batches."""
        return self._waited / len(self._inputs.devices)

    def resume(self, global_step: int) -> None:
        """See `TrainStep.resume`."""
        assert self._updates_counter is not None
        self._updates_counter.resume(global_step)

    def __call__(self, learning_rate: float) -> StepResult:
        """Schedules an update and waits for it; thread-safe.

        An update whose worker is killed is made again on another worker, though the first may have
        been applied.
        """
        self._inputs.next()
        arguments = (self._rate_tensor(learning_rate),)
        remote = self._coordinator.schedule(self.function.concrete, args=arguments)
        fetched = zip(tf.nest.flatten(self._fields), self._table(remote).numpy(), strict=True)
        found = [tf.cast(tf.constant(value), spec.dtype) for spec, value in fetched]
        values = dict(tf.nest.pack_sequence_as(self._fields, found))
        self._inputs.taken(int(values["worker"].numpy()))
        with self._waits:
            self._waited += float(values.pop("waited").numpy())
        return StepResult(**values)

    def _table(self, remote: Any) -> tf.Tensor:
        while True:
            try:
                return remote.get()
            except tf.errors.OpError as error:
                if self._inputs.error is not None:
                    raise self._inputs.error from error
                lost = isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))
                if not lost or "/job:ps" in str(error):
                    raise
            # The worker was killed between the end of the step and the copy of its result. The
            # coordinator gives the step to another one, whose result comes in its place.
            time.sleep(_RETRY_SECONDS)

    def _scheduled(self, rate: tf.Tensor) -> tf.Tensor:
        """`StepResult`'s fields and the wait for input, as one float64 tensor for one message."""
        result = self._step(rate)._replace(worker=self._inputs.worker())
        made = {name: value for name, value in result._asdict().items() if value is not None}
        made["waited"] = self._inputs.waited
        self._fields = tf.nest.map_structure(lambda scalar: tf.TensorSpec([], scalar.dtype), made)
        return tf.stack([tf.cast(scalar, tf.float64) for scalar in tf.nest.flatten(made)])

    def _draw_seed(self, tower: int, begun: tf.Tensor | None) -> tf.Tensor:
        del tower
        assert begun is not None
        return tf.stack([self._config.seed + self._inputs.worker(), begun])
