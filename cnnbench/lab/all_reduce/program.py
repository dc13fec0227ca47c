"""Reductions as TensorFlow runs them: traced, chained, synchronised, between buffers.

Tensors and sums are in staging areas, one per device, not in variables. An area returns all its
tensors in one operation and takes all sums in one, by reference. Reading and assigning a variable
per tensor would cost as much as reducing small tensors (a thousand tensors of 4 KiB on four
devices: 21 ms against 1.2 ms, and minutes to build). Both operations have side effects, so that
TensorFlow's graph optimiser can neither drop an unread sum nor merge two reductions of the same
tensors.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from cnnbench.base.interrupts import restored
from cnnbench.errors import FlagError, first_line
from cnnbench.lab.all_reduce import peers
from cnnbench.lab.all_reduce.data import Array, DataSet
from cnnbench.lab.all_reduce.plan import ReductionCase
from cnnbench.variable_mgr.aggregation.pipeline import make_stages, run_through
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce import (
    AllReduceSpec,
    ReduceContext,
    names,
    registry,
    single,
)
from cnnbench.variable_mgr.all_reduce.context import groups_of
from cnnbench.variable_mgr.all_reduce.reducer import Reducer
from cnnbench.variable_mgr.gradients import transposed

# [device][index]
DeviceTensors: TypeAlias = "list[list[tf.Tensor]]"

# Takes the tensors of every device to as many sums for every device.
Reduction: TypeAlias = "Callable[[DeviceTensors], DeviceTensors]"

_numbers = itertools.count()


class Buffers:
    """Equal tensors on several devices, and room for as many sums on each.

    `first` is the number of the first of the devices among all that reduce.
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

    def load(self, data: DataSet) -> None:
        """Copies the values of a data set into the tensors of every device."""
        self._clear(self._inputs)
        for number, device in enumerate(self.devices):
            with tf.device(device):
                values = [
                    tf.constant(data.fill(self._first + number, begin, shape))
                    for begin, shape in zip(self._begins, self.shapes, strict=True)
                ]
                tf.raw_ops.Stage(values=values, shared_name=self._inputs[number])
        self._sizes(self._inputs)

    def read(self) -> DeviceTensors:
        """The tensors of every device, inside a traced function.

        The previous sums of a device are freed first, as gradients are after their update, so that
        later operations may use their memory.
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

    def write(self, sums: DeviceTensors, read: DeviceTensors) -> list[tf.Tensor]:
        """Keeps the sums of every device, inside a traced function, after the tensors `read`.

        Returns a scalar on each device that can be read when the device has its sums.
        """
        tokens = []
        for device, name, own, before in zip(self.devices, self._sums, sums, read, strict=True):
            with tf.device(device):
                with tf.control_dependencies([before[0].op]):
                    stage = tf.raw_ops.Stage(values=own, shared_name=name)
                with tf.control_dependencies([stage]):
                    # Operations of a GPU are only launched when dependent ones begin. An operation
                    # that reads a sum runs after it on the GPU.
                    last = tf.reshape(own[-1], [-1])[:1]
                    tokens.append(tf.reduce_sum(tf.cast(last, tf.float32)))
        return tokens

    def count_wrong(self, data: DataSet, added_in: str, cast: bool) -> int:
        """Number of wrong elements of the last sums over all devices; see `DataSet.count_wrong`."""
        wrong = 0
        sizes = self._sizes(self._sums)
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
                    wrong += data.count_wrong(result, begin, added_in, cast)
        return wrong

    def clear_sums(self) -> None:
        """Clears the sums, so that none of them can be mistaken for a later reduction's."""
        self._clear(self._sums)

    def close(self) -> None:
        """Frees the memory."""
        self._clear(self._inputs)
        self._clear(self._sums)

    @property
    def _dtypes(self) -> list[tf.DType]:
        return [self.dtype] * len(self.shapes)

    def _clear(self, names: Sequence[str]) -> None:
        for device, name in zip(self.devices, names, strict=True):
            with tf.device(device):
                tf.raw_ops.StageClear(dtypes=self._dtypes, shared_name=name)
        self._sizes(names)

    def _sizes(self, names: Sequence[str]) -> list[int]:
        """Number of lists of tensors in each area, when all previous operations are done.

        An operation on another process has only been sent when it returns, and a function that is
        called then may come before it; a returned value shows that it has run.
        """
        sizes = []
        for device, name in zip(self.devices, names, strict=True):
            with tf.device(device):
                sizes.append(int(tf.raw_ops.StageSize(dtypes=self._dtypes, shared_name=name)))
        return sizes


class Program:
    """A traced function that reduces the tensors of buffers, several times one after another.

    Args:
      buffers: hold the tensors, and the sums afterwards.
      make_reduction: called once per reduction in the chain, so that none share state or keys.
      chain: reductions in one call. Each begins when all devices have the sums of the one before.

    Attributes:
      build_seconds: seconds of tracing and of the first call, in which TensorFlow optimises and
        places the graph; None before it.
    """

    def __init__(
        self, buffers: Buffers, make_reduction: Callable[[], Reduction], chain: int
    ) -> None:
        self.chain = chain
        self.build_seconds: float | None = None
        begin = time.perf_counter()
        function = tf.function(lambda: _chained(buffers, make_reduction, chain), autograph=False)
        self._call = function.get_concrete_function()
        self.trace_seconds = time.perf_counter() - begin
        self.operations = len(self._call.graph.get_operations())

    def run(self) -> float:
        """Calls the function and waits until every device has its sums; returns the seconds."""
        begin = time.perf_counter()
        self._call().numpy()
        seconds = time.perf_counter() - begin
        if self.build_seconds is None:
            self.build_seconds = self.trace_seconds + seconds
        return seconds


def copy_all(tensors: DeviceTensors) -> DeviceTensors:
    """No reduction: every device copies its tensors, all devices at once."""
    copies = []
    for own in tensors:
        with tf.device(own[0].device):
            copies.append([tf.raw_ops.DeepCopy(x=tensor) for tensor in own])
    return copies


def _chained(buffers: Buffers, make_reduction: Callable[[], Reduction], chain: int) -> tf.Tensor:
    first = buffers.devices[0]
    finished: list[tf.Operation] = []
    for _ in range(chain):
        with tf.control_dependencies(finished):
            tensors = buffers.read()
        tokens = buffers.write(make_reduction()(tensors), tensors)
        with tf.device(first):
            done = tf.add_n(tokens)
        finished = [done.op]
    return done


def factory(case: ReductionCase, place: ReduceContext, group_size: int) -> Callable[[], Reduction]:
    """A function that makes the reduction of a case, to be called for each one in a chain.

    FlagError if the algorithm cannot work with these devices, in groups of this size.
    """
    if case.peer is not None:
        # Made here, because a strategy is no part of a trace; it keeps nothing between uses.
        reduction = peers.reduction_of(case.peer, place.devices)
        return lambda: reduction
    spec = case.spec or single("copy")
    groups = groups_of(place.devices, group_size)
    Reducer(spec, place, groups)
    aggregation = AggregationSpec(all_reduce=spec, **dataclasses.asdict(case.packing))

    def make() -> Reduction:
        stages = make_stages(aggregation, place.own_devices, None)
        reducer = Reducer(spec, place, groups, aggregation.allreduce_merge_scope)

        def reduce(tensors: DeviceTensors) -> DeviceTensors:
            return transposed(run_through(stages, transposed(tensors), reducer))

        return reduce

    return make


def usable(
    place: ReduceContext, in_cluster: bool
) -> tuple[tuple[AllReduceSpec, ...], dict[str, str]]:
    """The algorithms that work on these devices, and why the others do not."""
    specs, reasons = [], {}
    for name in names():
        try:
            with restored():
                registry.create(name, place)
            if name == "collective" and in_cluster:
                raise ValueError("every worker runs it by itself, so it is measured alone")
        except ValueError as error:
            reasons[name] = first_line(error)
        except Exception as error:  # the other algorithms are measured anyway
            reasons[name] = f"{type(error).__name__}: {first_line(error)}"
        else:
            specs.append(single(name))
    return tuple(specs), reasons


def check(
    specs: Sequence[AllReduceSpec] | None,
    peer_names: Sequence[str],
    place: ReduceContext,
    group_size: int,
) -> None:
    """Refuses specs (None for all that work) and peers that cannot work on these devices."""
    for spec in specs or ():
        Reducer(spec, place, groups_of(place.devices, group_size))
    for name in peer_names:
        try:
            peers.check(name, place.devices)
        except ValueError as error:
            raise FlagError("peers", name, first_line(error)) from error
