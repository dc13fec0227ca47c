"""Facts that must be alike for a verdict, as tables.

Runs repeat each other if their flags do (`cnnbench.flags.identity`). Flags are facts too: those of
a configuration block a verdict, places are mentioned. A difference in a fact that is not in `FACTS`
is mentioned.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial

from cnnbench.flags.declare import named
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import RunPart


class Effect(enum.Enum):
    """Effect of a difference in a fact on a verdict."""

    BLOCKS = "blocks"
    MENTIONED = "mentioned"
    IGNORED = "ignored"


UNKNOWN, NOTHING = "unknown", "none"
"""Meanings of a missing fact, and the texts that stand for it."""


@dataclass(frozen=True)
class Fact:
    """The effect of a fact on verdicts.

    If `absent` is UNKNOWN, a side without the fact blocks nothing, since an older version may not
    have read it; if NOTHING, absence is a value (no limit, not set).
    """

    effect: Effect
    reason: str
    absent: str = UNKNOWN


_blocks = partial(Fact, Effect.BLOCKS)
_mentioned = partial(Fact, Effect.MENTIONED)
_ignored = partial(Fact, Effect.IGNORED)

FLAG = _blocks("another flag is another experiment", NOTHING)
FLAG_PLACE = _mentioned("every machine has places of its own", NOTHING)

_MODEL = _blocks("another size of the network is another revision of it")
_SLICE = _blocks("how much of the machine a run may use", NOTHING)

MODEL_SIZE = (
    *("model_parameters", "model_trainable_parameters"),
    *("model_forward_flops", "model_training_flops"),
)
"""Facts of the size of a network."""

FACTS: dict[str, Fact] = {
    **dict.fromkeys(MODEL_SIZE, _MODEL),
    "global_batch": _blocks("images per second depend on the images per step"),
    "num_workers": _blocks("more workers are more machine"),
    "all_reduce": _blocks("another aggregation is another experiment"),
    "rows_in_turn": _mentioned("rows of a size take turns; one more beside them moves little"),
    "cpu_model": _blocks("another processor"),
    "cpu_isa": _blocks("kernels are chosen by instruction set"),
    "architecture": _blocks("another processor"),
    **dict.fromkeys(
        ("physical_cores", "logical_cpus", "usable_cpus"), _blocks("another number of cores")
    ),
    "cgroup_cpu_limit": _SLICE,
    "cpu_smt": _blocks("two threads of a core are slower than two cores"),
    **dict.fromkeys(
        (
            *("cpu_governor", "cpu_turbo", "cpu_max_mhz_allowed"),
            *("gpu_max_clocks_mhz", "gpu_power_limits_watts"),
        ),
        _blocks("decides the clock frequency"),
    ),
    "cpu_driver": _mentioned("its effects are facts: governor and turbo"),
    "cpu_affinity": _mentioned("which cores; how many is a fact of its own", NOTHING),
    "cpu_isolated": _mentioned("changes noise more than speed", NOTHING),
    "virtual_machine": _blocks("a hypervisor takes its share", NOTHING),
    "numa_nodes": _blocks("distance to memory"),
    "transparent_huge_pages": _blocks("moves steps by up to 3 %"),
    "transparent_huge_pages_defrag": _mentioned("moves the first touch of memory, not the steps"),
    "numa_balancing": _mentioned("moves pages between nodes"),
    "aslr": _mentioned("moves addresses, and with them single runs"),
    "swap_bytes": _mentioned("swapping shows in the conditions of a run", NOTHING),
    "hypervisor": _mentioned("that there is one is a fact of its own"),
    "machine_model": _mentioned("the processor has its own fact"),
    "cpus_online": _mentioned("which cores; how many is a fact of its own"),
    "cpu_energy_preference": _mentioned("its effect is the clock frequency"),
    "cpu_max_mhz": _mentioned("the processor has its own fact"),
    "clock_source": _mentioned("a step asks for the time twice"),
    "memory_bytes": _mentioned("kernels reserve different amounts on like machines"),
    "cgroup_memory_limit_bytes": _mentioned("too little shows as a failure", NOTHING),
    "memory_available_bytes": _ignored("changes by the second"),
    "load_average_1min": _ignored("changes by the second"),
    "hostname": _mentioned("like machines have names of their own"),
    "platform": _mentioned("kernel and libc move steps little; the processor has its own fact"),
    "gpu_names": _blocks("other GPUs"),
    # Named so that it is in no group of facts that may differ.
    "emulated_gpus": _blocks("emulated GPUs compute on the host's CPUs", NOTHING),
    "gpu_compute_capabilities": _blocks("other GPUs"),
    **dict.fromkeys(
        ("gpu_driver", "gpu_driver_cuda"), _blocks("drivers compile and schedule kernels")
    ),
    "gpu_persistence_mode": _mentioned("moves the start, not the steps"),
    "gpu_clocks_mhz": _ignored("changes by the second"),
    "gpu_throttle_reasons": _mentioned("of the moment; what limits the clocks is a fact"),
    "gpu_processes": _mentioned("of the moment"),
    "on_battery": _mentioned("of the moment; governor and turbo are facts"),
    "tensor_float_32": _blocks("another precision"),
    **dict.fromkeys(
        (
            *("tensorflow_version", "tensorflow_package", "tensorflow_git_version"),
            *("tensorflow_compiler", "tensorflow_cuda_build", "tensorflow_rocm_build"),
            "tensorflow_tensorrt_build",
        ),
        _blocks("another TensorFlow has other kernels"),
    ),
    **dict.fromkeys(
        (
            *("cuda_version", "cudnn_version"),
            *("loaded_cublas", "loaded_cudart", "loaded_cudnn", "loaded_nccl"),
        ),
        _blocks("other libraries have other kernels"),
    ),
    "intra_op_threads": _blocks("threads decide speed", NOTHING),
    "inter_op_threads": _blocks("threads decide speed", NOTHING),
    "python_version": _mentioned("a step is one call from Python"),
    "python_implementation": _mentioned("a step is one call from Python"),
    "keras_version": _mentioned("not in a step"),
    "numpy_version": _mentioned("not in a step"),
    "cnnbench_version": _mentioned("mostly what is compared; the network has its own facts"),
    **dict.fromkeys(
        (
            *("git_commit", "git_dirty", "git_changes", "git_unknown", "subject_repository"),
            *("subject_revision", "subject_dirty", "subject_changes", "subject_unknown"),
        ),
        _mentioned("mostly what is compared"),
    ),
}
"""Facts by name; those of the environment by the names they have in records."""

PATTERNS: dict[str, Fact] = {
    "env_TF_CPP_*": _mentioned("verbosity of TensorFlow", NOTHING),
    "env_TF_CONFIG": _mentioned("addresses", NOTHING),
    "env_HOROVOD_*": _mentioned("no Horovod reduces gradients here; workers are facts", NOTHING),
    "env_OMPI_*": _mentioned("starts processes; their number is a fact", NOTHING),
    "env_NCCL_DEBUG*": _mentioned("verbosity of NCCL", NOTHING),
    "env_*_VISIBLE_DEVICES": _mentioned("which GPUs; their names are compared", NOTHING),
    "env_PYTHONHASHSEED": _mentioned("order of sets, not in a step", NOTHING),
    "env_PYTHONOPTIMIZE": _mentioned("a step is one call from Python", NOTHING),
    # Set by scikit-learn, which Keras loads where it is installed and cnnbench does not.
    "env_KMP_DUPLICATE_LIB_OK": _mentioned("of OpenMP's start, not in a step", NOTHING),
    "env_KMP_INIT_AT_FORK": _mentioned("of OpenMP's start, not in a step", NOTHING),
    "env_*": _blocks("records name only variables that change speed", NOTHING),
}
"""Facts by pattern, for names that `FACTS` lacks; the first match counts."""

_UNLISTED = _mentioned("not known to change speed")

_PRECISION = ("precision", "fp16_*")

REDUCING = named(FLAGS, RunPart.ALGORITHM)
"""Flags that choose how gradients are reduced, the fact "all_reduce"."""

_RATES = named(FLAGS, RunPart.LEARNING_RATE)
UPDATING = tuple(name for name in named(FLAGS, RunPart.UPDATE) if name not in _RATES)
"""Flags that choose the operations of an update."""

_POOLS = ("num_intra_threads", "num_inter_threads", "*_op_threads")
_THREADS = (*named(FLAGS, RunPart.THREADS), "intra_op_threads", "inter_op_threads")

GROUPS: dict[str, tuple[str, ...]] = {
    "tensorflow": (
        *("tensorflow_*", "cuda_version", "cudnn_version", "keras_version", "loaded_*"),
    ),
    "machine": (
        *("cpu_*", "gpu_*", "cgroup_*", "numa_*", "memory_*", "hostname", "platform"),
        *("architecture", "physical_cores", "logical_cpus", "usable_cpus", "virtual_machine"),
        *("transparent_huge_pages", *_THREADS),
    ),
    "gpu": ("gpu_*",),
    "gpu_driver": ("gpu_driver_cuda",),
    "model": ("model", "model_*"),
    "device": ("device", "data_format", "gpu_*", "env_TF_GPU_*", *_THREADS),
    # Devices on the CPU share its threads.
    "num_gpus": ("num_gpus", "global_batch", "num_epochs", "gpu_*", "devices", *_THREADS),
    "batch_size": ("global_batch", "batch_size", "eval_batch_size", "num_epochs"),
    "num_batches": ("num_batches", "num_epochs"),
    **{name: (name, "all_reduce") for name in REDUCING},
    "precision": _PRECISION,
    "use_fp16": ("use_fp16", *_PRECISION),  # old name; compared as `precision`
    "dtype": ("dtype", "bytes", "wire_dtype"),
    # Where several towers share the CPUs, one pool follows from the other.
    "num_intra_threads": _POOLS,
    "num_inter_threads": _POOLS,
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
"""Names in --allow_different for several facts that change together."""

WORK = (*MODEL_SIZE, *GROUPS["batch_size"])
"""Facts and flags that determine how much a step computes."""


@lru_cache(maxsize=4096)
def fact(name: str) -> Fact:
    """The effect of a fact of the environment, the model or the placement."""
    if name in FACTS:
        return FACTS[name]
    matching = (one for pattern, one in PATTERNS.items() if fnmatchcase(name, pattern))
    return next(matching, _UNLISTED)


def expand(names: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns of facts for names of facts, groups and patterns."""
    return tuple(pattern for name in names for pattern in (name, *GROUPS.get(name, ())))


@lru_cache(maxsize=4096)
def allowed(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a fact may differ, by patterns from `expand`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
