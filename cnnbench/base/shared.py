"""Memory that a process shares with processes that it forks; Linux only."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, overload

_FEWEST = 1023


class SharedDoubles(Sequence[float]):
    """Doubles that one process appends, and that processes related by forks read.

    They outlive the appending process. An append takes half a microsecond. If a limit on file sizes
    leaves no room, further values are not shared.
    """

    def __init__(self) -> None:
        """Creates an empty sequence; to be called before the fork."""
        self._file = os.memfd_create("cnnbench")
        self._memory = memoryview(bytes(8)).cast("d")
        self._resize(_FEWEST)

    def append(self, value: float) -> None:
        """Appends a value; only one of the processes may call this."""
        size = int(self._memory[0]) + 1
        if size == len(self._memory):
            self._resize(2 * size)
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
        if size >= len(self._memory):  # extended by the other process
            self._map()
        values: list[float] = [*self._memory[1 : size + 1]]
        return values[key]

    def _resize(self, most: int) -> None:
        try:
            os.ftruncate(self._file, 8 * (most + 1))
            self._map()
        except OSError:
            own = memoryview(bytearray(8 * (most + 1))).cast("d")
            own[: len(self._memory)] = self._memory
            self._memory = own

    def _map(self) -> None:
        # The first double is the number of the others.
        self._memory = memoryview(mmap.mmap(self._file, 0)).cast("d")


class SharedValue:
    """A value that one process sets, and that processes related by forks get."""

    def __init__(self) -> None:
        """Creates it without a value; to be called before the fork."""
        self._file = os.memfd_create("cnnbench")

    def set(self, value: object) -> None:
        """Replaces the value; there is none if a limit on file sizes leaves no room for it."""
        data = pickle.dumps(value)
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, data, 0)

    def get(self) -> Any:
        """The value that was set last; None without one, or if it was being replaced."""
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        try:
            return pickle.loads(data)
        except (EOFError, pickle.UnpicklingError):
            return None
