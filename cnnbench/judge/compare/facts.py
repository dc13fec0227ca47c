"""Recorded properties of machine and software, and flags: whether a difference between BASE and NEW
prevents a verdict, and which of them change together (--allow_different).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from cnnbench.flags import FLAGS, RunPart, names_of_flags, specs_of
from cnnbench.flags.groups.runtime import RuntimeParams


class DifferenceEffect(enum.Enum):
    """The effect of a difference between BASE and NEW in a recorded property: the difference
    prevents verdicts, is only mentioned, or is ignored.
    """

    BLOCKS = "blocks"
    MENTIONED = "mentioned"
    IGNORED = "ignored"


UNKNOWN, NOTHING = "unknown", "none"
"""Texts for a property that a record lacks: it is unknown, or it is known not to be set."""


class FactRule(NamedTuple):
    """The effect on verdicts if one recorded property differs between BASE and NEW, and the reason
    for this effect.

    If `absent` is UNKNOWN, a missing property never prevents a verdict, because an older version
    may not have recorded the property. If `absent` is NOTHING, a missing property is a value (no
    limit, not set).
    """

    effect: DifferenceEffect
    reason: str
    absent: str = UNKNOWN


_BLOCKS, _MENTIONED = DifferenceEffect.BLOCKS, DifferenceEffect.MENTIONED

FLAG = FactRule(_BLOCKS, "another value of a flag is a different experiment", NOTHING)
FLAG_PLACE = FactRule(_MENTIONED, "the path differs between machines", NOTHING)
_UNLISTED = FactRule(_MENTIONED, "not known to affect speed")

MODEL_SIZE = (
    "model_parameters",
    "model_trainable_parameters",
    "model_forward_flops",
    "model_training_flops",
)
"""Recorded properties that describe the size of a network."""


def _rules(
    effect: DifferenceEffect, absent: str, reasons: Mapping[str, str]
) -> dict[str, FactRule]:
    """Returns the rule for each name or pattern. `reasons` maps names, separated by spaces, to the
    reason for their effect.
    """
    return {
        name: FactRule(effect, reason, absent)
        for names, reason in reasons.items()
        for name in names.split()
    }


_BLOCKING = {
    " ".join(MODEL_SIZE): "a network of another size is a different network",
    "global_batch": "images per second depend on the images per step",
    "num_workers": "more workers use more machines or cores",
    "all_reduce": "another aggregation of gradients is a different experiment",
    "cpu_model architecture": "another processor",
    "cpu_isa": "the instruction set determines which kernels run",
    "physical_cores logical_cpus usable_cpus": "another number of cores",
    "cpu_smt": "two threads of a core are slower than two cores",
    "cpu_governor cpu_turbo cpu_max_mhz_allowed gpu_max_clocks_mhz gpu_power_limits_watts": (
        "determines the clock frequency"
    ),
    "numa_nodes": "affects the speed of memory accesses",
    "transparent_huge_pages": "changes step times by up to 3 %",
    "gpu_names gpu_compute_capabilities": "other GPUs",
    "gpu_driver gpu_driver_cuda": "drivers compile and schedule kernels",
    "tensor_float_32": "another precision",
    "tensorflow_version tensorflow_package tensorflow_git_version tensorflow_compiler "
    "tensorflow_cuda_build tensorflow_rocm_build tensorflow_tensorrt_build": (
        "another version of TensorFlow has other kernels"
    ),
    "cuda_version cudnn_version loaded_cublas loaded_cudart loaded_cudnn loaded_nccl": (
        "other libraries have other kernels"
    ),
}
_BLOCKING_IF_SET = {
    "cgroup_cpu_limit": "limits how much of the machine a run may use",
    "virtual_machine": "a hypervisor uses part of the CPU time",
    # Not "gpu_...": every name that begins so belongs to groups of --allow_different.
    "emulated_gpus": "emulated GPUs compute on the host's CPUs",
    "intra_op_threads inter_op_threads": "the number of threads affects speed",
}
_ONLY_MENTIONED = {
    "rows_in_turn": "rows of the same size are interleaved, so one more row changes little",
    "cpu_driver": "governor and turbo, which it controls, are compared separately",
    "transparent_huge_pages_defrag": "affects the first access to memory, not later steps",
    "numa_balancing": "only moves pages between NUMA nodes",
    "aslr": "randomizes addresses, which affects single runs",
    "hypervisor": "the name of the hypervisor; its presence is compared separately",
    "machine_model cpu_max_mhz": "the processor is compared separately",
    "cpus_online": "the core numbers; the number of cores is compared separately",
    "cpu_energy_preference": "affects only the clock frequency, which is a condition of a run",
    "clock_source": "a step reads the clock only twice",
    "memory_bytes": "equal machines may report different amounts",
    "hostname": "equal machines have different names",
    "platform": "kernel and libc affect steps little; the processor is compared separately",
    "gpu_persistence_mode": "affects the start, not the steps",
    "gpu_throttle_reasons": "describes only one moment; clock limits are compared separately",
    "gpu_processes": "describes only one moment",
    "on_battery": "describes only one moment; governor and turbo are compared separately",
    "cpu_conv_gradients": (
        "the meaning of auto; the algorithm that was used is compared separately"
    ),
    "python_version python_implementation": "a step is one call from Python",
    "keras_version numpy_version": "no step uses it",
    "cnnbench_version": "often the subject of the comparison; the network is compared separately",
    "git_commit git_dirty git_changes git_unknown subject_repository subject_revision "
    "subject_dirty subject_changes subject_unknown": "often the subject of the comparison",
}
_ONLY_MENTIONED_IF_SET = {
    "cpu_affinity": "the core numbers; the number of cores is compared separately",
    "cpu_isolated": "affects noise more than speed",
    "swap_bytes": "swapping is reported as a condition of the run",
    "cgroup_memory_limit_bytes": "a run with too little memory fails",
}
_CHANGING = "memory_available_bytes load_average_1min gpu_clocks_mhz"

FACTS = {
    **_rules(_BLOCKS, UNKNOWN, _BLOCKING),
    **_rules(_BLOCKS, NOTHING, _BLOCKING_IF_SET),
    **_rules(_MENTIONED, UNKNOWN, _ONLY_MENTIONED),
    **_rules(_MENTIONED, NOTHING, _ONLY_MENTIONED_IF_SET),
    **_rules(DifferenceEffect.IGNORED, UNKNOWN, {_CHANGING: "changes every second"}),
}
"""Rules for recorded properties, by name. Records contain properties by the same names."""

_HARMLESS_VARIABLES = {
    "env_TF_CPP_*": "affects only the log of TensorFlow",
    "env_TF_CONFIG": "contains only network addresses",
    "env_HOROVOD_*": "Horovod is not used; the number of workers is compared separately",
    "env_OMPI_*": "only starts processes; their number is compared separately",
    "env_NCCL_DEBUG*": "affects only the log of NCCL",
    "env_*_VISIBLE_DEVICES": "selects GPUs, whose names are compared separately",
    "env_PYTHONHASHSEED": "affects the order of sets, which no step uses",
    "env_PYTHONOPTIMIZE": "a step is one call from Python",
    # Keras imports scikit-learn if it is installed, and that import sets both variables.
    "env_KMP_DUPLICATE_LIB_OK env_KMP_INIT_AT_FORK": "affects only the start of OpenMP",
}

PATTERNS = {
    **_rules(_MENTIONED, NOTHING, _HARMLESS_VARIABLES),
    **_rules(_BLOCKS, NOTHING, {"env_*": "records contain only variables that affect speed"}),
}
"""Rules for properties that `FACTS` lacks, by pattern. The first matching pattern is used."""

REDUCING = names_of_flags(FLAGS, RunPart.ALGORITHM)
"""Flags that select how gradients are reduced (group "all_reduce")."""

_RATES = names_of_flags(FLAGS, RunPart.LEARNING_RATE)
UPDATING = tuple(name for name in names_of_flags(FLAGS, RunPart.UPDATE) if name not in _RATES)
"""Flags that select the operations of an update."""

_POOLS = names_of_flags(specs_of(RuntimeParams), RunPart.THREADS)
_SIZE = " ".join(MODEL_SIZE)
_THREADS = " ".join((*names_of_flags(FLAGS, RunPart.THREADS), "intra_op_threads inter_op_threads"))
_PRECISION = "precision fp16_*"

_MEMBERS: dict[str, str] = {
    "tensorflow": "tensorflow_* cuda_version cudnn_version keras_version loaded_*",
    "machine": (
        "cpu_* gpu_* cgroup_* numa_* memory_* hostname platform architecture physical_cores "
        f"logical_cpus usable_cpus virtual_machine transparent_huge_pages {_THREADS}"
    ),
    "gpu": "gpu_*",
    "gpu_driver": "gpu_driver_cuda",
    "model": "model model_*",
    "device": f"device data_format conv_gradients gpu_* env_TF_GPU_* {_THREADS}",
    # CPU devices share the thread pools, whose sizes therefore depend on the number of devices.
    "num_gpus": f"num_gpus global_batch num_epochs gpu_* devices {_THREADS}",
    "batch_size": "global_batch batch_size eval_batch_size num_epochs",
    "image_size": f"image_size {_SIZE}",
    "num_classes": f"num_classes {_SIZE}",
    "gradient_accumulation_steps": "gradient_accumulation_steps global_batch num_epochs",
    "steps_per_execution": "steps_per_execution num_batches num_epochs num_warmup_batches",
    "num_batches": "num_batches num_epochs",
    **{name: f"{name} all_reduce" for name in REDUCING},
    "precision": _PRECISION,
    "use_fp16": f"use_fp16 {_PRECISION}",  # `use_fp16` is the old name of `precision`
    "dtype": "dtype bytes wire_dtype",
    # If several towers share the CPUs, the size of each of the two pools depends on the other.
    **dict.fromkeys(_POOLS, f"{' '.join(_POOLS)} *_op_threads"),
    "autotune_threshold": "autotune_threshold num_warmup_batches env_TF_AUTOTUNE_THRESHOLD",
    "gpu_thread_mode": "gpu_thread_mode env_TF_GPU_THREAD_*",
    "per_gpu_thread_count": "per_gpu_thread_count env_TF_GPU_THREAD_*",
    "use_unified_memory": "use_unified_memory env_TF_FORCE_UNIFIED_MEMORY",
    "winograd_nonfused": "winograd_nonfused env_TF_ENABLE_WINOGRAD_NONFUSED",
    "batchnorm_persistent": ("batchnorm_persistent env_TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"),
    **{name: f"{name} conv_gradients" for name in ("data_format", "xla_compile")},
    "xla": "xla conv_gradients env_TF_XLA_FLAGS",
    # The kernels determine which algorithms compute gradients fastest, so --conv_gradients changes
    # with them.
    "env_TF_ENABLE_ONEDNN_OPTS": "env_TF_ENABLE_ONEDNN_OPTS conv_gradients",
    "environment_variables": "env_* conv_gradients",
}
GROUPS = {name: tuple(members.split()) for name, members in _MEMBERS.items()}
"""Groups of properties that change together, by their names in --allow_different."""

WORK = (*MODEL_SIZE, *GROUPS["batch_size"])
"""Properties and flags that determine the amount of computation per step."""


@lru_cache(maxsize=4096)
def fact_rule(name: str) -> FactRule:
    """Returns the `FactRule` for a recorded property of the environment, model or placement."""
    if name in FACTS:
        return FACTS[name]
    matching = (value for pattern, value in PATTERNS.items() if fnmatchcase(name, pattern))
    return next(matching, _UNLISTED)


def expand_fact_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Converts the values of --allow_different (names, groups or patterns of recorded properties)
    to patterns that match the names of properties.
    """
    return tuple(pattern for name in names for pattern in (name, *GROUPS.get(name, ())))


@lru_cache(maxsize=4096)
def is_allowed_to_differ(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether the name of a recorded property matches one of the patterns from --allow_different,
    which `expand_fact_names` has expanded.
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)
