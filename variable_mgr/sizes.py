"""Sizes of joined and cut tensors, for aggregation and cost model; without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element, by the names of the formats that gradients are sent in."""

LINE_BYTES = 64
"""TensorFlow hands out a part of a buffer as a view if it begins and ends on a multiple."""

MIN_CHUNK_BYTES = 16 * 1024
"""Smaller chunks cost more in operations and messages than they gain in parallel work."""


def chunk_size(elements: int, most: int, itemsize: int) -> int:
    """Elements of a chunk, a multiple of `LINE_BYTES`; the last chunk may be shorter."""
    unit = LINE_BYTES // itemsize
    count = max(1, min(most, elements * itemsize // MIN_CHUNK_BYTES))
    return max(1, -(-elements // (count * unit))) * unit


def buffer_sizes(elements: int, buffers: int, line: int) -> list[int]:
    """Elements of equal buffers, multiples of `line` unless smaller; the last has the rest."""
    share = elements // buffers
    if share >= line:
        share -= share % line
    return [share] * (buffers - 1) + [elements - share * (buffers - 1)]


def buckets_of(tensors: Sequence[tuple[str, int]], most: int) -> list[list[int]]:
    """Indices in order, grouped for joining, filled from the last tensor on.

    `tensors` are pairs of dtype and bytes. A bucket has one dtype and up to `most` bytes, or one
    larger tensor.
    """
    buckets: list[list[int]] = []
    filled = 0
    for index, (dtype, size) in reversed(list(enumerate(tensors))):
        filled += size
        if not buckets or filled > most or dtype != tensors[buckets[0][0]][0]:
            buckets.insert(0, [])
            filled = size
        buckets[0].insert(0, index)
    return buckets


def groups_of_small(small: Iterable[bool], most: int) -> list[list[int]]:
    """Indices in order, with small tensors grouped for joining, `most` of them at a time."""
    groups: list[list[int]] = []
    growing = False
    for index, is_small in enumerate(small):
        if is_small and growing and len(groups[-1]) < most:
            groups[-1].append(index)
        else:
            groups.append([index])
        growing = is_small
    return groups
