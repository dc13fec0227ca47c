"""All-reduce with TensorFlow's collectives: the runtime's ring, or NCCL between GPUs."""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce.algorithms.nccl import nccl_kernel_exists, refuse_shared_card
from cnnbench.variable_mgr.all_reduce.context import ReduceContext, is_gpu, process_of_device
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import map_on_devices
from cnnbench.variable_mgr.tracing import current_traced_graph

IN_FLIGHT = 8
"""Largest number of collective operations that run on a device at the same time.

Each active collective operation blocks a thread per device until all devices have joined. Without a
limit, the 161 gradients of ResNet-50 (102 MB) on 4 devices needed more threads than allowed. On 2
cores, limits of 1 to 32 change the time for these gradients by less than 10 %. On 2 devices, 1,000
tensors of 4 KB take 87 ms with limit 1, 58 ms with 2, 43 ms with 4, 39 ms with 8 and 38 ms with 16.
For the same tensors, CollectiveReduceV2 took 1.5 times as long and needed thousands of threads.
"""

IN_FLIGHT_BY_NCCL = 1
"""Largest number of NCCL operations that run on a device at the same time.

NCCL matches the operations of a communicator by their order. Therefore, collectives must run in the
same order in all processes. TensorFlow launches a collective when all devices of its process have
joined (tensorflow/core/nccl/collective_communicator.cc), so the order of several is not fixed.
"""

_under_way: WeakKeyDictionary[tf.Graph, defaultdict[str, deque[str]]] = WeakKeyDictionary()
"""For each graph and device, the names of the last collective operations, oldest first.

The values are names, because operations would keep their graph, the key, alive.
"""

_instances: defaultdict[int, Iterator[int]] = defaultdict(lambda: itertools.count(1))
"""Counters of collective operations by group of devices.

Processes that trace the same functions give an operation the same number.
"""


def _check(context: ReduceContext) -> None:
    if context.shards > 2:
        raise ValueError(f"collective supports only one or two rings, not {context.shards}")
    cpus = [device for device in context.devices if not is_gpu(device)]
    if 0 < len(cpus) < len(context.devices):
        raise ValueError(f"collective needs devices of one kind, but {cpus[0]} is not a GPU")
    if context.communication_hint == "nccl" and cpus:
        raise ValueError(f"NCCL needs GPUs, but {cpus[0]} is not a GPU; use ring")
    if context.communication_hint == "nccl":
        refuse_shared_card(context, "--communication_hint=ring")
    if context.communication_hint == "nccl" and context.shards > 1:
        raise ValueError("NCCL has no shards; remove # and the number of shards, or use ring")


# `cnnbench tune` does not try this algorithm by name, because it is the default of its mode.
@register(
    "collective",
    check=_check,
    reads=("communication_hint",),
    tuned_on=(),
    across_steps=True,
)
class Collective:
    """All-reduce with one CollectiveReduce operation per device. It works in a tf.function only.

    On each device, at most `IN_FLIGHT` reductions run at the same time, in the order of tracing.
    The order is the same on all devices, and a reduction depends only on earlier reductions, so
    there is no deadlock.

    The result of every device must be used: TensorFlow removes unused operations, and the other
    devices would wait forever. After an error, all later collectives of the process fail.

    TensorFlow's collectives with NCCL do not support bfloat16 (2.21). Such a tensor is sent as
    float32, which represents every bfloat16 number exactly but doubles the bytes.
    """

    runs_together = True

    def __init__(self, context: ReduceContext) -> None:
        self._devices = context.own_devices
        self._group_size = len(context.devices)
        self._group_key = collective_group_key(context.devices)
        # For each of several rings, the number of the device (in its process) at which the ring
        # begins. A negative number means a ring in the opposite direction.
        of_first = [process_of_device(device) for device in context.devices].count(
            process_of_device(context.devices[0])
        )
        self._offsets = [0] if context.shards == 1 else [0, -max(1, of_first // 2)]
        self._hint = context.collective_hint
        if self._hint == "nccl" and not nccl_kernel_exists():
            if context.communication_hint == "nccl":
                raise ValueError(f"TensorFlow {tf.__version__} was built without NCCL; use ring")
            self._hint = "ring"

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """Sums one tensor, with a separate copy for every device; see `Algorithm.__call__`."""
        if tensors[0].shape.num_elements() == 0:
            return list(tensors)

        # With V2 operations, TensorFlow adds control dependencies that can cause deadlocks, so V1
        # operations are used.
        return self._build_ops(
            lambda tensor, instance_key: tf.raw_ops.CollectiveReduce(
                input=tensor,
                group_size=self._group_size,
                group_key=self._group_key,
                instance_key=instance_key,
                merge_op="Add",
                final_op="Id",
                subdiv_offsets=self._offsets,
                communication_hint=self._hint,
            ),
            tensors,
        )

    def gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenates the tensors of all devices, on every device.

        The tensors have the same static shape. Their order is the same on every device.
        """
        rows, *other_dimensions = tensors[0].shape
        shape = [rows * self._group_size, *other_dimensions]

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
            return self._build_ops(join, tensors)
        # CollectiveGather does not support bfloat16, so the same bits are sent as float16.
        halves = map_on_devices(self._devices, lambda x: tf.bitcast(x, tf.float16), tensors)
        joined = self._build_ops(join, halves)
        return map_on_devices(self._devices, lambda x: tf.bitcast(x, tf.bfloat16), joined)

    def _build_ops(
        self, op: Callable[[tf.Tensor, int], tf.Tensor], tensors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        if self._hint != "nccl":
            return build_collective_ops(op, self._devices, tensors, self._group_key)
        dtype = tensors[0].dtype
        if dtype == tf.bfloat16:
            tensors = map_on_devices(self._devices, lambda x: tf.cast(x, tf.float32), tensors)
        key, in_flight = self._group_key, IN_FLIGHT_BY_NCCL
        results = build_collective_ops(op, self._devices, tensors, key, in_flight)
        return map_on_devices(self._devices, lambda x: tf.cast(x, dtype), results)


def build_collective_ops(
    op: Callable[[tf.Tensor, int], tf.Tensor],
    devices: Sequence[str],
    tensors: Sequence[tf.Tensor],
    key: int,
    in_flight: int = IN_FLIGHT,
) -> list[tf.Tensor]:
    """Adds one collective operation per device to the function that is being traced.

    All results must be used. `op` creates the operation of a device from its tensor and the
    instance key. At most `in_flight` such operations run at the same time on a device.
    """
    if tf.executing_eagerly():
        raise RuntimeError("collective reductions work inside a tf.function only")
    graph = current_traced_graph()
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
            # MultiWorkerMirroredStrategy enables TensorFlow's scoped allocator, which would merge
            # collectives in one name scope, or fail. So each collective gets a name scope of its
            # own.
            tf.name_scope(f"instance_{instance_key}"),
        ):
            result = op(tensor, instance_key)
        last.append(result.op.name)
        results.append(result)
    return results


def collective_group_key(devices: Sequence[str]) -> int:
    """Returns a number that identifies a set of devices and is the same in every process.

    The number is at least 2^30, because tf.distribute uses small numbers.
    """
    return 2**30 | zlib.crc32(",".join(sorted(devices)).encode()) % 2**30
