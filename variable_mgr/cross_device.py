"""How strategies of tf.distribute reduce gradients: the values of `--cross_device_ops`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.base.job import Job
from cnnbench.errors import FlagError
from cnnbench.variable_mgr.all_reduce.context import is_gpu

CROSS_DEVICE_OPS = ("auto", "reduction_to_one_device", "hierarchical_copy", "nccl", "ring")
COLLECTIVE = ("auto", "ring")
"""Values of `CROSS_DEVICE_OPS` that are TensorFlow's collectives, which pack tensors by bytes."""
BETWEEN_WORKERS = ("auto", "ring", "nccl")
"""Values of `CROSS_DEVICE_OPS` that work between processes, where they pack tensors by bytes."""
IN_PACKS = ("hierarchical_copy", "nccl")
"""Values of `CROSS_DEVICE_OPS` that join tensors into a number of packs, within a process."""
_ON_GPUS = ("nccl",)


@dataclass(frozen=True, kw_only=True)
class CrossDeviceSpec:
    """How a strategy of tf.distribute reduces gradients between its devices.

    Attributes:
      ops: one of `CROSS_DEVICE_OPS`; "auto" is a collective operation: a ring on CPUs, NCCL on
        GPUs.
      pack_bytes: bytes of the tensors that a collective operation joins; 0 joins all.
      packs: number of packs of hierarchical copies and NCCL; 0 for no packing.
      shared_cards: whether several devices are parts of one GPU; "auto" is then a ring.
    """

    ops: str = "auto"
    pack_bytes: int = 0
    packs: int = 1
    shared_cards: bool = False

    def check_devices(self, devices: Sequence[str]) -> None:
        """Raises FlagError if the reduction fails on `devices` or computes wrong sums."""
        on_gpu = all(map(is_gpu, devices))
        refuse_devices(self.ops, len(devices), on_gpu=on_gpu, shared_cards=self.shared_cards)

    def resolved_ops(self, on_gpu: bool) -> str:
        """Returns the operation that runs, such as "nccl" or "ring" if `ops` is "auto"."""
        auto = "nccl" if on_gpu and not self.shared_cards else "ring"
        return auto if self.ops == "auto" else self.ops


def alternatives_to_auto(*, on_gpu: bool) -> tuple[str, ...]:
    """Values of `CROSS_DEVICE_OPS` with other operations than "auto", for GPUs or for CPUs."""
    same = ("auto", CrossDeviceSpec().resolved_ops(on_gpu))
    usable = (ops for ops in CROSS_DEVICE_OPS if on_gpu or ops not in _ON_GPUS)
    return tuple(ops for ops in usable if ops not in same)


def refuse_cpu_towers(job: Job) -> None:
    """Raises FlagError for several towers on a CPU: MultiWorkerMirroredStrategy uses only one."""
    if job.device == "cpu" and job.towers_per_worker > 1:
        raise FlagError(
            "num_gpus",
            job.towers_per_worker,
            "must be 1 on CPUs, because MultiWorkerMirroredStrategy uses one CPU per process; "
            "start more workers",
        )


def refuse_devices(ops: str, count: int, *, on_gpu: bool, shared_cards: bool = False) -> None:
    """Raises FlagError if the value `ops` of --cross_device_ops does not support the devices.

    `shared_cards` is whether several devices are parts of one GPU.
    """
    if ops in _ON_GPUS and not on_gpu:
        raise FlagError("cross_device_ops", ops, "needs GPUs; use ring on CPUs")
    if ops == "nccl" and shared_cards:
        reason = "NCCL refuses two devices on one card (--gpus_per_card); use ring"
        raise FlagError("cross_device_ops", ops, reason)
    if ops == "hierarchical_copy" and count > 1 and count % 2:
        # In TensorFlow 2.21, hierarchical copy adds 1, 10 and 100 on three devices to 11.
        reason = f"leaves out the last of {count} devices; use an even number of devices"
        raise FlagError("cross_device_ops", ops, reason)
