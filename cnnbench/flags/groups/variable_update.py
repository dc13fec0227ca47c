"""Flags for variable placement and gradient aggregation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cnnbench.base.rules import (
    FlagRule,
    R,
    always,
    no_effect,
    no_effect_with,
    no_effect_without,
    refuse,
    refuse_any_value,
)
from cnnbench.base.text import enumeration
from cnnbench.errors import FlagError
from cnnbench.flags.declare import OrText, RunPart, flag, names_of_flags, specs_of
from cnnbench.flags.facts import (
    FORWARD,
    RunFacts,
    has_one_tower,
    needs_mode,
    no_effect_forward,
    no_effect_in_modes,
    no_effect_input_only,
)
from cnnbench.variable_mgr.all_reduce.check import check_all_reduce
from cnnbench.variable_mgr.all_reduce.context import COMMUNICATION_HINTS, group_devices
from cnnbench.variable_mgr.all_reduce.registry import names, readers_of
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, parse_all_reduce_spec
from cnnbench.variable_mgr.modes import (
    BUCKET_BYTES,
    BUILT_IN,
    DEFAULT,
    Processes,
    Reduction,
    built_in_names,
)
from cnnbench.variable_mgr.packing import MOST_PACKS
from cnnbench.variable_mgr.registry import NAMES
from cnnbench.variable_mgr.spec import CACHING_POLICIES, PS_STRATEGIES

_MODES = ". ".join(f"{mode.name}: {mode.about}" for mode in BUILT_IN if mode.about)


_algorithm = partial(flag, part=RunPart.ALGORITHM | RunPart.AGGREGATION)
_aggregation = partial(flag, part=RunPart.AGGREGATION)
_update = partial(flag, part=RunPart.UPDATE)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class VariableUpdateParams:
    """Flags for variable placement and gradient aggregation."""

    variable_update: str = flag(
        DEFAULT,
        f"Placement of variables and aggregation of gradients. {_MODES}. The other modes are the "
        "strategies of tf.distribute.",
        choices=NAMES,
        checked_late=True,
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
        "nccl/rechd; cnnbench docs all_reduce lists them. distributed_all_reduce also takes "
        "algorithms by size, as in pscpu:32K:xring. The limit (32K) is the size of a gradient in "
        "bytes as it is sent. If not given, replicated copies all gradients to one device.",
        parser=parse_all_reduce_spec,
        known=names,
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


_AGGREGATING = names_of_flags(specs_of(VariableUpdateParams), RunPart.AGGREGATION)
_UPDATING = names_of_flags(specs_of(VariableUpdateParams), RunPart.UPDATE | RunPart.AGGREGATION)
_ALL_REDUCING = [mode.name for mode in BUILT_IN if mode.reduction is Reduction.ALL_REDUCE]


def _check_all_reduce(p: RunFacts) -> None:
    """Raises FlagError if the all-reduce of a run cannot work on its devices."""
    check_all_reduce(
        p.exchange.all_reduce,
        p.place.job,
        p.params.device,
        network_topology=p.params.network_topology,
        group_size=p.params.all_reduce_group_size,
        communication_hint=p.params.communication_hint,
        shared_cards=p.params.gpus_per_card > 1,
    )


def _all_reduce_obstacle(p: RunFacts) -> str:
    """Returns why the mode's default all-reduce cannot work, or "" if it can."""
    try:
        if p.exchange.reduces:
            _check_all_reduce(p)
    except FlagError as error:
        return error.reason.partition(": ")[2]
    return ""


def _uses_all_reduce(p: RunFacts) -> bool:
    return p.place.mode.reduction is Reduction.ALL_REDUCE


def _running_names(p: RunFacts) -> frozenset[str]:
    """Names of the all-reduce algorithms that the run uses."""
    return frozenset() if p.exchange.running is None else p.exchange.running.algorithm_names


def _count_groups(p: RunFacts) -> int:
    return len(group_devices(p.place.job.tower_devices, p.params.all_reduce_group_size))


def no_effect_unread(flag: str, running: Callable[[R], frozenset[str] | None]) -> FlagRule[R]:
    """Makes a rule for a flag that only some all-reduce algorithms read, as they declare.

    `running` returns the names of the algorithms in use; None if all algorithms are in use.
    """

    def is_unread(p: R) -> bool:
        used = running(p)
        return used is not None and used.isdisjoint(readers_of(flag))

    def reason(p: R) -> str:
        return f"without {enumeration(sorted(readers_of(flag)))} in --all_reduce_spec"

    return no_effect(flag, is_unread, reason)


def unused_all_reduce_rules(
    running: Callable[[R], frozenset[str] | None],
    has_two_levels: Callable[[R], bool],
    groups: Callable[[R], Sequence[int]],
    are_single: Callable[[R], bool],
) -> tuple[FlagRule[R], ...]:
    """Rules for all-reduce flags that have no effect, in a run or in ``cnnbench allreduce``.

    Args:
      running: returns the names of the algorithms in use; None if all algorithms are in use.
      has_two_levels: whether --all_reduce_spec contains an algorithm with two levels.
      groups: returns the number of device groups, for each measured number of devices.
      are_single: whether every group consists of one device.
    """

    return (
        no_effect(
            "all_reduce_share_memory",
            lambda p: p.params.device == "gpu",
            "with --device=gpu: GPUs never share memory",
        ),
        no_effect(
            "all_reduce_group_size",
            lambda p: not has_two_levels(p),
            "without a two-level algorithm in --all_reduce_spec",
        ),
        no_effect(
            "all_reduce_group_size",
            lambda p: max(groups(p)) == 1,
            "with so few devices, because all of them are one group",
        ),
        no_effect(
            "all_reduce_spec",
            lambda p: has_two_levels(p) and 1 in groups(p),
            "where all devices are one group: use a group size of less than --num_gpus",
            says="has no second level",
        ),
        no_effect(
            "all_reduce_spec",
            lambda p: has_two_levels(p) and are_single(p),
            "where every group contains one device",
            says="has no first level",
        ),
        *(
            no_effect_unread(flag, running)
            for flag in ("all_reduce_share_memory", "communication_hint", "network_topology")
        ),
    )


CONFLICTS: tuple[FlagRule[RunFacts], ...] = (
    refuse(
        "gradient_bucket_bytes",
        lambda p: p.params.gradient_repacking and p.params.gradient_bucket_bytes,
        "cannot be used with --gradient_repacking; give one of the two",
    ),
    refuse(
        "bn_stats",
        lambda p: p.params.xla_compile and p.params.bn_stats == "sync",
        "cannot be used with --xla_compile: a tower that is compiled separately cannot wait for "
        "the other towers",
    ),
)

RULES: tuple[FlagRule[RunFacts], ...] = (
    refuse(
        "gradient_repacking",
        lambda p: p.exchange.reduces and p.params.gradient_repacking > MOST_PACKS,
        f"must be at most {MOST_PACKS} packs",
    ),
    needs_mode("staged_vars", lambda mode: mode.staged),
    refuse(
        "all_reduce_spec",
        lambda p: (
            _uses_all_reduce(p)
            and not p.place.mode.by_size
            and len(p.exchange.all_reduce.ranges) > 1
        ),
        lambda p: (
            "selects algorithms by tensor size, which only --variable_update="
            + built_in_names(lambda mode: mode.by_size and "all_reduce_spec" in mode.needs)
            + f" supports; {p.place.mode.name} uses one algorithm for all sizes"
        ),
    ),
    refuse("all_reduce_spec", lambda p: p.exchange.reduces, _check_all_reduce),
    refuse_any_value(
        "communication_hint",
        lambda p: p.exchange.reduces and p.exchange.all_reduce.reads("communication_hint"),
        _all_reduce_obstacle,
    ),
    refuse_any_value("network_topology", always, _all_reduce_obstacle),
    # Notices.
    no_effect_input_only(("variable_update", "local_parameter_device", *_UPDATING)),
    no_effect_forward(_UPDATING),
    no_effect(
        "local_parameter_device",
        lambda p: p.work.only_forward and _uses_all_reduce(p),
        f"{FORWARD}: every device has its own variables, and nothing is reduced",
    ),
    no_effect_in_modes(
        ("gradient_reduction", "local_parameter_device", "sparse_to_dense_grads"),
        lambda mode: mode.reduction is Reduction.NONE,
    ),
    no_effect(
        [name for name in _AGGREGATING if name != "sparse_to_dense_grads"],
        lambda p: not _uses_all_reduce(p),
        f"without --variable_update={enumeration(_ALL_REDUCING)}",
    ),
    no_effect_in_modes(
        "local_parameter_device",
        lambda mode: mode.strategy and mode.processes is not Processes.COORDINATOR,
        ": TensorFlow decides",
    ),
    no_effect(
        [name for name in _UPDATING if name not in ("variable_consistency", "staged_vars")],
        has_one_tower,
        "with --num_gpus=1: there is nothing to reduce",
    ),
    no_effect_in_modes(
        ("ps_strategy", "variable_caching", "local_parameter_device"),
        lambda mode: mode.processes is Processes.COORDINATOR,
        ": variables are placed on the ps tasks round-robin",
    ),
    no_effect_unread(
        "local_parameter_device", lambda p: _running_names(p) if _uses_all_reduce(p) else None
    ),
    no_effect_without(("ps_strategy", "variable_caching"), "ps_hosts"),
    no_effect_with("hierarchical_copy", "all_reduce_spec", ""),
    no_effect(
        "compact_gradient_transfer",
        lambda p: p.params.precision == "fp32",
        "with --precision=fp32",
    ),
    no_effect(
        "agg_small_grads_max_bytes",
        lambda p: p.params.agg_small_grads_max_group == 1,
        "with --agg_small_grads_max_group=1",
    ),
    no_effect_without("agg_small_grads_max_group", "agg_small_grads_max_bytes"),
    no_effect(
        "sparse_to_dense_grads",
        lambda p: p.params.variable_consistency == "relaxed",
        "with --variable_consistency=relaxed: all gradients are dense",
    ),
    *unused_all_reduce_rules(
        _running_names,
        lambda p: p.params.all_reduce_spec is not None and p.params.all_reduce_spec.has_two_levels,
        lambda p: (_count_groups(p),),
        lambda p: _count_groups(p) == p.place.job.num_towers,
    ),
    no_effect(
        "allreduce_merge_scope",
        lambda p: p.params.allreduce_merge_scope > 1,
        "in profiles; to join gradients, use --gradient_repacking",
        says="changes only the names of operations",
    ),
    no_effect("iters_per_step", always, "in a run: it is for cnnbench allreduce"),
)
