"""Measurement and check of all cases on the tensors of one size."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cnnbench.base.garbage import uncollected
from cnnbench.base.interrupts import obey, restored
from cnnbench.base.text.progress import Progress
from cnnbench.errors import first_line
from cnnbench.flags.groups.all_reduce import AllReduceParams
from cnnbench.lab.all_reduce.data import SETS, DataSet, make_data
from cnnbench.lab.all_reduce.plan import ReductionCase, Workload
from cnnbench.lab.all_reduce.program import Buffers, Program, copy_all, factory
from cnnbench.records.all_reduce import Copying, Point
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce import ReduceContext
from cnnbench.variable_mgr.sizes import DTYPE_BYTES
from cnnbench.variable_mgr.worker_group import WorkerGroup

_COPIED = "float32"


@dataclass
class _Trial:
    """One case, or the memory copy: its row so far, and the seconds of its timed calls."""

    case: ReductionCase
    point: Point
    program: Program | None = None
    seconds: list[float] = field(default_factory=list)

    def note(self, **parts: Any) -> None:
        self.point = replace(self.point, **parts)


class SizeBench:
    """Measures every case on one workload.

    In every round each case, and a memory copy, is called once, in a random order, so that
    disturbances of the machine affect all alike.
    """

    def __init__(
        self,
        place: ReduceContext,
        workload: Workload,
        cases: Sequence[ReductionCase],
        params: AllReduceParams,
        workers: WorkerGroup | None = None,
    ) -> None:
        self._workers = workers
        self._place = place
        self._workload = workload
        self._params = params
        self._dtype = params.dtype
        self._bytes = workload.elements * DTYPE_BYTES[params.dtype]
        row = partial(
            Point,
            workload=workload.name,
            dtype=params.dtype,
            bytes=self._bytes,
            tensors=len(workload.shapes),
            elements=workload.elements,
            devices=len(place.devices),
        )
        self._trials = [_Trial(case, row(spec=str(case), packing=case.packing)) for case in cases]
        self._copy = _Trial(ReductionCase(), row(spec="memory copy", packing=Packing()))

    def run(self, progress: Progress) -> None:
        """Measures; results remain available after an interruption."""
        own = self._place.own_devices
        first = self._place.devices.index(own[0])
        buffers = copied = Buffers(own, self._workload.shapes, self._dtype, first)
        if len(self._workload.shapes) > 1 or self._dtype != _COPIED:
            # One tensor of all bytes, because memory is copied fastest in one piece.
            elements = -(-self._bytes // DTYPE_BYTES[_COPIED])
            copied = Buffers(own, [(elements,)], _COPIED, first)
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
        """A row for every case that was timed, or built, or failed."""
        return [
            replace(trial.point, seconds=tuple(trial.seconds))
            for trial in self._trials
            if trial.seconds
            or trial.point.error
            or (self._params.build_only and trial.point.build_seconds)
        ]

    @property
    def copying(self) -> Copying | None:
        """The memory copy; None before it was timed."""
        if not self._copy.seconds:
            return None
        devices, seconds = len(self._place.devices), tuple(self._copy.seconds)
        return Copying(bytes=self._bytes, devices=devices, seconds=seconds)

    @property
    def copy_error(self) -> str | None:
        """Error of the memory copy that was measured for comparison; None without one."""
        return self._copy.point.error

    def _measure(self, buffers: Buffers, copied: Buffers, progress: Progress) -> None:
        integers, floats = (self._data(name) for name in SETS)
        buffers.load(integers)
        label = f"{self._workload.name} on {len(self._place.devices)} devices"
        progress.start(f"{label}: building", len(self._trials))
        for number, trial in enumerate(self._trials, start=1):
            self._build(trial, buffers)
            progress.update(number)
        if self._params.build_only:
            return
        self._check(integers, buffers)
        buffers.load(floats)
        self._check(floats, buffers)
        if copied is not buffers:
            copied.load(floats if self._dtype == _COPIED else self._data("floats", _COPIED))
        with self._attempt(self._copy):
            self._copy.program = Program(copied, lambda: copy_all, self._params.iters_per_step)
        progress.start(label, self._params.num_warmup_batches + self._params.num_batches)
        self._time(progress)

    def _build(self, trial: _Trial, buffers: Buffers) -> None:
        with self._attempt(trial):
            make = factory(trial.case, self._place, self._params.all_reduce_group_size)
            program = Program(buffers, make, self._params.iters_per_step)
            trial.note(trace_seconds=program.trace_seconds, operations=program.operations)
            program.run()
            trial.note(build_seconds=program.build_seconds)
            trial.program = program

    def _check(self, data: DataSet, buffers: Buffers) -> None:
        for trial in self._trials:
            if trial.program is None:
                continue
            packing = trial.case.packing
            with self._attempt(trial):
                # The first call reduces the tensors that were loaded before.
                for _ in range(2 if packing.relaxed else 1):
                    buffers.clear_sums()
                    trial.program.run()
                wire = packing.compact_dtype
                wrong = buffers.count_wrong(data, wire or self._dtype, wire is not None)
                if self._workers is not None:
                    wrong = int(self._workers.total(wrong))
                checked = self._workload.elements * len(self._place.devices)
                so_far = trial.point
                trial.note(wrong=so_far.wrong + wrong, checked=so_far.checked + checked)

    def _time(self, progress: Progress) -> None:
        order = [trial for trial in (*self._trials, self._copy) if trial.program is not None]
        # The same in all processes.
        where = self._place.devices
        generator = random.Random(f"{self._params.tf_random_seed} {self._workload.name} {where}")
        gc.collect()
        with uncollected():
            for number in range(self._params.num_warmup_batches + self._params.num_batches):
                generator.shuffle(order)
                for trial in order:
                    if trial.program is None:
                        continue
                    with self._attempt(trial):
                        seconds = trial.program.run() / trial.program.chain
                        if number >= self._params.num_warmup_batches:
                            trial.seconds.append(seconds)
                obey()
                progress.update(number + 1)

    @contextlib.contextmanager
    def _attempt(self, trial: _Trial) -> Iterator[None]:
        """Records an error; raises it where workers wait for one another."""
        try:
            with restored():
                yield
        except Exception as error:  # an algorithm may raise anything
            if self._workers is not None:
                raise
            trial.note(error=f"{type(error).__name__}: {first_line(error)}")
            trial.program = None

    def _data(self, name: str, dtype: str | None = None) -> DataSet:
        wires = (trial.case.packing.compact_dtype for trial in self._trials)
        added_in = [wire for wire in wires if wire is not None]
        devices = len(self._place.devices)
        return make_data(name, devices, dtype or self._dtype, added_in, self._params.tf_random_seed)


def warm_up(place: ReduceContext) -> None:
    """Traces and runs a copy, so that no case includes one-time costs of the process."""
    buffers = Buffers(place.own_devices, [(1,)], _COPIED)
    buffers.load(make_data("integers", len(place.devices), _COPIED, (), 0))
    Program(buffers, lambda: copy_all, 1).run()
    buffers.close()
