"""Flags for variable placement and gradient aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnnbench.flags.declare import Affects, RunPart, flag
from cnnbench.flags.given import OrText
from cnnbench.variable_mgr.all_reduce.spec import (
    COMMUNICATION_HINTS,
    AllReduceSpec,
    names,
    parse_all_reduce_spec,
)
from cnnbench.variable_mgr.modes import (
    BUCKET_BYTES,
    BUILT_IN,
    CACHING_POLICIES,
    DEFAULT,
    MOST_PACKS,
    NAMES,
    PS_STRATEGIES,
)

_MODES = ". ".join(f"{mode.name}: {mode.about}" for mode in BUILT_IN if mode.about)


_algorithm = partial(flag, affects=Affects.TIME, part=RunPart.ALGORITHM | RunPart.AGGREGATION)
_aggregation = partial(flag, affects=Affects.TIME, part=RunPart.AGGREGATION)
_update = partial(flag, part=RunPart.UPDATE)


@dataclass(frozen=True, kw_only=True)
class VariableUpdateParams:
    """Flags for variable placement and gradient aggregation."""

    variable_update: str = flag(
        DEFAULT,
        f"Placement of variables and aggregation of gradients. {_MODES}. The other modes are the "
        "strategies of tf.distribute.",
        choices=NAMES,
        checked_late=True,
        affects=Affects.TIME,
        part=RunPart.ALGORITHM | RunPart.HEADER,
    )
    local_parameter_device: str = flag(
        "gpu",
        "Device of the variables of parameter_server, of the updated variables of "
        "distributed_replicated, and of the sums of the all-reduce algorithm copy, which "
        "replicated uses without --all_reduce_spec. gpu: the compute devices (also if "
        "--device=cpu). cpu: the host. Other modes and algorithms ignore this flag.",
        choices=("cpu", "gpu"),
        lower=True,
        affects=Affects.TIME,
    )
    ps_strategy: str = flag(
        "greedy_bytes",
        "How variables are distributed over the tasks of --ps_hosts. greedy_bytes: each variable "
        "goes to the task that has the fewest bytes so far. round_robin: one variable after the "
        "other goes to the next task.",
        choices=PS_STRATEGIES,
    )
    variable_caching: str = flag(
        "none",
        "With --ps_hosts: how often a step copies a variable from its ps task. consumer: once for "
        "each device that computes with it. cpu: once for each worker, to the CPU of the worker, "
        "whose devices share the copy. none: TensorFlow decides, and sends a value once to each "
        "device.",
        choices=CACHING_POLICIES,
    )
    gradient_reduction: str = _update(
        "mean",
        "How gradients of several devices are combined, in every mode.",
        choices=("mean", "sum"),
    )
    bn_stats: str = _update(
        "first",
        "Batch norm with several devices. sync: all devices normalise with the mean and variance "
        "of all batches. first and mean: each device normalises with the mean and variance of its "
        "own batch; the moving averages are computed from the batch of the first device (first), "
        "or are the mean over all devices (mean).",
        choices=("first", "mean", "sync"),
    )
    variable_consistency: str = _aggregation(
        "strong",
        "With relaxed, each step applies the gradients of the previous step, so that the "
        "all-reduce can continue during the next step. The first step applies zeros.",
        choices=("strong", "relaxed"),
    )
    staged_vars: bool = _update(
        False,
        "With parameter_server: each step uses the variable values that the previous step read. "
        "Therefore the values are copied to the devices during the previous step, and gradients "
        "are one step late.",
        part=RunPart.UPDATE | RunPart.HEADER,
    )
    all_reduce_spec: OrText[AllReduceSpec | None] = flag(
        None,
        "All-reduce algorithm of replicated and distributed_all_reduce, such as xring#2 or "
        "nccl/rechd; docs/all_reduce.md lists them. distributed_all_reduce also takes "
        "algorithms by size, as in pscpu:32K:xring. The limit (32K) is the size of a gradient in "
        "bytes as it is sent. If not given, replicated copies all gradients to one device.",
        parser=parse_all_reduce_spec,
        known=names,
        affects=Affects.TIME,
        part=RunPart.ALGORITHM | RunPart.AGGREGATION | RunPart.HEADER,
        unset="",
    )
    all_reduce_group_size: int = _algorithm(
        0,
        "Number of consecutive devices that form a group of a two-level algorithm. With 0, the "
        "devices of each process form one group.",
        minimum=0,
    )
    communication_hint: str = _aggregation(
        "auto",
        "How TensorFlow's collectives communicate, in the mode collective_all_reduce and with "
        "collective in --all_reduce_spec: in a ring through the hosts, or with NCCL. auto means "
        "NCCL between GPUs, and the ring between CPUs and for collective#2. For strategies of "
        "tf.distribute, use --cross_device_ops.",
        choices=COMMUNICATION_HINTS,
    )
    all_reduce_share_memory: bool = _aggregation(
        True,
        "CPU devices of one process pass tensors to each other by reference, and all-reduce "
        "algorithms omit unnecessary copies. If false, each device is treated as if it had "
        "separate memory, so that a CPU runs the same copies as GPUs.",
    )
    hierarchical_copy: bool = _algorithm(
        False,
        "Without --all_reduce_spec: add gradients by copies within each half of the devices first, "
        "then by copies between the halves.",
    )
    network_topology: str = _aggregation(
        "dgx1",
        "Topology of the GPUs for which hierarchical copies are arranged.",
        choices=("dgx1", "gcp_v100"),
    )
    gradient_repacking: int = _aggregation(
        0,
        "Before the reduction, join all gradients and divide them into this number of equal "
        f"packs, at most {MOST_PACKS}. With 0, gradients are not packed.",
        minimum=0,
    )
    gradient_bucket_bytes: int | None = _aggregation(
        None,
        "Before gradients are reduced, join consecutive gradients, starting with the last layer, "
        "into buckets of at most this many bytes. With 0, there are no buckets. The default is "
        f"{BUCKET_BYTES} with collective_all_reduce, unless another flag joins gradients, and 0 in "
        "all other cases.",
        minimum=0,
    )
    compact_gradient_transfer: bool = _aggregation(
        True,
        "With --precision=fp16 or bf16: also send gradients between devices in 16 bits.",
    )
    agg_small_grads_max_bytes: int = _aggregation(
        0,
        "Join gradients of at most this many bytes before they are reduced. With 0, they are not "
        "joined.",
        minimum=0,
    )
    agg_small_grads_max_group: int = _aggregation(
        10,
        "Maximum number of small gradients that are joined to one tensor.",
        minimum=1,
    )
    allreduce_merge_scope: int = _aggregation(
        1,
        "Number of consecutive gradients whose reductions have the same name scope in profiles. "
        "Each gradient is still reduced separately. To join gradients, use --gradient_repacking "
        "or --agg_small_grads_max_bytes.",
        minimum=1,
    )
    sparse_to_dense_grads: bool = _aggregation(
        False,
        "Convert sparse gradients to dense gradients before they are reduced. The update is the "
        "same with and without this flag.",
    )
    iters_per_step: int = flag(
        5,
        "For cnnbench allreduce only: number of reductions in one call, each of which uses "
        "the result of the previous one.",
        minimum=1,
    )
