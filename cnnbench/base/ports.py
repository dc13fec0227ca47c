"""Reserves free ports for the servers of a job."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from cnnbench.base.job import LARGEST_PORT
from cnnbench.errors import BenchmarkError

LOWEST = 10000

_TRIES = 1000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ReservedPorts(contextlib.ExitStack):
    """Reserves free ports (`numbers`) for the servers of a job until `close` is called.

    A socket that does not listen is bound to each port. It allows other sockets with SO_REUSEADDR,
    which servers set, on the same port. The ports are outside the range of ports for outgoing
    connections, so they also stay free between two runs of a process.
    """

    def __init__(self, count: int) -> None:
        """Reserves `count` free ports. Raises BenchmarkError if too few are free."""
        super().__init__()
        self.numbers: list[int] = []
        outgoing = "32768 60999"
        # This file exists only on Linux.
        with contextlib.suppress(OSError):
            outgoing = _RANGE_FILE.read_text(encoding="ascii")
        low, high = map(int, outgoing.split())
        free = [*range(LOWEST, low), *range(high + 1, LARGEST_PORT + 1)] or range(low, high + 1)
        for port in random.SystemRandom().sample(free, min(_TRIES, len(free))):
            if len(self.numbers) == count:
                return
            bound_socket = unbound_socket()
            try:
                bound_socket.bind(("", port))
                bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            except OSError:
                bound_socket.close()
            else:
                self.enter_context(bound_socket)
                self.numbers.append(port)
        if len(self.numbers) < count:
            self.close()
            raise BenchmarkError(f"only {len(self.numbers)} of {count} ports are free")


def unbound_socket() -> socket.socket:
    """Creates a socket for all addresses of this machine: IPv4 and, if supported, IPv6."""
    both = socket.has_dualstack_ipv6()
    new_socket = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    if both:
        new_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return new_socket
