"""Recorded properties of machine and software, and flags: whether a difference between BASE and NEW
prevents a verdict, and which of them change together (--allow_different).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, NamedTuple

from cnnbench.flags.declare import RunPart, names_of_flags, specs_of
from cnnbench.flags.groups.runtime import RuntimeParams
from cnnbench.flags.params import FLAGS


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


_blocks = partial(FactRule, DifferenceEffect.BLOCKS)
_mentioned = partial(FactRule, DifferenceEffect.MENTIONED)
_ignored = partial(FactRule, DifferenceEffect.IGNORED)

FLAG = _blocks("another value of a flag is a different experiment", NOTHING)
FLAG_PLACE = _mentioned("the path differs between machines", NOTHING)

_MODEL = _blocks("a network of another size is a different network")
_SLICE = _blocks("limits how much of the machine a run may use", NOTHING)

MODEL_SIZE = (
    *("model_parameters", "model_trainable_parameters"),
    *("model_forward_flops", "model_training_flops"),
)
"""Recorded properties that describe the size of a network."""

FACTS: dict[str, FactRule] = {
    **dict.fromkeys(MODEL_SIZE, _MODEL),
    "global_batch": _blocks("images per second depend on the images per step"),
    "num_workers": _blocks("more workers use more machines or cores"),
    "all_reduce": _blocks("another aggregation of gradients is a different experiment"),
    "rows_in_turn": _mentioned(
        "rows of the same size are interleaved, so one more row changes little"
    ),
    "cpu_model": _blocks("another processor"),
    "cpu_isa": _blocks("the instruction set determines which kernels run"),
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
        _blocks("determines the clock frequency"),
    ),
    "cpu_driver": _mentioned("governor and turbo, which it controls, are compared separately"),
    "cpu_affinity": _mentioned(
        "the core numbers; the number of cores is compared separately", NOTHING
    ),
    "cpu_isolated": _mentioned("affects noise more than speed", NOTHING),
    "virtual_machine": _blocks("a hypervisor uses part of the CPU time", NOTHING),
    "numa_nodes": _blocks("affects the speed of memory accesses"),
    "transparent_huge_pages": _blocks("changes step times by up to 3 %"),
    "transparent_huge_pages_defrag": _mentioned(
        "affects the first access to memory, not later steps"
    ),
    "numa_balancing": _mentioned("only moves pages between NUMA nodes"),
    "aslr": _mentioned("randomizes addresses, which affects single runs"),
    "swap_bytes": _mentioned("swapping is reported as a condition of the run", NOTHING),
    "hypervisor": _mentioned("the name of the hypervisor; its presence is compared separately"),
    "machine_model": _mentioned("the processor is compared separately"),
    "cpus_online": _mentioned("the core numbers; the number of cores is compared separately"),
    "cpu_energy_preference": _mentioned(
        "affects only the clock frequency, which is a condition of a run"
    ),
    "cpu_max_mhz": _mentioned("the processor is compared separately"),
    "clock_source": _mentioned("a step reads the clock only twice"),
    "memory_bytes": _mentioned("equal machines may report different amounts"),
    "cgroup_memory_limit_bytes": _mentioned("a run with too little memory fails", NOTHING),
    "memory_available_bytes": _ignored("changes every second"),
    "load_average_1min": _ignored("changes every second"),
    "hostname": _mentioned("equal machines have different names"),
    "platform": _mentioned(
        "kernel and libc affect steps little; the processor is compared separately"
    ),
    "gpu_names": _blocks("other GPUs"),
    # A name that begins with "gpu_" would belong to groups of --allow_different.
    "emulated_gpus": _blocks("emulated GPUs compute on the host's CPUs", NOTHING),
    "gpu_compute_capabilities": _blocks("other GPUs"),
    **dict.fromkeys(
        ("gpu_driver", "gpu_driver_cuda"), _blocks("drivers compile and schedule kernels")
    ),
    "gpu_persistence_mode": _mentioned("affects the start, not the steps"),
    "gpu_clocks_mhz": _ignored("changes every second"),
    "gpu_throttle_reasons": _mentioned(
        "describes only one moment; clock limits are compared separately"
    ),
    "gpu_processes": _mentioned("describes only one moment"),
    "on_battery": _mentioned(
        "describes only one moment; governor and turbo are compared separately"
    ),
    "tensor_float_32": _blocks("another precision"),
    **dict.fromkeys(
        (
            *("tensorflow_version", "tensorflow_package", "tensorflow_git_version"),
            *("tensorflow_compiler", "tensorflow_cuda_build", "tensorflow_rocm_build"),
            "tensorflow_tensorrt_build",
        ),
        _blocks("another version of TensorFlow has other kernels"),
    ),
    **dict.fromkeys(
        (
            *("cuda_version", "cudnn_version"),
            *("loaded_cublas", "loaded_cudart", "loaded_cudnn", "loaded_nccl"),
        ),
        _blocks("other libraries have other kernels"),
    ),
    "cpu_conv_gradients": _mentioned(
        "the meaning of auto; the algorithm that was used is compared separately"
    ),
    "intra_op_threads": _blocks("the number of threads affects speed", NOTHING),
    "inter_op_threads": _blocks("the number of threads affects speed", NOTHING),
    "python_version": _mentioned("a step is one call from Python"),
    "python_implementation": _mentioned("a step is one call from Python"),
    "keras_version": _mentioned("no step uses it"),
    "numpy_version": _mentioned("no step uses it"),
    "cnnbench_version": _mentioned(
        "often the subject of the comparison; the network is compared separately"
    ),
    **dict.fromkeys(
        (
            *("git_commit", "git_dirty", "git_changes", "git_unknown", "subject_repository"),
            *("subject_revision", "subject_dirty", "subject_changes", "subject_unknown"),
        ),
        _mentioned("often the subject of the comparison"),
    ),
}
"""Rules for recorded properties, by name. Records contain properties by the same names."""

PATTERNS: dict[str, FactRule] = {
    "env_TF_CPP_*": _mentioned("affects only the log of TensorFlow", NOTHING),
    "env_TF_CONFIG": _mentioned("contains only network addresses", NOTHING),
    "env_HOROVOD_*": _mentioned(
        "Horovod is not used; the number of workers is compared separately", NOTHING
    ),
    "env_OMPI_*": _mentioned("only starts processes; their number is compared separately", NOTHING),
    "env_NCCL_DEBUG*": _mentioned("affects only the log of NCCL", NOTHING),
    "env_*_VISIBLE_DEVICES": _mentioned(
        "selects GPUs, whose names are compared separately", NOTHING
    ),
    "env_PYTHONHASHSEED": _mentioned("affects the order of sets, which no step uses", NOTHING),
    "env_PYTHONOPTIMIZE": _mentioned("a step is one call from Python", NOTHING),
    # Keras imports scikit-learn if installed.
    # The import of scikit-learn sets KMP_DUPLICATE_LIB_OK and KMP_INIT_AT_FORK.
    "env_KMP_DUPLICATE_LIB_OK": _mentioned("affects only the start of OpenMP", NOTHING),
    "env_KMP_INIT_AT_FORK": _mentioned("affects only the start of OpenMP", NOTHING),
    "env_*": _blocks("records contain only variables that affect speed", NOTHING),
}
"""Rules for properties that `FACTS` lacks, by pattern. The first matching pattern is used."""

_UNLISTED = _mentioned("not known to affect speed")

_separates = partial(FactRule, DifferenceEffect.BLOCKS, absent="not recorded")

OF_BENCHMARKS: dict[str, FactRule] = {
    "benchmark_version": _separates("the code of the benchmark has changed"),
    "python_version": _separates("another version of Python"),
    "python_implementation": _separates("another implementation of Python"),
    "python_compiler": _separates("Python was built by another compiler"),
    "environment_name": _separates("another environment"),
    "requirement_*": _separates("another version of a library"),
    "env_*": _separates("environment variables are part of the environment"),
    "build_*": _separates("another compiler or other flags of the compiler"),
    "context_*": _separates("the program declares that its context affects results"),
    "clock": _separates("CPU time and real time are different values"),
    "garbage_collection": _separates("collections are part of the time"),
    "unit": _separates("values in different units are different values"),
}
"""Rules for recorded properties of imported benchmarks, by pattern. The properties are part of the
configuration of a benchmark, so that values from different environments are never combined.
"""

_OF_UNKNOWN_PROCESSORS = dict.fromkeys(
    ("hostname", "logical_cpus"),
    _separates("the processor is unknown, so the machine may be another"),
)
"""Further rules for benchmarks if their records do not contain the processor."""

_CONTAINER = re.compile("[0-9a-f]{12}")
"""Host names that Docker gives to containers. They differ from run to run on the same machine."""

_PRECISION = ("precision", "fp16_*")

REDUCING = names_of_flags(FLAGS, RunPart.ALGORITHM)
"""Flags that select how gradients are reduced (group "all_reduce")."""

_RATES = names_of_flags(FLAGS, RunPart.LEARNING_RATE)
UPDATING = tuple(name for name in names_of_flags(FLAGS, RunPart.UPDATE) if name not in _RATES)
"""Flags that select the operations of an update."""

_POOLS = names_of_flags(specs_of(RuntimeParams), RunPart.THREADS)
_THREADS = (*names_of_flags(FLAGS, RunPart.THREADS), "intra_op_threads", "inter_op_threads")

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
    "device": ("device", "data_format", "conv_gradients", "gpu_*", "env_TF_GPU_*", *_THREADS),
    # CPU devices share the threads, so the number of devices affects the sizes of thread pools.
    "num_gpus": ("num_gpus", "global_batch", "num_epochs", "gpu_*", "devices", *_THREADS),
    "batch_size": ("global_batch", "batch_size", "eval_batch_size", "num_epochs"),
    "image_size": ("image_size", *MODEL_SIZE),
    "num_classes": ("num_classes", *MODEL_SIZE),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", "global_batch", "num_epochs"),
    "steps_per_execution": (
        *("steps_per_execution", "num_batches", "num_epochs", "num_warmup_batches"),
    ),
    "num_batches": ("num_batches", "num_epochs"),
    **{name: (name, "all_reduce") for name in REDUCING},
    "precision": _PRECISION,
    "use_fp16": ("use_fp16", *_PRECISION),  # `use_fp16` is the old name of `precision`
    "dtype": ("dtype", "bytes", "wire_dtype"),
    # If several towers share the CPUs, the intra-op and inter-op pool sizes depend on each other.
    **dict.fromkeys(_POOLS, (*_POOLS, "*_op_threads")),
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
    **{name: (name, "conv_gradients") for name in ("data_format", "xla_compile")},
    "xla": ("xla", "conv_gradients", "env_TF_XLA_FLAGS"),
    # The kernels determine the fastest algorithms of gradients.
    "env_TF_ENABLE_ONEDNN_OPTS": ("env_TF_ENABLE_ONEDNN_OPTS", "conv_gradients"),
    "environment_variables": ("env_*", "conv_gradients"),
    # The name of an environment often contains the versions of its libraries.
    "benchmark_environment": (
        *("environment_name", "python_*", "requirement_*", "env_*", "build_*", "context_*"),
    ),
}
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


@lru_cache(maxsize=4096)
def benchmark_fact_rule(name: str) -> FactRule | None:
    """Returns the rule for a property that identifies imported benchmarks; None for others."""
    rules = {**OF_BENCHMARKS, **_OF_UNKNOWN_PROCESSORS}
    return next((rule for pattern, rule in rules.items() if fnmatchcase(name, pattern)), None)


def benchmark_flags(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recorded properties that are part of the configuration of a benchmark."""
    ignored = {*_OF_UNKNOWN_PROCESSORS} if "cpu_model" in environment else set[str]()
    if _CONTAINER.fullmatch(str(environment.get("hostname"))):
        ignored.add("hostname")
    return {
        name: value
        for name, value in environment.items()
        if benchmark_fact_rule(name) and name not in ignored
    }


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
