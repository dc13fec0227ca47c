"""Gradients by variable: columns of towers, used from the gradient tape to the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from cnnbench.variable_mgr.spec import VariableMgrSpec

# A tensor, tf.IndexedSlices, or None where the loss does not depend on the variable.
Gradient: TypeAlias = Any
# Maps one tensor per tower of this process to the result of each of these towers.
Gather: TypeAlias = "Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]"
_T = TypeVar("_T")
_R = TypeVar("_R")


class Column(NamedTuple):
    """One logical variable, with a gradient and a variable for each tower.

    After a reduction that ends on one device, there is one gradient and one variable.

    Attributes:
      gradients: see `Gradient`, each on its tower's device. After `complete` they are dense
        tensors of the variable's shape and of one dtype or, if `sparse`, all
        tf.IndexedSlices with values in the dtype of the tower's computation.
      variables: the copy that each tower uses; the same one where it is shared.
    """

    gradients: list[Gradient]
    variables: list[tf.Variable]

    @property
    def sparse(self) -> bool:
        """Whether the gradients are tf.IndexedSlices."""
        return isinstance(self.gradients[0], tf.IndexedSlices)

    def mapped(
        self, devices: Sequence[str], function: Callable[[Gradient, tf.Variable], Gradient]
    ) -> Column:
        """The column with a function applied on each device to gradient and variable."""
        pairs = list(zip(self.gradients, self.variables, strict=True))
        return self._replace(gradients=on_devices(devices, lambda pair: function(*pair), pairs))


def on_devices(
    devices: Sequence[str], function: Callable[[_T], _R], values: Sequence[_T]
) -> list[_R]:
    """Applies a function to the value of each device, under that device."""
    results = []
    for device, value in zip(devices, values, strict=True):
        with tf.device(device):
            results.append(function(value))
    return results


def transposed(lists: Sequence[Sequence[_T]]) -> list[list[_T]]:
    """Lists of tensors by device as columns, or columns as lists by device."""
    return [list(values) for values in zip(*lists, strict=True)]


def dense(gradient: Gradient, variable: tf.Variable, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """The gradient as a dense tensor, on the current device; slices with the same index add up."""
    if isinstance(gradient, tf.IndexedSlices):
        # The declared shape, because the slices need not know theirs.
        return tf.math.unsorted_segment_sum(
            cast(gradient.values, dtype), gradient.indices, variable.shape[0]
        )
    return cast(gradient, dtype)


def complete(
    columns: Sequence[Column],
    devices: Sequence[str],
    *,
    keep_sparse: bool = False,
    keep_dtype: bool = False,
) -> list[Column]:
    """Converts the gradients of a column to one form in all towers.

    The gradient of a tower whose loss does not use the variable is zero, so a mean still divides
    by the number of towers. A variable that no tower uses is left out and gets no update.

    Args:
      columns: gradients of any float dtype, dense, sparse or None.
      keep_sparse: whether a variable for which every tower has tf.IndexedSlices or
        None keeps them, with no slices for None. Otherwise all are made dense.
      keep_dtype: whether dense gradients keep the dtype of the towers' computation if all have
        the same. Otherwise they are float32.
    """
    check_towers(columns, devices)
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
                    one = gradient if sparse else dense(gradient, variable, dtype)
                elif sparse:
                    values, indices = present[0].values, present[0].indices
                    none = tf.zeros([0, *values.shape[1:]], values.dtype)
                    one = tf.IndexedSlices(none, tf.zeros([0], indices.dtype))
                else:
                    one = tf.zeros(variable.shape, dtype)
                gradients.append(one)
        result.append(column._replace(gradients=gradients))
    return result


def check_towers(columns: Sequence[Column], devices: Sequence[str]) -> None:
    """Checks that every column has a gradient and a variable for each device."""
    for gradients, variables in columns:
        if not len(gradients) == len(variables) == len(devices):
            raise ValueError(f"gradients of {len(gradients)} towers for {len(devices)} devices")


def reduce_where_updated(
    columns: Sequence[Column], spec: VariableMgrSpec, updated: Callable[[Column], tf.Variable]
) -> list[Column]:
    """Reduces a variable's gradients on the device of the copy that `updated` gives.

    Columns get one dense float32 gradient; those that no tower has a gradient for are left out.
    """
    scale, reduced = spec.reduction_scale, []
    keep_sparse = not spec.aggregation.sparse_to_dense
    for column in complete(columns, spec.devices, keep_sparse=keep_sparse):
        variable = updated(column)
        home = column._replace(variables=[variable])
        if column.sparse:
            totals = reduce_sparse(home, [variable.device], scale)
        else:
            with tf.device(variable.device):
                total = add_up(column.gradients)
                totals = [total if scale is None else total * scale]
        reduced.append(home._replace(gradients=totals))
    return reduced


def reduce_sparse(
    column: Column, devices: Sequence[str], scale: float | None, gather: Gather | None = None
) -> list[tf.Tensor]:
    """Gathers the slices of all towers; each device makes a dense float32 sum.

    Values are sent in the dtype in which towers computed them, with indices. The sum is that of
    dense gradients, up to the order of additions: rows that occur more than once add up.

    Args:
      devices: one for each of the column's variables: the towers', or a shared one's.
      gather: joins tensors with those of towers in other processes; `devices` then are those of
        the towers. None where all towers are here.
    """
    values = [slices.values for slices in column.gradients]
    indices = [slices.indices for slices in column.gradients]
    there = zip(gather(values), gather(indices), strict=True) if gather else None

    def dense_sum(variable: tf.Variable) -> tf.Tensor:
        slices = next(there) if there else (concat(values), concat(indices))
        total = dense(tf.IndexedSlices(*slices), variable)
        return total if scale is None else total * scale

    return on_devices(devices, dense_sum, column.variables)


def fit_together(column: Column) -> bool:
    """Whether the slices of all towers have equal static shapes, as gathering needs."""
    values, indices = (
        {tuple(getattr(slices, part).shape.as_list()) for slices in column.gradients}
        for part in ("values", "indices")
    )
    return len(values) == len(indices) == 1 and None not in values.pop() + indices.pop()


def concat(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates tensors on the current device; no operation for a single one."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def add_up(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Sums tensors by one operation on the current device; none for a single tensor."""
    return tensors[0] if len(tensors) == 1 else tf.add_n(list(tensors))


def cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The tensor as `dtype`; no operation if it has that dtype."""
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)
