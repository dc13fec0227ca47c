"""Gradient accumulation, for a step with several passes and one update."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.base.job import is_cpu
from cnnbench.plan import RunPlan
from cnnbench.run.step.batch_norm import update_moving_averages
from cnnbench.run.step.loss_scale import LossScale
from cnnbench.run.step.tower import TowerResult
from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.towers import read
from cnnbench.variable_mgr.tracing import run_untraced


class PassAccumulator:
    """Adds up the results of a step's passes, in float32 variables on the devices of the towers.

    The sums of gradients on CPUs keep their buffers during the whole run. Buffers that are
    allocated anew in each step would need more memory than the sums, because they would lie between
    the tensors of a pass, in the arenas of all threads.

    A network computes the moments of batch norm in each pass. The moving averages are updated with
    the moments of each pass, but are assigned together with the update, which may be skipped.
    """

    def __init__(self, plan: RunPlan, manager: VariableMgr, loss_scale: LossScale) -> None:
        self._plan = plan
        self._manager = manager
        self._trainables = [v for v in plan.network.spec.variables if v.trainable]
        self._loss_scale = loss_scale
        # Only a trace shows which gradients exist, so the first trace creates each tower's sums.
        self._sums: dict[int, list[tf.Variable]] = {}

    def add(self, results: Sequence[TowerResult]) -> None:
        """Adds the results of a pass to the sums.

        State without a moving average is assigned, too, if the results are finite.
        """
        added: list[tf.Tensor] = []
        for tower, result in enumerate(results):
            with tf.device(self._manager.get_devices()[tower]):
                terms = self._terms_and_factors(tower, result)
                added += [tensor for _, tensor in terms]
                for total, term in zip(self._sums_of(tower, terms), terms, strict=True):
                    self._add_term(total, *term)
        state = [[update for update in result.updates if not update.decay] for result in results]
        if state[0]:
            guards = [self._loss_scale.guard(added)] * len(results)
            update_moving_averages(self._manager, state, self._plan.params.bn_stats, guards)

    def add_last_pass(self, results: Sequence[TowerResult], rate: tf.Tensor) -> list[TowerResult]:
        """Adds the results of the last pass to the sums. Returns the results of the step.

        The results of towers on CPUs depend on operations that set the tower's sums to zero. For
        `rate`, see `clear`.
        """
        totals = []
        for tower, result in enumerate(results):
            device = self._manager.get_devices()[tower]
            with tf.device(device):
                zero = _make_zero(rate) if is_cpu(device) else None
                terms = self._terms_and_factors(tower, result)
                pairs = zip(self._sums_of(tower, terms), terms, strict=True)
                sums = [self._add_last_term(total, *term, zero) for total, term in pairs]
                totals.append(self._build_mean(result, sums))
        return totals

    def clear(self, rate: tf.Tensor, updates: Sequence[Any]) -> list[Any]:
        """Sets the sums on GPUs to zero after the `updates` of the step. Returns the operations.

        `rate` is a float32 scalar that is unknown when the step is traced, and not NaN.
        """
        operations = []
        for device, totals in zip(self._manager.get_devices(), self._sums.values(), strict=True):
            if is_cpu(device):
                continue
            with tf.device(device), tf.control_dependencies(updates):
                zero = _make_zero(rate)
                for total in totals:
                    operations.append(total.assign(tf.fill(total.shape, zero), read_value=False))
        return operations

    def _add_last_term(
        self, total: tf.Variable, factor: float, term: tf.Tensor, zero: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the sum of a step. With `zero`, also sets the variable of the sum to zero, in
        place.

        On an emulated GPU, this way needed more memory at the peak than `clear`.
        """
        if zero is None:
            with tf.control_dependencies([self._add_term(total, factor, term)]):
                return read(total)
        old = read(total)
        # The control dependency fixes the order of the additions; TensorFlow could change it
        # otherwise.
        with tf.control_dependencies([zero]):
            # TensorFlow can compute this in the buffer of `term`, so it needs no further memory.
            complete = (old if factor == 1.0 else factor * old) + term
        with tf.control_dependencies([total.assign(complete, read_value=False)]):
            # Nothing else uses the buffer of `old` any more, so TensorFlow can compute the zeros in
            # it.
            zeros = tf.math.multiply_no_nan(old, zero)
        with tf.control_dependencies([total.assign(zeros, read_value=False)]):
            return tf.identity(complete)

    @staticmethod
    def _add_term(total: tf.Variable, factor: float, term: tf.Tensor) -> Any:
        if factor == 1.0:
            return total.assign_add(term, read_value=False)
        return total.assign(factor * read(total) + term, read_value=False)

    def _terms_and_factors(self, tower: int, result: TowerResult) -> list[tuple[float, tf.Tensor]]:
        """Returns the terms that a pass adds to the sums, with the factors of the old sums."""
        pairs = zip(self._trainables, result.gradients, strict=True)
        dense = [
            gradients.to_dense(gradient, self._manager.variable(tower, spec.name))
            for spec, gradient in pairs
            if gradient is not None
        ]
        scalars = [result.loss, *result.metrics.values()]
        averages = [update for update in result.updates if update.decay]
        return [
            *((1.0, tensor) for tensor in (*dense, *scalars)),
            *((update.decay, (1.0 - update.decay) * update.value) for update in averages),
        ]

    def _sums_of(self, tower: int, terms: Sequence[tuple[float, tf.Tensor]]) -> list[tf.Variable]:
        if tower not in self._sums:
            device, shapes = self._manager.get_devices()[tower], [term.shape for _, term in terms]
            self._sums[tower] = run_untraced(partial(_make_sums, device, shapes))
        return self._sums[tower]

    def _build_mean(self, last: TowerResult, sums: Sequence[tf.Tensor]) -> TowerResult:
        """Builds a tower's result for the whole step, from the sums and its last pass."""
        values, passes = iter(sums), self._plan.params.gradient_accumulation_steps
        summed = [None if gradient is None else next(values) for gradient in last.gradients]
        loss, *metrics = (next(values) / float(passes) for _ in range(1 + len(last.metrics)))
        updates = []
        for update in last.updates:
            decay = update.decay**passes
            if update.decay:
                update = update._replace(value=next(values) / (1.0 - decay), decay=decay)
            updates.append(update)
        by_name = dict(zip(last.metrics, metrics, strict=True))
        return TowerResult(summed, loss, tuple(updates), by_name)


def _make_zero(rate: tf.Tensor) -> tf.Tensor:
    """Returns a float32 zero that is computed from `rate`, on the current device.

    From a constant zero, TensorFlow would make constants that are as large as the sums and are
    never freed.
    """
    return tf.cast(tf.math.is_nan(rate), tf.float32)


def _make_sums(device: str, shapes: Sequence[tf.TensorShape]) -> list[tf.Variable]:
    with tf.device(device):
        return [
            tf.Variable(tf.zeros(shape), trainable=False, name="sum_of_passes") for shape in shapes
        ]
