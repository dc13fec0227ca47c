"""A process joins the others of its job."""

from __future__ import annotations

import errno
import socket

import pytest

from cnnbench.base.jobs.job import Job, Task
from cnnbench.base.jobs.ports import ReservedPorts
from cnnbench.errors import BenchmarkError
from cnnbench.flags import Params
from cnnbench.run.cluster import handshake
from cnnbench.run.cluster.handshake import Met
from cnnbench.run.driver import membership
from cnnbench.run.driver.membership import Membership
from cnnbench.run.runtime.tensorflow import Devices


def is_taken(port):
    """Whether another program cannot have a port."""
    with socket.socket() as other:
        try:
            other.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


@pytest.fixture
def port():
    with ReservedPorts(1) as held:
        (number,) = held.numbers
    assert not is_taken(number)
    return number


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("client_per_worker", [False, True])
def test_the_port_is_kept_until_tensorflow_listens_on_it(
    client_per_worker, fails, port, monkeypatch
):
    own = f"localhost:{port}"
    job = Job(
        task=Task("worker", 0),
        worker_hosts=(own, "localhost:1"),
        client_per_worker=client_per_worker,
    )

    def connect(*_):
        """TensorFlow's part: its server can listen, and no other program can have the port."""
        assert is_taken(port)
        with socket.create_server(("", port)):
            if fails:
                raise BenchmarkError("cannot connect")
        return job

    monkeypatch.setattr(membership, "meet", lambda *_: _silent(own))
    monkeypatch.setattr(membership.chief, "connect", connect)
    monkeypatch.setattr(Membership, "_connect_worker", connect)
    monkeypatch.setattr(membership.Watchdog, "start", lambda self, lines: None)
    monkeypatch.setattr(membership.Watchdog, "up", lambda self, **_: None)
    monkeypatch.setattr(membership, "connected", False)
    joining = Membership(job, Params(job_name="worker", worker_hosts=own), print, print)
    joining.meet()
    devices = Devices(job=job, labels=(), intra_threads=0, inter_threads=0)
    if fails:
        with pytest.raises(BenchmarkError):
            joining.join(devices)
    else:
        assert joining.join(devices).job is job
    assert not is_taken(port)


def _silent(address):
    """What `meet` returns."""
    listener, reserved = handshake._bind(address)
    listener.close()
    return Met(reserved, {})
