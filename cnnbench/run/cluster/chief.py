"""Connection of the driving process with the servers of the other tasks."""

from __future__ import annotations

from collections.abc import Callable

from cnnbench.base.jobs.job import CONTROLLER, Job
from cnnbench.base.jobs.probe import wait_up
from cnnbench.errors import BenchmarkError, first_line


def connect(
    job: Job,
    timeout: float,
    tell: Callable[[str], None],
    by: Callable[[], object] | None = None,
) -> Job:
    """Connects TensorFlow, in the chief, with the servers of all other tasks.

    `by` replaces the call that connects TensorFlow, for strategies that do it themselves. In a
    controller without GPUs the returned job is on the GPUs of the workers.
    """
    import tensorflow as tf

    wait_up(job, timeout, tell)

    def join_servers() -> None:
        spec = tf.train.ClusterSpec(job.hosts_by_job)
        name, index = job.task.tensorflow_job, job.task.index
        tf.config.experimental_connect_to_cluster(spec, job_name=name, task_index=index)

    try:
        (by or join_servers)()
        found = {device.name for device in tf.config.list_logical_devices()}
    except (tf.errors.OpError, RuntimeError) as error:
        raise BenchmarkError(
            f"{job.task} ({job.address(job.task)}) cannot connect to the job: {first_line(error)}; "
            "is its port in use?"
        ) from error
    if job.task.job == CONTROLLER and job.on("gpu").tower_devices[0] in found:
        job = job.on("gpu")
    # TensorFlow would silently place operations of a missing device elsewhere.
    missing = [device for device in (*job.tower_devices, *job.ps_devices) if device not in found]
    if missing:
        raise BenchmarkError(
            f"{len(missing)} of the devices of the job are not there (first: {missing[0]}); "
            "every worker needs --num_gpus of them"
        )
    return job
