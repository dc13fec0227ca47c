"""Flags of tf_cnn_benchmarks without any meaning in TensorFlow 2: one table.

They parse as they always did, change nothing, and a value other than the old
default brings a notice. A declaration's help says what to use instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cnnbench.errors import FlagError
from cnnbench.flags.declare import FlagSpec, flag, specs_of

_GPU_TRACKER = "TensorFlow 2 schedules GPU kernels by itself; leave it out."
_OPENMP = "TensorFlow's CPU kernels run on its own threads: use --num_intra_threads."
_RECORD = "Use --result_json, which holds the whole run, or --result_csv."


@dataclass(frozen=True, kw_only=True)
class ObsoleteParams:
    """Without meaning in TensorFlow 2; not part of ``Params``."""

    batch_group_size: int = flag(1, "Use --datasets_prefetch_buffer_size.")
    use_datasets: bool = flag(
        True, "Input always comes from tf.data; leave out --data_dir to measure without input."
    )
    single_l2_loss_op: bool = flag(
        False, "The L2 gradient is part of the update; use --weight_decay=0 to measure without it."
    )
    use_tf_layers: bool = flag(True, "There is one way to build a network; leave it out.")
    use_resource_vars: bool = flag(False, "Variables always are resource variables; leave it out.")
    use_python32_barrier: bool = flag(
        False, "No producer thread is left to wait for; leave it out."
    )
    compute_lr_on_cpu: bool = flag(
        False, "The host always computes the learning rate; leave it out."
    )
    sync_on_finish: bool = flag(False, "Every timed step is waited for in any case; leave it out.")
    use_numa_affinity: bool = flag(False, "Start cnnbench under numactl --cpunodebind instead.")
    force_gpu_compatible: bool = flag(
        False, "Batches are copied ahead of need by --datasets_use_prefetch, on by default."
    )
    gpu_memory_frac_for_testing: float = flag(
        0.0, "Use --allow_growth to share a GPU between processes.", minimum=0
    )
    timestamped_allocator: bool = flag(
        False, "Use TF_GPU_ALLOCATOR=cuda_malloc_async in the environment for another allocator."
    )
    gpu_kt_max_interval: int = flag(0, _GPU_TRACKER)
    gpu_kt_max_bytes: int = flag(0, _GPU_TRACKER)
    gpu_kt_max_pending: int = flag(0, _GPU_TRACKER)
    mkl: bool = flag(
        False, "oneDNN is built in: TF_ENABLE_ONEDNN_OPTS=0 or 1 in the environment switches it."
    )
    kmp_blocktime: int = flag(0, _OPENMP)
    kmp_affinity: str = flag("granularity=fine,verbose,compact,1,0", _OPENMP)
    kmp_settings: int = flag(1, _OPENMP)
    rewriter_config: str | None = flag(
        None, "Use --noenable_optimizations to switch the graph optimizer off."
    )
    trt_max_workspace_size_bytes: int = flag(4 << 30, "Without --trt_mode there is no workspace.")
    horovod_device: str = flag("", "Use --local_parameter_device for where gradients are reduced.")
    debugger: str | None = flag(
        None, "Sessions are gone and tfdbg with them: a non-finite loss is reported at once."
    )
    benchmark_log_dir: str | None = flag(None, _RECORD)
    benchmark_test_id: str | None = flag(None, _RECORD)


OBSOLETE: tuple[FlagSpec, ...] = specs_of(ObsoleteParams)

# Values the ancestor took for flags that otherwise live on.
_GONE_VALUES: dict[tuple[str, str], str] = {
    ("variable_update", "horovod"): (
        "Horovod is not supported; use replicated for several devices of one machine"
    ),
    ("input_preprocessor", "official_models_imagenet"): (
        "needs a package that no longer exists; use default"
    ),
}


def check_gone(spec: FlagSpec, value: Any) -> None:
    """Refuses a value of the ancestor that will not come back.

    Raises:
      FlagError: says what to use instead.
    """
    reason = _GONE_VALUES.get((spec.name, value)) if isinstance(value, str) else None
    if reason is not None:
        raise FlagError(spec.name, value, reason)


def obsolete_notices(given: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for every obsolete flag set to something else than its old default.

    Args:
      given: values by name, of the flags on the command line.
    """
    return tuple(
        f"--{spec.name}={spec.text(given[spec.name])} has no meaning in TensorFlow 2. {spec.help}"
        for spec in OBSOLETE
        if spec.name in given and given[spec.name] != spec.default
    )
