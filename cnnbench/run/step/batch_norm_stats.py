"""Batch normalisation over towers: moments of all their batches, and the moving averages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.models.batch_norm import Moments
from cnnbench.variable_mgr import gradients, tower_variable, towers
from cnnbench.variable_mgr.base import Guard, VariableMgr
from cnnbench.variable_mgr.worker_group import WorkerGroup


def over_towers(
    layer: str, mean: tf.Tensor, variance: tf.Tensor, workers: WorkerGroup | None
) -> tuple[tf.Tensor, tf.Tensor, int]:
    """Mean and variance over the batches of all towers, and the number of towers.

    To be called in towers built in step. The gradient of a tower's moments is that of the losses of
    all towers, so that reduced gradients equal those of a single tower with all the batches.

    Args:
      layer: a unique name.
      mean, variance: moments of the tower's batch, float32 [channels]; biased (divided by the
        count). All batches have the same size.
      workers: those that build towers of the same network: a layer's moments are one collective
        between them and their gradient another, in the order of tracing, which is the same in all.
    """
    number = 0

    @tf.custom_gradient
    def together(mean: tf.Tensor, variance: tf.Tensor) -> Any:
        nonlocal number
        merge = partial(_together, workers)
        (all_mean, all_variance), number = towers.meet(layer, (mean, variance), merge)

        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            point = f"the gradient of {layer}"
            found = (of_mean, of_variance)
            by_mean, by_variance = towers.meet(point, found, partial(_mean_of_job, workers))
            return by_mean + 2.0 * by_variance * (mean - all_mean), by_variance

        return (all_mean, all_variance), gradient

    return (*together(mean, variance), number)


_Pair = tuple[tf.Tensor, tf.Tensor]


def _together(workers: WorkerGroup | None, moments: Sequence[_Pair]) -> list[tuple[_Pair, int]]:
    with tf.device(moments[0][0].device):
        of_all = moments
        if workers is not None:
            table = workers.gather_rows(tf.stack([tf.stack(pair) for pair in moments]))
            of_all = [(row[0], row[1]) for row in tf.unstack(table)]
        mean, between = _means_of(of_all)
        spread = [tf.math.squared_difference(own, mean) for own, _ in of_all]
        variance = between + tf.add_n(spread) / float(len(spread))
    return [((mean, variance), len(of_all))] * len(moments)


def _mean_of_job(workers: WorkerGroup | None, pairs: Sequence[_Pair]) -> list[_Pair]:
    with tf.device(pairs[0][0].device):
        first, second = _means_of(pairs)
        if workers is not None:
            # All workers have equally many towers.
            first, second = (total / float(workers.size) for total in workers.add([first, second]))
    return [(first, second)] * len(pairs)


def _means_of(pairs: Sequence[_Pair]) -> _Pair:
    count = float(len(pairs))
    first, second = (tf.add_n(list(values)) / count for values in zip(*pairs, strict=True))
    return first, second


def update_moving_averages(
    manager: VariableMgr,
    towers: Sequence[Sequence[Moments]],
    policy: str,
    guards: Sequence[Guard],
) -> list[Any]:
    """Adds the moving-average updates of one step to the graph being traced; returns the ops.

    The averages are kept in copy 0 while training; `share_moving_averages` copies them to the
    others before anything reads them. Towers that train independently keep one average each.

    Args:
      towers: per tower the batch moments of its normalisation layers, all in the same order.
      policy: "first" (tower 0's moments), "mean" (over towers) or "sync" (all towers have the
        same).
      guards: guards of the apply devices. A skipped step leaves the averages unchanged, too,
        because its moments may have overflowed like its gradients.
    """
    if not towers[0]:
        return []
    if not manager.replicas_in_sync:
        return [
            update
            for t, (moments, guard) in enumerate(zip(towers, guards, strict=True))
            for update in guard(partial(_update, manager, t, moments))
        ]
    # Copies in sync are updated or skipped together; any device's guard says which.
    run = guards[0]
    if policy == "mean" and manager.num_towers > 1:
        with tf.device(manager.get_devices()[0]):
            means = _means(manager, towers)
        return run(partial(_update, manager, 0, means))
    return run(partial(_update, manager, 0, towers[0]))


def share_moving_averages(manager: VariableMgr) -> None:
    """Copies copy 0 of every untrained variable to the other copies (eagerly)."""
    if not manager.replicas_in_sync:
        return
    variables = manager.savable_variables().values()
    manager.share([variable for variable in variables if not variable.primary.trainable])


def _means(manager: VariableMgr, towers: Sequence[Sequence[Moments]]) -> list[Moments]:
    layers = list(zip(*towers, strict=True))
    sums = [gradients.add_up([m.batch_mean for m in layer]) for layer in layers]
    sums += [gradients.add_up([m.batch_variance for m in layer]) for layer in layers]
    count = float(manager.num_towers)
    means = [total / count for total in manager.add_up(sums)]
    return [
        layer[0]._replace(batch_mean=mean, batch_variance=variance)
        for layer, mean, variance in zip(
            layers, means[: len(layers)], means[len(layers) :], strict=True
        )
    ]


def _update(manager: VariableMgr, tower: int, moments: Sequence[Moments]) -> list[Any]:
    updates = []
    for layer, *batch in moments:
        for spec, moment in zip((layer.mean, layer.variance), batch, strict=True):
            average = manager.variable(tower, spec.name)
            with tf.device(average.device):
                change = (tower_variable.read(average) - moment) * (1.0 - layer.settings.decay)
                updates.append(average.assign_sub(change, read_value=False))
    return updates
