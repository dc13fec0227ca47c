"""Construction of strategies of tf.distribute."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from cnnbench.base.jobs.job import Job
from cnnbench.errors import BenchmarkError, UsageError, first_line
from cnnbench.variable_mgr.all_reduce.context import is_gpu, process_of
from cnnbench.variable_mgr.strategies.spec import COLLECTIVE, CrossDeviceSpec, refuse_towers

Hosts: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Addresses of the tasks of each job, in order."""

_collective_devices: tuple[str, ...] | None = None


def mirrored(devices: Sequence[str], spec: CrossDeviceSpec) -> tf.distribute.MirroredStrategy:
    """A MirroredStrategy; a second call with the same arguments returns the same one.

    Collective operations over other devices than those of an earlier strategy are refused: every
    MirroredStrategy numbers its groups of devices from 1, so that collectives of two over different
    devices abort all collectives of the process.
    """
    check_devices(devices)
    spec.check(devices)
    if spec.ops in COLLECTIVE and len(devices) > 1:
        _claim(tuple(devices))
    return _mirrored(tuple(devices), spec.ops, spec.num_packs)


def for_input_per_replica(strategy: tf.distribute.MirroredStrategy) -> Any:
    """A MirroredStrategy over the devices of another, for input with a pipeline per replica.

    TensorFlow (2.21) remembers InputReplicationMode.PER_REPLICA in the strategy: every later input
    of it would give all batches to each replica.
    """
    devices = strategy.extended.worker_devices
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def multi_worker(job: Job) -> tf.distribute.MultiWorkerMirroredStrategy:
    """A MultiWorkerMirroredStrategy; a second call for the same job returns the same one.

    In a job of several processes the first call starts TensorFlow's server of this worker, with
    the service for collectives and heartbeats, and waits for those of the others. The devices of
    this process must be configured and unused. Raises BenchmarkError if the server cannot start.
    """
    refuse_towers(job)
    if job.towers_per_worker > 1:
        _claim(job.own_tower_devices)
    return connected(job)


def connected(job: Job) -> tf.distribute.MultiWorkerMirroredStrategy:
    """The strategy that connects a worker with the others, for any of its towers."""
    gpus = job.towers_per_worker if job.device == "gpu" else 0
    return _multi_worker(_hosts(job), job.task.job, job.task.index, gpus)


def _hosts(job: Job) -> Hosts:
    return tuple((name, tuple(addresses)) for name, addresses in job.hosts_by_job.items())


def _resolver(hosts: Hosts, task: str, index: int = 0, gpus: int = 0) -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({name: list(addresses) for name, addresses in hosts}),
        task_type=task if hosts else "",
        task_id=index,
        num_accelerators={"GPU": gpus} if gpus else {},
        rpc_layer="grpc",
    )


@functools.cache
def _multi_worker(
    hosts: Hosts, task: str, index: int, gpus: int
) -> tf.distribute.MultiWorkerMirroredStrategy:
    resolver = _resolver(hosts, task, index, gpus)
    try:
        with tf.init_scope():
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except tf.errors.OpError as error:
        raise BenchmarkError(
            f"{task}:{index}: no server could be started on {dict(hosts)[task][index]}: "
            f"{first_line(error)}"
        ) from error


def communication(
    spec: CrossDeviceSpec, devices: Sequence[str]
) -> tf.distribute.experimental.CommunicationOptions:
    """Implementation of a strategy's collective operations.

    TensorFlow's AUTO uses the ring, through the hosts, also between GPUs of several processes.
    """
    kinds = tf.distribute.experimental.CommunicationImplementation
    ops = spec.running(on_gpu=True) if all(map(is_gpu, devices)) else spec.ops
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=spec.bytes_per_pack,
        implementation={"ring": kinds.RING, "nccl": kinds.NCCL}.get(ops, kinds.AUTO),
    )


def parameter_server(job: Job) -> tf.distribute.ParameterServerStrategy:
    """The ParameterServerStrategy of a job, which connects this process, its controller.

    The servers of the other processes must be running.
    """
    return _parameter_server(_hosts(job), job.task.tensorflow_job)


@functools.cache
def _parameter_server(hosts: Hosts, task: str) -> tf.distribute.ParameterServerStrategy:
    return tf.distribute.ParameterServerStrategy(_resolver(hosts, task))


def check_devices(devices: Sequence[str]) -> None:
    """Refuses devices for which TensorFlow fails an assertion, or uses others instead."""
    for device in devices:
        if list(devices).count(device) > 1:
            raise UsageError(f"a strategy takes every device once, and {device} is given twice")
    if len({process_of(device) for device in devices}) > 1:
        raise UsageError("a MirroredStrategy reduces between the devices of one process")
    if len(set(map(is_gpu, devices))) > 1:
        raise UsageError("a strategy takes devices of one kind, GPUs or CPUs")


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
    reductions = {
        "reduction_to_one_device": tf.distribute.ReductionToOneDevice,
        "hierarchical_copy": functools.partial(tf.distribute.HierarchicalCopyAllReduce, num_packs),
        "nccl": functools.partial(tf.distribute.NcclAllReduce, num_packs),
        # Others are collective operations.
    }
    with tf.init_scope():  # outlives the traced function
        reduction = reductions[ops]() if ops in reductions else None
        return tf.distribute.MirroredStrategy(devices, reduction)
