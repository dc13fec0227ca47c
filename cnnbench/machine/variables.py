"""Environment variables that change speed, by an allow-list that keeps secrets out.

Whole prefixes are listed only where no other software uses them. ``TF_`` alone is shared
with Terraform, whose ``TF_VAR_`` and ``TF_TOKEN_`` hold passwords, and ``NVIDIA_``
with ``NVIDIA_API_KEY``.
"""

from __future__ import annotations

from cnnbench.machine.host import FactGroup, Facts, Host

_NAMES = frozenset(
    (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_CACHE_DISABLE",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_TF32_OVERRIDE",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "TF_CONFIG",
        "TF_DETERMINISTIC_OPS",
        "TF_AUTOTUNE_THRESHOLD",
        "TF_SYNC_ON_FINISH",
        "GLIBC_TUNABLES",
        "LD_PRELOAD",
        "PYTHONHASHSEED",
        "PYTHONOPTIMIZE",
    )
)
_PREFIXES = (
    *("TF_CPP_", "TF_CUDNN_", "TF_DISABLE_", "TF_ENABLE_", "TF_FORCE_", "TF_GPU_"),
    *("TF_LAYOUT_", "TF_MKL_", "TF_NUM_", "TF_ONEDNN_", "TF_USE_", "TF_XLA_"),
    *("DNNL_", "GOMP_", "KMP_", "MALLOC_", "MKL_", "NCCL_", "OMP_", "ONEDNN_", "XLA_"),
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH")
_MAX_LENGTH = 1000


def speed_variables(host: Host) -> Facts:
    """The variables of the allow-list, as facts called env_NAME."""
    return {
        f"env_{name}": " ".join(value.split())[:_MAX_LENGTH]
        for name, value in sorted(host.environ.items())
        if (name in _NAMES or name.startswith(_PREFIXES))
        and not any(word in name for word in _SECRET)
    }


GROUPS: tuple[FactGroup, ...] = (speed_variables,)
