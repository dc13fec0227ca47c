"""Cutting tensors into chunks, sending chunks between devices, and joining chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.sizes import LINE_BYTES, MIN_CHUNK_BYTES
from cnnbench.variable_mgr.gradients import concat

Copies: TypeAlias = "Mapping[str, tf.Tensor]"
"""Copies of one sum, by the name of the memory that contains the copy."""


def elements_of_each_chunk(elements: int, max_chunks: int, itemsize: int) -> tuple[int, ...]:
    """Returns the number of elements of each chunk into which a tensor is cut.

    There are at most `max_chunks` aligned chunks of at least `MIN_CHUNK_BYTES`; the last chunk may
    be shorter. Elements have `itemsize` bytes.
    """
    unit = LINE_BYTES // itemsize
    count = max(1, min(max_chunks, elements * itemsize // MIN_CHUNK_BYTES))
    size = max(1, -(-elements // (count * unit))) * unit
    full, rest = divmod(elements, size)
    return (size,) * full + ((rest,) if rest else ()) or (0,)


class ChunkLayout:
    """Cuts tensors of one shape and dtype into chunks, and joins chunks.

    `sizes` contains the chunks' numbers of elements.
    """

    def __init__(self, like: tf.Tensor, max_chunks: int) -> None:
        self._shape = like.shape
        elements: int = like.shape.num_elements()
        self.sizes = elements_of_each_chunk(elements, max_chunks, like.dtype.size)
        # If the size of every chunk is a multiple of LINE_BYTES, tf.split copies nothing.
        unit = LINE_BYTES // like.dtype.size
        self._row = unit if elements % unit == 0 else 1

    def __len__(self) -> int:
        return len(self.sizes)

    def flat(self, tensor: tf.Tensor) -> tf.Tensor:
        """Flattens a tensor, as `split` and `join` require, or makes rows of LINE_BYTES bytes."""
        if len(self.sizes) < 2:
            return tensor
        return tf.reshape(tensor, [-1] if self._row == 1 else [-1, self._row])

    def split(self, flat: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
        """Splits a flat tensor into parts with `sizes` elements; aligned parts are not copied."""
        if len(sizes) < 2:
            return [flat]
        if self._row > 1:
            return list(tf.split(flat, [size // self._row for size in sizes]))
        begins = (sum(sizes[:number]) for number in range(len(sizes)))
        return [tf.slice(flat, [begin], [size]) for begin, size in zip(begins, sizes, strict=True)]

    def chunks(self, tensors: Sequence[tf.Tensor], devices: Sequence[str]) -> list[list[tf.Tensor]]:
        """Cuts each tensor into chunks, on the tensor's own device."""
        result = []
        for tensor, device in zip(tensors, devices, strict=True):
            with tf.device(device):
                result.append(self.split(self.flat(tensor), self.sizes))
        return result

    def join(
        self, pieces: Mapping[str, Sequence[tf.Tensor]], context: ReduceContext, index: int
    ) -> list[tf.Tensor]:
        """Concatenates the pieces of one tensor, once for all devices that share a memory.

        Returns the tensor for each device. Devices that share a memory get the same object. The
        device that concatenates the pieces rotates with `index`.
        """
        devices = context.devices
        first = index % len(devices)
        joined: dict[str, tf.Tensor] = {}
        for device in (*devices[first:], *devices[:first]):
            memory = context.memory_of(device)
            if memory not in joined:
                with tf.device(device):
                    joined[memory] = self._concat_to_shape(pieces[memory])
        return [joined[context.memory_of(device)] for device in devices]

    def _concat_to_shape(self, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        return pieces[0] if len(self.sizes) == 1 else tf.reshape(concat(pieces), self._shape)


def send_along_hops(
    total: tf.Tensor, source: str, hops: Iterable[tuple[str, str]], context: ReduceContext
) -> dict[str, tf.Tensor]:
    """Sends a tensor along `hops`, which are (sender, receiver), but only once to each memory.

    Returns the tensor's copy in each memory.
    """
    copies = {context.memory_of(source): total}
    for sender, receiver in hops:
        memory = context.memory_of(receiver)
        if memory not in copies:
            with tf.device(receiver):
                copies[memory] = tf.identity(copies[context.memory_of(sender)])
    return copies


def group_chunks_by_memory(
    sums: Sequence[Copies], context: ReduceContext
) -> dict[str, list[tf.Tensor]]:
    """Returns, for each memory of the devices, the copies of all chunks in this memory."""
    memories = set(map(context.memory_of, context.devices))
    return {memory: [copies[memory] for copies in sums] for memory in memories}
