"""Flags for tf.distribute strategies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cnnbench.base.rules import (
    FlagRule,
    always,
    no_effect,
    no_effect_with,
    no_effect_without,
    refuse,
    refuse_any_value,
)
from cnnbench.flags.declare import RunPart, flag, specs_of
from cnnbench.flags.facts import (
    RunFacts,
    has_one_tower,
    needs_mode,
    no_effect_forward,
    no_effect_input_only,
)
from cnnbench.variable_mgr.distribute import (
    BETWEEN_WORKERS,
    COLLECTIVE,
    CROSS_DEVICE_OPS,
    IN_PACKS,
    refuse_cpu_towers,
    refuse_devices,
)
from cnnbench.variable_mgr.modes import Reduction


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StrategyParams:
    """Flags for tf.distribute strategies."""

    cross_device_ops: str = flag(
        "auto",
        "How mirrored_strategy and multi_worker_mirrored_strategy reduce gradients. auto is a ring "
        "on CPUs and NCCL on GPUs. Between workers, only auto, ring and nccl are valid.",
        choices=CROSS_DEVICE_OPS,
        part=RunPart.ALGORITHM,
    )
    bytes_per_pack: int = flag(
        0,
        "Size in bytes of the packs into which gradients are joined with --cross_device_ops=ring "
        "or auto and, between workers, also with nccl. With 0, all gradients are one pack.",
        minimum=0,
    )
    num_packs: int = flag(
        1,
        "Number of packs into which mirrored_strategy joins all gradients with "
        "--cross_device_ops=hierarchical_copy or nccl. With 0, gradients are not packed.",
        minimum=0,
    )
    input_distribution: str = flag(
        "towers",
        "Who copies training batches of --data_dir to the devices: cnnbench, as in all other "
        "modes, or the strategy.",
        choices=("towers", "strategy"),
    )
    input_sharding: str = flag(
        "auto",
        "With --input_distribution=strategy: TensorFlow splits global batches (auto), or the "
        "pipeline creates the batches of the devices (manual).",
        choices=("auto", "manual"),
    )
    auto_shard_policy: str = flag(
        "auto",
        "With --input_sharding=auto: how the data is divided among workers: by whole files (file)"
        " or by parts of every global batch (data or auto). With off, every worker reads the same"
        " data. A single worker always reads all data.",
        choices=("auto", "file", "data", "off", "hint"),
    )
    input_replication: str = flag(
        "per_worker",
        "With --input_sharding=manual: one pipeline for all devices, or one pipeline for each "
        "device, which reads all data and keeps the batches of the device.",
        choices=("per_worker", "per_replica"),
    )
    prefetch_on_device: bool | None = flag(
        None,
        "With --input_distribution=strategy: batches are kept ready on the devices, not on the "
        "host. This is the default with --input_replication=per_worker.",
    )


_REDUCING = ("cross_device_ops", "bytes_per_pack", "num_packs")
_DISTRIBUTING = tuple(spec.name for spec in specs_of(StrategyParams) if spec.name not in _REDUCING)


def _indices_unsorted(p: RunFacts) -> bool:
    numbers = [int(index) for index in re.findall("[0-9]+", p.params.gpu_indices)]
    return numbers != sorted(numbers)


CONFLICTS: tuple[FlagRule[RunFacts], ...] = (
    refuse(
        "input_distribution",
        lambda p: p.params.input_only and p.params.input_distribution == "strategy",
        "cannot be used with --input_only, which creates no strategy",
    ),
    refuse(
        "auto_shard_policy",
        lambda p: p.params.auto_shard_policy == "hint",
        "needs a SHARD_HINT in the input pipeline, and cnnbench's pipeline has none; use "
        "--auto_shard_policy=data",
    ),
    refuse(
        "input_replication",
        lambda p: p.params.input_sharding == "auto",
        "needs --input_sharding=manual",
    ),
    refuse_any_value(
        "prefetch_on_device",
        lambda p: p.params.input_replication == "per_replica" and p.params.prefetch_on_device,
        "cannot be used with --input_replication=per_replica",
    ),
)

RULES: tuple[FlagRule[RunFacts], ...] = (
    needs_mode(_REDUCING[:2], lambda mode: mode.reduction is Reduction.CROSS_DEVICE),
    refuse(
        "num_gpus",
        lambda p: p.place.mode.uses_worker_strategy and p.params.device == "cpu",
        lambda p: refuse_cpu_towers(p.place.job),
    ),
    refuse(
        "cross_device_ops",
        lambda p: (
            p.place.mode.uses_worker_strategy and p.params.cross_device_ops not in BETWEEN_WORKERS
        ),
        lambda p: (
            f"works in one process only; with --variable_update={p.place.mode.name} use one of "
            f"{', '.join(BETWEEN_WORKERS)}"
        ),
    ),
    refuse(
        "num_packs",
        lambda p: p.place.mode.uses_worker_strategy,
        lambda p: f"does not work with --variable_update={p.place.mode.name}; use --bytes_per_pack",
    ),
    needs_mode("num_packs", lambda mode: mode.uses_cross_device_ops),
    refuse(
        "gpu_indices",
        lambda p: p.place.mode.uses_worker_strategy and _indices_unsorted(p),
        lambda p: (
            f"must ascend: --variable_update={p.place.mode.name} uses GPUs in the order of their "
            "numbers"
        ),
    ),
    refuse(
        "cross_device_ops",
        always,
        lambda p: refuse_devices(
            p.params.cross_device_ops,
            p.params.num_gpus,
            on_gpu=p.params.device != "cpu",
            shared_cards=p.params.gpus_per_card > 1,
        ),
    ),
    refuse(
        "input_distribution",
        lambda p: not p.place.mode.strategy,
        lambda p: (
            "needs a mode with a strategy of tf.distribute, such as mirrored_strategy, "
            f"not --variable_update={p.place.mode.name}"
        ),
    ),
    refuse(
        tuple(name for name in _DISTRIBUTING if name != "input_distribution"),
        lambda p: p.params.input_distribution != "strategy",
        "needs --input_distribution=strategy",
    ),
    refuse(
        "auto_shard_policy",
        lambda p: p.params.input_sharding == "manual",
        "cannot be used with --input_sharding=manual",
    ),
    needs_mode("input_replication", lambda mode: mode.uses_cross_device_ops),
    # Notices.
    no_effect_input_only(_REDUCING),
    no_effect_forward(_REDUCING),
    no_effect(_REDUCING, has_one_tower, "with --num_gpus=1: there is nothing to reduce"),
    no_effect(
        "bytes_per_pack",
        lambda p: (
            p.place.mode.uses_cross_device_ops and p.params.cross_device_ops not in COLLECTIVE
        ),
        "without --cross_device_ops=ring or auto",
    ),
    no_effect_without(_DISTRIBUTING, "data_dir"),
    no_effect(
        "num_packs",
        lambda p: p.params.cross_device_ops not in IN_PACKS,
        f"without --cross_device_ops={' or '.join(IN_PACKS)}",
    ),
    no_effect_with(
        _DISTRIBUTING, "eval", ": a strategy distributes input only for training batches"
    ),
)
