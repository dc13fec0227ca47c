"""Stages that transform gradients before the reduction, and whose inverses run after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import tensorflow as tf

from cnnbench.variable_mgr.buffers import FlatBufferLayout
from cnnbench.variable_mgr.gradients import cast, map_on_devices, transpose_lists
from cnnbench.variable_mgr.packing import Packing, group_into_buckets, group_small_tensors
from cnnbench.variable_mgr.tracing import assign_and_return_old, run_untraced

Tensors: TypeAlias = "list[list[tf.Tensor]]"
"""tensors[i][t] is tensor i of tower t; tensor i has one dtype and static shape in all towers."""
Inverse: TypeAlias = "Callable[[Tensors], Tensors]"
"""Function that converts reduced tensors to the number and shapes of the stage's input tensors."""

Stage: TypeAlias = Callable[[Tensors], tuple[Tensors, Inverse]]
"""A reversible transformation of gradients, on the device of each tower.

It returns the tensors to send, and an inverse function for the reduced tensors. The inverse gets
tensors of the same number, dtypes, shapes and order as the tensors to send. If towers share a
reduced tensor, the inverse also returns a shared tensor where this needs no additional operation.
"""


def _static_shapes(tensors: Tensors) -> list[tf.TensorShape]:
    """Returns the shape of each tensor; raises ValueError if a shape is not static."""
    shapes = [values[0].shape for values in tensors]
    for i, shape in enumerate(shapes):
        if not shape.is_fully_defined():
            raise ValueError(f"gradient {i} has the unknown shape {shape}")
    return shapes


def _dtypes(tensors: Tensors) -> list[tf.DType]:
    """Returns the dtype of each tensor, which is the same in all towers."""
    return [values[0].dtype for values in tensors]


def make_stages(
    packing: Packing, devices: tuple[str, ...], scale: float | None
) -> tuple[Stage, ...]:
    """Creates the stages of a run, in their fixed order.

    `scale` is the factor by which the sum of gradients is multiplied; None means 1.

    1. Small gradients are joined first, while they are still separate and float32. 2. Then
    gradients are joined in buckets or repacked. Few tensors remain, so later stages need
       few operations. 16-bit and 32-bit gradients are joined in the dtype that is sent.
    3. Scaling comes before compacting, so its inverse comes after the inverse of compacting.
       Therefore the mean is computed in float32, once per pack. Tensors that are sent as float16
       are first multiplied by a power of two.
    4. Compacting comes before deferral, so that deferral keeps only 16 bits per element.
    5. Deferral comes last: it keeps the tensors to send until the next step, so that their
       reduction can begin with that step.
    """
    stages: list[Stage] = []
    most, group = packing.agg_small_grads_max_bytes, packing.agg_small_grads_max_group
    dtype = packing.compact_dtype
    if most > 0:
        stages.append(partial(_join_small, devices, most, group))
    if packing.gradient_bucket_bytes:
        stages.append(partial(_fill_buckets, devices, packing.gradient_bucket_bytes, dtype))
    if packing.gradient_repacking:
        stages.append(partial(_repack_tensors, devices, packing.gradient_repacking, dtype))
    if scale is not None:
        stages.append(partial(_scale_tensors, devices, *split_scale(scale, dtype)))
    if dtype is not None:
        stages.append(partial(_send_in_16_bits, devices, dtype))
    if packing.applies_gradients_late:
        stages.append(DeferredGradients(devices))
    return tuple(stages)


def reduce_through_stages(
    stages: Sequence[Stage], tensors: Tensors, reduce: Callable[[Tensors], Tensors]
) -> Tensors:
    """Sums tensors over towers with `reduce`, between the stages and their inverses.

    The inverses run in reverse order.
    """
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
    """Joins consecutive small float32 tensors, because latency dominates their transfer time.

    Tensors of at most `max_bytes` bytes are small. At most `max_group` tensors are joined. The
    joined tensor takes the place of the first of them.
    """
    small = (
        dtype == tf.float32 and shape.num_elements() * dtype.size <= max_bytes
        for dtype, shape in zip(_dtypes(tensors), _static_shapes(tensors), strict=True)
    )
    return _join_groups(group_small_tensors(small, max_group), tensors, devices)


def _fill_buckets(
    devices: Sequence[str], max_bytes: int, dtype: str | None, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Joins consecutive tensors into buckets of at most `max_bytes`, beginning with the last layer.

    A backward pass begins with the last layers, so their gradients are available first. Their
    bucket is sent while the other gradients are computed, and there are few messages. PyTorch's
    DistributedDataParallel uses the same buckets (arXiv:2006.15704). The joined tensor takes the
    place of the first tensor of its bucket. If `dtype` is given, all tensors are cast to it. If it
    is None, tensors of different dtypes go to different buckets. The inverse keeps the dtype of its
    input.
    """
    if dtype is not None and len(set(_dtypes(tensors))) > 1:
        tensors = _cast_all(tensors, tf.as_dtype(dtype), devices)
    sizes = [
        (dtype.name, shape.num_elements() * dtype.size)
        for dtype, shape in zip(_dtypes(tensors), _static_shapes(tensors), strict=True)
    ]
    return _join_groups(group_into_buckets(sizes, max_bytes), tensors, devices)


def _repack_tensors(
    devices: Sequence[str], packs: int, dtype: str | None, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Joins all tensors and cuts them into `packs` flat packs of equal size.

    The last pack also has the remaining elements. A pack depends only on its own tensors, so it can
    be sent while the backward pass computes the other tensors. Every device splits its own packs,
    so that the pieces are views. Sending the pieces between devices would need one operation per
    piece. Tensors of different dtypes are cast to `dtype`. The inverse keeps the dtype of its
    input.
    """
    if not tensors:
        return tensors, _unchanged
    dtypes = set(_dtypes(tensors))
    shared_dtype = dtypes.pop() if len(dtypes) == 1 else tf.as_dtype(dtype)
    layout = FlatBufferLayout(_static_shapes(tensors), shared_dtype, packs)
    packed = _map_lists(devices, layout.join, _cast_all(tensors, shared_dtype, devices))
    return packed, partial(_map_lists, devices, layout.split)


def _scale_tensors(
    devices: Sequence[str], factor_before: float, factor_after: float, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Multiplies tensors by `factor_before` before, and by `factor_after` after the reduction.

    The factor 1 adds no operation. If several towers share a sum, the sum is multiplied once, on
    its device.
    """

    def scale_values(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        products: dict[tuple[int, str], tf.Tensor] = {}
        result = []
        for tensor, tower in zip(values, devices, strict=True):
            device = tensor.device or tower
            if (id(tensor), device) not in products:
                with tf.device(device):
                    products[id(tensor), device] = tensor * factor_after
            result.append(products[id(tensor), device])
        return result

    if factor_before != 1.0:
        tensors = [map_on_devices(devices, lambda t: t * factor_before, v) for v in tensors]
    if factor_after == 1.0:
        return tensors, _unchanged
    return tensors, lambda reduced: [scale_values(values) for values in reduced]


def split_scale(scale: float, dtype: str | None) -> tuple[float, float]:
    """Splits `scale` into a factor before and a factor after the reduction of gradients.

    A sum of float16 gradients may exceed 65504 even if no gradient does. So tensors that are sent
    as float16 are first multiplied by the largest power of two that is at most `scale`. If `scale`
    is 1 / N, the sum of N such numbers cannot exceed the largest gradient. Multiplying normal
    numbers by a power of two is exact. The rest of the factor, which is below 2, is applied in
    float32.
    """
    if dtype != "float16":  # bfloat16 has the range of float32.
        return 1.0, scale
    mantissa, exponent = math.frexp(scale)
    return 2.0 ** (exponent - 1), 2.0 * mantissa


def _send_in_16_bits(
    devices: Sequence[str], dtype: str, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Sends tensors and their sums in 16 bits; each device converts the sums to float32."""
    narrowed = _cast_all(tensors, tf.as_dtype(dtype), devices)
    return narrowed, lambda reduced: _cast_all(reduced, tf.float32, devices)


def _unchanged(reduced: Tensors) -> Tensors:
    return reduced


class DeferredGradients:
    """Stage that replaces gradients by those of the previous step, initially zeros.

    It implements --variable_consistency=relaxed. The reduction does not depend on the current step,
    so it overlaps with the forward and backward pass. Each tensor is kept in a variable on the
    tower's device. The variable is created when a step is first traced, and later traces of the
    same object use it again. CPUs and GPUs move the gradient's memory into the variable instead of
    copying it.
    """

    def __init__(self, devices: tuple[str, ...]) -> None:
        self._devices = devices
        self._variables: list[list[tf.Variable]] = []

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The variables that store gradients; none before the first trace."""
        return tuple(variable for copies in self._variables for variable in copies)

    def __call__(self, tensors: Tensors) -> tuple[Tensors, Inverse]:
        """Stores gradients and returns those of the previous step; see `Stage`."""
        if not self._variables:
            forms = list(zip(_static_shapes(tensors), _dtypes(tensors), strict=True))
            self._variables = run_untraced(
                lambda: [self._make_zeros(i, *f) for i, f in enumerate(forms)]
            )
        deferred = []
        for variables, values in zip(self._variables, tensors, strict=True):
            pairs = list(zip(variables, values, strict=True))
            old = map_on_devices(self._devices, lambda pair: assign_and_return_old(*pair), pairs)
            deferred.append(old)
        return deferred, _unchanged

    def _make_zeros(self, index: int, shape: tf.TensorShape, dtype: tf.DType) -> list[tf.Variable]:
        result = []
        for device in self._devices:
            with tf.device(device):
                zeros = tf.zeros(shape, dtype)
                result.append(tf.Variable(zeros, trainable=False, name=f"deferred/{index}"))
        return result


def _join_groups(
    groups: Sequence[Sequence[int]], tensors: Tensors, devices: Sequence[str]
) -> tuple[Tensors, Inverse]:
    """Joins each group of consecutive tensors, which have one dtype, to a single tensor."""
    shapes, dtypes = _static_shapes(tensors), _dtypes(tensors)
    layouts = [
        FlatBufferLayout([shapes[i] for i in group], dtypes[group[0]]) if len(group) > 1 else None
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

    return _map_lists(devices, join, tensors), partial(_map_lists, devices, split)


def _map_lists(
    devices: Sequence[str],
    function: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    tensors: Tensors,
) -> Tensors:
    """Applies a function to the list of each device's tensors, on this device."""
    return transpose_lists(map_on_devices(devices, function, transpose_lists(tensors)))


def _cast_all(tensors: Tensors, dtype: tf.DType, devices: Sequence[str]) -> Tensors:
    return [map_on_devices(devices, lambda t: cast(t, dtype), values) for values in tensors]
