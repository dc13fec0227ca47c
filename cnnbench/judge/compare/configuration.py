"""Decides which runs belong to the same configuration, and which recorded properties of machine and
software must be equal for a verdict.

Two runs belong to the same configuration if their identities are equal, which are the flags that
determine what is measured (`cnnbench.flags.params`). A different flag prevents a verdict.
Differences in paths, and in properties that are not in `FACTS`, are only mentioned.

In an all-reduce record, each row is a configuration: an algorithm or a peer (another library's
reduction) with its packing, tensors and number of devices; or all devices copying memory at the
same time. A row has one value per process. Wrong sums in other rows, or a later failure of the
process, do not affect the row. Rows that a failed process did not reach are reported as failed;
other processes with the same flags show which rows are missing.

`cnnbench.judge.compare.comparability` compares the properties outside of the identity.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import chain, product
from typing import Any, NamedTuple

from cnnbench.base.stats import group_by, median
from cnnbench.base.text import boolean_text
from cnnbench.flags.declare import RunPart, names_of_flags, specs_of
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS
from cnnbench.flags.groups.runtime import RuntimeParams
from cnnbench.flags.params import FLAGS, changed_flags, identity_flags, recorded_defaults
from cnnbench.judge.compare import phrases
from cnnbench.judge.metrics import (
    ALL_REDUCE,
    BUILD,
    COPY,
    KINDS,
    PEER,
    RUN,
    MeasuredReduction,
    Measurement,
    kind_of,
    process_facts,
)
from cnnbench.records.all_reduce import AllReduceRecord, Point
from cnnbench.records.codec import encode
from cnnbench.records.run import BENCHMARKS, ErrorInfo, RunRecord
from cnnbench.variable_mgr.modes import DEFAULT
from cnnbench.variable_mgr.packing import Packing

# Defines which recorded properties prevent a verdict if they differ between BASE and NEW.


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


def _benchmark_flags(environment: Mapping[str, Any]) -> dict[str, Any]:
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


# Converts each row of an all-reduce record to a measurement with a configuration.

_FLAG_OF = {"compact_dtype": "wire_dtype"}
"""Names of flags, by the field of `Packing`, where the two names differ."""

_PACKING = tuple(_FLAG_OF.get(one.name, one.name) for one in fields(Packing))
"""Flags that control how tensors are packed before a reduction."""

_OF_ROWS = (*names_of_flags(ALL_REDUCE_FLAGS, RunPart.ROWS), *_PACKING)
"""Flags that list what is measured. Each row of a record has its own values."""

_REDUNDANT = ("iterations",)
"""Flags that only repeat another flag: `iterations` is an alias of `num_batches`."""

_LEFT_OUT = (*_OF_ROWS, *_REDUNDANT)
"""Flags of a process that are no flags of its rows."""

_POINT = ("workload", "dtype", "bytes", "tensors", "elements", "devices")

OWN = ("all_reduce_spec", *_POINT, *_PACKING)
"""Values that identify a row of an all-reduce record."""


def records_to_measurements(
    *sides: Iterable[RunRecord | AllReduceRecord], patterns: tuple[str, ...] = ()
) -> list[list[Measurement]]:
    """Converts each of the given sets of records to measurements: run records are unchanged, and
    each row of an all-reduce record becomes a measurement.

    If a failed process lacks rows that another process with the same flags (except `patterns`)
    measured, failed rows are added.
    """
    listed = [tuple(side) for side in sides]
    reduced = [[one for one in side if not isinstance(one, RunRecord)] for side in listed]
    processes = [[(one, reduction_measurements(one)) for one in side] for side in reduced]
    everything = list(chain.from_iterable(processes))
    # Each process has two keys: all its flags, and only the flags that match no pattern.
    # `known` maps each key to the rows that processes with this key have measured.
    known: defaultdict[object, dict[str, MeasuredReduction]] = defaultdict(dict)
    if any(record.status == "failed" for record, _ in everything):
        for may, (record, rows) in product(((), patterns), everything):
            known[may, _comparable_flags_text(record, may)].update(
                (_row_identity(row), row) for row in rows
            )
    measured_sides: list[list[Measurement]] = []
    for side, of_side in zip(listed, processes, strict=True):
        measured: list[Measurement] = [record for record in side if isinstance(record, RunRecord)]
        for record, rows in of_side:
            measured += rows
            if record.status == "failed":
                alike = (known[may, _comparable_flags_text(record, may)] for may in ((), patterns))
                measured += failed_rows_for_unreached(record, rows, next(filter(None, alike), {}))
        measured_sides.append(measured)
    return measured_sides


def reduction_measurements(record: AllReduceRecord) -> list[MeasuredReduction]:
    """Converts the rows of an all-reduce record to measurements. Rows with one device are left out,
    because one device reduces nothing.
    """
    empty = _failed_row_template(record)
    in_turn = Counter((point.workload, point.devices) for point in record.rows)
    own = BUILD if record.config.get("build_only") else ALL_REDUCE
    by_identity: dict[str, MeasuredReduction] = {}
    for kind, points in ((own, record.points), (PEER, record.peers)):
        for point in points:
            if point.devices > 1:
                alike = in_turn[point.workload, point.devices]
                row = _row_to_measurement(kind, point, record, empty, alike)
                # If a record contains the same row twice, only the first one is used.
                by_identity.setdefault(_row_identity(row), row)
    return [*by_identity.values(), *_memory_copy_rows(record, empty)]


def failed_rows_for_unreached(
    record: AllReduceRecord,
    rows: Sequence[MeasuredReduction],
    expected_rows: Mapping[str, MeasuredReduction],
) -> list[MeasuredReduction]:
    """Returns failed rows without values, for the measurements that a failed process did not reach.

    `rows` are the rows that the process reached, and `expected_rows` the rows of other processes
    with the same flags. If no row is missing and no reached row failed, the result is one failed
    row that stands for the process.
    """
    had = {_row_identity(row) for row in rows}
    missing = [row for text, row in expected_rows.items() if text not in had and row.kind != COPY]
    empty = _failed_row_template(record)
    if not missing and not any(row.error is not None for row in rows):
        asked = {name: record.config[name] for name in _OF_ROWS if name in record.config}
        return [replace(empty, config={**empty.config, **asked})]
    # The record of a process that failed early has no final values of `device` and `num_gpus`.
    late = () if record.placement is not None else ("device", "num_gpus")
    flags = {name: value for name, value in empty.config.items() if name not in late}
    return [replace(empty, kind=row.kind, config={**row.config, **flags}) for row in missing]


def reduction_name_parts(kind: str, flags: Mapping[str, Any]) -> list[str]:
    """Returns the parts of the name of a row in an all-reduce record, such as ["all-reduce ring",
    "vgg16 gradients", "4 gpu"].
    """
    device = f"{flags.get('devices')} {flags.get('device')}"
    if kind == COPY:
        return ["memory copy", f"{flags.get('bytes')} bytes", device]
    # A process that failed before it measured a row has no workload.
    if "workload" not in flags:
        sizes = flags.get("sizes")
        of = ",".join(map(str, sizes)) if isinstance(sizes, list) else flags.get("model")
        return [f"all-reduces of {of}", f"{flags.get('num_gpus')} {flags.get('device')}"]
    name = f"all-reduce {flags['all_reduce_spec']}"
    of = f"{flags['workload']} {'gradients' if flags.get('model') else 'bytes'}"
    parts = [f"building {name}" if kind == BUILD else name, of, *_packing_name_parts(flags)]
    if flags["dtype"] != "float32":
        parts.append(str(flags["dtype"]))
    return [*parts, device, *(["peer"] if kind == PEER else [])]


def _packing_name_parts(flags: Mapping[str, Any]) -> list[str]:
    values = {name: flags[name] for name in _PACKING}
    wire = values.pop("wire_dtype")
    packing = Packing(**values, compact_dtype=None if wire == "same" else wire)
    return [] if packing == Packing() else [str(packing)]


def _packing_flags(packing: Packing) -> dict[str, Any]:
    """Returns the flags that control how tensors are packed before a reduction. If small gradients
    are not packed, the maximum group size has no effect, so its default is returned.
    """
    flags = asdict(packing)
    flags["wire_dtype"] = flags.pop("compact_dtype") or "same"
    if not packing.agg_small_grads_max_bytes:
        flags["agg_small_grads_max_group"] = type(packing)().agg_small_grads_max_group
    return flags


def _failed_row_template(record: AllReduceRecord) -> MeasuredReduction:
    """Returns a failed row of an all-reduce record, without values. All other rows of the record
    are copies of it with changed fields.
    """
    config = {name: value for name, value in record.config.items() if name not in _LEFT_OUT}
    # The devices of a process share its thread pools, so the row's flags contain their number.
    if record.placement is not None:
        config["num_gpus"] = len(record.placement.devices)
        config["device"] = record.placement.kind
    else:
        asked = record.config.get("num_gpus")
        config["num_gpus"] = max(asked) if isinstance(asked, list) and asked else asked
    return MeasuredReduction(
        kind=ALL_REDUCE,
        run_id=record.run_id,
        started_at=record.started_at,
        status="failed",
        error=record.error,
        config=config,
        explicit_flags=record.explicit_flags,
        environment=record.environment,
        facts=process_facts(record),
        subject=record.subject,
    )


def _row_to_measurement(
    kind: str, point: Point, record: AllReduceRecord, empty: MeasuredReduction, in_turn: int
) -> MeasuredReduction:
    config = {
        **empty.config,
        "model": point.workload if point.workload == record.config.get("model") else None,
        "all_reduce_spec": point.spec,
        **{name: getattr(point, name) for name in _POINT},
        **_packing_flags(point.packing),
    }
    error = _point_error(point)
    calls = record.config.get("num_batches")
    cut = record.status != "ok" and isinstance(calls, int) and 0 < len(point.seconds) < calls
    good = error is None
    return replace(
        empty,
        kind=kind,
        config=config,
        facts=(*empty.facts, ("rows_in_turn", str(in_turn))),
        status="failed" if not good else "interrupted" if cut else "ok",
        error=error,
        seconds=point.median_seconds if good else None,
        bytes_per_sec=point.bus_bandwidth if good else None,
        build_seconds=point.build_seconds if good else None,
    )


def _memory_copy_rows(record: AllReduceRecord, empty: MeasuredReduction) -> list[MeasuredReduction]:
    """Converts the memory copies in an all-reduce record to measurements, one for each size and
    number of devices. Times of copies with the same size are combined.
    """
    seconds: dict[tuple[int, int], list[float]] = {}
    for copy in record.copies:
        if copy.devices > 1 and copy.seconds:
            seconds.setdefault((copy.bytes, copy.devices), []).extend(copy.seconds)
    return [
        replace(
            empty,
            kind=COPY,
            status="ok",
            error=None,
            config={**empty.config, "bytes": size, "devices": devices},
            seconds=median(times),
            bytes_per_sec=size * devices / median(times),
        )
        for (size, devices), times in seconds.items()
    ]


def _point_error(point: Point) -> ErrorInfo | None:
    kind, colon, message = (point.error or "").partition(": ")
    if colon and kind.isidentifier():
        return ErrorInfo(type=kind, message=message)
    if point.error is not None:
        return ErrorInfo(type="Error", message=point.error)
    wrong = f"{point.wrong} of {point.checked} elements are wrong"
    return ErrorInfo(type="WrongSums", message=wrong) if point.wrong else None


def _row_identity(row: MeasuredReduction) -> str:
    return json.dumps([row.kind, *(row.config.get(name) for name in (*OWN, "model"))])


def _comparable_flags_text(record: AllReduceRecord, may_differ: tuple[str, ...]) -> str:
    """Returns text that is equal for equal flags, except file names and flags in `may_differ`."""
    flags = {
        name: value
        for name, value in identity_flags(record.config, of_places=True).items()
        if name not in _REDUNDANT and not is_allowed_to_differ(name, may_differ)
    }
    return json.dumps(flags, sort_keys=True)


# Finds the configuration of a measurement, and names configurations.

IMPORTED = "imported_from"
"""Key in the `config` of imported records. Its value is the program that measured the values."""

UNRESOLVED = GROUPS["device"]
"""Flags that may be unresolved in the record of a run that failed early."""


def ab_place(measurement: object) -> Mapping[str, Any]:
    """Returns the place of a run in an experiment of `cnnbench ab`, as its record says; {} for
    other measurements. The values were not validated.
    """
    return measurement.ab or {} if isinstance(measurement, RunRecord) else {}


@dataclass(frozen=True)
class Configuration:
    """The flags that identify a configuration, as a mapping from name to value.

    Attributes:
      key: hash of the flags, 12 hexadecimal digits.
      resolved: whether all flags have their final values.
      given: flags that the user set. Other flags may follow from them.
    """

    flags: Mapping[str, Any]
    key: str
    resolved: bool
    kind: str = RUN
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, measurement: Measurement) -> Configuration:
        """Returns the configuration that a measurement belongs to."""
        kind = kind_of(measurement)
        # A flag that an imported record lacks may have any value, not only the default.
        usual = {} if IMPORTED in measurement.config else _default_flags(kind)
        changed = changed_flags(measurement.config, usual)
        if kind in BENCHMARKS:
            changed |= _benchmark_flags(measurement.environment)
        # If `cnnbench ab` chose the number of timed steps from the noise, processes of the same
        # configuration may have different numbers.
        if ab_place(measurement).get("chose_steps"):
            changed = {name: changed[name] for name in changed if name not in GROUPS["num_batches"]}
        counted = json.dumps(identity_flags(changed))
        resolved = not isinstance(measurement, RunRecord) or measurement.placement is not None
        return _make_configuration(kind, counted, resolved, measurement.explicit_flags)

    @property
    def non_default_flags(self) -> dict[str, Any]:
        """The flags whose values are not the defaults."""
        return _non_default_flags(self.flags, self.kind)

    def differing_flags(self, other: Configuration) -> tuple[str, ...]:
        """Returns the names of the flags that differ between this configuration and `other`, a
        configuration of the same kind of measurement. Flags without final values are not compared.
        """
        names = dict.fromkeys((*self.flags, *other.flags))
        if self.flags.get(IMPORTED) != other.flags.get(IMPORTED):
            # Imported records lack flags, so only flags in both configurations are compared.
            both = [(name, self.flags.get(name), other.flags.get(name)) for name in names]
            known = (name for name, *values in both if None not in values)
            names = dict.fromkeys((IMPORTED, *known))
        differing = (name for name in names if self.flags.get(name) != other.flags.get(name))
        if self.resolved and other.resolved:
            return tuple(differing)
        return tuple(name for name in differing if name not in UNRESOLVED)


@lru_cache(maxsize=4096)
def _make_configuration(
    kind: str, changed_flags_json: str, resolved: bool, explicit: tuple[str, ...]
) -> Configuration:
    """Returns the configuration with the flags in `changed_flags_json` (a JSON object) and with the
    default values of all other flags.
    """
    flags: dict[str, Any] = json.loads(changed_flags_json)
    flags = flags if IMPORTED in flags else {**_default_flag_identities(kind), **flags}
    if "precision" in flags:
        flags.pop("use_fp16", None)  # `use_fp16` is the old name of `precision`.
    flags = dict(sorted(flags.items()))
    # Flags with default values are left out, so that a new flag does not change existing keys.
    text = [_non_default_flags(flags, kind), resolved, *([] if kind == RUN else [kind])]
    key = hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:12]
    return Configuration(flags, key, resolved, kind, frozenset(explicit))


def configuration_name(configuration: Configuration, distinguishing: Iterable[str] = ()) -> str:
    """Returns a short name of a configuration, with the flags in `distinguishing` as NAME=VALUE."""
    flags = configuration.flags
    if configuration.kind in BENCHMARKS:
        parts = [str(flags.get("benchmark"))]
        parts += [str(value) for name, value in flags.items() if name.startswith("parameter_")]
        parts.append(f"from {flags.get(IMPORTED)}")
    elif configuration.kind == RUN:
        parts = _run_name_parts(flags)
    else:
        parts = reduction_name_parts(configuration.kind, flags)
    parts += [f"{name}={_value_text(flags[name])}" for name in distinguishing if name in flags]
    return ", ".join(parts)


def unique_configuration_names(configurations: Iterable[Configuration]) -> dict[str, str]:
    """Maps the key of each configuration to a unique name. If short names are equal, the flags that
    differ are appended.

    Flags that the user set are preferred, because other flags, such as epochs, may follow from
    them.
    """
    named: dict[str, str] = {}
    distinct = {one.key: one for one in configurations}.values()
    for members in group_by(distinct, configuration_name).values():
        first = members[0]
        varying = sorted({name for other in members[1:] for name in first.differing_flags(other)})
        explicit = frozenset[str]().union(*(member.given for member in members))
        asked = [name for name in varying if name in explicit]
        values = {json.dumps([member.flags.get(name) for name in asked]) for member in members}
        added = asked if len(values) == len(members) else varying
        for member in members:
            named[member.key] = configuration_name(member, added)
    return named


def work_name_parts(flags: Mapping[str, Any]) -> list[str]:
    """Returns the parts of a run's name about its work: network, data set, batch and devices."""
    data = flags.get("data_name")
    return [
        str(flags.get("model") or UNKNOWN),
        *([] if data in (None, "imagenet") else [str(data)]),
        f"batch {flags.get('batch_size') or UNKNOWN}",
        f"{flags.get('num_gpus') or UNKNOWN} {flags.get('device') or 'devices'}",
    ]


def _run_name_parts(flags: Mapping[str, Any]) -> list[str]:
    parts = work_name_parts(flags)
    mode = flags.get("variable_update")
    if mode is not None and (mode != DEFAULT or flags.get("num_gpus") != 1):
        parts.append(str(mode))
    # In an imported record, the precision is None if it is unknown.
    if flags.get("precision") not in ("fp32", None):
        parts.append(str(flags.get("precision")))
    program = flags.get(IMPORTED)
    parts += [] if program is None else [f"from {program}"]
    return parts + [name for name in names_of_flags(FLAGS, RunPart.WORK) if flags.get(name)]


def imported_records_note(records: Iterable[RunRecord | AllReduceRecord]) -> str:
    """Returns a note that says how many records were imported from which programs, and what is
    unknown of them. "" if none was imported.
    """
    runs = [record for record in records if isinstance(record, RunRecord)]
    imports = [run.imported for run in runs if run.imported is not None]
    unknown = {name for imported in imports for name in imported.unknown}
    return imported_measurements_note([imported.program for imported in imports], unknown)


def imported_measurements_note(programs: Iterable[object], unknown: Iterable[str]) -> str:
    """Returns a note that says how many measurements were imported from which programs, or "" if
    `programs` contains only None. `unknown` are names of unknown flags and properties.
    """
    counts = Counter(str(program) for program in programs if program is not None)
    if not counts:
        return ""
    of = ", ".join(f"{number} from {program}" for program, number in counts.items())
    lacking = ", ".join(sorted({*unknown} - {"step_seconds"}))
    template = phrases.IMPORTED_AND_UNKNOWN if lacking else phrases.IMPORTED
    return template.format(sources=of, unknown=lacking)


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return boolean_text(value)
    if isinstance(value, list):
        return ",".join(map(_value_text, value))
    return "none" if value is None else str(value)


@lru_cache(maxsize=len(KINDS))
def _default_flags(kind: str) -> Mapping[str, Any]:
    """Returns the default values of all flags of a kind of measurement, as records store them."""
    if kind != RUN:
        own = (spec for spec in ALL_REDUCE_FLAGS if spec.name not in _LEFT_OUT)
        flags = {spec.name: encode(spec.default) for spec in own}
        return {**flags, "model": None, **_packing_flags(Packing())}
    return recorded_defaults()


@lru_cache(maxsize=len(KINDS))
def _default_flag_identities(kind: str) -> dict[str, Any]:
    return identity_flags(_default_flags(kind))


def _non_default_flags(flags: Mapping[str, Any], kind: str) -> dict[str, Any]:
    usual = _default_flag_identities(kind)
    return {
        name: value for name, value in flags.items() if name not in usual or usual[name] != value
    }
