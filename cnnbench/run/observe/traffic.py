"""Network traffic of a step: messages between the processes of a job in traced functions.

TensorFlow sends a tensor once to every other device that uses it. The traced graph contains device,
dtype and static shape of every tensor, so the traffic is computed without running the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.context import is_gpu, process_of_device

# The inputs of a conditional operation cause no traffic by themselves: only the operations in its
# branches read them.
_BRANCHES = ("If", "StatelessIf")

_REDUCE = ("CollectiveReduce", "CollectiveReduceV2")
_GATHER = ("CollectiveGather", "CollectiveGatherV2")


class Traffic(NamedTuple):
    """Numbers of messages and bytes between processes.

    A message is a tensor or a part of a tensor. The bytes are None if a shape is unknown.
    """

    messages: int
    bytes: int | None


def count_traffic_of_calls(calls: Iterable[tuple[Any, int]], processes: int) -> Traffic:
    """Counts the messages and bytes between processes in the calls of several traced functions.

    Args:
      calls: graphs of the functions, with the number of calls of each.
      processes: see `count_messages_and_bytes`.
    """
    counted = [(count_messages_and_bytes(graph, processes), times) for graph, times in calls]
    return _total(
        Traffic(one.messages * times, None if one.bytes is None else one.bytes * times)
        for one, times in counted
    )


def _total(transfers: Iterable[Traffic]) -> Traffic:
    transfers = list(transfers)
    sizes = [one.bytes for one in transfers if one.bytes is not None]
    messages = sum(one.messages for one in transfers)
    return Traffic(messages, sum(sizes) if len(sizes) == len(transfers) else None)


def count_messages_and_bytes(graph: Any, processes: int) -> Traffic:
    """Counts the messages and bytes between processes in one call of a traced function.

    Control dependencies between processes are not counted. Collectives are assumed to use
    TensorFlow's ring, with the same number of devices in each process and with the devices of a
    process as neighbours. For n devices and s bytes, each link between processes transfers 2(n-1)
    messages with 2(n-1)/n s bytes in total.

    Args:
      graph: graph of the function. If each process traces its own function, any of these graphs.
      processes: number of processes of the job.
    """
    sent: dict[tuple[str, str], Traffic] = {}
    rings: dict[tuple[int, int], Traffic] = {}
    unnumbered: defaultdict[str, list[Traffic]] = defaultdict(list)
    for op in _needed_operations(graph):
        if op.type in (*_REDUCE, *_GATHER):
            if op.type.endswith("V2") and tf.get_static_value(op.inputs[3]) is None:
                # If each call creates the key of a collective, the graph does not contain the key.
                unnumbered[op.device].append(_ring_traffic(op, processes))
            else:
                instance = (
                    _read_number(op, "group_key", 2),
                    _read_number(op, "instance_key", 3),
                )
                rings[instance] = _ring_traffic(op, processes)
        if op.type in _BRANCHES or not op.device:
            continue
        for tensor in op.inputs:
            made_on = tensor.op.device
            if made_on and process_of_device(made_on) != process_of_device(op.device):
                sent[tensor.name, op.device] = Traffic(1, _tensor_bytes(tensor))
    # All devices take part in these collectives of a strategy, so counting the collectives of one
    # device is enough.
    of_strategy = next(iter(unnumbered.values()), [])
    return _total((*sent.values(), *rings.values(), *of_strategy))


def collective_libraries(graph: Any, devices: Collection[str]) -> tuple[str, ...]:
    """Finds the implementations of TensorFlow's collectives on `devices`: "nccl", "ring" or both.

    A collective uses NCCL if its hint requests NCCL and it is on a GPU; otherwise, it uses
    TensorFlow's ring. `devices` contains full device strings.
    """
    libraries = set()
    for op in graph.get_operations():
        if op.type in (*_REDUCE, *_GATHER) and op.device in devices:
            by_nccl = op.get_attr("communication_hint") == b"nccl" and is_gpu(op.device)
            libraries.add("nccl" if by_nccl else "ring")
    return tuple(sorted(libraries))


def _needed_operations(graph: Any) -> Iterator[Any]:
    """Yields the operations that outputs or side effects of a graph depend on.

    TensorFlow removes all other operations.
    """
    visited: set[Any] = set()
    todo = [tensor.op for tensor in graph.outputs]
    todo += [op for op in graph.get_operations() if op.op_def.is_stateful]
    while todo:
        op = todo.pop()
        if op not in visited:
            visited.add(op)
            yield op
            todo += [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def _ring_traffic(op: Any, processes: int) -> Traffic:
    """Returns the messages and bytes that one ring collective sends between processes."""
    size = _read_number(op, "group_size", 1)
    reduces = op.type in _REDUCE
    hops = processes * (2 if reduces else 1) * (size - 1)
    subdivisions = len(op.get_attr("subdiv_offsets")) if op.type == _REDUCE[0] else 1
    whole = _tensor_bytes(op.inputs[0])
    if whole is None:
        return Traffic(hops * subdivisions, None)
    return Traffic(hops * subdivisions, hops * whole // (size if reduces else 1))


def _read_number(op: Any, name: str, position: int) -> int:
    """Reads attribute `name` of a collective or, in V2 operations, the input at `position`."""
    if not op.type.endswith("V2"):
        return int(op.get_attr(name))
    return int(tf.get_static_value(op.inputs[position]))


def _tensor_bytes(tensor: tf.Tensor) -> int | None:
    elements = tensor.shape.num_elements()
    return None if elements is None else int(elements) * int(tensor.dtype.size)
