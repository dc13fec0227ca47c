"""The verbose log of oneDNN: which of its kernels a step calls, and with which layouts.

With ONEDNN_VERBOSE=1 oneDNN prints a line for each of its primitives to standard output:

  onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,backward_weights,
  src:f32::blocked:acdb::f0 wei:f32:a:blocked:Acdb16a::f0 bia:undef::undef:::,...

Versions differ in the words before "exec" (nothing, "primitive", a version, a timestamp) and in the
descriptions of tensors ("src_f32" or "src:f32", with or without strides).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import astuple, replace
from typing import BinaryIO

from cnnbench.records.step_profile import Primitive

VARIABLES = {"ONEDNN_VERBOSE": "1"}
"""Environment of a process that prints the log; newer versions read the 1 as "profile_exec"."""

FLAGS = {
    **{"display_every": 1, "warmup": "fixed", "num_warmup_batches": 1, "num_batches": 2},
    "peak_flops": 0,
}
"""Flags of `cnnbench run`, by name, for a log with one whole step between two lines of progress."""

_MARKERS = ("onednn_verbose", "dnnl_verbose")
_STEP = re.compile(r"\d+\timages/sec: ")
_TENSOR = re.compile(r"(\w+?)[_:]([a-z]+\d\w*):[^:]*:(\w+):?(\w*)")
"""Name, type, kind of format and layout; a missing tensor has no type."""

_MOST_BYTES = 64 << 20
_LONGEST_LINE = 1 << 14


def primitives_of_step(log: BinaryIO) -> tuple[Primitive, ...]:
    """Primitives that the last whole step called, if any, from the first 64 MiB of the output."""
    calls: Counter[Primitive] = Counter()
    step: Counter[Primitive] = Counter()
    steps = size = 0
    while size < _MOST_BYTES and (line := log.readline(_LONGEST_LINE)):
        size += len(line)
        text = line.decode("utf-8", "replace")
        if _STEP.match(text):
            step = calls if steps else step
            steps, calls = steps + 1, Counter()
        elif (call := _call(text)) is not None:
            calls[call] += 1
    made = (replace(call, calls=times) for call, times in step.items())
    return tuple(sorted(made, key=astuple))


def _call(line: str) -> Primitive | None:
    words = line.split(",")
    if words[0] not in _MARKERS or "exec" not in words[1:5]:
        return None
    at = words.index("exec")
    if words[at - 1] == "graph" or len(words) < at + 6 or not words[at + 1].startswith("cpu"):
        return None
    name, implementation, propagation, memory = words[at + 2 : at + 6]
    tensors = [found.groups() for found in map(_TENSOR.match, memory.split()) if found]
    layouts = [(one, tag or kind) for one, _, kind, tag in tensors]
    return Primitive(
        name=name,
        propagation="" if propagation == "undef" else propagation,
        types=", ".join(sorted({type for _, type, _, _ in tensors})),
        implementation=implementation,
        # Vectors have only one layout.
        layouts=", ".join(f"{one} {layout}" for one, layout in layouts if len(layout) > 1),
        calls=1,
    )
