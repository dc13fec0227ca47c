"""Peak memory of a run."""

from __future__ import annotations

import resource
import sys

_RU_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def reset_peak_memory(device_kind: str) -> None:
    """Resets the peak memory of GPUs; that of a process cannot be reset."""
    if device_kind != "gpu":
        return
    import tensorflow as tf

    for device in _logical_gpus():
        tf.config.experimental.reset_memory_stats(device)


def peak_memory(device_kind: str) -> int | None:
    """Peak memory of the run in bytes.

    Of GPUs ("gpu") that of tensors on the fullest one, not what TensorFlow's allocator reserved,
    None where this process has none; otherwise the resident set of this process since its start.
    """
    if device_kind != "gpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RU_MAXRSS_UNIT
    import tensorflow as tf

    return max(
        (int(tf.config.experimental.get_memory_info(device)["peak"]) for device in _logical_gpus()),
        default=None,
    )


def _logical_gpus() -> list[str]:
    import tensorflow as tf

    # Those of this process, of which each is one device; others are not asked from here.
    return [f"GPU:{i}" for i, _ in enumerate(tf.config.get_visible_devices("GPU"))]
