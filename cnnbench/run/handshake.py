"""The handshake between the processes of a job, before TensorFlow is loaded.

When TensorFlow starts, it waits for missing processes without a limit or a message, and it accepts
processes with different flags. In the handshake, every process calls the chief (`base/star.py`),
which compares versions and flags. When `connect_job` returns, the port of this process is free for
TensorFlow's server. The connections with the chief stay open for the watchdog.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from cnnbench.base import star
from cnnbench.base.job import PS, Job, Task, host_and_port
from cnnbench.base.ports import unbound_socket
from cnnbench.base.star import Caller, Card
from cnnbench.errors import BenchmarkError
from cnnbench.machine.cpu import Host, pid_namespace

_PORT_SECONDS = 5.0
"""Time that a process of an earlier run may need to free the port."""
_MOST_NAMED = 8
"""Maximum number of tasks, or of flags, in one line."""
_LONGEST_VALUE = 200


class JobConnections(NamedTuple):
    """The connections of a process with its job that stay open after the handshake.

    Attributes:
      port: socket that reserves the port, without listening, until TensorFlow's server listens on
        the port.
      lines: sockets by task. The chief is connected with all other tasks, and each other task with
        the chief.
      local: PIDs of the job's other processes on this machine.
    """

    port: contextlib.ExitStack
    lines: Mapping[Task, socket.socket]
    local: Collection[int] = ()


def connect_job(
    job: Job, facts: Mapping[str, str], timeout: float, tell: Callable[[str], None]
) -> JobConnections:
    """Waits for all processes of a job, and checks that they have the same versions and flags.

    Every few seconds, `tell` is called with a line about missing tasks. `facts` contains the
    versions and flags that must be equal.

    Raises:
      BenchmarkError: the port of this task is in use; or a task is missing, has given up, or has
        different facts. The message names the task and its address.
    """
    addresses = {f"--{name}_hosts": ",".join(job.addresses_of(name)) for name in ("worker", "ps")}
    addresses["--controller_host"] = job.controller_address or ""
    own = Card(
        task=str(job.task),
        facts={**addresses, **facts},
        pid=os.getpid(),
        namespace=pid_namespace(Host()),
    )
    if job.is_chief:
        return _receive_calls(job, own, addresses, timeout, tell)
    return _call_chief(job, own, timeout, tell)


def _receive_calls(
    job: Job, own: Card, addresses: Mapping[str, str], timeout: float, tell: Callable[[str], None]
) -> JobConnections:
    """The handshake of the chief."""
    named = {str(task): job.named(task) for task in job.peers}

    def missing_text(tasks: Sequence[str]) -> str:
        return _join_phrases([f"{named[task]}: has not called" for task in tasks])

    hub = star.Hub(
        own=own,
        tasks=tuple(named),
        belongs=lambda card: addresses.items() <= card.facts.items(),
        find_difference=partial(_differences, own),
        missing_text=missing_text,
        restarts=True,
        tell=tell,
    )
    listener, port = _take_port(job)
    with contextlib.ExitStack() as opened:
        opened.enter_context(port)
        callers = hub.run([listener], timeout, partial(_pids_by_machine, own))
        opened.pop_all()
    lines = {task: callers[str(task)].connection for task in job.peers}
    return JobConnections(port, lines, _pids_by_machine(own, callers)(own))


def _call_chief(job: Job, own: Card, timeout: float, tell: Callable[[str], None]) -> JobConnections:
    """The handshake of any other process."""
    call = partial(
        star.call,
        job.address(job.chief),
        timeout=timeout,
        name=job.named(job.chief),
        restarts=True,
        find_difference=lambda card: _differences(own, card),
    )
    try:
        listener, port = _take_port(job)
    except BenchmarkError as error:
        reason = str(error)
        with contextlib.suppress(BenchmarkError):  # The chief confirms the reason with itself.
            call(replace(own, failed=reason), tell=lambda line: tell(f"{reason}; {line}"))
        raise
    listener.close()
    with contextlib.ExitStack() as opened:
        opened.enter_context(port)
        line, local = call(own, tell=tell)
        opened.pop_all()
    pids = frozenset(pid for pid in local if type(pid) is int) if isinstance(local, list) else ()
    return JobConnections(port, {job.chief: line}, pids)


def _pids_by_machine(chief: Card, callers: Mapping[str, Caller]) -> Callable[[Card], list[int]]:
    """Returns a function that returns the PIDs of the other processes on a process's machine."""
    pids: dict[str, dict[str, int]] = {}
    for card in (chief, *(caller.card for caller in callers.values())):
        if card is not None and card.namespace:
            pids.setdefault(card.namespace, {})[card.task] = card.pid

    def others(card: Card) -> list[int]:
        there = pids.get(card.namespace or "", {})
        return [pid for task, pid in there.items() if task != card.task]

    return others


def _take_port(job: Job) -> tuple[socket.socket, contextlib.ExitStack]:
    """Opens a socket that listens on this process's port, and one that only reserves it."""
    deadline = time.monotonic() + _PORT_SECONDS
    while True:
        try:
            return _bind(job.address(job.task))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(star.RETRY_SECONDS)
                continue
            reason = error.strerror or error
            if error.errno == errno.EADDRINUSE:
                reason = "the port is in use by another program"
            raise BenchmarkError(f"{job.named(job.task)}: {reason}") from error


def _bind(address: str) -> tuple[socket.socket, contextlib.ExitStack]:
    """Opens a socket that listens on the port of an address, on all network interfaces.

    Also returns the sockets that reserve the port until they are closed. Raises OSError
    (EADDRINUSE) if the port is in use. All sockets on the port set SO_REUSEADDR, so that
    TensorFlow's server can listen on it, but another cnnbench process could, too. So a Unix domain
    socket reserves the port among cnnbench processes. On Linux, its name needs no file and belongs
    to the network namespace, as the port does. Other systems have no such names.
    """
    _, port = host_and_port(address)
    with contextlib.ExitStack() as stack:
        reserved = stack.enter_context(contextlib.ExitStack())
        if sys.platform == "linux":
            lock_socket = reserved.enter_context(socket.socket(socket.AF_UNIX))
            lock_socket.bind(f"\0cnnbench port {port}")
        pair = reserved.enter_context(unbound_socket()), stack.enter_context(unbound_socket())
        for bound_socket in pair:
            bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound_socket.bind(("", port))
        pair[1].listen(128)
        stack.pop_all()
    return pair[1], reserved


def _differences(own: Card, other: Card) -> str:
    """Returns a text about versions and flags that differ between two processes; "" if none do."""
    names: Iterable[str] = dict.fromkeys((*own.facts, *other.facts))
    # A ps task sends fewer versions and flags than a worker, so only the versions and flags that
    # both tasks have sent are compared.
    if any(card.task.startswith(f"{PS}:") for card in (own, other)):
        names = [name for name in own.facts if name in other.facts]
    differences = [
        f"{name} is {_shortened(own.facts.get(name))} at {own.task}, "
        f"{_shortened(other.facts.get(name))} at {other.task}"
        for name in names
        if own.facts.get(name) != other.facts.get(name)
    ]
    if not differences:
        return ""
    return f"the processes of the job disagree: {_join_phrases(differences)}"


def _shortened(value: object) -> str:
    text = "unknown" if value is None else str(value) or "''"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _join_phrases(phrases: list[str]) -> str:
    more = len(phrases) - _MOST_NAMED
    return "; ".join((*phrases[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else ())))
