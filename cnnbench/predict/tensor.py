"""Tensors as they travel, and how the algorithms cut them into chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass

# As variable_mgr/all_reduce/chunks.py cuts; a test holds the two together.
_ALIGNMENT = 64
_MIN_CHUNK_BYTES = 16 * 1024


@dataclass(frozen=True)
class Chunks:
    """The equal chunks of a tensor.

    Attributes:
      count: how many, at least 1.
      bytes: of each; the last may be shorter.
    """

    count: int
    bytes: int


@dataclass(frozen=True)
class Tensor:
    """A tensor as sent.

    Attributes:
      elements: how many.
      itemsize: bytes of one.
    """

    elements: int
    itemsize: int = 4

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.elements * self.itemsize

    @property
    def splits_in_rows(self) -> bool:
        """Whether one op can split it anywhere without copying."""
        return self.bytes % _ALIGNMENT == 0

    def cut(self, most: int) -> Chunks:
        """Cuts into at most `most` chunks of 16 KiB or more, each a multiple of 64 bytes."""
        unit = _ALIGNMENT // self.itemsize
        wanted = max(1, min(most, self.bytes // _MIN_CHUNK_BYTES))
        size = max(1, math.ceil(self.elements / (wanted * unit))) * unit
        count = max(1, math.ceil(self.elements / size))
        return Chunks(count, min(size, self.elements) * self.itemsize)
