"""Graphs of a step as files: as traced, and as partitioned among devices.

TensorFlow 2 has one public way to the graphs after optimization and partitioning:
`tf.summary.trace_on` collects them in the first call of a function, and `tf.summary.trace_export`
writes them to an event file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from cnnbench.base.lock import Scratch
from cnnbench.errors import BenchmarkError
from cnnbench.records.files import write_bytes
from cnnbench.run.observe.protobuf import message


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
