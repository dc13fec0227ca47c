"""The start of a job: each process calls the first one, says who it is, and gets one answer.

The first process of a job (`Hub`) listens. The others call it (`call`) until it answers. A caller
sends its card (`Card`), and the hub confirms with its own card. When all processes have called,
the hub sends ``{"go": value}`` to each. If there can be no job, it sends ``{"failed": reason}``,
also to processes that call later, until all have called or the time is up. Meanwhile, the hub
sends ``{"missing": text}``, and ``{"ping": 1}`` if a second process of a task calls. A caller
answers ``{"here": 1}``, and sends ``{"failed": reason}`` if it gives up.

Nothing is authenticated. A card counts only if the caller knows which job it calls
(`Hub.belongs`); other callers get an answer of their own, and change nothing.

All messages before the confirmation are those of earlier versions of cnnbench, plus fields that
these ignore. So processes of different versions learn that their versions differ. This beginning
must never change.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from cnnbench.base import message
from cnnbench.base.escapes import to_terminal_line
from cnnbench.base.files import parse_json
from cnnbench.base.interrupts import LONGEST_WAIT_SECONDS, raise_if_interrupted
from cnnbench.base.job import host_and_port
from cnnbench.errors import BenchmarkError

CALL_SECONDS = 10.0
"""Time limit for connecting, and for each message."""
FOREIGN_SECONDS = 7.0
"""Callers end if, for so long, another program answers at the hub's address. It is longer than a
hub waits for its port to be freed by a process of an earlier run."""
ALIVE_SECONDS = 2.0
"""Time in which a process must show that it still runs when a second process of its task calls."""
GOODBYE_SECONDS = 2.0
"""Time in which callers must receive the last message."""
RETRY_SECONDS = 0.1
"""Interval between two attempts to connect to another process."""
REPORT_SECONDS = 5.0
"""Interval between two reports of missing processes."""

_GREETING = "cnnbench handshake"
_STAR = 1
_VERSION = "cnnbench_version"
"""The fact that is the version of cnnbench."""
_OTHER_VERSION = "is another version of cnnbench"
_CLOSED = "closes connections"
_SILENT = "does not answer"
_FOREIGN = "another program answers there"
_REFUSED = "nobody listens there"
_STARTED = "the job has already started there; no task can join it later, so start all tasks again"
_LONGEST_LINE = 4000
"""Maximum number of characters of a reason. It suffices for all differences that a reason names."""
# The beginning of HTTP/2, on which gRPC is based: a client sends the connection preface and an
# empty SETTINGS frame (RFC 9113, 3.4 and 6.5), and the server answers with its own SETTINGS frame.
# Byte 3 of a frame's header is its type.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_FRAME_HEADER = 9
_GRPC_SECONDS = 3.0
_SETTINGS = 4
_FIRST_PAUSE_SECONDS = 0.005
_LOOK_SECONDS = 0.1
"""Interval at which the hub looks after its connections, and for interrupts."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a process says of itself.

    Attributes:
      task: name of the process in the job.
      facts: what identifies the job, and what must be equal in all processes.
      failed: why the process gives up before it starts; None if it does not.
      pid, namespace: process id and PID namespace.
      node, port: name of the machine (empty if unknown) and reserved port.
      star: number of this protocol; 0 for versions of cnnbench that have another one.
      nonce: a random number, which earlier versions read.
    """

    task: str
    facts: Mapping[str, str]
    failed: str | None = None
    pid: int = 0
    namespace: str | None = None
    node: str = ""
    port: int = 0
    star: int = _STAR
    nonce: str = field(default_factory=lambda: os.urandom(8).hex())

    def pack(self) -> bytes:
        """The message with the card."""
        return message.pack(self.values())

    def values(self) -> dict[str, object]:
        """The JSON object of the message."""
        return {_GREETING: 1, **vars(self)}

    @classmethod
    def parse(cls, values: Any) -> Card:
        """Reads a received card. ValueError if it is none."""
        if not isinstance(values, dict) or values.get(_GREETING) != 1:
            raise ValueError("no card")
        given = {
            "star": 0,
            **{field.name: values[field.name] for field in fields(cls) if field.name in values},
        }
        texts = [given.get(name, "") for name in ("task", "node", "nonce")]
        texts += [given.get(name) or "" for name in ("namespace", "failed")]
        numbers = [given.get(name, 0) for name in ("pid", "port", "star")]
        facts = given.get("facts")
        if not (
            given.get("task")
            and isinstance(facts, dict)
            and all(isinstance(text, str) for text in (*texts, *facts.values()))
            and all(type(number) is int and 0 <= number < 1 << 32 for number in numbers)
        ):
            raise ValueError("no card")
        return cls(**given)


@dataclass(eq=False)
class Caller:
    """A connection at the hub.

    Attributes:
      connection: the socket.
      host: the IP address from which it has called.
      link: sends and receives messages without blocking.
      since: time at which it called or, for a second process of a task, was compared with the
        first one.
      card: what it has said; None before.
    """

    connection: socket.socket
    host: str
    link: message.MessageLink
    since: float
    card: Card | None = None

    @property
    def address(self) -> str:
        """The host:port of the process: the name of its machine, or the IP address from which it
        has called, and its port.
        """
        assert self.card is not None
        host = self.card.node or self.host
        return f"[{host}]:{self.card.port}" if ":" in host else f"{host}:{self.card.port}"


@dataclass(kw_only=True)
class Hub:
    """The first process of a job.

    Attributes:
      own: its card.
      tasks: the names of the other processes.
      belongs: whether a card shows that its process knows this job.
      find_difference: why a process with this card cannot take part; "" if it can.
      missing_text: names processes that have not called, for messages.
      restarts: whether another process may replace one that ends before the start. Otherwise, the
        job fails if a process ends.
      tell: prints a line.
    """

    own: Card
    tasks: Sequence[str]
    belongs: Callable[[Card], bool]
    find_difference: Callable[[Card], str]
    missing_text: Callable[[Sequence[str]], str]
    restarts: bool
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._callers: set[Caller] = set()
        self._members: dict[str, Caller] = {}
        self._second: dict[str, Caller] = {}
        self._told: set[str] = set()
        self._refused: dict[str, str] = {}
        self._failure = ""

    def run(
        self,
        listeners: Sequence[socket.socket],
        timeout: float,
        answers: Callable[[Mapping[str, Caller]], Callable[[Card], object]],
    ) -> dict[str, Caller]:
        """Waits for all processes, and sends each a value: `answers` returns, for the callers by
        task, a function of a card that returns it.

        Returns the callers by task, whose connections stay open. The listeners are closed.

        Raises:
          BenchmarkError: there is no job.
        """
        deadline = time.monotonic() + timeout
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._selector)
            for listener in listeners:
                stack.enter_context(listener)
                listener.setblocking(False)
                self._selector.register(listener, selectors.EVENT_READ, None)
            try:
                self._collect(deadline, timeout)
            except BaseException as error:
                self._fail(f"{self.own.task} gave up: {str(error) or 'interrupted'}")
                self._say_goodbye()
                raise
            if not self._failure:
                answer = answers(self._members)
                for caller in self._members.values():
                    assert caller.card is not None
                    caller.link.send({"go": answer(caller.card)})
            self._say_goodbye()
        if self._failure:
            raise BenchmarkError(self._failure)
        return self._members

    def _collect(self, deadline: float, timeout: float) -> None:
        """Receives calls until all processes are there or, after a failure, know the reason."""
        most = 64 + 2 * len(self.tasks)
        report = time.monotonic() + REPORT_SECONDS
        look = 0.0
        while not self._is_complete():
            raise_if_interrupted()
            now = time.monotonic()
            if now >= deadline:
                missing = self._missing_text()
                waited = f"waited {timeout:g} s (--cluster_timeout) for {missing}"
                self._fail(f"{self.own.task}: {waited}")
                return
            if now >= report:
                report = now + REPORT_SECONDS
                self._report()
            if now >= look:
                look = now + _LOOK_SECONDS
                self._look_after_callers(now)
            wait = min(deadline - now, report - now, _LOOK_SECONDS)
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    self._accept(key.fileobj, most)  # type: ignore[arg-type]
                elif key.data in self._callers:
                    self._receive(key.data)

    def _is_complete(self) -> bool:
        if self._failure:
            return self._told.issuperset(self.tasks)
        return not self._second and len(self._members) == len(self.tasks)

    def _missing_text(self) -> str:
        there = self._told if self._failure else self._members
        missing = [task for task in self.tasks if task not in there]
        refused = [f"; refused: {self._refused[t]}" for t in missing if t in self._refused]
        return self.missing_text(missing) + "".join(refused[:1])

    def _report(self) -> None:
        missing = self._missing_text()
        if self._failure:
            self.tell(f"{self._failure}; waiting for {missing} to report it, too")
            return
        self.tell(f"waiting for {missing}")
        for caller in self._members.values():
            caller.link.send({"missing": missing})

    def _accept(self, listener: socket.socket, most: int) -> None:
        with contextlib.suppress(OSError):  # The caller has left.
            connection, source = listener.accept()
            if len(self._callers) >= most:
                connection.close()
                return
            host = str(source[0]).removeprefix("::ffff:")
            caller = Caller(connection, host, message.MessageLink(connection), time.monotonic())
            self._callers.add(caller)
            self._selector.register(connection, selectors.EVENT_READ, caller)

    def _receive(self, caller: Caller) -> None:
        try:
            for text in caller.link.receive():
                values = parse_json(text)
                if caller.card is None:
                    caller.card = Card.parse(values)
                    self._welcome(caller, caller.card)
                elif "failed" in values and self._is_member(caller):
                    self._fail(f"{caller.card.task} gave up: {values['failed']}")
                elif "here" in values and self._is_member(caller):
                    self._refuse_second(caller.card.task)
        except message.FOREIGN:
            self._drop(caller)

    def _is_member(self, caller: Caller) -> bool:
        return caller.card is not None and self._members.get(caller.card.task) is caller

    def _welcome(self, caller: Caller, card: Card) -> None:
        """Decides what becomes of a process that has sent its card."""
        task = card.task
        difference = self.find_difference(card)
        if task not in self.tasks or not self.belongs(card):
            reason = _to_line(difference or f"{self.own.task} is of another job")
            if task in self.tasks:
                self._refused[task] = reason
            self._refuse(caller, reason)
            return
        if card.star != _STAR:
            difference = difference or f"{task} {_OTHER_VERSION} than {self.own.task}"
        if card.failed is not None:
            # A second process of a task gives up because the first one has its port.
            if task not in self._members:
                self._fail(_gave_up(card))
        elif difference:
            self._fail(difference)
        values = self.own.values()
        if card.star != _STAR:  # It does not know the other messages, but compares the facts.
            version = f"{self.own.facts.get(_VERSION, '')}, with another start of jobs"
            values["facts"] = {**self.own.facts, _VERSION: version}
        caller.link.send(values)
        if self._failure:
            self._told.add(task)
            self._refuse(caller, self._failure)
        elif task in self._members:
            first = self._members[task]
            first.link.send({"ping": 1})
            if task in self._second:
                self._refuse_second(task)
            self._second[task] = caller
            caller.since = time.monotonic()
        else:
            self._members[task] = caller

    def _look_after_callers(self, now: float) -> None:
        for caller in [*self._callers]:
            caller.link.flush()
            has_place = self._is_member(caller) or caller in self._second.values()
            if not has_place and now > caller.since + CALL_SECONDS:
                self._close(caller)
        for task, second in [*self._second.items()]:
            # A failure of the job has removed all second processes.
            if task in self._second and now > second.since + ALIVE_SECONDS:
                self._replace(task)

    def _replace(self, task: str) -> None:
        """The first process of a task shows no sign of life or has ended, so the second one
        replaces it.
        """
        second = self._second[task].card
        assert second is not None
        if second.failed is not None:
            self._fail(_gave_up(second))
            return
        first, self._members[task] = self._members[task], self._second.pop(task)
        self._close(first)

    def _refuse_second(self, task: str) -> None:
        second = self._second.pop(task, None)
        if second is not None:
            first = self._members[task].host
            self._refuse(second, f"{task} has already connected, from {first}")

    def _refuse(self, caller: Caller, reason: str) -> None:
        caller.link.send({_GREETING: 1, "star": _STAR, "failed": _to_line(reason)})

    def _drop(self, caller: Caller) -> None:
        """Handles the end of a connection."""
        task = caller.card.task if caller.card else ""
        is_member = self._is_member(caller)
        self._close(caller)
        if self._second.get(task) is caller:
            del self._second[task]
        elif is_member and task in self._second:
            self._replace(task)
        elif is_member:
            del self._members[task]
            if not self.restarts:
                self._told.add(task)
                self._fail(f"{task}, at {caller.address}, has ended")

    def _close(self, caller: Caller) -> None:
        self._callers.discard(caller)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(caller.connection)
        caller.link.close()

    def _fail(self, reason: str) -> None:
        """Stores the reason why there is no job, and sends it to all processes that are there."""
        if self._failure:
            return
        self._failure = _to_line(reason)
        for task, caller in (*self._members.items(), *self._second.items()):
            self._told.add(task)
            self._refuse(caller, self._failure)
        self._second.clear()

    def _say_goodbye(self) -> None:
        """Sends what is not sent yet. Closes all connections but those of a job that starts."""
        end = time.monotonic() + GOODBYE_SECONDS
        waiting = list(self._callers)
        while waiting and time.monotonic() < end:
            waiting = [caller for caller in waiting if not caller.link.flush()]
            if waiting:
                time.sleep(0.01)
        kept = () if self._failure else self._members.values()
        for caller in [*self._callers]:
            if caller not in kept:
                self._close(caller)


def call(
    address: str,
    own: Card,
    timeout: float,
    tell: Callable[[str], None],
    *,
    name: str,
    restarts: bool,
    find_difference: Callable[[Card], str],
) -> tuple[socket.socket, Any]:
    """Calls the hub of a job until it answers. Returns the connection and the value for this
    process.

    Args:
      address: host:port of the hub.
      own: this process's card. If it contains a reason, only the reason is delivered.
      name: names the hub in messages.
      restarts, find_difference: as in `Hub`.

    Raises:
      BenchmarkError: there is no job.
    """
    caller = _Calling(address, own, timeout, tell, name, restarts, find_difference)
    return caller.run()


@dataclass
class _Calling:
    """Calls of one process to the hub of its job."""

    address: str
    own: Card
    timeout: float
    tell: Callable[[str], None]
    name: str
    restarts: bool
    find_difference: Callable[[Card], str]

    def __post_init__(self) -> None:
        now = time.monotonic()
        self._deadline = now + self.timeout
        self._next_report = now + REPORT_SECONDS
        self._missing = self._others = ""

    def run(self) -> tuple[socket.socket, Any]:
        """See `call`."""
        pause = _FIRST_PAUSE_SECONDS
        foreign_since: float | None = None
        while True:
            began = time.monotonic()
            with contextlib.ExitStack() as stack:
                link = self._connect()
                if link is not None:
                    stack.callback(link.close)
                    found = self._converse(link)
                    if found is not None:
                        stack.pop_all()
                        return link, found[0]
            if self._missing in (_FOREIGN, _SILENT, _STARTED):
                foreign_since = began if foreign_since is None else foreign_since
                if time.monotonic() - foreign_since >= FOREIGN_SECONDS:
                    raise BenchmarkError(f"{self.name}: {self._missing}")
            else:
                foreign_since = None
            for _ in self._waits(time.monotonic() + pause):
                time.sleep(min(pause, RETRY_SECONDS))
            pause = min(2 * pause, RETRY_SECONDS)

    def _waits(self, until: float = math.inf) -> Iterator[float]:
        """Yields the seconds to wait, until the time `until`. Reports a missing hub meanwhile.

        Raises BenchmarkError when the time of the whole call is up.
        """
        while (now := time.monotonic()) < until:
            raise_if_interrupted()
            if now >= self._deadline:
                waited = f"waited {self.timeout:g} s (--cluster_timeout) for {self._missing_text()}"
                raise BenchmarkError(f"{self.own.task}: {waited}")
            if now >= self._next_report:
                self._next_report = now + REPORT_SECONDS
                self.tell(f"waiting for {self._missing_text()}")
            yield min(until, self._deadline, self._next_report, now + LONGEST_WAIT_SECONDS) - now

    def _missing_text(self) -> str:
        return self._others or f"{self.name}: {self._missing or 'no answer'}"

    def _connect(self) -> socket.socket | None:
        """Connects to the hub, in a thread, because the look-up of a name may take minutes."""
        found: queue.SimpleQueue[socket.socket | Exception] = queue.SimpleQueue()

        def connect() -> None:
            try:
                found.put(socket.create_connection(host_and_port(self.address), CALL_SECONDS))
            except (OSError, UnicodeError) as error:
                found.put(error)

        threading.Thread(target=connect, daemon=True).start()
        for seconds in self._waits():
            with contextlib.suppress(queue.Empty):
                result = found.get(timeout=seconds)
                if isinstance(result, socket.socket):
                    return result
                self._missing = _connection_problem(result)
                return None
        raise AssertionError("_waits has no end")

    def _converse(self, link: socket.socket) -> tuple[Any] | None:
        """Sends the card, and waits for the value of this process. None if the hub was lost, whose
        state is then in `_missing`.
        """
        self._missing, self._others = _CLOSED, ""
        try:
            link.settimeout(CALL_SECONDS)
            link.sendall(self.own.pack())
            if not self._wait_for_bytes(link, time.monotonic() + FOREIGN_SECONDS):
                self._missing = _SILENT
                return None
            first = message.receive(link, CALL_SECONDS)
            if not isinstance(first, dict) or first.get(_GREETING) != 1:
                raise ValueError("another program")
        except message.FOREIGN as error:
            closed = isinstance(error, (EOFError, ConnectionError))
            if _is_grpc_server(self.address):
                self._missing = _STARTED
            elif not closed:
                self._missing = _FOREIGN
            return None
        self._check(first)
        try:
            return self._wait_for_answer(link)
        except message.FOREIGN:
            self._missing, self._others = _REFUSED, ""
        except BaseException as error:  # The hub ignores this if the reason is its own.
            with contextlib.suppress(OSError):
                link.sendall(message.pack({"failed": str(error) or "interrupted"}))
            raise
        if not self.restarts:
            raise BenchmarkError(f"{self.name}: it has ended")
        return None

    def _check(self, first: dict[str, Any]) -> None:
        """Raises BenchmarkError if the first message of the hub refuses this process."""
        if first.get("failed") is not None:
            raise BenchmarkError(_to_line(first["failed"]))
        if first.get("star") != _STAR:
            with contextlib.suppress(ValueError):
                if difference := self.find_difference(Card.parse(first)):
                    raise BenchmarkError(_to_line(difference))
            raise BenchmarkError(f"{self.name} {_OTHER_VERSION}")

    def _wait_for_answer(self, link: socket.socket) -> tuple[Any] | None:
        self._missing = ""
        while True:
            self._wait_for_bytes(link)
            values = message.receive(link, CALL_SECONDS)
            if "go" in values:
                return (values["go"],)
            if "failed" in values:
                raise BenchmarkError(_to_line(values["failed"]))
            if "ping" in values:
                link.sendall(message.pack({"here": 1}))
            if "missing" in values:
                self._others = _to_line(values["missing"])

    def _wait_for_bytes(self, link: socket.socket, until: float = math.inf) -> bool:
        """Waits until bytes have arrived, or the connection has ended. False at time `until`."""
        poll = select.poll()
        poll.register(link, select.POLLIN)
        return any(poll.poll(seconds * 1000) for seconds in self._waits(until))


def _is_grpc_server(address: str) -> bool:
    """Whether a gRPC server, such as TensorFlow's of a job that has started, has an address."""
    with contextlib.suppress(OSError, UnicodeError):
        with socket.create_connection(host_and_port(address), _GRPC_SECONDS) as link:
            link.sendall(_PREFACE)
            with link.makefile("rb") as answer:
                return answer.read(_FRAME_HEADER)[3:4] == bytes([_SETTINGS])
    return False


def _gave_up(card: Card) -> str:
    return f"{card.task} gave up: {card.failed}"


def _to_line(text: object) -> str:
    """Converts a text that another process may have sent to one line of limited length.

    A longer text could make a message too long for the processes that receive it.
    """
    line = to_terminal_line(str(text)[:_LONGEST_LINE])
    return line if len(line) < _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3]}..."


def _connection_problem(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return _REFUSED
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "unknown host"
    return str(getattr(error, "strerror", None) or error).lower()
