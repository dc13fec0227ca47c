"""The process that drives a job: it connects, checks that all devices are there, and dismisses."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

from cnnbench.cluster.ending import Ending, path_of
from cnnbench.cluster.watchdog import OK, probe, wait_up
from cnnbench.errors import BenchmarkError, first_line
from cnnbench.runtime import supervisor
from cnnbench.runtime.job import CONTROLLER, Job, Task

# A peer of a run that has succeeded is there, however slow its machine may be just now.
_DISMISSAL_SECONDS = {True: 60.0, False: 5.0}
_RETRY_SECONDS = 10.0


def connect(
    job: Job,
    timeout: float,
    tell: Callable[[str], None],
    by: Callable[[], object] | None = None,
) -> Job:
    """Connects TensorFlow with the servers of all other tasks.

    Args:
      job: this process is its chief, and TensorFlow is configured.
      timeout: seconds to wait for the servers.
      tell: prints a line about who is missing.
      by: what connects TensorFlow, where a strategy does that itself.

    Returns:
      The job, with the kind of devices that the workers have where this process has none.

    Raises:
      BenchmarkError: a task is missing, or lacks devices.
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
    # TensorFlow would put what belongs to a missing device somewhere else, and say nothing.
    missing = [device for device in (*job.tower_devices, *job.ps_devices) if device not in found]
    if missing:
        raise BenchmarkError(
            f"{len(missing)} of the devices of the job are not there (first: {missing[0]}); "
            "every worker needs --num_gpus of them"
        )
    return job


def dismiss(job: Job, how: Ending) -> None:
    """Tells every server that answers how the run has ended; after a failure in a few seconds.

    Args:
      job: this process is its chief, and connected.
      how: exit code of the servers, and the reason.
    """
    calls = [
        threading.Thread(target=_tell, args=(job, peer, how), daemon=True) for peer in job.peers
    ]
    deadline = time.monotonic() + _DISMISSAL_SECONDS[how.code == 0]
    for call in calls:
        call.start()
    for call in calls:
        call.join(max(0.0, deadline - time.monotonic()))


def _tell(job: Job, peer: Task, how: Ending) -> None:
    import tensorflow as tf

    # One that does not answer would keep the operation for ever.
    if how.code != 0 and probe(job.address(peer), 2.0) != OK:
        return
    path = path_of(job, peer)
    # An operation on another process has only been sent when it returns, and this process may
    # end before it runs; a value that comes back shows that it has. A server that has read the
    # file removes it: that is an error here, and as good.
    until = time.monotonic() + _RETRY_SECONDS
    while True:
        try:
            with tf.device(peer.device("cpu")):
                tf.io.write_file(path, how.text())
                tf.io.read_file(path).numpy()
            return
        except tf.errors.NotFoundError:
            return
        except tf.errors.OpError:
            # The loss of another process fails operations on this one, too.
            if time.monotonic() > until or probe(job.address(peer), 2.0) != OK:
                return
            time.sleep(0.5)


def leave(code: int) -> None:
    """Ends this process at once: TensorFlow's own clean-up would wait for processes that are gone.

    Args:
      code: exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    supervisor.announce(code)
    os._exit(code)
