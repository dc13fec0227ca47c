"""Joins tensors into flat buffers that can be split without copying.

TensorFlow can return a part of a buffer as a view, without a copy, if the part begins and ends at a
multiple of 64 bytes. Therefore, tensors whose size is a multiple of 64 bytes come first in a
buffer. (Padding would have the same effect, but it would have to be sent too.) The other tensors,
such as biases of odd length, are copied when the buffer is split. They are few and small in every
network. Shapes and dtypes are known at tracing time and are equal in all towers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.sizes import LINE_BYTES
from cnnbench.variable_mgr.gradients import concat
from cnnbench.variable_mgr.packing import buffer_sizes

_Piece: TypeAlias = "tuple[int, int]"
"""Index of a tensor, and the number of its elements in one buffer."""


class FlatBufferLayout:
    """Layout of tensors of known shapes in flat buffers, whose sizes `buffer_sizes` determines."""

    def __init__(self, shapes: Sequence[tf.TensorShape], dtype: tf.DType, buffers: int = 1) -> None:
        self._shapes = [tuple(shape.as_list()) for shape in shapes]
        self._dtype = dtype
        self._line = LINE_BYTES // dtype.size
        sizes = [math.prod(shape) for shape in self._shapes]
        # The sort is stable: aligned tensors stay in order among themselves, and so do unaligned
        # tensors.
        order = sorted(range(len(sizes)), key=lambda i: sizes[i] % self._line != 0)
        self._buffers = _distribute(
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
            for (tensor, _), part in zip(pieces, self._split(buffer, pieces), strict=True):
                parts[tensor].append(part)
        # Every operation takes time, so tensors of equal shape share one constant.
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

    def _split(self, buffer: tf.Tensor, pieces: Sequence[_Piece]) -> list[tf.Tensor]:
        # If one size is not a multiple of 64 bytes, tf.split copies all its outputs. So aligned and
        # unaligned pieces are split by separate operations.
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


def _distribute(pieces: Sequence[_Piece], sizes: Sequence[int]) -> list[list[_Piece]]:
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
