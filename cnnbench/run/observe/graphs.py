"""Writes the graph of a step as it was traced, and as it is partitioned among devices.

TensorFlow 2 has only one public interface to the graphs after optimization and partitioning:
`tf.summary.trace_on` collects them in the first call of a function, and `tf.summary.trace_export`
writes them to an event file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from cnnbench.base.locks import TemporaryFolder
from cnnbench.errors import BenchmarkError
from cnnbench.records.files import write_bytes
from cnnbench.run.observe.messages import message_class


def write_graph(flag: str, path: str, graph_def: Any) -> None:
    """Writes a GraphDef to a file: as text if the path ends in txt, otherwise as binary.

    `flag` is the flag of the path, for errors.
    """
    text = path.endswith("txt")
    write_bytes(flag, path, str(graph_def).encode() if text else graph_def.SerializeToString())


@contextmanager
def collecting_partitions(partitions: list[Any]) -> Iterator[None]:
    """A context that collects the graphs into which TensorFlow partitions a function called inside.

    The GraphDefs are appended to `partitions`.
    """
    tf.summary.trace_on(graph=True, profiler=False)
    # Restarts the collection, because earlier graphs are still in it: in TensorFlow 2.21, trace_off
    # does not end it.
    _take_metadata()
    tf.summary.trace_on(graph=True, profiler=False)
    try:
        yield
    except BaseException:
        tf.summary.trace_off()
        raise
    partitions += _step_partitions()


def _step_partitions() -> list[Any]:
    """Returns GraphDefs of the largest function that ran since `trace_on`, sorted by device."""
    graph_def = type(tf.Graph().as_graph_def())  # TensorFlow has no public name for this class.
    functions = [
        [graph_def.FromString(graph) for graph in function.partitions]
        for function in message_class("RunMetadata").FromString(_take_metadata()).functions
    ]
    # Smaller functions, which feed the step or read its results, may also have run, so the largest
    # function is the step.
    step = max(functions, key=lambda graphs: sum(len(g.node) for g in graphs), default=[])
    if not step:
        raise BenchmarkError("TensorFlow has collected no graphs of the step")
    return sorted(step, key=lambda graph: min((node.device for node in graph.node), default=""))


def _take_metadata() -> bytes:
    """Returns the serialized RunMetadata that TensorFlow has collected since `trace_on`."""
    with TemporaryFolder("cnnbench-graphs-") as scratch:
        folder = scratch.path / "events"
        writer = tf.summary.create_file_writer(os.fspath(folder))
        with writer.as_default():
            tf.summary.trace_export("step", step=0)
        writer.close()
        (events,) = folder.iterdir()
        for event in tf.data.TFRecordDataset(os.fspath(events)):
            for value in message_class("Event").FromString(event.numpy()).summary.values:
                for metadata in value.tensor.strings:
                    return bytes(metadata)
    raise BenchmarkError("TensorFlow has collected no graphs of the step")
