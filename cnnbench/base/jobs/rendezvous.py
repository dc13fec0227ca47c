"""Exchange of addresses between processes that know only their ranks; no TensorFlow.

Uses MPI where mpi4py is installed. Otherwise rank 0 listens on an address that all know,
collects all addresses and sends the list to all. As in the handshake, nothing is authenticated, and
lines are bounded.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from importlib.util import find_spec

from cnnbench.base.jobs import loop
from cnnbench.base.jobs.job import host_and_port
from cnnbench.base.jobs.ports import ReservedPorts
from cnnbench.base.jobs.resolve import Ranks
from cnnbench.base.text.escape import one_line
from cnnbench.errors import BenchmarkError, FlagError

_GREETING = "cnnbench rendezvous"
_LONGEST_LINE = 1 << 22

_held: list[ReservedPorts] = []


def exchange(
    ranks: Ranks, rendezvous: str | None, timeout: float, tell: Callable[[str], None]
) -> tuple[str, ...]:
    """Addresses of all processes by rank; reserves a port of this process until it ends.

    Without `rendezvous`, the host:port on which rank 0 listens, mpi4py is used if installed, or a
    port derived from the job if all processes are on this machine.

    Raises:
      FlagError: --rendezvous is needed.
      BenchmarkError: a process is missing after `timeout` seconds, or the port is in use.
    """
    _held.append(ReservedPorts(1))
    (port,) = _held[-1].numbers
    one_machine = ranks.local_size == ranks.size
    if rendezvous is None and find_spec("mpi4py") is not None:
        from mpi4py import MPI

        address = f"{'localhost' if one_machine else socket.gethostname()}:{port}"
        return tuple(map(str, MPI.COMM_WORLD.allgather(address)))
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

    async def run(self, timeout: float) -> tuple[str, ...]:
        report = asyncio.create_task(loop.report(self._tell, self._missing))
        try:
            work = self._serve() if self._ranks.rank == 0 else self._ask()
            return await asyncio.wait_for(work, timeout)
        except asyncio.TimeoutError:
            message = f"rank {self._ranks.rank} waited {timeout:g} s for {self._missing()}"
            raise BenchmarkError(message) from None
        finally:
            report.cancel()

    async def _serve(self) -> tuple[str, ...]:
        host, port = host_and_port(self._place)
        try:
            server = await asyncio.start_server(
                self._take, host, port, limit=_LONGEST_LINE, reuse_address=True
            )
        except OSError as error:
            reason = f"rank 0 cannot listen there: {error.strerror or error}; give --rendezvous"
            raise BenchmarkError(f"{self._place}: {one_line(reason)}") from error
        self._found[0] = f"{self._host(self._place)}:{self._port}"
        try:
            if self._ranks.size > 1:
                await self._all.wait()
            hosts = [self._found[rank] for rank in range(self._ranks.size)]
            for writer in self._writers:
                writer.write(json.dumps({_GREETING: 1, "hosts": hosts}).encode() + b"\n")
                await writer.drain()
                writer.close()
        finally:
            server.close()
        return tuple(hosts)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receives the address of a process; ignores connections of other programs."""
        try:
            card = json.loads(await asyncio.wait_for(reader.readline(), 10))
            rank, port = int(card["rank"]), int(card["port"])
            size, job = int(card["size"]), str(card[_GREETING])
            if (size, job) != (self._ranks.size, self._name()) or not 0 < rank < size:
                raise ValueError(card)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, asyncio.TimeoutError):
            writer.close()
            return
        # The address that this call came from, because the others can reach it too.
        peer = writer.get_extra_info("peername")[0]
        self._found[rank] = f"{self._host(peer)}:{port}"
        self._writers.append(writer)
        if len(self._found) == self._ranks.size:
            self._all.set()

    async def _ask(self) -> tuple[str, ...]:
        host, port = host_and_port(self._place)
        card = {_GREETING: self._name(), "rank": self._ranks.rank, "size": self._ranks.size}
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port, limit=_LONGEST_LINE)
                try:
                    writer.write(json.dumps({**card, "port": self._port}).encode() + b"\n")
                    answer = json.loads(await reader.readline())
                    if _GREETING in answer:
                        return tuple(map(str, answer["hosts"]))
                finally:
                    writer.close()
            except (OSError, ValueError, KeyError, TypeError):
                pass  # rank 0 is not there yet
            await asyncio.sleep(loop.RETRY_SECONDS)

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
