"""The handshake between the processes of a job, before TensorFlow is loaded.

When TensorFlow starts, it waits for missing processes without a limit or a message, and it accepts
processes with different flags. In the handshake, every process listens on its own address and calls
all other processes. It continues when all calls have succeeded in both directions, regardless of
the order of starts. When `connect_job` returns, the port is free for TensorFlow's server. The
connections with the chief stay open for the watchdog. A process that gives up reports this to the
other processes, including processes that start later.

A call consists of three messages (`cnnbench.base.message`): the caller's card (`_Card`),
the card of the process that answers, and a confirmation.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from cnnbench.base import message, probe
from cnnbench.base.escapes import to_terminal_line
from cnnbench.base.job import PS, Job, Task, host_and_port
from cnnbench.base.meeting import CALL_SECONDS, Meeting
from cnnbench.base.ports import unbound_socket
from cnnbench.errors import BenchmarkError
from cnnbench.machine.cpu import Host, pid_namespace
from cnnbench.records.codec import decode

_GREETING = "cnnbench handshake"
_STARTED = "the job has already started there; no task can join it later, so start all tasks again"
"""State of a peer whose TensorFlow server answers, because all tasks have arrived before."""

_PORT_SECONDS = 5.0
"""Time that a process of an earlier run may need to free the port."""
_GOODBYE_SECONDS = 2.0
"""Time to report a failure to all other tasks. Only a longer wait is announced by a notice."""
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
    hosts = {f"--{name}_hosts": ",".join(job.addresses_of(name)) for name in ("worker", "ps")}
    hosts["--controller_host"] = job.controller_address or ""
    handshake = _Handshake(job, {**hosts, **facts}, tell)
    with handshake:
        return handshake.run(timeout)


@dataclass(frozen=True)
class _Card:
    """The card that a process sends in the handshake: its task, versions, flags and PID.

    `nonce` is a random number that identifies the process. `failed` is the reason why the process
    gave up, or None. `namespace` is the PID namespace (see `pid_namespace`).
    """

    task: str
    nonce: str
    facts: Mapping[str, str]
    failed: str | None
    pid: int = field(default=0, metadata={"optional": True})
    namespace: str | None = field(default=None, metadata={"optional": True})

    @classmethod
    def receive(cls, link: socket.socket) -> _Card:
        """Receives a card. Raises the errors of `message.receive`; ValueError if it is no card."""
        values = message.receive(link, CALL_SECONDS)
        card = decode(cls, values)
        if values.get(_GREETING) != 1:
            raise ValueError("another greeting")
        return card

    def pack(self) -> bytes:
        """The message with the card."""
        return message.pack({_GREETING: 1, **vars(self)})


class _Handshake(Meeting):
    """The handshake of one process with all other processes of its job (its peers).

    Each process sends a random number, its nonce. A peer has arrived when the process that answers
    on the peer's address and the process that called this one as this peer have the same nonce.
    """

    def __init__(self, job: Job, facts: Mapping[str, str], tell: Callable[[str], None]) -> None:
        super().__init__(tell)
        self._job = job
        self._own = _Card(
            task=str(job.task),
            nonce=os.urandom(8).hex(),
            facts=facts,
            failed=None,
            pid=os.getpid(),
            namespace=pid_namespace(Host()),
        )
        self._by_name = {str(task): task for task in job.peers}
        self._reached: dict[Task, _Card] = {}
        self._called_by: dict[Task, str] = {}
        self._trouble: dict[Task, str] = {}
        self._lines: dict[Task, socket.socket] = {}
        # The names of the tasks that have called or answered.
        self._came: set[str] = set()
        self._pauses_by_peer: dict[Task, threading.Event] = {}
        # None during the handshake. Then "" if all peers have arrived, otherwise the reason of the
        # failure.
        self._outcome: str | None = None
        # Whether another process has given up first. That process informs all others, so this one
        # need not.
        self._told = False

    def run(self, timeout: float) -> JobConnections:
        deadline = time.monotonic() + timeout
        try:
            listener, reserved = self._listen()
        except BenchmarkError as error:
            self._report_failure(str(error), deadline)
            raise
        with contextlib.ExitStack() as opened:
            opened.enter_context(reserved)
            opened.callback(self._close_lines)
            self.answer_in_thread(listener, self._answer_call, most=64 + 2 * len(self._by_name))
            for peer in self._job.peers:
                call = partial(self._call_if_absent, peer)
                self._pauses_by_peer[peer] = self.repeat(call)
            self._finish_if_all()
            if not self.wait(lambda: self._outcome is not None, timeout, self._missing_text):
                missing = self._missing_text()
                waited = f"waited {timeout:g} s (--cluster_timeout) for {missing}"
                self._decide(f"{self._job.task}: {waited}")
            if self._outcome:
                opened.close()
                self._report_failure(self._outcome, deadline)
                raise BenchmarkError(self._outcome)
            with self.changed:
                self.over.set()
            opened.pop_all()
        namespace, cards = self._own.namespace, self._reached.values()
        local = frozenset(c.pid for c in cards if namespace and c.namespace == namespace)
        return JobConnections(reserved, self._lines, local)

    # Calls that this process receives on its port.

    def _listen(self) -> tuple[socket.socket, contextlib.ExitStack]:
        """Opens a socket that listens on this process's port, and one that only reserves it."""
        deadline = time.monotonic() + _PORT_SECONDS
        while True:
            try:
                return _bind(self._job.address(self._job.task))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                    time.sleep(probe.RETRY_SECONDS)
                    continue
                reason = error.strerror or error
                if error.errno == errno.EADDRINUSE:
                    reason = "the port is in use by another program"
                raise BenchmarkError(f"{self._job.named(self._job.task)}: {reason}") from error

    def _answer_call(self, link: socket.socket) -> bool:
        """Reads a caller's card, answers with the own card, and compares versions and flags.

        Returns whether the connection is kept. A process whose call fails will call again.
        """
        card = _Card.receive(link)
        if card.nonce == self._own.nonce:
            return False
        self._came.add(card.task)
        if card.failed is not None:
            with self.changed:
                self._told = self._told or self._outcome is None
                self._decide(f"{card.task} gave up: {card.failed}")
            return False
        link.sendall(self._own.pack())
        if not self._check_agreement(card):
            return False
        peer = self._by_name.get(card.task)
        if peer is not None and peer in self._pauses_by_peer:
            # The peer has called this process, so its own port is open, and a call to it succeeds
            # now.
            self._pauses_by_peer[peer].set()
        message.receive(link, CALL_SECONDS)
        if peer is None:
            return False
        with self.changed:
            self._called_by[peer] = card.nonce
            kept = self._job.is_chief and self._keep(peer, link)
            self._finish_if_all()
        return kept

    # Calls that this process makes to the ports of the other processes.

    def _call_if_absent(self, peer: Task) -> bool:
        """Calls a peer once if it has not arrived. Returns whether it has arrived."""
        if not self._has_arrived(peer) and (peer not in self._reached or peer in self._called_by):
            self._trouble[peer] = self._call_peer(peer)
            self._finish_if_all()
        return self._has_arrived(peer)

    def _call_peer(self, peer: Task) -> str:
        """Calls a peer once. Returns the reason why the call failed; "" if it succeeded."""
        try:
            card = self._exchange_cards(peer, self._own)
        except TimeoutError:
            return "no answer"
        except ConnectionRefusedError:
            return probe.REFUSED
        except (socket.gaierror, UnicodeError):
            return probe.UNKNOWN_HOST
        except (EOFError, ValueError):
            server = probe.probe_grpc_server(self._job.address(peer))
            return _STARTED if server == probe.OK else probe.NOT_GRPC
        except OSError as error:
            return (error.strerror or str(error)).lower()
        self._came.add(card.task)
        if not self._check_agreement(card):
            return "disagrees"
        if card.task != str(peer):
            return f"answers as {card.task}"
        with self.changed:
            self._reached[peer] = card
        return ""

    def _exchange_cards(self, peer: Task, own: _Card) -> _Card:
        """Sends a card to a peer. Returns the card with which it answers.

        Raises the errors of `message.receive`, ValueError also for an answer that is not a card.
        """
        address = host_and_port(self._job.address(peer))
        link, kept = socket.create_connection(address, CALL_SECONDS), False
        try:
            link.sendall(own.pack())
            card = _Card.receive(link)
            if not _differences(self._own, card):
                link.sendall(message.pack({}))
                if peer == self._job.chief and card.task == str(peer):
                    kept = self._keep(peer, link)
            return card
        finally:
            if not kept:
                link.close()

    def _keep(self, peer: Task, link: socket.socket) -> bool:
        """Keeps the newest connection with a peer for the watchdog. Returns False after the
        handshake.
        """
        with self.changed:
            if self.over.is_set():
                return False
            if peer in self._lines:
                self._lines[peer].close()
            self._lines[peer] = link
        return True

    def _close_lines(self) -> None:
        with self.changed:
            for line in self._lines.values():
                line.close()

    def _report_failure(self, reason: str, deadline: float) -> None:
        """Reports to the other processes that this process has given up."""
        card = replace(self._own, facts={}, failed=reason)
        untold = set(self._job.peers)

        def tell(peer: Task) -> bool:
            try:
                self._exchange_cards(peer, card)
            except EOFError:
                pass  # The peer has read the card and closed.
            except (OSError, ValueError):
                if str(peer) not in self._came:
                    return False
                # The peer has already ended, or will report its own failure.
            with self.changed:
                untold.discard(peer)
                self.changed.notify_all()
            return True

        def absent_peers_text() -> str:
            absent = [peer for peer in self._job.peers if str(peer) not in self._came]
            return _join_phrases([self._job.named(peer) for peer in absent])

        for peer in self._job.peers:
            self.repeat(partial(tell, peer))
        is_told = self.wait(lambda: not untold, _GOODBYE_SECONDS, absent_peers_text)
        left = deadline - time.monotonic()
        if not (is_told or self._told) and left > 0:
            self._tell(f"{reason}; waiting for {absent_peers_text()} to report it, too")
            self.wait(lambda: not untold, left, absent_peers_text)

    # State of the handshake: which peers have arrived, and whether the handshake has failed.

    def _check_agreement(self, card: _Card) -> bool:
        differences = _differences(self._own, card)
        if differences:
            self._decide(f"the processes of the job disagree: {_join_phrases(differences)}")
        return not differences

    def _has_arrived(self, peer: Task) -> bool:
        return peer in self._reached and self._reached[peer].nonce == self._called_by.get(peer)

    def _finish_if_all(self) -> None:
        if all(map(self._has_arrived, self._job.peers)):
            self._decide("")

    def _decide(self, outcome: str) -> None:
        """Sets the outcome of the handshake, if it is not known yet."""
        with self.changed:
            if self._outcome is None:
                self._outcome = to_terminal_line(outcome)
                self.changed.notify_all()

    def _missing_text(self) -> str:
        job, peers = self._job, [peer for peer in self._job.peers if not self._has_arrived(peer)]
        return _join_phrases([f"{job.named(p)}: {self._state_of_peer(p)}" for p in peers])

    def _state_of_peer(self, peer: Task) -> str:
        if self._trouble.get(peer):
            return self._trouble[peer]
        if peer not in self._reached:
            return "no answer"
        if peer in self._called_by:
            return f"two processes say that they are {peer}"
        return f"it has not reached this process at {self._job.address(self._job.task)}"


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


def _differences(own: _Card, other: _Card) -> list[str]:
    """Returns texts about versions and flags that differ between two processes."""
    if own.facts == other.facts:
        return []
    names: Iterable[str] = dict.fromkeys((*own.facts, *other.facts))
    # A ps task sends fewer versions and flags than a worker, so only the versions and flags that
    # both tasks have sent are compared.
    if any(card.task.startswith(f"{PS}:") for card in (own, other)):
        names = [name for name in own.facts if name in other.facts]
    return [
        f"{name} is {_shortened(own.facts.get(name))} at {own.task}, "
        f"{_shortened(other.facts.get(name))} at {other.task}"
        for name in names
        if own.facts.get(name) != other.facts.get(name)
    ]


def _shortened(value: object) -> str:
    text = "unknown" if value is None else str(value) or "''"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _join_phrases(phrases: list[str]) -> str:
    more = len(phrases) - _MOST_NAMED
    return "; ".join((*phrases[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else ())))
