"""Protobuf messages of TensorFlow without a public class, with the fields used here.

https://protobuf.dev/programming-guides/encoding/ explains the format.
"""

from __future__ import annotations

import functools
from typing import Any

# Type, name and number of each field; an asterisk means a repeated field.
# Texts are declared as bytes, because names may not be valid UTF-8.
_MESSAGES = {
    # Messages of the profiler. XStat contains one field for each type of its value.
    "XSpace": "XPlane* planes 1",
    "XPlane": "bytes name 2, XLine* lines 3, Entry* event_names 4, Entry* stat_names 5",
    "XLine": "bytes name 2, int64 start 3, XEvent* events 4, bytes shown 11",
    "XEvent": "int64 key 1, int64 offset 2, int64 duration 3, XStat* stats 4",
    "XStat": "int64 key 1, double real 2, uint64 natural 3, int64 whole 4, bytes text 5, "
    "uint64 reference 7",
    "Entry": "int64 key 1, Metadata value 2",
    "Metadata": "bytes name 2",
    # Protobuf messages in event files, and in the graphs that `tf.summary.trace_export` writes.
    "Event": "double wall_time 1, int64 step 2, bytes file_version 3, Summary summary 5, "
    "SessionLog session 7",
    "SessionLog": "int32 status 1",
    "Summary": "SummaryValue* values 1",
    "SummaryValue": "bytes tag 1, Tensor tensor 8, SummaryMetadata metadata 9",
    "Tensor": "bytes* strings 8",
    "RunMetadata": "FunctionGraphs* functions 4",
    "FunctionGraphs": "bytes* partitions 1",
    "SummaryMetadata": "PluginData plugin 1, int32 data_class 4",
    "PluginData": "bytes name 1",
}


def message_class(name: str) -> Any:
    """Returns the class of a protobuf message, such as "XSpace"."""
    return _classes()[name]


@functools.cache
def _classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="cnnbench.proto", package="cnnbench")
    for message, fields in _MESSAGES.items():
        declared = file.message_type.add(name=message)
        for kind, name, tag in map(str.split, fields.split(",")):
            field = declared.field.add(name=name, number=int(tag))
            field.label = kinds.LABEL_REPEATED if kind[-1] == "*" else kinds.LABEL_OPTIONAL
            inner = kind.rstrip("*")
            if inner in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".cnnbench.{inner}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{inner.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = ((name, pool.FindMessageTypeByName(f"cnnbench.{name}")) for name in _MESSAGES)
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in descriptors}
