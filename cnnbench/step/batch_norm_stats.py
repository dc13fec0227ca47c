"""Updates of the moving averages of batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.models.graph import Moments
from cnnbench.variable_mgr import tower_variable
from cnnbench.variable_mgr.base import LossScaleLike, VariableMgr


def update_moving_averages(
    manager: VariableMgr,
    towers: Sequence[Sequence[Moments]],
    policy: str,
    guards: Sequence[LossScaleLike],
) -> list[Any]:
    """Adds the moving-average updates of one step to the graph being traced.

    The averages are kept in copy 0 while training; `share_moving_averages` hands
    them to the other copies before anything reads them. Towers that train
    independently of each other keep one average each.

    Args:
      manager: holds the averages.
      towers: per tower the batch moments of its normalisation layers, all in the
        same order.
      policy: "first" (tower 0's moments) or "mean" (the mean over towers).
      guards: of the apply devices; a step that is skipped leaves the averages alone
        too, because its moments may have overflowed like its gradients.

    Returns:
      The update operations.
    """
    if not towers[0]:
        return []
    if not manager.replicas_in_sync:
        return [
            update
            for t, (moments, guard) in enumerate(zip(towers, guards, strict=True))
            for update in guard.run(partial(_update, manager, t, moments))
        ]
    # Copies in sync are updated or skipped together; any device's guard says which.
    run = guards[0].run
    if policy == "mean" and len(towers) > 1:
        with tf.device(manager.get_devices()[0]):
            means = [_mean(layer) for layer in zip(*towers, strict=True)]
        return run(partial(_update, manager, 0, means))
    return run(partial(_update, manager, 0, towers[0]))


def share_moving_averages(manager: VariableMgr) -> None:
    """Copies copy 0 of every untrained variable to the other copies (eagerly)."""
    if not manager.replicas_in_sync:
        return
    for variable in manager.savable_variables().values():
        if not variable.primary.trainable:
            variable.broadcast()


def _mean(layer: Sequence[Moments]) -> Moments:
    first = layer[0]
    count = float(len(layer))
    return Moments(
        first.mean_spec,
        first.variance_spec,
        tf.add_n([m.batch_mean for m in layer]) / count,
        tf.add_n([m.batch_variance for m in layer]) / count,
        first.decay,
    )


def _update(manager: VariableMgr, tower: int, moments: Sequence[Moments]) -> list[Any]:
    updates = []
    for layer in moments:
        pairs = (
            (layer.mean_spec, layer.batch_mean),
            (layer.variance_spec, layer.batch_variance),
        )
        for spec, batch in pairs:
            average = manager.variable(tower, spec.name)
            with tf.device(average.device):
                change = (tower_variable.read(average) - batch) * (1.0 - layer.decay)
                updates.append(average.assign_sub(change, read_value=False))
    return updates
