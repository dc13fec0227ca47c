"""Finds out that a process of the job is gone or stands still; no TensorFlow.

TensorFlow waits for ever for a process that was stopped, and its errors do not always name the
one that is lost. So every process asks the gRPC port of every other, every two seconds: it sends
the beginning of an HTTP/2 connection and expects the first frame of the answer. A process that
was stopped still accepts connections, because the kernel does, but it answers nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cnnbench.errors import BenchmarkError, ExitCode
from cnnbench.runtime.job import Job, Task, host_and_port
from cnnbench.text.escape import one_line

OK = "ok"
REFUSED = "nobody listens there"
SILENT = "does not answer"
UNKNOWN_HOST = "unknown host"
UNREACHABLE = "cannot be reached"
NOT_GRPC = "another program answers there"

# RFC 9113, sections 3.4 and 6.5: the preface of a client and an empty SETTINGS frame. A server
# answers with a SETTINGS frame of its own, whose header has the type at its fourth byte.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_FRAME_HEADER = 9
_SETTINGS = 4

_RETRY_SECONDS = 0.1
_REPORT_SECONDS = 5.0
_CALLBACK_SECONDS = 10.0
_MOST_AT_ONCE = 32
_TASK_OF_TENSORFLOW = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)")


def probe(address: str, timeout: float = 3.0) -> str:
    """Whether a gRPC server answers.

    Args:
      address: host:port.
      timeout: seconds for the connection, and for the answer.

    Returns:
      `OK`, or what is wrong in words.
    """
    try:
        connection = socket.create_connection(host_and_port(address), timeout)
    except socket.gaierror:
        return UNKNOWN_HOST
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return SILENT
    except OSError:
        return UNREACHABLE
    with connection:
        deadline = time.monotonic() + timeout
        answer = b""
        try:
            connection.sendall(_PREFACE)
            while len(answer) < _FRAME_HEADER:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                part = connection.recv(_FRAME_HEADER - len(answer))
                if not part:
                    return NOT_GRPC
                answer += part
        except TimeoutError:
            return SILENT
        except OSError:
            # Reset: its end came between the connection and the answer.
            return REFUSED
    return OK if answer[3] == _SETTINGS else NOT_GRPC


def wait_up(job: Job, timeout: float, tell: Callable[[str], None]) -> None:
    """Waits until the gRPC servers of all other tasks answer; to be called before connecting.

    Args:
      job: of several tasks.
      timeout: seconds.
      tell: prints a line about who is missing, called every few seconds.

    Raises:
      BenchmarkError: names the tasks that did not answer in time.
    """
    started = last = time.monotonic()
    missing = dict.fromkeys(job.peers, "")
    while missing:
        missing = _not_ok(job, tuple(missing), timeout=3.0)
        now = time.monotonic()
        if missing and now - started >= timeout:
            raise BenchmarkError(f"{job.task}: waited {timeout:g} s for {_listed(job, missing)}")
        if missing and now - last >= _REPORT_SECONDS:
            last = now
            tell(f"waiting for {_listed(job, missing)}")
        if missing:
            time.sleep(_RETRY_SECONDS)


def culprits(job: Job, error: BaseException) -> str:
    """Who is to blame for an error of TensorFlow: the tasks that do not answer now.

    Args:
      job: of several tasks.
      error: such as `tf.errors.UnavailableError`.

    Returns:
      Tasks with their addresses and what is wrong with each, those that the message of the
      error names first; the ones it names if all answer; "" if it names none either.
    """
    names = _TASK_OF_TENSORFLOW.findall(str(error))
    found = {Task.of_tensorflow(name, int(index)) for name, index in names}
    named = [task for task in job.peers if task in found]
    lost = _not_ok(job, job.peers, timeout=5.0)
    if not lost:
        return _listed(job, dict.fromkeys(named, "named by TensorFlow"))
    first = {task: lost[task] for task in named if task in lost}
    return _listed(job, {**first, **lost})


class Watchdog:
    """A daemon thread per peer; the loss of any ends this process.

    A peer is watched from its first answer on; until then it may still be loading TensorFlow.
    Two misses in a row make a loss, so that a peer which ends normally, a moment before this
    process calls `stop`, is none.
    """

    def __init__(
        self,
        job: Job,
        lost: Callable[[str], None],
        *,
        patience: float = 600.0,
        period: float = 2.0,
        timeout: float = 5.0,
        misses: int = 2,
        leave: Callable[[int], object] = os._exit,
        spares: Callable[[Task, str], bool] = lambda task, state: False,
    ) -> None:
        """Starts nothing.

        Args:
          job: of several tasks.
          lost: called once, in a thread of the watchdog, with a message that names the task,
            while the main thread may be stuck in TensorFlow: writes the record and prints. It
            has ten seconds.
          patience: seconds for the first answer of a peer.
          period: seconds between two questions.
          timeout: seconds for an answer.
          misses: how many in a row make a loss.
          spares: whether the others go on without a task in such a state, as `probe` names it;
            its loss is only noted in `gone`.
          leave: ends the process with an exit code, without clean-up: `sys.exit` would wait
            for the main thread.
        """
        self._job = job
        self._lost = lost
        self._patience = patience
        self._period = period
        self._timeout = timeout
        self._misses = misses
        self._leave = leave
        self._spares = spares
        self.gone: dict[Task, str] = {}
        self._stopped = threading.Event()
        self._once = threading.Lock()

    def start(self) -> None:
        """Begins to watch."""
        for peer in self._job.peers:
            name = f"watchdog of {peer}"
            threading.Thread(target=self._watch, args=(peer,), name=name, daemon=True).start()

    def stop(self) -> None:
        """To be called when this process needs the others no more; they may end from now on."""
        self._stopped.set()

    def __enter__(self) -> Watchdog:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self, peer: Task) -> None:
        address = self._job.address(peer)
        seen, misses = False, 0
        started = time.monotonic()
        while not self._stopped.is_set():
            # Often until the first answer, so that one which dies soon after it is not missed.
            state = probe(address, self._timeout if seen else min(self._timeout, 1.0))
            misses = 0 if state == OK else misses + 1
            seen = seen or state == OK
            if seen and misses >= self._misses and self._spares(peer, state):
                self.gone[peer] = one_line(f"{address}: {state}")
                return
            if seen and misses >= self._misses:
                self._report(f"lost {peer} ({address}): {state}")
            elif not seen and time.monotonic() - started >= self._patience:
                waited = f"waited {self._patience:g} s for {peer} ({address})"
                self._report(f"{waited}: {state}")
            self._stopped.wait(self._period if seen else min(self._period, _RETRY_SECONDS))

    def _report(self, message: str) -> None:
        """Never returns, but where a test's `leave` does."""
        if self._stopped.is_set() or not self._once.acquire(blocking=False):
            return
        call = threading.Thread(target=self._call_back, args=(message,), daemon=True)
        call.start()
        call.join(_CALLBACK_SECONDS)
        self._leave(int(ExitCode.FAILED))

    def _call_back(self, message: str) -> None:
        with contextlib.suppress(Exception):  # the process ends in any case
            self._lost(one_line(message))


def _not_ok(job: Job, tasks: tuple[Task, ...], timeout: float) -> dict[Task, str]:
    """What is wrong with each of these tasks that does not answer; asks all at once."""
    if not tasks:
        return {}
    with ThreadPoolExecutor(min(len(tasks), _MOST_AT_ONCE)) as pool:
        states = pool.map(lambda task: probe(job.address(task), timeout), tasks)
        return {task: state for task, state in zip(tasks, states, strict=True) if state != OK}


def _listed(job: Job, states: dict[Task, str]) -> str:
    return "; ".join(f"{task} ({job.address(task)}): {state}" for task, state in states.items())
