"""Explains why a run failed: exceptions of TensorFlow and of the operating system."""

from __future__ import annotations

import sys
from typing import Any

from cnnbench.base import plugins
from cnnbench.errors import (
    BenchmarkError,
    OutOfMemoryError,
    exhausted,
    first_line,
    is_out_of_memory,
)
from cnnbench.plan.run_plan import RunPlan

# TensorFlow's error message if a device has too little memory for a copy.
_COPY_OUT_OF_MEMORY = "Dst tensor is not initialized"


def to_benchmark_error(plan: RunPlan, error: Exception) -> BenchmarkError | None:
    """Converts an exception of TensorFlow or the operating system to an error with a short message.

    Returns None for a defect of cnnbench.
    """
    if isinstance(error, BenchmarkError):
        return error
    reason = exhausted(error)
    if reason:
        place = plugins.plugin_location_of_error(error)
        text = f"{place}: {reason}" if place else reason
        return (OutOfMemoryError if "memory" in reason else BenchmarkError)(text)
    if isinstance(error, OSError):
        return BenchmarkError(f"{error.strerror or error}: {error.filename or 'unknown file'}")
    tf: Any = sys.modules.get("tensorflow")
    if not hasattr(tf, "errors"):
        return None  # TensorFlow could not be loaded, so the error is not from TensorFlow.
    reason = first_line(error)
    if isinstance(error, tf.errors.ResourceExhaustedError) or _COPY_OUT_OF_MEMORY in reason:
        flags = "--batch_size"
        if plan.params.eval_batch_size:
            flags += " or --eval_batch_size"
        return OutOfMemoryError(f"out of memory: lower {flags} (counted per device); {reason}")
    torn = (tf.errors.OutOfRangeError, tf.errors.DataLossError)
    if plan.params.xla_cache_dir and isinstance(error, torn):
        reason = f"a file in this folder cannot be read; remove the file: {reason}"
        return BenchmarkError(f"--xla_cache_dir={plan.params.xla_cache_dir}: {reason}")
    if isinstance(error, tf.errors.OpError):
        if "grouped convolutions" in reason:
            reason += "; oneDNN supports grouped convolutions: set TF_ENABLE_ONEDNN_OPTS=1"
        full = is_out_of_memory(type(error).__name__, reason)
        kind = OutOfMemoryError if full else BenchmarkError
        return kind(f"TensorFlow: {type(error).__name__}: {reason}")
    return None
