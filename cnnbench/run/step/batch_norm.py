"""Batch normalisation over towers, and the moving averages of its moments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.models.graph import StateUpdate
from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.base import Guard, VariableMgr
from cnnbench.variable_mgr.exchange import merge_over_towers
from cnnbench.variable_mgr.towers import read
from cnnbench.variable_mgr.workers import WorkerGroup

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
            merge = partial(_merge_moments, workers)
            results[layer] = merge_over_towers(layer, (mean, variance), merge)
        # Automatic differentiation stops here, because the function `gradient` below computes the
        # gradient.
        all_mean, all_variance = map(tf.stop_gradient, results[layer][0])

        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            point = f"the gradient of {layer}"
            merge = partial(_average_gradients, workers)
            by_mean, by_variance = merge_over_towers(point, (of_mean, of_variance), merge)
            return by_mean + 2.0 * by_variance * (mean - all_mean), by_variance

        return (all_mean, all_variance), gradient

    return (*merged_moments(mean, variance), results[layer][1])


def _merge_moments(
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


def _average_gradients(workers: WorkerGroup | None, pairs: Sequence[_Pair]) -> list[_Pair]:
    with tf.device(pairs[0][0].device):
        first, second = _mean_of_pairs(pairs)
        if workers is not None:
            # All workers have the same number of towers, so the mean of the workers' means is the
            # mean over all towers.
            totals = workers.sum_in_step([first, second])
            first, second = (total / float(workers.size) for total in totals)
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

    During training, only copy 0 contains the averages. `broadcast_averages` copies them to the
    other copies before they are read. Values without decay replace every copy, because towers
    compute the next values from them. Towers that train independently have their own averages.

    Args:
      towers: for each tower, the updates of its non-trainable variables, in the same order.
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
    # The copies of a variable are equal, so all devices skip the same updates, and the condition
    # (guard) of the first device holds for all of them.
    run = guards[0]
    if bn_stats == "mean" and manager.num_towers > 1:
        with tf.device(manager.get_devices()[0]):
            means = _mean_updates(manager, towers)
        return run(partial(_assign_updates, manager, range(len(towers)), means))
    return run(partial(_assign_updates, manager, range(len(towers)), towers[0]))


def broadcast_averages(manager: VariableMgr) -> None:
    """Copies the first copy of every non-trainable variable to its other copies, eagerly."""
    if not manager.replicas_in_sync:
        return
    variables = manager.savable_variables().values()
    manager.broadcast_from_chief([v for v in variables if not v.primary.trainable])


def _mean_updates(
    manager: VariableMgr, towers: Sequence[Sequence[StateUpdate]]
) -> list[StateUpdate]:
    """Returns the updates of tower 0, whose floating-point values are replaced by means over all
    towers.
    """
    first = list(towers[0])
    real = [i for i, update in enumerate(first) if update.value.dtype.is_floating]
    own = [gradients.sum_tensors([updates[i].value for updates in towers]) for i in real]
    sums = manager.sum_over_workers_in_step(own)
    for i, total in zip(real, sums, strict=True):
        first[i] = first[i]._replace(value=total / float(manager.num_towers))
    return first


def _assign_updates(
    manager: VariableMgr, towers: Sequence[int], updates: Sequence[StateUpdate]
) -> list[Any]:
    """Assigns values to the towers' copies of non-trainable variables. Returns the operations."""
    operations = []
    for spec, value, decay in updates:
        copies = {(v := manager.variable(tower, spec.name)).ref(): v for tower in towers}
        for variable in list(copies.values())[: 1 if decay else None]:
            with tf.device(variable.device):
                if decay:
                    change = (read(variable) - value) * (1.0 - decay)
                    operations.append(variable.assign_sub(change, read_value=False))
                else:
                    operations.append(variable.assign(value, read_value=False))
    return operations
