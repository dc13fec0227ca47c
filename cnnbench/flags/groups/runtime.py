"""Flags for devices, threads and the compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cnnbench.base.rules import FlagRule, HasFlags, always, no_effect, refuse
from cnnbench.base.text import count_text
from cnnbench.flags.declare import Affects, ComparedBy, RunPart, flag
from cnnbench.flags.facts import FORWARD, RunFacts, no_effect_input_only, runs_only_forward

MOST_THREADS = 4096
"""Maximum thread pool size. TensorFlow starts all threads at once and crashes if that fails.
"""


def _indices_fault(text: str) -> str:
    pieces = [piece.strip() for piece in text.split(",") if text]
    if not all(re.fullmatch("[0-9]{1,9}", piece) for piece in pieces):
        return "must be whole numbers, comma-separated, as in 0,1,3,2"
    return "must name every GPU once" if len({*map(int, pieces)}) < len(pieces) else ""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RuntimeParams:
    """Flags for devices, threads and the compiler."""

    device: str = flag(
        "auto",
        "Compute device. auto uses GPUs if TensorFlow finds any, otherwise the CPU.",
        choices=("auto", "cpu", "gpu"),
        lower=True,
        part=RunPart.HEADER,
    )
    num_gpus: int = flag(
        1,
        "Number of compute devices, including logical CPU devices.",
        minimum=1,
        maximum=1024,
        checked_late=True,
        part=RunPart.HEADER,
    )
    gpu_indices: str = flag(
        "",
        "Numbers of the GPUs to use, in the order of the ring, comma-separated. If empty: "
        "0,1,2,...",
        fault=_indices_fault,
        compared_by=ComparedBy.NUMBER,
        part=RunPart.HEADER,
    )
    gpus_per_card: int = flag(
        1,
        "Divide every card into this number of logical GPUs with equal shares of its memory, to "
        "test runs on several GPUs with one card. --num_gpus and --gpu_indices refer to logical "
        "GPUs. Their speed differs from the speed of several cards.",
        minimum=1,
        maximum=64,
    )
    data_format: str = flag(
        "auto",
        "Layout of images in the network. auto is NCHW on GPUs and NHWC on the CPU.",
        choices=("auto", "NHWC", "NCHW"),
        part=RunPart.HEADER,
    )
    conv_gradients: str = flag(
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
        "Number of threads that one operation may use. With 0, TensorFlow chooses. If not given, "
        "the value is 1 on GPUs. On the CPU, TensorFlow chooses, with one exception: the value is "
        "1 if there are several devices, at least as many as cores, and --num_inter_threads is "
        "not given.",
        minimum=0,
        maximum=MOST_THREADS,
        part=RunPart.THREADS,
    )
    num_inter_threads: int = flag(
        0,
        "Number of threads that run different operations at the same time. With 0, TensorFlow "
        "chooses; but if cnnbench sets --num_intra_threads to 1 on the CPU, there is one thread "
        "per core, and parameter_server_strategy has at least 4 threads with --data_dir.",
        minimum=0,
        maximum=MOST_THREADS,
        part=RunPart.THREADS,
    )
    gpu_thread_mode: str = flag(
        "gpu_private",
        "Host threads that launch operations on GPUs: separate threads for each GPU, threads "
        "shared by all GPUs, or TensorFlow's global threads.",
        choices=("global", "gpu_private", "gpu_shared"),
        lower=True,
    )
    per_gpu_thread_count: int = flag(
        0,
        "Number of threads of each GPU; 0 means 2. Cannot be used with --gpu_thread_mode=global.",
        minimum=0,
        maximum=MOST_THREADS,
    )
    allow_growth: bool | None = flag(
        None, "Allocate GPU memory when it is needed. If not given, TensorFlow's default applies."
    )
    use_unified_memory: bool | None = flag(
        None, "Use host memory if GPU memory is full. If not given, TensorFlow's default applies."
    )
    winograd_nonfused: bool = flag(True, "Allow cuDNN to use non-fused Winograd algorithms.")
    batchnorm_persistent: bool = flag(True, "Allow cuDNN to use its persistent batch-norm kernels.")
    xla: bool = flag(False, "Let XLA compile clusters of operations that it selects.")
    xla_compile: bool = flag(
        False,
        "Compile the whole forward and backward pass of every device with XLA. If this is "
        "impossible, the run fails.",
    )
    xla_cache_dir: str | None = flag(
        None,
        "Folder in which XLA stores compiled programs, so that later runs of the same step start "
        "faster. Use a folder only on machines with the same processor, and make sure that nobody "
        "else can write to the folder.",
        path="folder",
        compared_by=ComparedBy.PRESENCE,
    )
    enable_optimizations: bool = flag(True, "Let TensorFlow's graph optimizer rewrite the step.")
    peak_flops: float | None = flag(
        None,
        "Peak FLOP/s in the precision of the run, of one GPU or of the whole CPU (for any "
        "--num_gpus). For example, 312e12 means 312 TFLOP/s. From this value, cnnbench computes "
        "which share of the peak the run reached (MFU). With 0, the record has no MFU, and "
        "cnnbench does not measure the peak of a CPU, which takes one or two seconds.",
        minimum=0,
        # A smaller value was probably meant in GFLOP/s or TFLOP/s: every device exceeds 1e9 FLOP/s.
        fault=lambda peak: (
            "must be 0 or at least 1e9, because the unit is FLOP/s, as in 312e12"
            if 0 < peak < 1e9
            else ""
        ),
        affects=Affects.NOTHING,
    )


UNUSED_ON_CPUS: FlagRule[HasFlags] = no_effect(
    (
        "gpu_indices",
        "gpus_per_card",
        "gpu_thread_mode",
        "per_gpu_thread_count",
        "allow_growth",
        "use_unified_memory",
        "winograd_nonfused",
        "batchnorm_persistent",
    ),
    lambda p: p.params.device == "cpu",
    "with --device=cpu",
)
"""The rule for flags that have an effect only on GPUs."""


def _count_mismatch(p: RunFacts) -> str:
    """Returns a reason if --gpu_indices does not name as many GPUs as --num_gpus; else ""."""
    count, towers = len(p.params.gpu_indices.split(",")), p.params.num_gpus
    gpus = count_text(count, "GPU", "GPUs")
    return "" if count == towers else f"names {gpus}, but {p.place.names.towers}={towers}"


CONFLICTS: tuple[FlagRule[RunFacts], ...] = (
    refuse(
        "per_gpu_thread_count",
        lambda p: p.params.gpu_thread_mode == "global",
        "needs --gpu_thread_mode=gpu_private or gpu_shared",
    ),
)

RULES: tuple[FlagRule[RunFacts], ...] = (
    refuse("gpu_indices", always, _count_mismatch),
    refuse(
        "allow_growth",
        lambda p: p.params.allow_growth and p.params.gpus_per_card > 1,
        "cannot be used with --gpus_per_card, which divides the memory before the run",
    ),
    refuse(
        "gpus_per_card",
        lambda p: (
            p.place.job.in_cluster
            and p.params.num_gpus % p.params.gpus_per_card > 0
            and p.params.gpus_per_card % p.params.num_gpus > 0
        ),
        lambda p: (
            f"must be a divisor or a multiple of {p.place.names.towers}={p.params.num_gpus}, so "
            "that the processes of a job can share cards"
        ),
    ),
    # Notices.
    no_effect_input_only(
        ("data_format", "xla_compile", "xla_cache_dir", "conv_gradients", "peak_flops")
    ),
    no_effect("conv_gradients", runs_only_forward, f"{FORWARD}: they compute no gradients"),
    UNUSED_ON_CPUS,
    no_effect(
        "xla_cache_dir",
        lambda p: not (p.params.xla_compile or p.params.xla),
        "without --xla_compile or --xla",
    ),
    no_effect(
        "peak_flops",
        lambda p: not (p.params.result_json or p.params.result_csv),
        "without --result_json or --result_csv",
    ),
)
