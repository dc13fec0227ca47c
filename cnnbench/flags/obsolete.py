"""Flags that have no effect or a new name.

Obsolete flags of tf_cnn_benchmarks are accepted and have no effect. If the value of an obsolete
flag is not its old default, a notice names the alternatives (`help`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cnnbench.errors import FlagError
from cnnbench.flags.declare import FlagSpec, flag, specs_of

T = TypeVar("T")


_GPU_TRACKER = "TensorFlow 2 schedules GPU kernels itself; leave the flag out."


_TENSORRT = "TensorFlow is built without TensorRT; use --freeze_when_forward_only and --precision."


_SHARED_GPU = "To share a GPU between processes, use --allow_growth."


_OPENMP = "TensorFlow's CPU kernels run on TensorFlow's own threads; use --num_intra_threads."


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ObsoleteParams:
    """Flags of tf_cnn_benchmarks that are accepted without effect, and no part of ``Params``."""

    batch_group_size: int = flag(1, "Use --datasets_prefetch_buffer_size.")
    use_datasets: bool = flag(True, "To measure without input by tf.data, leave out --data_dir.")
    single_l2_loss_op: bool = flag(False, "To measure without the L2 loss, use --weight_decay=0.")
    use_tf_layers: bool = flag(
        True, "Networks are always built in the same way; leave the flag out."
    )
    use_resource_vars: bool = flag(
        False, "Variables are always resource variables; leave the flag out."
    )
    use_python32_barrier: bool = flag(False, "cnnbench has no producer thread; leave the flag out.")
    compute_lr_on_cpu: bool = flag(
        False, "The host always computes the learning rate; leave the flag out."
    )
    sync_on_finish: bool = flag(
        False, "cnnbench always waits for every timed step; leave the flag out."
    )
    use_numa_affinity: bool = flag(False, "Start cnnbench under numactl --cpunodebind instead.")
    force_gpu_compatible: bool = flag(False, "Use --datasets_use_prefetch, which is on by default.")
    gpu_memory_frac_for_testing: float = flag(0.0, _SHARED_GPU, minimum=0)
    gpu_mem_fraction: float = flag(0.0, _SHARED_GPU, minimum=0)
    timestamped_allocator: bool = flag(False, "Set TF_GPU_ALLOCATOR=cuda_malloc_async instead.")
    gpu_kt_max_interval: int = flag(0, _GPU_TRACKER)
    gpu_kt_max_bytes: int = flag(0, _GPU_TRACKER)
    gpu_kt_max_pending: int = flag(0, _GPU_TRACKER)
    mkl: bool = flag(False, "Set TF_ENABLE_ONEDNN_OPTS=0 or 1: oneDNN is built in.")
    kmp_blocktime: int = flag(0, _OPENMP)
    kmp_affinity: str = flag("granularity=fine,verbose,compact,1,0", _OPENMP)
    kmp_settings: int = flag(1, _OPENMP)
    rewriter_config: str | None = flag(
        None, "To switch the graph optimizer off, use --noenable_optimizations.", unset=""
    )
    trt_mode: str = flag("", _TENSORRT, choices=("", "FP32", "FP16", "INT8"))
    trt_max_workspace_size_bytes: int = flag(4 << 30, _TENSORRT, maximum=2**63 - 1)
    horovod_device: str = flag(
        "", "To choose where gradients are reduced, use --local_parameter_device."
    )
    flush_stdout: bool = flag(False, "Every line is flushed at once; leave the flag out.")
    use_nccl: bool = flag(True, "Use --all_reduce_spec=nccl.")
    use_multi_device_iterator: bool = flag(
        True, "Each device always gets its own batches; leave the flag out."
    )
    use_data_sets: bool = flag(False, "Input always comes from tf.data; leave the flag out.")
    datasets_prefetch_threadpool_size: int = flag(1, "Use --datasets_num_private_threads.")
    enable_layout_optimizer: bool = flag(
        False, "To switch the graph optimizer off, use --noenable_optimizations."
    )
    memory_optimization: str = flag(
        "", "TensorFlow's graph optimizer decides this; leave the flag out."
    )
    gpu_pending_cap: int = flag(0, _GPU_TRACKER)
    num_omp_threads: int = flag(0, _OPENMP)
    result_storage: str | None = flag(None, "Use --result_json or --benchmark_log_dir.")
    pretrain_dir: str | None = flag(None, "Use --train_dir or --backbone_model_path.")
    tfprof_file: str | None = flag(
        None,
        "Use --profile_json for the times of layers and kinds of operations, or cnnbench roofline "
        "for a table of them.",
        unset="",
    )
    debugger: str | None = flag(
        None, "TensorFlow 2 has no tfdbg. If the loss is not finite, the run reports it at once."
    )


_STDERR = (
    "Every line that is not a result goes to standard error; to write these lines to a file, add "
    "2>FILE."
)


_PDB = "Start python -m pdb -m cnnbench with the same flags."


_PROFILING = "Start python -m cProfile -o FILE -m cnnbench with the same flags."


_LEVELS = (
    "The lines of cnnbench have no levels. To set the level of TensorFlow's lines, set "
    "TF_CPP_MIN_LOG_LEVEL to 0, 1, 2 or 3."
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AbslParams:
    """Flags that absl.app adds to every program. They are not part of ``Params``.

    A default is what cnnbench always does, so setting a flag to its default causes no notice.
    """

    only_check_args: bool = flag(
        False, "Check the flags of cnnbench run, print the resolved plan and end with exit code 0."
    )
    verbosity: int = flag(0, _LEVELS, short="v")
    logger_levels: str = flag("", _LEVELS)
    stderrthreshold: str = flag("info", _LEVELS)
    logtostderr: bool = flag(True, _STDERR)
    alsologtostderr: bool = flag(True, _STDERR)
    log_dir: str = flag("", _STDERR)
    showprefixforinfo: bool = flag(False, 'The only prefix of lines is "cnnbench: ".')
    run_with_pdb: bool = flag(False, _PDB)
    pdb_post_mortem: bool = flag(False, _PDB)
    pdb: bool = flag(False, _PDB)
    run_with_profiling: bool = flag(False, _PROFILING)
    profile_file: str | None = flag(None, _PROFILING)
    use_cprofile_for_profiling: bool = flag(True, _PROFILING)


ONLY_CHECK = "only_check_args"


ABSL: tuple[FlagSpec, ...] = specs_of(AbslParams)
"""Flags of absl.app. Only --only_check_args has an effect."""


OBSOLETE: tuple[FlagSpec, ...] = (*specs_of(ObsoleteParams), *ABSL)
"""Accepted flags that are not fields of ``Params``. Flags of absl.app come last."""


RENAMED: Mapping[str, str] = {
    "only_check_flags": ONLY_CHECK,
    "learning_rate": "init_learning_rate",
    "checkpoint_directory": "train_dir",
    "cache_data": "datasets_repeat_cached_sample",
}
"""New names by old names, which early versions and forks of tf_cnn_benchmarks use."""


def check_obsolete_flags(
    values_given: Mapping[str, Any], *, of_run: bool = False
) -> tuple[str, ...]:
    """Returns a notice for every given flag without effect, unless its value is the default.

    FlagError for an invalid value. If `of_run` is False, also FlagError for --only_check_args.
    """
    notices = []
    for spec in (spec for spec in OBSOLETE if spec.name in values_given):
        value = spec.normalise_or_parse(values_given[spec.name])
        spec.check(value)
        if spec.name == ONLY_CHECK and value and not of_run:
            raise FlagError(ONLY_CHECK, value, "works only in cnnbench run")
        if spec.name != ONLY_CHECK and value != spec.default:
            missing = "effect" if spec in ABSL else "meaning in TensorFlow 2"
            notices.append(f"--{spec.name}={spec.text(value)} has no {missing}. {spec.help}")
    return tuple(notices)


def renamed_notices(names: Container[str]) -> tuple[str, ...]:
    """Returns a notice for every flag that was given by its old name."""
    return tuple(f"--{old} was renamed to --{new}" for old, new in RENAMED.items() if old in names)


def accept_obsolete(params: type[T]) -> type[T]:
    """Class decorator for parameters: obsolete flags and old names of flags are accepted as
    arguments, with a warning.
    """
    init = params.__init__

    @functools.wraps(init)
    def init_with_obsolete(self: T, **values: Any) -> None:
        for old, new in RENAMED.items():
            if old in values and new in values:
                raise FlagError(old, values[old], f"was renamed to --{new}; give one of the two")
        for notice in check_obsolete_flags(values) + renamed_notices(values):
            warnings.warn(notice, stacklevel=2)
        obsolete = {spec.name for spec in OBSOLETE}
        init(self, **{RENAMED.get(n, n): values[n] for n in values if n not in obsolete})

    params.__init__ = init_with_obsolete  # type: ignore[method-assign,assignment]
    return params
