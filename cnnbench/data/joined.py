"""Inputs of several workers joined; each is read and prepared on its worker."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import Any

from cnnbench.data.findings import UnusableRecords
from cnnbench.data.source import InputSource, TowerBatch


class JoinedInput(InputSource):
    """One input per worker, in the order of their towers; only shards and places differ.

    A batch never leaves the worker that made it: `next` returns handles of tensors there.
    """

    def __init__(self, sources: Sequence[InputSource]) -> None:
        first = sources[0]
        devices = [device for source in sources for device in source.devices]
        whole = dataclasses.replace(
            first.spec, num_devices=len(devices), num_shards=1, shard_index=0
        )
        super().__init__(whole, devices, first.examples_per_epoch)
        self.synthetic = first.synthetic
        self._sources = tuple(sources)
        # For each tower its source and its number there; for each source its share of a step.
        self._places = [
            (which, tower)
            for which, source in enumerate(sources)
            for tower in range(len(source.devices))
        ]
        ends = list(itertools.accumulate(len(source.signature) for source in sources))
        self._shares = [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]

    @property
    def signature(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.signature`."""
        return tuple(batch for source in self._sources for batch in source.signature)

    def of_tower(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """See `InputSource.of_tower`."""
        which, number = self._places[tower]
        return self._sources[which].of_tower(number, batches[self._shares[which]])

    def next(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.next`; the time blocked here is added to ``wait_seconds``."""
        start = time.perf_counter()
        try:
            return tuple(batch for source in self._sources for batch in source.next())
        finally:
            self.wait_seconds += time.perf_counter() - start
            self.batches += 1

    def waiting(self) -> dict[int, float]:
        """See `InputSource.waiting`."""
        return {shard: s for source in self._sources for shard, s in source.waiting().items()}

    def stages(self) -> list[Any]:
        """See `InputSource.stages`: those of the first worker."""
        return self._sources[0].stages()

    def skipped(self) -> UnusableRecords:
        """See `InputSource.skipped`."""
        found = [source.skipped() for source in self._sources]
        first = tuple(line for one in found for line in one.first)
        return UnusableRecords(sum(one.count for one in found), first)

    def passed_over(self, steps: int) -> list[int]:
        """See `InputSource.passed_over`."""
        return [count for source in self._sources for count in source.passed_over(steps)]

    def resume(self, steps: int, passed_over: Sequence[int] = ()) -> bool:
        """See `InputSource.resume`."""
        resumed = [source.resume(steps, passed_over) for source in self._sources]
        return all(resumed)

    def restart(self) -> None:
        """See `InputSource.restart`."""
        for source in self._sources:
            source.restart()

    def close(self) -> None:
        """See `InputSource.close`."""
        for source in self._sources:
            source.close()
