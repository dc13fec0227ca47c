"""Where variables live and how gradients come together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cnnbench.errors import FlagError
from cnnbench.flags.declare import flag
from cnnbench.flags.shared import check_on_local_devices, local_groups
from cnnbench.variable_mgr.aggregation.spec import MOST_PACKS, AggregationSpec
from cnnbench.variable_mgr.all_reduce.spec import (
    AllReduceSpec,
    missing,
    parse_all_reduce_spec,
    single,
)

if TYPE_CHECKING:
    from cnnbench.flags.params import Params

ALL_REDUCING = ("replicated", "distributed_all_reduce")
"""The modes that keep a copy of every variable per device equal by an all-reduce."""


@dataclass(frozen=True, kw_only=True)
class VariableUpdateParams:
    """Where variables live and how gradients come together."""

    variable_update: str = flag(
        "parameter_server",
        "parameter_server keeps one copy of every variable, replicated a copy per device with "
        "reduced gradients, distributed_all_reduce the same with algorithms by size, independent a "
        "copy per device and no reduction at all.",
        choices=(
            "parameter_server",
            "replicated",
            "independent",
            "distributed_replicated",
            "distributed_all_reduce",
            "collective_all_reduce",
            "mirrored_strategy",
            "multi_worker_mirrored_strategy",
            "central_storage_strategy",
            "parameter_server_strategy",
        ),
    )
    local_parameter_device: str = flag(
        "gpu",
        "Where parameter_server keeps the variables, and where copy, the all-reduce of replicated "
        "without --all_reduce_spec, adds gradients: on the compute devices (gpu, whatever --device "
        "is) or on the host (cpu). No other algorithm heeds it.",
        choices=("cpu", "gpu"),
        lower=True,
    )
    gradient_reduction: str = flag(
        "mean",
        "How gradients of several devices become one, in every mode.",
        choices=("mean", "sum"),
    )
    bn_stats: str = flag(
        "first",
        "Moving moments of batch norm: from the first device, the mean of all devices, or "
        "moments synchronised within the step.",
        choices=("first", "mean", "sync"),
    )
    variable_consistency: str = flag(
        "strong",
        "relaxed applies the gradients of the step before, so that the all-reduce need not end "
        "within its step; the first step applies zeros.",
        choices=("strong", "relaxed"),
    )
    staged_vars: bool = flag(False, "Read parameter-server variables one step ahead.")
    all_reduce_spec: str | None = flag(
        None,
        "All-reduce algorithm of replicated and distributed_all_reduce, such as xring#2 or "
        "nccl/rechd; docs/all_reduce.md lists them. distributed_all_reduce also takes "
        "algorithms by size, as in pscpu:32K:xring, with limits in bytes of a gradient as sent. "
        "Without it, replicated copies to one device.",
    )
    all_reduce_group_size: int = flag(
        0,
        "Consecutive devices that form a group of a two-level algorithm; 0 for the devices of "
        "one process.",
        minimum=0,
    )
    all_reduce_share_memory: bool = flag(
        True,
        "CPU devices of one process hand each other tensors by reference, and all-reduce "
        "algorithms do not cut and send what need not move. Off, each is treated as having a "
        "memory of its own, to see on a CPU what an algorithm does between GPUs.",
    )
    hierarchical_copy: bool = flag(
        False,
        "Without --all_reduce_spec: copy within two halves of the devices first, then between "
        "the halves.",
    )
    network_topology: str = flag(
        "dgx1", "Wiring that hierarchical copies are laid out for.", choices=("dgx1", "gcp_v100")
    )
    gradient_repacking: int = flag(
        0,
        "Join all gradients and split them into so many equal packs before reducing them, at most "
        f"{MOST_PACKS}; 0 for no packing.",
        minimum=0,
    )
    compact_gradient_transfer: bool = flag(
        True,
        "With --precision=fp16 or bf16: send gradients between devices in 16 bits too.",
    )
    agg_small_grads_max_bytes: int = flag(
        0, "Join gradients of up to so many bytes before reducing them; 0 for none.", minimum=0
    )
    agg_small_grads_max_group: int = flag(10, "Most small gradients to join into one.", minimum=1)
    allreduce_merge_scope: int = flag(
        1,
        "Consecutive gradients whose reductions share a name scope in profiles. Each is still "
        "reduced by itself; --gradient_repacking and --agg_small_grads_max_bytes join them.",
        minimum=1,
    )
    sparse_to_dense_grads: bool = flag(
        False,
        "Turn sparse gradients into dense ones before they are reduced. The update is the same "
        "either way.",
    )
    iters_per_step: int = flag(
        5, "For cnnbench allreduce only: reductions chained in one call.", minimum=1
    )


def reduces(params: Params) -> bool:
    """Whether gradients go through an all-reduce."""
    trains = not (params.eval or params.forward_only)
    return trains and params.variable_update in ALL_REDUCING and params.num_gpus > 1


def running_all_reduce(params: Params) -> AllReduceSpec | None:
    """What reduces gradients, without levels that have nothing to reduce.

    Args:
      params: validated parameters.

    Returns:
      None where nothing is reduced.
    """
    if not reduces(params):
        return None
    asked = AggregationSpec(
        all_reduce=parse_all_reduce_spec(params.all_reduce_spec)
        if params.all_reduce_spec
        else None,
        hierarchical_copy=params.hierarchical_copy,
    ).algorithms
    return asked.running(local_groups(params.num_gpus, params.all_reduce_group_size))


def check(params: Params) -> None:
    """Checks the all-reduce spec and what goes with it.

    Raises:
      FlagError: a malformed spec, one that the mode or the devices cannot take, a
        topology that does not fit the devices, or too many packs.
    """
    mode, text = params.variable_update, params.all_reduce_spec
    if reduces(params) and params.gradient_repacking > MOST_PACKS:
        raise FlagError(
            "gradient_repacking", params.gradient_repacking, f"must be at most {MOST_PACKS} packs"
        )
    if mode == "distributed_all_reduce" and not text:
        raise missing(mode)
    if text is None:
        if reduces(params) and params.hierarchical_copy:
            _check_topology(params)
        return
    spec = parse_all_reduce_spec(text)
    if mode == "replicated" and len(spec.ranges) > 1:
        raise FlagError(
            "all_reduce_spec",
            text,
            "has algorithms by size, which --variable_update=distributed_all_reduce takes; "
            "replicated takes one algorithm",
        )
    if reduces(params):
        _check_devices(params, spec)


def _check_devices(params: Params, spec: AllReduceSpec) -> None:
    check_on_local_devices(
        spec,
        params.num_gpus,
        params.device,
        network_topology=params.network_topology,
        group_size=params.all_reduce_group_size,
    )


def _check_topology(params: Params) -> None:
    # Nobody has written a spec that an error could point into.
    try:
        _check_devices(params, single("hierarchical_copy"))
    except FlagError as error:
        reason = error.reason.partition(": ")[2]
        raise FlagError("network_topology", params.network_topology, reason) from error
