"""Flags for tf.distribute strategies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnnbench.flags.declare import RunPart, flag
from cnnbench.variable_mgr.modes import CROSS_DEVICE_OPS

_reduction = partial(flag, part=RunPart.CROSS_DEVICE | RunPart.TUNABLE)
_DISTRIBUTED = ("data_dir", "not eval: a strategy distributes input only for training batches")
_distribution = partial(flag, part=RunPart.DISTRIBUTION | RunPart.TUNABLE, only_with=_DISTRIBUTED)


@dataclass(frozen=True, kw_only=True)
class StrategyParams:
    """Flags for tf.distribute strategies."""

    cross_device_ops: str = flag(
        "auto",
        "How mirrored_strategy and multi_worker_mirrored_strategy reduce gradients. auto is a ring "
        "on CPUs and NCCL on GPUs. Between workers, only auto, ring and nccl are valid.",
        choices=CROSS_DEVICE_OPS,
        part=RunPart.ALGORITHM | RunPart.CROSS_DEVICE | RunPart.TUNABLE,
    )
    bytes_per_pack: int = _reduction(
        0,
        "Size in bytes of the packs into which gradients are joined with --cross_device_ops=ring "
        "or auto and, between workers, also with nccl. With 0, all gradients are one pack.",
        minimum=0,
    )
    num_packs: int = _reduction(
        1,
        "Number of packs into which mirrored_strategy joins all gradients with "
        "--cross_device_ops=hierarchical_copy or nccl. With 0, gradients are not packed.",
        minimum=0,
        only_with="cross_device_ops=hierarchical_copy,cross_device_ops=nccl",
    )
    input_distribution: str = flag(
        "towers",
        "Who copies training batches of --data_dir to the devices: cnnbench, as in all other "
        "modes, or the strategy.",
        choices=("towers", "strategy"),
        part=RunPart.TUNABLE,
        only_with=_DISTRIBUTED,
    )
    input_sharding: str = _distribution(
        "auto",
        "With --input_distribution=strategy: TensorFlow splits global batches (auto), or the "
        "pipeline creates the batches of the devices (manual).",
        choices=("auto", "manual"),
    )
    auto_shard_policy: str = _distribution(
        "auto",
        "With --input_sharding=auto: how the data is divided among workers: by whole files (file)"
        " or by parts of every global batch (data or auto). With off, every worker reads the same"
        " data. A single worker always reads all data.",
        choices=("auto", "file", "data", "off", "hint"),
    )
    input_replication: str = _distribution(
        "per_worker",
        "With --input_sharding=manual: one pipeline for all devices, or one pipeline for each "
        "device, which reads all data and keeps the batches of the device.",
        choices=("per_worker", "per_replica"),
    )
    prefetch_on_device: bool | None = _distribution(
        None,
        "With --input_distribution=strategy: batches are kept ready on the devices, not on the "
        "host. This is the default with --input_replication=per_worker.",
    )
