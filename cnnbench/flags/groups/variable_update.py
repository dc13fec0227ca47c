"""Flags for variable placement and gradient aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnnbench.flags.declare import Role, RunPart, flag
from cnnbench.variable_mgr.all_reduce.spec import (
    COMMUNICATION_HINTS,
    AllReduceSpec,
    names,
    parse_all_reduce_spec,
)
from cnnbench.variable_mgr.modes import (
    BUILT_IN,
    CACHING_POLICIES,
    DEFAULT,
    MOST_PACKS,
    NAMES,
    PS_STRATEGIES,
)

BUCKET_BYTES = 4 * 1024 * 1024
"""Measured with 102 MB of gradients and two processes on one machine: compared with a single
bucket, buckets of 1, 4 and 16 MB reduced the step time to 44 %, 37 % and 40 %. For 1 MB of
gradients, a single bucket was fastest.
"""

_MODES = "; ".join(f"{mode.name}: {mode.about}" for mode in BUILT_IN if mode.about)


_algorithm = partial(flag, part=RunPart.ALGORITHM | RunPart.AGGREGATION | RunPart.TUNABLE)
_aggregation = partial(flag, part=RunPart.AGGREGATION | RunPart.TUNABLE)
_update = partial(flag, part=RunPart.UPDATE)


@dataclass(frozen=True, kw_only=True)
class VariableUpdateParams:
    """Flags for variable placement and gradient aggregation."""

    variable_update: str = flag(
        DEFAULT,
        f"Placement of variables and aggregation of gradients. {_MODES}; the strategies are those "
        "of tf.distribute.",
        choices=NAMES,
        checked_late=True,
        part=RunPart.ALGORITHM | RunPart.TUNABLE,
    )
    variable_mgr_plugin: str | None = flag(
        None,
        "As --plugin, for a file that registers modes of --variable_update.",
        path="file",
        role=Role.PLUGIN,
    )
    local_parameter_device: str = flag(
        "gpu",
        "Place of the variables in parameter_server, of the updated variables in "
        "distributed_replicated, and of the sums in copy, which replicated uses without "
        "--all_reduce_spec: on the compute devices (gpu, whatever --device is) or on the host "
        "(cpu). Ignored by other algorithms.",
        choices=("cpu", "gpu"),
        lower=True,
        part=RunPart.TUNABLE,
    )
    ps_strategy: str = flag(
        "greedy_bytes",
        "How variables go to the tasks of --ps_hosts: each to the one with the fewest bytes so "
        "far, or in turn.",
        choices=PS_STRATEGIES,
        only_with="ps_hosts",
    )
    variable_caching: str = flag(
        "none",
        "With --ps_hosts: copy every variable that a step reads once for each device that "
        "computes with it (consumer), or once for each worker, to its CPU (cpu), where its devices "
        "share it. none leaves it to TensorFlow, which sends a value to each device once.",
        choices=CACHING_POLICIES,
        only_with="ps_hosts",
    )
    gradient_reduction: str = _update(
        "mean",
        "How gradients of several devices are combined, in every mode.",
        choices=("mean", "sum"),
    )
    bn_stats: str = _update(
        "first",
        "Batch norm with several devices. Each device normalises by the moments of its batch, "
        "and the "
        "moving averages are of the first device or the mean of all; sync normalises by the "
        "moments of all batches.",
        choices=("first", "mean", "sync"),
    )
    variable_consistency: str = _aggregation(
        "strong",
        "relaxed applies the gradients of the step before, so that the all-reduce need not end "
        "within its step; the first step applies zeros.",
        choices=("strong", "relaxed"),
    )
    staged_vars: bool = _update(
        False,
        "With parameter_server: a step computes with the values that the step before read, so that "
        "copying them to the devices overlaps with that step; gradients are one step late.",
    )
    all_reduce_spec: AllReduceSpec | None = flag(
        None,
        "All-reduce algorithm of replicated and distributed_all_reduce, such as xring#2 or "
        "nccl/rechd; docs/all_reduce.md lists them. distributed_all_reduce also takes "
        "algorithms by size, as in pscpu:32K:xring, with limits in bytes of a gradient as sent. "
        "Without it, replicated copies to one device.",
        parser=parse_all_reduce_spec,
        known=names,
        part=RunPart.ALGORITHM | RunPart.AGGREGATION | RunPart.TUNABLE,
        empty_is_none=True,  # Scripts for tf_cnn_benchmarks write the value like this.
    )
    all_reduce_group_size: int = _algorithm(
        0,
        "Consecutive devices that form a group of a two-level algorithm; 0 for the devices of "
        "one process.",
        minimum=0,
    )
    communication_hint: str = _aggregation(
        "auto",
        "How TensorFlow's collectives run, of collective_all_reduce and of collective in "
        "--all_reduce_spec: through the hosts in a ring, or by NCCL. auto is NCCL between GPUs and "
        "the ring between CPUs, and for collective#2. The strategies have --cross_device_ops.",
        choices=COMMUNICATION_HINTS,
    )
    all_reduce_share_memory: bool = _aggregation(
        True,
        "CPU devices of one process hand each other tensors by reference, and all-reduce "
        "algorithms skip unnecessary copies. If false, each device is treated as if it had "
        "separate memory, so that a CPU runs the same copies as GPUs.",
        only_with="not device=gpu: GPUs never share memory",
    )
    hierarchical_copy: bool = _algorithm(
        False,
        "Without --all_reduce_spec: copy within two halves of the devices first, then between "
        "the halves.",
        only_with="not all_reduce_spec",
    )
    network_topology: str = _aggregation(
        "dgx1", "Topology that hierarchical copies are laid out for.", choices=("dgx1", "gcp_v100")
    )
    gradient_repacking: int = _aggregation(
        0,
        "Join all gradients and split them into this number of equal packs before reducing them, "
        f"at most {MOST_PACKS}; 0 for no packing.",
        minimum=0,
    )
    gradient_bucket_bytes: int | None = _aggregation(
        None,
        "Join consecutive gradients, from the last layer on, into buckets of at most this many "
        "bytes before reducing them; 0 for none. By default "
        f"{BUCKET_BYTES} with collective_all_reduce, unless another flag joins gradients, and 0 "
        "elsewhere.",
        minimum=0,
    )
    compact_gradient_transfer: bool = _aggregation(
        True,
        "With --precision=fp16 or bf16: send gradients between devices in 16 bits too.",
        only_with="not precision=fp32",
    )
    agg_small_grads_max_bytes: int = _aggregation(
        0,
        "Join gradients of up to this many bytes before reducing them; 0 for none.",
        minimum=0,
        only_with="not agg_small_grads_max_group=1",
    )
    agg_small_grads_max_group: int = _aggregation(
        10,
        "Most small gradients to join into one.",
        minimum=1,
        only_with="agg_small_grads_max_bytes",
    )
    allreduce_merge_scope: int = _aggregation(
        1,
        "Consecutive gradients whose reductions share a name scope in profiles. Each is still "
        "reduced individually; --gradient_repacking and --agg_small_grads_max_bytes join them.",
        minimum=1,
    )
    sparse_to_dense_grads: bool = _aggregation(
        False,
        "Turn sparse gradients into dense ones before they are reduced. The update is the same "
        "either way.",
        only_with="not variable_consistency=relaxed: all gradients are dense",
    )
    iters_per_step: int = flag(
        5, "For cnnbench allreduce only: reductions chained in one call.", minimum=1
    )
