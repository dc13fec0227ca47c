"""Peak memory of a run: of this process, or of the tensors on its GPUs."""

from __future__ import annotations

import resource
import sys

from cnnbench import lazy_tensorflow as tf
from cnnbench.run.runtime.devices import physical_devices_of_gpus

_RU_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def reset_peak_memory(device_kind: str) -> None:
    """Resets the peak memory of GPUs. The peak memory of a process cannot be reset."""
    if device_kind == "gpu":
        for number in range(len(physical_devices_of_gpus())):
            tf.config.experimental.reset_memory_stats(f"GPU:{number}")


def read_peak_memory(device_kind: str) -> int | None:
    """Peak memory of a run in bytes.

    If `device_kind` is "gpu", this is the peak memory of tensors on the GPU with the highest peak,
    without memory that TensorFlow's allocator only reserves; None if this process has no GPUs.
    Otherwise, it is the peak resident set size of this process since its start.
    """
    if device_kind != "gpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RU_MAXRSS_UNIT
    return max(tensor_bytes_by_gpu("peak"), default=None)


def tensor_bytes_by_gpu(key: str) -> list[int]:
    """Bytes of tensors on each GPU of this process. `key` is "current" or "peak"."""
    gpus = (f"GPU:{number}" for number in range(len(physical_devices_of_gpus())))
    return [int(tf.config.experimental.get_memory_info(gpu)[key]) for gpu in gpus]
