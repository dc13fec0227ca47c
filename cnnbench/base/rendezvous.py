"""Exchanges addresses between the processes of a job when each process knows only its rank.

The exchange uses MPI if mpi4py is installed. Otherwise the other ranks call rank 0
(`base/star.py`), on an address that all processes know, and rank 0 sends them the addresses.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from cnnbench.base import star
from cnnbench.base.escapes import to_terminal_line
from cnnbench.base.job import host_and_port, is_address
from cnnbench.base.launcher import LauncherRanks
from cnnbench.base.ports import ReservedPorts, unbound_socket
from cnnbench.base.star import Caller, Card
from cnnbench.errors import BenchmarkError, FlagError

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of an address that this machine does not have, such as the IPv6 address of localhost."""

_held: list[ReservedPorts] = []


def exchange_addresses(
    ranks: LauncherRanks, rendezvous: str | None, timeout: float, tell: Callable[[str], None]
) -> tuple[str, ...]:
    """Exchanges addresses with all processes of the job. Returns the host:port addresses by rank.

    A port for this process is reserved until the process exits.

    `rendezvous` is the host:port on which rank 0 listens. Without it, mpi4py is used if it is
    installed, or the address in `ranks`. Otherwise all processes must be on this machine, and a
    port derived from the job is used.

    Raises:
      FlagError: --rendezvous is needed.
      BenchmarkError: a process is missing after `timeout` seconds or has ended, a rank is
        duplicate, or the port is in use.
    """
    _held.append(ReservedPorts(1))
    (port,) = _held[-1].numbers
    one_machine = ranks.local_size == ranks.size
    if rendezvous is None and ranks.place is None and find_spec("mpi4py") is not None:
        return _gather_by_mpi(
            ranks, f"{'localhost' if one_machine else socket.gethostname()}:{port}"
        )
    if rendezvous is None and ranks.place is None and not one_machine:
        reason = "must be the host:port of rank 0 on several machines where mpi4py is not installed"
        raise FlagError("rendezvous", "", reason)
    if rendezvous is None and ranks.place is None and not ranks.job:
        reason = f"is needed: {ranks.launcher} does not tell its processes which job they are"
        raise FlagError("rendezvous", "", reason)
    place = rendezvous or ranks.place or f"localhost:{ranks.exchange_port}"
    # With --rendezvous, the address identifies the job: names of jobs may differ between machines.
    job = "" if rendezvous else ranks.job
    own = Card(
        task=f"rank {ranks.rank}",
        facts={"launcher": ranks.launcher, "size": str(ranks.size), "job": job},
        node="localhost" if one_machine else ranks.node,
        port=port,
    )
    if ranks.rank == 0:
        return _collect(ranks, own, place, timeout, tell)
    return _ask(ranks, own, place, timeout, tell)


def _gather_by_mpi(ranks: LauncherRanks, address: str) -> tuple[str, ...]:
    """Exchanges the addresses with MPI."""
    from mpi4py import MPI

    hosts = tuple(map(str, MPI.COMM_WORLD.allgather(address)))
    # A process that is forked later must not end MPI a second time, when it exits.
    MPI.Finalize()
    if len(hosts) == ranks.size:
        return hosts
    reason = f"mpi4py sees {len(hosts)} of {ranks.size} processes; use --rendezvous instead"
    raise BenchmarkError(reason)


def _collect(
    ranks: LauncherRanks, own: Card, place: str, timeout: float, tell: Callable[[str], None]
) -> tuple[str, ...]:
    """The exchange at rank 0."""

    def missing_text(tasks: Sequence[str]) -> str:
        numbers = ",".join(task.removeprefix("rank ") for task in tasks[:20])
        return f"ranks {numbers} at {place} (--rendezvous)"

    hub = star.Hub(
        own=own,
        tasks=[f"rank {rank}" for rank in range(1, ranks.size)],
        belongs=lambda card: (
            card.facts == own.facts and is_address(f"{card.node or 'x'}:{card.port}")
        ),
        find_difference=lambda card: _difference(own, card),
        missing_text=missing_text,
        restarts=False,
        tell=tell,
    )
    first = own.node or host_and_port(place)[0]
    addresses = [f"[{first}]:{own.port}" if ":" in first else f"{first}:{own.port}"]

    def answers(callers: Mapping[str, Caller]) -> Callable[[Card], list[str]]:
        addresses.extend(callers[task].address for task in hub.tasks)
        return lambda card: addresses

    for caller in hub.run(_listen(ranks, place), timeout, answers).values():
        caller.link.close()
    return tuple(addresses)


def _ask(
    ranks: LauncherRanks, own: Card, place: str, timeout: float, tell: Callable[[str], None]
) -> tuple[str, ...]:
    """The exchange at any other rank."""
    name = f"rank 0 at {place} (--rendezvous)"
    link, hosts = star.call(
        place,
        own,
        timeout,
        tell,
        name=name,
        restarts=False,
        find_difference=lambda card: _difference(own, card),
    )
    link.close()
    known = isinstance(hosts, list) and all(isinstance(h, str) and is_address(h) for h in hosts)
    if not known or len(hosts) != ranks.size:
        raise BenchmarkError(f"{name}: it has sent no list of addresses")
    return tuple(hosts)


def _difference(own: Card, other: Card) -> str:
    """Returns a text if two processes are not of the same job; else ""."""
    if own.facts == other.facts:
        return ""
    first, second = (" ".join(card.facts.values()) for card in (own, other))
    return f"{own.task} and {other.task} are of different jobs: {first}; {second}"


def _listen(ranks: LauncherRanks, place: str) -> list[socket.socket]:
    """Opens sockets that listen on all addresses of the meeting place.

    If the launcher tells the place, the name may be another one on this machine, so the socket
    listens on all addresses.
    """
    host, port = host_and_port(place)
    opened: list[socket.socket] = []
    errors: list[OSError | UnicodeError] = []
    try:
        if place == ranks.place:
            opened.append(_listen_everywhere(port))
            return opened
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
        raise BenchmarkError(f"{place}: {to_terminal_line(reason)}") from fatal[0]
    return opened


def _listen_everywhere(port: int) -> socket.socket:
    """Opens a socket that listens on all addresses of this machine."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(unbound_socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(128)
        stack.pop_all()
    return listener
