"""The part of a process that runs steps in a job of several: it meets the others, joins them, ends.

In a run of one process all of it does nothing.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Mapping
from functools import partial

from cnnbench.cluster import chief
from cnnbench.cluster.ending import Ending
from cnnbench.cluster.handshake import meet
from cnnbench.cluster.serve import settings_of
from cnnbench.cluster.watchdog import Watchdog, culprits
from cnnbench.errors import BenchmarkError
from cnnbench.flags import Params
from cnnbench.flags.cluster import COORDINATED, agreed_facts, spared
from cnnbench.runtime import tensorflow as runtime
from cnnbench.runtime.job import Job

connected = False
"""Whether this process has connected TensorFlow with others; it then ends by `chief.leave`."""


class Membership:
    """What ties one process to the others.

    Args:
      job: this process is its chief, a worker that runs a step of its own, or alone.
      params: of the run.
      tell: prints a line about who is missing.
      lost: see `Watchdog`.
      facts: what all processes must have alike; the flags of the run if None.
    """

    def __init__(
        self,
        job: Job,
        params: Params,
        tell: Callable[[str], None],
        lost: Callable[[str], None],
        facts: Mapping[str, str] | None = None,
    ) -> None:
        self._job = job
        self._params = params
        self._facts = facts
        self._tell = tell
        self._watchdog = (
            Watchdog(job, lost, leave=chief.leave, spares=spared(params))
            if job.in_cluster
            else None
        )
        self._reserved: socket.socket | None = None
        self._joined = False

    def settings(self, settings: runtime.Settings) -> runtime.Settings:
        """Those of the run as they apply to this process."""
        return settings_of(self._job, settings)

    def meet(self) -> None:
        """Waits for all processes; to be called before TensorFlow is loaded.

        Raises:
          BenchmarkError: one is missing, or has other flags.
        """
        if self._job.in_cluster:
            facts = agreed_facts(self._params) if self._facts is None else self._facts
            timeout = self._params.cluster_timeout
            self._reserved = meet(self._job, facts, timeout, self._tell)

    def join(self, devices: runtime.Devices) -> runtime.Devices:
        """Connects TensorFlow, once it is configured, and begins to watch the others.

        Returns:
          The devices of the run.

        Raises:
          BenchmarkError: a process or a device is missing.
        """
        if self._watchdog is None:
            return devices
        assert self._reserved is not None
        # Open until TensorFlow's server listens: no other program gets the port in between.
        with self._reserved:
            if self._job.client_per_worker:
                # Before: TensorFlow waits for the others without a word, and longer than that.
                self._watchdog.start()
                self._connect_worker(devices.job)
                self._joined = True
                return devices
            return self._connect_chief(devices)

    def _connect_chief(self, devices: runtime.Devices) -> runtime.Devices:
        """Connects the process that runs the steps of all workers."""
        global connected
        assert self._watchdog is not None
        by = None
        if self._params.variable_update in COORDINATED:
            from cnnbench.variable_mgr.strategies import make  # late: it loads TensorFlow

            by = partial(make.parameter_server, devices.job)
        job = chief.connect(devices.job, self._params.cluster_timeout, self._tell, by)
        self._joined = connected = True
        self._watchdog.start()
        return dataclasses.replace(devices, job=job)

    def _connect_worker(self, job: Job) -> None:
        """Connects a worker that runs a step of its own with the others, for collectives."""
        import tensorflow as tf

        from cnnbench.variable_mgr.strategies import make

        make.connected(job)
        there = {device.name for device in tf.config.list_logical_devices()}
        missing = [device for device in job.tower_devices if device not in there]
        if missing:
            raise BenchmarkError(f"{job.task}: TensorFlow does not see {missing[0]}")

    def gone(self) -> dict[str, str]:
        """The workers that were lost while others go on, and what is wrong with each."""
        lost = {} if self._watchdog is None else dict(self._watchdog.gone)
        return {str(task): why for task, why in lost.items()}

    def failure(self, error: BaseException) -> BenchmarkError | None:
        """The error that names a lost process, if one explains an error of TensorFlow."""
        import tensorflow as tf

        unreachable = (
            *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError),
            *(tf.errors.InternalError, tf.errors.DeadlineExceededError),
        )
        if not self._joined or not isinstance(error, unreachable):
            return None
        named = culprits(self._job, error)
        return BenchmarkError(f"lost {named}") if named else None

    def end(self, code: int, reason: str = "") -> None:
        """Tells those that serve how the run has ended; from now on others may go.

        Args:
          code: exit code of the servers.
          reason: for their log; none if the code is 0.
        """
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._joined and not self._job.client_per_worker:
            chief.dismiss(self._job, Ending(code, reason))
            self._joined = False
