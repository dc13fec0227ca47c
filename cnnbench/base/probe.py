"""Probes whether the gRPC servers of a job's tasks answer, without TensorFlow.

`probe_grpc_server` sends the beginning of an HTTP/2 connection and expects the first frame of the
answer. A successful connection is not enough: the kernel still accepts connections for a stopped
process, which cannot answer.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cnnbench.base.job import Job, Task, host_and_port
from cnnbench.errors import BenchmarkError

RETRY_SECONDS = 0.1
"""Interval between two attempts to connect to another process."""

REPORT_SECONDS = 5.0
"""Interval between two reports of missing processes."""

OK = "ok"
REFUSED = "nobody listens there"
SILENT = "does not answer"
UNKNOWN_HOST = "unknown host"
UNREACHABLE = "cannot be reached"
NOT_GRPC = "another program answers there"
NAMED = "named by TensorFlow"

# The beginning of HTTP/2, on which gRPC is based: a client sends the connection preface and an
# empty SETTINGS frame (RFC 9113, 3.4 and 6.5), and the server answers with its own SETTINGS frame.
# Byte 3 of a frame's header is its type.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_FRAME_HEADER = 9
_SETTINGS = 4

_MOST_AT_ONCE = 128
_TASK_OF_TENSORFLOW = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)")


def probe_grpc_server(address: str, timeout: float = 3.0) -> str:
    """Probes whether a gRPC server answers at an address. Returns `OK` or the kind of failure."""
    try:
        connection = socket.create_connection(host_and_port(address), timeout)
    except (socket.gaierror, UnicodeError):
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
            # If the process at the address ends before it answers, the connection is reset.
            return REFUSED
    return OK if answer[3] == _SETTINGS else NOT_GRPC


def wait_for_servers(job: Job, timeout: float, tell: Callable[[str], None]) -> None:
    """Waits until the servers of all other tasks in the job answer. Call it before connecting.

    Every few seconds, `tell` is called with a line about missing tasks. BenchmarkError after
    `timeout` seconds.
    """
    started = last = time.monotonic()
    missing = failed_probes(job, job.peers, timeout=3.0)
    while missing:
        now = time.monotonic()
        if now - started >= timeout:
            raise BenchmarkError(f"{job.task}: waited {timeout:g} s for {job.states_text(missing)}")
        if now - last >= REPORT_SECONDS:
            last = now
            tell(f"waiting for {job.states_text(missing)}")
        time.sleep(RETRY_SECONDS)
        missing = failed_probes(job, tuple(missing), timeout=3.0)


def suspect_tasks(job: Job, error: BaseException) -> dict[Task, str]:
    """Finds the tasks that probably caused an error of TensorFlow, with a state such as `SILENT`.

    Tasks that are named in the error message come first. If all tasks answer, only the named tasks
    are returned.
    """
    names = _TASK_OF_TENSORFLOW.findall(str(error))
    named = [task for task in job.peers if (task.tensorflow_job, str(task.index)) in names]
    lost = failed_probes(job, job.peers, timeout=5.0)
    if not lost:
        return dict.fromkeys(named, NAMED)
    first = {task: lost[task] for task in named if task in lost}
    return {**first, **lost}


def failed_probes(
    job: Job,
    tasks: tuple[Task, ...],
    timeout: float,
    ask: Callable[[str, float], str] = probe_grpc_server,
) -> dict[Task, str]:
    """Probes the gRPC servers of tasks concurrently. Returns the silent tasks with the reasons."""
    if not tasks:
        return {}
    with ThreadPoolExecutor(min(len(tasks), _MOST_AT_ONCE)) as pool:
        states = pool.map(lambda task: ask(job.address(task), timeout), tasks)
        return {task: state for task, state in zip(tasks, states, strict=True) if state != OK}
