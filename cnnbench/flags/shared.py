"""The devices of a run before TensorFlow is asked for them: those of one process."""

from __future__ import annotations

from cnnbench.errors import FlagError
from cnnbench.runtime.devices import DeploymentConfig
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.groups import groups_of
from cnnbench.variable_mgr.all_reduce.limits import check_spec
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec


def local_groups(num_gpus: int, group_size: int) -> tuple[tuple[str, ...], ...]:
    """The groups of devices of two-level algorithms; of CPUs, but GPUs have the same."""
    return groups_of(_context(num_gpus, "cpu").devices, group_size)


def check_on_local_devices(
    spec: AllReduceSpec, num_gpus: int, device: str, *, network_topology: str, group_size: int
) -> None:
    """Refuses a spec that cannot work on the devices that a run will have.

    Args:
      spec: any names.
      num_gpus: how many devices.
      device: "cpu", "gpu", or "auto": then only what can work on neither is refused.
      network_topology: of hierarchical copies.
      group_size: devices in a group of two-level algorithms, 0 for all.

    Raises:
      FlagError: points into the spec.
    """
    refusals = []
    for kind in ("cpu", "gpu") if device == "auto" else (device,):
        context = _context(num_gpus, kind, network_topology)
        try:
            check_spec(spec, context, groups_of(context.devices, group_size))
        except FlagError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def _context(num_gpus: int, kind: str, network_topology: str = "dgx1") -> ReduceContext:
    deployment = DeploymentConfig(num_towers=num_gpus, device=kind)
    return ReduceContext.of_towers(
        [deployment.tower_device(index) for index in range(num_gpus)],
        deployment.cpu_device(),
        network_topology=network_topology,
    )
