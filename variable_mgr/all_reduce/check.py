"""Checks, without importing TensorFlow, whether algorithms support devices and parameters."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.job import Job
from cnnbench.errors import FlagError
from cnnbench.variable_mgr.all_reduce.context import (
    ReduceContext,
    cpus_for_additions,
    group_devices,
    leaders_by_rotation,
)
from cnnbench.variable_mgr.all_reduce.registry import declarations, find
from cnnbench.variable_mgr.all_reduce.spec import AlgorithmSpec, AllReduceSpec


def check_context(name: str, context: ReduceContext) -> None:
    """Raises ValueError if the algorithm `name` does not support the devices or parameters.

    A name that no algorithm has is accepted: `AllReduceSpec.check_algorithm_names` refuses it.
    """
    declared = find(name)
    if declared is not None:
        (declared.check or declared.factory)(context)


def check_spec(
    spec: AllReduceSpec, context: ReduceContext, groups: Sequence[Sequence[str]]
) -> None:
    """Raises FlagError if an algorithm of the spec does not support the devices.

    The message points to a character in the spec.
    """
    if len(context.devices) < 2:
        return
    for index, part in enumerate(spec.ranges):
        try:
            _check_algorithm(part.algorithm, context, groups)
        except ValueError as error:
            raise spec.error(index, str(error)) from error


def check_all_reduce(
    spec: AllReduceSpec,
    job: Job,
    device: str,
    *,
    network_topology: str,
    group_size: int,
    communication_hint: str = "auto",
    shared_cards: bool = False,
) -> None:
    """Raises FlagError if an all-reduce cannot work on the devices of a job (see `check_spec`).

    With device "auto", an all-reduce is refused if it works neither on CPUs nor on GPUs.
    `group_size` is the number of devices per group of two-level algorithms; with 0, a group
    contains the devices of one process.
    """
    refusals = []
    for kind in ("cpu", "gpu") if device == "auto" else (device,):
        on_kind = job.with_devices(kind)
        context = ReduceContext(
            devices=on_kind.tower_devices,
            cpu_devices=cpus_for_additions(on_kind.tower_devices, job.cpu_devices, job.cpu_device),
            network_topology=network_topology,
            own=on_kind.own_tower_devices if job.client_per_worker else None,
            communication_hint=communication_hint,
            shared_cards=shared_cards,
        )
        try:
            check_spec(spec, context, group_devices(context.devices, group_size))
        except FlagError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def _check_algorithm(
    algorithm: AlgorithmSpec, context: ReduceContext, groups: Sequence[Sequence[str]]
) -> None:
    *first, between = algorithm.levels
    declared = find(between)
    if declared is None:
        return
    if not context.all_devices_are_own and not declared.across_steps:
        able = [name for name, other in declarations().items() if other.across_steps]
        raise ValueError(
            f"{between} needs the values of all processes in one process; if each worker runs its "
            f"own step, use {' or '.join(able)}, alone or as in copy/{able[0]}"
        )
    if not first:
        check_context(between, context.with_devices(context.devices, algorithm.shards))
        return
    if declared.within_process:
        raise ValueError(f"{between} reduces within one process, so it can only be the first level")
    if algorithm.shards > len(groups):
        raise ValueError(
            f"{algorithm.shards} shards between {len(groups)} group(s) of devices; there can be at "
            "most as many shards as groups"
        )
    for group in groups:
        if len(group) > 1:
            check_context(first[0], context.for_members(group))
    if len(groups) > 1:
        for leaders in leaders_by_rotation(groups):
            check_context(between, context.for_members(leaders, algorithm.shards))
