"""Clipping of the gradients that are applied together on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from cnnbench.variable_mgr.gradients import on_devices


def by_value(
    gradients: Sequence[tf.Tensor], devices: Sequence[str], bound: float
) -> list[tf.Tensor]:
    """Clips every element to [-bound, bound]."""
    return on_devices(devices, lambda g: tf.clip_by_value(g, -bound, bound), gradients)


CLIPPINGS: Mapping[str, Callable[[Sequence[tf.Tensor], Sequence[str], float], list[tf.Tensor]]] = {
    "gradient_clip": by_value
}
"""By the flag that has the bound: functions of reduced float32 gradients without loss scale, the
devices of their variables, and the bound, a number.
"""
