"""Where variables live and how gradients come together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cnnbench.errors import FlagError
from cnnbench.params.declaration import flag
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

if TYPE_CHECKING:
    from cnnbench.params.params import Params

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
        "Where parameter_server keeps the variables and replicated reduces the gradients: "
        "on the compute devices (gpu, whatever --device is) or on the host (cpu).",
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
        "Join all gradients and split them into so many equal packs before reducing them; 0 for "
        "no packing.",
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
        1, "Gradients that share one name scope, which lets TensorFlow merge them.", minimum=1
    )
    sparse_to_dense_grads: bool = flag(
        False,
        "Turn sparse gradients into dense ones before they are reduced. The update is the same "
        "either way.",
    )
    iters_per_step: int = flag(
        5, "For cnnbench allreduce only: reductions chained in one call.", minimum=1
    )


def check(params: Params) -> None:
    """Checks the all-reduce spec and what goes with it.

    Raises:
      FlagError: a malformed spec, one that the mode cannot take, or a topology that
        does not fit the devices.
    """
    mode, text = params.variable_update, params.all_reduce_spec
    if mode == "distributed_all_reduce" and not text:
        raise FlagError(
            "variable_update", mode, "needs --all_reduce_spec, such as --all_reduce_spec=xring"
        )
    if (
        params.network_topology == "gcp_v100"
        and params.hierarchical_copy
        and params.num_gpus != 8
        and mode in ALL_REDUCING
    ):
        raise FlagError(
            "network_topology", "gcp_v100", f"is for 8 devices, not --num_gpus={params.num_gpus}"
        )
    if text is None:
        return
    spec = parse_all_reduce_spec(text)
    if mode == "replicated" and len(spec.ranges) > 1:
        raise FlagError(
            "all_reduce_spec",
            text,
            "has algorithms by size, which --variable_update=distributed_all_reduce takes; "
            "replicated takes one algorithm",
        )
    for index, part in enumerate(spec.ranges):
        if part.algorithm.shards > params.num_gpus and mode in ALL_REDUCING:
            raise spec.error(index, f"has more shards than --num_gpus={params.num_gpus}")
