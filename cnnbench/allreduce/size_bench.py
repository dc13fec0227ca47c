"""All ways to reduce the tensors of one size, measured side by side and checked."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cnnbench.allreduce.buffers import Buffers
from cnnbench.allreduce.cases import Way
from cnnbench.allreduce.data import SETS, DataSet, make_data
from cnnbench.allreduce.length import Length
from cnnbench.allreduce.program import Program, copy_all
from cnnbench.allreduce.reductions import Place, factory
from cnnbench.allreduce.sizes import Workload
from cnnbench.errors import first_line
from cnnbench.records.allreduce import Copying, Point
from cnnbench.text.progress import Progress
from cnnbench.variable_mgr.sizes import DTYPE_BYTES

_COPIED = "float32"


@dataclass
class _Trial:
    """One way, and what has become of it so far; a copy has none."""

    way: Way | None
    program: Program | None = None
    seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    checked: int = 0
    error: str | None = None
    trace_seconds: float | None = None
    build_seconds: float | None = None
    operations: int | None = None

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Takes note of what goes wrong, so that the others can go on."""
        try:
            yield
        except Exception as error:  # whatever an algorithm raises is its own affair
            self.error = f"{type(error).__name__}: {first_line(error)}"
            self.program = None


class SizeBench:
    """Measures every way on one workload.

    In every round each way is called once, and a memory copy beside them, in an order
    drawn anew: what a neighbour or a hot processor does to the machine is shared out.

    Args:
      place: the devices.
      workload: their tensors.
      dtype: name.
      ways: what to measure.
      length: for how long.
    """

    def __init__(
        self, place: Place, workload: Workload, dtype: str, ways: Sequence[Way], length: Length
    ) -> None:
        self._place = place
        self._workload = workload
        self._dtype = dtype
        self._bytes = workload.elements * DTYPE_BYTES[dtype]
        self._length = length
        self._trials = [_Trial(way) for way in ways]
        self._copy = _Trial(None)

    def run(self, progress: Progress) -> None:
        """Measures; what was measured is there even if this is interrupted."""
        buffers = Buffers(self._place.devices, self._workload.shapes, self._dtype)
        copied = self._buffers_to_copy(buffers)
        try:
            self._measure(buffers, copied, progress)
        finally:
            progress.finish()
            for trial in (*self._trials, self._copy):
                trial.program = None
            for each in {buffers, copied}:
                each.close()
            gc.collect()

    @property
    def points(self) -> list[Point]:
        """A row for every way that was timed, or built, or failed."""
        finished = (
            trial
            for trial in self._trials
            if trial.seconds or trial.error or (self._length.build_only and trial.build_seconds)
        )
        return [self._point(trial) for trial in finished]

    @property
    def copying(self) -> Copying | None:
        """The memory copy; None before it was timed."""
        if not self._copy.seconds:
            return None
        return Copying(
            bytes=self._bytes,
            devices=len(self._place.devices),
            seconds=tuple(self._copy.seconds),
        )

    @property
    def copy_error(self) -> str | None:
        """Why there is no memory copy."""
        return self._copy.error

    def _measure(self, buffers: Buffers, copied: Buffers, progress: Progress) -> None:
        integers, floats = (self._data(name) for name in SETS)
        buffers.load(integers)
        label = f"{self._workload.name} on {len(self._place.devices)} devices"
        progress.start(f"{label}: building", len(self._trials))
        for number, trial in enumerate(self._trials, start=1):
            self._build(trial, buffers)
            progress.update(number)
        if self._length.build_only:
            return
        self._check(integers, buffers)
        buffers.load(floats)
        self._check(floats, buffers)
        if copied is not buffers:
            copied.load(floats if self._dtype == _COPIED else self._data("floats", _COPIED))
        with self._copy.attempt():
            self._copy.program = Program(copied, lambda: copy_all, self._length.chain)
        progress.start(label, self._length.warmup + self._length.rounds)
        self._time(progress)

    def _build(self, trial: _Trial, buffers: Buffers) -> None:
        assert trial.way is not None
        with trial.attempt():
            program = Program(buffers, factory(trial.way, self._place), self._length.chain)
            trial.trace_seconds, trial.operations = program.trace_seconds, program.operations
            program.run()
            trial.build_seconds = program.build_seconds
            trial.program = program

    def _check(self, data: DataSet, buffers: Buffers) -> None:
        for trial in self._trials:
            if trial.program is None:
                continue
            assert trial.way is not None
            packing = trial.way.packing
            with trial.attempt():
                # What is reduced one call late was loaded before this data.
                for _ in range(2 if packing.variable_consistency == "relaxed" else 1):
                    buffers.clear_sums()
                    trial.program.run()
                wire = packing.compact_dtype
                trial.wrong += buffers.count_wrong(data, wire or self._dtype, wire is not None)
                trial.checked += buffers.elements

    def _time(self, progress: Progress) -> None:
        order = [trial for trial in (*self._trials, self._copy) if trial.program is not None]
        generator = random.Random(f"{self._length.seed} {self._workload.name} {self._place}")
        with _no_garbage_collection():
            for number in range(self._length.warmup + self._length.rounds):
                generator.shuffle(order)
                for trial in order:
                    if trial.program is None:
                        continue
                    with trial.attempt():
                        seconds = trial.program.run() / trial.program.chain
                        if number >= self._length.warmup:
                            trial.seconds.append(seconds)
                progress.update(number + 1)

    def _buffers_to_copy(self, buffers: Buffers) -> Buffers:
        """One tensor of all bytes, because memory is copied fastest in one piece."""
        if len(self._workload.shapes) == 1 and self._dtype == _COPIED:
            return buffers
        return Buffers(self._place.devices, [(-(-self._bytes // DTYPE_BYTES[_COPIED]),)], _COPIED)

    def _data(self, name: str, dtype: str | None = None) -> DataSet:
        wires = [t.way.packing.compact_dtype for t in self._trials if t.way is not None]
        return make_data(
            name,
            len(self._place.devices),
            dtype or self._dtype,
            [wire for wire in wires if wire is not None],
            self._length.seed,
        )

    def _point(self, trial: _Trial) -> Point:
        assert trial.way is not None
        return Point(
            spec=str(trial.way),
            packing=trial.way.packing,
            workload=self._workload.name,
            dtype=self._dtype,
            bytes=self._bytes,
            tensors=len(self._workload.shapes),
            elements=self._workload.elements,
            devices=len(self._place.devices),
            seconds=tuple(trial.seconds),
            wrong=trial.wrong,
            checked=trial.checked,
            error=trial.error,
            trace_seconds=trial.trace_seconds,
            build_seconds=trial.build_seconds,
            operations=trial.operations,
        )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keeps Python's collector, which takes long over traced graphs, out of the timed calls."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def build_something(place: Place) -> None:
    """Traces and runs a copy, so that no way pays for what a process does only once."""
    buffers = Buffers(place.devices, [(1,)], _COPIED)
    buffers.load(make_data("integers", len(place.devices), _COPIED, (), 0))
    Program(buffers, lambda: copy_all, 1).run()
    buffers.close()
