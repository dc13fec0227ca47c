"""Peers: reductions of tf.distribute, which are measured to compare cnnbench's algorithms with
them.

TensorFlow's default, the collective ring, is not a peer, because it is the algorithm `collective`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from cnnbench.variable_mgr.all_reduce import ReduceContext
from cnnbench.variable_mgr.all_reduce.context import process_of_device
from cnnbench.variable_mgr.all_reduce.registry import create
from cnnbench.variable_mgr.distribute import CrossDeviceSpec, make_mirrored_strategy

if TYPE_CHECKING:
    import tensorflow as tf


TowerTensors: TypeAlias = "Sequence[Sequence[tf.Tensor]]"


# The value of --cross_device_ops for each peer.
_OPS = {
    "reduction_to_one_device": "reduction_to_one_device",
    "hierarchical_copy_all_reduce": "hierarchical_copy",
    "nccl_all_reduce": "nccl",
}


NAMES = tuple(_OPS)


def peer_reduction(name: str, devices: Sequence[str]) -> Callable[[TowerTensors], Any]:
    """Returns a function that reduces tensors [tower][i] with tf.distribute to sums [tower][i].

    The function is called while a tf.function is traced, with tensors on each device. It adds the
    operations that `tf.distribute.ReplicaContext.all_reduce` creates for the whole list, with a
    `MirroredStrategy` on the same devices. So the measured time includes the same as for cnnbench's
    algorithms: the same tensors on the same devices, in the same function, until every device has
    every sum.

    Options are TensorFlow's defaults: hierarchical copy and NCCL combine all tensors in one pack,
    and ReductionToOneDevice reduces each tensor separately on the first device. The replica context
    adds one IdentityN for each device, which copies nothing.

    `devices` are different full device names in one process.
    """
    check_peer(name, devices)
    import tensorflow as tf

    strategy: Any = make_mirrored_strategy(tuple(devices), CrossDeviceSpec(ops=_OPS[name]))

    def reduce(tower_tensors: TowerTensors) -> list[list[tf.Tensor]]:
        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            number = int(tf.get_static_value(context.replica_id_in_sync_group))
            return context.all_reduce(tf.distribute.ReduceOp.SUM, list(tower_tensors[number]))

        by_tensor = [
            strategy.experimental_local_results(of_devices) for of_devices in strategy.run(replica)
        ]
        return [list(sums) for sums in zip(*by_tensor, strict=True)]

    return reduce


def check_peer(name: str, devices: Sequence[str]) -> None:
    """Raises an error if a reduction of tf.distribute would fail or compute wrong sums."""
    if len({process_of_device(device) for device in devices}) > 1:
        raise ValueError("tf.distribute reduces only between devices of one process")
    if name == "hierarchical_copy_all_reduce" and len(devices) % 2:
        # In TensorFlow 2.21, HierarchicalCopyAllReduce is wrong on three devices: it adds 1, 10 and
        # 100 to 11.
        raise ValueError(
            f"tf.distribute.HierarchicalCopyAllReduce leaves out the last of {len(devices)} "
            "devices; use an even number of devices"
        )
    if name == "nccl_all_reduce":
        create("nccl", ReduceContext(devices=tuple(devices)))
