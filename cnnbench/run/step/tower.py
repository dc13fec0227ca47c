"""One tower of a step: forward pass, loss, gradients and accuracy on its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.base.jobs.devices import is_cpu
from cnnbench.models.batch_norm import Moments
from cnnbench.models.graph import DataFormat, GraphNetwork, Reader
from cnnbench.models.int8 import Calibration, Int8Network, calibrate
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec, VariableSpec
from cnnbench.plan.update_plan import UpdatePlan
from cnnbench.run.step.batch_norm_stats import over_towers
from cnnbench.run.step.loss_scale import Factor
from cnnbench.variable_mgr.gradients import Gradient
from cnnbench.variable_mgr.worker_group import WorkerGroup


@dataclass(frozen=True)
class StepConfig:
    """Constants and policies of a step.

    Attributes:
      host: full string of the CPU of the process that calls the step.
      compute_dtype: "float32", "bfloat16" or "float16"; weights, batch norm, loss and weight decay
        are always float32.
      bn_stats: "first", "mean" or "sync".
      label_smoothing: share of every label that is spread over all classes.
      report_total_loss: whether the reported loss includes the L2 loss.
      forward_only: only outputs are computed; their mean replaces the loss.
      calibration: examples, as the model takes them, for the ranges of 8-bit integers (of a frozen
        run, see `cnnbench.models.int8`); None to compute in `compute_dtype` alone.
      frozen: the values of the variables when the step is traced are constants of the graph (of a
        forward-only run).
      first_tower: number of this process's first tower in the job, on which draws depend.
      training_steps: from the first step of the first run to the end of training, for layers that
        change on the way; 0 if training counts as over.
    """

    host: str = "/device:CPU:0"
    data_format: DataFormat = "NHWC"
    compute_dtype: str = "float32"
    update: UpdatePlan = field(default_factory=UpdatePlan)
    bn_stats: str = "first"
    label_smoothing: float = 0.0
    report_total_loss: bool = True
    metrics: bool = False
    forward_only: bool = False
    calibration: Any = None
    frozen: bool = False
    xla_compile: bool = False
    seed: int = 0
    first_tower: int = 0
    training_steps: int = 0

    @property
    def synchronises(self) -> bool:
        """Whether towers exchange moments in batch-norm layers."""
        return self.bn_stats == "sync" and not self.forward_only


class TowerResult(NamedTuple):
    """Output of one tower.

    Attributes:
      gradients: gradients of the scaled loss without its L2 term, in the order of trainable
        variables; None where the loss does not depend on one. Empty in forward-only runs.
      loss: float32 scalar, the mean over the tower's batch.
      metrics: means over the tower's batch; empty unless asked for.
    """

    gradients: list[Gradient]
    loss: tf.Tensor
    moments: tuple[Moments, ...]
    metrics: dict[str, tf.Tensor]


class Tower:
    """Builds the graph of one tower; changes no variable.

    Its batch norm synchronises with the towers of its own step and of `workers`.
    """

    def __init__(
        self,
        model: Model,
        spec: ModelSpec,
        config: StepConfig,
        device: str,
        workers: WorkerGroup | None,
    ) -> None:
        self._model = model
        self._spec = spec
        self._trainables = [v for v in spec.variables if v.trainable]
        self._config = config
        self._device = device
        self._synchronise = partial(over_towers, workers=workers) if config.synchronises else None
        self.calibration: Calibration | None = None

    def __call__(
        self,
        read: Reader,
        features: Any,
        labels: Any,
        seed: tf.Tensor,
        factor: Factor,
    ) -> TowerResult:
        """Builds the tower; to be called inside the traced step, under the tower's device.

        Args:
          read: returns the tower's value of a variable in the dtype asked for.
          seed: int64 [2] of dropout, another one in each step.
          factor: loss scale; the returned gradients have it.
        """
        if not self._config.xla_compile:
            return self._forward_backward(read, features, labels, seed, factor)
        # Variables are read outside: one may live on another device than the tower, which a
        # compiled computation cannot reach; its value can be handed in from anywhere.
        # Constants are made inside, for the compiler to fold.
        dtypes = {} if self._config.frozen else self._dtypes_read(features)
        values = {spec.name: read(spec, dtype) for spec, dtype in dtypes.items()}
        moments: list[Moments] = []

        @tf.function(autograph=False, jit_compile=True)
        def compiled(
            values: dict[str, tf.Tensor],
            features: Any,
            labels: Any,
            seed: tf.Tensor,
            factor: Factor,
        ) -> tuple[Any, ...]:
            handed_in = read if self._config.frozen else lambda spec, dtype: values[spec.name]
            result = self._forward_backward(handed_in, features, labels, seed, factor)
            moments[:] = result.moments
            statistics = [(m.batch_mean, m.batch_variance) for m in result.moments]
            return result.gradients, result.loss, statistics, result.metrics

        gradients, loss, statistics, metrics = compiled(values, features, labels, seed, factor)
        outside = tuple(
            m._replace(batch_mean=mean, batch_variance=variance)
            for m, (mean, variance) in zip(moments, statistics, strict=True)
        )
        return TowerResult(list(gradients), loss, outside, metrics)

    def _dtypes_read(self, features: Any) -> dict[VariableSpec, tf.DType]:
        """Dtypes in which the network reads its variables, from a trace that is discarded."""
        dtypes: dict[VariableSpec, tf.DType] = {}

        def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
            dtypes[spec] = dtype
            return tf.zeros(spec.shape, dtype)

        with tf.Graph().as_default():
            like = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), features)
            self._network(read, tf.zeros([2], tf.int64)).forward(like)
        return dtypes

    def _network(self, read: Reader, seed: tf.Tensor) -> GraphNetwork:
        config = self._config
        make: Callable[..., GraphNetwork] = GraphNetwork
        if config.calibration is not None:
            with tf.init_scope(), tf.device(self._device):  # before tracing, which needs the ranges
                self.calibration = calibrate(
                    self._model, self._spec.num_classes, config.calibration, read
                )
            make = partial(Int8Network, calibration=self.calibration)
        return make(
            self._model,
            self._spec.num_classes,
            read,
            training=not config.forward_only,
            data_format=config.data_format,
            compute_dtype=config.compute_dtype,
            seed=seed,
            training_steps=config.training_steps,
            on_cpu=is_cpu(self._device),
            synchronise=self._synchronise,
            fold_batch_norm=config.forward_only,
        )

    def _forward_backward(
        self,
        read: Reader,
        features: Any,
        labels: Any,
        seed: tf.Tensor,
        factor: Factor,
    ) -> TowerResult:
        config = self._config
        if config.forward_only:
            outputs = self._network(read, seed).forward(features)
            # No loss is computed; a value that needs every output keeps them all alive.
            means = [tf.reduce_mean(tf.cast(x, tf.float32)) for x in tf.nest.flatten(outputs)]
            loss = means[0] if len(means) == 1 else tf.add_n(means)
            return TowerResult([], loss, (), self._metrics(outputs, labels))
        values: dict[str, tf.Tensor] = {}
        with tf.GradientTape(watch_accessed_variables=False) as tape:

            def read_and_watch(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                if spec.name not in values:
                    values[spec.name] = read(spec, dtype)
                    if spec.trainable:
                        tape.watch(values[spec.name])
                return values[spec.name]

            network = self._network(read_and_watch, seed)
            outputs = network.forward(features)
            loss = tf.reduce_mean(self._losses(outputs, labels))
            for head, weight in network.auxiliaries:
                loss += weight * tf.reduce_mean(self._losses(head, labels))
            target = loss if factor is None else loss * factor
        sources = [values[v.name] for v in self._trainables if v.name in values]
        found = iter(tape.gradient(target, sources))
        gradients = [next(found) if v.name in values else None for v in self._trainables]
        moments = tuple(network.moments)
        return TowerResult(gradients, loss, moments, self._metrics(outputs, labels))

    def _losses(self, outputs: Any, labels: Any) -> tf.Tensor:
        """Loss per example, against labels smoothed as in arXiv:1512.00567."""
        losses = self._model.loss(outputs, labels)
        share = self._config.label_smoothing
        if not share:
            return losses
        # The cross entropy is linear in the labels: one part is that of even labels.
        even = tf.reduce_logsumexp(outputs, axis=-1) - tf.reduce_mean(outputs, axis=-1)
        return losses * (1.0 - share) + even * share

    def _metrics(self, outputs: Any, labels: Any) -> dict[str, tf.Tensor]:
        if not self._config.metrics:
            return {}
        columns = self._model.metrics(outputs, labels)
        return {name: tf.reduce_mean(columns[name]) for name in self._model.metric_names}
