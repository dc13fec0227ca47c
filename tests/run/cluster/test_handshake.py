"""Processes of a job meet: in any order, or with a reason that names who is to blame.

Tests cnnbench/run/handshake.py.
"""

import contextlib
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from cnnbench.base import star
from cnnbench.base.job import Job, Task
from cnnbench.base.message import pack, receive
from cnnbench.errors import BenchmarkError
from cnnbench.run import handshake
from cnnbench.run.handshake import connect_job

pytestmark = pytest.mark.timeout(120)

SECONDS = 60.0
"""In which processes find one another on a machine with much else to do; they take tenths."""

FACTS = {"cnnbench_version": "1.0", "--model": "lenet", "--batch_size": "8"}


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture
def jobs():
    """Two workers and a ps task: the description of each."""
    a, b, c = (f"localhost:{port}" for port in free_ports(3))
    tasks = (Task("worker", 0), Task("worker", 1), Task("ps", 0))
    return [Job(task=task, worker_addresses=(a, b), ps_addresses=(c,)) for task in tasks]


@pytest.fixture(autouse=True)
def _impatient(limits):
    limits(star, RETRY_SECONDS=0.05, REPORT_SECONDS=0.3)
    limits(star, FOREIGN_SECONDS=1.0)
    limits(handshake, _PORT_SECONDS=0.5)


def outcome(job, facts=FACTS, timeout=SECONDS, delay=0.0, said=None):
    """None, or the message of the failure."""
    time.sleep(delay)
    try:
        connect_job(job, facts, timeout, (said if said is not None else []).append).port.close()
    except BenchmarkError as error:
        return str(error)
    return None


def outcomes(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(outcome, **call) for call in calls]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_processes_start_in_any_order(jobs, order):
    calls = ({"job": jobs[who], "delay": 0.1 * place} for place, who in enumerate(order))
    assert outcomes(*calls) == [None] * 3


def met_locally(jobs):
    """The PIDs that each process takes for those of others on its machine; all are this one's."""

    def go(job):
        met = connect_job(job, FACTS, SECONDS, print)
        met.port.close()
        return set(met.local)

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(go, jobs))


def test_processes_on_the_same_machine_are_known(jobs):
    assert met_locally(jobs) == [{os.getpid()}] * 3


@pytest.mark.parametrize("names", [("a", "b", "c"), (None, None, None)])
def test_processes_on_other_machines_are_none_of_this_one(jobs, names, monkeypatch):
    given = iter(names)
    monkeypatch.setattr(handshake, "pid_namespace", lambda host: next(given))
    assert met_locally(jobs) == [set()] * 3


def test_many_processes():
    hosts = tuple(f"127.0.0.1:{port}" for port in free_ports(12))
    jobs = (Job(task=Task("worker", i), worker_addresses=hosts) for i in range(12))
    assert outcomes(*({"job": job} for job in jobs)) == [None] * 12


def test_the_port_is_kept_and_yet_free_for_a_server(jobs):
    ports = {}

    def go(job):
        ports[job.task] = connect_job(job, FACTS, 20, print)

    threads = [threading.Thread(target=go, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The same task once more: a socket like the server's could have the port as well.
    assert outcome(jobs[1], timeout=1).endswith("the port is in use by another program")
    for job in jobs:
        _, port = job.address(job.task).split(":")
        with socket.create_server(("", int(port))):  # as a server of gRPC: with SO_REUSEADDR
            ports[job.task].port.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("localhost", int(port)))


def test_who_is_missing_is_told_and_named_at_the_end(jobs):
    said = []
    first, second = outcomes(
        {"job": jobs[0], "timeout": 1.5, "said": said}, {"job": jobs[1], "timeout": 15.0}
    )
    address = jobs[0].address(Task("ps"))
    assert said
    missing = f"ps:0 ({address}): has not called"
    assert set(said) == {f"waiting for {missing}"}
    assert first == f"worker:0: waited 1.5 s (--cluster_timeout) for {missing}"
    # The other does not wait until its own time is up.
    assert second == first


def test_a_process_whose_time_is_up_ends_the_others(jobs):
    first, second = outcomes(
        {"job": jobs[0], "timeout": 3.0}, {"job": jobs[1], "timeout": 1.5, "delay": 0.1}
    )
    missing = f"ps:0 ({jobs[0].address(Task('ps'))}): has not called"
    assert second == f"worker:1: waited 1.5 s (--cluster_timeout) for {missing}"
    assert first == f"worker:1 gave up: {second}"


def second_of(chief):
    """The second of two workers."""
    (port,) = free_ports(1)
    return Job(task=Task("worker", 1), worker_addresses=(chief, f"localhost:{port}"))


def test_an_unknown_host():
    job = second_of("no-such-host.invalid:1")
    assert "worker:0 (no-such-host.invalid:1): unknown host" in outcome(job, timeout=1)


def test_a_chief_that_has_not_started(jobs):
    message = outcome(jobs[1], timeout=0.5)
    missing = f"worker:0 ({jobs[1].address(Task('worker', 0))}): nobody listens there"
    assert message == f"worker:1: waited 0.5 s (--cluster_timeout) for {missing}"


def test_a_host_name_that_is_looked_up_for_long_is_not_waited_for(monkeypatch):
    """Where no name server answers, the system's call takes minutes and cannot be ended."""
    answers, ended = threading.Event(), []
    look_up = socket.getaddrinfo

    def slow(host, *of):
        if host != "slow.invalid":
            return look_up(host, *of)
        answers.wait(SECONDS)
        ended.append(host)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        message = outcome(second_of("slow.invalid:1"), timeout=0.5)
        assert "worker:0 (slow.invalid:1): no answer" in message
        assert ended == []
    finally:
        answers.set()


def test_the_own_port_is_in_use(jobs):
    address = jobs[1].address(jobs[1].task)
    with socket.create_server(("localhost", int(address.split(":")[1]))):
        first, second, _ = outcomes({"job": jobs[0]}, {"job": jobs[1]}, {"job": jobs[2]})
    assert second == f"worker:1 ({address}): the port is in use by another program"
    assert first.endswith(f"worker:1 gave up: {second}")  # ps:0 may tell it before worker:1 does


def test_a_process_whose_port_is_in_use_says_so_while_there_is_no_chief(jobs):
    address, said = jobs[1].address(jobs[1].task), []
    with socket.create_server(("localhost", int(address.split(":")[1]))):
        message = outcome(jobs[1], timeout=1.0, said=said)
    assert message == f"worker:1 ({address}): the port is in use by another program"
    chief = f"worker:0 ({jobs[1].address(Task('worker', 0))})"
    assert set(said) == {f"{message}; waiting for {chief}: nobody listens there"}


def test_a_port_that_is_freed_in_time(jobs):
    server = socket.create_server(("localhost", int(jobs[1].address(jobs[1].task).split(":")[1])))
    threading.Timer(0.25, server.close).start()
    assert outcomes(*({"job": job} for job in jobs)) == [None] * 3


@pytest.mark.parametrize(
    ("name", "other", "values"),
    [
        ("--batch_size", "", ("8", "''")),
        ("cnnbench_version", "1.1", ("1.0", "1.1")),
    ],
)
def test_processes_that_disagree(jobs, name, other, values):
    """The last may come much later than the others, and yet is told."""
    calls = [{"job": job, "delay": 0.5 * (job.task.job == "ps")} for job in jobs]
    for differing in (2, 1):
        given = [
            {**call, "facts": {**FACTS, name: other} if number == differing else FACTS}
            for number, call in enumerate(calls)
        ]
        messages = outcomes(*given)
        ours, theirs = values
        odd = str(jobs[differing].task)
        told = [
            f"the processes of the job disagree: {name} is {text}"
            for job in jobs
            for text in (
                f"{ours} at {job.task}, {theirs} at {odd}",
                f"{theirs} at {odd}, {ours} at {job.task}",
            )
        ]
        for message in messages:
            assert any(text in message for text in told), message


def test_a_ps_task_has_only_facts_that_matter_to_it(jobs):
    *workers, ps = jobs
    few = {"cnnbench_version": "1.0"}
    assert outcomes(*({"job": job} for job in workers), {"job": ps, "facts": few}) == [None] * 3
    calls = [{"job": job, "facts": few if job is workers[1] else FACTS} for job in jobs]
    assert "--model is " in outcomes(*calls)[0]


def test_a_process_of_another_job_is_told_and_the_others_go_on_waiting(jobs):
    other = Job(task=jobs[1].task, worker_addresses=jobs[1].worker_addresses)
    calls = [{"job": job} for job in (jobs[0], other, jobs[2])]
    first, second, third = outcomes({**calls[0], "timeout": 2.0}, *calls[1:])
    assert "--ps_hosts is " in second
    assert first == third
    assert first.endswith(f": has not called; refused: {second}")


def test_two_processes_that_say_they_are_the_same(jobs):
    messages = outcomes(*[{"job": jobs[1], "timeout": 1.5}] * 2)
    assert sum("the port is in use" in message for message in messages) == 1
    assert sum("waited 1.5 s" in message for message in messages) == 1


def framed(text):
    """A message with any text."""
    return len(text).to_bytes(4, "big") + text


def garbage(port, data, stop):
    """A program that talks to a port, again and again, whatever is there."""
    while not stop.is_set():
        with contextlib.suppress(OSError):
            with socket.create_connection(("localhost", port), 1) as connection:
                connection.sendall(data)
                connection.settimeout(0.2)
                connection.recv(100)
        time.sleep(0.01)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\0" * 4096 + b"\n",
        b"{" * 3_000_000,
        framed(b"[" * 100_000),
        b"",
        pack({"cnnbench handshake": 1, "task": "worker:0"}),
        pack({"cnnbench handshake": 1, "task": [], "nonce": {}, "facts": 3, "failed": None}),
        framed(
            b'{"cnnbench handshake": 1, "task": "worker:1", "nonce": "", "facts": {},'
            b' "failed": null, "pid": Infinity}'
        ),
    ],
    ids=("http", "zeros", "endless", "deep", "silent", "half", "types", "pid"),
)
def test_other_programs_that_call_do_no_harm(jobs, data):
    stop = threading.Event()
    ports = [int(job.address(job.task).split(":")[1]) for job in jobs]
    callers = [threading.Thread(target=garbage, args=(port, data, stop)) for port in ports]
    for caller in callers:
        caller.start()
    try:
        assert outcomes(*({"job": job, "delay": 0.1 * i} for i, job in enumerate(jobs))) == (
            [None] * 3
        )
    finally:
        stop.set()
        for caller in callers:
            caller.join()


SETTINGS_OF_GRPC = b"\0\0\0\x04\0\0\0\0\0"
FOREIGN = "another program answers there"
STARTED = "the job has already started there; no task can join it later, so start all tasks again"
# What a program at the chief's port answers; the end of the message of a process, and the time
# limit of the process.
OTHERS = {
    "long": (b"x" * 3_000_000, FOREIGN, SECONDS),
    "object": (pack({}), FOREIGN, SECONDS),
    "gRPC": (SETTINGS_OF_GRPC, STARTED, SECONDS),
    # TensorFlow's server closes a connection that does not begin as gRPC does.
    "TensorFlow": (b"PRI", STARTED, SECONDS),
    "silence": (None, "does not answer", SECONDS),
    # Proxies accept connections before the program behind them listens.
    "closes": (b"", "closes connections", 3.0),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_program_on_the_port_of_the_chief(jobs, kind):
    answer, reason, timeout = OTHERS[kind]
    port = int(jobs[0].address(jobs[0].task).split(":")[1])
    stop = threading.Event()

    def serve():
        while not stop.is_set():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    received = connection.recv(100_000)
                    if answer is None:
                        stop.wait(SECONDS)
                    elif answer == b"PRI":
                        connection.sendall(SETTINGS_OF_GRPC if received.startswith(answer) else b"")
                    else:
                        connection.sendall(answer)

    with socket.create_server(("localhost", port)) as server:
        server.settimeout(0.1)
        thread = threading.Thread(target=serve)
        thread.start()
        began = time.monotonic()
        try:
            message = outcome(jobs[1], timeout=timeout)
        finally:
            stop.set()
            thread.join()
    assert message.endswith(f"worker:0 (localhost:{port}): {reason}")
    assert time.monotonic() - began < SECONDS / 2


def card_of(job, **changes):
    """The message with which a process of a job calls the chief."""
    hosts = {f"--{name}_hosts": ",".join(job.addresses_of(name)) for name in ("worker", "ps")}
    facts = {**hosts, "--controller_host": "", **FACTS}
    card = {"task": str(job.task), "nonce": "1", "facts": facts, "failed": None, "star": 1}
    return pack({"cnnbench handshake": 1, **card, **changes})


@contextlib.contextmanager
def called(job, card):
    """A connection with the chief, when there is one, on which a card was sent."""
    host, port = job.address(job.chief).split(":")
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            link = socket.create_connection((host, int(port)), SECONDS)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with link:
        link.sendall(card)
        yield link


def test_a_process_that_ends_is_replaced(jobs):
    """One that was restarted while others still waited."""
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(outcome, jobs[0])
        with called(jobs[1], card_of(jobs[1])) as link:
            assert receive(link, 10.0)["task"] == "worker:0"
        rest = [pool.submit(outcome, one) for one in jobs[1:]]
        assert [one.result() for one in (first, *rest)] == [None] * 3


def test_a_process_that_shows_no_sign_of_life_is_replaced(jobs, limits):
    """Such as one on a machine that was switched off."""
    limits(star, ALIVE_SECONDS=0.3)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(outcome, jobs[0])
        with called(jobs[1], card_of(jobs[1])) as link:
            receive(link, 10.0)
            second = pool.submit(outcome, jobs[1])
            time.sleep(1.0)
            third = pool.submit(outcome, jobs[2])
            assert [one.result() for one in (first, second, third)] == [None] * 3


def test_a_second_process_whose_port_the_first_one_has_ends_alone(jobs):
    """It was started twice on one machine by mistake."""
    with ThreadPoolExecutor(3) as pool:
        first, second = (pool.submit(outcome, one) for one in jobs[:2])
        time.sleep(0.3)
        assert outcome(jobs[1]).endswith("the port is in use by another program")
        assert [one.result() for one in (first, second, pool.submit(outcome, jobs[2]))] == (
            [None] * 3
        )


def test_a_port_that_a_process_without_a_sign_of_life_has_is_told_to_all(jobs, limits):
    """Such as a suspended process, whose place a restarted one cannot take."""
    limits(star, ALIVE_SECONDS=0.3)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(outcome, jobs[0])
        with called(jobs[1], card_of(jobs[1])) as link:
            receive(link, 10.0)
            with called(jobs[1], card_of(jobs[1], failed="its port is in use")):
                third = pool.submit(outcome, jobs[2])
                told = "worker:1 gave up: its port is in use"
                assert [first.result(), third.result()] == [told, told]


def test_a_second_process_of_a_task_is_refused_while_the_first_is_there(jobs):
    with ThreadPoolExecutor(3) as pool:
        first, second = (pool.submit(outcome, one) for one in jobs[:2])
        time.sleep(0.5)
        with called(jobs[1], card_of(jobs[1])) as link:
            assert receive(link, 10.0)["task"] == "worker:0"
            assert receive(link, 10.0)["failed"].startswith("worker:1 has already connected, from ")
        assert [one.result() for one in (first, second, pool.submit(outcome, jobs[2]))] == (
            [None] * 3
        )


def test_a_process_of_an_earlier_version_hears_why_there_is_no_job(jobs):
    """It reads the first message, a card like its own, and nothing else."""
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(outcome, one) for one in jobs[:2])
        with called(jobs[2], card_of(jobs[2], star=0)) as link:
            answer = receive(link, 10.0)
            assert (answer["cnnbench handshake"], answer["task"]) == (1, "worker:0")
            assert answer["facts"]["cnnbench_version"] != FACTS["cnnbench_version"]
            assert answer["facts"]["--model"] == FACTS["--model"]
        reason = "ps:0 is another version of cnnbench than worker:0"
        assert (first.result(), second.result()) == (reason, reason)


def test_a_chief_of_an_earlier_version(jobs):
    def serve():
        with server:
            connection, _ = server.accept()
            with connection:
                receive(connection, 10.0)
                facts = {"cnnbench_version": "0.9"}
                old = {"task": "worker:0", "nonce": "1", "facts": facts, "failed": None}
                connection.sendall(pack({"cnnbench handshake": 1, **old}))

    server = socket.create_server(("localhost", int(jobs[0].address(jobs[0].task).split(":")[1])))
    thread = threading.Thread(target=serve)
    thread.start()
    message = outcome(jobs[1])
    thread.join()
    assert "cnnbench_version is 1.0 at worker:1, 0.9 at worker:0" in message


STRANGERS = {
    "no facts": {"facts": {}},
    "other addresses": {"facts": {"--worker_hosts": "a:1,b:1", **FACTS}},
    "unknown task": {"task": "worker:7"},
    "the chief": {"task": "worker:0"},
}


@pytest.mark.parametrize("failed", [None, "no reason"])
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_forged_card_ends_no_job(jobs, kind, failed):
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(outcome, jobs[0])
        with called(jobs[1], card_of(jobs[1], **STRANGERS[kind], failed=failed)) as link:
            assert receive(link, 10.0)["failed"]
        rest = [pool.submit(outcome, one) for one in jobs[1:]]
        assert [one.result() for one in (first, *rest)] == [None] * 3


def test_a_reason_is_kept_for_those_who_come_later(jobs):
    differs = {**FACTS, "--model": "other"}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(outcome, jobs[0])
        second = pool.submit(outcome, jobs[1], differs)
        reason = second.result()
        assert "--model is lenet at worker:0, other at worker:1" in reason
        assert not first.done()
        assert outcome(jobs[2]) == first.result() == reason


def test_long_values_and_many_differences_stay_one_line(jobs):
    facts = {**FACTS, "--model": "x" * 5000 + "\n\x1b[31m", **{f"--f{i}": "1" for i in range(50)}}
    # Without the ps task: one that finds fewer differences could be the first to tell of its own.
    one, other = (replace(job, ps_addresses=()) for job in jobs[:2])
    first, _ = outcomes({"job": one}, {"job": other, "facts": facts})
    assert len(first) < 3000
    assert first.isprintable()
    assert "and 43 more" in first
