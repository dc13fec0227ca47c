"""Tensors concatenated in flat buffers that can be split without copying.

TensorFlow returns a part of a tensor as a view, without copying, if the part begins and ends on a
multiple of 64 bytes. Instead of padding, which would be sent too, tensors that are whole lines of
64 bytes come first. The others (the biases of odd length) are copied when the buffer is split; they
are few and small in every network. Shapes and dtypes are known at tracing time and equal in all
towers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from cnnbench.variable_mgr.gradients import concat
from cnnbench.variable_mgr.sizes import LINE_BYTES, buffer_sizes

# tensors[i][t] is tensor i of tower t; tensor i has one dtype and static shape in all towers.
Tensors: TypeAlias = "list[list[tf.Tensor]]"
# Converts reduced tensors back to the form of the stage's input.
Inverse: TypeAlias = "Callable[[Tensors], Tensors]"
# Number of a tensor, and the size of its part in one buffer.
_Piece: TypeAlias = "tuple[int, int]"


class FlatLayout:
    """Layout of tensors of known shapes in flat buffers; see `buffer_sizes` for their sizes."""

    def __init__(self, shapes: Sequence[tf.TensorShape], dtype: tf.DType, buffers: int = 1) -> None:
        self._shapes = [tuple(shape.as_list()) for shape in shapes]
        self._dtype = dtype
        self._line = LINE_BYTES // dtype.size
        sizes = [math.prod(shape) for shape in self._shapes]
        # Sorting is stable: within both kinds the order stays.
        order = sorted(range(len(sizes)), key=lambda i: sizes[i] % self._line != 0)
        self._buffers = _cut(
            [(i, sizes[i]) for i in order if sizes[i]],
            buffer_sizes(sum(sizes), buffers, self._line),
        )
        self._parts: list[list[int]] = [[] for _ in sizes]
        for pieces in self._buffers:
            for tensor, size in pieces:
                self._parts[tensor].append(size)

    def join(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The buffers, built on the current device; each depends on its own tensors alone."""
        flatten = tf.constant([-1])
        parts = []
        for tensor, sizes in zip(tensors, self._parts, strict=True):
            if not sizes:
                parts.append(iter(()))
                continue
            flat = tensor if tensor.shape.rank == 1 else tf.reshape(tensor, flatten)
            parts.append(iter(tf.split(flat, sizes) if len(sizes) > 1 else [flat]))
        return [
            _concatenated([next(parts[tensor]) for tensor, _ in pieces], self._dtype)
            for pieces in self._buffers
        ]

    def split(self, buffers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors of buffers, or of their reductions, on the current device."""
        parts: list[list[tf.Tensor]] = [[] for _ in self._shapes]
        for buffer, pieces in zip(buffers, self._buffers, strict=True):
            for (tensor, _), part in zip(pieces, self._split_one(buffer, pieces), strict=True):
                parts[tensor].append(part)
        # One constant per shape: networks repeat theirs, and every op costs.
        constants: dict[tuple[int, ...], tf.Tensor] = {}
        result = []
        for shape, own in zip(self._shapes, parts, strict=True):
            flat = _concatenated(own, buffers[0].dtype)
            if len(shape) != 1:
                if shape not in constants:
                    constants[shape] = tf.constant(shape, tf.int32)
                flat = tf.reshape(flat, constants[shape])
            result.append(flat)
        return result

    def _split_one(self, buffer: tf.Tensor, pieces: Sequence[_Piece]) -> list[tf.Tensor]:
        # A single odd size makes the op copy all of its outputs; hence two ops.
        head = 0
        while head < len(pieces) and pieces[head][1] % self._line == 0:
            head += 1
        whole = [size for _, size in pieces[:head]]
        odd = [size for _, size in pieces[head:]]
        if whole and odd:
            begin = sum(whole)
            return [
                *_split(tf.slice(buffer, [0], [begin]), whole),
                *_split(tf.slice(buffer, [begin], [sum(odd)]), odd),
            ]
        return _split(buffer, whole or odd)


def _cut(pieces: Sequence[_Piece], sizes: Sequence[int]) -> list[list[_Piece]]:
    """Distributes pieces over buffers of given sizes, cutting those that straddle an end."""
    buffers: list[list[_Piece]] = []
    left = list(reversed(pieces))
    for size in sizes:
        buffers.append([])
        while size:
            tensor, rest = left.pop()
            here = min(size, rest)
            buffers[-1].append((tensor, here))
            if here < rest:
                left.append((tensor, rest - here))
            size -= here
    return buffers


def _split(buffer: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
    if len(sizes) < 2:
        return [buffer] * len(sizes)
    parts: list[tf.Tensor] = tf.split(buffer, sizes)
    return parts


def _concatenated(parts: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    return concat(parts) if parts else tf.zeros([0], dtype)


def static_shapes(tensors: Tensors) -> list[tf.TensorShape]:
    """The shape of each tensor; raises ValueError for one that is not static."""
    shapes = [values[0].shape for values in tensors]
    for i, shape in enumerate(shapes):
        if not shape.is_fully_defined():
            raise ValueError(f"gradient {i} has the unknown shape {shape}")
    return shapes


def static_dtypes(tensors: Tensors) -> list[tf.DType]:
    """The dtype of each tensor."""
    return [values[0].dtype for values in tensors]
