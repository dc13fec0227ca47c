"""Connects the processes of a job, and informs them of the end of the run.

In a job with one process, this module does almost nothing.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from cnnbench import lazy_tensorflow as tf
from cnnbench.base.job import CONTROLLER, Job, Task
from cnnbench.errors import BenchmarkError, ExitCode, UsageError, informative_line
from cnnbench.plan import RunPlan
from cnnbench.run.runtime import supervisor
from cnnbench.run.runtime.devices import Devices, set_environment, start_server
from cnnbench.run.runtime.native_log import without_info_lines
from cnnbench.run.runtime.progress import ProcessActivity, ProcessProgress
from cnnbench.run.runtime.turns import TimeSlices
from cnnbench.run.watchdog import PATIENCE, RunEnding, Watchdog
from cnnbench.variable_mgr import distribute

_DISMISSAL_SECONDS = 60.0
"""Maximum time after a successful run in which other processes, which may be slow, must end."""
_FAILURE_SECONDS = 5.0
"""Time in which other processes may fail for the same reason and report it."""
_LINGER_SECONDS = 10.0

_NAMED = "TensorFlow reports its loss"
_TASK_OF_TENSORFLOW = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)")


class JobMembership:
    """Connects this process with its job, and reports its activity and its end to the job.

    Args:
      plan: contains the job. In the job, this process runs a step (as chief, worker or only
        process), or serves.
      tell: prints a line about missing tasks.
      lost: called with a message if a process is lost, see `Watchdog`.
      facts: versions and flags that must be equal in all processes.
      read_progress: returns the progress of this process; None if progress is not supervised.

    Attributes:
      activity: current activity of the loop in this process, which the watchdog reads.
      turns: time slices of this process, if the steps of several processes are interleaved.
    """

    def __init__(
        self,
        plan: RunPlan,
        tell: Callable[[str], None],
        lost: Callable[[str], None],
        facts: Mapping[str, str],
        read_progress: Callable[[], ProcessProgress] | None = None,
    ) -> None:
        self.activity = ProcessActivity.START
        self.turns = TimeSlices()
        self._plan = plan
        self._job = plan.place.job
        self._facts = facts
        self._tell = tell
        # If a run stalls, the watchdog ends the process. It may end a cnnbench command, but not a
        # user's program that imports cnnbench.
        may_stall = read_progress is not None and plan.params.stall_timeout > 0
        self._is_watched = self._job.in_cluster or (may_stall and supervisor.state.program)

        self._watchdog = Watchdog(
            self._job,
            lost,
            patience=max(plan.params.cluster_timeout, PATIENCE),
            leave=supervisor.exit_without_cleanup,
            tolerates_loss=self._tolerates_loss,
            read_progress=read_progress,
            stall_timeout=plan.params.stall_timeout,
        )
        self._port: AbstractContextManager[object] = nullcontext()
        self._tensorflow_connected = False
        self._culprits: dict[Task, str] = {}

    def _tolerates_loss(self, task: Task, closed: bool) -> bool:
        evaluates = self.activity is ProcessActivity.EVALUATION and task == self._job.workers[0]
        return self._plan.place.tolerates_loss_of(task, closed) and not evaluates

    @contextmanager
    def marking_activity(self, activity: ProcessActivity) -> Iterator[None]:
        """A context that sets the activity that the watchdog reports for this process."""
        before, self.activity = self.activity, activity
        try:
            yield
        finally:
            self.activity = before

    def connect(self) -> Collection[int]:
        """Waits for all processes of the job, then starts the watchdog.

        Must be called before TensorFlow is loaded.

        Returns:
          PIDs of the other processes that run on this machine.

        Raises:
          BenchmarkError: a process is missing, or has different flags.
        """
        lines: Mapping[Task, socket.socket] = {}
        local: Collection[int] = ()
        if self._job.in_cluster:
            # A run in one process needs no handshake, because there is no other process to wait
            # for.
            from cnnbench.run.handshake import connect_job

            timeout = self._plan.params.cluster_timeout
            self._port, lines, local = connect_job(self._job, self._facts, timeout, self._tell)
        if self._is_watched:
            self._watchdog.start(lines)
        return local

    def connect_tensorflow(self, devices: Devices) -> Devices:
        """Connects TensorFlow with the other processes; returns the devices of the run.

        TensorFlow must be configured.

        Raises:
          BenchmarkError: a process or a device is missing.
        """
        if not self._job.in_cluster:
            return devices
        # The port is reserved until TensorFlow's server listens on it, so that no other program can
        # take it.
        with self._port:
            if self._job.client_per_worker:
                self._watchdog.announce_ready_together()
                with supervisor.limited_connection_time(self._plan.params.cluster_timeout):
                    self._connect_worker(devices.job)
                self._tensorflow_connected = True
            else:
                devices = self._connect_chief(devices)
                self._watchdog.announce_server_ready()
        return devices

    def _connect_chief(self, devices: Devices) -> Devices:
        """Connects this process, which runs the steps of all workers, with the workers' servers.

        If this process is a controller without GPUs, the returned devices are the workers' GPUs.
        """
        job = devices.job
        if self._plan.place.asynchronous:
            # With the default of TensorFlow, a worker's step would wait until the worker has read
            # its next batch. ParameterServerStrategy sets the same variable.
            os.environ.setdefault("TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE", "False")
        self._watchdog.wait_for_servers()
        try:
            if self._plan.place.coordinated:
                distribute.connect_ps_strategy(job)
            else:
                spec = tf.train.ClusterSpec(job.hosts_by_job)
                name, index = job.task.tensorflow_job, job.task.index
                tf.config.experimental_connect_to_cluster(spec, job_name=name, task_index=index)
            names = {device.name for device in tf.config.list_logical_devices()}
        except (tf.errors.OpError, RuntimeError) as error:
            raise BenchmarkError(
                f"{job.task} ({job.address(job.task)}) cannot connect to the job: "
                f"{informative_line(error)}; is its port in use?"
            ) from error
        if job.task.job == CONTROLLER and job.with_devices("gpu").tower_devices[0] in names:
            job = job.with_devices("gpu")
        # Without this check, TensorFlow would silently place the operations of a missing device on
        # another device.
        missing = [name for name in (*job.tower_devices, *job.ps_devices) if name not in names]
        if missing:
            raise BenchmarkError(
                f"{len(missing)} devices of the job are missing (first: {missing[0]}); every "
                "worker must have --num_gpus devices"
            )
        supervisor.state.connected = True
        self._tensorflow_connected = True
        return devices._replace(job=job)

    def _connect_worker(self, job: Job) -> None:
        """Connects this worker, which runs its own step, with the other workers for collectives."""
        try:
            distribute.connect_worker_strategy(job)
        except RuntimeError as error:
            # A plug-in has already made TensorFlow initialize the devices of this process.
            raise BenchmarkError(
                f"{job.task}: a plug-in runs TensorFlow operations when it is imported; move these "
                "operations into its functions, because each worker of this job runs its own step"
            ) from error
        visible = {device.name for device in tf.config.list_logical_devices()}
        missing = [device for device in job.tower_devices if device not in visible]
        if missing:
            raise BenchmarkError(f"{job.task}: TensorFlow does not see {missing[0]}")

    def serve_until_run_ends(self) -> RunEnding:
        """Loads TensorFlow, and runs a server for the chief until the chief ends the run."""
        self.connect()
        chief = self._job.chief
        try:
            settings = self._plan.process_flags
            set_environment(settings)
            with self._port, without_info_lines():
                server = start_server(settings, self._job)
            self._watchdog.announce_server_ready()
            self._tell(f"serving {self._job.named(chief)}")
            chief_ending = self._watchdog.wait_for_run_end()
        except BaseException as error:
            ending = RunEnding(ExitCode.FAILED, str(error) or "interrupted")
            self._watchdog.announce_end(ending, lost=True)
            raise
        self._watchdog.announce_end(chief_ending)
        if chief_ending.code == 0:
            # Servers end after the chief, because the chief's operations fail if it loses a server.
            self._watchdog.wait_for_chief_to_leave(_LINGER_SECONDS)
        del server
        return chief_ending

    def lost_tasks(self) -> dict[str, str]:
        """The lost tasks of the job, with the reason for each loss."""
        lost = {**self._watchdog.lost_tasks, **self._culprits}
        return {str(task): why for task, why in lost.items()}

    def explain_by_lost_process(self, error: BaseException) -> BenchmarkError | None:
        """Returns an error that names the lost process, if the loss of a process explains `error`;
        else None.
        """
        if not self._tensorflow_connected:
            return None  # After a failed handshake, importing TensorFlow would only cost seconds.
        unreachable = (
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.CancelledError,
            tf.errors.InternalError,
            tf.errors.DeadlineExceededError,
        )
        causes = (error, error.__cause__)
        if not any(isinstance(cause, unreachable) for cause in causes):
            return None
        lost = self._watchdog.explain_error(_FAILURE_SECONDS)
        names = _TASK_OF_TENSORFLOW.findall(str(error))
        named = [t for t in self._job.peers if (t.tensorflow_job, str(t.index)) in names]
        # The message of a cnnbench error is already clear, so only the lost processes are added to
        # it.
        if not lost and isinstance(error, unreachable):
            lost = dict.fromkeys(named, _NAMED)
        # The processes that TensorFlow names come first.
        self._culprits = {**{task: lost[task] for task in named if task in lost}, **lost}
        lost = self._culprits
        return BenchmarkError(f"lost {self._job.states_text(lost)}") if lost else None

    @contextmanager
    def reporting_end(
        self,
        write: Callable[[str, BaseException | None], object],
        explain: Callable[[Exception], BenchmarkError | None] = lambda error: None,
    ) -> Iterator[None]:
        """A context around the whole run, which reports the run's end to the other processes.

        Args:
          write: writes the record of a block that ends early. Its arguments are "interrupted" or
            "failed", and the error. It is not called for a UsageError.
          explain: returns the error to raise instead of an error of another library; None for a
            defect.
        """
        try:
            yield
        except UsageError as error:
            self.report_run_end(ExitCode.FAILED, str(error))
            raise
        except KeyboardInterrupt:
            # The record is written before the end is reported, because the report waits for the
            # other processes.
            write("interrupted", None)
            self.report_run_end(ExitCode.INTERRUPTED, "interrupted")
            raise
        except Exception as error:
            failure = self.explain_by_lost_process(error) or explain(error)
            write("failed", failure or error)
            self.report_run_end(ExitCode.FAILED, str(failure or error))
            if failure is None or failure is error:
                raise
            raise failure from error
        self.report_run_end(ExitCode.OK)

    def report_run_end(self, code: int, reason: str = "") -> None:
        """Reports the end of the run to the other processes, which may end from now on."""
        together = self._job.client_per_worker
        # Workers that run their own steps end at the same step, or fail there for the same reason.
        # If this process ended at once, TensorFlow would not deliver the last messages of its last
        # collective, and the other workers would fail.
        seconds = _FAILURE_SECONDS if code or together else _DISMISSAL_SECONDS
        self._watchdog.announce_end(RunEnding(code, reason), seconds, lost=together and code != 0)
