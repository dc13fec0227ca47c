"""One training step of all towers as a single traced function.

    for each tower, on its device:   forward, loss, gradients
    manager:                         reduce the gradients over the towers
    loss scale:                      skip the updates below if a gradient is not finite
    for each device with variables:  weight decay, clipping, optimizer update
    tower 0 (policy --bn_stats):     moving averages of batch normalisation

The returned loss has a control dependency on every update, so the step is over when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.base.jobs.devices import is_cpu
from cnnbench.data.copies import ReadEvents, ScalarReader
from cnnbench.data.source import InputSource, TowerBatch
from cnnbench.models.int8 import Calibration
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec, VariableSpec
from cnnbench.run.step.copied_tower import CopiedTowers
from cnnbench.run.step.loss_scale import Factor, LossScale, inverse_of, unscaled
from cnnbench.run.step.optimizers import Optimizer
from cnnbench.run.step.tower import StepConfig, Tower, TowerResult
from cnnbench.run.step.traced import TracedFunction
from cnnbench.run.step.update import UpdateCounter, Updater, signals
from cnnbench.variable_mgr import gradients, tower_variable
from cnnbench.variable_mgr.base import VariableMgr

RATE = tf.TensorSpec([], tf.float32, name="learning_rate")
"""The first argument of a traced step."""


class StepResult(NamedTuple):
    """Scalars of one step over all towers.

    Attributes:
      loss: float32.
      metrics: those of the model by name, float32; empty unless asked for.
      skipped: bool, whether an update was left out because its gradients were not finite; None
        where updates are not conditional.
      stop: bool, whether some worker asked for the end of the run before this step; None where one
        step has all towers.
      staleness: int64, updates by others since the variables were read; None where updates are not
        counted.
      worker: int64, number of the worker that made the update; None where it is known anyway.
    """

    loss: tf.Tensor
    metrics: dict[str, tf.Tensor]
    skipped: tf.Tensor | None = None
    stop: tf.Tensor | None = None
    staleness: tf.Tensor | None = None
    worker: tf.Tensor | None = None


class TrainStep:
    """Builds and runs the step of one model under one variable manager.

    The slots of `optimizer` (None with `forward_only`) have been created; `counter` counts the
    updates where other steps update the same variables. `function` takes the learning rate
    (float32) and the batches; `notices` are lines for the user.
    """

    _counts_steps = True
    """Whether random draws depend on the number of steps of this object."""

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
        self._inputs = inputs
        self._config = config
        self._devices = manager.get_devices()
        self._towers = [
            Tower(model, spec, config, device, manager.workers) for device in self._devices
        ]
        self._trainables = [v for v in spec.variables if v.trainable]
        self.loss_scale = loss_scale
        self._updates_counter = counter
        self._rate_tensors: dict[float, tf.Tensor] = {}
        if self._counts_steps:
            # Not while tracing: a function that creates variables is traced twice.
            with tf.device(self._devices[0]):
                self._counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_done")
        self._update: Updater | None = None
        if optimizer is not None:
            number = self._counter if self._counts_steps else None
            made = (manager, self._trainables, optimizer, loss_scale, config, number)
            self._update = Updater(*made)
        self._stop: tf.Variable | None = None
        if manager.workers is not None:
            with tf.device(self._devices[0]):
                self._stop = tf.Variable(0.0, trainable=False, name="stop")
        self._keeps_batches = False
        self._batches: Any = None
        self.notices: list[str] = []
        self.function = self._traced()

    def _traced(self) -> TracedFunction:
        """Traces the step (seconds for a deep network); nothing runs yet."""
        made = TracedFunction("the step", self._step, (RATE, *self._inputs.signature))
        device = self._devices[0]  # see `_result`
        self._reader: ScalarReader | None = None
        if not is_cpu(device):
            outputs = made.concrete.structured_outputs
            self._reader = ScalarReader(device, self._config.host, outputs)
        return made

    @property
    def reduction_operations(self) -> int | None:
        """See `Updater.reduction_operations`; None with `forward_only`."""
        return None if self._update is None else self._update.reduction_operations

    @property
    def input_wait_seconds(self) -> float:
        """Total time spent waiting for batches."""
        return self._inputs.wait_seconds

    @property
    def graph(self) -> tf.Graph:
        """The traced graph."""
        return self.function.concrete.graph

    def request_stop(self) -> None:
        """Lets the next step tell all workers that the run ends after it."""
        assert self._stop is not None
        self._stop.assign(1.0)

    def resume(self, global_step: int) -> None:
        """Sets the number of steps done, on which random draws depend."""
        self._counter.assign(global_step)

    def __call__(self, learning_rate: float) -> StepResult:
        """Fetches one batch per tower and launches one step."""
        batches = self._inputs.next()
        if self._keeps_batches:
            self._batches = batches
        result: StepResult = self.function(self._rate_tensor(learning_rate), *batches)
        return result

    def on_host(self, result: StepResult, events: ReadEvents) -> StepResult:
        """The result in host memory: read by a `ScalarReader` from a GPU, unchanged from a CPU."""
        return result if self._reader is None else self._reader(result, events)

    def last_gradients(self) -> Callable[[], tuple[dict[str, tf.Tensor], list[tf.Tensor]]]:
        """Traces a function; from now on the last step's batches are kept for it.

        It returns the gradients of tower 0, where they exist, by canonical name, and the parts of
        its batch. They are computed again from the weights after the last step and the batch of
        that step, without weight decay and loss scale; nothing is updated.
        """
        self._keeps_batches = True
        name = "the gradients for summaries"
        traced = TracedFunction(name, self._tower_0, self._inputs.signature)
        return lambda: traced(*self._batches)

    def _rate_tensor(self, rate: float) -> tf.Tensor:
        """The rate of an update by reduced gradients; the same tensor for the same rate."""
        found = self._rate_tensors.get(rate)
        if found is None:
            with tf.device(self._config.host):
                found = tf.constant(rate * self._config.update.rate_factor, tf.float32)
            self._rate_tensors = {rate: found}
        return found

    def _step(self, rate: tf.Tensor, *batches: TowerBatch) -> StepResult:
        factor = None if self._config.forward_only else self.loss_scale.factor()
        begun = None if self._updates_counter is None else self._updates_counter.begin()
        # Towers that synchronise are built at the same time; frozen ones differ in constants.
        alone = len(self._towers) == 1 or self._config.synchronises or self._config.frozen
        copied = None if alone else CopiedTowers(self._towers[0], self.notices.append)
        towers = self._run_towers(lambda tower: self._tower(tower, batches, factor, begun, copied))
        sums = self._sums(towers)
        if self._config.forward_only:
            losses = [tower.loss for tower in towers]
            return self._result(towers, self._manager.add_up(sums), [], losses)
        report = self._config.report_total_loss
        assert self._update is not None
        weight_losses = self._update.weight_losses() if report else []
        updates, skipped, totals = self._update(towers, factor, sums, rate)
        if self._counts_steps:
            with tf.device(self._devices[0]):
                updates.append(self._counter.assign_add(1, read_value=False))
        staleness = None
        if self._updates_counter is not None:
            staleness = self._updates_counter.end(begun, updates)
            updates.append(staleness)
        result = self._result(towers, totals, weight_losses, updates)
        return result._replace(skipped=skipped, staleness=staleness)

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of the first tower's network, if it computes in 8-bit integers."""
        return self._towers[0].calibration

    def _draw_seed(self, tower: int, begun: tf.Tensor | None) -> tf.Tensor:
        """Seed of a tower and step, int64 [2]."""
        del begun  # used by steps with a shared counter of updates
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
        """Builds a tower's pass, which reads variables after `begun`, by `copied` if given.

        With staged variables, `ahead` includes the reads for the next step.
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
        factor = self.loss_scale.factor()

        def build(tower: int) -> TowerResult:
            return self._tower(tower, batches, factor, ahead=False)

        # Towers that synchronise can only be built together.
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

    def _sums(self, towers: Sequence[TowerResult]) -> list[tf.Tensor]:
        """Sums of loss and metrics over the towers of this step, then any request to stop."""
        columns = [[tower.loss for tower in towers]]
        columns += [[tower.metrics[name] for tower in towers] for name in towers[0].metrics]
        with tf.device(self._devices[0]), tf.name_scope("sums"):
            sums = [gradients.add_up(column) for column in columns]
            if self._stop is not None:
                sums.append(tower_variable.read(self._stop))
            return sums

    def _result(
        self,
        towers: Sequence[TowerResult],
        totals: Sequence[tf.Tensor],
        weight_losses: Sequence[tf.Tensor],
        updates: Sequence[Any],
    ) -> StepResult:
        """Means over the towers of the whole job, whose `_sums` are `totals`, after all updates."""
        with tf.device(self._devices[0]), tf.name_scope("means"):
            sums, stop = list(totals), None
            if self._stop is not None:
                stop = sums.pop() > 0.0
            count = self._manager.num_towers
            loss, *metrics = sums if count == 1 else [total / float(count) for total in sums]
        with tf.device(self._devices[0]), tf.name_scope("result"):
            if weight_losses:
                assert self._update is not None
                loss = loss + self._update.l2_loss(weight_losses)
            with tf.control_dependencies(signals(updates, self._devices[0])):
                by_name = dict(zip(towers[0].metrics, metrics, strict=True))
                return StepResult(tf.identity(loss), by_name, stop=stop)
