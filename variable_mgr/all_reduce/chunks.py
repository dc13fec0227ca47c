"""Chunks of tensors, which algorithms cut, send along hops and join."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.gradients import concat
from cnnbench.variable_mgr.sizes import LINE_BYTES, chunk_size

# A sum by the memory in which it lies.
Copies: TypeAlias = "Mapping[str, tf.Tensor]"


def chunk_sizes(elements: int, most: int, itemsize: int) -> tuple[int, ...]:
    """Elements of each of at most `most` aligned chunks, of which the last may be shorter."""
    size = chunk_size(elements, most, itemsize)
    full, rest = divmod(elements, size)
    return (size,) * full + ((rest,) if rest else ()) or (0,)


class Cut:
    """Cutting and joining of tensors of one shape and dtype; `sizes` are the chunks' elements."""

    def __init__(self, like: tf.Tensor, most: int) -> None:
        self._shape = like.shape
        elements: int = like.shape.num_elements()
        self.sizes = chunk_sizes(elements, most, like.dtype.size)
        # Whole rows of LINE_BYTES bytes can be split by one operation without a copy.
        unit = LINE_BYTES // like.dtype.size
        self._row = unit if elements % unit == 0 else 1

    def __len__(self) -> int:
        return len(self.sizes)

    def flat(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor as a flat view, in which it is split and joined."""
        if len(self.sizes) < 2:
            return tensor
        return tf.reshape(tensor, [-1] if self._row == 1 else [-1, self._row])

    def split(self, flat: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
        """Parts of a flat tensor, by their elements; views where the sizes are aligned."""
        if len(sizes) < 2:
            return [flat]
        if self._row > 1:
            return list(tf.split(flat, [size // self._row for size in sizes]))
        begins = (sum(sizes[:number]) for number in range(len(sizes)))
        return [tf.slice(flat, [begin], [size]) for begin, size in zip(begins, sizes, strict=True)]

    def chunks(self, tensors: Sequence[tf.Tensor], devices: Sequence[str]) -> list[list[tf.Tensor]]:
        """The chunks of each tensor, made on its device."""
        result = []
        for tensor, device in zip(tensors, devices, strict=True):
            with tf.device(device):
                result.append(self.split(self.flat(tensor), self.sizes))
        return result

    def join(
        self, pieces: Mapping[str, Sequence[tf.Tensor]], context: ReduceContext, index: int
    ) -> list[tf.Tensor]:
        """Concatenates the pieces of a tensor, given by memory, once per memory.

        `index` rotates the device that does it. Devices of one memory get the same object.
        """
        devices = context.devices
        first = index % len(devices)
        joined: dict[str, tf.Tensor] = {}
        for device in (*devices[first:], *devices[:first]):
            memory = context.memory_of(device)
            if memory not in joined:
                with tf.device(device):
                    joined[memory] = self._joined(pieces[memory])
        return [joined[context.memory_of(device)] for device in devices]

    def _joined(self, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        return pieces[0] if len(self.sizes) == 1 else tf.reshape(concat(pieces), self._shape)


def spread(
    total: tf.Tensor, source: str, hops: Iterable[tuple[str, str]], context: ReduceContext
) -> dict[str, tf.Tensor]:
    """Sends a tensor along hops (sender, receiver) in order; the result maps memories to copies."""
    copies = {context.memory_of(source): total}
    for sender, receiver in hops:
        memory = context.memory_of(receiver)
        if memory not in copies:
            with tf.device(receiver):
                copies[memory] = tf.identity(copies[context.memory_of(sender)])
    return copies


def by_memory(sums: Sequence[Copies], context: ReduceContext) -> dict[str, list[tf.Tensor]]:
    """The chunks in the memory of each device."""
    memories = set(map(context.memory_of, context.devices))
    return {memory: [copies[memory] for copies in sums] for memory in memories}
