"""Reduction of a MirroredStrategy: plain data, without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.base.jobs.job import Job
from cnnbench.errors import FlagError
from cnnbench.variable_mgr.all_reduce.context import is_gpu

CROSS_DEVICE_OPS = ("auto", "reduction_to_one_device", "hierarchical_copy", "nccl", "ring")
COLLECTIVE = ("auto", "ring")
"""Values of `CROSS_DEVICE_OPS` that are collective operations of TensorFlow, packed by bytes."""
BETWEEN_WORKERS = ("auto", "ring", "nccl")
"""Values that work between processes, where all of them pack by bytes."""
PACKED = ("hierarchical_copy", "nccl")
"""Values that join all tensors and cut them into packs."""


@dataclass(frozen=True, kw_only=True)
class CrossDeviceSpec:
    """Cross-device operations of a strategy.

    Attributes:
      ops: one of `CROSS_DEVICE_OPS`; "auto" is a collective operation: a ring on CPUs, NCCL on
        GPUs.
      bytes_per_pack: bytes of the tensors that a collective operation joins; 0 joins all.
      num_packs: number of packs of hierarchical copies and NCCL; 0 for no packing.
      shared_cards: whether several devices are parts of one GPU, between which "auto" is a ring.
    """

    ops: str = "auto"
    bytes_per_pack: int = 0
    num_packs: int = 1
    shared_cards: bool = False

    def check(self, devices: Sequence[str]) -> None:
        """Refuses devices on which the operations fail or reduce wrongly."""
        on_gpu = all(map(is_gpu, devices))
        refuse_devices(self.ops, len(devices), on_gpu=on_gpu, shared_cards=self.shared_cards)

    def running(self, on_gpu: bool) -> str:
        """The operation in use, as records name it."""
        auto = "nccl" if on_gpu and not self.shared_cards else "ring"
        return auto if self.ops == "auto" else self.ops


def refuse_towers(job: Job) -> None:
    """Refuses several towers on a CPU, of which the strategy uses one per process."""
    if job.device == "cpu" and job.towers_per_worker > 1:
        raise FlagError(
            "num_gpus",
            job.towers_per_worker,
            "must be 1 on CPUs, of which MultiWorkerMirroredStrategy takes one per process; "
            "start more workers",
        )


def refuse_devices(ops: str, count: int, *, on_gpu: bool, shared_cards: bool = False) -> None:
    """Refuses a number or kind of devices; with `shared_cards` several are parts of one GPU."""
    if ops == "nccl" and not on_gpu:
        raise FlagError("cross_device_ops", ops, "needs GPUs; use ring on CPUs")
    if ops == "nccl" and shared_cards:
        reason = "NCCL refuses two devices on one card (--gpus_per_card); use ring"
        raise FlagError("cross_device_ops", ops, reason)
    if ops == "hierarchical_copy" and count > 1 and count % 2:
        # Seen in TensorFlow 2.21: 1, 10 and 100 on three devices make 11.
        raise FlagError(
            "cross_device_ops",
            ops,
            f"leaves out the last of {count} devices; it needs an even number",
        )
