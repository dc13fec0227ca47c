"""Detects lost, stopped and stalled processes of a job, and ends this process if one is missing.

TensorFlow waits without limit for a stopped process, and its errors do not always name a lost
process. Therefore, a watchdog in every process exchanges messages (`cnnbench.base.message`) with
the chief, on the connection of the handshake. TensorFlow is not imported.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cnnbench.base.escapes import to_terminal_line
from cnnbench.base.files import parse_json
from cnnbench.base.interrupts import LONGEST_WAIT_SECONDS, WRITING_SECONDS, raise_if_interrupted
from cnnbench.base.job import Job, Task
from cnnbench.base.message import MessageLink
from cnnbench.errors import ExitCode
from cnnbench.run.runtime.progress import ProcessActivity, ProcessProgress, StallDetector

PATIENCE = 600.0
"""Seconds that a process may need to load TensorFlow and start its server."""

PERIOD = 2.0
"""Seconds between two messages of a task."""
_LONGEST_PERIOD = 10.0
"""Maximum interval between checks for a stall in a job of one process."""

_SILENCE = 30.0
"""Seconds without a message after which a task is lost. Code that lets no thread of Python run may
take less, such as the building of a large graph."""
_SUSPECT_SECONDS = 2.5 * PERIOD
"""Seconds without a message after which a task explains an error of TensorFlow."""

_LINGER_SECONDS = 2.0

CLOSED = "its process has ended, or the connection is broken"
SILENT = "does not answer"


class RunEnding(NamedTuple):
    """The end of a run: an exit code, and a reason if the code is not 0."""

    code: int
    reason: str = ""


@dataclass
class _PeerConnection:
    """The connection of the watchdog to another task, and what that task has reported.

    `line` is None after it was closed. `heard` is the time of the last message or of the close.
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
    handshake. Every `PERIOD` seconds, both ends send a message with their progress; for n tasks,
    these are 2(n-1) messages. A task is lost if its line was closed a period ago, so that a task
    that fails in the same step can report it first, or if no message has arrived for `_SILENCE`
    seconds. Before the chief ends, it reports lost tasks to all other tasks, so that all tasks
    report the same loss. The other tasks only watch the chief.

    While this process is stopped, its clock stands still. So the other tasks, whose messages it has
    not read meanwhile, are not lost, and its own progress does not stall.

    The chief also compares the progress of all tasks; see `StallDetector`.

    Args:
      lost: called once with a message that names the lost task. It runs in a different thread,
        because the main thread may be blocked in TensorFlow. It has a minute to write the record
        and print.
      leave: ends the process without clean-up. `sys.exit` would wait for the main thread.
      tolerates_loss: function of a task, and of whether its line was closed, that returns whether
        the job continues without the task. If so, the loss is only recorded in `lost_tasks`.
      read_progress: see `StallDetector`; None for a process without a training loop.
    """

    def __init__(
        self,
        job: Job,
        lost: Callable[[str], None],
        *,
        patience: float = PATIENCE,
        leave: Callable[[int], object] = os._exit,
        tolerates_loss: Callable[[Task, bool], bool] = lambda task, closed: False,
        read_progress: Callable[[], ProcessProgress] | None = None,
        stall_timeout: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._lost = lost
        self._patience = patience
        self._period = PERIOD if job.in_cluster else min(_LONGEST_PERIOD, stall_timeout / 4)
        self._leave = leave
        self._tolerates_loss = tolerates_loss
        self._stall_timeout = stall_timeout
        self._progress = (
            None if read_progress is None else StallDetector(read_progress, stall_timeout)
        )
        self._clock = clock
        self.lost_tasks: dict[Task, str] = {}
        self._peers: dict[Task, _PeerConnection] = {}
        # For each task that fails or is lost, the reason.
        self._reasons: dict[Task, str] = {}
        self._selector = selectors.DefaultSelector()
        self._up = False
        self._own: ProcessProgress | None = None
        self._ticked = self._now = 0.0
        self._stopped = threading.Event()
        self._once = threading.Lock()
        self._changed = threading.Condition()
        self._ending: RunEnding | None = None

    def start(self, connections: Mapping[Task, socket.socket]) -> None:
        """Starts the watchdog's thread, which uses the given connections to tasks."""
        self.adopt_connections(connections)
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def adopt_connections(self, connections: Mapping[Task, socket.socket]) -> None:
        """Takes over the connections of the handshake, without starting the thread.

        The thread calls `send_and_check_progress` and `read_messages`.
        """
        self._ticked = self._clock()
        for task, connection in connections.items():
            line = MessageLink(connection)
            self._peers[task] = _PeerConnection(line, self._now)
            self._selector.register(line, selectors.EVENT_READ, task)

    def announce_server_ready(self) -> None:
        """Tells the other tasks that this process's TensorFlow server answers."""
        self._up = True
        self._send({"up": True, "standing": self._own})

    def wait_for_servers(self) -> None:
        """Waits until the servers of all tasks with a connection answer, or can start."""
        with self._changed:
            while not all(peer.up for peer in self._peers.values()):
                raise_if_interrupted()
                self._changed.wait(LONGEST_WAIT_SECONDS)

    def announce_ready_together(self) -> None:
        """Announces that this worker is ready to start its server, and waits for all workers.

        The servers of the workers start together. While they start, no Python code runs in this
        process, so a lost worker could not be detected.
        """
        if not self._job.is_chief:
            self.announce_server_ready()
        self.wait_for_servers()
        if self._job.is_chief:
            self.announce_server_ready()

    def wait_for_run_end(self) -> RunEnding:
        """Waits until the chief announces the end of the run, and returns it."""
        with self._changed:
            while self._ending is None:
                raise_if_interrupted()
                self._changed.wait(LONGEST_WAIT_SECONDS)
        return self._ending

    def wait_for_chief_to_leave(self, timeout: float) -> None:
        """Waits until the chief's process has ended, or `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._peers[self._job.chief].line is None, timeout)

    def announce_end(self, ending: RunEnding, timeout: float = 0.0, *, lost: bool = False) -> None:
        """Tells the other tasks that this process has finished. From now on, they may end.

        Args:
          timeout: maximum seconds to wait until the other tasks have ended, failed or are lost.
            Tasks that fail in the same step may still need the server of this process.
          lost: whether the other tasks treat the end as a loss, and report its reason.
        """
        self._stopped.set()
        self._send({"failed": to_terminal_line(ending.reason)} if lost else {"end": ending})
        with self._changed:
            self._changed.wait_for(self.have_ended, timeout)

    def explain_error(self, timeout: float) -> dict[Task, str]:
        """Returns the tasks whose failure or silence can be the cause of an error of TensorFlow,
        with the reasons. Waits up to `timeout` seconds for one.
        """

        def causes() -> dict[Task, str]:
            silent = self._silent_tasks(self._peers, _SUSPECT_SECONDS)
            states = self._with_own(dict.fromkeys(silent, SILENT) | self._reasons)
            return {task: state for task, state in states.items() if task not in self.lost_tasks}

        with self._changed:
            states = self._changed.wait_for(causes, timeout) or self._with_own({**self._reasons})
        self._report_silent(states)
        return states

    def send_and_check_progress(self) -> None:
        """Sends the progress of this process, and checks the reports of the other processes."""
        self._advance_clock()
        if self._progress is not None:
            self._own = self._progress.progress_at(self._now)
        self._send({"up": self._up, "standing": self._own}, can_be_skipped=True)
        self._handle_losses()
        if not self._stopped.is_set():
            self._end_if_stalled()

    def read_messages(self, timeout: float) -> bool:
        """Reads messages of other tasks for up to `timeout` seconds.

        Returns True as soon as a connection was closed.
        """
        ready = self._selector.select(timeout)
        self._advance_clock()
        closed = [self._receive(key.data) for key, _ in ready]
        return any(closed)

    def _run(self) -> None:
        # Servers wait for the end of the chief's process, which closes their lines.
        closes = self._job.client_per_worker and not self._job.is_chief
        while not (
            self._stopped.is_set() and (self._are_closed() or (closes and self.have_ended()))
        ):
            self.send_and_check_progress()
            until = self._clock() + self._period
            while (left := until - self._clock()) > 0 and not self.read_messages(left):
                pass
        for peer in self._peers.values():
            self._close(peer)
        self._selector.close()

    def _advance_clock(self) -> None:
        """Advances the time of this process, in which the time for which it was stopped is
        missing.
        """
        now = self._clock()
        self._now += min(now - self._ticked, 2 * self._period)
        self._ticked = now

    # Messages from and to the other tasks.

    def _send(
        self, message: object, *, except_to: Task | None = None, can_be_skipped: bool = False
    ) -> None:
        """Sends a message to all connected tasks, without blocking.

        Bytes that cannot be sent now are sent by the next call. A message that `can_be_skipped` is
        not sent to a task that has not received all earlier messages.
        """
        with self._changed:
            for task, peer in self._peers.items():
                line = None if task == except_to else peer.line
                if line is not None and (not can_be_skipped or line.flush()):
                    line.send(message)

    def _receive(self, task: Task) -> bool:
        """Reads the messages of a task. Returns whether the connection was closed."""
        peer = self._peers[task]
        assert peer.line is not None
        peer.heard = self._now
        try:
            texts = peer.line.receive()
        except EOFError:
            if not peer.ended and not self._stopped.is_set() and task not in self._reasons:
                self._handle(task, peer, {"failed": CLOSED})
            self._close(peer)
            return True
        for text in texts:
            with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError):
                self._handle(task, peer, parse_json(text))
        return False

    def _handle(self, task: Task, peer: _PeerConnection, message: dict[str, Any]) -> None:
        if "lost" in message:
            self._fail_and_end(str(message["lost"]))
            return
        with self._changed:
            if "failed" in message:
                if self._job.is_chief:
                    self._send({"task": str(task), **message}, except_to=task)
                failed = self._task_named(str(message.get("task")), task)
                self._reasons[failed] = to_terminal_line(str(message["failed"]))
            elif "end" in message:
                code, reason = message["end"]
                peer.ended = True
                if task == self._job.chief:
                    self._ending = RunEnding(int(code), str(reason))
            else:
                peer.up = peer.up or bool(message["up"])
                progress = message["standing"]
                peer.last_progress = (
                    None if progress is None else ProcessProgress.from_json(progress)
                )
            self._changed.notify_all()

    def _task_named(self, name: str, default: Task) -> Task:
        return next((task for task in self._job.tasks if str(task) == name), default)

    def _close(self, peer: _PeerConnection) -> None:
        with self._changed:
            if peer.line is not None:
                self._selector.unregister(peer.line)
                peer.line.close()
            peer.line = None
            self._changed.notify_all()

    def have_ended(self) -> bool:
        """Whether all other tasks have ended, failed or are lost."""
        return all(map(self._has_ended, self._job.peers))

    def _has_ended(self, task: Task) -> bool:
        """Whether a task has ended or failed, or has no connection to report its end."""
        line = self._peers.get(task) or self._peers.get(self._job.chief)
        known = task in self._reasons or task in self.lost_tasks
        return known or line is None or line.ended or line.line is None

    def _are_closed(self) -> bool:
        return all(peer.line is None for peer in self._peers.values())

    # Detection of lost and stalled tasks, from their messages.

    def _silent_tasks(self, tasks: Iterable[Task], seconds: float) -> list[Task]:
        """The tasks that have sent nothing for so long although they should."""
        peers = [(task, self._peers[task]) for task in tasks]
        before = self._now - seconds
        return [t for t, p in peers if p.line and p.up and not p.ended and p.heard < before]

    def _with_own(self, lost: dict[Task, str]) -> dict[Task, str]:
        """Returns what the others have said of this process, if they have ended without it, such as
        after a stop of this process; else `lost`.
        """
        own = self._job.task
        return {own: self._reasons[own]} if lost and own in self._reasons else lost

    def _report_silent(self, lost: Mapping[Task, str]) -> None:
        """Tells all other tasks, and silent ones when they continue, who is silent."""
        for task, state in lost.items():
            if state == SILENT and task != self._job.task:
                self._send({"failed": state, "task": str(task)})

    def _handle_losses(self) -> None:
        """Ends this process if the job cannot continue without the lost tasks."""
        watched = {t: p for t, p in self._peers.items() if not p.ended and t not in self.lost_tasks}
        closed = [t for t, p in watched.items() if not p.line and p.heard <= self._now - PERIOD]
        lost = {task: self._reasons.get(task, CLOSED) for task in closed}
        if self._silent_tasks(watched, _SILENCE):
            lost |= dict.fromkeys(self._silent_tasks(watched, _SUSPECT_SECONDS), SILENT)
        with self._changed:
            if self._stopped.is_set():
                # A lost task will not report its end, so `announce_end` must not wait for it.
                for task in lost:
                    self._peers[task].ended = True
            self._changed.notify_all()
        if self._stopped.is_set():
            return
        for task in [*lost]:
            if self._tolerates_loss(task, self._peers[task].line is None):
                state = f"{self._job.address(task)}: {lost.pop(task)}"
                self.lost_tasks[task] = to_terminal_line(state)
        if lost := self._with_own(lost):
            self._report_silent(lost)
            self.lost_tasks |= lost
            self._fail_and_end(f"lost {self._job.states_text(lost)}")
        late = [task for task, peer in self._peers.items() if peer.line and not peer.up]
        if late and self._now >= self._patience:
            missing = self._job.states_text(dict.fromkeys(late, "its server has not started"))
            self._fail_and_end(f"waited {self._patience:g} s for {missing}")

    def _end_if_stalled(self) -> None:
        """Ends the job if no training loop has made progress for --stall_timeout."""
        if self._own is None or not self._job.is_chief:
            return
        reports = {self._job.task: self._own}
        reports |= {t: peer.last_progress for t, peer in self._peers.items() if peer.last_progress}
        loops = self._job.num_workers if self._job.client_per_worker else 1
        if len(reports) < loops or not all(progress.stalled for progress in reports.values()):
            return
        # All tasks synchronise in every step, so a task that is not in a step blocks the other
        # tasks. If all tasks are in a step, the tasks with the fewest steps block the other tasks.
        blocking = {t: at for t, at in reports.items() if at.doing is not ProcessActivity.STEP}
        if not blocking:
            least = min(at.steps for at in reports.values())
            blocking = {task: at for task, at in reports.items() if at.steps == least}
        # A process that runs the steps of all workers knows which worker it waits for.
        tasks = {self._task_named(at.task, task): str(at) for task, at in blocking.items()}
        even = "; all are at the same step" if len(blocking) > 1 else ""
        stuck = f"stuck: {self._job.states_text(tasks)}{even}"
        self._fail_and_end(f"{stuck} (--stall_timeout={self._stall_timeout:g})")

    def _fail_and_end(self, message: str) -> None:
        """Tells the other tasks why the job failed, and ends this process.

        Returns only if a test replaces `leave`.
        """
        if self._stopped.is_set() or not self._once.acquire(blocking=False):
            return
        if self._job.is_chief:
            self._send({"lost": message})

        def call_lost_callback() -> None:
            with contextlib.suppress(Exception):  # Even if the callback fails, exit.
                self._lost(to_terminal_line(message))

        call = threading.Thread(target=call_lost_callback, daemon=True)
        call.start()
        if self._job.is_chief:
            # If this process exited with unread messages, the system would reset its connections,
            # and the other tasks would lose its last message.
            end = time.monotonic() + _LINGER_SECONDS
            while any(peer.line for peer in self._peers.values()) and time.monotonic() < end:
                self.read_messages(end - time.monotonic())
        call.join(WRITING_SECONDS)
        self._leave(int(ExitCode.FAILED))
