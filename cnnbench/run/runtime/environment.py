"""Environment variables that TensorFlow reads when it is imported."""

from __future__ import annotations

import os

from cnnbench.machine.facts import XLA_CACHE
from cnnbench.plan.setup import MachineFlags

# Users set these variables on purpose, so no warning says that they contradict a flag.
_FOR_THE_USER = ("TF_CPP_MIN_LOG_LEVEL", "CUDA_VISIBLE_DEVICES")


def set_environment(flags: MachineFlags) -> tuple[str, ...]:
    """Sets environment variables that TensorFlow reads when it is imported, before its import.

    Variables that are already set keep their values. Returns warnings about variables that
    contradict the flags.
    """
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if flags.gpu_thread_mode != "global":
        variables["TF_GPU_THREAD_MODE"] = flags.gpu_thread_mode
        variables["TF_GPU_THREAD_COUNT"] = str(flags.per_gpu_thread_count or 2)
    if flags.autotune_threshold is not None:
        variables["TF_AUTOTUNE_THRESHOLD"] = str(flags.autotune_threshold)
    if flags.use_unified_memory:
        variables["TF_FORCE_UNIFIED_MEMORY"] = "1"
    variables["TF_ENABLE_WINOGRAD_NONFUSED"] = "1" if flags.winograd_nonfused else "0"
    persistent = "1" if flags.batchnorm_persistent else "0"
    variables["TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"] = persistent
    xla_flags = []
    if flags.xla:
        # Without this flag, auto-clustering ignores operations on the CPU.
        xla_flags.append("--tf_xla_cpu_global_jit")
    if flags.xla_cache_dir:
        # The path is absolute, because XLA resolves a relative path only at its first compilation.
        xla_flags.append(XLA_CACHE + os.path.abspath(flags.xla_cache_dir))
    if xla_flags:
        variables["TF_XLA_FLAGS"] = " ".join(xla_flags)
    if flags.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    warnings = []
    for name, value in variables.items():
        value_set = os.environ.setdefault(name, value)
        if value_set != value and name not in _FOR_THE_USER:
            warnings.append(
                f"the environment variable {name}={value_set} overrides the flags, which need "
                f"{value!r}"
            )
    return tuple(warnings)
