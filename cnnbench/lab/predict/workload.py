"""Reduced tensors, after packing and chunking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.cost import Tensor
from cnnbench.variable_mgr.sizes import (
    DTYPE_BYTES,
    LINE_BYTES,
    buckets_of,
    buffer_sizes,
    groups_of_small,
)


class NotPredictedError(ValueError):
    """No prediction is available for this algorithm or these devices."""


@dataclass(frozen=True)
class TrainingStep:
    """Computation and gradients of a device in a step.

    `tensors` are the gradients before packing, `step_seconds` is None if unknown, and `batch_size`
    is that of one device.
    """

    model: str
    tensors: tuple[Tensor, ...]
    packing: Packing
    dtype: str
    step_seconds: float | None
    batch_size: int

    @property
    def bytes(self) -> int:
        """Size of the gradients of one device."""
        return total_bytes(self.tensors)


def gradient_tensors(shapes: Sequence[Sequence[int]], itemsize: int) -> tuple[Tensor, ...]:
    """A tensor per shape, with elements of `itemsize` bytes as sent."""
    return tuple(Tensor(math.prod(shape), itemsize) for shape in shapes)


def total_bytes(tensors: Sequence[Tensor]) -> int:
    """Size of all tensors."""
    return sum(tensor.bytes for tensor in tensors)


def sent(packing: Packing, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that one device sends: joined, then narrowed to 16 bits if so packed."""
    joined = _joined(packing, tensors)
    if packing.compact_dtype is None:
        return joined
    itemsize = DTYPE_BYTES[packing.compact_dtype]
    return [Tensor(tensor.elements, min(tensor.itemsize, itemsize)) for tensor in joined]


def _joined(packing: Packing, tensors: Sequence[Tensor]) -> list[Tensor]:
    result = list(tensors)
    if packing.agg_small_grads_max_bytes:
        small = (t.itemsize == 4 and t.bytes <= packing.agg_small_grads_max_bytes for t in tensors)
        groups = groups_of_small(small, packing.agg_small_grads_max_group)
        result = [_one([tensors[index] for index in group]) for group in groups]
    if packing.gradient_bucket_bytes:
        # Gradients of one dtype have one size of element.
        sizes_of = [(str(t.itemsize), t.bytes) for t in result]
        groups = buckets_of(sizes_of, packing.gradient_bucket_bytes)
        result = [_one([result[index] for index in group]) for group in groups]
    if packing.gradient_repacking and result:
        whole = _one(result)
        line = LINE_BYTES // whole.itemsize
        sizes = buffer_sizes(whole.elements, packing.gradient_repacking, line)
        result = [Tensor(size, whole.itemsize) for size in sizes]
    return result


def packing_text(packing: Packing) -> str:
    """Describes the packing as predictions are printed and recorded."""
    parts = []
    if packing.agg_small_grads_max_bytes:
        parts.append(
            f"up to {packing.agg_small_grads_max_group} of at most "
            f"{packing.agg_small_grads_max_bytes} bytes joined"
        )
    if packing.gradient_bucket_bytes:
        parts.append(f"buckets of {packing.gradient_bucket_bytes} bytes")
    if packing.gradient_repacking:
        parts.append(f"{packing.gradient_repacking} packs")
    if packing.compact_dtype:
        parts.append(f"sent as {packing.compact_dtype}")
    return ", ".join(parts) or "unpacked"


def _one(tensors: Sequence[Tensor]) -> Tensor:
    return Tensor(sum(tensor.elements for tensor in tensors), tensors[0].itemsize)
