"""Ports reserved for the servers of a job."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from pathlib import Path

from cnnbench.base.jobs.job import LARGEST_PORT
from cnnbench.errors import BenchmarkError

LOWEST = 10000

_TRIES = 1000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ReservedPorts(contextlib.ExitStack):
    """Ports, `numbers`, that no other program gets until closed; own servers can listen on them.

    Each is held by a socket that does not listen and that, once bound, allows other sockets with
    SO_REUSEADDR, as servers have, on its port. They are outside the range of outgoing connections,
    so they also stay free between two runs of a process.
    """

    def __init__(self, count: int) -> None:
        """Reserves ports; BenchmarkError if there are too few."""
        super().__init__()
        self.numbers: list[int] = []
        outgoing = "32768 60999"
        with contextlib.suppress(OSError):  # not on every platform
            outgoing = _RANGE_FILE.read_text(encoding="ascii")
        low, high = map(int, outgoing.split())
        free = [*range(LOWEST, low), *range(high + 1, LARGEST_PORT + 1)] or range(low, high + 1)
        for port in random.SystemRandom().sample(free, min(_TRIES, len(free))):
            if len(self.numbers) == count:
                return
            self._take(port)
        if len(self.numbers) < count:
            self.close()
            raise BenchmarkError(f"only {len(self.numbers)} of {count} ports are free")

    def _take(self, port: int) -> None:
        one = unbound()
        try:
            one.bind(("", port))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            one.close()
        else:
            self.enter_context(one)
            self.numbers.append(port)


def claim(port: int) -> socket.socket:
    """Claims a port among cnnbench processes until closed or dead; OSError EADDRINUSE if taken.

    A socket on the port itself that admits the server would also admit another process of cnnbench.
    So the claim is a socket of another family. On Linux its name needs no file and belongs to the
    network namespace, as the port does; elsewhere nothing is claimed.
    """
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(socket.socket(socket.AF_UNIX))
        if sys.platform == "linux":
            one.bind(f"\0cnnbench port {port}")
        stack.pop_all()
    return one


def unbound() -> socket.socket:
    """A socket for any address of this machine, of both families where it has both."""
    both = socket.has_dualstack_ipv6()
    one = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    if both:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return one
