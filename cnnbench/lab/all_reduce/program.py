"""TensorFlow programs that only reduce tensors.

Tensors and sums are in staging areas, one for each device, instead of variables. One operation
reads all tensors of an area, and one operation stores all sums, by reference. Reading and assigning
one variable for each tensor would take as long as reducing small tensors. (For 1000 tensors of 4
KiB on four devices, it takes 21 ms instead of 1.2 ms, and minutes to build.) Both operations have
side effects, so TensorFlow's graph optimiser can neither remove an unused sum nor merge two
reductions of the same tensors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from cnnbench.arrays import Array
from cnnbench.base import plugins
from cnnbench.base.interrupts import errors_as_interrupts, raise_if_interrupted
from cnnbench.base.terminal import ProgressLine
from cnnbench.errors import BenchmarkError, FlagError, informative_line
from cnnbench.flags.groups.all_reduce import AllReduceParams
from cnnbench.lab.all_reduce import peers
from cnnbench.lab.all_reduce.data import SETS, ReductionData, make_reduction_data
from cnnbench.lab.all_reduce.plan import ReductionCase, Workload
from cnnbench.records.all_reduce import Copying, Point
from cnnbench.run.runtime.loading import without_gc
from cnnbench.variable_mgr.all_reduce import AllReduceSpec, ReduceContext, names, single
from cnnbench.variable_mgr.all_reduce.context import group_devices
from cnnbench.variable_mgr.all_reduce.reducer import AllReducer
from cnnbench.variable_mgr.all_reduce.registry import create
from cnnbench.variable_mgr.all_reduce.sizes import DTYPE_BYTES
from cnnbench.variable_mgr.gradients import transpose_lists
from cnnbench.variable_mgr.packing import AggregationSpec, Packing
from cnnbench.variable_mgr.stages import make_stages, reduce_through_stages
from cnnbench.variable_mgr.workers import WorkerGroup

# Classes that execute chains of reductions in a TensorFlow function, on tensors in buffers.

# One list of tensors for each device.
DeviceTensors: TypeAlias = "list[list[tf.Tensor]]"

# A function that adds tensors across devices and returns all sums on every device.
Reduction: TypeAlias = "Callable[[DeviceTensors], DeviceTensors]"

_numbers = itertools.count()


class DeviceBuffers:
    """Buffers on several devices: for the tensors that each device reduces, which have the same
    shapes on all devices, and for the sums on each device.

    `first` is the number of the first device here among all devices that reduce.
    """

    def __init__(
        self,
        devices: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        dtype: str,
        first: int = 0,
    ) -> None:
        self._first = first
        self.devices = tuple(devices)
        self.shapes = tuple(shapes)
        self.dtype = tf.as_dtype(dtype)
        sizes = [math.prod(shape) for shape in self.shapes]
        self._begins = tuple(itertools.accumulate(sizes, initial=0))[:-1]
        number = next(_numbers)
        self._inputs = [f"allreduce-{number}-in-{i}" for i in range(len(self.devices))]
        self._sums = [f"allreduce-{number}-out-{i}" for i in range(len(self.devices))]

    def load(self, data: ReductionData) -> None:
        """Copies the values of `data` into the tensors of every device."""
        self._clear_areas(self._inputs)
        for number, device in enumerate(self.devices):
            with tf.device(device):
                values = [
                    tf.constant(data.make_tensor(self._first + number, begin, shape))
                    for begin, shape in zip(self._begins, self.shapes, strict=True)
                ]
                tf.raw_ops.Stage(values=values, shared_name=self._inputs[number])
        self._wait_and_count(self._inputs)

    def create_read_operations(self) -> DeviceTensors:
        """Creates operations that read the tensors of every device. Must be called while TensorFlow
        traces a function.

        The previous sums of a device are freed first, so that later operations can use their
        memory, as training frees gradients after the update.
        """
        tensors = []
        for device, name, sums in zip(self.devices, self._inputs, self._sums, strict=True):
            with tf.device(device):
                clear = tf.raw_ops.StageClear(dtypes=self._dtypes, shared_name=sums)
                with tf.control_dependencies([clear]):
                    own = tf.raw_ops.StagePeek(index=0, dtypes=self._dtypes, shared_name=name)
                for tensor, shape in zip(own, self.shapes, strict=True):
                    tensor.set_shape(shape)
                tensors.append(list(own))
        return tensors

    def create_store_operations(self, sums: DeviceTensors, read: DeviceTensors) -> list[tf.Tensor]:
        """Creates operations that store the sums of every device. Must be called after
        `create_read_operations`, while TensorFlow traces a function.

        Returns a scalar on each device, which is available when the device has its sums.
        """
        tokens = []
        for device, name, own, before in zip(self.devices, self._sums, sums, read, strict=True):
            with tf.device(device):
                with tf.control_dependencies([before[0].op]):
                    stage = tf.raw_ops.Stage(values=own, shared_name=name)
                with tf.control_dependencies([stage]):
                    # A GPU operation may still be running when the next one starts. An operation
                    # that reads the sum on the same GPU waits until the sum is complete.
                    last = tf.reshape(own[-1], [-1])[:1]
                    tokens.append(tf.reduce_sum(tf.cast(last, tf.float32)))
        return tokens

    def count_wrong_elements(self, data: ReductionData, sum_dtype: str, cast: bool) -> int:
        """Counts the wrong elements in the latest sums; see `ReductionData`."""
        wrong = 0
        sizes = self._wait_and_count(self._sums)
        for device, name, size in zip(self.devices, self._sums, sizes, strict=True):
            if size != 1:
                wrong += sum(math.prod(shape) for shape in self.shapes)
                continue
            with tf.device(device):
                own = tf.raw_ops.StagePeek(index=0, dtypes=self._dtypes, shared_name=name)
            for tensor, begin, shape in zip(own, self._begins, self.shapes, strict=True):
                result: Array = tensor.numpy()
                if result.shape != shape:
                    wrong += math.prod(shape)
                else:
                    wrong += data.count_wrong_elements(result, begin, sum_dtype, cast)
        return wrong

    def clear_sums(self) -> None:
        """Clears the sums, so that they cannot be mistaken for sums of a later reduction."""
        self._clear_areas(self._sums)

    def close(self) -> None:
        """Frees the memory of all tensors and sums."""
        self._clear_areas(self._inputs)
        self._clear_areas(self._sums)

    @property
    def _dtypes(self) -> list[tf.DType]:
        return [self.dtype] * len(self.shapes)

    def _clear_areas(self, names: Sequence[str]) -> None:
        for device, name in zip(self.devices, names, strict=True):
            with tf.device(device):
                tf.raw_ops.StageClear(dtypes=self._dtypes, shared_name=name)
        self._wait_and_count(names)

    def _wait_and_count(self, names: Sequence[str]) -> list[int]:
        """Waits until all previous operations are complete. Returns the number of entries in each
        staging area.

        When the call of an operation on another process returns, the operation may only have been
        sent, and a later function call might run first. Reading a value ensures that the operation
        has run.
        """
        sizes = []
        for device, name in zip(self.devices, names, strict=True):
            with tf.device(device):
                sizes.append(int(tf.raw_ops.StageSize(dtypes=self._dtypes, shared_name=name)))
        return sizes


class ReductionProgram:
    """A traced TensorFlow function that reduces the tensors in buffers, once or several times in a
    row.

    Args:
      buffers: contain the tensors and, after a call, the sums.
      make_reduction: function that is called once for each reduction in the chain, so that they do
        not share state or keys.
      chain: number of reductions in one call. Each begins when all devices have the sums of the
        previous one.

    Attributes:
      build_seconds: seconds for tracing and for the first call, in which TensorFlow optimises and
        places the graph; None before the first call.
    """

    def __init__(
        self, buffers: DeviceBuffers, make_reduction: Callable[[], Reduction], chain: int
    ) -> None:
        self.chain = chain
        self.build_seconds: float | None = None
        begin = time.perf_counter()
        function = tf.function(
            lambda: _chain_reductions(buffers, make_reduction, chain), autograph=False
        )
        self._call = function.get_concrete_function()
        self.trace_seconds = time.perf_counter() - begin
        self.operations = len(self._call.graph.get_operations())

    def run(self) -> float:
        """Calls the function, and returns the seconds until every device has its sums."""
        begin = time.perf_counter()
        self._call().numpy()
        seconds = time.perf_counter() - begin
        if self.build_seconds is None:
            self.build_seconds = self.trace_seconds + seconds
        return seconds


def copy_all(tensors: DeviceTensors) -> DeviceTensors:
    """Copies the tensors of all devices at once: the memory copy to compare reductions with."""
    copies = []
    for own in tensors:
        with tf.device(own[0].device):
            copies.append([tf.raw_ops.DeepCopy(x=tensor) for tensor in own])
    return copies


def _chain_reductions(
    buffers: DeviceBuffers, make_reduction: Callable[[], Reduction], chain: int
) -> tf.Tensor:
    first = buffers.devices[0]
    finished: list[tf.Operation] = []
    for _ in range(chain):
        with tf.control_dependencies(finished):
            tensors = buffers.create_read_operations()
        tokens = buffers.create_store_operations(make_reduction()(tensors), tensors)
        with tf.device(first):
            done = tf.add_n(tokens)
        finished = [done.op]
    return done


def reduction_factory(
    case: ReductionCase, place: ReduceContext, group_size: int
) -> Callable[[], Reduction]:
    """Returns a function that creates the reduction of a case. It must be called once for each
    reduction in a chain, so that reductions share no state.

    FlagError if the algorithm does not work with these devices in groups of this size.
    """
    if case.peer is not None:
        # Created here, because a strategy cannot be created while a function is traced.
        reduction = peers.peer_reduction(case.peer, place.devices)
        return lambda: reduction
    spec = case.spec or single("copy")
    groups = group_devices(place.devices, group_size)
    AllReducer(spec, place, groups)
    aggregation = AggregationSpec(all_reduce=spec, **dataclasses.asdict(case.packing))

    def make() -> Reduction:
        stages = make_stages(aggregation, place.own_devices, None)
        reducer = AllReducer(spec, place, groups, aggregation.allreduce_merge_scope)

        def reduce(tensors: DeviceTensors) -> DeviceTensors:
            return transpose_lists(reduce_through_stages(stages, transpose_lists(tensors), reducer))

        return reduce

    return make


def _error_text(error: Exception) -> str:
    """Describes an error by its type and first line and, in a plug-in, its location."""
    try:
        with plugins.reporting_plugin_errors(BenchmarkError):
            raise error
    except BenchmarkError as of_plugin:
        return informative_line(of_plugin)
    except Exception:
        return f"{type(error).__name__}: {informative_line(error)}"


def usable_algorithms(
    place: ReduceContext, in_cluster: bool
) -> tuple[tuple[AllReduceSpec, ...], dict[str, str]]:
    """Finds the algorithms that work on these devices, and why other algorithms do not."""
    specs, reasons = [], {}
    for name in names():
        try:
            with errors_as_interrupts():
                create(name, place)
            if in_cluster and single(name).names_across_steps:
                raise ValueError("every worker runs it itself, so measure it in a separate command")
        except ValueError as error:
            reasons[name] = informative_line(error)
        # If one algorithm fails, the other algorithms are still measured.
        except Exception as error:
            reasons[name] = _error_text(error)
        else:
            specs.append(single(name))
    return tuple(specs), reasons


def check_algorithms(
    specs: Sequence[AllReduceSpec] | None,
    peer_names: Sequence[str],
    place: ReduceContext,
    group_size: int,
) -> None:
    """Raises an error if one of the given all-reduce algorithms (specs), or one of the reductions
    of tf.distribute, does not work on the devices.
    """
    for spec in specs or ():
        AllReducer(spec, place, group_devices(place.devices, group_size))
    for name in peer_names:
        try:
            peers.check_peer(name, place.devices)
        except ValueError as error:
            raise FlagError("peers", name, informative_line(error)) from error


# Classes that measure and check all reductions of the tensors of one workload.

_COPIED = "float32"


@dataclass
class _CaseTrial:
    """The measurement of one reduction, or of the memory copy, while it is not finished: `point`,
    its row of the table so far, and the seconds of each timed call.
    """

    case: ReductionCase
    point: Point
    program: ReductionProgram | None = None
    seconds: list[float] = field(default_factory=list)

    def update_point(self, **parts: Any) -> None:
        self.point = replace(self.point, **parts)


class WorkloadBenchmark:
    """Measures all reductions of one workload, and a memory copy of the same size for comparison.

    In each round, all cases and the memory copy are called once, in random order, so that
    disturbances of the machine affect all of them equally.
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
        self._trials = [
            _CaseTrial(case, row(spec=str(case), packing=case.packing)) for case in cases
        ]
        self._copy = _CaseTrial(ReductionCase(), row(spec="memory copy", packing=Packing()))

    def run(self, progress: ProgressLine) -> None:
        """Runs all measurements of the workload. After an interrupt, results so far are kept."""
        own = self._place.own_devices
        first = self._place.devices.index(own[0])
        buffers = copied = DeviceBuffers(own, self._workload.shapes, self._dtype, first)
        if len(self._workload.shapes) > 1 or self._dtype != _COPIED:
            # The memory copy is one tensor with all bytes: a single copy is the fastest, and so a
            # strict reference.
            elements = -(-self._bytes // DTYPE_BYTES[_COPIED])
            copied = DeviceBuffers(own, [(elements,)], _COPIED, first)
        try:
            self._measure_rounds(buffers, copied, progress)
        finally:
            progress.finish()
            for trial in (*self._trials, self._copy):
                trial.program = None
            for created in {buffers, copied}:
                created.close()
            gc.collect()

    @property
    def points(self) -> list[Point]:
        """The rows of the table: one for each reduction that was timed or built, or that failed."""
        return [
            replace(trial.point, seconds=tuple(trial.seconds))
            for trial in self._trials
            if trial.seconds
            or trial.point.error
            or (self._params.build_only and trial.point.build_seconds)
        ]

    @property
    def memory_copy(self) -> Copying | None:
        """The result of the memory copy; None if the copy was not timed."""
        if not self._copy.seconds:
            return None
        devices, seconds = len(self._place.devices), tuple(self._copy.seconds)
        return Copying(bytes=self._bytes, devices=devices, seconds=seconds)

    @property
    def copy_error(self) -> str | None:
        """The reason why the memory copy failed; None if the copy succeeded."""
        return self._copy.point.error

    def _measure_rounds(
        self, buffers: DeviceBuffers, copied: DeviceBuffers, progress: ProgressLine
    ) -> None:
        integers, floats = (self._make_data_set(name) for name in SETS)
        buffers.load(integers)
        label = f"{self._workload.name} on {len(self._place.devices)} devices"
        progress.start(f"{label}: building", len(self._trials))
        for number, trial in enumerate(self._trials, start=1):
            self._build_program(trial, buffers)
            progress.update(number)
        if self._params.build_only:
            return
        self._count_wrong(integers, buffers)
        buffers.load(floats)
        self._count_wrong(floats, buffers)
        if copied is not buffers:
            copied.load(
                floats if self._dtype == _COPIED else self._make_data_set("floats", _COPIED)
            )
        with self._storing_errors(self._copy):
            self._copy.program = ReductionProgram(
                copied, lambda: copy_all, self._params.iters_per_step
            )
        progress.start(label, self._params.num_warmup_batches + self._params.num_batches)
        self._time_rounds(progress)

    def _build_program(self, trial: _CaseTrial, buffers: DeviceBuffers) -> None:
        with self._storing_errors(trial):
            make = reduction_factory(trial.case, self._place, self._params.all_reduce_group_size)
            program = ReductionProgram(buffers, make, self._params.iters_per_step)
            trial.update_point(trace_seconds=program.trace_seconds, operations=program.operations)
            program.run()
            trial.update_point(build_seconds=program.build_seconds)
            trial.program = program

    def _count_wrong(self, data: ReductionData, buffers: DeviceBuffers) -> None:
        for trial in self._trials:
            if trial.program is None:
                continue
            packing = trial.case.packing
            with self._storing_errors(trial):
                # With late gradients, a call returns the sums of the call before it.
                for _ in range(2 if packing.applies_gradients_late else 1):
                    buffers.clear_sums()
                    trial.program.run()
                wire = packing.compact_dtype
                wrong = buffers.count_wrong_elements(data, wire or self._dtype, wire is not None)
                if self._workers is not None:
                    wrong = int(self._workers.sum_over_workers(wrong))
                checked = self._workload.elements * len(self._place.devices)
                so_far = trial.point
                trial.update_point(wrong=so_far.wrong + wrong, checked=so_far.checked + checked)

    def _time_rounds(self, progress: ProgressLine) -> None:
        order = [trial for trial in (*self._trials, self._copy) if trial.program is not None]
        # All processes of the job must measure in the same order, so they shuffle with the same
        # seed.
        where = self._place.devices
        generator = random.Random(f"{self._params.tf_random_seed} {self._workload.name} {where}")
        gc.collect()
        with without_gc():
            for number in range(self._params.num_warmup_batches + self._params.num_batches):
                generator.shuffle(order)
                for trial in order:
                    if trial.program is None:
                        continue
                    with self._storing_errors(trial):
                        seconds = trial.program.run() / trial.program.chain
                        if number >= self._params.num_warmup_batches:
                            trial.seconds.append(seconds)
                raise_if_interrupted()
                progress.update(number + 1)

    @contextlib.contextmanager
    def _storing_errors(self, trial: _CaseTrial) -> Iterator[None]:
        """Context manager for the measurement of one reduction: stores an error in the row of the
        reduction. If other workers wait for this process, the error is raised instead.
        """
        try:
            with errors_as_interrupts():
                yield
        # Algorithms may be from plug-ins, so any exception is possible.
        except Exception as error:
            if self._workers is not None:
                raise
            trial.update_point(error=_error_text(error))
            trial.program = None

    def _make_data_set(self, name: str, dtype: str | None = None) -> ReductionData:
        wires = (trial.case.packing.compact_dtype for trial in self._trials)
        sum_dtypes = [wire for wire in wires if wire is not None]
        devices = len(self._place.devices)
        return make_reduction_data(
            name, devices, dtype or self._dtype, sum_dtypes, self._params.tf_random_seed
        )


def warm_up_devices(place: ReduceContext) -> None:
    """Traces and runs a memory copy, so that no measured reduction includes one-time costs."""
    buffers = DeviceBuffers(place.own_devices, [(1,)], _COPIED)
    buffers.load(make_reduction_data("integers", len(place.devices), _COPIED, (), 0))
    ReductionProgram(buffers, lambda: copy_all, 1).run()
    buffers.close()
