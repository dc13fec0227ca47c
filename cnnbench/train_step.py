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

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.accuracy import top_hits
from cnnbench.data.source import InputSource, TowerBatch
from cnnbench.loss_scale import Factor, LossScale, scaled, unscaled
from cnnbench.models.graph import DataFormat, Forward, Moments, Reader, forward
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec, VariableSpec
from cnnbench.moving_averages import update_moving_averages
from cnnbench.optimizers import Optimizer
from cnnbench.variable_mgr import tower_variable
from cnnbench.variable_mgr.base import GradientPairs, LossScaleLike, VariableMgr
from cnnbench.variable_mgr.gradients import Gradient
from cnnbench.weight_decay import WeightDecay, WeightLosses


@dataclass(frozen=True)
class StepConfig:
    """The numbers and policies of a step.

    Attributes:
      data_format: "NHWC" or "NCHW".
      compute_dtype: "float32", "bfloat16" or "float16"; weights, batch norm, loss
        and weight decay are float32 whatever it is.
      weight_decay: factor of the L2 loss, 0 for none.
      gradient_clip: bound c of the elementwise clipping to [-c, c], or None.
      gradient_reduction: "mean" or "sum" over towers.
      bn_stats: "first" or "mean".
      report_total_loss: whether the reported loss includes the L2 loss.
      accuracy: whether top-1 and top-5 accuracies are computed too.
      forward_only: only logits are computed; in place of the loss stands their mean.
      xla_compile: compile each tower's forward and backward pass with XLA.
      seed: of dropout.
    """

    data_format: DataFormat = "NHWC"
    compute_dtype: str = "float32"
    weight_decay: float = 0.0
    gradient_clip: float | None = None
    gradient_reduction: str = "mean"
    bn_stats: str = "first"
    report_total_loss: bool = True
    accuracy: bool = False
    forward_only: bool = False
    xla_compile: bool = False
    seed: int = 0


class StepResult(NamedTuple):
    """Scalars of one step over all towers.

    Attributes:
      loss: float32.
      top_1, top_5: float32 accuracies; None unless asked for.
      skipped: bool, whether an update was left out because its gradients were not
        finite; None where updates are not conditional.
    """

    loss: tf.Tensor
    top_1: tf.Tensor | None
    top_5: tf.Tensor | None
    skipped: tf.Tensor | None = None


class _Updates(NamedTuple):
    """What a step changes: the ops, and `StepResult.skipped`."""

    ops: list[Any]
    skipped: tf.Tensor | None


class _Tower(NamedTuple):
    """What one tower hands on: gradients in the order of the declared variables."""

    gradients: list[Gradient]
    loss: tf.Tensor
    moments: tuple[Moments, ...]
    top_1: tf.Tensor | None
    top_5: tf.Tensor | None


class TrainStep:
    """Builds and runs the step of one model under one variable manager.

    Args:
      model, spec: the network and its declaration.
      manager: holds the variables; `create_variables` has been called.
      optimizer: its slots have been created; None with `forward_only`.
      inputs: where batches come from.
      config: see StepConfig.
      loss_scale: factor on the loss; decides about steps that overflow.
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
    ) -> None:
        self._model = model
        self._spec = spec
        self._manager = manager
        self._optimizer = optimizer
        self._inputs = inputs
        self._config = config
        self._devices = manager.get_devices()
        self._trainables = [v for v in spec.variables if v.trainable]
        self._decay = WeightDecay(
            manager, self._trainables, config.weight_decay, config.gradient_reduction
        )
        self._loss_scale = loss_scale
        self._learning_rates: dict[str, tf.Variable] = {}
        self._learning_rate = 0.0
        # Made here and not while tracing: a function that creates variables is traced twice.
        copies = [
            copy
            for tower in range(len(self._devices))
            for copy in manager.trainable_variables_on_device(tower)
        ]
        for device in dict.fromkeys(copy.device for copy in copies):
            self._add_learning_rate(device)
        with tf.device(self._devices[0]):
            self._counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_done")
        self._function: Any = None

    def build(self) -> None:
        """Traces the step (seconds for a deep network); nothing runs yet."""
        traced = tf.function(self._step, autograph=False)
        self._function = traced.get_concrete_function(*self._inputs.signature)

    @property
    def loss_scale(self) -> LossScale:
        """The factor on the loss, whose state belongs to the run's."""
        return self._loss_scale

    @property
    def graph(self) -> tf.Graph:
        """The traced step, for tests that look at the placement of its ops."""
        return self._function.graph

    @property
    def function(self) -> Any:
        """The traced step: the concrete function itself, without any harness."""
        return self._function

    def set_learning_rate(self, rate: float) -> None:
        """Sets the rate of the next steps; costs nothing when it has not changed."""
        if rate != self._learning_rate:
            for variable in self._learning_rates.values():
                variable.assign(rate)
            self._learning_rate = rate

    def __call__(self) -> StepResult:
        """Fetches one batch per tower and launches one step."""
        return StepResult(*self._function(*self._inputs.next()))

    def _step(self, *batches: TowerBatch) -> tuple[tf.Tensor | None, ...]:
        factor = None if self._config.forward_only else self._loss_scale.factor()
        towers = [self._tower(tower, batches, factor) for tower in range(len(self._devices))]
        if self._config.forward_only:
            return self._result(towers, {}, _Updates([tower.loss for tower in towers], None))
        report = self._config.report_total_loss
        weight_losses = self._decay.losses() if report else {}
        updates = self._update(towers, weight_losses)
        with tf.device(self._devices[0]):
            updates.ops.append(self._counter.assign_add(1, read_value=False))
        return self._result(towers, weight_losses, updates)

    def _tower(self, tower: int, batches: Sequence[TowerBatch], factor: Factor) -> _Tower:
        with tf.device(self._devices[tower]), tf.name_scope(f"tower_{tower}"):
            images, labels, _ = self._inputs.of_tower(tower, batches)
            seed = tf.stack([tf.constant(self._config.seed + tower, tf.int64), self._counter])
            if self._config.xla_compile:
                return self._compiled_tower(tower, images, labels, seed, factor)

            def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                return self._manager.read(tower, spec.name, dtype)

            return self._forward_backward(read, images, labels, seed, factor)

    def _compiled_tower(
        self,
        tower: int,
        images: tf.Tensor,
        labels: tf.Tensor,
        seed: tf.Tensor,
        factor: Factor,
    ) -> _Tower:
        """The tower as one XLA computation, with the variables read outside.

        A variable may live on another device than the tower, which a compiled
        computation cannot reach; its value can be handed in from anywhere.
        """
        values = {
            name: self._manager.read(tower, name, dtype)
            for name, dtype in self._dtypes_read(images).items()
        }
        moments: list[Moments] = []

        @tf.function(autograph=False, jit_compile=True)
        def compiled(
            values: dict[str, tf.Tensor],
            images: tf.Tensor,
            labels: tf.Tensor,
            seed: tf.Tensor,
            factor: Factor,
        ) -> tuple[Any, ...]:
            result = self._forward_backward(
                lambda spec, dtype: values[spec.name], images, labels, seed, factor
            )
            moments[:] = result.moments
            statistics = [(m.batch_mean, m.batch_variance) for m in result.moments]
            return result.gradients, result.loss, statistics, result.top_1, result.top_5

        gradients, loss, statistics, top_1, top_5 = compiled(values, images, labels, seed, factor)
        outside = tuple(
            dataclasses.replace(m, batch_mean=mean, batch_variance=variance)
            for m, (mean, variance) in zip(moments, statistics, strict=True)
        )
        return _Tower(list(gradients), loss, outside, top_1, top_5)

    def _dtypes_read(self, images: tf.Tensor) -> dict[str, tf.DType]:
        """Which variable the network reads in which dtype, from a trace that is thrown away."""
        dtypes: dict[str, tf.DType] = {}

        def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
            dtypes[spec.name] = dtype
            return tf.zeros(spec.shape, dtype)

        with tf.Graph().as_default():
            self._forward(
                read,
                tf.zeros(images.shape, images.dtype),
                tf.zeros([2], tf.int64),
            )
        return dtypes

    def _forward(self, read: Reader, images: tf.Tensor, seed: tf.Tensor) -> Forward:
        return forward(
            self._model,
            self._spec.num_classes,
            images,
            read,
            training=not self._config.forward_only,
            data_format=self._config.data_format,
            compute_dtype=tf.as_dtype(self._config.compute_dtype),
            seed=seed,
            on_cpu="device:CPU:" in self._devices[0],
        )

    def _forward_backward(
        self,
        read: Reader,
        images: tf.Tensor,
        labels: tf.Tensor,
        seed: tf.Tensor,
        factor: Factor,
    ) -> _Tower:
        config = self._config
        if config.forward_only:
            logits = self._forward(read, images, seed).logits
            # No loss is computed; a value that needs every logit keeps them all alive.
            return _Tower([], tf.reduce_mean(logits), (), *self._accuracies(logits, labels))
        values: dict[str, tf.Tensor] = {}
        with tf.GradientTape(watch_accessed_variables=False) as tape:

            def read_and_watch(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                if spec.name not in values:
                    values[spec.name] = read(spec, dtype)
                    if spec.trainable:
                        tape.watch(values[spec.name])
                return values[spec.name]

            made = self._forward(read_and_watch, images, seed)
            loss = tf.reduce_mean(self._model.loss(made.logits, labels))
            target = scaled(loss, factor)
        sources = [values[v.name] for v in self._trainables if v.name in values]
        found = iter(tape.gradient(target, sources))
        gradients = [next(found) if v.name in values else None for v in self._trainables]
        return _Tower(
            unscaled(gradients, factor),
            loss,
            made.moments,
            *self._accuracies(made.logits, labels),
        )

    def _accuracies(
        self, logits: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        if not self._config.accuracy:
            return None, None
        top_1, top_5 = top_hits(logits, labels)
        return tf.reduce_mean(top_1), tf.reduce_mean(top_5)

    def _update(self, towers: Sequence[_Tower], weight_losses: WeightLosses) -> _Updates:
        """Everything that changes the state of the model and of its optimizer."""
        manager = self._manager
        device_grads = [
            [
                (gradient, manager.variable(t, spec.name))
                for gradient, spec in zip(tower.gradients, self._trainables, strict=True)
            ]
            for t, tower in enumerate(towers)
        ]
        devices, state = manager.preprocess_device_grads(self._decay.before_reduction(device_grads))
        reduced = []
        for index, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f"apply_{index}"):
                reduced.append(manager.get_gradients_to_apply(index, state))
        verdict = self._loss_scale.judge(
            [[gradient for gradient, _ in pairs] for pairs in reduced],
            together=manager.replicas_in_sync,
        )
        ops = list(verdict.updates)
        for index, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f"apply_{index}"):
                ops += self._apply(reduced[index], verdict.guards[index], device, weight_losses)
        moments = [tower.moments for tower in towers]
        ops += update_moving_averages(manager, moments, self._config.bn_stats, verdict.guards)
        return _Updates(ops, verdict.skipped)

    def _apply(
        self,
        reduced: GradientPairs,
        guard: LossScaleLike,
        device: str,
        weight_losses: WeightLosses,
    ) -> list[Any]:
        assert self._optimizer is not None
        pairs = []
        for gradient, variable in reduced:
            complete = self._decay.after_reduction(gradient, variable, weight_losses)
            pairs.append((self._clipped(complete, variable), variable))
        return self._manager.append_apply_gradients(
            self._optimizer,
            pairs,
            guard,
            device,
            learning_rate=self._learning_rate_on(device),
        )

    def _learning_rate_on(self, device: str) -> tf.Tensor:
        if device not in self._learning_rates:  # it holds none of the variables it updates
            with tf.init_scope():
                self._add_learning_rate(device)
        return tower_variable.read(self._learning_rates[device])

    def _add_learning_rate(self, device: str) -> None:
        with tf.device(device):
            self._learning_rates[device] = tf.Variable(
                self._learning_rate, trainable=False, name="learning_rate"
            )

    def _clipped(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        bound = self._config.gradient_clip
        if bound is None:
            return gradient
        with tf.device(variable.device):
            return tf.clip_by_value(gradient, -bound, bound)

    def _result(
        self, towers: Sequence[_Tower], weight_losses: WeightLosses, updates: _Updates
    ) -> tuple[tf.Tensor | None, ...]:
        with tf.device(self._devices[0]), tf.name_scope("result"):
            loss = _mean([tower.loss for tower in towers])
            if weight_losses:
                loss = loss + self._decay.total(weight_losses)
            top_1 = _mean([tower.top_1 for tower in towers])
            top_5 = _mean([tower.top_5 for tower in towers])
            with tf.control_dependencies(updates.ops):
                return tf.identity(loss), top_1, top_5, updates.skipped


def _mean(values: Sequence[tf.Tensor | None]) -> tf.Tensor | None:
    present = [value for value in values if value is not None]
    if len(present) < 2:
        return present[0] if present else None
    return tf.add_n(present) / float(len(present))
