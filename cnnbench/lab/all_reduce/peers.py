"""Reductions of other projects: the cross-device ops of tf.distribute, to compare with ours.

TensorFlow's default, the collective ring, is missing: it is the algorithm `collective`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from cnnbench.variable_mgr.all_reduce import ReduceContext, registry
from cnnbench.variable_mgr.all_reduce.context import process_of
from cnnbench.variable_mgr.strategies.spec import CrossDeviceSpec

if TYPE_CHECKING:
    import tensorflow as tf

TowerTensors: TypeAlias = "Sequence[Sequence[tf.Tensor]]"

# The name here and that of --cross_device_ops.
_OPS = {
    "reduction_to_one_device": "reduction_to_one_device",
    "hierarchical_copy_all_reduce": "hierarchical_copy",
    "nccl_all_reduce": "nccl",
}
NAMES = tuple(_OPS)


def reduction_of(name: str, devices: Sequence[str]) -> Callable[[TowerTensors], Any]:
    """A reduction of tf.distribute in the form of ours: tensors [tower][i] in, sums [tower][i] out.

    It is called while a tf.function is traced, on tensors made on each device, and adds to that
    function what `tf.distribute.ReplicaContext.all_reduce` makes of the whole list under a
    `MirroredStrategy` of the same devices. So the timed part is that of our algorithms: the same
    tensors on the same devices, in the same function, until every device has every sum. Options are
    TensorFlow's defaults: the hierarchical copy and NCCL join all tensors into one pack,
    ReductionToOneDevice reduces each by itself on the first device. The replica context adds one
    IdentityN per device, which copies nothing.

    `devices` are full device strings of one process, all different.
    """
    check(name, devices)
    import tensorflow as tf

    from cnnbench.variable_mgr.strategies import make

    strategy: Any = make.mirrored(tuple(devices), CrossDeviceSpec(ops=_OPS[name]))

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


def check(name: str, devices: Sequence[str]) -> None:
    """Refuses devices on which a peer does not reduce, or returns wrong sums."""
    if len({process_of(device) for device in devices}) > 1:
        raise ValueError("a MirroredStrategy reduces between the devices of one process")
    if name == "hierarchical_copy_all_reduce" and len(devices) % 2:
        # Seen in TensorFlow 2.21: 1, 10 and 100 on three devices make 11.
        raise ValueError(
            f"tf.distribute.HierarchicalCopyAllReduce leaves out the last of {len(devices)} "
            "devices: its halves are equal, so it needs an even number"
        )
    if name == "nccl_all_reduce":
        registry.create("nccl", ReduceContext(devices=tuple(devices)))
