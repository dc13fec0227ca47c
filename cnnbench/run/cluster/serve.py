"""Servers of a job, which run operations for the chief only, and its connection with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from cnnbench.base.jobs.job import CONTROLLER, Job, Task
from cnnbench.base.jobs.probe import OK, probe, wait_up
from cnnbench.errors import BenchmarkError, ExitCode, first_line
from cnnbench.run.cluster.handshake import meet
from cnnbench.run.cluster.watchdog import PATIENCE, Ending, Watchdog
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.runtime.loading import load_tensorflow
from cnnbench.run.runtime.native import without_info_lines

_POLL_SECONDS = 0.1
_LINGER_SECONDS = 10.0


def serve(
    job: Job,
    settings: runtime.Settings,
    facts: Mapping[str, str],
    timeout: float,
    tell: Callable[[str], None],
    lost: Callable[[str], None],
    spares: Callable[[Task, str], bool],
    stall_timeout: float = 0.0,
) -> Ending:
    """Loads TensorFlow and serves until the chief says how the run has ended."""
    met = meet(job, facts, timeout, tell)
    patience = max(timeout, PATIENCE)
    watchdog = Watchdog(job, lost, patience=patience, spares=spares, stall_timeout=stall_timeout)
    watchdog.start(met.lines)
    try:
        runtime.export_environment(settings)
        with met.port, without_info_lines():
            server = _start_server(job, settings)
        watchdog.up()
        tell(f"serving {job.chief} ({job.address(job.chief)})")
        found = watchdog.wait()
    except BaseException as error:
        watchdog.end(Ending(ExitCode.FAILED, str(error) or "interrupted"), lost=True)
        raise
    watchdog.end(found)
    if found.code == 0:
        # Outlives the chief: once a process is gone, the chief's operations on the others fail.
        until = time.monotonic() + _LINGER_SECONDS
        while time.monotonic() < until and probe(job.address(job.chief), 1.0) == OK:
            time.sleep(_POLL_SECONDS)
    del server
    return found


def _start_server(job: Job, settings: runtime.Settings) -> Any:
    """TensorFlow's server on the port of this task, with as many devices as it has towers."""
    tf = load_tensorflow()
    found = runtime.choose_devices(settings)
    # The only public class for the server's settings: devices, threads, visible GPUs.
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": len(found.numbers) if found.kind == "cpu" else 1},
        intra_op_parallelism_threads=found.intra_threads,
        inter_op_parallelism_threads=found.inter_threads,
    )
    if found.kind == "gpu":
        config.gpu_options.visible_device_list = ",".join(map(str, sorted(found.numbers)))
        config.gpu_options.allow_growth = bool(settings.allow_growth)
    else:
        config.device_count["GPU"] = 0
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(job.hosts_by_job),
            job_name=job.task.tensorflow_job,
            task_index=job.task.index,
            protocol="grpc",
            config=config,
        )
    except tf.errors.OpError as error:
        address = job.address(job.task)
        raise BenchmarkError(
            f"{job.task} cannot serve on {address}: {first_line(error)}; is the port in use?"
        ) from error


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

    try:
        if by is not None:
            by()
        else:
            spec = tf.train.ClusterSpec(job.hosts_by_job)
            name, index = job.task.tensorflow_job, job.task.index
            tf.config.experimental_connect_to_cluster(spec, job_name=name, task_index=index)
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
