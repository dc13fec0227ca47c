"""A process joins the others of its job."""

from __future__ import annotations

import errno
import socket

import pytest
import tensorflow as tf

from cnnbench.base.jobs import probe
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
    monkeypatch.setattr(membership, "connect", connect)
    monkeypatch.setattr(Membership, "_connect_worker", connect)
    monkeypatch.setattr(membership.Watchdog, "start", lambda self, lines: None)
    monkeypatch.setattr(membership.Watchdog, "up", lambda self, **_: None)
    monkeypatch.setattr(membership.supervisor, "note_connection", lambda: None)
    joining = Membership(job, Params(job_name="worker", worker_hosts=own), print, print, {})
    joining.meet()
    devices = Devices(job=job, numbers=(), intra_threads=0, inter_threads=0)
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


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_lost_process_is_named_for_its_errors(answers, wrapped, port, monkeypatch):
    """Also where an error says what failed for it, such as a checkpoint."""
    monkeypatch.setattr(membership, "_FAILURE_SECONDS", 0.2)
    own = f"localhost:{port}"
    job = Job(task=Task("worker"), worker_hosts=(own, "localhost:1"))
    one = Membership(job, Params(job_name="worker", worker_hosts=own), print, print, {})
    one._joined = True
    one._watchdog.open({})
    if answers:
        monkeypatch.setattr("cnnbench.base.jobs.probe.probe", lambda *_: probe.OK)
        monkeypatch.setattr(probe.not_ok, "__defaults__", (lambda *_: probe.OK,))
    text = "from /job:worker/replica:0/task:1: recvmsg:Connection reset by peer"
    error = cause = tf.errors.UnavailableError(None, None, text)
    if wrapped:
        error = BenchmarkError("no checkpoint could be written")
        error.__cause__ = cause
    found = one.failure(error)
    if wrapped and answers:
        assert (found, one.gone()) == (None, {})
        return
    state = probe.NAMED if answers else probe.REFUSED
    assert str(found) == f"lost worker:1 (localhost:1): {state}"
    assert one.gone() == {"worker:1": state}
