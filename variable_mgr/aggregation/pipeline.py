"""Stages before the reduction of gradients, inverted afterwards; `make_stages` has their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

from cnnbench.variable_mgr.aggregation.flat_buffers import (
    FlatLayout,
    Inverse,
    Tensors,
    static_dtypes,
    static_shapes,
)
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.gradients import cast, on_devices, transposed
from cnnbench.variable_mgr.kept import exchange, untraced
from cnnbench.variable_mgr.sizes import buckets_of, groups_of_small


class Stage(Protocol):
    """A reversible transformation of the gradients that are sent."""

    def __call__(self, tensors: Tensors) -> tuple[Tensors, Inverse]:
        """Applies the stage, each tower's operations on the tower's device.

        Returns the tensors to send, and the inverse for their reductions: as many, of the same
        dtypes and shapes, in the same order. Several towers may get the same object back; the
        inverse keeps such sharing where it costs nothing.
        """


def make_stages(
    packing: Packing, devices: tuple[str, ...], scale: float | None
) -> tuple[Stage, ...]:
    """The stages of a run in their fixed order; `scale` is a factor of the sum, None for 1.

    1. Small gradients: they are small, and float32, only before all other stages.
    2. Buckets or repacking: from here on there are few tensors, so later stages cost few
       operations. Gradients of 16 and of 32 bits are joined in the dtype that is sent.
    3. Scaling: before compacting, so on the way back after it. The mean is computed in
       float32, once per pack. Tensors sent as float16 are first multiplied by a power of two.
    4. Compacting: before deferral, which then keeps 16 bits per element.
    5. Deferral: it keeps what is sent, so that the reduction of the last step's gradients
       begins with the step.
    """
    stages: list[Stage] = []
    if packing.agg_small_grads_max_bytes > 0:
        stages.append(
            SmallGradients(
                packing.agg_small_grads_max_bytes, packing.agg_small_grads_max_group, devices
            )
        )
    if packing.gradient_bucket_bytes:
        stages.append(Buckets(packing.gradient_bucket_bytes, devices, packing.compact_dtype))
    if packing.gradient_repacking:
        stages.append(Repacking(packing.gradient_repacking, devices, packing.compact_dtype))
    if scale is not None:
        sent, received = _factors(scale, packing.compact_dtype)
        stages.append(Scale(received, devices, sent))
    if packing.compact_dtype is not None:
        stages.append(CompactTransfer(packing.compact_dtype, devices))
    if packing.relaxed:
        stages.append(Deferral(devices))
    return tuple(stages)


def run_through(
    stages: Sequence[Stage], tensors: Tensors, reduce: Callable[[Tensors], Tensors]
) -> Tensors:
    """Applies stages, sums over towers by `reduce`, and applies the inverses in reverse order."""
    inverses = []
    for stage in stages:
        tensors, inverse = stage(tensors)
        inverses.append(inverse)
    tensors = reduce(tensors)
    for inverse in reversed(inverses):
        tensors = inverse(tensors)
    return tensors


@dataclass(frozen=True)
class SmallGradients:
    """Joins runs of small float32 tensors, whose transfer is dominated by latency.

    A joined tensor replaces the first of its run, which ends after `max_group` tensors.
    """

    max_bytes: int
    max_group: int
    devices: tuple[str, ...]

    def __call__(self, tensors: Tensors) -> tuple[Tensors, Inverse]:
        """See `Stage.__call__`."""
        shapes = static_shapes(tensors)
        small = (
            dtype == tf.float32 and shape.num_elements() * dtype.size <= self.max_bytes
            for dtype, shape in zip(static_dtypes(tensors), shapes, strict=True)
        )
        return _joined_groups(groups_of_small(small, self.max_group), tensors, self.devices)


@dataclass(frozen=True)
class Buckets:
    """Joins consecutive tensors of one dtype up to a size, beginning with the last.

    Backward passes end with the first layers, so the last gradients are available first: their
    bucket is sent while the others are computed, and there are few messages. So does PyTorch's
    DistributedDataParallel (arXiv:2006.15704). A joined tensor replaces the first of its bucket.
    With a `dtype`, tensors of different dtypes are cast to it; None separates them.
    """

    max_bytes: int
    devices: tuple[str, ...]
    dtype: str | None = None

    def __call__(self, tensors: Tensors) -> tuple[Tensors, Inverse]:
        """Joins tensors; the inverse keeps the dtype of its input."""
        if self.dtype is not None and len(set(static_dtypes(tensors))) > 1:
            tensors = _cast_all(tensors, tf.as_dtype(self.dtype), self.devices)
        sizes = [
            (dtype.name, shape.num_elements() * dtype.size)
            for dtype, shape in zip(static_dtypes(tensors), static_shapes(tensors), strict=True)
        ]
        return _joined_groups(buckets_of(sizes, self.max_bytes), tensors, self.devices)


@dataclass(frozen=True)
class Repacking:
    """Joins all tensors and cuts them into equal flat packs, the last with the remainder.

    A pack depends on its own tensors alone, so it can be sent while the backward pass computes
    others. Every device splits its own packs: the parts are views, whereas sending parts from
    device to device costs an operation for each. Tensors of different dtypes are cast to `dtype`,
    which is None where all have the same.
    """

    packs: int
    devices: tuple[str, ...]
    dtype: str | None = None

    def __call__(self, tensors: Tensors) -> tuple[Tensors, Inverse]:
        """Packs tensors; the inverse keeps the dtype of its input."""
        if not tensors:
            return tensors, lambda reduced: reduced
        dtypes = set(static_dtypes(tensors))
        dtype = dtypes.pop() if len(dtypes) == 1 else tf.as_dtype(self.dtype)
        layout = FlatLayout(static_shapes(tensors), dtype, self.packs)
        packed = _of_each(self.devices, layout.join, _cast_all(tensors, dtype, self.devices))
        return packed, lambda reduced: _of_each(self.devices, layout.split, reduced)


@dataclass(frozen=True)
class Scale:
    """Multiplies tensors by `sent` before and `factor` after the reduction; 1 adds no operation.

    A sum that several towers share is multiplied once, on its device.
    """

    factor: float
    devices: tuple[str, ...]
    sent: float = 1.0

    def __call__(self, tensors: Tensors) -> tuple[Tensors, Inverse]:
        """See `Stage.__call__`."""
        if self.sent != 1.0:
            tensors = [
                on_devices(self.devices, lambda tensor: tensor * self.sent, values)
                for values in tensors
            ]
        if self.factor == 1.0:
            return tensors, lambda reduced: reduced
        return tensors, lambda reduced: [self._scaled(values) for values in reduced]

    def _scaled(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        made: dict[tuple[int, str], tf.Tensor] = {}
        result = []
        for tensor, tower in zip(values, self.devices, strict=True):
            device = tensor.device or tower
            if (id(tensor), device) not in made:
                with tf.device(device):
                    made[id(tensor), device] = tensor * self.factor
            result.append(made[id(tensor), device])
        return result


def _factors(scale: float, dtype: str | None) -> tuple[float, float]:
    """Factors before and after the reduction; their product is `scale`.

    A float16 sum may exceed 65504 where no gradient does. So tensors sent as float16 are multiplied
    by the largest power of two up to `scale`: for `scale` = 1 / N, N numbers then add up to no more
    than the largest of them. Powers of two are exact in normal numbers; the rest of the factor,
    below 2, is applied in float32.
    """
    if dtype != "float16":  # bfloat16 has the range of float32
        return 1.0, scale
    mantissa, exponent = math.frexp(scale)
    return 2.0 ** (exponent - 1), 2.0 * mantissa


@dataclass(frozen=True)
class CompactTransfer:
    """Sends tensors as float16 or bfloat16 in both directions; each device widens its results."""

    dtype: str
    devices: tuple[str, ...]

    def __call__(self, tensors: Tensors) -> tuple[Tensors, Inverse]:
        """See `Stage.__call__`; what the inverse returns is float32."""
        narrowed = _cast_all(tensors, tf.as_dtype(self.dtype), self.devices)
        return narrowed, lambda reduced: _cast_all(reduced, tf.float32, self.devices)


class Deferral:
    """Returns the gradients of the previous step, first zeros: --variable_consistency=relaxed.

    Their reduction then waits for nothing in this step, and overlaps with the forward and backward
    pass. They are kept in a variable per tensor on the tower's device, made when a step is traced
    for the first time and used by further traces of the same object. A CPU or GPU takes over the
    gradient's memory instead of copying it.
    """

    def __init__(self, devices: tuple[str, ...]) -> None:
        self._devices = devices
        self._kept: list[list[tf.Variable]] = []

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The kept gradients; empty before a step has been traced."""
        return tuple(variable for copies in self._kept for variable in copies)

    def __call__(self, tensors: Tensors) -> tuple[Tensors, Inverse]:
        """See `Stage.__call__`."""
        if not self._kept:
            form = list(zip(static_shapes(tensors), static_dtypes(tensors), strict=True))
            self._kept = untraced(lambda: [self._zeros(i, *f) for i, f in enumerate(form)])
        deferred = []
        for kept, values in zip(self._kept, tensors, strict=True):
            pairs = list(zip(kept, values, strict=True))
            deferred.append(on_devices(self._devices, lambda pair: exchange(*pair), pairs))
        return deferred, lambda reduced: reduced

    def _zeros(self, index: int, shape: tf.TensorShape, dtype: tf.DType) -> list[tf.Variable]:
        result = []
        for device in self._devices:
            with tf.device(device):
                zeros = tf.zeros(shape, dtype)
                result.append(tf.Variable(zeros, trainable=False, name=f"deferred/{index}"))
        return result


def _joined_groups(
    groups: Sequence[Sequence[int]], tensors: Tensors, devices: Sequence[str]
) -> tuple[Tensors, Inverse]:
    """Joins groups of consecutive tensors of one dtype; see `Stage.__call__`."""
    shapes, dtypes = static_shapes(tensors), static_dtypes(tensors)
    layouts = [
        FlatLayout([shapes[i] for i in group], dtypes[group[0]]) if len(group) > 1 else None
        for group in groups
    ]
    if not any(layouts):
        return tensors, lambda reduced: reduced

    def join(own: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        joined: list[tf.Tensor] = []
        for group, layout in zip(groups, layouts, strict=True):
            members = [own[i] for i in group]
            joined += members if layout is None else layout.join(members)
        return joined

    def split(own: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        restored: list[tf.Tensor] = []
        for buffer, layout in zip(own, layouts, strict=True):
            restored += [buffer] if layout is None else layout.split([buffer])
        return restored

    return _of_each(devices, join, tensors), lambda reduced: _of_each(devices, split, reduced)


def _of_each(
    devices: Sequence[str],
    function: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    tensors: Tensors,
) -> Tensors:
    """Results of a function applied on every device to all tensors there."""
    return transposed(on_devices(devices, function, transposed(tensors)))


def _cast_all(tensors: Tensors, dtype: tf.DType, devices: Sequence[str]) -> Tensors:
    return [on_devices(devices, lambda tensor: cast(tensor, dtype), values) for values in tensors]
