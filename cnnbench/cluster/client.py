"""Connects workers that each run a step of their own, for TensorFlow's collectives."""

from __future__ import annotations

from cnnbench.errors import BenchmarkError, first_line
from cnnbench.runtime.job import Job


def connect(job: Job) -> None:
    """Starts TensorFlow's server of this worker and waits for those of the others.

    The devices of this process are configured, and nothing has used them. tf.distribute connects
    workers by public functions, among them the service that collectives and heartbeats need; its
    strategy itself is not used.

    Args:
      job: this process is one of its workers.

    Raises:
      BenchmarkError: the server of this worker cannot start, or TensorFlow lacks a device.
    """
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(job.hosts_by_job),
        task_type=job.task.job,
        task_id=job.task.index,
        rpc_layer="grpc",
    )
    try:
        tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except tf.errors.OpError as error:
        address = job.address(job.task)
        raise BenchmarkError(
            f"{job.task}: no server could be started on {address}: {first_line(error)}"
        ) from error
    there = {device.name for device in tf.config.list_logical_devices()}
    missing = [device for device in job.tower_devices if device not in there]
    if missing:
        raise BenchmarkError(f"{job.task}: TensorFlow does not see {missing[0]}")
