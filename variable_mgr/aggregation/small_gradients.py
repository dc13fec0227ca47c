"""Joins runs of small gradients, which cost more to start than to send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.flat_buffers import FlatLayout
from cnnbench.variable_mgr.aggregation.shapes import static_dtypes, static_shapes
from cnnbench.variable_mgr.aggregation.stage import Inverse, TowerTensors
from cnnbench.variable_mgr.sizes import groups_of_small


@dataclass(frozen=True)
class SmallGradients:
    """Joins float32 tensors of few bytes at consecutive indices into flat ones.

    A joined tensor takes the place of the first that it holds. A run is cut after
    `max_group` tensors; what stands alone stays as it is, as do tensors of other
    dtypes.

    Attributes:
      max_bytes: most bytes of a tensor that is small.
      max_group: most tensors in one.
      devices: of the towers.

    Raises:
      FlagError: a limit is not positive.
    """

    max_bytes: int
    max_group: int
    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_group"):
            if getattr(self, name) < 1:
                raise FlagError(
                    f"agg_small_grads_{name}", getattr(self, name), "must be 1 or more to join any"
                )

    def __call__(self, tensors: TowerTensors) -> tuple[TowerTensors, Inverse]:
        """See `Stage.__call__`."""
        shapes = static_shapes(tensors)
        groups = self._groups(static_dtypes(tensors), shapes)
        layouts = {
            group[0]: FlatLayout([shapes[i] for i in group], tf.float32)
            for group in groups
            if len(group) > 1
        }

        def inverse(reduced: TowerTensors) -> TowerTensors:
            result = []
            for device, own in zip(self.devices, reduced, strict=True):
                restored: list[tf.Tensor] = []
                with tf.device(device):
                    for group, tensor in zip(groups, own, strict=True):
                        layout = layouts.get(group[0])
                        restored += layout.split([tensor]) if layout else [tensor]
                result.append(restored)
            return result

        joined = []
        for device, own in zip(self.devices, tensors, strict=True):
            sent: list[tf.Tensor] = []
            with tf.device(device):
                for group in groups:
                    layout = layouts.get(group[0])
                    sent += layout.join([own[i] for i in group]) if layout else [own[group[0]]]
            joined.append(sent)
        return joined, inverse

    def _groups(
        self, dtypes: Sequence[tf.DType], shapes: Sequence[tf.TensorShape]
    ) -> list[list[int]]:
        """The indices in order, cut into what travels together."""
        small = (
            dtype == tf.float32 and shape.num_elements() * dtype.size <= self.max_bytes
            for dtype, shape in zip(dtypes, shapes, strict=True)
        )
        return groups_of_small(small, self.max_group)
