"""A process joins the others of its job.

Tests cnnbench/run/driver/membership.py and cnnbench/run/driver/shared_interrupts.py.
"""

import contextlib
import dataclasses
import errno
import signal
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.base.interrupts import begin_command, conclude_command, handling_signals
from cnnbench.base.job import Job, Task
from cnnbench.base.ports import ReservedPorts
from cnnbench.errors import BenchmarkError, ExitCode, UsageError
from cnnbench.flags import Params
from cnnbench.plan import check_flags
from cnnbench.run import handshake, watchdog
from cnnbench.run.driver import membership
from cnnbench.run.driver.membership import JobMembership
from cnnbench.run.driver.shared_interrupts import SharedInterrupts
from cnnbench.run.runtime import supervisor
from cnnbench.run.runtime.devices import Devices
from cnnbench.run.runtime.progress import ProcessActivity
from cnnbench.run.watchdog import RunEnding


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
def test_the_port_is_kept_until_tensorflow_listens_on_it(client_per_worker, fails, port):
    own = f"localhost:{port}"
    job = Job(
        task=Task("worker", 0),
        worker_addresses=(own, "localhost:1"),
        client_per_worker=client_per_worker,
    )

    class Connecting(JobMembership):
        """TensorFlow's part: its server can listen, and no other program can have the port."""

        def _connect_worker(self, job):
            assert is_taken(port)
            with socket.create_server(("", port)):
                if fails:
                    raise BenchmarkError("cannot connect")

        def _connect_chief(self, devices):
            self._connect_worker(devices.job)
            return devices

    joining = membership_in(job, Connecting)
    # They have met, and nobody watches.
    joining._port = _reserved(own)
    joining._watchdog = SimpleNamespace(
        announce_server_ready=lambda: None, announce_ready_together=lambda: None
    )
    devices = Devices(job=job, numbers=(), intra_threads=0, inter_threads=0)
    if fails:
        with pytest.raises(BenchmarkError):
            joining.connect_tensorflow(devices)
    else:
        assert joining.connect_tensorflow(devices).job is job
    assert not is_taken(port)


def _reserved(address):
    """The reservation of a port that `connect_job` returns."""
    listener, reserved = handshake._bind(address)
    listener.close()
    return reserved


def membership_in(job, kind=JobMembership):
    setup = check_flags(Params())
    place = dataclasses.replace(setup.place, job=job)
    return kind(dataclasses.replace(setup, place=place), print, print, {})


def test_an_activity_lasts_as_long_as_its_block():
    alone = membership_in(Job())
    with alone.marking_activity(ProcessActivity.PAUSE):
        with contextlib.suppress(OSError), alone.marking_activity(ProcessActivity.CHECKPOINT):
            raise OSError
        assert alone.activity is ProcessActivity.PAUSE
    assert alone.activity is ProcessActivity.START


ERROR = "from /job:worker/replica:0/task:1: recvmsg:Connection reset by peer"
HOSTS = ("localhost:1", "localhost:2", "localhost:3")


@pytest.mark.parametrize(
    ("text", "known", "wrapped", "named"),
    [
        (ERROR, {}, False, {1: "TensorFlow reports its loss"}),
        (ERROR, {}, True, {}),  # such as a checkpoint that cannot be written
        (ERROR, {1: watchdog.CLOSED}, True, {1: watchdog.CLOSED}),
        (ERROR, {2: "diverged", 1: watchdog.CLOSED}, False, {1: watchdog.CLOSED, 2: "diverged"}),
        ("Socket closed", {2: watchdog.SILENT}, False, {2: watchdog.SILENT}),
        ("Socket closed", {}, False, {}),
        ("/job:worker/replica:0/task:0 says /job:gone/replica:0/task:7", {}, False, {}),
    ],
)
def test_a_lost_process_is_named_for_an_error_of_tensorflow(text, known, wrapped, named):
    """First those that TensorFlow names."""
    job = Job(task=Task("worker"), worker_addresses=HOSTS)
    one = membership_in(job)
    one._tensorflow_connected = True
    states = {Task("worker", number): state for number, state in known.items()}
    one._watchdog = SimpleNamespace(explain_error=lambda seconds: states, lost_tasks={})
    error = cause = tf.errors.UnavailableError(None, None, text)
    if wrapped:
        error = BenchmarkError(f"no checkpoint could be written: {text}")
        error.__cause__ = cause
    found = one.explain_by_lost_process(error)
    listed = "; ".join(f"worker:{n} ({HOSTS[n]}): {state}" for n, state in named.items())
    assert (str(found) if found else "") == (f"lost {listed}" if named else "")
    assert one.lost_tasks() == {f"worker:{n}": state for n, state in named.items()}


@pytest.mark.parametrize("explained", [True, False])
def test_the_record_has_the_error_that_the_run_ends_with(explained):
    """An error of another library is replaced by what explains it, if anything does."""
    alone, written = membership_in(Job()), []
    defect, reason = RuntimeError("INTERNAL: 0x7f"), BenchmarkError("the device is gone")
    with pytest.raises((RuntimeError, BenchmarkError)) as raised:
        with alone.reporting_end(
            lambda *ending: written.append(ending), lambda error: reason if explained else None
        ):
            raise defect
    error = reason if explained else defect
    assert raised.value is error
    assert written == [("failed", error)]
    assert error.__cause__ is (defect if explained else None)


def test_errors_of_this_process_name_no_other():
    job = Job(task=Task("worker"), worker_addresses=("localhost:1", "localhost:2"))
    one, unavailable = membership_in(job), tf.errors.UnavailableError(None, None, "lost")
    assert one.explain_by_lost_process(unavailable) is None  # TensorFlow is not connected
    one._tensorflow_connected = True
    assert one.explain_by_lost_process(tf.errors.NotFoundError(None, None, "lost")) is None
    assert one.explain_by_lost_process(ValueError("lost")) is None


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("error", "written", "code", "reason"),
    [
        (None, [], ExitCode.OK, ""),
        (UsageError("no such flag"), [], ExitCode.FAILED, "no such flag"),
        (KeyboardInterrupt(), [("interrupted", None)], ExitCode.INTERRUPTED, "interrupted"),
        (BenchmarkError("worn out"), ["failed"], ExitCode.FAILED, "worn out"),
    ],
)
def test_the_others_hear_how_a_run_ends(error, written, code, reason, together, monkeypatch):
    """After the record is written; those that run the same steps must wait for each other."""
    hosts = {"worker_addresses": ("localhost:1", "localhost:2"), "client_per_worker": together}
    one = membership_in(Job(task=Task("worker"), **hosts))
    events = []
    monkeypatch.setattr(
        one._watchdog, "announce_end", lambda *args, **how: events.append((*args, how))
    )
    raises = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with raises as caught, one.reporting_end(lambda *ending: events.append(ending)):
        if error is not None:
            raise error
    assert error is None or caught.value is error
    waits = membership._FAILURE_SECONDS if code or together else membership._DISMISSAL_SECONDS
    expected = [("failed", error) if one == "failed" else one for one in written]
    told = ((int(code), reason), waits, {"lost": together and code != ExitCode.OK})
    assert events == [*expected, told]


class Alone:
    is_chief = True

    @staticmethod
    def sum_over_workers(values):
        return values


def test_a_signal_after_the_last_step_ends_all_workers():
    with handling_signals():
        begin_command()
        with pytest.raises(KeyboardInterrupt), SharedInterrupts(Alone()).sharing_interrupts():
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):  # of the others, by their next check
            SharedInterrupts(
                SimpleNamespace(is_chief=True, sum_over_workers=lambda values: [1, 1])
            ).sync_interrupts(1.0)
        conclude_command()


def test_a_worker_that_is_done_stays_until_the_others_are():
    """TensorFlow's last messages of a collective fail where one is gone."""
    hosts = {"worker_addresses": ("localhost:1", "localhost:2"), "client_per_worker": True}
    jobs = [Job(task=Task("worker", number), **hosts) for number in range(2)]
    first, second = map(membership_in, jobs)
    others, lines = set(threading.enumerate()), socket.socketpair()
    for one, line, other in zip((first, second), lines, jobs[::-1], strict=True):
        one._watchdog.start({other.task: line})
    ending = threading.Thread(target=first.report_run_end, args=(0,), daemon=True)
    ending.start()
    ending.join(0.3)
    assert ending.is_alive()
    second.report_run_end(0)
    for thread in {*threading.enumerate()} - others:  # those of the watchdogs, too
        thread.join(4.0)
        assert not thread.is_alive()
    assert [line.fileno() for line in lines] == [-1, -1]


@pytest.mark.parametrize(
    ("reads", "timeout", "program", "watched"),
    [
        (True, 60, True, True),
        (True, 0, True, False),
        (False, 60, True, False),
        (True, 60, False, False),
    ],
)
def test_a_process_alone_is_watched_if_a_command_may_stand_still(
    reads, timeout, program, watched, monkeypatch
):
    monkeypatch.setattr(supervisor.state, "program", program)
    plan = check_flags(Params(stall_timeout=timeout))
    alone = JobMembership(plan, print, print, {}, print if reads else None)
    started = []
    monkeypatch.setattr(alone, "_watchdog", SimpleNamespace(start=started.append))
    assert not alone.connect()
    assert started == [{}] * watched


def test_the_worker_that_evaluates_is_needed(monkeypatch):
    made = {}
    monkeypatch.setattr(membership, "Watchdog", lambda *_, **of: made.update(of))
    monkeypatch.setattr(type(check_flags(Params()).place), "tolerates_loss_of", lambda *_: True)
    hosts = {"worker_addresses": ("a:1", "b:1"), "controller_address": "c:1"}
    job = Job(task=Task("controller"), **hosts)
    one = membership_in(job)
    first, second = job.workers
    tolerates = made["tolerates_loss"]
    assert tolerates(first, True)
    with one.marking_activity(ProcessActivity.EVALUATION):
        assert not tolerates(first, True)
        assert tolerates(second, True)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_controller_gets_the_devices_that_its_workers_have(kind, lost, monkeypatch):
    hosts = {"worker_addresses": ("a:1", "b:1"), "controller_address": "c:1"}
    job = Job(task=Task("controller"), device="cpu", **hosts)
    names, connected, ready = [*job.with_devices(kind).tower_devices], [], []
    if lost:
        names.pop()
    config = SimpleNamespace(
        experimental_connect_to_cluster=lambda spec, **of: connected.append((spec.as_dict(), of)),
        list_logical_devices=lambda: [SimpleNamespace(name=name) for name in names],
    )
    fake = SimpleNamespace(config=config, errors=tf.errors, train=tf.train)
    monkeypatch.setattr(membership, "tf", fake)
    monkeypatch.setattr(supervisor.state, "connected", False)
    one = membership_in(job)
    one._watchdog = SimpleNamespace(
        wait_for_servers=lambda: ready.append("others"),
        announce_server_ready=lambda: ready.append("own"),
    )
    devices = Devices(job=job, numbers=(), intra_threads=3, inter_threads=0)
    if lost:
        with pytest.raises(BenchmarkError, match="1 devices"):
            one.connect_tensorflow(devices)
        assert ready == ["others"]
        return
    found = one.connect_tensorflow(devices)
    assert found.job.tower_devices == tuple(names)
    assert found.intra_threads == 3
    assert ready == ["others", "own"]
    assert supervisor.state.connected
    (job_and_task,) = connected
    expected = {"worker": ["a:1", "b:1"], "chief": ["c:1"]}
    assert job_and_task == (expected, {"job_name": "chief", "task_index": 0})


@pytest.mark.parametrize(("code", "waits"), [(0, True), (4, False)])
def test_a_server_stays_until_its_chief_has_gone(code, waits, monkeypatch):
    told = []
    monkeypatch.setattr(membership, "start_server", lambda settings, job: object())
    monkeypatch.setattr(membership, "set_environment", lambda settings: None)
    ending = RunEnding(code, "why")
    job = Job(task=Task("worker", 1), worker_addresses=("a:1", "b:1"))
    one = membership_in(job)
    monkeypatch.setattr(one, "connect", lambda: ())
    one._watchdog = SimpleNamespace(
        announce_server_ready=lambda: told.append("ready"),
        wait_for_run_end=lambda: ending,
        announce_end=lambda end: told.append(end),
        wait_for_chief_to_leave=told.append,
    )
    assert one.serve_until_run_ends() == ending
    assert told == ["ready", ending, *([membership._LINGER_SECONDS] * waits)]


@pytest.mark.parametrize(
    ("chief", "seconds", "passes"), [(True, 0.25, 4), (True, 5.0, 1), (False, 0.25, 0)]
)
def test_the_chief_says_when_to_look_for_signals_again(chief, seconds, passes):
    sent = []

    def add(values):
        sent.append(values)
        return np.array([0, 40])

    interrupts = SharedInterrupts(SimpleNamespace(is_chief=chief, sum_over_workers=add))
    assert interrupts.sync_interrupts(seconds) == 40
    assert sent == [[0, passes]]
    assert SharedInterrupts(None).sync_interrupts(seconds) == 1
