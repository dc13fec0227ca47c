"""Shared memory of a process and its forked child processes (only on Linux)."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, overload

_FEWEST = 1023


class SharedDoubles(Sequence[float]):
    """A sequence of doubles in shared memory: one process appends values, and processes that are
    related by a fork can read them.

    The values outlive the process that appended them. An append takes half a microsecond. If a
    limit on file sizes is reached, further values are not shared.
    """

    def __init__(self) -> None:
        """Creates an empty sequence. Call this before the process forks."""
        self._file = os.memfd_create("cnnbench")
        self._memory = memoryview(bytes(8)).cast("d")
        self._resize_memory(_FEWEST)

    def append(self, value: float) -> None:
        """Appends a value. Only one of the related processes may append."""
        size = int(self._memory[0]) + 1
        if size == len(self._memory):
            self._resize_memory(2 * size)
        self._memory[size] = value
        self._memory[0] = size

    def __len__(self) -> int:
        return int(self._memory[0])

    def __iter__(self) -> Iterator[float]:
        return iter(self[:])

    @overload
    def __getitem__(self, key: int) -> float: ...

    @overload
    def __getitem__(self, key: slice) -> list[float]: ...

    def __getitem__(self, key: int | slice) -> float | list[float]:
        size = len(self)
        # The writing process may have enlarged the file; then this process must map it again to see
        # the new values.
        if size >= len(self._memory):
            self._map_memory()
        values: list[float] = [*self._memory[1 : size + 1]]
        return values[key]

    def _resize_memory(self, most: int) -> None:
        try:
            os.ftruncate(self._file, 8 * (most + 1))
            self._map_memory()
        except OSError:
            own = memoryview(bytearray(8 * (most + 1))).cast("d")
            own[: len(self._memory)] = self._memory
            self._memory = own

    def _map_memory(self) -> None:
        # The first double in the memory is the number of values after it.
        self._memory = memoryview(mmap.mmap(self._file, 0)).cast("d")


class SharedValue:
    """A value in shared memory: one process sets it, and its relatives by a fork can read it."""

    def __init__(self) -> None:
        """Creates shared memory that contains no value yet. Call this before the process forks."""
        self._file = os.memfd_create("cnnbench")

    def set(self, value: object) -> None:
        """Replaces the value. If a limit on file sizes is exceeded, there is no value then."""
        data = pickle.dumps(value)
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, data, 0)

    def get(self) -> Any:
        """Returns the latest value; None if no value was set, or if the other process is writing a
        value at this moment.
        """
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        try:
            return pickle.loads(data)
        except (EOFError, pickle.UnpicklingError):
            return None
