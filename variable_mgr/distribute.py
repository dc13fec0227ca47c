"""Strategies of tf.distribute, and how they reduce gradients (`--cross_device_ops`).

Functions that create a strategy return the same object for equal arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cnnbench import lazy_tensorflow as tf
from cnnbench.base.job import Job
from cnnbench.errors import BenchmarkError, FlagError, UsageError, informative_line
from cnnbench.variable_mgr.all_reduce.context import is_gpu, process_of_device

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
        # In TensorFlow 2.21, hierarchical copy is wrong on three devices: it adds 1, 10 and 100 to
        # 11.
        reason = f"leaves out the last of {count} devices; use an even number of devices"
        raise FlagError("cross_device_ops", ops, reason)


Hosts: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""For each job name, the addresses of its tasks in order."""

_collective_devices: tuple[str, ...] | None = None


def make_mirrored_strategy(
    devices: Sequence[str], spec: CrossDeviceSpec
) -> tf.distribute.MirroredStrategy:
    """Returns a MirroredStrategy over `devices`, the same object for equal arguments.

    Every MirroredStrategy counts its groups of devices from 1, and the collectives of a group from
    100. The runtime aborts all collectives of the process if two collectives with the same numbers
    differ in shape or devices. Therefore all values of `spec.ops` that are collective operations
    share one strategy, and collectives over other devices than the first ones are refused.
    """
    refuse_wrong_devices(devices)
    spec.check_devices(devices)
    if spec.ops not in COLLECTIVE:
        return _make_mirrored(tuple(devices), spec.ops, spec.packs)
    if len(devices) > 1:
        _claim_devices(tuple(devices))
    return _make_mirrored(tuple(devices))


def clone_for_input(strategy: tf.distribute.MirroredStrategy) -> Any:
    """Creates a copy of a MirroredStrategy for one input pipeline per replica.

    TensorFlow 2.21 stores InputReplicationMode.PER_REPLICA in the strategy. In the original
    strategy, every later input would then give all batches to each replica.
    """
    devices = strategy.extended.worker_devices
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def make_worker_strategy(job: Job) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Returns the MultiWorkerMirroredStrategy of a job; the first call creates it.

    In a job of several processes, the first call starts this worker's TensorFlow server, which
    serves collectives and heartbeats. It then waits for the servers of the other workers. Before
    the call, devices of this process must be configured, and no operation may have run. Raises
    BenchmarkError if the server cannot start.
    """
    refuse_cpu_towers(job)
    if job.towers_per_worker > 1:
        _claim_devices(job.own_tower_devices)
    return connect_worker_strategy(job)


def connect_worker_strategy(job: Job) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Returns a job's MultiWorkerMirroredStrategy; the first call connects the workers."""
    gpus = job.towers_per_worker if job.device == "gpu" else 0
    return _worker_strategy(_hosts_of_job(job), job.task.job, job.task.index, gpus)


def _hosts_of_job(job: Job) -> Hosts:
    return tuple((name, tuple(addresses)) for name, addresses in job.hosts_by_job.items())


def _cluster_resolver(hosts: Hosts, task: str, index: int = 0, gpus: int = 0) -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({name: list(addresses) for name, addresses in hosts}),
        task_type=task if hosts else "",
        task_id=index,
        num_accelerators={"GPU": gpus} if gpus else {},
        rpc_layer="grpc",
    )


@functools.cache
def _worker_strategy(
    hosts: Hosts, task: str, index: int, gpus: int
) -> tf.distribute.MultiWorkerMirroredStrategy:
    resolver = _cluster_resolver(hosts, task, index, gpus)
    try:
        with tf.init_scope():
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except tf.errors.OpError as error:
        raise BenchmarkError(
            f"the server of {task}:{index} could not start on {dict(hosts)[task][index]}: "
            f"{informative_line(error)}"
        ) from error


def communication_options(
    spec: CrossDeviceSpec, devices: Sequence[str]
) -> tf.distribute.experimental.CommunicationOptions:
    """Returns options that select a strategy's collective operations: ring, NCCL or AUTO.

    TensorFlow's AUTO uses the ring, which goes through the hosts, even between GPUs of several
    processes.
    """
    kinds = tf.distribute.experimental.CommunicationImplementation
    ops = spec.resolved_ops(on_gpu=True) if all(map(is_gpu, devices)) else spec.ops
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=spec.pack_bytes,
        implementation={"ring": kinds.RING, "nccl": kinds.NCCL}.get(ops, kinds.AUTO),
    )


def connect_ps_strategy(job: Job) -> tf.distribute.ParameterServerStrategy:
    """Returns a job's ParameterServerStrategy; the first call connects to the servers.

    This process is the coordinator. The servers of the other processes must be running.
    """
    return _ps_strategy(_hosts_of_job(job), job.task.tensorflow_job)


@functools.cache
def _ps_strategy(hosts: Hosts, task: str) -> tf.distribute.ParameterServerStrategy:
    return tf.distribute.ParameterServerStrategy(_cluster_resolver(hosts, task))


def refuse_wrong_devices(devices: Sequence[str]) -> None:
    """Raises UsageError if a strategy fails on `devices`, or would silently use other devices."""
    for device in devices:
        if list(devices).count(device) > 1:
            raise UsageError(f"a strategy uses every device once, but {device} is given twice")
    if len({process_of_device(device) for device in devices}) > 1:
        raise UsageError("a MirroredStrategy needs devices of one process, not of several")
    if len(set(map(is_gpu, devices))) > 1:
        raise UsageError("a strategy needs devices of one kind: only GPUs, or only CPUs")


def _claim_devices(devices: tuple[str, ...]) -> None:
    global _collective_devices
    if _collective_devices is None:
        _collective_devices = devices
    if _collective_devices != devices:
        raise UsageError(
            f"this process has a MirroredStrategy over {len(_collective_devices)} devices "
            f"already; collectives of a second MirroredStrategy over {len(devices)} other devices "
            "would make both strategies fail"
        )


@functools.cache
def _make_mirrored(
    devices: tuple[str, ...], ops: str | None = None, num_packs: int = 1
) -> tf.distribute.MirroredStrategy:
    """Creates a MirroredStrategy for a value of --cross_device_ops; None means collectives."""
    reductions = {
        "reduction_to_one_device": tf.distribute.ReductionToOneDevice,
        "hierarchical_copy": functools.partial(tf.distribute.HierarchicalCopyAllReduce, num_packs),
        "nccl": functools.partial(tf.distribute.NcclAllReduce, num_packs),
    }
    with tf.init_scope():  # It is needed after this trace.
        reduction = None if ops is None else reductions[ops]()
        return tf.distribute.MirroredStrategy(devices, reduction)
