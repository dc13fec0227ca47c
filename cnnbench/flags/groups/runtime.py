"""Flags for devices, threads and the compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from cnnbench.flags.declare import Role, RunPart, flag

MOST_THREADS = 4096
"""Maximum thread pool size. TensorFlow starts all threads at once and crashes if that fails.
"""


def _fault_of_indices(text: str) -> str:
    pieces = [piece.strip() for piece in text.split(",") if text]
    if not all(re.fullmatch("[0-9]{1,9}", piece) for piece in pieces):
        return "must be whole numbers with commas, as in 0,1,3,2"
    return "must name every GPU once" if len({*map(int, pieces)}) < len(pieces) else ""


_tunable = partial(flag, part=RunPart.TUNABLE)
_gpu = partial(flag, part=RunPart.GPU | RunPart.TUNABLE, only_with="not device=cpu")


@dataclass(frozen=True, kw_only=True)
class RuntimeParams:
    """Flags for devices, threads and the compiler."""

    device: str = flag(
        "auto",
        "Compute device; auto takes GPUs if TensorFlow sees any, else the CPU.",
        choices=("auto", "cpu", "gpu"),
        lower=True,
    )
    num_gpus: int = flag(
        1,
        "Number of compute devices, logical CPU devices included.",
        minimum=1,
        maximum=1024,
        checked_late=True,
    )
    gpu_indices: str = flag(
        "",
        "Numbers of the GPUs to use in ring order, comma-separated; 0,1,2,... if empty.",
        fault=_fault_of_indices,
        role=Role.ITEMS,
        part=RunPart.GPU | RunPart.TUNABLE,
        only_with="not device=cpu",
    )
    gpus_per_card: int = flag(
        1,
        "Divide every card into this number of logical GPUs with equal shares of its memory, to "
        "test runs on several GPUs with one card. --num_gpus and --gpu_indices refer to logical "
        "GPUs. Their speed differs from the speed of several cards.",
        minimum=1,
        maximum=64,
        part=RunPart.GPU,
        only_with="not device=cpu",
    )
    data_format: str = _tunable(
        "auto",
        "Layout of images inside the network; auto is NCHW on GPUs and NHWC on the CPU.",
        choices=("auto", "NHWC", "NCHW"),
    )
    conv_gradients: str = _tunable(
        "auto",
        "Gradients of convolutions and dense layers on the CPU: library uses TensorFlow's "
        "kernels; fastest uses the kernels that were measured to be fastest for each shape, type "
        "and instruction set. auto means fastest on measured CPUs in NHWC without XLA, and "
        "library otherwise.",
        choices=("auto", "library", "fastest"),
        lower=True,
        before="before",
    )
    num_intra_threads: int | None = flag(
        None,
        "Threads within one operation; 0 lets TensorFlow choose. If not given: 1 on GPUs; on the "
        "CPU, TensorFlow's choice, or 1 if there are several devices, at least as many as cores, "
        "and --num_inter_threads is not given either.",
        minimum=0,
        maximum=MOST_THREADS,
        part=RunPart.THREADS | RunPart.TUNABLE,
    )
    num_inter_threads: int = flag(
        0,
        "Threads across operations; 0 lets TensorFlow choose, or uses one per core if "
        "--num_intra_threads becomes 1 on the CPU.",
        minimum=0,
        maximum=MOST_THREADS,
        part=RunPart.THREADS | RunPart.TUNABLE,
    )
    gpu_thread_mode: str = _gpu(
        "gpu_private",
        "Host threads that feed GPUs: private to each GPU, shared by the GPUs, or TensorFlow's "
        "global ones.",
        choices=("global", "gpu_private", "gpu_shared"),
        lower=True,
    )
    per_gpu_thread_count: int = _gpu(
        0,
        "Threads of a GPU's pool; 0 means 2. Not with --gpu_thread_mode=global.",
        minimum=0,
        maximum=MOST_THREADS,
    )
    allow_growth: bool | None = _gpu(
        None, "Take GPU memory as it is needed; TensorFlow's own default if not given."
    )
    use_unified_memory: bool | None = _gpu(
        None, "Let GPU memory overflow into host memory; TensorFlow's own default if not given."
    )
    winograd_nonfused: bool = _gpu(True, "Let cuDNN use the non-fused Winograd algorithms.")
    batchnorm_persistent: bool = _gpu(True, "Let cuDNN use its persistent batch-norm kernels.")
    xla: bool = _tunable(False, "Let XLA compile the clusters of operations it finds.")
    xla_compile: bool = _tunable(
        False, "Compile every device's whole forward and backward pass with XLA, or fail."
    )
    xla_cache_dir: str | None = flag(
        None,
        "Folder in which XLA stores compiled programs, so that later runs of the same step start "
        "faster. Use it only on machines with the same processor, and let nobody else write to "
        "it.",
        path="folder",
        role=Role.PLACE,
        part=RunPart.TUNABLE,
        only_with="xla_compile,xla",
    )
    enable_optimizations: bool = _tunable(
        True, "Let TensorFlow's graph optimizer rewrite the step."
    )
    peak_flops: float | None = flag(
        None,
        "Peak FLOP/s in the precision of the run, for the share reached (MFU) in the record: "
        "of one GPU, or of the whole CPU whatever --num_gpus is; 312e12 are 312 TFLOP/s. 0 leaves "
        "the share out, and with it the second or two that measuring a CPU takes.",
        minimum=0,
        # Smaller values are probably GFLOP/s or TFLOP/s by mistake.
        fault=lambda peak: (
            "must be 0 or at least 1e9; it is in FLOP/s, as 312e12" if 0 < peak < 1e9 else ""
        ),
        role=Role.UNTIMED,
        only_with="result_json,result_csv",
    )
