"""Graphs that a run writes, and the traffic that they contain.

TensorFlow 2 has one public way to the graphs after optimization and partitioning:
`tf.summary.trace_on` collects them in the first call of a function, and `tf.summary.trace_export`
writes them to an event file.

TensorFlow sends a tensor once to every other device that uses it. The traced graph has device,
dtype and static shape of everything, so the data is counted without running anything.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from cnnbench.base.files import Scratch
from cnnbench.errors import BenchmarkError
from cnnbench.records.files import write_bytes
from cnnbench.run.observe.operations import message
from cnnbench.variable_mgr.all_reduce.spec import is_gpu, process_of

# Graphs of a step as files: as traced, and as partitioned among devices.


def write_graph(flag: str, path: str, graph_def: Any) -> None:
    """Writes a GraphDef: as text if the name ends in txt, else as binary."""
    text = path.endswith("txt")
    write_bytes(flag, path, str(graph_def).encode() if text else graph_def.SerializeToString())


@contextmanager
def collecting_partitions(found: list[Any]) -> Iterator[None]:
    """Appends to `found` the partitions of the function called in the block, by device."""
    tf.summary.trace_on(graph=True, profiler=False)
    _exported()  # drops what ran since an earlier one: trace_off (2.21) leaves the collecting on
    tf.summary.trace_on(graph=True, profiler=False)
    try:
        yield
    except BaseException:
        tf.summary.trace_off()
        raise
    found += _partitions()


def _partitions() -> list[Any]:
    """GraphDefs of the largest function that ran since `trace_on`, in order of devices."""
    graph_def = type(tf.Graph().as_graph_def())  # the public way to the class
    functions = [
        [graph_def.FromString(graph) for graph in function.partitions]
        for function in message("RunMetadata").FromString(_exported()).functions
    ]
    # Other functions are the few operations that feed the step and read its results.
    step = max(functions, key=lambda graphs: sum(len(g.node) for g in graphs), default=[])
    if not step:
        raise BenchmarkError("TensorFlow has collected no graphs of the step")
    return sorted(step, key=lambda graph: min((node.device for node in graph.node), default=""))


def _exported() -> bytes:
    """The RunMetadata that was collected since `trace_on`, as its message."""
    with Scratch("cnnbench-graphs-") as scratch:
        folder = scratch.path / "events"
        writer = tf.summary.create_file_writer(os.fspath(folder))
        with writer.as_default():
            tf.summary.trace_export("step", step=0)
        writer.close()
        (events,) = folder.iterdir()
        for event in tf.data.TFRecordDataset(os.fspath(events)):
            for value in message("Event").FromString(event.numpy()).summary.values:
                for metadata in value.tensor.strings:
                    return bytes(metadata)
    raise BenchmarkError("TensorFlow has collected no graphs of the step")


# Data sent between the processes of a job in one call of a traced function.

# A branch reads its inputs from where they are; the operation of the branch itself moves nothing.
_BRANCHES = ("If", "StatelessIf")

_REDUCE = ("CollectiveReduce", "CollectiveReduceV2")
_GATHER = ("CollectiveGather", "CollectiveGatherV2")


def traffic(graph: Any, processes: int) -> tuple[int, int | None]:
    """Messages and bytes between processes in one call of a `ConcreteFunction` with this graph.

    A message is a tensor or a chunk of one. The bytes are None if a shape is unknown.

    Signals without a value, which only order operations, are not counted. Collectives, with equally
    many devices in each process, count as TensorFlow's ring, in which the devices of a process are
    neighbours: with n devices and s bytes, each link between processes carries 2(n-1) messages,
    together 2(n-1)/n s bytes. Where each process traces its own function, any of their graphs will
    do.
    """
    sent: dict[tuple[str, str], tuple[int, int | None]] = {}
    rings: dict[tuple[int, int], tuple[int, int | None]] = {}
    unnumbered: defaultdict[str, list[tuple[int, int | None]]] = defaultdict(list)
    for op in _needed(graph):
        if op.type in (*_REDUCE, *_GATHER):
            if op.type.endswith("V2") and tf.get_static_value(op.inputs[3]) is None:
                unnumbered[op.device].append(_ring(op, processes))  # every call creates a new key
            else:
                instance = _number(op, "group_key", 2), _number(op, "instance_key", 3)
                rings[instance] = _ring(op, processes)
        if op.type in _BRANCHES or not op.device:
            continue
        for tensor in op.inputs:
            made_on = tensor.op.device
            if made_on and process_of(made_on) != process_of(op.device):
                sent[tensor.name, op.device] = 1, _bytes(tensor)
    # Every device of a strategy takes part in each of its collectives.
    of_strategy = next(iter(unnumbered.values()), [])
    found = (*sent.values(), *rings.values(), *of_strategy)
    sizes = [size for _, size in found if size is not None]
    total = sum(sizes) if len(sizes) == len(found) else None
    return sum(messages for messages, _ in found), total


def communication(graph: Any, devices: Collection[str]) -> tuple[str, ...]:
    """Implementations of TensorFlow's collectives on some devices: "nccl", "ring" or both.

    NCCL where the operation asks for it and is on a GPU, otherwise TensorFlow's ring. `devices` are
    full device strings.
    """
    found = set()
    for op in graph.get_operations():
        if op.type in (*_REDUCE, *_GATHER) and op.device in devices:
            by_nccl = op.get_attr("communication_hint") == b"nccl" and is_gpu(op.device)
            found.add("nccl" if by_nccl else "ring")
    return tuple(sorted(found))


def _needed(graph: Any) -> Iterator[Any]:
    """Operations that outputs and side effects depend on; TensorFlow prunes the rest."""
    seen: set[Any] = set()
    todo = [tensor.op for tensor in graph.outputs]
    todo += [op for op in graph.get_operations() if op.op_def.is_stateful]
    while todo:
        op = todo.pop()
        if op not in seen:
            seen.add(op)
            yield op
            todo += [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def _ring(op: Any, processes: int) -> tuple[int, int | None]:
    """`traffic` of a collective of all processes, in which each sends to the next one."""
    size = _number(op, "group_size", 1)
    reduces = op.type in _REDUCE
    hops = processes * (2 if reduces else 1) * (size - 1)
    subdivisions = len(op.get_attr("subdiv_offsets")) if op.type == _REDUCE[0] else 1
    whole = _bytes(op.inputs[0])
    sent = None if whole is None else hops * whole // (size if reduces else 1)
    return hops * subdivisions, sent


def _number(op: Any, name: str, position: int) -> int:
    """An attribute of a collective, which is an input of the V2 operations."""
    if not op.type.endswith("V2"):
        return int(op.get_attr(name))
    return int(tf.get_static_value(op.inputs[position]))


def _bytes(tensor: tf.Tensor) -> int | None:
    elements = tensor.shape.num_elements()
    return None if elements is None else int(elements) * int(tensor.dtype.size)
