"""Sizes of elements, memory lines and chunks, for reductions."""

from __future__ import annotations

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes per element, by the name of the format in which gradients are sent."""

LINE_BYTES = 64
"""TensorFlow returns a slice of a buffer as a view if it begins and ends at a multiple of this."""

MIN_CHUNK_BYTES = 16 * 1024
"""Minimum number of bytes in a chunk. Smaller chunks cost more overhead than parallelism saves."""
