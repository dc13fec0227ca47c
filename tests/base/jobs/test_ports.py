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


def test_the_first_port_above_those_for_outgoing_connections_is_used(limits, tmp_path):
    with ReservedPorts(1) as held:
        (port,) = held.numbers
    outgoing = tmp_path / "range"
    outgoing.write_text(f"10000 {port - 1}")
    limits(cluster_ports, _RANGE_FILE=outgoing, LARGEST_PORT=port)
    with ReservedPorts(1) as held:
        assert held.numbers == [port]
    # If all ports are for outgoing connections, these are used.
    outgoing.write_text(f"{port} {port}")
    limits(cluster_ports, LOWEST=port)
    with ReservedPorts(1) as held:
        assert held.numbers == [port]
    # Without the file of Linux, ports from 32768 to 60999 are for outgoing connections.
    outgoing.unlink()
    limits(cluster_ports, LOWEST=32766, LARGEST_PORT=61001)
    with pytest.raises(BenchmarkError, match="of 5 ports"):
        ReservedPorts(5)
