"""Stages before the reduction of gradients, inverted afterwards; `make_stages` has their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

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

# Applies a reversible transformation to the gradients that are sent, each tower's operations on
# the tower's device. Returns the tensors to send, and the inverse for their reductions: as many, of
# the same dtypes and shapes, in the same order. Several towers may get the same object back; the
# inverse keeps such sharing where it costs nothing.
Stage: TypeAlias = Callable[[Tensors], tuple[Tensors, Inverse]]


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
    most, group = packing.agg_small_grads_max_bytes, packing.agg_small_grads_max_group
    dtype = packing.compact_dtype
    if most > 0:
        stages.append(partial(_join_small, devices, most, group))
    if packing.gradient_bucket_bytes:
        stages.append(partial(_fill_buckets, devices, packing.gradient_bucket_bytes, dtype))
    if packing.gradient_repacking:
        stages.append(partial(_repack, devices, packing.gradient_repacking, dtype))
    if scale is not None:
        stages.append(partial(_scale, devices, *factors(scale, dtype)))
    if dtype is not None:
        stages.append(partial(_narrow, devices, dtype))
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


def _join_small(
    devices: Sequence[str], max_bytes: int, max_group: int, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Joins runs of small float32 tensors, whose transfer is dominated by latency.

    A joined tensor replaces the first of its run, which ends after `max_group` tensors.
    """
    small = (
        dtype == tf.float32 and shape.num_elements() * dtype.size <= max_bytes
        for dtype, shape in zip(static_dtypes(tensors), static_shapes(tensors), strict=True)
    )
    return _joined_groups(groups_of_small(small, max_group), tensors, devices)


def _fill_buckets(
    devices: Sequence[str], max_bytes: int, dtype: str | None, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Joins consecutive tensors of one dtype up to a size, beginning with the last.

    Backward passes end with the first layers, so the last gradients are available first: their
    bucket is sent while the others are computed, and there are few messages. So does PyTorch's
    DistributedDataParallel (arXiv:2006.15704). A joined tensor replaces the first of its bucket.
    With a `dtype`, tensors of different dtypes are cast to it; None separates them. The inverse
    keeps the dtype of its input.
    """
    if dtype is not None and len(set(static_dtypes(tensors))) > 1:
        tensors = _cast_all(tensors, tf.as_dtype(dtype), devices)
    sizes = [
        (one.name, shape.num_elements() * one.size)
        for one, shape in zip(static_dtypes(tensors), static_shapes(tensors), strict=True)
    ]
    return _joined_groups(buckets_of(sizes, max_bytes), tensors, devices)


def _repack(
    devices: Sequence[str], packs: int, dtype: str | None, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Joins all tensors and cuts them into equal flat packs, the last with the remainder.

    A pack depends on its own tensors alone, so it can be sent while the backward pass computes
    others. Every device splits its own packs: the parts are views, whereas sending parts from
    device to device costs an operation for each. Tensors of different dtypes are cast to `dtype`.
    The inverse keeps the dtype of its input.
    """
    if not tensors:
        return tensors, _unchanged
    dtypes = set(static_dtypes(tensors))
    one = dtypes.pop() if len(dtypes) == 1 else tf.as_dtype(dtype)
    layout = FlatLayout(static_shapes(tensors), one, packs)
    packed = _of_each(devices, layout.join, _cast_all(tensors, one, devices))
    return packed, partial(_of_each, devices, layout.split)


def _scale(
    devices: Sequence[str], sent: float, received: float, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Multiplies tensors before and after the reduction; 1 adds no operation.

    A sum that several towers share is multiplied once, on its device.
    """

    def scaled(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        made: dict[tuple[int, str], tf.Tensor] = {}
        result = []
        for tensor, tower in zip(values, devices, strict=True):
            device = tensor.device or tower
            if (id(tensor), device) not in made:
                with tf.device(device):
                    made[id(tensor), device] = tensor * received
            result.append(made[id(tensor), device])
        return result

    if sent != 1.0:
        tensors = [on_devices(devices, lambda tensor: tensor * sent, v) for v in tensors]
    if received == 1.0:
        return tensors, _unchanged
    return tensors, lambda reduced: [scaled(values) for values in reduced]


def factors(scale: float, dtype: str | None) -> tuple[float, float]:
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


def _narrow(devices: Sequence[str], dtype: str, tensors: Tensors) -> tuple[Tensors, Inverse]:
    """Sends tensors in 16 bits in both directions; each device widens its results to float32."""
    narrowed = _cast_all(tensors, tf.as_dtype(dtype), devices)
    return narrowed, lambda reduced: _cast_all(reduced, tf.float32, devices)


def _unchanged(reduced: Tensors) -> Tensors:
    return reduced


class Deferral:
    """Returns the gradients of the previous step, initially zeros: --variable_consistency=relaxed.

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
        """See `Stage`."""
        if not self._kept:
            form = list(zip(static_shapes(tensors), static_dtypes(tensors), strict=True))
            self._kept = untraced(lambda: [self._zeros(i, *f) for i, f in enumerate(form)])
        deferred = []
        for kept, values in zip(self._kept, tensors, strict=True):
            pairs = list(zip(kept, values, strict=True))
            deferred.append(on_devices(self._devices, lambda pair: exchange(*pair), pairs))
        return deferred, _unchanged

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
    """Joins groups of consecutive tensors of one dtype."""
    shapes, dtypes = static_shapes(tensors), static_dtypes(tensors)
    layouts = [
        FlatLayout([shapes[i] for i in group], dtypes[group[0]]) if len(group) > 1 else None
        for group in groups
    ]
    if not any(layouts):
        return tensors, _unchanged

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

    return _of_each(devices, join, tensors), partial(_of_each, devices, split)


def _of_each(
    devices: Sequence[str],
    function: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    tensors: Tensors,
) -> Tensors:
    """Results of a function applied on every device to all tensors there."""
    return transposed(on_devices(devices, function, transposed(tensors)))


def _cast_all(tensors: Tensors, dtype: tf.DType, devices: Sequence[str]) -> Tensors:
    return [on_devices(devices, lambda tensor: cast(tensor, dtype), values) for values in tensors]
