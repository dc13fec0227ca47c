"""The reduction of gradients that the flags of a run ask for; no TensorFlow."""

from __future__ import annotations

from cnnbench.base.jobs.job import Job
from cnnbench.errors import FlagError
from cnnbench.flags.groups.run import trains
from cnnbench.flags.groups.variable_update import BUCKET_BYTES
from cnnbench.flags.params import Params
from cnnbench.variable_mgr.all_reduce.context import ReduceContext, adding_cpus, groups_of
from cnnbench.variable_mgr.all_reduce.limits import check_spec
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, single
from cnnbench.variable_mgr.modes import Reduction
from cnnbench.variable_mgr.strategies.spec import CrossDeviceSpec


def reduces(params: Params) -> bool:
    """Whether gradients go through an all-reduce."""
    all_reduces = params.update_mode.reduction is Reduction.ALL_REDUCE
    return trains(params) and all_reduces and params.job.num_towers > 1


def running_all_reduce(params: Params) -> AllReduceSpec | None:
    """The all-reduce without levels that have nothing to reduce; None where nothing is reduced."""
    if not reduces(params):
        return None
    groups = groups_of(params.job.tower_devices, params.all_reduce_group_size)
    return all_reduce_of(params).running(groups)


def all_reduce_of(params: Params) -> AllReduceSpec:
    """The requested all-reduce, or the default of the mode."""
    if params.all_reduce_spec is not None:
        return params.all_reduce_spec
    if params.update_mode.all_reduce:
        return single(params.update_mode.all_reduce)
    return single("hierarchical_copy" if params.hierarchical_copy else "copy")


def bucket_bytes(params: Params) -> int:
    """Bytes of the buckets that gradients are joined into; 0 for none."""
    if params.gradient_bucket_bytes is not None:
        return params.gradient_bucket_bytes
    joined = params.gradient_repacking or params.agg_small_grads_max_bytes
    return BUCKET_BYTES if params.update_mode.all_reduce == "collective" and not joined else 0


def strategy_reduction(params: Params, *, on_gpu: bool) -> str | None:
    """The cross-device operation, or a manager's own reduction, where no all-reduce is used."""
    if not trains(params) or params.job.num_towers < 2:
        return None
    mode = params.update_mode
    if mode.reduction is Reduction.CROSS_DEVICE:
        return CrossDeviceSpec(ops=params.cross_device_ops).running(on_gpu)
    return (mode.algorithm or None) if mode.reduction is Reduction.OWN else None


def check_all_reduce(
    spec: AllReduceSpec,
    job: Job,
    device: str,
    *,
    network_topology: str,
    group_size: int,
    communication_hint: str = "auto",
) -> None:
    """Refuses an all-reduce that cannot work on the devices of a job; see `check_spec`.

    With "auto", refuses what works neither on "cpu" nor on "gpu". `group_size`: devices per group
    of two-level algorithms; 0: those of one process.
    """
    refusals = []
    for kind in ("cpu", "gpu") if device == "auto" else (device,):
        on_kind = job.on(kind)
        context = ReduceContext(
            devices=on_kind.tower_devices,
            cpu_devices=adding_cpus(on_kind.tower_devices, job.cpu_devices, job.cpu_device),
            network_topology=network_topology,
            own=on_kind.own_tower_devices if job.client_per_worker else None,
            communication_hint=communication_hint,
        )
        try:
            check_spec(spec, context, groups_of(context.devices, group_size))
        except FlagError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]
