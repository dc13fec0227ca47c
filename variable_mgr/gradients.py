"""Gradients of variables from all towers: completed, made dense, summed or gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.spec import VariableMgrSpec

Gradient: TypeAlias = Any
"""A tensor, tf.IndexedSlices, or None if the loss does not depend on the variable."""
Gather: TypeAlias = "Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]"
"""Function that takes one tensor per tower of this process, and returns one result per tower."""
_T = TypeVar("_T")
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


def to_dense(gradient: Gradient, variable: tf.Variable, dtype: tf.DType | None = None) -> tf.Tensor:
    """Converts a gradient to a dense tensor (default: float32); adds slices with the same index."""
    dtype = dtype or tf.float32
    if isinstance(gradient, tf.IndexedSlices):
        # tf.IndexedSlices may lack the shape of the dense tensor, so the variable's shape is used.
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
