"""Devices and parameters that algorithms refuse: one table, read before TensorFlow is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from cnnbench.variable_mgr.all_reduce.context import (
    ReduceContext,
    groups_of,
    is_gpu,
    leaders_of,
    process_of,
    turns_of,
)
from cnnbench.variable_mgr.all_reduce.spec import AlgorithmSpec, AllReduceSpec

# Raises ValueError with a reason for the user.
Limit: TypeAlias = "Callable[[ReduceContext], None]"

TOPOLOGIES = ("dgx1", "gcp_v100")


def check(name: str, context: ReduceContext) -> None:
    """Refuses a context that the algorithm `name` cannot work with."""
    if name in LIMITS:
        LIMITS[name](context)


def check_spec(
    spec: AllReduceSpec, context: ReduceContext, groups: Sequence[Sequence[str]]
) -> None:
    """Raises FlagError, which points into the spec, for algorithms that refuse the devices."""
    if len(context.devices) < 2:
        return
    for index, part in enumerate(spec.ranges):
        try:
            _check_algorithm(part.algorithm, context, groups)
        except ValueError as error:
            raise spec.error(index, str(error)) from error


def _check_gather(devices: Sequence[str], shards: int) -> None:
    """Refuses more shards than there are devices to gather them on."""
    if shards > len(devices):
        raise ValueError(
            f"{shards} shards need as many different devices to gather on, and there are "
            f"only {len(devices)}"
        )


def _check_algorithm(
    algorithm: AlgorithmSpec, context: ReduceContext, groups: Sequence[Sequence[str]]
) -> None:
    *first, between = algorithm.levels
    if not context.complete and between != "collective":
        raise ValueError(
            f"{between} needs the values of all processes in one; between workers that each "
            "run a step of their own works collective, alone or as in copy/collective"
        )
    if not first:
        check(between, context.within(context.devices, algorithm.shards))
        return
    if between == "nccl":
        raise ValueError("nccl joins the GPUs of one process; it can be the first level only")
    if algorithm.shards > len(groups):
        raise ValueError(
            f"{algorithm.shards} shards between {len(groups)} group(s) of devices; there can be at "
            "most as many shards as groups"
        )
    for group in groups:
        if len(group) > 1:
            check(first[0], context.part(group))
    if len(groups) > 1:
        for turn in range(turns_of(groups)):
            check(between, context.part(leaders_of(groups, turn), algorithm.shards))


def _no_shards(name: str) -> Limit:
    def limit(context: ReduceContext) -> None:
        if context.shards != 1:
            raise ValueError(f"{name} takes no shards")

    return limit


def _one_card(context: ReduceContext, instead: str) -> None:
    if context.shared_cards:
        raise ValueError(f"NCCL refuses two devices on one card (--gpus_per_card); use {instead}")


def _collective(context: ReduceContext) -> None:
    if context.shards > 2:
        raise ValueError(f"collective has one or two rings, and not {context.shards}")
    cpus = [device for device in context.devices if not is_gpu(device)]
    if 0 < len(cpus) < len(context.devices):
        raise ValueError(f"collective joins devices of one kind, and {cpus[0]} is not a GPU")
    if context.communication_hint == "nccl" and cpus:
        raise ValueError(f"NCCL needs GPUs, and {cpus[0]} is none; use ring")
    if context.communication_hint == "nccl":
        _one_card(context, "--communication_hint=ring")
    if context.communication_hint == "nccl" and context.shards > 1:
        raise ValueError("NCCL has no shards; leave them out, or use ring")


def _hierarchical_copy(context: ReduceContext) -> None:
    _no_shards("hierarchical_copy")(context)
    topology, count = context.network_topology, len(context.devices)
    if topology not in TOPOLOGIES:
        raise ValueError(f"unknown topology {topology!r}; must be one of {', '.join(TOPOLOGIES)}")
    if topology == "gcp_v100" and count != 8:
        raise ValueError(f"gcp_v100 is a topology of exactly 8 devices, and there are {count}")


def _nccl(context: ReduceContext) -> None:
    _no_shards("nccl")(context)
    _one_card(context, "xring")
    for device in context.devices:
        if not is_gpu(device):
            raise ValueError(f"nccl sums on GPUs only, and {device} is none")
    processes = sorted(set(map(process_of, context.devices)))
    if len(processes) > 1:
        raise ValueError(
            f"nccl joins the GPUs of one process, and these are in {len(processes)}: "
            f"{', '.join(processes)}; use two levels, such as nccl/xring"
        )


def _xring(context: ReduceContext) -> None:
    fewest = min(map(len, groups_of(context.devices)))
    if context.shards > fewest:
        raise ValueError(
            f"{context.shards} rings need as many devices in each process, and there are "
            f"only {fewest}"
        )


LIMITS: Mapping[str, Limit] = {
    "collective": _collective,
    "copy": _no_shards("copy"),
    "hierarchical_copy": _hierarchical_copy,
    "nccl": _nccl,
    "pscpu": lambda context: _check_gather(context.cpu_devices, context.shards),
    "psgpu": lambda context: _check_gather(context.devices, context.shards),
    "rechd": _no_shards("rechd"),
    "xring": _xring,
}
"""Checks of a context by name of the algorithm."""
