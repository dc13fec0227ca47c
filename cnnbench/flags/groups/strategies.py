"""Flags for tf.distribute strategies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnnbench.flags.declare import Affects, RunPart, flag
from cnnbench.variable_mgr.modes import CROSS_DEVICE_OPS

_tunable = partial(flag, affects=Affects.TIME)


@dataclass(frozen=True, kw_only=True)
class StrategyParams:
    """Flags for tf.distribute strategies."""

    cross_device_ops: str = _tunable(
        "auto",
        "How mirrored_strategy and multi_worker_mirrored_strategy reduce gradients. auto is a ring "
        "on CPUs and NCCL on GPUs. Between workers, only auto, ring and nccl are valid.",
        choices=CROSS_DEVICE_OPS,
        part=RunPart.ALGORITHM,
    )
    bytes_per_pack: int = _tunable(
        0,
        "Size in bytes of the packs into which gradients are joined with --cross_device_ops=ring "
        "or auto and, between workers, also with nccl. With 0, all gradients are one pack.",
        minimum=0,
    )
    num_packs: int = _tunable(
        1,
        "Number of packs into which mirrored_strategy joins all gradients with "
        "--cross_device_ops=hierarchical_copy or nccl. With 0, gradients are not packed.",
        minimum=0,
    )
    input_distribution: str = _tunable(
        "towers",
        "Who copies training batches of --data_dir to the devices: cnnbench, as in all other "
        "modes, or the strategy.",
        choices=("towers", "strategy"),
    )
    input_sharding: str = _tunable(
        "auto",
        "With --input_distribution=strategy: TensorFlow splits global batches (auto), or the "
        "pipeline creates the batches of the devices (manual).",
        choices=("auto", "manual"),
    )
    auto_shard_policy: str = _tunable(
        "auto",
        "With --input_sharding=auto: how the data is divided among workers: by whole files (file)"
        " or by parts of every global batch (data or auto). With off, every worker reads the same"
        " data. A single worker always reads all data.",
        choices=("auto", "file", "data", "off", "hint"),
    )
    input_replication: str = _tunable(
        "per_worker",
        "With --input_sharding=manual: one pipeline for all devices, or one pipeline for each "
        "device, which reads all data and keeps the batches of the device.",
        choices=("per_worker", "per_replica"),
    )
    prefetch_on_device: bool | None = _tunable(
        None,
        "With --input_distribution=strategy: batches are kept ready on the devices, not on the "
        "host. This is the default with --input_replication=per_worker.",
    )
