"""Exchange of addresses between processes that know only their ranks; no TensorFlow.

Uses MPI where mpi4py is installed. Otherwise rank 0 listens on an address that all know, confirms
each call, and sends the list to all when all have called. Until then a connection that closes is a
process that has ended; rank 0 tells the others, also those that start later. As in the handshake,
nothing is authenticated, and lines are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from importlib.util import find_spec

from cnnbench.base.jobs import loop
from cnnbench.base.jobs.job import host_and_port, is_address
from cnnbench.base.jobs.ports import ReservedPorts
from cnnbench.base.jobs.resolve import Ranks
from cnnbench.base.reading import parse_json
from cnnbench.base.text.escape import one_line
from cnnbench.errors import BenchmarkError, FlagError

_GREETING = "cnnbench rendezvous"
_LONGEST_LINE = 1 << 22
_OF_OTHERS = (OSError, ValueError, KeyError, TypeError)  # when another program calls or answers

_held: list[ReservedPorts] = []


def exchange(
    ranks: Ranks, rendezvous: str | None, timeout: float, tell: Callable[[str], None]
) -> tuple[str, ...]:
    """Addresses of all processes by rank; reserves a port of this process until it ends.

    Without `rendezvous`, the host:port on which rank 0 listens, mpi4py is used if installed, or a
    port derived from the job if all processes are on this machine.

    Raises:
      FlagError: --rendezvous is needed.
      BenchmarkError: a process is missing after `timeout` seconds, has ended or is there twice, or
        the port is in use.
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
        reason = f"mpi4py sees {len(hosts)} of {ranks.size} processes; without it: --rendezvous"
        raise BenchmarkError(reason)
    if rendezvous is None and not one_machine:
        reason = "is needed on several machines where mpi4py is not installed: host:port of rank 0"
        raise FlagError("rendezvous", "", reason)
    meeting = _Rendezvous(ranks, rendezvous or f"localhost:{ranks.port}", port, tell)
    return loop.run(meeting.run(timeout))


class _Rendezvous:
    def __init__(self, ranks: Ranks, place: str, port: int, tell: Callable[[str], None]) -> None:
        self._ranks = ranks
        self._place = place
        self._port = port
        self._tell = tell
        self._found: dict[int, str] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self._all = asyncio.Event()
        self._failure = ""

    async def run(self, timeout: float) -> tuple[str, ...]:
        report = asyncio.create_task(loop.report(self._tell, self._missing))
        try:
            work = self._serve() if self._ranks.rank == 0 else self._ask()
            return await asyncio.wait_for(work, timeout)
        except asyncio.TimeoutError:
            self._fail(f"rank {self._ranks.rank} waited {timeout:g} s for {self._missing()}")
            raise BenchmarkError(self._failure) from None
        finally:
            report.cancel()

    async def _serve(self) -> tuple[str, ...]:
        host, port = host_and_port(self._place)
        try:
            server = await asyncio.start_server(
                self._visited, host, port, limit=_LONGEST_LINE, reuse_address=True
            )
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            reason = f"rank 0 cannot listen there: {reason}; give --rendezvous"
            raise BenchmarkError(f"{self._place}: {one_line(reason)}") from error
        self._found[0] = f"{self._host(self._place)}:{self._port}"
        try:
            if self._ranks.size > 1:
                await self._all.wait()
        finally:
            server.close()
        if self._failure:
            raise BenchmarkError(self._failure)
        hosts = tuple(self._found[rank] for rank in range(self._ranks.size))
        for writer in self._writers:
            self._answer(writer, hosts=hosts)
            writer.close()
            with contextlib.suppress(OSError):  # the handshake names who has ended by now
                await writer.wait_closed()
        return hosts

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled when the exchange is over, where Python 3.11 would print a traceback.
        over = (asyncio.TimeoutError, asyncio.CancelledError)
        with contextlib.closing(writer), contextlib.suppress(*_OF_OTHERS, *over):
            await self._take(reader, writer)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receives the address of a process, and waits until its connection closes."""
        card = parse_json(await asyncio.wait_for(reader.readline(), 10))
        rank, size = card["rank"], self._ranks.size
        # The address that this call came from, because the others can reach it too.
        address = f"{self._host(writer.get_extra_info('peername')[0])}:{card['port']}"
        known = (card["size"], card[_GREETING]) == (size, self._name())
        if not (known and rank in range(1, size) and is_address(address)):
            return
        if rank in self._found:
            self._answer(writer, failed=f"rank {rank} is there already, at {self._found[rank]}")
            return
        self._found[rank] = address
        self._writers.append(writer)
        self._answer(writer, failed=self._failure)
        if len(self._found) == size:
            self._all.set()
        with contextlib.suppress(OSError):
            await reader.read(1)
        if not (self._all.is_set() or self._failure):
            self._fail(f"rank {rank}, at {address}, has ended")
            self._tell(f"{self._failure}; waiting for {self._missing()} to tell it, too")

    def _fail(self, reason: str) -> None:
        """Notes why the exchange fails, and tells those that have called; `_take` tells others."""
        self._failure = self._failure or reason
        for writer in self._writers:
            self._answer(writer, failed=self._failure)

    def _answer(self, writer: asyncio.StreamWriter, **facts: object) -> None:
        writer.write(json.dumps({_GREETING: self._name(), **facts}).encode() + b"\n")

    async def _ask(self) -> tuple[str, ...]:
        host, port = host_and_port(self._place)
        card = {"rank": self._ranks.rank, "size": self._ranks.size, "port": self._port}
        failure = ""
        while not failure:
            with contextlib.suppress(*_OF_OTHERS):  # rank 0 may not be there yet
                reader, writer = await asyncio.open_connection(host, port, limit=_LONGEST_LINE)
                with contextlib.closing(writer):
                    self._answer(writer, **card)
                    while line := await reader.readline():
                        answer = parse_json(line)
                        if answer[_GREETING] != self._name():
                            break
                        hosts = tuple(map(str, answer.get("hosts", ())))
                        if len(hosts) == self._ranks.size and all(map(is_address, hosts)):
                            return hosts
                        failure = "it has ended"
                        if answer.get("failed"):
                            failure = str(answer["failed"])
                            break
            await asyncio.sleep(loop.RETRY_SECONDS)
        raise BenchmarkError(one_line(f"rank 0 at {self._place} (--rendezvous): {failure}"))

    def _name(self) -> str:
        return f"{self._ranks.launcher} {self._ranks.size}"

    def _host(self, address: str) -> str:
        if self._ranks.local_size == self._ranks.size:
            return "localhost"
        host = host_and_port(address)[0] if address == self._place else address
        host = host.removeprefix("::ffff:")
        return f"[{host}]" if ":" in host else host

    def _missing(self) -> str:
        if self._ranks.rank:
            return f"rank 0 at {self._place} (--rendezvous)"
        missing = [str(rank) for rank in range(self._ranks.size) if rank not in self._found]
        return f"ranks {','.join(missing[:20])} at {self._place} (--rendezvous)"
