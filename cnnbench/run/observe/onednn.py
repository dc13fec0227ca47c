"""The verbose log of oneDNN, which shows the kernels that a step calls and their layouts.

With ONEDNN_VERBOSE=1, oneDNN prints a line to standard output for each call of a primitive:

  onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,backward_weights,
  src:f32::blocked:acdb::f0 wei:f32:a:blocked:Acdb16a::f0 bia:undef::undef:::,...

Versions of oneDNN differ in the words before "exec" (nothing, "primitive", a version, a timestamp)
and in the descriptions of tensors ("src_f32" or "src:f32", with or without strides).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import astuple, replace
from typing import BinaryIO

from cnnbench.records.profiles import Primitive

VARIABLES = {"ONEDNN_VERBOSE": "1"}
"""Environment variable with which a process prints oneDNN's log.

Newer versions of oneDNN interpret the value 1 as "profile_exec".
"""

FLAGS = {
    **{"display_every": 1, "warmup": "fixed", "num_warmup_batches": 1, "num_batches": 2},
    "peak_flops": 0,
}
"""Flags of `cnnbench run` with which the log contains one complete step between two progress lines.
"""

_MARKERS = ("onednn_verbose", "dnnl_verbose")
_STEP = re.compile(r"\d+\timages/sec: ")
_TENSOR = re.compile(r"(\w+?)[_:]([a-z]+\d\w*):[^:]*:(\w+):?(\w*)")
"""Matches name, type, kind of format and layout of a tensor. A missing tensor has no type."""

_MOST_BYTES = 64 << 20
_LONGEST_LINE = 1 << 14


def primitives_of_step(log: BinaryIO) -> tuple[Primitive, ...]:
    """Reads the oneDNN primitives that the last complete step called, from a log of oneDNN.

    Only the first 64 MiB of the log are read. The result is empty if they contain no complete step.
    """
    calls: Counter[Primitive] = Counter()
    step: Counter[Primitive] = Counter()
    steps = size = 0
    while size < _MOST_BYTES and (line := log.readline(_LONGEST_LINE)):
        size += len(line)
        text = line.decode("utf-8", "replace")
        if _STEP.match(text):
            step = calls if steps else step
            steps, calls = steps + 1, Counter()
        elif (call := _parse_call(text)) is not None:
            calls[call] += 1
    counted = (replace(call, calls=times) for call, times in step.items())
    return tuple(sorted(counted, key=astuple))


def _parse_call(line: str) -> Primitive | None:
    """Parses a line of oneDNN's log; None if the line is not a call of a primitive on a CPU."""
    words = line.split(",")
    if words[0] not in _MARKERS or "exec" not in words[1:5]:
        return None
    at = words.index("exec")
    if words[at - 1] == "graph" or len(words) < at + 6 or not words[at + 1].startswith("cpu"):
        return None
    name, implementation, propagation, memory = words[at + 2 : at + 6]
    tensors = [match.groups() for match in map(_TENSOR.match, memory.split()) if match]
    layouts = [(tensor, tag or kind) for tensor, _, kind, tag in tensors]
    return Primitive(
        name=name,
        propagation="" if propagation == "undef" else propagation,
        types=", ".join(sorted({type for _, type, _, _ in tensors})),
        implementation=implementation,
        # A vector has only one possible layout, so its layout is left out.
        layouts=", ".join(f"{tensor} {layout}" for tensor, layout in layouts if len(layout) > 1),
        calls=1,
    )
