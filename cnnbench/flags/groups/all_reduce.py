"""Declares the flags of ``cnnbench allreduce``. Flags that also exist in `cnnbench run` are
declared again, with a different help text, default or role.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cnnbench.base.text import unknown_name_reason
from cnnbench.base.values import parse_bytes
from cnnbench.errors import FlagError
from cnnbench.flags.declare import (
    Affects,
    FlagSpec,
    RunPart,
    flag,
    redeclare_flag,
    specs_of,
    split_comma_separated,
    split_options,
)
from cnnbench.flags.groups.cluster import ClusterParams
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.groups.run import RunParams
from cnnbench.flags.groups.runtime import RuntimeParams
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.models import registry
from cnnbench.variable_mgr.all_reduce import AllReduceSpec, names, parse_all_reduce_spec
from cnnbench.variable_mgr.packing import MOST_PACKS, Packing

WIRE_DTYPES = ("float16", "bfloat16")
_SAME = "same"


@dataclass(frozen=True, kw_only=True)
class AllReduceParams:
    """All flags of ``cnnbench allreduce``. Each field is the flag of the same name."""

    # Flags for the tensors that are reduced.
    sizes: str | None = flag(
        None,
        "Bytes of the tensors of one device: single sizes (4K,1M), ranges with a factor "
        "(1K:256M:x4) or a step (64K:1M:+64K), and SIZE*COUNT for many tensors of one size "
        "(4K*1000). 1K:64M:x4 if neither this nor --model is given.",
        part=RunPart.ROWS,
    )
    model: str | None = flag(
        None,
        "Reduce the gradients of this network; `cnnbench models` lists them.",
        known=registry.all_model_names,
        part=RunPart.ROWS,
    )
    data_name: str | None = flag(
        None,
        "Data set of --model; imagenet if not given.",
        known=registry.datasets,
        part=RunPart.ROWS,
    )
    plugin: tuple[str, ...] = redeclare_flag(RunParams, "plugin")
    dtype: str = flag(
        "float32",
        "Number format of the tensors.",
        choices=("float32", "float16", "bfloat16"),
        part=RunPart.ROWS,
    )

    # Flags for the algorithms. Every all-reduce spec is measured with every packing of the tensors.
    all_reduce_spec: str | None = flag(
        None,
        "Algorithms to measure, comma-separated, each as in a run: "
        "copy,xring#2,pscpu:32K:xring,nccl/xring. If not given, every single algorithm that "
        "works on these devices.",
        known=names,
        part=RunPart.ROWS,
    )
    peers: str = flag(
        "",
        "Reductions of other projects to measure for comparison, comma-separated: "
        "reduction_to_one_device, hierarchical_copy_all_reduce, nccl_all_reduce (all of them from "
        "tf.distribute). TensorFlow's own ring is the spec collective.",
        part=RunPart.ROWS,
    )
    gradient_repacking: tuple[int, ...] = redeclare_flag(
        VariableUpdateParams,
        "gradient_repacking",
        default=(0,),
        help="Numbers of packs into which the tensors are joined, comma-separated. With 0, tensors "
        "are not packed.",
        maximum=MOST_PACKS,
    )
    agg_small_grads_max_bytes: str = flag(
        "0",
        "Largest sizes of tensors that are joined, in bytes, comma-separated, as in 0,64K. With 0, "
        "no tensors are joined.",
    )
    agg_small_grads_max_group: int = redeclare_flag(
        VariableUpdateParams, "agg_small_grads_max_group"
    )
    gradient_bucket_bytes: str = flag(
        "0",
        "Sizes of the buckets into which consecutive tensors are joined, in bytes, "
        "comma-separated, as in 0,4M. With 0, there are no buckets.",
    )
    wire_dtype: str = flag(
        "same",
        "Number formats in which float32 tensors are sent, comma-separated: same (float32), "
        "float16, bfloat16.",
        known=lambda: (_SAME, *WIRE_DTYPES),
    )
    compact_gradient_transfer: bool = flag(
        False, "Old name of --wire_dtype=float16.", part=RunPart.ROWS
    )
    allreduce_merge_scope: int = redeclare_flag(VariableUpdateParams, "allreduce_merge_scope")
    variable_consistency: str = redeclare_flag(
        VariableUpdateParams,
        "variable_consistency",
        help="With relaxed, each call reduces the tensors of the previous call, which are stored "
        "in variables.",
    )
    network_topology: str = redeclare_flag(VariableUpdateParams, "network_topology")
    all_reduce_group_size: int = redeclare_flag(VariableUpdateParams, "all_reduce_group_size")
    communication_hint: str = redeclare_flag(
        VariableUpdateParams,
        "communication_hint",
        help="How TensorFlow's collectives communicate: in a ring through the hosts, or with NCCL. "
        "auto means NCCL between GPUs, and the ring between CPUs and for collective#2.",
    )
    all_reduce_share_memory: bool = redeclare_flag(VariableUpdateParams, "all_reduce_share_memory")
    local_parameter_device: str = redeclare_flag(
        VariableUpdateParams,
        "local_parameter_device",
        help="Where the algorithm copy adds the tensors: on the compute devices (gpu, also if "
        "--device=cpu) or on the host (cpu).",
    )

    # Flags for the compute devices.
    num_gpus: tuple[int, ...] = redeclare_flag(
        RuntimeParams,
        "num_gpus",
        default=(2,),
        help="Numbers of compute devices of each process, comma-separated, including logical CPU "
        "devices. They are measured one after the other.",
        minimum=1,
    )
    device: str = redeclare_flag(RuntimeParams, "device")
    gpu_indices: str = redeclare_flag(RuntimeParams, "gpu_indices")
    gpus_per_card: int = redeclare_flag(RuntimeParams, "gpus_per_card")
    num_intra_threads: int | None = redeclare_flag(RuntimeParams, "num_intra_threads")
    num_inter_threads: int = redeclare_flag(RuntimeParams, "num_inter_threads")
    gpu_thread_mode: str = redeclare_flag(RuntimeParams, "gpu_thread_mode")
    per_gpu_thread_count: int = redeclare_flag(RuntimeParams, "per_gpu_thread_count")
    allow_growth: bool | None = redeclare_flag(RuntimeParams, "allow_growth")
    enable_optimizations: bool = redeclare_flag(RuntimeParams, "enable_optimizations")

    # Flags for jobs of several processes; see docs/cluster.md.
    job_name: str = redeclare_flag(ClusterParams, "job_name")
    task_index: int = redeclare_flag(ClusterParams, "task_index")
    worker_hosts: str = redeclare_flag(ClusterParams, "worker_hosts")
    controller_host: str | None = redeclare_flag(ClusterParams, "controller_host")
    cluster_timeout: int = redeclare_flag(ClusterParams, "cluster_timeout")

    # Flags for the number of timed calls, and for the seed.
    iters_per_step: int = redeclare_flag(
        VariableUpdateParams,
        "iters_per_step",
        help="Number of reductions in one call. Each starts after the previous one has finished.",
        maximum=100_000,
    )
    num_batches: int = flag(20, "Number of timed calls for each row of the table.", minimum=1)
    iterations: int | None = flag(None, "Another name of --num_batches.", minimum=1)
    num_warmup_batches: int = flag(
        2, "Number of calls before the timed calls of each row.", minimum=0
    )
    tf_random_seed: int = redeclare_flag(
        RunParams, "tf_random_seed", help="Seed of the data and of the order of the calls."
    )
    build_only: bool = flag(
        False,
        "Measure only how long it takes to build the reductions: to trace them, and to run the "
        "first call, which includes TensorFlow's graph optimisation. A call has one reduction, "
        "unless --iters_per_step is given.",
    )

    # Flags for printed output and result files.
    verbose: bool = flag(
        False, "Also print build times, as comment lines.", affects=Affects.NOTHING
    )
    progress: str = redeclare_flag(OutputParams, "progress")
    result_json: str | None = flag(
        None,
        "Write all measurements to this file. The file is updated after every size.",
        path="file",
        affects=Affects.NOTHING,
    )
    result_csv: str | None = flag(
        None,
        "Append one row for each row of the table to this file.",
        path="file",
        affects=Affects.NOTHING,
    )
    result_label: str | None = redeclare_flag(OutputParams, "result_label")
    quiet_conditions: str = redeclare_flag(OutputParams, "quiet_conditions")

    def as_dict(self) -> dict[str, Any]:
        """Returns the values of all flags by name, in the order of declaration."""
        return {spec.name: getattr(self, spec.name) for spec in ALL_REDUCE_FLAGS}


ALL_REDUCE_FLAGS: tuple[FlagSpec, ...] = specs_of(AllReduceParams)

ALL_REDUCE_TITLES = {
    "sizes": "What to reduce",
    "all_reduce_spec": "How",
    "num_gpus": "Where",
    "job_name": "Processes",
    "iters_per_step": "How long",
    "verbose": "Output",
}
"""Titles of the help's sections, by the first flag of each section."""


def params_from_values(values: Mapping[str, Any]) -> AllReduceParams:
    """Creates the parameters from flag values, as `parse_flags` returns them."""
    return split_options(AllReduceParams, values)[0]


def parse_all_reduce_specs(text: str | None) -> tuple[AllReduceSpec, ...] | None:
    """Parses the comma-separated algorithms of --all_reduce_spec; None if it is not given."""
    if text is None:
        return None
    specs = [parse_all_reduce_spec(word.strip()) for word in text.split(",")]
    for spec in specs:
        spec.check_algorithm_names(names(spec.algorithm_names))
    return tuple(dict.fromkeys(specs))


def packing_combinations(params: AllReduceParams) -> tuple[Packing, ...]:
    """Returns all combinations of the values of the packing flags, without duplicates."""
    combinations = itertools.product(
        _parse_sizes("agg_small_grads_max_bytes", params),
        _parse_sizes("gradient_bucket_bytes", params),
        params.gradient_repacking or (0,),
        _parse_dtypes(params),
    )
    packings = (
        Packing.from_flags(
            vars(params),
            gradient_repacking=packs,
            agg_small_grads_max_bytes=small,
            gradient_bucket_bytes=bucket,
            compact_dtype=wire,
        )
        for small, bucket, packs, wire in combinations
    )
    return tuple(dict.fromkeys(packings))


def _parse_sizes(name: str, params: AllReduceParams) -> list[int]:
    text = getattr(params, name)
    sizes = [parse_bytes(piece.strip()) for piece in text.split(",")]
    known = [size for size in sizes if size is not None]
    if len(known) != len(sizes):
        raise FlagError(name, text, "must be sizes in bytes, as in 0 or 0,64K")
    return known


def _parse_dtypes(params: AllReduceParams) -> list[str | None]:
    text = params.wire_dtype
    wires = list(split_comma_separated(text)) or [_SAME]
    known = (_SAME, *WIRE_DTYPES)
    narrow = f"works only with --dtype=float32; {params.dtype} already has 16 bits"
    for wire in wires:
        if wire not in known:
            reason = unknown_name_reason(wire, known, "must be one or more of")
            raise FlagError("wire_dtype", text, reason)
        if wire != _SAME and params.dtype != "float32":
            raise FlagError("wire_dtype", text, narrow)
    if params.compact_gradient_transfer:
        if wires != [_SAME]:
            reason = f"means --wire_dtype=float16, which contradicts --wire_dtype={text}"
            raise FlagError("compact_gradient_transfer", "true", reason)
        if params.dtype != "float32":
            raise FlagError("compact_gradient_transfer", "true", narrow)
        wires = ["float16"]
    return [None if wire == _SAME else wire for wire in wires]
