"""TensorFlow's own collective: the runtime's ring, or NCCL between GPUs."""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.algorithms.nccl import kernel_exists
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.all_reduce.spec import ReduceContext, process_of
from cnnbench.variable_mgr.gradients import on_devices, traced_graph

# Reductions that a device takes part in at one time. Every collective under way blocks a
# thread on each device until all devices have joined, and the runtime makes as many
# threads as it takes: the 161 gradients of ResNet-50 on 4 devices ended the process for
# want of threads. Measured on 2 cores, the limit makes no difference for these 102 MB
# (2 and 4 devices, 1 to 32 under way: within 10 %), while 1,000 tensors of 4 KB on
# 2 devices take 87, 58, 43, 39 and 38 ms with 1, 2, 4, 8 and 16 under way.
# CollectiveReduceV2, which TensorFlow orders by a token per device, took 1.5 times as
# long as this and thousands of threads.
IN_FLIGHT = 8

# NCCL matches the operations of a communicator by their order, which must be the same in all
# processes, and TensorFlow launches a collective when the devices of its process have joined
# (tensorflow/core/nccl/collective_communicator.cc). Only one under way at a time has one order;
# TensorFlow's strategies do the same by a token per device.
IN_FLIGHT_BY_NCCL = 1

# Names of the last ops of each device, oldest first, in the graph that has them. Not the
# ops, which would keep the graph that is the key.
_under_way: WeakKeyDictionary[tf.Graph, defaultdict[str, deque[str]]] = WeakKeyDictionary()

# Counts the reductions of each group of devices. All processes that trace the same
# reductions in the same order count alike.
_instances: defaultdict[int, Iterator[int]] = defaultdict(lambda: itertools.count(1))


@register("collective")
class Collective:
    """One CollectiveReduce operation on each device, inside a traced function only.

    A device begins a reduction when the one `IN_FLIGHT` before it has ended there. All devices have
    the same order, that of tracing, and a reduction depends on earlier ones only; so they cannot
    block each other.

    The result of every device must be used: TensorFlow prunes unused operations, and the other
    devices then wait forever. After an error, all later collectives of the process fail.

    TensorFlow's collectives by NCCL take no bfloat16 (2.21): such a tensor is sent as float32,
    which holds every bfloat16 number and doubles the bytes.
    """

    runs_together = True

    def __init__(self, context: ReduceContext) -> None:
        self._devices = context.own_devices
        self._group_size = len(context.devices)
        self._group_key = group_key(context.devices)
        # Offset of each ring in a process's devices; a negative one also reverses the direction.
        of_first = [process_of(device) for device in context.devices].count(
            process_of(context.devices[0])
        )
        self._offsets = [0] if context.shards == 1 else [0, -max(1, of_first // 2)]
        self._hint = context.collective_hint
        if self._hint == "nccl" and not kernel_exists():
            if context.communication_hint == "nccl":
                raise ValueError(f"TensorFlow {tf.__version__} was built without NCCL; use ring")
            self._hint = "ring"

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """See `Algorithm.__call__`; every device of this process gets a sum of its own."""
        if tensors[0].shape.num_elements() == 0:
            return list(tensors)

        # Version 1 of the op, because between ops of version 2 TensorFlow adds control
        # dependencies, and across devices these are deadlocks.
        def reduce(tensor: tf.Tensor, instance_key: int) -> tf.Tensor:
            return tf.raw_ops.CollectiveReduce(
                input=tensor,
                group_size=self._group_size,
                group_key=self._group_key,
                instance_key=instance_key,
                merge_op="Add",
                final_op="Id",
                subdiv_offsets=self._offsets,
                communication_hint=self._hint,
            )

        return self._collectively(reduce, tensors)

    def gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenates tensors of one static shape of all devices, in one order on every device."""
        rows, *others = tensors[0].shape
        shape = [rows * self._group_size, *others]

        def join(tensor: tf.Tensor, instance_key: int) -> tf.Tensor:
            return tf.raw_ops.CollectiveGather(
                input=tensor,
                group_size=self._group_size,
                group_key=self._group_key,
                instance_key=instance_key,
                shape=shape,
                communication_hint=self._hint,
            )

        if tensors[0].dtype != tf.bfloat16:
            return self._collectively(join, tensors)
        # CollectiveGather takes no bfloat16. It computes nothing, so that any 16 bits will do.
        halves = on_devices(self._devices, lambda x: tf.bitcast(x, tf.float16), tensors)
        joined = self._collectively(join, halves)
        return on_devices(self._devices, lambda x: tf.bitcast(x, tf.bfloat16), joined)

    def _collectively(
        self, op: Callable[[tf.Tensor, int], tf.Tensor], tensors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        if self._hint != "nccl":
            return collectively(op, self._devices, tensors, self._group_key)
        dtype = tensors[0].dtype
        if dtype == tf.bfloat16:
            tensors = on_devices(self._devices, lambda x: tf.cast(x, tf.float32), tensors)
        key, in_flight = self._group_key, IN_FLIGHT_BY_NCCL
        results = collectively(op, self._devices, tensors, key, in_flight)
        return on_devices(self._devices, lambda x: tf.cast(x, dtype), results)


def collectively(
    op: Callable[[tf.Tensor, int], tf.Tensor],
    devices: Sequence[str],
    tensors: Sequence[tf.Tensor],
    key: int,
    in_flight: int = IN_FLIGHT,
) -> list[tf.Tensor]:
    """Adds one collective to the function that is being traced; all results must be used.

    `op` makes the operation of a device from its tensor and the instance key. It begins when the
    one `in_flight` before it has ended on its device.
    """
    if tf.executing_eagerly():
        raise RuntimeError("collective reductions work inside a tf.function only")
    graph = traced_graph()
    under_way = _under_way.setdefault(graph, defaultdict(lambda: deque(maxlen=IN_FLIGHT)))
    instance_key = next(_instances[key])
    results = []
    for device, tensor in zip(devices, tensors, strict=True):
        last = under_way[device]
        names = [last[-in_flight]] if len(last) >= in_flight else []
        before = [graph.get_operation_by_name(name) for name in names]
        with (
            tf.device(device),
            tf.control_dependencies(before),
            # A scope of its own: MultiWorkerMirroredStrategy turns the scoped allocator on,
            # which joins the reductions of a scope, with copies of its own, or fails over them.
            tf.name_scope(f"instance_{instance_key}"),
        ):
            result = op(tensor, instance_key)
        last.append(result.op.name)
        results.append(result)
    return results


def group_key(devices: Sequence[str]) -> int:
    """A number for a set of devices in any order, the same in every process.

    It is 2^30 or more, since tf.distribute counts up small numbers.
    """
    return 2**30 | zlib.crc32(",".join(sorted(devices)).encode()) % 2**30
