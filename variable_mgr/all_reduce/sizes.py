"""Sizes of elements, memory lines and chunks, for reductions and for the cost model."""

from __future__ import annotations

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes per element, by the name of the format in which gradients are sent."""

LINE_BYTES = 64
"""TensorFlow returns a slice of a buffer as a view if it begins and ends at a multiple of this."""

MIN_CHUNK_BYTES = 16 * 1024
"""Minimum number of bytes in a chunk. Smaller chunks cost more overhead than parallelism saves."""


def elements_per_chunk(elements: int, max_chunks: int, itemsize: int) -> int:
    """Returns the number of elements in each chunk of a tensor; the last chunk may be shorter.

    There are at most `max_chunks` chunks of at least `MIN_CHUNK_BYTES`. Elements have `itemsize`
    bytes.
    """
    unit = LINE_BYTES // itemsize
    count = max(1, min(max_chunks, elements * itemsize // MIN_CHUNK_BYTES))
    return max(1, -(-elements // (count * unit))) * unit
