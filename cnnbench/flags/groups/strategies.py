"""What the strategies of tf.distribute take, as modes of --variable_update."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.flags.declare import flag
from cnnbench.variable_mgr.strategies.spec import CROSS_DEVICE_OPS

STRATEGIES = ("mirrored_strategy", "central_storage_strategy", "one_device_strategy")
"""The strategies of one process."""


@dataclass(frozen=True, kw_only=True)
class StrategyParams:
    """Strategies of tf.distribute."""

    cross_device_ops: str = flag(
        "auto",
        "How mirrored_strategy reduces gradients. auto is TensorFlow's default: a ring on CPUs, "
        "NCCL on GPUs.",
        choices=CROSS_DEVICE_OPS,
    )
    bytes_per_pack: int = flag(
        0,
        "Bytes of gradients that ring and auto join into a pack; 0 for all in one.",
        minimum=0,
    )
    num_packs: int = flag(
        1,
        "Packs into which hierarchical_copy and nccl join all gradients; 0 for no packing.",
        minimum=0,
    )
