"""One tower of a step: forward pass, loss, gradients and accuracy on its device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.models.graph import DataFormat, Forward, Moments, Reader, forward
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec, VariableSpec
from cnnbench.step.loss_scale import Factor, scaled
from cnnbench.variable_mgr.gradients import Gradient


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
      label_smoothing: share of every label that is spread over all classes, 0 for none.
      report_total_loss: whether the reported loss includes the L2 loss.
      accuracy: whether top-1 and top-5 accuracies are computed too.
      forward_only: only logits are computed; in place of the loss stands their mean.
      xla_compile: compile each tower's forward and backward pass with XLA.
      seed: of dropout.
      training_steps: from the first step of the first run to the end of training, for layers
        that change on the way; 0 if training counts as over.
    """

    data_format: DataFormat = "NHWC"
    compute_dtype: str = "float32"
    weight_decay: float = 0.0
    gradient_clip: float | None = None
    gradient_reduction: str = "mean"
    bn_stats: str = "first"
    label_smoothing: float = 0.0
    report_total_loss: bool = True
    accuracy: bool = False
    forward_only: bool = False
    xla_compile: bool = False
    seed: int = 0
    training_steps: int = 0


class TowerResult(NamedTuple):
    """Output of one tower.

    Attributes:
      gradients: of the scaled loss without its L2 term, in the order of the trainable
        variables; None where the loss does not depend on one. Empty in forward-only runs.
      loss: float32 scalar, the mean over the tower's batch.
      moments: of the batch-norm layers.
      top_1, top_5: accuracies, None unless asked for.
    """

    gradients: list[Gradient]
    loss: tf.Tensor
    moments: tuple[Moments, ...]
    top_1: tf.Tensor | None
    top_5: tf.Tensor | None


class Tower:
    """Makes the graph of one tower; changes no variable.

    Args:
      model, spec: the network and its declaration.
      config: see StepConfig.
      device: where the tower is.
    """

    def __init__(self, model: Model, spec: ModelSpec, config: StepConfig, device: str) -> None:
        self._model = model
        self._spec = spec
        self._trainables = [v for v in spec.variables if v.trainable]
        self._config = config
        self._device = device

    def __call__(
        self,
        read: Reader,
        images: tf.Tensor,
        labels: tf.Tensor,
        seed: tf.Tensor,
        factor: Factor,
    ) -> TowerResult:
        """Call it inside the traced step, under the tower's device.

        Args:
          read: returns the tower's value of a variable in the dtype asked for.
          images: [batch, height, width, channels].
          labels: int64 [batch].
          seed: int64 [2] of dropout, another one in each step.
          factor: loss scale; the gradients handed on have it.
        """
        if not self._config.xla_compile:
            return self._forward_backward(read, images, labels, seed, factor)
        # Variables are read outside: one may live on another device than the tower, which a
        # compiled computation cannot reach; its value can be handed in from anywhere.
        values = {spec.name: read(spec, dtype) for spec, dtype in self._dtypes_read(images).items()}
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
        return TowerResult(list(gradients), loss, outside, top_1, top_5)

    def _dtypes_read(self, images: tf.Tensor) -> dict[VariableSpec, tf.DType]:
        """Which variable the network reads in which dtype, from a trace that is thrown away."""
        dtypes: dict[VariableSpec, tf.DType] = {}

        def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
            dtypes[spec] = dtype
            return tf.zeros(spec.shape, dtype)

        with tf.Graph().as_default():
            self._forward(read, tf.zeros(images.shape, images.dtype), tf.zeros([2], tf.int64))
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
            training_steps=self._config.training_steps,
            on_cpu="device:CPU:" in self._device,
        )

    def _forward_backward(
        self,
        read: Reader,
        images: tf.Tensor,
        labels: tf.Tensor,
        seed: tf.Tensor,
        factor: Factor,
    ) -> TowerResult:
        config = self._config
        if config.forward_only:
            logits = self._forward(read, images, seed).logits
            # No loss is computed; a value that needs every logit keeps them all alive.
            return TowerResult([], tf.reduce_mean(logits), (), *self._accuracies(logits, labels))
        values: dict[str, tf.Tensor] = {}
        with tf.GradientTape(watch_accessed_variables=False) as tape:

            def read_and_watch(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                if spec.name not in values:
                    values[spec.name] = read(spec, dtype)
                    if spec.trainable:
                        tape.watch(values[spec.name])
                return values[spec.name]

            made = self._forward(read_and_watch, images, seed)
            loss = tf.reduce_mean(self._losses(made.logits, labels))
            target = scaled(loss, factor)
        sources = [values[v.name] for v in self._trainables if v.name in values]
        found = iter(tape.gradient(target, sources))
        gradients = [next(found) if v.name in values else None for v in self._trainables]
        accuracies = self._accuracies(made.logits, labels)
        return TowerResult(gradients, loss, made.moments, *accuracies)

    def _losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Loss per example, against labels smoothed as in arXiv:1512.00567."""
        losses = self._model.loss(logits, labels)
        share = self._config.label_smoothing
        if not share:
            return losses
        # The cross entropy is linear in the labels: one part is that of even labels.
        even = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
        return losses * (1.0 - share) + even * share

    def _accuracies(
        self, logits: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        if not self._config.accuracy:
            return None, None
        top_1, top_5 = top_hits(logits, labels)
        return tf.reduce_mean(top_1), tf.reduce_mean(top_5)


def top_hits(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether the label is the largest logit, and whether it is among the largest five.

    Args:
      logits: float32 [n, classes].
      labels: integers [n].

    Returns:
      Two float32 tensors [n] of zeros and ones. With fewer than five classes, the second
      is all ones but for logits that are not finite.
    """
    among = min(5, int(logits.shape[1]))
    return (
        tf.cast(tf.math.in_top_k(labels, logits, 1), tf.float32),
        tf.cast(tf.math.in_top_k(labels, logits, among), tf.float32),
    )
