"""Exchanges addresses between the processes of a job when each process knows only its rank.

The exchange uses MPI if mpi4py is installed. Otherwise rank 0 listens on an address that all
processes know. It confirms each call, and sends the list of addresses when all processes have
called. If a connection closes earlier, its process has ended; rank 0 reports this to the other
processes, including processes that call later.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable
from importlib.util import find_spec

from cnnbench.base import message
from cnnbench.base.escapes import to_terminal_line
from cnnbench.base.job import host_and_port, is_address
from cnnbench.base.launcher import LauncherRanks
from cnnbench.base.meeting import CALL_SECONDS, Meeting
from cnnbench.base.ports import ReservedPorts
from cnnbench.errors import BenchmarkError, FlagError

_GREETING = "cnnbench rendezvous"
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of an address that this machine does not have, such as the IPv6 address of localhost."""

_held: list[ReservedPorts] = []


def exchange_addresses(
    ranks: LauncherRanks, rendezvous: str | None, timeout: float, tell: Callable[[str], None]
) -> tuple[str, ...]:
    """Exchanges addresses with all processes of the job. Returns the host:port addresses by rank.

    A port for this process is reserved until the process exits.

    `rendezvous` is the host:port on which rank 0 listens. Without it, mpi4py is used if it is
    installed. Otherwise all processes must be on this machine, and a port derived from the job is
    used.

    Raises:
      FlagError: --rendezvous is needed.
      BenchmarkError: a process is missing after `timeout` seconds or has ended, a rank is
        duplicate, or the port is in use.
    """
    _held.append(ReservedPorts(1))
    (port,) = _held[-1].numbers
    one_machine = ranks.local_size == ranks.size
    if rendezvous is None and find_spec("mpi4py") is not None:
        from mpi4py import MPI

        address = f"{'localhost' if one_machine else socket.gethostname()}:{port}"
        hosts = tuple(map(str, MPI.COMM_WORLD.allgather(address)))
        if len(hosts) == ranks.size:
            return hosts
        reason = f"mpi4py sees {len(hosts)} of {ranks.size} processes; use --rendezvous instead"
        raise BenchmarkError(reason)
    if rendezvous is None and not one_machine:
        reason = "must be the host:port of rank 0 on several machines where mpi4py is not installed"
        raise FlagError("rendezvous", "", reason)
    place = rendezvous or f"localhost:{ranks.exchange_port}"
    exchange = _Exchange(ranks, place, port, tell)
    with exchange:
        return exchange.run(timeout)


class _Exchange(Meeting):
    def __init__(
        self, ranks: LauncherRanks, place: str, port: int, tell: Callable[[str], None]
    ) -> None:
        super().__init__(tell)
        self._ranks = ranks
        self._place = place
        self._port = port
        self._found: dict[int, str] = {}
        self._links: list[socket.socket] = []
        self._failure = ""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for link in self._links:
            with contextlib.suppress(OSError):  # Rank 0 may have closed it.
                link.shutdown(socket.SHUT_RDWR)

    def run(self, timeout: float) -> tuple[str, ...]:
        rank, size = self._ranks.rank, self._ranks.size
        if rank == 0:
            self._found[0] = f"{self._reachable_host(self._place)}:{self._port}"
            for listener in self._listen():
                self.answer_in_thread(listener, self._receive_address, most=64 + size)
        else:
            self.repeat(self._call_rank_0)
        if not self.wait(self._is_complete, timeout, self._missing_text):
            self._fail(f"rank {rank} waited {timeout:g} s for {self._missing_text()}")
        if self._failure:
            raise BenchmarkError(self._failure)
        hosts = tuple(self._found[number] for number in range(size))
        if rank == 0:
            self._send_to_all(hosts=hosts)
        return hosts

    def _is_complete(self) -> bool:
        """Whether all addresses are known or, for ranks other than 0, the reason of a failure.

        Rank 0 waits for all ranks even after a failure, to report it to them.
        """
        return len(self._found) == self._ranks.size or bool(self._ranks.rank and self._failure)

    # Rank 0.

    def _listen(self) -> list[socket.socket]:
        """Opens sockets that listen on all addresses of the meeting place."""
        opened: list[socket.socket] = []
        errors: list[OSError | UnicodeError] = []
        host, port = host_and_port(self._place)
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            rows, errors = [], [error]
        for family, address in dict.fromkeys((row[0], row[4]) for row in rows):
            try:
                opened.append(socket.create_server(address, family=family))
            except OSError as error:
                errors.append(error)
        fatal = [e for e in errors if not opened or getattr(e, "errno", None) not in _ABSENT]
        if fatal:
            for listener in opened:
                listener.close()
            reason = getattr(fatal[0], "strerror", None) or fatal[0]
            reason = f"rank 0 cannot listen there: {reason}; set --rendezvous"
            raise BenchmarkError(f"{self._place}: {to_terminal_line(reason)}") from fatal[0]
        return opened

    def _receive_address(self, link: socket.socket) -> bool:
        """Receives the address of a process that has called, and waits until its connection closes.

        Returns False, because the connection is of no use afterwards.
        """
        card = message.receive(link, CALL_SECONDS)
        rank, size = card["rank"], self._ranks.size
        # The address from which the process has called is probably one at which others can reach
        # it.
        address = f"{self._reachable_host(link.getpeername()[0])}:{card['port']}"
        known = (card["size"], card[_GREETING]) == (size, self._greeting_name())
        if not (known and rank in range(1, size) and is_address(address)):
            return False
        with self.changed:
            if rank in self._found:
                first = self._found[rank]
                self._send(link, failed=f"rank {rank} has already connected, from {first}")
                return False
            self._found[rank] = address
            self._links.append(link)
            self._send(link, failed=self._failure)
            self.changed.notify_all()
        link.settimeout(None)
        with contextlib.suppress(OSError):
            link.recv(1)
        if not (self.over.is_set() or self._is_complete() or self._failure):
            self._fail(f"rank {rank}, at {address}, has ended")
            missing = self._missing_text()
            self._tell(f"{self._failure}; waiting for {missing} to report this, too")
        return False

    def _fail(self, reason: str) -> None:
        """Stores the reason for which the address exchange fails, and sends it to all processes
        that have called.

        Processes that call later receive the reason from `_receive_address`.
        """
        with self.changed:
            self._failure = self._failure or reason
            self._send_to_all(failed=self._failure)
            self.changed.notify_all()

    def _send_to_all(self, **facts: object) -> None:
        for link in self._links:
            self._send(link, **facts)

    def _send(self, link: socket.socket, **facts: object) -> None:
        # If sending fails, the other process has ended, which `_receive_address` detects.
        with contextlib.suppress(OSError):
            link.sendall(message.pack({_GREETING: self._greeting_name(), **facts}))

    # The other ranks.

    def _call_rank_0(self) -> bool:
        """Calls rank 0. Returns whether it has sent all addresses, or has failed."""
        failure = ""
        # Rank 0 may not have started yet, so connection errors are ignored, and the call is
        # repeated.
        with (
            contextlib.suppress(*message.FOREIGN),
            socket.create_connection(host_and_port(self._place), CALL_SECONDS) as link,
        ):
            with self.changed:
                self._links = [link]
            rank, size = self._ranks.rank, self._ranks.size
            self._send(link, rank=rank, size=size, port=self._port)
            while True:
                answer = message.receive(link)
                if answer[_GREETING] != self._greeting_name():
                    break
                hosts = tuple(map(str, answer.get("hosts", ())))
                if len(hosts) == size and all(map(is_address, hosts)):
                    with self.changed:
                        self._found = dict(enumerate(hosts))
                        self.changed.notify_all()
                    return True
                failure = str(answer.get("failed") or "it has ended")
                if answer.get("failed"):
                    break
        if failure and not self.over.is_set():
            place = f"rank 0 at {self._place} (--rendezvous)"
            with self.changed:
                self._failure = self._failure or to_terminal_line(f"{place}: {failure}")
                self.changed.notify_all()
        return bool(failure)

    def _greeting_name(self) -> str:
        return f"{self._ranks.launcher} {self._ranks.size}"

    def _reachable_host(self, address: str) -> str:
        if self._ranks.local_size == self._ranks.size:
            return "localhost"
        host = host_and_port(address)[0] if address == self._place else address
        host = host.removeprefix("::ffff:")
        return f"[{host}]" if ":" in host else host

    def _missing_text(self) -> str:
        if self._ranks.rank:
            return f"rank 0 at {self._place} (--rendezvous)"
        missing = [str(rank) for rank in range(self._ranks.size) if rank not in self._found]
        return f"ranks {','.join(missing[:20])} at {self._place} (--rendezvous)"
