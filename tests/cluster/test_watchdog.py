"""The watchdog names the process that is gone or stands still; servers are made up."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from cnnbench.cluster import watchdog
from cnnbench.cluster.watchdog import Watchdog, culprits, probe, wait_up
from cnnbench.errors import BenchmarkError
from cnnbench.runtime.job import Job, Task

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
    return Job(task=Task("worker", 0), worker_hosts=(first, second), ps_hosts=(third,))


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
    assert probe(address) == watchdog.REFUSED
    server = serve(WORKER)
    assert probe(address) == watchdog.OK
    server.send(signal.SIGSTOP)
    assert probe(address, 0.3) == watchdog.SILENT
    server.send(signal.SIGCONT)
    assert probe(address) == watchdog.OK
    server.send(signal.SIGKILL)
    assert probe(address) == watchdog.REFUSED
    assert probe("no-such-host.invalid:1") == watchdog.UNKNOWN_HOST


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
        assert probe(f"127.0.0.1:{server.getsockname()[1]}") == watchdog.NOT_GRPC
        thread.join()


def test_wait_up(job, serve, monkeypatch):
    monkeypatch.setattr(watchdog, "_REPORT_SECONDS", 0.2)
    serve(PS)
    threading.Timer(1.0, serve, [WORKER]).start()
    said = []
    wait_up(job, PATIENCE, said.append)
    missing = f"worker:1 ({job.address(WORKER)}): nobody listens there"
    assert set(said) == {f"waiting for {missing}"}


def test_wait_up_names_who_did_not_come(job, serve):
    serve(PS)
    with pytest.raises(BenchmarkError) as caught:
        wait_up(job, 0.5, print)
    missing = f"worker:1 ({job.address(WORKER)}): nobody listens there"
    assert str(caught.value) == f"worker:0: waited 0.5 s for {missing}"


class Watched:
    """A watchdog that is quick, and does not end the tests."""

    def __init__(self, job, lost=None, **of):
        self.messages = []
        self.left = threading.Event()
        self.codes = []
        lost = lost or self.messages.append
        of = {"period": 0.1, "timeout": 0.5, **of}
        self.dog = Watchdog(job, lost, leave=self._leave, **of)

    def _leave(self, code):
        self.codes.append(code)
        self.left.set()


@pytest.fixture
def watched(job):
    made = []

    def make(*arguments, **of):
        made.append(Watched(job, *arguments, **of))
        made[-1].dog.start()
        return made[-1]

    yield make
    for one in made:
        one.dog.stop()


@pytest.mark.parametrize("task", [WORKER, PS])
@pytest.mark.parametrize(
    ("number", "state"), [(signal.SIGKILL, watchdog.REFUSED), (signal.SIGSTOP, watchdog.SILENT)]
)
def test_a_lost_task_is_named_and_the_process_ends(job, serve, watched, task, number, state):
    servers = {other: serve(other) for other in (WORKER, PS)}
    one = watched()
    time.sleep(0.5)
    assert one.messages == []
    servers[task].send(number)
    assert one.left.wait(PATIENCE)
    assert one.messages == [f"lost {task} ({job.address(task)}): {state}"]
    assert one.codes == [4]


def test_a_short_pause_is_no_loss(job, serve, watched):
    servers = [serve(WORKER), serve(PS)]
    one = watched(timeout=2.0)
    servers[0].send(signal.SIGSTOP)
    time.sleep(0.8)
    servers[0].send(signal.SIGCONT)
    time.sleep(0.8)
    assert one.messages == []


def test_ends_after_the_watch_are_normal(job, serve, watched):
    servers = [serve(WORKER), serve(PS)]
    one = watched()
    time.sleep(0.3)
    one.dog.stop()
    for server in servers:
        server.end()
    assert not one.left.wait(1.0)
    assert one.messages == []


def test_a_task_that_loads_for_a_while_is_waited_for(job, serve, watched):
    serve(PS)
    one = watched()
    time.sleep(0.6)
    serve(WORKER)
    assert not one.left.wait(0.6)


def test_a_task_that_never_comes_is_named(job, serve, watched):
    serve(PS)
    one = watched(patience=0.5)
    assert one.left.wait(PATIENCE)
    missing = f"worker:1 ({job.address(WORKER)}): nobody listens there"
    assert one.messages == [f"waited 0.5 s for {missing}"]


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_a_record_that_cannot_be_written_holds_up_nothing(monkeypatch, watched, fault):
    monkeypatch.setattr(watchdog, "_CALLBACK_SECONDS", 0.3)

    def lost(message):
        if fault == "raises":
            raise OSError(message)
        time.sleep(5)

    assert watched(lost, patience=0.1).left.wait(PATIENCE)


def test_the_process_ends_although_its_main_thread_is_stuck(job):
    """Stuck as in a call of TensorFlow: without the interpreter, and deaf to exceptions."""
    code = f"""
        import os, sys
        from cnnbench.cluster.watchdog import Watchdog
        from cnnbench.runtime.job import Job, Task
        job = Job(task=Task("worker", 0), worker_hosts={job.worker_hosts!r})
        Watchdog(job, lambda m: print(m, flush=True), patience=0.5, period=0.1).start()
        os.read(os.pipe()[0], 1)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (4, "")
    assert "worker:1" in done.stdout


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
    found = culprits(job, RuntimeError(text))
    assert [phrase.split(" ")[0] for phrase in found.split("; ") if phrase] == named
    assert os.linesep not in found
