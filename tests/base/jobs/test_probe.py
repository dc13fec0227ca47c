"""Processes are asked on their gRPC ports whether they answer; servers are made up.

Tests cnnbench/base/probe.py.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from cnnbench.base import probe as probing
from cnnbench.base.job import Job, Task
from cnnbench.base.probe import probe_grpc_server, suspect_tasks, wait_for_servers
from cnnbench.errors import BenchmarkError

pytestmark = pytest.mark.timeout(60)

PATIENCE = 20.0  # seconds; what is waited for takes a fraction of it

# Answers every HTTP/2 preface with a SETTINGS frame, as a server of gRPC does, in two parts.
SERVER = """
    import contextlib, socket, sys, time
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print(flush=True)
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            if connection.recv(100).startswith(b"PRI * HTTP/2.0"):
                connection.sendall(b"\\0\\0\\6\\4")
                time.sleep(0.01)
                connection.sendall(b"\\0\\0\\0\\0\\0" + b"\\0" * 6)
"""


class Server:
    def __init__(self, port):
        command = [sys.executable, "-c", textwrap.dedent(SERVER), str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._process.stdout.readline()

    def send(self, number):
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def end(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def job():
    """Seen by worker 0: another worker and a ps task."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        first, second, third = (f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    return Job(task=Task("worker", 0), worker_addresses=(first, second), ps_addresses=(third,))


@pytest.fixture
def serve(job):
    servers = []

    def start(task):
        servers.append(Server(job.address(task).split(":")[1]))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


WORKER, PS = Task("worker", 1), Task("ps", 0)


def test_probe(job, serve):
    address = job.address(WORKER)
    assert probe_grpc_server(address) == probing.REFUSED
    server = serve(WORKER)
    assert probe_grpc_server(address) == probing.OK
    server.send(signal.SIGSTOP)
    assert probe_grpc_server(address, 0.3) == probing.SILENT
    server.send(signal.SIGCONT)
    assert probe_grpc_server(address) == probing.OK
    server.send(signal.SIGKILL)
    assert probe_grpc_server(address) == probing.REFUSED
    assert probe_grpc_server("no-such-host.invalid:1") == probing.UNKNOWN_HOST


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"", b"\0\0"])
def test_a_program_that_is_not_grpc(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert probe_grpc_server(f"127.0.0.1:{server.getsockname()[1]}") == probing.NOT_GRPC
        thread.join()


def test_wait_up(job, serve, limits):
    limits(probing, REPORT_SECONDS=0.1)
    serve(PS)
    said = []
    missing = f"worker:1 ({job.address(WORKER)}): nobody listens there"
    with pytest.raises(BenchmarkError) as caught:
        wait_for_servers(job, 0.3, said.append)
    assert str(caught.value) == f"worker:0: waited 0.3 s for {missing}"
    threading.Timer(0.3, serve, [WORKER]).start()
    wait_for_servers(job, PATIENCE, said.append)
    assert set(said) == {f"waiting for {missing}"}


@pytest.mark.parametrize(
    ("up", "text", "named"),
    [
        ((PS,), "Socket closed", ["worker:1"]),
        ((), "from /job:ps/replica:0/task:0: reset", ["ps:0", "worker:1"]),
        ((WORKER, PS), "remote target /job:ps/replica:0/task:0 failed", ["ps:0"]),
        ((WORKER, PS), "no idea", []),
        ((WORKER, PS), "/job:worker/replica:0/task:0 says /job:gone/replica:0/task:7", []),
    ],
)
def test_culprits_of_an_error(job, serve, up, text, named):
    for task in up:
        serve(task)
    assert [str(task) for task in suspect_tasks(job, RuntimeError(text))] == named
