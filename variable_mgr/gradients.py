"""Aggregation of gradients: reversible stages that join, pack, scale, compact and defer them.

Several tensors are joined in one flat buffer. TensorFlow can return a part of a buffer as a view,
without a copy, if the part begins and ends at a multiple of 64 bytes. Therefore, tensors whose size
is a multiple of 64 bytes come first in a buffer. (Padding would have the same effect, but it would
have to be sent too.) The other tensors, such as biases of odd length, are copied when the buffer is
split. They are few and small in every network. Shapes and dtypes are known at tracing time and are
equal in all towers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.sizes import LINE_BYTES
from cnnbench.variable_mgr.packing import (
    Packing,
    buffer_sizes,
    group_into_buckets,
    group_small_tensors,
)
from cnnbench.variable_mgr.spec import VariableMgrSpec

# Caches of tensors during one trace, and variables that store a tensor until the next step.

_T = TypeVar("_T")


def run_untraced(function: Callable[[], _T]) -> _T:
    """Runs a function in another thread, in which TensorFlow traces no function.

    tf.init_scope is not used: if variables are created in it, tf.function traces the whole step a
    second time.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def current_traced_graph() -> tf.Graph:
    """Returns the graph that is being traced, by creating an unused constant in it."""
    return tf.constant(0, name="traced_graph").graph


class PerTraceCache:
    """A cache of tensors of the function that is being traced, by any key.

    The cache is emptied when another function is traced.
    """

    def __init__(self) -> None:
        self._graph: tf.Graph | None = None
        self._values: dict[Any, tf.Tensor] = {}

    def tensors_of_trace(self) -> dict[Any, tf.Tensor]:
        """Returns the cached tensors of the function that is being traced, to read or add to."""
        graph = current_traced_graph()
        if graph is not self._graph:
            self._graph, self._values = graph, {}
        return self._values

    def clear(self) -> None:
        """Empties the cache."""
        self._graph, self._values = None, {}


def assign_and_return_old(variable: tf.Variable, tensor: tf.Tensor) -> tf.Tensor:
    """Assigns a new value to a variable and returns the old value.

    The assignment runs even if the old value is unused.
    """
    old = variable.read_value()
    # Outside of tf.function, TensorFlow does not order reads and writes of a variable.
    with tf.control_dependencies([old]):
        variable.assign(tensor, read_value=False)
    return old


# Each variable with its gradients from all towers.

Gradient: TypeAlias = Any
"""A tensor, tf.IndexedSlices, or None if the loss does not depend on the variable."""
Gather: TypeAlias = "Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]"
"""Function that takes one tensor per tower of this process, and returns one result per tower."""
_R = TypeVar("_R")


class VariableGradients(NamedTuple):
    """One logical variable: its gradient from each tower, and the copy that each tower uses.

    After a reduction to a single device, a `VariableGradients` has one gradient and one variable.

    Attributes:
      gradients: see `Gradient`, each on its tower's device. In the result of
        `complete_gradients`, either all are dense tensors with the variable's shape and
        the same dtype, or (if `is_sparse`) all are tf.IndexedSlices with values in the compute
        dtype.
      variables: the copy that each tower uses; the same object if towers share it.
    """

    gradients: list[Gradient]
    variables: list[tf.Variable]

    @property
    def is_sparse(self) -> bool:
        """Whether the gradients are sparse (tf.IndexedSlices)."""
        return isinstance(self.gradients[0], tf.IndexedSlices)

    def map_gradients(
        self, devices: Sequence[str], function: Callable[[Gradient, tf.Variable], Gradient]
    ) -> VariableGradients:
        """Replaces each gradient by ``function(gradient, variable)`` on the gradient's device."""
        pairs = list(zip(self.gradients, self.variables, strict=True))
        return self._replace(gradients=map_on_devices(devices, lambda pair: function(*pair), pairs))


def map_on_devices(
    devices: Sequence[str], function: Callable[[_T], _R], values: Sequence[_T]
) -> list[_R]:
    """Applies a function to each of `values`, in the device scope of the corresponding device."""
    results = []
    for device, value in zip(devices, values, strict=True):
        with tf.device(device):
            results.append(function(value))
    return results


def transpose_lists(lists: Sequence[Sequence[_T]]) -> list[list[_T]]:
    """Transposes nested lists, for example from one list per device to one list per tensor."""
    return [list(values) for values in zip(*lists, strict=True)]


def to_dense(gradient: Gradient, variable: tf.Variable, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Converts a gradient to a dense tensor, by adding slices with the same index."""
    if isinstance(gradient, tf.IndexedSlices):
        # tf.IndexedSlices may not contain the shape of the dense tensor, but the variable does.
        return tf.math.unsorted_segment_sum(
            cast(gradient.values, dtype), gradient.indices, variable.shape[0]
        )
    return cast(gradient, dtype)


def complete_gradients(
    columns: Sequence[VariableGradients],
    devices: Sequence[str],
    *,
    keep_sparse: bool = False,
    keep_dtype: bool = False,
) -> list[VariableGradients]:
    """Converts each variable's gradients so that those of all towers are dense, or all are sparse.

    If a tower's loss does not use a variable, the tower's gradient becomes zero, so that the mean
    is still over all towers. If no tower uses a variable, the variable is removed from the result
    and not updated.

    Args:
      columns: each variable with its gradients from all towers: of any float dtype, dense, sparse
        or None.
      keep_sparse: whether gradients stay sparse if every tower has tf.IndexedSlices or None; None
        becomes zero slices. Otherwise all gradients are made dense.
      keep_dtype: whether dense gradients keep their dtype if all towers have the same dtype.
        Otherwise they are cast to float32.
    """
    check_towers_complete(columns, devices)
    result = []
    for column in columns:
        present = [gradient for gradient in column.gradients if gradient is not None]
        if not present:
            continue
        variable = column.variables[0]
        sparse = keep_sparse and all(isinstance(g, tf.IndexedSlices) for g in present)
        dtypes = {gradient.dtype for gradient in present}
        dtype = dtypes.pop() if keep_dtype and len(dtypes) == 1 else tf.float32
        gradients = []
        for gradient, device in zip(column.gradients, devices, strict=True):
            with tf.device(device):
                if gradient is not None:
                    complete_gradient = gradient if sparse else to_dense(gradient, variable, dtype)
                elif sparse:
                    values, indices = present[0].values, present[0].indices
                    none = tf.zeros([0, *values.shape[1:]], values.dtype)
                    complete_gradient = tf.IndexedSlices(none, tf.zeros([0], indices.dtype))
                else:
                    complete_gradient = tf.zeros(variable.shape, dtype)
                gradients.append(complete_gradient)
        result.append(column._replace(gradients=gradients))
    return result


def check_towers_complete(columns: Sequence[VariableGradients], devices: Sequence[str]) -> None:
    """Raises ValueError if a variable does not have one gradient and one copy for each device."""
    for gradients, variables in columns:
        if not len(gradients) == len(variables) == len(devices):
            raise ValueError(f"gradients of {len(gradients)} towers for {len(devices)} devices")


def reduce_where_updated(
    columns: Sequence[VariableGradients],
    spec: VariableMgrSpec,
    updated: Callable[[VariableGradients], tf.Variable],
) -> list[VariableGradients]:
    """Reduces each variable's gradients on the device of the copy that the optimizer updates.

    `updated` returns this copy. In the result, each variable has one dense float32 gradient.
    Variables without any gradient are removed.
    """
    scale, reduced = spec.reduction_scale, []
    keep_sparse = not spec.aggregation.sparse_to_dense
    for column in complete_gradients(columns, spec.devices, keep_sparse=keep_sparse):
        variable = updated(column)
        home = column._replace(variables=[variable])
        if column.is_sparse:
            totals = reduce_sparse(home, [variable.device], scale)
        else:
            with tf.device(variable.device):
                total = sum_tensors(column.gradients)
                totals = [total if scale is None else total * scale]
        reduced.append(home._replace(gradients=totals))
    return reduced


def reduce_sparse(
    column: VariableGradients,
    devices: Sequence[str],
    scale: float | None,
    gather: Gather | None = None,
) -> list[tf.Tensor]:
    """Gathers a variable's sparse gradients; each of `devices` then computes their dense sum.

    The sum is float32. Values are sent with their indices, in the dtype in which towers computed
    them. Rows that occur more than once are added. The result equals the sum of dense gradients, up
    to the order of additions.

    Args:
      devices: the device of each copy of the variable: one per tower, or a single device if the
        towers share the variable.
      gather: function that joins tensors with the tensors of towers in other processes; in this
        case, `devices` has one entry per tower. None if all towers are in this process.
    """
    values = [slices.values for slices in column.gradients]
    indices = [slices.indices for slices in column.gradients]
    gathered = zip(gather(values), gather(indices), strict=True) if gather else None

    def dense_sum(variable: tf.Variable) -> tf.Tensor:
        slices = next(gathered) if gathered else (concat(values), concat(indices))
        total = to_dense(tf.IndexedSlices(*slices), variable)
        return total if scale is None else total * scale

    return map_on_devices(devices, dense_sum, column.variables)


def slices_can_be_gathered(column: VariableGradients) -> bool:
    """Whether a variable's sparse gradients have equal static shapes, which gathering requires."""
    values, indices = (
        {tuple(getattr(slices, part).shape.as_list()) for slices in column.gradients}
        for part in ("values", "indices")
    )
    return len(values) == len(indices) == 1 and None not in values.pop() + indices.pop()


def concat(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates tensors on the current device; a single tensor is returned without copying."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def sum_tensors(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Sums tensors on the current device; a single tensor is returned without copying."""
    return tensors[0] if len(tensors) == 1 else tf.add_n(list(tensors))


def cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Casts a tensor to `dtype`; if the tensor has this dtype already, adds no operation."""
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)


# Joining tensors into flat buffers that can be split without copying.

Tensors: TypeAlias = "list[list[tf.Tensor]]"
"""tensors[i][t] is tensor i of tower t; tensor i has one dtype and static shape in all towers."""
Inverse: TypeAlias = "Callable[[Tensors], Tensors]"
"""Function that converts reduced tensors to the number and shapes of the stage's input tensors."""
_Piece: TypeAlias = "tuple[int, int]"
"""Index of a tensor, and the number of its elements in one buffer."""


class FlatBufferLayout:
    """Layout of tensors of known shapes in flat buffers, whose sizes `buffer_sizes` determines."""

    def __init__(self, shapes: Sequence[tf.TensorShape], dtype: tf.DType, buffers: int = 1) -> None:
        self._shapes = [tuple(shape.as_list()) for shape in shapes]
        self._dtype = dtype
        self._line = LINE_BYTES // dtype.size
        sizes = [math.prod(shape) for shape in self._shapes]
        # Sorting is stable: aligned tensors keep their order, and unaligned tensors keep theirs.
        order = sorted(range(len(sizes)), key=lambda i: sizes[i] % self._line != 0)
        self._buffers = _distribute_pieces(
            [(i, sizes[i]) for i in order if sizes[i]],
            buffer_sizes(sum(sizes), buffers, self._line),
        )
        self._parts: list[list[int]] = [[] for _ in sizes]
        for pieces in self._buffers:
            for tensor, size in pieces:
                self._parts[tensor].append(size)

    def join(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Joins tensors to buffers on the current device. A buffer needs only its own tensors."""
        flatten = tf.constant([-1])
        parts = []
        for tensor, sizes in zip(tensors, self._parts, strict=True):
            if not sizes:
                parts.append(iter(()))
                continue
            flat = tensor if tensor.shape.rank == 1 else tf.reshape(tensor, flatten)
            parts.append(iter(tf.split(flat, sizes) if len(sizes) > 1 else [flat]))
        return [
            _concat_or_empty([next(parts[tensor]) for tensor, _ in pieces], self._dtype)
            for pieces in self._buffers
        ]

    def split(self, buffers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Splits buffers, or sums of buffers, into tensors on the current device."""
        parts: list[list[tf.Tensor]] = [[] for _ in self._shapes]
        for buffer, pieces in zip(buffers, self._buffers, strict=True):
            for (tensor, _), part in zip(pieces, self._split_buffer(buffer, pieces), strict=True):
                parts[tensor].append(part)
        # Tensors of equal shape share one constant, because every operation takes time.
        constants: dict[tuple[int, ...], tf.Tensor] = {}
        result = []
        for shape, own in zip(self._shapes, parts, strict=True):
            flat = _concat_or_empty(own, buffers[0].dtype)
            if len(shape) != 1:
                if shape not in constants:
                    constants[shape] = tf.constant(shape, tf.int32)
                flat = tf.reshape(flat, constants[shape])
            result.append(flat)
        return result

    def _split_buffer(self, buffer: tf.Tensor, pieces: Sequence[_Piece]) -> list[tf.Tensor]:
        # tf.split copies all its outputs if one size is not a multiple of 64 bytes.
        # Therefore, aligned pieces and unaligned pieces are split by separate operations.
        head = 0
        while head < len(pieces) and pieces[head][1] % self._line == 0:
            head += 1
        aligned = [size for _, size in pieces[:head]]
        unaligned = [size for _, size in pieces[head:]]
        if aligned and unaligned:
            begin = sum(aligned)
            return [
                *_split_sizes(tf.slice(buffer, [0], [begin]), aligned),
                *_split_sizes(tf.slice(buffer, [begin], [sum(unaligned)]), unaligned),
            ]
        return _split_sizes(buffer, aligned or unaligned)


def _distribute_pieces(pieces: Sequence[_Piece], sizes: Sequence[int]) -> list[list[_Piece]]:
    """Distributes tensors, or pieces of tensors, over buffers with the given numbers of elements.

    A piece that crosses the end of a buffer is cut.
    """
    buffers: list[list[_Piece]] = []
    remaining = list(reversed(pieces))
    for size in sizes:
        buffers.append([])
        while size:
            tensor, rest = remaining.pop()
            taken = min(size, rest)
            buffers[-1].append((tensor, taken))
            if taken < rest:
                remaining.append((tensor, rest - taken))
            size -= taken
    return buffers


def _split_sizes(buffer: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
    if len(sizes) < 2:
        return [buffer] * len(sizes)
    parts: list[tf.Tensor] = tf.split(buffer, sizes)
    return parts


def _concat_or_empty(parts: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    return concat(parts) if parts else tf.zeros([0], dtype)


def static_shapes(tensors: Tensors) -> list[tf.TensorShape]:
    """Returns the shape of each tensor; raises ValueError if a shape is not static."""
    shapes = [values[0].shape for values in tensors]
    for i, shape in enumerate(shapes):
        if not shape.is_fully_defined():
            raise ValueError(f"gradient {i} has the unknown shape {shape}")
    return shapes


def static_dtypes(tensors: Tensors) -> list[tf.DType]:
    """Returns the dtype of each tensor, which is the same in all towers."""
    return [values[0].dtype for values in tensors]


# Stages that transform gradients before the reduction, and whose inverses run after it.

Stage: TypeAlias = Callable[[Tensors], tuple[Tensors, Inverse]]
"""A reversible transformation of gradients, on the device of each tower.

It returns the tensors to send, and an inverse function for the reduced tensors. The inverse gets
tensors of the same number, dtypes, shapes and order as the tensors to send. If towers share a
reduced tensor, the inverse also returns a shared tensor where this needs no additional operation.
"""


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
        stages.append(partial(_join_small_tensors, devices, most, group))
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


def _join_small_tensors(
    devices: Sequence[str], max_bytes: int, max_group: int, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Joins consecutive small float32 tensors, because latency dominates their transfer time.

    Tensors of at most `max_bytes` bytes are small. At most `max_group` tensors are joined. The
    joined tensor takes the place of the first of them.
    """
    small = (
        dtype == tf.float32 and shape.num_elements() * dtype.size <= max_bytes
        for dtype, shape in zip(static_dtypes(tensors), static_shapes(tensors), strict=True)
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
    if dtype is not None and len(set(static_dtypes(tensors))) > 1:
        tensors = _cast_all(tensors, tf.as_dtype(dtype), devices)
    sizes = [
        (dtype.name, shape.num_elements() * dtype.size)
        for dtype, shape in zip(static_dtypes(tensors), static_shapes(tensors), strict=True)
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
        return tensors, _return_unchanged
    dtypes = set(static_dtypes(tensors))
    shared_dtype = dtypes.pop() if len(dtypes) == 1 else tf.as_dtype(dtype)
    layout = FlatBufferLayout(static_shapes(tensors), shared_dtype, packs)
    packed = _map_tensor_lists(devices, layout.join, _cast_all(tensors, shared_dtype, devices))
    return packed, partial(_map_tensor_lists, devices, layout.split)


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
        return tensors, _return_unchanged
    return tensors, lambda reduced: [scale_values(values) for values in reduced]


def split_scale(scale: float, dtype: str | None) -> tuple[float, float]:
    """Splits `scale` into a factor before and a factor after the reduction of gradients.

    A sum of float16 gradients may exceed 65504 even if no gradient does. So tensors that are sent
    as float16 are first multiplied by the largest power of two that is at most `scale`. If `scale`
    is 1 / N, the sum of N such numbers cannot exceed the largest gradient. Multiplying normal
    numbers by a power of two is exact. The rest of the factor, which is below 2, is applied in
    float32.
    """
    if dtype != "float16":  # Sums of bfloat16 do not overflow: it has the range of float32.
        return 1.0, scale
    mantissa, exponent = math.frexp(scale)
    return 2.0 ** (exponent - 1), 2.0 * mantissa


def _send_in_16_bits(
    devices: Sequence[str], dtype: str, tensors: Tensors
) -> tuple[Tensors, Inverse]:
    """Sends tensors and their sums in 16 bits; each device converts the sums to float32."""
    narrowed = _cast_all(tensors, tf.as_dtype(dtype), devices)
    return narrowed, lambda reduced: _cast_all(reduced, tf.float32, devices)


def _return_unchanged(reduced: Tensors) -> Tensors:
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
            forms = list(zip(static_shapes(tensors), static_dtypes(tensors), strict=True))
            self._variables = run_untraced(
                lambda: [self._make_zero_variables(i, *f) for i, f in enumerate(forms)]
            )
        deferred = []
        for variables, values in zip(self._variables, tensors, strict=True):
            pairs = list(zip(variables, values, strict=True))
            old = map_on_devices(self._devices, lambda pair: assign_and_return_old(*pair), pairs)
            deferred.append(old)
        return deferred, _return_unchanged

    def _make_zero_variables(
        self, index: int, shape: tf.TensorShape, dtype: tf.DType
    ) -> list[tf.Variable]:
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
    shapes, dtypes = static_shapes(tensors), static_dtypes(tensors)
    layouts = [
        FlatBufferLayout([shapes[i] for i in group], dtypes[group[0]]) if len(group) > 1 else None
        for group in groups
    ]
    if not any(layouts):
        return tensors, _return_unchanged

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

    return _map_tensor_lists(devices, join, tensors), partial(_map_tensor_lists, devices, split)


def _map_tensor_lists(
    devices: Sequence[str],
    function: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    tensors: Tensors,
) -> Tensors:
    """Applies a function to the list of each device's tensors, on this device."""
    return transpose_lists(map_on_devices(devices, function, transpose_lists(tensors)))


def _cast_all(tensors: Tensors, dtype: tf.DType, devices: Sequence[str]) -> Tensors:
    return [map_on_devices(devices, lambda t: cast(t, dtype), values) for values in tensors]
