"""Ports that are kept for servers.

Tests cnnbench/base/ports.py.
"""

from __future__ import annotations

import socket

import pytest

from cnnbench.base import ports as cluster_ports
from cnnbench.base.ports import ReservedPorts
from cnnbench.errors import BenchmarkError


def test_ports_are_held_against_all_but_servers():
    with ReservedPorts(5) as held, ReservedPorts(5) as other:
        ports, others = held.numbers, other.numbers
        assert len({*ports, *others}) == 10
        low, high = map(int, cluster_ports._RANGE_FILE.read_text().split())
        assert not any(low <= port <= high for port in ports)
        for port in ports:
            with socket.socket() as client, pytest.raises(OSError):
                client.bind(("", port))
            for family in (socket.AF_INET, socket.AF_INET6):
                both = family == socket.AF_INET6
                with socket.create_server(("", port), family=family, dualstack_ipv6=both):
                    socket.create_connection(("localhost", port), 5).close()
    with socket.socket() as client:
        client.bind(("", ports[0]))


def test_ports_that_are_in_use_are_left_out(limits, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        outgoing = tmp_path / "range"
        outgoing.write_text(f"10000 {taken - 1}")
        limits(cluster_ports, _RANGE_FILE=outgoing, LARGEST_PORT=taken + 60, _TRIES=61)
        with ReservedPorts(20) as held:
            assert taken not in held.numbers
        with pytest.raises(BenchmarkError, match="of 62 ports"):
            ReservedPorts(62)
