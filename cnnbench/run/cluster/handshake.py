"""Handshake of all processes before TensorFlow is loaded; standard library only.

TensorFlow's own start waits without limit or message for a missing process, and accepts processes
with different flags; its import cannot be cancelled. Here every process listens on its own address,
calls all others, and continues when it has reached and has been reached by every one. So each pair
of addresses is known to work in both directions, whatever the order of starts, and the port is free
again when `meet` returns: TensorFlow's server takes it. The connections with the chief stay open
for `cnnbench.run.cluster.watchdog`. A process that gives up tells the others, also those that start
later.

A call is three lines, each a JSON object of at most `LONGEST_LINE` bytes: the card of the caller,
the card of the process that answers, and a confirmation. Nothing is authenticated, and nothing
received is executed or stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from cnnbench.base.jobs import loop
from cnnbench.base.jobs.job import PS, Job, Task, host_and_port
from cnnbench.base.jobs.ports import claim, unbound
from cnnbench.base.jobs.probe import named
from cnnbench.base.text.escape import one_line
from cnnbench.errors import BenchmarkError
from cnnbench.machine.host import Host, pid_namespace

LONGEST_LINE = 1 << 20

_GREETING = "cnnbench handshake"
_CALL_SECONDS = 10.0  # for one call, from either side
_PORT_SECONDS = 5.0  # for a port that a process of an earlier run is about to free
_GOODBYE_SECONDS = 2.0  # for telling all others of a failure, until a notice reports the wait
_MOST_NAMED = 8  # tasks, or flags, in one message
_LONGEST_VALUE = 200


@dataclass(frozen=True)
class Met:
    """Connections that stay open after the handshake.

    Attributes:
      port: reserves the port, without listening, until TensorFlow's server listens on it.
      lines: connections with all other tasks at the chief, with the chief at the others.
      local: PIDs of the other processes of the job on this machine.
    """

    port: contextlib.ExitStack
    lines: Mapping[Task, socket.socket]
    local: Collection[int] = ()


def meet(job: Job, facts: Mapping[str, str], timeout: float, tell: Callable[[str], None]) -> Met:
    """Waits until every process of a job is there and has the same facts: versions and `--flags`.

    `tell` prints a line about missing tasks every few seconds.

    Raises:
      BenchmarkError: the port of this task is in use, or a task is missing, has given up or has
        other facts. The message names the task and its address.
    """
    hosts = {f"--{name}_hosts": ",".join(job.addresses_of(name)) for name in ("worker", "ps")}
    hosts["--controller_host"] = job.controller_host or ""
    return loop.run(_Meeting(job, {**hosts, **facts}, tell).run(timeout))


@dataclass(frozen=True)
class _Card:
    """Facts that a process sends about itself; `pid` is valid in `namespace` (`pid_namespace`)."""

    task: str
    nonce: str
    facts: Mapping[str, str]
    failed: str | None
    pid: int
    namespace: str | None

    @classmethod
    def read(cls, line: bytes) -> _Card | None:
        """Reads a card; None if no process of cnnbench has sent it."""
        try:
            values = json.loads(line)
            if not isinstance(values, dict) or _GREETING not in values:
                return None
            facts, failed = values["facts"], values["failed"]
            namespace = values.get("namespace")
            return cls(
                task=str(values["task"]),
                nonce=str(values["nonce"]),
                facts={str(name): str(value) for name, value in facts.items()},
                failed=None if failed is None else str(failed),
                pid=int(str(values.get("pid", 0))),
                namespace=None if namespace is None else str(namespace),
            )
        except (ValueError, KeyError, AttributeError, RecursionError):
            return None

    def line(self) -> bytes:
        return json.dumps({_GREETING: 1, **vars(self)}).encode() + b"\n"


class _Meeting:
    """The state of the handshake in one process.

    A peer has arrived when the process that answers on its address has the same nonce (a random
    number per process) as the one that has called here.
    """

    def __init__(self, job: Job, facts: Mapping[str, str], tell: Callable[[str], None]) -> None:
        self._job = job
        self._tell = tell
        self._own = _Card(
            task=str(job.task),
            nonce=secrets.token_hex(8),
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
        self._came: set[Task] = set()
        self._told = False  # a process that gave up told this one, and tells all others
        self._visits = 0

    async def run(self, timeout: float) -> Met:
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        until = time.monotonic() + timeout
        try:
            listener, reserved = await self._listen()
        except BenchmarkError as error:
            await self._say_goodbye(str(error), until)
            raise
        server = await asyncio.start_server(self._visited, sock=listener, limit=LONGEST_LINE)
        work = [asyncio.create_task(self._reach(peer)) for peer in self._job.peers]
        work.append(asyncio.create_task(loop.report(self._tell, self._missing)))
        try:
            self._check_arrivals()
            done, _ = await asyncio.wait([self._over], timeout=timeout)
            if not done:
                message = f"waited {timeout:g} s (--cluster_timeout) for {self._missing()}"
                self._fail(f"{self._job.task}: {message}")
            self._over.result()
        except BenchmarkError as error:
            reserved.close()
            for line in self._lines.values():
                line.close()
            await self._say_goodbye(str(error), until)
            raise
        finally:
            for task in work:
                task.cancel()
            server.close()
        here, cards = self._own.namespace, self._reached.values()
        local = frozenset(c.pid for c in cards if here is not None and c.namespace == here)
        return Met(reserved, self._lines, local)

    # The port of this process.

    async def _listen(self) -> tuple[socket.socket, contextlib.ExitStack]:
        """A listening socket on the own port, and a reservation of it that does not listen."""
        deadline = time.monotonic() + _PORT_SECONDS
        while True:
            try:
                return _bind(self._job.address(self._job.task))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                    await asyncio.sleep(loop.RETRY_SECONDS)
                    continue
                reason = error.strerror or error
                if error.errno == errno.EADDRINUSE:
                    reason = "the port is in use by another program"
                raise BenchmarkError(f"{named(self._job, self._job.task)}: {reason}") from error

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._visits += 1
        try:
            if self._visits <= 64 + 2 * len(self._by_name):
                await asyncio.wait_for(self._answer(reader, writer), _CALL_SECONDS)
        # A process of the job will call again, unless the meeting is over, where Python 3.11 would
        # print a traceback of the cancellation.
        except (OSError, ValueError, asyncio.TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._visits -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        card = _Card.read(await reader.readline())
        if card is None or card.nonce == self._own.nonce:
            return
        self._note(card)
        if card.failed is not None:
            self._told = self._told or not self._over.done()
            self._fail(f"{card.task} gave up: {card.failed}")
            return
        writer.write(self._own.line())
        await writer.drain()
        if self._agrees(card) and await reader.readline() and card.task in self._by_name:
            peer = self._by_name[card.task]
            self._called_by[peer] = card.nonce
            if self._job.is_chief:
                self._keep(peer, writer)
            self._check_arrivals()

    # The ports of the others.

    async def _reach(self, peer: Task) -> None:
        while not self._has_arrived(peer):
            if peer not in self._reached or peer in self._called_by:
                trouble = await self._call(peer)
                self._trouble[peer] = trouble or ""
                self._check_arrivals()
            await asyncio.sleep(loop.RETRY_SECONDS)

    async def _call(self, peer: Task) -> str | None:
        """Calls a peer once; returns why it cannot be reached, or None."""
        try:
            card = await asyncio.wait_for(self._exchange(peer, self._own), _CALL_SECONDS)
        except socket.gaierror:
            return "unknown host"
        except ConnectionRefusedError:
            return "nobody listens there"
        except asyncio.TimeoutError:
            return "no answer"
        except ValueError:
            card = None
        except OSError as error:
            return (error.strerror or str(error)).lower()
        if card is None:
            return "another program answers there"
        self._note(card)
        if not self._agrees(card):
            return "disagrees"
        if card.task != str(peer):
            return f"answers as {card.task}"
        self._reached[peer] = card
        return None

    async def _exchange(self, peer: Task, own: _Card) -> _Card | None:
        host, port = host_and_port(self._job.address(peer))
        reader, writer = await asyncio.open_connection(host, port, limit=LONGEST_LINE)
        try:
            writer.write(own.line())
            card = _Card.read(await reader.readline())
            if card is not None and _differences(self._own, card) == []:
                writer.write(b"{}\n")
                await writer.drain()
                if peer == self._job.chief and card.task == str(peer):
                    self._keep(peer, writer)
            return card
        finally:
            writer.close()

    def _keep(self, peer: Task, writer: asyncio.StreamWriter) -> None:
        if peer in self._lines:
            self._lines[peer].close()
        self._lines[peer] = writer.get_extra_info("socket").dup()

    async def _say_goodbye(self, reason: str, until: float) -> None:
        """Tells the other processes that this one has given up; absent ones until `until`."""
        card = replace(self._own, facts={}, failed=reason)

        async def tell(peer: Task) -> None:
            while True:
                try:
                    await asyncio.wait_for(self._exchange(peer, card), _CALL_SECONDS)
                    return
                except (OSError, ValueError, asyncio.TimeoutError):
                    if peer in self._came:
                        return  # the peer has ended, or tells its own failure
                await asyncio.sleep(loop.RETRY_SECONDS)

        # A coroutine: a cancelled future of gather prints that nobody retrieved its exception.
        async def tell_all() -> None:
            await asyncio.gather(*map(tell, self._job.peers))

        telling = asyncio.create_task(tell_all())
        await asyncio.wait([telling], timeout=_GOODBYE_SECONDS)
        left = until - time.monotonic()
        if not (telling.done() or self._told) and left > 0:
            absent = [named(self._job, peer) for peer in self._job.peers if peer not in self._came]
            self._tell(f"{reason}; waiting for {_listed(absent)} to tell it, too")
            await asyncio.wait([telling], timeout=left)
        telling.cancel()

    # State of the handshake.

    def _note(self, card: _Card) -> None:
        if card.task in self._by_name:
            self._came.add(self._by_name[card.task])

    def _agrees(self, card: _Card) -> bool:
        found = _differences(self._own, card)
        if found:
            self._fail(f"the processes of the job disagree: {_listed(found)}")
        return not found

    def _has_arrived(self, peer: Task) -> bool:
        return peer in self._reached and self._reached[peer].nonce == self._called_by.get(peer)

    def _check_arrivals(self) -> None:
        if all(map(self._has_arrived, self._job.peers)) and not self._over.done():
            self._over.set_result(None)

    def _fail(self, message: str) -> None:
        if not self._over.done():
            self._over.set_exception(BenchmarkError(one_line(message)))

    def _missing(self) -> str:
        peers = [peer for peer in self._job.peers if not self._has_arrived(peer)]
        return _listed([f"{named(self._job, peer)}: {self._state(peer)}" for peer in peers])

    def _state(self, peer: Task) -> str:
        if self._trouble.get(peer):
            return self._trouble[peer]
        if peer not in self._reached:
            return "no answer"
        if peer in self._called_by:
            return f"two processes say that they are {peer}"
        return f"it has not reached this process at {self._job.address(self._job.task)}"


def _bind(address: str) -> tuple[socket.socket, contextlib.ExitStack]:
    """A listening socket on all interfaces, like TensorFlow's, and a reservation of the port.

    All sockets set SO_REUSEADDR, so that the server can share the port with the reservation.
    """
    _, port = host_and_port(address)
    with contextlib.ExitStack() as stack:
        reserved = stack.enter_context(contextlib.ExitStack())
        reserved.enter_context(claim(port))
        pair = reserved.enter_context(unbound()), stack.enter_context(unbound())
        for one in pair:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("", port))
        pair[1].listen(128)
        stack.pop_all()
    return pair[1], reserved


def _differences(own: _Card, other: _Card) -> list[str]:
    names: Iterable[str] = dict.fromkeys((*own.facts, *other.facts))
    if any(card.task.startswith(f"{PS}:") for card in (own, other)):  # it has few facts
        names = [name for name in own.facts if name in other.facts]
    return [
        f"{name} is {_value(own.facts.get(name))} at {own.task}, "
        f"{_value(other.facts.get(name))} at {other.task}"
        for name in names
        if own.facts.get(name) != other.facts.get(name)
    ]


def _value(text: str | None) -> str:
    if text is None:
        return "unknown"
    return (text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}...") or "''"


def _listed(phrases: list[str]) -> str:
    more = len(phrases) - _MOST_NAMED
    return "; ".join((*phrases[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else ())))
