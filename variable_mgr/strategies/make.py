"""The one place where strategies of tf.distribute are made."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.errors import UsageError
from cnnbench.variable_mgr.all_reduce.context import process_of
from cnnbench.variable_mgr.strategies.spec import COLLECTIVE, CrossDeviceSpec

_collective_devices: tuple[str, ...] | None = None


def mirrored(devices: Sequence[str], spec: CrossDeviceSpec) -> tf.distribute.MirroredStrategy:
    """A MirroredStrategy; a second call with the same arguments returns the same one.

    A MirroredStrategy numbers its groups of devices from 1 in every instance, so that collective
    operations of two over different devices end all collectives of the process.

    Args:
      devices: full device strings of one process.
      spec: how it reduces.

    Raises:
      FlagError: its operations do not work on these devices.
      UsageError: no device or one twice, devices of several processes, or collective operations
        over other devices than those of an earlier strategy.
    """
    check_devices(devices)
    spec.check(devices)
    if spec.ops in COLLECTIVE and len(devices) > 1:
        _claim(tuple(devices))
    return _mirrored(tuple(devices), spec.ops, spec.num_packs)


def central_storage(devices: Sequence[str], parameter_device: str) -> Any:
    """A CentralStorageStrategy.

    Args:
      devices: full device strings of the towers, in one process.
      parameter_device: full device string, where the variables are.

    Raises:
      UsageError: no device or one twice, or devices of several processes.
    """
    check_devices(devices)
    with tf.init_scope():
        return tf.distribute.experimental.CentralStorageStrategy(list(devices), parameter_device)


def one_device(device: str) -> tf.distribute.OneDeviceStrategy:
    """A OneDeviceStrategy for a full device string."""
    return tf.distribute.OneDeviceStrategy(device)


def check_devices(devices: Sequence[str]) -> None:
    """Refuses devices over which TensorFlow fails an assertion, or takes others instead.

    Raises:
      UsageError: no device or one twice, or devices of several processes.
    """
    if not devices:
        raise UsageError("a strategy needs at least one device")
    for device in devices:
        if list(devices).count(device) > 1:
            raise UsageError(f"a strategy takes every device once, and {device} is given twice")
    if len({process_of(device) for device in devices}) > 1:
        raise UsageError("a MirroredStrategy reduces between the devices of one process")


def _claim(devices: tuple[str, ...]) -> None:
    global _collective_devices
    if _collective_devices is None:
        _collective_devices = devices
    if _collective_devices != devices:
        raise UsageError(
            f"this process has a MirroredStrategy over {len(_collective_devices)} devices already, "
            f"and collectives of a second one over {len(devices)} others would end both"
        )


@functools.cache
def _mirrored(devices: tuple[str, ...], ops: str, num_packs: int) -> tf.distribute.MirroredStrategy:
    with tf.init_scope():  # a strategy lives longer than the function being traced
        return tf.distribute.MirroredStrategy(devices, _cross_device_ops(ops, num_packs))


def _cross_device_ops(ops: str, num_packs: int) -> tf.distribute.CrossDeviceOps | None:
    if ops == "reduction_to_one_device":
        return tf.distribute.ReductionToOneDevice()
    if ops == "hierarchical_copy":
        return tf.distribute.HierarchicalCopyAllReduce(num_packs)
    if ops == "nccl":
        return tf.distribute.NcclAllReduce(num_packs)
    return None  # collectives
