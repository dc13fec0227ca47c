"""Detects lost, stopped and stalled processes of a job, and ends this process if one is missing.

TensorFlow waits without limit for a stopped process, and its errors do not always name a lost
process. Therefore, a watchdog in every process exchanges messages (`cnnbench.base.message`) with
the chief. If a process sends no messages, its gRPC port is probed (`probe_grpc_server`). A process
with a busy interpreter answers the probe; a stopped process does not. TensorFlow is not imported.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cnnbench.base.files import parse_json
from cnnbench.base.interrupts import LONGEST_WAIT_SECONDS, WRITING_SECONDS, raise_if_interrupted
from cnnbench.base.job import Job, Task
from cnnbench.base.message import MessageLink
from cnnbench.base.probe import (
    failed_probes,
    probe_grpc_server,
    task_and_address_text,
    task_states_text,
)
from cnnbench.base.text import to_terminal_line
from cnnbench.errors import ExitCode
from cnnbench.run.runtime.progress import (
    LONG,
    ProcessProgress,
    StallDetector,
    find_blocking_tasks,
)

PATIENCE = 600.0
"""Seconds that a process may need to load TensorFlow and start its server."""

PERIOD = 2.0
"""Seconds between two messages of a task."""

_SILENCE = 6.0
"""Seconds without a message after which a task is suspect."""
_ANSWER_SECONDS = 5.0
"""Time limit for the answer of a suspect task."""
_MISSES = 2
"""Number of consecutive failed probes after which a task is lost."""

NOT_STARTED = "its server has not started"
MUTE = "answers, but reports nothing"

_LINGER_SECONDS = 2.0
_RECENT_SECONDS = 30.0
"""If this process was stopped at most this long ago, the stop may have ended the job."""


class RunEnding(NamedTuple):
    """The end of a run: an exit code, and a reason if the code is not 0."""

    code: int
    reason: str = ""


@dataclass
class _PeerConnection:
    """The connection of the watchdog to another task, and what that task has reported.

    `line` is None after it was closed. `heard` is the time of the last message.
    `last_progress` is None if the task has no training loop.
    """

    line: MessageLink | None
    heard: float
    up: bool = False
    ended: bool = False
    last_progress: ProcessProgress | None = None


class Watchdog:
    """Ends this process, from a daemon thread, when its job cannot continue.

    Every task except the chief has one connection to the chief (its line), which remains from the
    handshake. Every `period` seconds, both ends send a message with their progress; for n tasks,
    these are 2(n-1) messages. A task is suspect if its line was closed, or if no message has
    arrived for some seconds. A suspect task is probed every `period` seconds. It is lost after
    several failed probes in a row, so a task that ends normally just before this process calls
    `announce_end` is not considered lost. Before the chief ends, it reports lost tasks to all other
    tasks, so that all tasks report the same loss. The other tasks only watch the chief. If the
    chief does not answer, they probe all tasks and report all lost tasks.

    The chief also compares the progress of all tasks; see `StallDetector`.
    """

    def __init__(
        self,
        job: Job,
        lost: Callable[[str], None],
        *,
        patience: float = PATIENCE,
        period: float = PERIOD,
        leave: Callable[[int], object] = os._exit,
        tolerates_loss: Callable[[Task, str], bool] = lambda task, state: False,
        read_progress: Callable[[], ProcessProgress] | None = None,
        stall_timeout: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[str, float], str] = probe_grpc_server,
    ) -> None:
        """Initializes the watchdog without starting the thread.

        Args:
          lost: called once with a message that names the lost task. It runs in a different thread,
            because the main thread may be blocked in TensorFlow. It has a minute to write the
            record and print.
          leave: ends the process without clean-up. `sys.exit` would wait for the main thread.
          tolerates_loss: function of a task and its state (from `probe_grpc_server`) that returns
            whether the job continues without the task. If so, the loss is only recorded in
            `lost_tasks`.
          read_progress: see `StallDetector`; None for a process without a training loop.
        """
        self._job = job
        self._lost = lost
        self._patience, self._period = patience, period
        self._leave = leave
        self._tolerates_loss = tolerates_loss
        self._stall_timeout = stall_timeout
        self._progress = (
            None if read_progress is None else StallDetector(read_progress, stall_timeout)
        )
        self._clock = clock
        self._ask = ask
        self.lost_tasks: dict[Task, str] = {}
        self._peers: dict[Task, _PeerConnection] = {}
        # The reasons that failing tasks have sent, by task.
        self._reasons: dict[Task, str] = {}
        self._selector = selectors.DefaultSelector()
        self._up = False
        self._own: ProcessProgress | None = None
        self._missed: dict[Task, int] = {}
        self._start = self._ticked = self._gap = self._gap_end = 0.0
        self._stopped = threading.Event()
        self._once = threading.Lock()
        self._changed = threading.Condition()
        self._ending: RunEnding | None = None

    def start(self, connections: Mapping[Task, socket.socket] | None = None) -> None:
        """Starts the watchdog's thread, which uses the given connections to tasks."""
        self.adopt_connections(connections or {})
        threading.Thread(target=self._run_watchdog, name="watchdog", daemon=True).start()

    def adopt_connections(self, connections: Mapping[Task, socket.socket]) -> None:
        """Takes over the connections of the handshake, without starting the thread.

        The thread calls `send_and_check_progress` and `read_messages`.
        """
        self._start = self._ticked = self._clock()
        for task, connection in connections.items():
            line = MessageLink(connection)
            self._peers[task] = _PeerConnection(line, self._start)
            self._selector.register(line, selectors.EVENT_READ, task)

    def announce_server_ready(self, *, all_tasks_ready: bool = False) -> None:
        """Records that this process's TensorFlow server answers, and tells the other tasks.

        With `all_tasks_ready`, the servers of all other tasks answer, too. From then on, a task
        that becomes silent is lost, even if it has never announced its server.
        """
        self._up = True
        for peer in self._peers.values():
            peer.up = peer.up or all_tasks_ready
            self._send_message(peer, {"up": True, "standing": self._own})

    def announce_ready_together(self) -> None:
        """Announces that this worker is ready to start its server, and waits for all workers.

        The servers of the workers start together. While they start, no Python code runs in this
        process, so a lost worker could not be detected.
        """
        if not self._job.is_chief:
            self.announce_server_ready()
        with self._changed:
            while not all(peer.up for peer in self._peers.values()):
                raise_if_interrupted()
                self._changed.wait(LONGEST_WAIT_SECONDS)
        if self._job.is_chief:
            self.announce_server_ready()

    def wait_for_run_end(self) -> RunEnding:
        """Waits until the chief announces the end of the run, and returns it."""
        with self._changed:
            while self._ending is None:
                raise_if_interrupted()
                self._changed.wait(LONGEST_WAIT_SECONDS)
        return self._ending

    def announce_end(self, ending: RunEnding, timeout: float = 0.0, *, lost: bool = False) -> None:
        """Tells the other tasks that this process has finished. From now on, they may end.

        Args:
          timeout: maximum seconds to wait until the other tasks have ended, failed or are lost.
            Tasks that fail in the same step may still need the server of this process.
          lost: whether the other tasks treat the end as a loss, and report its reason.
        """
        self._stopped.set()
        self._send_to_all({"failed": to_terminal_line(ending.reason)} if lost else {"end": ending})
        with self._changed:
            self._changed.wait_for(self.all_peers_ended, timeout)

    def replace_by_sent_reasons(
        self, states: Mapping[Task, str], timeout: float = 0.0
    ) -> dict[Task, str]:
        """Replaces the states of lost tasks by the reasons that the tasks have sent.

        Waits up to `timeout` seconds for reasons. If `states` is empty, returns all tasks that have
        sent a reason.
        """

        def known() -> bool:
            return bool(self._reasons) or (bool(states) and all(map(self._has_ended, states)))

        with self._changed:
            self._changed.wait_for(known, timeout)
            reasons = {task: self._reasons.get(task, state) for task, state in states.items()}
            return reasons or dict(self._reasons)

    def own_suspension_text(self) -> str:
        """Returns a text if this process was stopped for too long in the last 30 s; else ""."""
        now = self._clock()
        seconds = self._gap if now - self._gap_end < _RECENT_SECONDS else 0.0
        if now - self._ticked >= self._longest_normal_gap_seconds:
            seconds = now - self._ticked
        if not seconds:
            return ""
        own = task_and_address_text(self._job, self._job.task)
        heartbeat = "too long for the heartbeat of TensorFlow's coordination service"
        ended = heartbeat if self._job.client_per_worker else "and the other tasks ended without it"
        return f"{own} was stopped for {seconds:.0f} s, {ended}"

    def send_and_check_progress(self) -> None:
        """Sends the progress of this process, and checks the reports of the other processes."""
        now = self._read_clock_and_detect_suspension()
        if self._progress is not None:
            self._own = self._progress.progress_at(now)
        for peer in self._peers.values():
            self._send_progress(peer)
        self._end_if_tasks_are_lost(now)
        if not self._stopped.is_set():
            self._end_if_job_is_stalled()

    def read_messages(self, timeout: float) -> bool:
        """Reads messages of other tasks for up to `timeout` seconds.

        Returns True as soon as a connection was closed.
        """
        ready = self._selector.select(timeout)
        now = self._read_clock_and_detect_suspension()
        closed = [self._receive_messages(key.data, now) for key, _ in ready]
        return any(closed)

    def _run_watchdog(self) -> None:
        while not (self._stopped.is_set() and self.all_peers_ended()):
            self.send_and_check_progress()
            until = self._clock() + self._period
            while (left := until - self._clock()) > 0 and not self.read_messages(left):
                pass
        for peer in self._peers.values():
            self._close_connection(peer)
        self._selector.close()

    def _read_clock_and_detect_suspension(self) -> float:
        """Returns the time. Detects that this process was stopped since the previous call."""
        now = self._clock()
        gap = now - self._ticked
        if gap >= self._longest_normal_gap_seconds:
            self._gap, self._gap_end = gap, now
            # Messages that arrived while this process was stopped have not been read yet.
            self._start += gap
            for peer in self._peers.values():
                peer.heard += gap
            if self._progress is not None:
                self._progress.exclude_suspended_seconds(gap)
        self._ticked = now
        return now

    @property
    def _longest_normal_gap_seconds(self) -> float:
        return self._period + _SILENCE + _ANSWER_SECONDS

    # The connections with other tasks.

    def _send_to_all(self, message: object, except_peer: _PeerConnection | None = None) -> None:
        for peer in self._peers.values():
            if peer is not except_peer:
                self._send_message(peer, message)

    def _send_message(self, peer: _PeerConnection, message: object) -> None:
        """Sends a message without blocking. What cannot be sent now is sent by the next call."""
        with self._changed:
            if peer.line is not None:
                peer.line.send(message)

    def _send_progress(self, peer: _PeerConnection) -> None:
        """Sends the progress of this process, if all earlier messages could be sent."""
        with self._changed:
            if peer.line is not None and peer.line.flush():
                peer.line.send({"up": self._up, "standing": self._own})

    def _receive_messages(self, task: Task, now: float) -> bool:
        """Reads the messages of a task. Returns whether the connection was closed."""
        peer = self._peers[task]
        assert peer.line is not None
        try:
            texts = peer.line.receive()
        except EOFError:
            self._close_connection(peer)
            return True
        for text in texts:
            peer.heard = now
            with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError):
                self._handle_message(task, peer, parse_json(text))
        return False

    def _handle_message(self, task: Task, peer: _PeerConnection, message: dict[str, Any]) -> None:
        if "lost" in message:
            self._report_failure_and_end(str(message["lost"]))
        elif "failed" in message:
            if self._job.is_chief:
                self._send_to_all({**message, "task": str(task)}, except_peer=peer)
            by_name = {str(task): task for task in self._job.tasks}
            with self._changed:
                whose = by_name.get(str(message.get("task")), task)
                self._reasons[whose] = to_terminal_line(str(message["failed"]))
                self._changed.notify_all()
        elif "end" in message:
            code, reason = message["end"]
            with self._changed:
                peer.ended = True
                if task == self._job.chief:
                    self._ending = RunEnding(int(code), str(reason))
                self._changed.notify_all()
        else:
            with self._changed:
                peer.up = peer.up or bool(message["up"])
                self._changed.notify_all()
            progress = message["standing"]
            peer.last_progress = None if progress is None else ProcessProgress.from_json(progress)

    def _close_connection(self, peer: _PeerConnection) -> None:
        with self._changed:
            if peer.line is not None:
                self._selector.unregister(peer.line)
                peer.line.close()
            peer.line = None
            self._changed.notify_all()

    def all_peers_ended(self) -> bool:
        """Whether all other tasks have ended, failed or are lost."""
        return all(map(self._has_ended, self._job.peers))

    def _has_ended(self, task: Task) -> bool:
        """Whether a task has ended or failed, or has no connection to report its end."""
        line = self._peers.get(task) or self._peers.get(self._job.chief)
        known = task in self._reasons or task in self.lost_tasks
        return known or line is None or line.ended or line.line is None

    # Detection of lost and stalled tasks.

    def _end_if_tasks_are_lost(self, now: float) -> None:
        """Probes suspect tasks, and ends this process if the job cannot continue without them."""
        watched = {t: p for t, p in self._peers.items() if not p.ended and t not in self.lost_tasks}
        suspects = [
            task
            for task, peer in watched.items()
            if peer.line is None or (peer.up and peer.heard < now - _SILENCE)
        ]
        # Other tasks report only to the chief, so all tasks are probed if the chief may be lost.
        asked = self._job.peers if self._job.chief in suspects else tuple(suspects)
        states = failed_probes(self._job, asked, _ANSWER_SECONDS, self._ask)
        self._read_clock_and_detect_suspension()
        self._missed = {task: self._missed.get(task, 0) + 1 for task in states}
        lost = {task: states[task] for task, n in self._missed.items() if n >= _MISSES}
        if self._stall_timeout:
            before = now - LONG * self._stall_timeout
            mute = (task for task in suspects if watched[task].line and task not in states)
            lost |= {task: MUTE for task in mute if watched[task].heard < before}
        # `announce_end` must not wait for lost tasks, which will not report their end.
        if self._stopped.is_set():
            with self._changed:
                for task in lost.keys() & watched.keys():
                    watched[task].ended = True
                self._changed.notify_all()
            return
        for task in [task for task, state in lost.items() if self._tolerates_loss(task, state)]:
            self.lost_tasks[task] = to_terminal_line(f"{self._job.address(task)}: {lost.pop(task)}")
        if any(task in suspects for task in lost):
            lost = self.replace_by_sent_reasons(lost)
            self.lost_tasks |= lost
            self._report_failure_and_end(f"lost {task_states_text(self._job, lost)}")
        late = tuple(task for task, peer in watched.items() if peer.line and not peer.up)
        if late and now - self._start >= self._patience:
            states = failed_probes(self._job, late, _ANSWER_SECONDS, self._ask)
            missing = task_states_text(
                self._job, {task: states.get(task, NOT_STARTED) for task in late}
            )
            self._report_failure_and_end(f"waited {self._patience:g} s for {missing}")

    def _end_if_job_is_stalled(self) -> None:
        """Ends the job if no training loop has made progress for --stall_timeout."""
        if self._own is None or not self._job.is_chief:
            return
        progress_by_task = {self._job.task: self._own}
        progress_by_task |= {
            t: p.last_progress for t, p in self._peers.items() if p.last_progress is not None
        }
        loops = self._job.num_workers if self._job.client_per_worker else 1
        if len(progress_by_task) < loops or not all(
            progress.stalled for progress in progress_by_task.values()
        ):
            return
        # A process that runs the steps of all workers reports the worker for which it waits.
        by_name = {str(task): task for task in self._job.tasks}
        stalled = find_blocking_tasks(progress_by_task)
        tasks = {
            by_name.get(progress.task, task): str(progress) for task, progress in stalled.items()
        }
        even = "; all are at the same step" if len(stalled) > 1 else ""
        stuck = f"stuck: {task_states_text(self._job, tasks)}{even}"
        self._report_failure_and_end(f"{stuck} (--stall_timeout={self._stall_timeout:g})")

    def _report_failure_and_end(self, message: str) -> None:
        """Tells the other tasks why the job failed, and ends this process.

        Returns only if a test replaces `leave`.
        """
        if self._stopped.is_set() or not self._once.acquire(blocking=False):
            return
        message = self.own_suspension_text() or message
        if self._job.is_chief:
            self._send_to_all({"lost": message})

        def call_lost_callback() -> None:
            with contextlib.suppress(Exception):  # The process ends even if the callback fails.
                self._lost(to_terminal_line(message))

        call = threading.Thread(target=call_lost_callback, daemon=True)
        call.start()
        if self._job.is_chief:
            self._read_until_peers_close()
        call.join(WRITING_SECONDS)
        self._leave(int(ExitCode.FAILED))

    def _read_until_peers_close(self) -> None:
        """Reads messages until the other tasks close their connections.

        If this process closed a connection with unread messages, the connection would be reset.
        """
        end = time.monotonic() + _LINGER_SECONDS
        while any(peer.line is not None for peer in self._peers.values()):
            left = end - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(left):
                self._receive_messages(key.data, self._ticked)
