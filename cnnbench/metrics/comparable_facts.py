"""Which facts must be alike before two runs may be compared: one table.

Flags are facts too: those that make a configuration (`cnnbench.compare.configuration`)
block, places are mentioned. Of a fact that is not listed a difference is mentioned.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache


class Role(enum.Enum):
    """What a difference in a fact does."""

    BLOCKS = "blocks"
    MENTIONED = "mentioned"
    IGNORED = "ignored"


class Absent(enum.Enum):
    """What a fact that a record lacks means."""

    UNKNOWN = "unknown"
    NOTHING = "none"


@dataclass(frozen=True)
class Fact:
    """The role of a fact.

    Attributes:
      role: what a difference does.
      reason: why.
      absent: UNKNOWN: a side without the fact is not held against the other, a newer
        version may have learnt to read it. NOTHING: absence is a value (no limit, not set).
    """

    role: Role
    reason: str
    absent: Absent = Absent.UNKNOWN


def _blocks(reason: str, absent: Absent = Absent.UNKNOWN) -> Fact:
    return Fact(Role.BLOCKS, reason, absent)


def _mentioned(reason: str, absent: Absent = Absent.UNKNOWN) -> Fact:
    return Fact(Role.MENTIONED, reason, absent)


def _ignored(reason: str) -> Fact:
    return Fact(Role.IGNORED, reason)


FLAG = _blocks("another flag is another experiment", Absent.NOTHING)
FLAG_PLACE = _mentioned("every machine has places of its own", Absent.NOTHING)

_MODEL = _blocks("another size of the network is another revision of it")
_SLICE = _blocks("how much of the machine a run may use", Absent.NOTHING)
_TENSORFLOW = _blocks("another TensorFlow has other kernels")
_CUDA = _blocks("another CUDA or cuDNN has other kernels")

FACTS: dict[str, Fact] = {
    "model_parameters": _MODEL,
    "model_trainable_parameters": _MODEL,
    "model_forward_flops": _MODEL,
    "model_training_flops": _MODEL,
    "global_batch": _blocks("images per second depend on the images per step"),
    "num_workers": _blocks("more workers are more machine"),
    "all_reduce": _blocks("another aggregation is another experiment"),
    "rows_in_turn": _mentioned("rows of a size take turns; one more beside them moves little"),
    "cpu_model": _blocks("another processor"),
    "cpu_isa": _blocks("kernels are chosen by instruction set"),
    "architecture": _blocks("another processor"),
    "physical_cores": _blocks("another number of cores"),
    "logical_cpus": _blocks("another number of cores"),
    "usable_cpus": _blocks("another number of cores"),
    "cgroup_cpu_limit": _SLICE,
    "cpu_smt": _blocks("two threads of a core are slower than two cores"),
    "cpu_governor": _blocks("decides the clock frequency"),
    "cpu_turbo": _blocks("decides the clock frequency"),
    "cpu_driver": _mentioned("what it does shows in governor and turbo"),
    "cpu_affinity": _mentioned("which cores; how many is a fact of its own", Absent.NOTHING),
    "cpu_isolated": _mentioned("changes noise more than speed", Absent.NOTHING),
    "virtual_machine": _blocks("a hypervisor takes its share", Absent.NOTHING),
    "numa_nodes": _blocks("distance to memory"),
    "transparent_huge_pages": _blocks("moves steps by up to 3 %"),
    "transparent_huge_pages_defrag": _mentioned("moves the first touch of memory, not the steps"),
    "numa_balancing": _mentioned("moves pages between nodes"),
    "aslr": _mentioned("moves addresses, and with them single runs"),
    "swap_bytes": _mentioned("swapping shows in the conditions of a run", Absent.NOTHING),
    "hypervisor": _mentioned("that there is one is a fact of its own"),
    "machine_model": _mentioned("the processor has its own fact"),
    "cpus_online": _mentioned("which cores; how many is a fact of its own"),
    "cpu_energy_preference": _mentioned("what it does shows in the clock frequency"),
    "cpu_max_mhz": _mentioned("the processor has its own fact"),
    "cpu_max_mhz_allowed": _blocks("decides the clock frequency"),
    "clock_source": _mentioned("a step asks for the time twice"),
    "memory_bytes": _mentioned("kernels reserve different amounts on like machines"),
    "cgroup_memory_limit_bytes": _mentioned("too little shows as a failure", Absent.NOTHING),
    "memory_available_bytes": _ignored("changes by the second"),
    "load_average_1min": _ignored("changes by the second"),
    "hostname": _mentioned("like machines have names of their own"),
    "platform": _mentioned("kernel and libc move steps little; the processor has its own fact"),
    "gpu_names": _blocks("other GPUs"),
    "gpu_compute_capabilities": _blocks("other GPUs"),
    "gpu_driver": _blocks("drivers compile and schedule kernels"),
    "gpu_power_limits_watts": _blocks("decides the clock frequency"),
    "gpu_max_clocks_mhz": _blocks("decides the clock frequency"),
    "gpu_persistence_mode": _mentioned("moves the start, not the steps"),
    "gpu_clocks_mhz": _ignored("changes by the second"),
    "gpu_throttle_reasons": _mentioned("of the moment; what limits the clocks is a fact"),
    "gpu_processes": _mentioned("of the moment"),
    "on_battery": _mentioned("of the moment; governor and turbo are facts"),
    "tensor_float_32": _blocks("another precision"),
    "tensorflow_version": _TENSORFLOW,
    "tensorflow_package": _TENSORFLOW,
    "tensorflow_git_version": _TENSORFLOW,
    "tensorflow_compiler": _TENSORFLOW,
    "tensorflow_cuda_build": _TENSORFLOW,
    "tensorflow_rocm_build": _TENSORFLOW,
    "tensorflow_tensorrt_build": _TENSORFLOW,
    "cuda_version": _CUDA,
    "cudnn_version": _CUDA,
    "intra_op_threads": _blocks("threads decide speed", Absent.NOTHING),
    "inter_op_threads": _blocks("threads decide speed", Absent.NOTHING),
    "python_version": _mentioned("a step is one call from Python"),
    "python_implementation": _mentioned("a step is one call from Python"),
    "keras_version": _mentioned("not in a step"),
    "numpy_version": _mentioned("not in a step"),
    "cnnbench_version": _mentioned("mostly what is compared; the network has its own facts"),
    "git_commit": _mentioned("mostly what is compared"),
    "git_dirty": _mentioned("mostly what is compared"),
}
"""Facts by name; those of the environment by the names they have in records."""

PATTERNS: dict[str, Fact] = {
    "env_TF_CPP_*": _mentioned("verbosity of TensorFlow", Absent.NOTHING),
    "env_TF_CONFIG": _mentioned("addresses", Absent.NOTHING),
    "env_NCCL_DEBUG*": _mentioned("verbosity of NCCL", Absent.NOTHING),
    "env_*_VISIBLE_DEVICES": _mentioned("which GPUs; their names are compared", Absent.NOTHING),
    "env_PYTHONHASHSEED": _mentioned("order of sets, not in a step", Absent.NOTHING),
    "env_PYTHONOPTIMIZE": _mentioned("a step is one call from Python", Absent.NOTHING),
    "env_*": _blocks("records name only variables that change speed", Absent.NOTHING),
}
"""Facts by pattern, where the table has no name; the first that matches counts."""

_UNLISTED = _mentioned("not known to change speed")

_PRECISION = ("precision", "fp16_*")

_THREADS = (
    *("num_intra_threads", "num_inter_threads", "datasets_num_private_threads"),
    *("intra_op_threads", "inter_op_threads"),
)

GROUPS: dict[str, tuple[str, ...]] = {
    "tensorflow": ("tensorflow_*", "cuda_version", "cudnn_version", "keras_version"),
    "machine": (
        *("cpu_*", "gpu_*", "cgroup_*", "numa_*", "memory_*", "hostname", "platform"),
        *("architecture", "physical_cores", "logical_cpus", "usable_cpus", "virtual_machine"),
        *("transparent_huge_pages", *_THREADS),
    ),
    "gpu": ("gpu_*",),
    "model": ("model", "model_*"),
    "device": ("device", "data_format", "gpu_*", "env_TF_GPU_*", *_THREADS),
    # Devices on the CPU share its threads.
    "num_gpus": ("num_gpus", "global_batch", "num_epochs", "gpu_*", "devices", *_THREADS),
    "batch_size": ("batch_size", "eval_batch_size", "global_batch", "num_epochs"),
    "num_batches": ("num_batches", "num_epochs"),
    "variable_update": ("variable_update", "all_reduce"),
    "all_reduce_spec": ("all_reduce_spec", "all_reduce"),
    "precision": _PRECISION,
    "use_fp16": ("use_fp16", *_PRECISION),  # the old name; records are compared by the new one
    "dtype": ("dtype", "bytes", "wire_dtype"),
    "num_intra_threads": ("num_intra_threads", "num_inter_threads", "*_op_threads"),
    "num_inter_threads": ("num_inter_threads", "inter_op_threads"),
    "autotune_threshold": (
        *("autotune_threshold", "num_warmup_batches", "env_TF_AUTOTUNE_THRESHOLD"),
    ),
    "gpu_thread_mode": ("gpu_thread_mode", "env_TF_GPU_THREAD_*"),
    "per_gpu_thread_count": ("per_gpu_thread_count", "env_TF_GPU_THREAD_*"),
    "use_unified_memory": ("use_unified_memory", "env_TF_FORCE_UNIFIED_MEMORY"),
    "winograd_nonfused": ("winograd_nonfused", "env_TF_ENABLE_WINOGRAD_NONFUSED"),
    "batchnorm_persistent": (
        *("batchnorm_persistent", "env_TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"),
    ),
    "xla": ("xla", "env_TF_XLA_FLAGS"),
    "environment_variables": ("env_*",),
}
"""Names that stand for several facts: a change of one that brings others along."""


@lru_cache(maxsize=4096)
def fact(name: str) -> Fact:
    """The role of a fact of the environment, the model or the placement."""
    if name in FACTS:
        return FACTS[name]
    matching = (one for pattern, one in PATTERNS.items() if fnmatchcase(name, pattern))
    return next(matching, _UNLISTED)


def expand(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of facts, groups and patterns as patterns of facts."""
    return tuple(pattern for name in names for pattern in (name, *GROUPS.get(name, ())))


@lru_cache(maxsize=4096)
def allowed(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a fact is among those that may differ."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
