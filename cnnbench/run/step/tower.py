"""The forward and backward pass of a tower, batch norm over towers, and loss scaling.

The loss is multiplied by a factor, the loss scale, before gradients are computed. Gradients contain
the factor while they are sent between devices, because they may have 16 bits there, too. They are
divided by the factor before they are applied. Gradients that are applied in the next step are
divided in their own step, because the factor may change.

An automatic factor is computed as follows. If aggregated gradients contain NaN or infinity, the
step is skipped: weights, optimizer state and moving averages do not change, and the factor is
halved. After N consecutive steps that were not skipped, the factor is doubled. It is never halved
below `FLOOR` or doubled above `CAP`. If the initial factor is outside these bounds, it does not
move further away from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from cnnbench.base.job import is_cpu
from cnnbench.data.dataset import OTHER_LABEL, OWN_SHARE, TowerBatch
from cnnbench.data.pipeline import draw_synthetic_rows
from cnnbench.errors import UsageError
from cnnbench.models.graph import GraphNetwork, Reader, StateUpdate
from cnnbench.models.int8 import Calibration, Int8Network, record_value_ranges
from cnnbench.models.model import plugin_location_prefix
from cnnbench.models.spec import VariableSpec, elements_of_role
from cnnbench.plan.place import WorkKind
from cnnbench.plan.run_plan import RunPlan
from cnnbench.run.runtime import convolutions
from cnnbench.run.runtime.loading import MADE_AT
from cnnbench.variable_mgr import gradients, towers
from cnnbench.variable_mgr import towers as tower_variable
from cnnbench.variable_mgr.base import Guard, VariableMgr, WorkerGroup
from cnnbench.variable_mgr.gradients import Gradient

# Batch normalisation over towers, and the moving averages of its moments.

_Pair = tuple[tf.Tensor, tf.Tensor]


def moments_over_towers(
    layer: str,
    mean: tf.Tensor,
    variance: tf.Tensor,
    workers: WorkerGroup | None,
    merged: dict[str, tuple[_Pair, int]] | None = None,
) -> tuple[tf.Tensor, tf.Tensor, int]:
    """Computes mean and variance over the batches of all towers. Also returns the tower count.

    It is called in towers that are built at the same time. The gradient of a tower's moments is the
    gradient of the losses of all towers. So the reduced gradients equal the gradients of a single
    tower with all batches.

    Args:
      layer: a unique name.
      mean, variance: moments of the tower's batch, float32 [channels]; biased (divided by the
        count). All batches have the same size.
      workers: workers that build towers of the same network. They exchange the moments of a layer
        in one collective, and the gradients in another. All workers trace the collectives in the
        same order.
      merged: results of this tower by layer. A layer that the backward pass computes again uses the
        moments of the forward pass, so that towers exchange them once.
    """
    results = {} if merged is None else merged

    @tf.custom_gradient
    def merged_moments(mean: tf.Tensor, variance: tf.Tensor) -> Any:
        if layer not in results:
            merge = partial(_merge_batch_norm_moments_over_job, workers)
            results[layer] = towers.merge_over_towers(layer, (mean, variance), merge)
        # Automatic differentiation stops here, because `gradient` computes the gradient itself.
        all_mean, all_variance = map(tf.stop_gradient, results[layer][0])

        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            point = f"the gradient of {layer}"
            merge = partial(_average_moment_gradients_over_job, workers)
            by_mean, by_variance = towers.merge_over_towers(point, (of_mean, of_variance), merge)
            return by_mean + 2.0 * by_variance * (mean - all_mean), by_variance

        return (all_mean, all_variance), gradient

    return (*merged_moments(mean, variance), results[layer][1])


def _merge_batch_norm_moments_over_job(
    workers: WorkerGroup | None, moments: Sequence[_Pair]
) -> list[tuple[_Pair, int]]:
    """Returns ((mean, variance), count) over all towers of the job, for each tower in `moments`."""
    with tf.device(moments[0][0].device):
        of_all = moments
        if workers is not None:
            table = workers.gather_in_step(tf.stack([tf.stack(pair) for pair in moments]))
            of_all = [(row[0], row[1]) for row in tf.unstack(table)]
        mean, between = _mean_of_pairs(of_all)
        spread = [tf.math.squared_difference(own, mean) for own, _ in of_all]
        variance = between + tf.add_n(spread) / float(len(spread))
    return [((mean, variance), len(of_all))] * len(moments)


def _average_moment_gradients_over_job(
    workers: WorkerGroup | None, pairs: Sequence[_Pair]
) -> list[_Pair]:
    with tf.device(pairs[0][0].device):
        first, second = _mean_of_pairs(pairs)
        if workers is not None:
            # All workers have the same number of towers, so the mean of their means is exact.
            first, second = (
                total / float(workers.size) for total in workers.sum_in_step([first, second])
            )
    return [(first, second)] * len(pairs)


def _mean_of_pairs(pairs: Sequence[_Pair]) -> _Pair:
    count = float(len(pairs))
    first, second = (tf.add_n(list(values)) / count for values in zip(*pairs, strict=True))
    return first, second


def update_moving_averages(
    manager: VariableMgr,
    towers: Sequence[Sequence[StateUpdate]],
    bn_stats: str,
    guards: Sequence[Guard],
) -> list[Any]:
    """Adds the updates of moving averages to the traced step. Returns their operations.

    During training, only copy 0 contains the averages. `share_moving_averages` copies them to the
    other copies before they are read. Values without decay replace every copy, because towers
    compute the next values from them. Towers that train independently have their own averages.

    Args:
      towers: for each tower, the updates of its untrained variables, in the same order.
      bn_stats: "first" (values of tower 0), "mean" (means over towers; integers of tower 0) or
        "sync" (all towers have the same values).
      guards: guards of the devices that apply updates. A skipped step does not change the averages
        either, because its moments may have overflowed like its gradients.
    """
    if not towers[0]:
        return []
    if not manager.replicas_in_sync:
        return [
            update
            for t, (updates, guard) in enumerate(zip(towers, guards, strict=True))
            for update in guard(partial(_assign_updates, manager, [t], updates))
        ]
    # Copies are equal, so all devices skip the same updates, and any device's guard is correct.
    run = guards[0]
    if bn_stats == "mean" and manager.num_towers > 1:
        with tf.device(manager.get_devices()[0]):
            means = _build_mean_updates(manager, towers)
        return run(partial(_assign_updates, manager, range(len(towers)), means))
    return run(partial(_assign_updates, manager, range(len(towers)), towers[0]))


def share_moving_averages(manager: VariableMgr) -> None:
    """Copies the first copy of every untrained variable to its other copies, eagerly."""
    if not manager.replicas_in_sync:
        return
    variables = manager.savable_variables().values()
    manager.broadcast_from_chief(
        [variable for variable in variables if not variable.primary.trainable]
    )


def _build_mean_updates(
    manager: VariableMgr, towers: Sequence[Sequence[StateUpdate]]
) -> list[StateUpdate]:
    """Returns the updates of tower 0, with floating-point values replaced by means of towers."""
    first = list(towers[0])
    real = [i for i, update in enumerate(first) if update.value.dtype.is_floating]
    sums = manager.sum_over_workers_in_step(
        [gradients.sum_tensors([own[i].value for own in towers]) for i in real]
    )
    for i, total in zip(real, sums, strict=True):
        first[i] = first[i]._replace(value=total / float(manager.num_towers))
    return first


def _assign_updates(
    manager: VariableMgr, towers: Sequence[int], updates: Sequence[StateUpdate]
) -> list[Any]:
    """Assigns values to the towers' copies of untrained variables. Returns the operations."""
    operations = []
    for spec, value, decay in updates:
        copies = {(v := manager.variable(tower, spec.name)).ref(): v for tower in towers}
        for variable in list(copies.values())[: 1 if decay else None]:
            with tf.device(variable.device):
                if decay:
                    change = (tower_variable.read(variable) - value) * (1.0 - decay)
                    operations.append(variable.assign_sub(change, read_value=False))
                else:
                    operations.append(variable.assign(value, read_value=False))
    return operations


# Loss scaling, which multiplies the loss by a factor so that fp16 gradients do not become zero.

FLOOR = 1.0
"""Minimum of an automatic factor: smaller factors move gradients out of the range of fp16."""
CAP = 2.0**24
"""Maximum of an automatic factor, which zero gradients would otherwise make infinite."""

# The loss scale: a float32 scalar on the current device, a constant, or None for 1.
Factor: TypeAlias = Any


class LossScale:
    """A constant loss scale. No update is skipped."""

    def __init__(self, factor: float = 1.0) -> None:
        self._factor = None if factor == 1.0 else factor

    @property
    def value(self) -> float | None:
        """The current value of an automatic factor; None if the factor is constant."""
        return None

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of the loss scale that checkpoints contain, by canonical name."""
        return {}

    def factor(self) -> Factor:
        """Returns the loss scale of this step. Must be called in the traced step."""
        return self._factor

    def guard(self, tensors: Sequence[tf.Tensor]) -> Guard:
        """Returns a function that runs updates. Subclasses may require finite `tensors`."""
        del tensors
        return _run_update

    def find_skipped_updates(
        self, gradients: Sequence[Sequence[tf.Tensor]]
    ) -> tuple[list[Guard], tf.Tensor | None, list[Any]]:
        """Determines which updates are skipped. It is called once in the traced step.

        `gradients` are the results of the reduction for each device that applies updates, before
        clipping, which would hide infinities. Equal replicas get equal gradients, so their updates
        are skipped together.

        Returns:
          A guard for each of these devices; a bool scalar, whether an update is skipped (None if
          updates are never skipped); operations that update the loss scale.
        """
        return [_run_update for _ in gradients], None, []


class AutoLossScale(LossScale):
    """An automatic loss scale, which is halved after infinite gradients and doubled after N steps.

    The docstring of the module describes the algorithm. The state of the loss scale is on the host,
    because the host decides. The factor is sent to the towers during their forward passes.

    Args:
      initial: initial factor.
      every_n: N, the number of consecutive finite steps after which the factor is doubled.
      device: the CPU of the host.
    """

    def __init__(self, initial: float, every_n: int, device: str) -> None:
        super().__init__()
        self._every_n = every_n
        self._device = device
        with tf.device(device):
            self._scale = tf.Variable(
                initial, dtype=tf.float32, trainable=False, name="loss_scale/scale"
            )
            self._good_steps = tf.Variable(
                0, dtype=tf.int64, trainable=False, name="loss_scale/good_steps"
            )

    @property
    def value(self) -> float:
        """The current factor."""
        return float(self._scale.numpy())

    def variables(self) -> dict[str, tf.Variable]:
        """The factor, and the number of finite steps since its last change, by canonical name."""
        return {"scale": self._scale, "good_steps": self._good_steps}

    def factor(self) -> Factor:
        """Reads the factor of this step, in the traced step."""
        return towers.read(self._scale)

    def guard(self, tensors: Sequence[tf.Tensor]) -> Guard:
        """Returns a function that runs an update if `tensors` are finite."""
        return partial(_update_if_finite, all_finite(tensors, self._device))

    def find_skipped_updates(
        self, gradients: Sequence[Sequence[tf.Tensor]]
    ) -> tuple[list[Guard], tf.Tensor | None, list[Any]]:
        """Skips updates by gradients that are not finite, see `LossScale.find_skipped_updates`."""
        flags = [all_finite(of_device, self._device) for of_device in gradients]
        with tf.device(self._device), tf.name_scope("loss_scale"):
            finite = tf.reduce_all(tf.stack(flags)) if flags else tf.constant(True)
            guards: list[Guard] = [partial(_update_if_finite, flag) for flag in flags]
            return guards, tf.logical_not(finite), self._update_loss_scale(finite)

    def _update_loss_scale(self, finite: tf.Tensor) -> list[Any]:
        scale = towers.read(self._scale)
        counted = towers.read(self._good_steps) + 1
        # A restored count may exceed N, if its checkpoint was written with a larger N.
        grows = counted >= self._every_n
        grown = tf.maximum(scale, tf.minimum(scale * 2.0, CAP))
        halved = tf.minimum(scale, tf.maximum(scale * 0.5, FLOOR))
        after_good = tf.where(grows, grown, scale)
        counts_on = tf.logical_and(finite, tf.logical_not(grows))
        return [
            self._scale.assign(tf.where(finite, after_good, halved), read_value=False),
            self._good_steps.assign(tf.where(counts_on, counted, 0), read_value=False),
        ]


def _run_update(update: Callable[[], list[Any]]) -> list[Any]:
    return update()


def _update_if_finite(finite: tf.Tensor, update: Callable[[], list[Any]]) -> list[Any]:
    """Builds an update in a conditional branch, so that a skipped step changes no variables."""

    def updated() -> tf.Tensor:
        with tf.control_dependencies(update()):
            return tf.constant(True)

    return [tf.cond(finite, updated, lambda: tf.constant(False))]


def inverse_scale(factor: Factor) -> Factor:
    """The reciprocal of a loss scale, on the current device; None if the loss scale is None."""
    return None if factor is None else 1.0 / factor


def divide_by_scale(gradient: Gradient, inverse: Factor) -> Gradient:
    """Divides a gradient by the loss scale, in float32 on the current device.

    `inverse` is the reciprocal of the loss scale. If it is None, the gradient is unchanged.
    """
    if gradient is None or inverse is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            divide_by_scale(gradient.values, inverse), gradient.indices, gradient.dense_shape
        )
    return tf.cast(gradient, tf.float32) * inverse


def all_finite(tensors: Sequence[tf.Tensor], device: str) -> tf.Tensor:
    """Checks that no element of any tensor is infinite or NaN. Returns a bool scalar on `device`.

    Every distinct tensor is checked once, on its own device. Each device sends one bool.
    """
    by_device: dict[str, dict[int, tf.Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, {})[id(tensor)] = tensor
    flags = []
    for home, distinct in by_device.items():
        with tf.device(home):
            finite = [tf.reduce_all(tf.math.is_finite(t)) for t in distinct.values()]
            flags.append(tf.reduce_all(tf.stack(finite)))
    with tf.device(device):
        return tf.reduce_all(tf.stack(flags)) if flags else tf.constant(True)


# One tower of a step: forward pass, loss, gradients and metrics on one device.


_CALIBRATION_EXAMPLES = 8
"""Number of examples that determine the ranges of 8-bit integers."""


def calibration_examples(plan: RunPlan) -> Any:
    """Creates synthetic inputs of a model, which determine the ranges of its 8-bit integers."""
    rows = tf.range(_CALIBRATION_EXAMPLES)
    preprocess = plan.network.preprocess(training=False)
    drawn = draw_synthetic_rows(rows, plan.params.tf_random_seed, plan.network.examples, preprocess)
    elements = plan.network.spec.elements
    values = {element.name: drawn[element.name] for element in elements}
    return TowerBatch.from_values(elements, values).features


class TowerResult(NamedTuple):
    """The output of one tower in a step.

    Attributes:
      gradients: gradients of the scaled loss without its L2 term, in the order of trainable
        variables. None for a variable that does not affect the loss. Empty in forward-only runs.
      loss: float32 scalar, the mean over the tower's batch.
      updates: updates of untrained variables.
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
      examples: inputs of the model that determine the ranges of 8-bit integers (see
        `cnnbench.models.int8`); None if all layers compute in the plan's dtype.
    """

    def __init__(
        self,
        plan: RunPlan,
        device: str,
        workers: WorkerGroup | None,
        *,
        synchronises: bool,
        examples: Any,
    ) -> None:
        self._plan = plan
        self._model = plan.network.model
        self._spec = plan.network.spec
        self._trainables = [v for v in self._spec.variables if v.trainable]
        self._forward_only = plan.work is WorkKind.FORWARD
        self._device = device
        self._workers = workers
        self._synchronises = synchronises
        self._examples = examples
        kind = "cpu" if is_cpu(device) else "gpu"
        self._data_format = convolutions.resolve_data_format(plan.params.data_format, kind)
        self._conv_gradients = convolutions.resolve_conv_gradients(plan, kind)
        self.calibration: Calibration | None = None
        self.undeclared_variable_locations: tuple[str, ...] = ()

    def __call__(
        self,
        read: Reader,
        features: Any,
        labels: Any,
        seed: tf.Tensor,
        factor: Factor,
    ) -> TowerResult:
        """Builds the tower. It is called in the traced step, on the tower's device.

        Args:
          read: returns the tower's value of a variable, in the given dtype.
          seed: int64 [2], the seed of dropout, which differs in each step.
          factor: loss scale, which is a factor of the returned gradients.
        """
        frozen = self._plan.numerics.frozen
        if not self._plan.params.xla_compile:
            return self._build_forward_and_backward(read, features, labels, seed, factor)
        # A compiled computation cannot access other devices, so variables are read outside of it.
        # Frozen variables are constants inside of the computation, which the compiler can fold.
        dtypes = {} if frozen else self._dtypes_of_read_variables(features)
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
            result = self._build_forward_and_backward(handed_in, features, labels, seed, factor)
            updates[:] = result.updates
            return result.gradients, result.loss, [u.value for u in updates], result.metrics

        gradients, loss, averaged, metrics = compiled(values, features, labels, seed, factor)
        # The tensors in `updates` belong to the compiled computation; its outputs replace them.
        outside = tuple(u._replace(value=v) for u, v in zip(updates, averaged, strict=True))
        return TowerResult(list(gradients), loss, outside, metrics)

    def _dtypes_of_read_variables(self, features: Any) -> dict[VariableSpec, tf.DType]:
        """Determines the dtypes in which the network reads its variables, by a discarded trace."""
        dtypes: dict[VariableSpec, tf.DType] = {}

        def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
            dtypes[spec] = dtype
            return tf.zeros(spec.shape, dtype)

        with tf.Graph().as_default():
            like = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), features)
            self._make_network(read, tf.zeros([2], tf.int64)).forward(like)
        return dtypes

    def _make_network(self, read: Reader, seed: tf.Tensor) -> GraphNetwork:
        passes = self._plan.params.gradient_accumulation_steps
        make: Callable[..., GraphNetwork] = GraphNetwork
        if self._examples is not None:
            # Tracing the network needs the value ranges, so they are measured eagerly now.
            with tf.init_scope(), tf.device(self._device):
                self.calibration = record_value_ranges(
                    self._model, self._spec.num_classes, self._examples, read
                )
            make = partial(Int8Network, calibration=self.calibration)
        synchronise = partial(moments_over_towers, workers=self._workers, merged={})
        return make(
            self._model,
            self._spec.num_classes,
            read,
            training=not self._forward_only,
            data_format=self._data_format,
            compute_dtype=self._plan.numerics.dtype,
            seed=seed,
            # The seeds of random draws depend on the pass, so passes are counted, not steps.
            training_steps=passes * self._plan.length.training_steps,
            on_cpu=is_cpu(self._device),
            conv_gradients=self._conv_gradients,
            synchronise=synchronise if self._synchronises else None,
            recomputes=self._plan.recomputed_flops is not None,
            avoids_doubtful=convolutions.avoids_doubtful_convolutions(self._plan),
            fold_batch_norm=self._forward_only,
        )

    def _build_forward_and_backward(
        self,
        read: Reader,
        features: Any,
        labels: Any,
        seed: tf.Tensor,
        factor: Factor,
    ) -> TowerResult:
        if self._forward_only:
            outputs = self._make_network(read, seed).forward(features)
            # TensorFlow would prune outputs that the result does not depend on.
            means = [tf.reduce_mean(tf.cast(x, tf.float32)) for x in tf.nest.flatten(outputs)]
            loss = means[0] if len(means) == 1 else tf.add_n(means)
            return TowerResult([], loss, (), self._mean_metrics(outputs, labels))
        values: dict[str, tf.Tensor] = {}
        # The outer tape detects variables that a plug-in creates without declaring them.
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
                # Gradients of all passes are added, and the update uses their mean.
                target /= float(passes)
        sources = [values[v.name] for v in self._trainables if v.name in values]
        computed = iter(tape.gradient(target, sources))
        gradients = [next(computed) if v.name in values else None for v in self._trainables]
        self._check_trained_variables(gradients, outer.watched_variables())
        updates = tuple(network.updates)
        return TowerResult(gradients, loss, updates, self._mean_metrics(outputs, labels))

    def _check_trained_variables(
        self, gradients: Sequence[Any], undeclared: Sequence[tf.Variable]
    ) -> None:
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
        losses = self._weighted_over_labels(partial(self._model.loss, outputs), labels)
        share = self._plan.params.label_smoothing
        if not share:
            return losses
        # The cross entropy is linear in the labels; `even` is the cross entropy for uniform labels.
        even = tf.reduce_logsumexp(outputs, axis=-1) - tf.reduce_mean(outputs, axis=-1)
        return losses * (1.0 - share) + even * share

    def _mean_metrics(self, outputs: Any, labels: Any) -> dict[str, tf.Tensor]:
        if not self._plan.step_metrics:
            return {}
        columns = self._weighted_over_labels(partial(self._model.metrics, outputs), labels)
        return {name: tf.reduce_mean(columns[name]) for name in self._plan.step_metrics}

    def _weighted_over_labels(self, of_label: Callable[[Any], Any], labels: Any) -> Any:
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


# Gradient accumulation, for a step with several passes and one update.


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
        # The first trace creates each tower's sums, because it shows which gradients exist.
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
                for total, term in zip(self._get_or_create_sums(tower, terms), terms, strict=True):
                    self._scale_total_and_add_term(total, *term)
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
                pairs = zip(self._get_or_create_sums(tower, terms), terms, strict=True)
                sums = [self._add_last_term(total, *term, zero) for total, term in pairs]
                totals.append(self._build_mean_result(result, sums))
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
        """Returns the sum of a step. If `zero` is given, sets the sum's variable to zero in place.

        On an emulated GPU, this way needed more memory at the peak than `clear`.
        """
        if zero is None:
            with tf.control_dependencies([self._scale_total_and_add_term(total, factor, term)]):
                return tower_variable.read(total)
        old = tower_variable.read(total)
        # TensorFlow may change the order of additions that have no control dependency.
        with tf.control_dependencies([zero]):
            # The sum is computed in the buffer of `term`.
            complete = (old if factor == 1.0 else factor * old) + term
        with tf.control_dependencies([total.assign(complete, read_value=False)]):
            # No other tensor uses the buffer of `old` now, so the zeros are computed in it.
            zeros = tf.math.multiply_no_nan(old, zero)
        with tf.control_dependencies([total.assign(zeros, read_value=False)]):
            return tf.identity(complete)

    @staticmethod
    def _scale_total_and_add_term(total: tf.Variable, factor: float, term: tf.Tensor) -> Any:
        if factor == 1.0:
            return total.assign_add(term, read_value=False)
        return total.assign(factor * tower_variable.read(total) + term, read_value=False)

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

    def _get_or_create_sums(
        self, tower: int, terms: Sequence[tuple[float, tf.Tensor]]
    ) -> list[tf.Variable]:
        if tower not in self._sums:
            device, shapes = self._manager.get_devices()[tower], [term.shape for _, term in terms]
            self._sums[tower] = gradients.run_untraced(partial(_make_sums, device, shapes))
        return self._sums[tower]

    def _build_mean_result(self, last: TowerResult, sums: Sequence[tf.Tensor]) -> TowerResult:
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
        return TowerResult(
            summed, loss, tuple(updates), dict(zip(last.metrics, metrics, strict=True))
        )


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
