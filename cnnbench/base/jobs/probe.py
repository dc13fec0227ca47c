"""Probes of the gRPC servers of other tasks; no TensorFlow.

`probe` sends the beginning of an HTTP/2 connection and expects the first frame of the answer. A
process that was stopped still accepts connections, because the kernel does, but answers nothing.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from cnnbench.base.jobs import loop
from cnnbench.base.jobs.job import Job, Task, host_and_port
from cnnbench.errors import BenchmarkError

OK = "ok"
REFUSED = "nobody listens there"
SILENT = "does not answer"
UNKNOWN_HOST = "unknown host"
UNREACHABLE = "cannot be reached"
NOT_GRPC = "another program answers there"
NAMED = "named by TensorFlow"

# RFC 9113, sections 3.4 and 6.5: the preface of a client and an empty SETTINGS frame. A server
# answers with a SETTINGS frame of its own, whose header has the type at its fourth byte.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_FRAME_HEADER = 9
_SETTINGS = 4

_MOST_AT_ONCE = 128
_TASK_OF_TENSORFLOW = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)")


def probe(address: str, timeout: float = 3.0) -> str:
    """Returns `OK` if a gRPC server answers, otherwise a description of the failure."""
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
            # Reset: the process ended between connection and answer.
            return REFUSED
    return OK if answer[3] == _SETTINGS else NOT_GRPC


def wait_up(job: Job, timeout: float, tell: Callable[[str], None]) -> None:
    """Waits until the servers of all other tasks answer; BenchmarkError after `timeout` seconds.

    To be called before connecting; `tell` prints a line about missing tasks every few seconds.
    """
    started = last = time.monotonic()
    missing = dict.fromkeys(job.peers, "")
    while missing:
        missing = not_ok(job, tuple(missing), timeout=3.0)
        now = time.monotonic()
        if missing and now - started >= timeout:
            raise BenchmarkError(f"{job.task}: waited {timeout:g} s for {listed(job, missing)}")
        if missing and now - last >= loop.REPORT_SECONDS:
            last = now
            tell(f"waiting for {listed(job, missing)}")
        if missing:
            time.sleep(loop.RETRY_SECONDS)


def culprits(job: Job, error: BaseException) -> dict[Task, str]:
    """Tasks that do not answer now, with their states, as the cause of an error of TensorFlow.

    Tasks named in its message come first; if all tasks answer, only these are returned.
    """
    names = _TASK_OF_TENSORFLOW.findall(str(error))
    found = {Task.of_tensorflow(name, int(index)) for name, index in names}
    named = [task for task in job.peers if task in found]
    lost = not_ok(job, job.peers, timeout=5.0)
    if not lost:
        return dict.fromkeys(named, NAMED)
    first = {task: lost[task] for task in named if task in lost}
    return {**first, **lost}


def not_ok(
    job: Job, tasks: tuple[Task, ...], timeout: float, ask: Callable[[str, float], str] = probe
) -> dict[Task, str]:
    """States of the given tasks that do not answer; all are probed at once."""
    if not tasks:
        return {}
    with ThreadPoolExecutor(min(len(tasks), _MOST_AT_ONCE)) as pool:
        states = pool.map(lambda task: ask(job.address(task), timeout), tasks)
        return {task: state for task, state in zip(tasks, states, strict=True) if state != OK}


def named(job: Job, task: Task) -> str:
    """A task with its address, for messages."""
    return f"{task} ({job.address(task)})" if job.in_cluster else "the run"


def listed(job: Job, states: Mapping[Task, object]) -> str:
    """Tasks with their addresses and states, for messages."""
    return "; ".join(f"{named(job, task)}: {state}" for task, state in states.items())
