"""One tower of a step: forward pass, loss, gradients and metrics on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.base.job import is_cpu
from cnnbench.data.dataset import OTHER_LABEL, OWN_SHARE
from cnnbench.errors import UsageError
from cnnbench.models.elements import elements_of_role
from cnnbench.models.graph import GraphNetwork, Reader, StateUpdate
from cnnbench.models.model import plugin_location_prefix
from cnnbench.models.spec import VariableSpec
from cnnbench.plan import RunPlan, WorkKind
from cnnbench.run.runtime import convolutions
from cnnbench.run.runtime.loading import MADE_AT
from cnnbench.run.step.batch_norm import moments_over_towers
from cnnbench.run.step.loss_scale import Factor
from cnnbench.variable_mgr.gradients import Gradient
from cnnbench.variable_mgr.workers import WorkerGroup


class TowerResult(NamedTuple):
    """The output of one tower in a step.

    Attributes:
      gradients: gradients of the scaled loss without its L2 term, in the order of trainable
        variables. None for a variable that does not affect the loss. Empty in forward-only runs.
      loss: float32 scalar, the mean over the tower's batch.
      updates: updates of non-trainable variables.
      metrics: means over the tower's batch; empty unless requested.
    """

    gradients: list[Gradient]
    loss: tf.Tensor
    updates: tuple[StateUpdate, ...]
    metrics: dict[str, tf.Tensor]


class Tower:
    """Builds the graph of one tower. The graph does not change variables.

    Args:
      workers: the workers of the job, if each worker builds its own step; otherwise None.
      synchronises: whether batch norm synchronises with the towers of the step and of `workers`.
    """

    def __init__(
        self,
        plan: RunPlan,
        device: str,
        workers: WorkerGroup | None,
        *,
        synchronises: bool,
    ) -> None:
        self._plan = plan
        self._model = plan.network.model
        self._spec = plan.network.spec
        self._trainables = [v for v in self._spec.variables if v.trainable]
        self._forward_only = plan.work is WorkKind.FORWARD
        self._device = device
        self._workers = workers
        self._synchronises = synchronises
        kind = "cpu" if is_cpu(device) else "gpu"
        self._data_format = convolutions.resolve_data_format(plan.params.data_format, kind)
        self._conv_gradients = convolutions.resolve_conv_gradients(plan, kind)
        self.undeclared_variable_locations: tuple[str, ...] = ()

    def __call__(
        self, read: Reader, features: Any, labels: Any, seed: tf.Tensor, factor: Factor
    ) -> TowerResult:
        """Builds the tower. It is called in the traced step, on the tower's device.

        Args:
          read: returns the tower's value of a variable, in the given dtype.
          seed: int64 [2], the seed of dropout, which differs in each step.
          factor: loss scale, which is a factor of the returned gradients.
        """
        frozen = self._plan.numerics.frozen
        if not self._plan.params.xla_compile:
            return self._build_passes(read, features, labels, seed, factor)
        # A compiled computation cannot access other devices, so variables are read before it.
        # Frozen variables are constants, which are created inside of it so that the compiler can
        # fold them.
        dtypes = {} if frozen else self._trace_dtypes(features)
        values = {spec.name: read(spec, dtype) for spec, dtype in dtypes.items()}
        updates: list[StateUpdate] = []

        @tf.function(autograph=False, jit_compile=True)
        def compiled(
            values: dict[str, tf.Tensor],
            features: Any,
            labels: Any,
            seed: tf.Tensor,
            factor: Factor,
        ) -> tuple[Any, ...]:
            handed_in = read if frozen else lambda spec, dtype: values[spec.name]
            result = self._build_passes(handed_in, features, labels, seed, factor)
            updates[:] = result.updates
            return result.gradients, result.loss, [u.value for u in updates], result.metrics

        gradients, loss, averaged, metrics = compiled(values, features, labels, seed, factor)
        # The tensors in `updates` exist only within the compiled computation. Its outputs replace
        # them.
        outside = tuple(u._replace(value=v) for u, v in zip(updates, averaged, strict=True))
        return TowerResult(list(gradients), loss, outside, metrics)

    def _trace_dtypes(self, features: Any) -> dict[VariableSpec, tf.DType]:
        """Determines the dtypes in which the network reads its variables, by a trace that is not
        used further.
        """
        dtypes: dict[VariableSpec, tf.DType] = {}

        def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
            dtypes[spec] = dtype
            return tf.zeros(spec.shape, dtype)

        with tf.Graph().as_default():
            like = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), features)
            self._make_network(read, tf.zeros([2], tf.int64)).forward(like)
        return dtypes

    def _make_network(self, read: Reader, seed: tf.Tensor) -> GraphNetwork:
        passes, classes = self._plan.params.gradient_accumulation_steps, self._spec.num_classes
        synchronise = partial(moments_over_towers, workers=self._workers, merged={})
        return GraphNetwork(
            self._model,
            classes,
            read,
            training=not self._forward_only,
            data_format=self._data_format,
            compute_dtype=self._plan.numerics.dtype,
            seed=seed,
            # The seeds of random draws must differ between the passes of a step, so passes are
            # counted instead of steps.
            training_steps=passes * self._plan.length.training_steps,
            on_cpu=is_cpu(self._device),
            conv_gradients=self._conv_gradients,
            synchronise=synchronise if self._synchronises else None,
            recomputes=self._plan.recomputed_flops is not None,
            avoids_doubtful=convolutions.avoids_doubtful(self._plan),
            fold_batch_norm=self._forward_only,
        )

    def _build_passes(
        self, read: Reader, features: Any, labels: Any, seed: tf.Tensor, factor: Factor
    ) -> TowerResult:
        if self._forward_only:
            outputs = self._make_network(read, seed).forward(features)
            # TensorFlow removes (prunes) outputs that the result does not depend on, so they become
            # a part of it.
            means = [tf.reduce_mean(tf.cast(x, tf.float32)) for x in tf.nest.flatten(outputs)]
            loss = means[0] if len(means) == 1 else tf.add_n(means)
            return TowerResult([], loss, (), self._mean_metrics(outputs, labels))
        values: dict[str, tf.Tensor] = {}
        # The outer tape finds variables that a plug-in has created without declaring them. It is
        # stopped while declared variables are read.
        with tf.GradientTape() as outer, tf.GradientTape(watch_accessed_variables=False) as tape:

            def read_and_watch(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
                if spec.name not in values:
                    with outer.stop_recording():
                        values[spec.name] = read(spec, dtype)
                    if spec.trainable:
                        tape.watch(values[spec.name])
                return values[spec.name]

            network = self._make_network(read_and_watch, seed)
            outputs = network.forward(features)
            loss = tf.reduce_mean(self._example_losses(outputs, labels))
            for head, weight in network.auxiliaries:
                loss += weight * tf.reduce_mean(self._example_losses(head, labels))
            for added in network.losses:
                loss += added
            target = loss if factor is None else loss * factor
            passes = self._plan.params.gradient_accumulation_steps
            if passes > 1:
                # The update uses the mean over the passes of a step, but their gradients are added,
                # so each is divided by their number.
                target /= float(passes)
        sources = [values[v.name] for v in self._trainables if v.name in values]
        computed = iter(tape.gradient(target, sources))
        gradients = [next(computed) if v.name in values else None for v in self._trainables]
        self._note_undeclared(gradients, outer.watched_variables())
        updates = tuple(network.updates)
        return TowerResult(gradients, loss, updates, self._mean_metrics(outputs, labels))

    def _note_undeclared(self, gradients: Sequence[Any], undeclared: Sequence[tf.Variable]) -> None:
        """Sets `undeclared_variable_locations`. Raises UsageError if no variable has a gradient."""
        where = plugin_location_prefix(self._model)
        places = (getattr(v, MADE_AT, "") or f"{where}{v.name}" for v in undeclared)
        self.undeclared_variable_locations = tuple(dict.fromkeys(places))
        if any(gradient is not None for gradient in gradients):
            return
        if self.undeclared_variable_locations:
            raise UsageError(
                f"{self.undeclared_variable_locations[0]}: the tf.Variable created here is not "
                f"trained, and no variable of model {self._model.name} has a gradient; create "
                "variables with net.variable"
            )
        if self._trainables:
            raise UsageError(
                f"model {self._model.name}: no trainable variable gets a gradient from the loss"
            )

    def _example_losses(self, outputs: Any, labels: Any) -> tf.Tensor:
        """Builds the loss of each example. Labels are smoothed as in arXiv:1512.00567."""
        losses = self._over_labels(partial(self._model.loss, outputs), labels)
        share = self._plan.params.label_smoothing
        if not share:
            return losses
        # The cross entropy is linear in the labels. `even` is the cross entropy of labels that are
        # equal for all classes.
        even = tf.reduce_logsumexp(outputs, axis=-1) - tf.reduce_mean(outputs, axis=-1)
        return losses * (1.0 - share) + even * share

    def _mean_metrics(self, outputs: Any, labels: Any) -> dict[str, tf.Tensor]:
        if not self._plan.step_metrics:
            return {}
        columns = self._over_labels(partial(self._model.metrics, outputs), labels)
        return {name: tf.reduce_mean(columns[name]) for name in self._plan.step_metrics}

    def _over_labels(self, of_label: Callable[[Any], Any], labels: Any) -> Any:
        """Computes values of each example for its label; for a mixed image, their weighted mean.

        The cross entropy and the hits are linear in the labels, so the mean over both labels is the
        value for the mixed label, as in arXiv:1710.09412 and arXiv:1905.04899.
        """
        if not self._plan.input.training.mixes_images:
            return of_label(labels)
        (label,) = elements_of_role(self._spec.elements, "label")
        share = labels[OWN_SHARE]
        return tf.nest.map_structure(
            lambda own, other: share * own + (1.0 - share) * other,
            of_label(labels[label.name]),
            of_label(labels[OTHER_LABEL]),
        )
