"""One training step of all towers as a single traced function.

    for each tower, on its device:   forward, loss, gradients
    manager:                         reduce the gradients over the towers
    loss scale:                      skip the updates below if a gradient is not finite
    for each device with variables:  weight decay, clipping, optimizer update
    tower 0 (policy --bn_stats):     moving averages of batch normalisation

The function returns the loss with a control dependency on every update, so
whoever has read the loss knows that the step is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.base.jobs.devices import cpu_of, is_cpu
from cnnbench.data.copies import copied_to
from cnnbench.data.source import InputSource, TowerBatch
from cnnbench.models.batch_norm import Moments
from cnnbench.models.int8 import Calibration
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec, VariableSpec
from cnnbench.run.step.batch_norm_stats import update_moving_averages
from cnnbench.run.step.copied_tower import CopiedTowers
from cnnbench.run.step.loss_scale import Factor, LossScale, inverse_of, unscaled
from cnnbench.run.step.optimizers import Optimizer
from cnnbench.run.step.readers import Readers, signals
from cnnbench.run.step.tower import StepConfig, Tower, TowerResult
from cnnbench.run.step.traced import TracedFunction
from cnnbench.run.step.update_counter import UpdateCounter
from cnnbench.run.step.weight_decay import WeightDecay, WeightLosses
from cnnbench.variable_mgr import gradients, tower_variable
from cnnbench.variable_mgr.base import GradientPairs, LossScaleLike, VariableMgr
from cnnbench.variable_mgr.gradients import Column, Gradient
from cnnbench.variable_mgr.kept import traced_graph

RATE = tf.TensorSpec([], tf.float32, name="learning_rate")
"""Of the first argument of a traced step."""


class StepResult(NamedTuple):
    """Scalars of one step over all towers.

    Attributes:
      loss: float32.
      metrics: those of the model by name, float32; empty unless asked for.
      skipped: bool, whether an update was left out because its gradients were not
        finite; None where updates are not conditional.
      stop: bool, whether some worker asked for the end of the run before this step; None
        where one step has all towers.
      staleness: int64, updates by others since the variables were read; None where updates
        are not counted.
      worker: int64, number of the worker that made the update; None where that is known anyway.
    """

    loss: tf.Tensor
    metrics: dict[str, tf.Tensor]
    skipped: tf.Tensor | None = None
    stop: tf.Tensor | None = None
    staleness: tf.Tensor | None = None
    worker: tf.Tensor | None = None


class _Means(NamedTuple):
    """Loss and metrics of a step over all towers of the job, and `StepResult.stop`."""

    loss: tf.Tensor
    metrics: dict[str, tf.Tensor]
    stop: tf.Tensor | None


class _Updates(NamedTuple):
    """What a step changes: the ops, `StepResult.skipped` and `StepResult.staleness`."""

    ops: list[Any]
    skipped: tf.Tensor | None
    staleness: tf.Tensor | None = None


class TrainStep:
    """Builds and runs the step of one model under one variable manager.

    Args:
      model, spec: the network and its declaration.
      manager: holds the variables; `create_variables` has been called.
      optimizer: its slots have been created; None with `forward_only`.
      inputs: where batches come from.
      config: see StepConfig.
      loss_scale: factor on the loss; decides about steps that overflow.
      counter: counts the updates where other steps update the same variables; otherwise None.

    Attributes:
      reduction_operations: that the manager added to the traced step between gradients and
        updates; None before `build` and with `forward_only`.
      notices: lines about how the step was built, for the user.
    """

    def __init__(
        self,
        model: Model,
        spec: ModelSpec,
        manager: VariableMgr,
        optimizer: Optimizer | None,
        inputs: InputSource,
        config: StepConfig,
        loss_scale: LossScale,
        counter: UpdateCounter | None = None,
    ) -> None:
        self._manager = manager
        self._optimizer = optimizer
        self._inputs = inputs
        self._config = config
        self._devices = manager.get_devices()
        self._towers = [
            Tower(model, spec, config, device, manager.workers) for device in self._devices
        ]
        self._trainables = [v for v in spec.variables if v.trainable]
        self._decay = WeightDecay(
            manager, self._trainables, config.weight_decay, config.gradient_reduction
        )
        if optimizer is not None and config.gradient_clip is None:
            self._decay.fold_into(optimizer.fold_decay)
        self._loss_scale = loss_scale
        self._updates_counter = counter
        self._rate_tensors: dict[float, tf.Tensor] = {}
        self._rate = self._rate_tensor(0.0)
        # Made here and not while tracing: a function that creates variables is traced twice.
        self._counter = self._make_counter()
        self._stop: tf.Variable | None = None
        if manager.workers is not None:
            with tf.device(self._devices[0]):
                self._stop = tf.Variable(0.0, trainable=False, name="stop")
        self._function: TracedFunction
        self._to_host: Callable[[StepResult], StepResult] | None = None
        self._gradients: TracedFunction | None = None
        self._batches: Any = None
        self.reduction_operations: int | None = None
        self.notices: list[str] = []

    def build(self) -> None:
        """Traces the step (seconds for a deep network); nothing runs yet."""
        signature = (RATE, *self._inputs.signature)
        self._function = TracedFunction("the step", self._step, signature)
        device = self._devices[0]  # see `_result`
        if not is_cpu(device):
            self._to_host = copied_to(cpu_of(device), self.function.structured_outputs)

    @property
    def loss_scale(self) -> LossScale:
        """The factor on the loss, whose state belongs to the run's."""
        return self._loss_scale

    @property
    def input_wait_seconds(self) -> float:
        """Total time spent waiting for batches."""
        return self._inputs.wait_seconds

    @property
    def graph(self) -> tf.Graph:
        """The traced step, for tests that look at the placement of its ops."""
        return self._function.concrete.graph

    @property
    def function(self) -> Any:
        """The traced step: the concrete function itself, without any harness.

        It takes the learning rate, a float32 scalar, and then the batches.
        """
        return self._function.concrete

    @property
    def traces(self) -> int:
        """How often the step has been traced."""
        return self._function.traces

    def set_learning_rate(self, rate: float) -> None:
        """Sets the rate of the next steps; costs nothing when it has not changed."""
        self._rate = self._rate_tensor(rate)

    def request_stop(self) -> None:
        """Lets the next step tell all workers that the run shall end after it."""
        assert self._stop is not None
        self._stop.assign(1.0)

    def resume(self, global_step: int) -> None:
        """Sets the number of steps done before the next one, which draws depend on."""
        self._counter.assign(global_step)

    def __call__(self) -> StepResult:
        """Fetches one batch per tower and launches one step."""
        batches = self._inputs.next()
        if self._gradients is not None:
            self._batches = batches
        result: StepResult = self._function(self._rate, *batches)
        return result

    def on_host(self, result: StepResult) -> StepResult:
        """The result in the memory of the host; waits for its step, but for none launched later."""
        return result if self._to_host is None else self._to_host(result)

    def build_gradients(self) -> None:
        """Traces `last_gradients`; from now on the batches of the last step are kept for it."""
        name = "the gradients for summaries"
        self._gradients = TracedFunction(name, self._tower_0, self._inputs.signature)

    def last_gradients(self) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Computes the gradients of tower 0 once more and updates nothing.

        They are of the weights that the last step has left, on the batch of that step, without
        weight decay and loss scale.

        Returns:
          Them by the variable's canonical name, those that exist, and the parts of the batch.
        """
        assert self._gradients is not None
        return self._gradients(*self._batches)  # type: ignore[no-any-return]

    def _rate_tensor(self, rate: float) -> tf.Tensor:
        """The rate of an update by the reduced gradients: the same tensor for the same rate."""
        found = self._rate_tensors.get(rate)
        if found is None:
            with tf.device(self._config.host):
                found = tf.constant(rate * self._config.rate_factor, tf.float32)
            self._rate_tensors = {rate: found}
        return found

    def _step(self, rate: tf.Tensor, *batches: TowerBatch) -> StepResult:
        factor = None if self._config.forward_only else self._loss_scale.factor()
        begun = None if self._updates_counter is None else self._updates_counter.begin()
        # Towers that meet are not made one after the other; frozen ones have other constants.
        alone = len(self._towers) == 1 or self._config.synchronises or self._config.frozen
        copied = None if alone else CopiedTowers(self._towers[0], self.notices.append)
        towers = self._run_towers(lambda tower: self._tower(tower, batches, factor, begun, copied))
        sums = self._sums(towers)
        if self._config.forward_only:
            losses = [tower.loss for tower in towers]
            means = self._means(towers, self._manager.add_up(sums))
            return self._result(means, {}, _Updates(losses, None))
        report = self._config.report_total_loss
        weight_losses = self._decay.losses() if report else {}
        updates, totals = self._update(towers, factor, sums, rate)
        means = self._means(towers, totals)
        updates.ops.extend(self._count_step())
        if self._updates_counter is not None:
            staleness = self._updates_counter.end(begun, updates.ops)
            updates = _Updates([*updates.ops, staleness], updates.skipped, staleness)
        return self._result(means, weight_losses, updates)

    @property
    def calibration(self) -> Calibration | None:
        """Of the first tower's network, if it computes in 8-bit integers."""
        return self._towers[0].calibration

    def _make_counter(self) -> tf.Variable:
        """Counts the steps done, of which draws depend."""
        with tf.device(self._devices[0]):
            return tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_done")

    def _count_step(self) -> list[Any]:
        with tf.device(self._devices[0]):
            return [self._counter.assign_add(1, read_value=False)]

    def _draw_seed(self, tower: int, begun: tf.Tensor | None) -> tf.Tensor:
        """Int64 [2], another one for each tower of the job and step."""
        del begun  # what was counted before the step, where several count together
        number = self._config.first_tower + tower
        return tf.stack([tf.constant(self._config.seed + number, tf.int64), self._counter])

    def _run_towers(self, build: Callable[[int], TowerResult]) -> list[TowerResult]:
        return self._manager.run_towers(build, meeting=self._config.synchronises)

    def _tower(
        self,
        tower: int,
        batches: Sequence[TowerBatch],
        factor: Factor,
        begun: tf.Tensor | None = None,
        copied: CopiedTowers[TowerResult] | None = None,
        *,
        ahead: bool = True,
    ) -> TowerResult:
        """One tower's pass, which reads variables after `begun`; one of those `copied`, if given.

        With staged variables `ahead` reads for the next step too.
        """
        with tf.device(self._devices[tower]), tf.name_scope(f"tower_{tower}"):
            features, labels, _ = self._inputs.of_tower(tower, batches)
            seed = self._draw_seed(tower, begun)

            def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                if self._config.frozen:
                    with tf.init_scope():
                        value = tf.cast(self._manager.variable(tower, spec.name), dtype).numpy()
                    return tf.constant(value, dtype)
                reader = self._manager.read_for_step if ahead else self._manager.read
                with tf.control_dependencies([] if begun is None else [begun]):
                    return reader(tower, spec.name, dtype)

            make = self._towers[tower] if copied is None else copied
            return make(read, features, labels, seed, factor)

    def _tower_0(self, *batches: TowerBatch) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        factor = self._loss_scale.factor()

        def build(tower: int) -> TowerResult:
            return self._tower(tower, batches, factor, ahead=False)

        # Towers that meet need one another.
        of_tower = self._run_towers(build)[0] if self._config.synchronises else build(0)
        found = of_tower.gradients
        with tf.device(self._devices[0]):
            inverse = inverse_of(factor)
            made = {
                spec.name: tf.convert_to_tensor(unscaled(gradient, inverse))
                for spec, gradient in zip(self._trainables, found, strict=True)
                if gradient is not None
            }
            parts = tf.nest.flatten(self._inputs.of_tower(0, batches))
            return made, [tf.identity(part) for part in parts if part is not None]

    def _update(
        self,
        towers: Sequence[TowerResult],
        factor: Factor,
        sums: Sequence[tf.Tensor],
        rate: tf.Tensor,
    ) -> tuple[_Updates, list[tf.Tensor]]:
        """Everything that changes the state of the model and of its optimizer.

        Returns:
          What it does, and these sums over the towers of the whole job.
        """
        manager = self._manager
        # Before the next step the factor may change; otherwise it stays on until the update,
        # so that what it keeps from vanishing reaches the other devices too.
        early, late = (factor, None) if manager.defers_gradients else (None, factor)
        columns = self._decay.before_reduction(self._columns(towers, early))
        graph = traced_graph()
        before = len(graph.get_operations())
        devices, state, totals = manager.reduce_together(columns, sums)
        self.reduction_operations = len(graph.get_operations()) - before
        reduced = []
        for index, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f"apply_{index}"):
                reduced.append(manager.get_gradients_to_apply(index, state))
        verdict = self._loss_scale.judge(
            [[gradient for gradient, _ in pairs] for pairs in reduced],
            together=manager.replicas_in_sync,
        )
        ops = list(verdict.updates)
        readers = Readers(towers[0].loss.graph)
        rates = self._rates(rate, devices)
        for index, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f"apply_{index}"):
                inverse = inverse_of(late)
                pairs = [(_unscaled_at_home(*pair, inverse), pair[1]) for pair in reduced[index]]
                ops += self._apply(pairs, verdict.guards[index], device, readers, rates[index])
        ops += manager.after_updates()
        moments = [tower.moments for tower in towers]
        guards = verdict.guards
        if manager.defers_gradients:
            # What was judged is of the step before, and the moments are of this one.
            guards = [self._loss_scale.guard(_statistics(moments))] * len(towers)
        ops += update_moving_averages(manager, moments, self._config.bn_stats, guards)
        return _Updates(ops, verdict.skipped), totals

    def _columns(self, towers: Sequence[TowerResult], factor: Factor) -> list[Column]:
        """The gradients by variable, without the loss scale."""
        inverses = gradients.on_devices(self._devices, inverse_of, [factor] * len(towers))
        columns = []
        by_variable = gradients.transposed([tower.gradients for tower in towers])
        for spec, of_towers in zip(self._trainables, by_variable, strict=True):
            pairs = list(zip(of_towers, inverses, strict=True))
            columns.append(
                Column(
                    gradients.on_devices(self._devices, lambda pair: unscaled(*pair), pairs),
                    [self._manager.variable(t, spec.name) for t in range(len(towers))],
                )
            )
        return columns

    def _apply(
        self,
        reduced: GradientPairs,
        guard: LossScaleLike,
        device: str,
        readers: Readers,
        rate: tf.Tensor,
    ) -> list[Any]:
        assert self._optimizer is not None
        pairs = []
        for gradient, variable in reduced:
            clipped = self._clipped(self._decay.after_reduction(gradient, variable), variable)
            with tf.device(variable.device):
                pairs.append((readers.before_update(variable, clipped), variable))
        return self._manager.append_apply_gradients(
            self._optimizer, pairs, guard, device, learning_rate=rate
        )

    def _rates(self, rate: tf.Tensor, devices: Sequence[str]) -> list[tf.Tensor]:
        """The learning rate for the updates on each device, sent once to every process."""
        host = self._config.host
        by_home = {host: _copy(host, rate)}
        for home in map(cpu_of, devices):
            if home not in by_home:
                by_home[home] = _copy(home, by_home[host])
        return [by_home[cpu_of(device)] for device in devices]

    def _clipped(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        bound = self._config.gradient_clip
        if bound is None:
            return gradient
        with tf.device(variable.device):
            return tf.clip_by_value(gradient, -bound, bound)

    def _sums(self, towers: Sequence[TowerResult]) -> list[tf.Tensor]:
        """Loss and metrics over the towers of this step, and the wish to stop if there is one."""
        columns = [[tower.loss for tower in towers]]
        columns += [[tower.metrics[name] for tower in towers] for name in towers[0].metrics]
        with tf.device(self._devices[0]), tf.name_scope("sums"):
            sums = [gradients.add_up(column) for column in columns]
            if self._stop is not None:
                sums.append(tower_variable.read(self._stop))
            return sums

    def _means(self, towers: Sequence[TowerResult], totals: Sequence[tf.Tensor]) -> _Means:
        """Of `_sums` over all towers of the job."""
        with tf.device(self._devices[0]), tf.name_scope("means"):
            sums, stop = list(totals), None
            if self._stop is not None:
                stop = sums.pop() > 0.0
            count = self._manager.num_towers
            loss, *metrics = sums if count == 1 else [total / float(count) for total in sums]
            return _Means(loss, dict(zip(towers[0].metrics, metrics, strict=True)), stop)

    def _result(self, means: _Means, weight_losses: WeightLosses, updates: _Updates) -> StepResult:
        with tf.device(self._devices[0]), tf.name_scope("result"):
            loss = means.loss
            if weight_losses:
                loss = loss + self._decay.total(weight_losses)
            with tf.control_dependencies(signals(updates.ops, self._devices[0])):
                return StepResult(
                    tf.identity(loss),
                    means.metrics,
                    updates.skipped,
                    means.stop,
                    updates.staleness,
                )


def _copy(device: str, tensor: tf.Tensor) -> tf.Tensor:
    with tf.device(device):
        return tf.identity(tensor)


def _unscaled_at_home(gradient: Gradient, variable: tf.Variable, inverse: Factor) -> Gradient:
    """`unscaled` on the variable's device, where the gradient is."""
    with tf.device(variable.device):
        return unscaled(gradient, inverse)


def _statistics(towers: Sequence[Sequence[Moments]]) -> list[tf.Tensor]:
    return [
        statistic
        for moments in towers
        for layer in moments
        for statistic in (layer.batch_mean, layer.batch_variance)
    ]
