"""Processes that know their ranks learn one another's addresses; also under a real mpirun.

Tests cnnbench/base/rendezvous.py and cnnbench/base/star.py.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from forked import finished, until

from cnnbench.base import rendezvous, star
from cnnbench.base.launcher import LauncherRanks
from cnnbench.base.message import pack, receive
from cnnbench.base.ports import ReservedPorts
from cnnbench.base.rendezvous import exchange_addresses
from cnnbench.errors import BenchmarkError, FlagError

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(autouse=True)
def _without_mpi4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)


@pytest.fixture
def place():
    with ReservedPorts(1) as ports:
        yield f"localhost:{ports.numbers[0]}"


def framed(text):
    """A message with any text."""
    return len(text).to_bytes(4, "big") + text


def ranks(rank, size, local_size=None):
    local = size if local_size is None else local_size
    return LauncherRanks("Open MPI", rank, size, rank % local, local, "job")


def exchanged(size, place, order, local_size=None):
    with ThreadPoolExecutor(size) as pool:
        calls = {}
        for rank in order:
            one = ranks(rank, size, local_size)
            calls[rank] = pool.submit(exchange_addresses, one, place, 20, lambda line: None)
            time.sleep(0.1)
        return [calls[rank].result() for rank in range(size)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0,)])
def test_every_process_gets_the_same_list(place, order):
    first, *others = exchanged(len(order), place, order)
    assert others == [first] * (len(order) - 1)
    assert [host.partition(":")[0] for host in first] == ["localhost"] * len(order)
    assert len(set(first)) == len(order)
    for host in first:
        with socket.create_server(("", int(host.rpartition(":")[2]))):
            pass  # each port is for a server


def test_hosts_of_several_machines_are_those_that_calls_came_from(place):
    first, second = exchanged(2, place, (0, 1), local_size=1)
    assert first == second
    assert first[0].startswith("localhost:")  # as --rendezvous names it
    assert first[1].startswith(("127.0.0.1:", "[::1]:"))


def test_other_programs_do_no_harm(place):
    stop = threading.Event()
    words = [
        b"GET / HTTP/1.0\r\n\r\n",
        b"[]\n",
        pack([]),
        pack({"rank": 1}),
        b"\xff" * 100,
        framed(b"[" * 99999),
    ]
    words += [card(task=f"rank {rank}", size="2") for rank in (0, 2, -1)]
    words += [card(size="2", failed="no reason", job="another")]

    def call():
        while not stop.is_set():
            for word in words:
                with contextlib.suppress(OSError):
                    port = int(place.split(":")[1])
                    with socket.create_connection(("localhost", port), 1) as one:
                        one.sendall(word)
            time.sleep(0.01)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        first, second = exchanged(2, place, (0, 1))
    finally:
        stop.set()
        thread.join()
    assert first == second


@pytest.mark.parametrize("name", ["task", "fact"])
def test_a_long_text_of_another_program_does_no_harm(place, limits, name):
    """It is told to those that wait, and must not be too long for them."""
    limits(star, REPORT_SECONDS=0.05)
    text = "\xe9" * 1_900_000  # In JSON, rank 0 would write it with three times as many bytes.
    values = {"task": text} if name == "task" else {"task": "rank 2", "facts": {"size": text}}
    own = {"cnnbench handshake": 1, "facts": {}, "node": "", "port": 1, "star": 1, **values}
    said = []
    with ThreadPoolExecutor(3) as pool:
        first, second = (
            pool.submit(exchange_addresses, ranks(rank, 3), place, 20, said.append)
            for rank in (0, 1)
        )
        with called(place, framed(json.dumps(own, ensure_ascii=False).encode())) as link:
            assert len(receive(link, 20.0)["failed"]) <= star._LONGEST_LINE
        before = len(said)
        until(lambda: len(said) > before + 4)
        third = exchange_addresses(ranks(2, 3), place, 20, print)
        assert first.result(10) == second.result(10) == third
    assert max(map(len, said)) < star._LONGEST_LINE + 200


def test_who_does_not_come_is_named(place, limits):
    limits(star, REPORT_SECONDS=0.05)
    said = []
    with pytest.raises(BenchmarkError, match=f"^rank 0: .* 0.2 s .* 1,2 at {place}"):
        exchange_addresses(ranks(0, 3), place, 0.2, said.append)
    with pytest.raises(BenchmarkError, match=f"^rank 1: .* 0.2 s .* rank 0 at {place}"):
        exchange_addresses(ranks(1, 3), place, 0.2, said.append)
    assert any(" ranks 1,2 at " in line for line in said)
    assert any(" rank 0 at " in line for line in said)


def test_the_first_20_missing_ranks_are_named(place):
    numbers = ",".join(map(str, range(1, 21)))
    with pytest.raises(BenchmarkError, match=f" ranks {numbers} at {place}"):
        exchange_addresses(ranks(0, 30), place, 0.01, print)


def test_nobody_is_missed_after_an_exchange(place):
    said = []
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(exchange_addresses, ranks(rank, 2), place, 20, said.append)
            for rank in range(2)
        ]
        assert calls[0].result() == calls[1].result()
    time.sleep(0.05)
    assert said == []


def test_the_port_is_in_use(place):
    with socket.create_server(("localhost", int(place.split(":")[1]))):
        with pytest.raises(BenchmarkError, match=f"{place}: rank 0 "):
            exchange_addresses(ranks(0, 2), place, 5, print)


def card(size="3", job="", **changes):
    """What rank 1 sends first."""
    facts = {"launcher": "Open MPI", "size": size, "job": job}
    own = {"task": "rank 1", "facts": facts, "node": "localhost", "port": 4711, "star": 1}
    return pack({"cnnbench handshake": 1, **own, **changes})


@contextlib.contextmanager
def called(place, line, seconds=20.0):
    """A connection with rank 0 on which a line was sent, once there is rank 0."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        while True:
            try:
                one = socket.create_connection(("localhost", int(place.split(":")[1])), seconds)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        stack.enter_context(one)
        one.sendall(line)
        yield one


@pytest.mark.slow
def test_a_process_that_ends_after_its_call_ends_the_others(place):
    """From the command line; the last rank starts when the others know."""
    flags = f"--model=trivial --device=cpu --variable_update=horovod --rendezvous={place}"

    def start(rank):
        own = {"RANK": rank, "SIZE": 3, "LOCAL_RANK": rank, "LOCAL_SIZE": 3}
        environ = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in own.items()}
        words = [sys.executable, "-m", "cnnbench", *flags.split()]
        return pool.submit(finished, words, None, seconds=60, environment=environ)

    with ThreadPoolExecutor(2) as pool:
        first = start(0)
        with called(place, card()) as link:
            assert receive(link, 20.0)["task"] == "rank 0"
        time.sleep(0.2)
        last = start(2)
        codes, lines = zip(
            *((one.returncode, one.stderr.splitlines()) for one in (first.result(), last.result())),
            strict=True,
        )
    assert codes == (4, 4)
    prefix = "cnnbench: error: "
    assert lines[0][-1] == f"{prefix}rank 1, at localhost:4711, has ended"
    assert lines[1][-1] == lines[0][-1]


def test_those_that_wait_are_told_at_once(place):
    with ThreadPoolExecutor(2) as pool:
        first, second = (
            pool.submit(exchange_addresses, ranks(rank, 4), place, 20, lambda line: None)
            for rank in (0, 2)
        )
        with called(place, card(size="4")) as link:
            receive(link, 20.0)
            time.sleep(0.3)
        with pytest.raises(BenchmarkError, match=r"^rank 1, at .*:4711, has ended"):
            second.result(10)
        assert not first.done()  # rank 3 is to be told, too
        with called(place, card(size="4", task="rank 3")) as link:
            receive(link, 20.0)
            assert "rank 1, at" in receive(link, 20.0)["failed"]
        with pytest.raises(BenchmarkError, match=r"^rank 1, at .*:4711,"):
            first.result(10)


def test_rank_0_ends_after_it_has_confirmed_a_call(place):
    def confirm():
        with socket.create_server(("localhost", int(place.split(":")[1]))) as server:
            one, _ = server.accept()
            with one:
                receive(one, 20.0)
                one.sendall(card(task="rank 0"))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(confirm)
        with pytest.raises(BenchmarkError, match=f"rank 0 at {place} .*: it has ended"):
            exchange_addresses(ranks(1, 3), place, 20, print)


def test_a_rank_that_is_there_twice_is_refused_and_the_job_goes_on(place, limits):
    limits(star, REPORT_SECONDS=0.1)
    said = []
    with ThreadPoolExecutor(3) as pool:
        first, second = (
            pool.submit(exchange_addresses, ranks(rank, 3), place, 20, said.append)
            for rank in (0, 1)
        )
        until(lambda: any(" ranks 2 at " in line for line in said))
        with called(place, card()) as link:
            receive(link, 20.0)
            assert re.search("rank 1 has already connected", receive(link, 20.0)["failed"])
        assert (
            exchange_addresses(ranks(2, 3), place, 20, print)
            == first.result(10)
            == second.result(10)
        )


NO_CARDS = (
    *({"port": port} for port in (-1, 2.5, 10**30, True, None, [], "x", "1 2")),
    *({"task": task} for task in (1.5, 10**30, None, [], {})),
    *({"facts": facts} for facts in (None, [], {"size": 3})),
)
OF_NO_JOB = (
    *({"port": port} for port in (0, 65536)),
    *({"task": task} for task in ("rank 0", "rank 3", "rank -1", "worker:1")),
    *({"size": size} for size in ("4", "")),
    {"node": "a b"},
)


def test_ports_and_ranks_are_checked(place, capfd):
    """Whoever sends other values is another program, also one that sends what is no JSON."""
    lines = [card(**changes) for changes in NO_CARDS]
    infinite = card(port="Infinity").replace(b'"Infinity"', b"Infinity")
    lines += [framed(infinite[4:]), framed(card()[4:-9])]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(exchange_addresses, ranks(0, 3), place, 20, lambda line: None)
        for line in lines:
            with called(place, line) as link:
                assert link.recv(1) == b"", line
        for changes in OF_NO_JOB:
            with called(place, card(**changes)) as link:
                assert receive(link, 20.0)["failed"], changes
        with called(place, card()), called(place, card(task="rank 2", port=4712)):
            assert first.result(10)[1:] == ("localhost:4711", "localhost:4712")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "hosts", [5, "abc", ["a:1", "b:2"], ["a:1", "b:2", "c"], ["a:1", "b:2", 3], {"a:1": 1}, None]
)
def test_lists_of_addresses_are_checked(place, hosts, limits):
    limits(star, RETRY_SECONDS=0.01)

    def answer():
        with socket.create_server(("localhost", int(place.split(":")[1]))) as server:
            one, _ = server.accept()
            with one:
                receive(one, 20.0)
                one.sendall(card(task="rank 0") + pack({"go": hosts}) + b"[" * 99999)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(answer)
        with pytest.raises(BenchmarkError, match=r"^rank 0 at .* no list of addresses"):
            exchange_addresses(ranks(1, 3), place, 0.2, print)


def mpi_of(allgather):
    """A stand-in for the module of mpi4py."""
    return SimpleNamespace(COMM_WORLD=SimpleNamespace(allgather=allgather), Finalize=lambda: None)


def test_mpi4py_of_another_mpi(monkeypatch):
    """Each process is alone in its world."""
    mpi = mpi_of(lambda address: [address])
    monkeypatch.setattr(rendezvous, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    with pytest.raises(BenchmarkError, match=r"mpi4py sees 1 of 2 processes; .*--rendezvous"):
        exchange_addresses(ranks(1, 2), None, 5, print)


def test_several_machines_need_an_address():
    with pytest.raises(FlagError) as caught:
        exchange_addresses(ranks(0, 2, local_size=1), None, 5, print)
    assert caught.value.flag == "rendezvous"


LAUNCHERS = [
    program
    for program in ("mpirun.openmpi", "mpirun.mpich", "mpirun")
    if shutil.which(program) is not None
]

RANK = """
    import os
    from cnnbench.base.rendezvous import exchange_addresses
    from cnnbench.base.launcher import mpi_ranks
    ranks = mpi_ranks(os.environ)
    words = (ranks.launcher, str(ranks.rank), *exchange_addresses(ranks, None, 60, print))
    os.write(1, (" ".join(words) + "\\n").encode())  # in one piece, so that lines stay whole
"""


# Open MPI refuses root, and more processes than processors, unless it is told otherwise.
ALLOW = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
ALLOWING = dict.fromkeys((*ALLOW, "OMPI_MCA_rmaps_base_oversubscribe"), "1")


def mpirun(program, count, *words):
    """The finished command, which has succeeded."""
    command = [program, "-np", str(count), sys.executable, *words]
    environment = {**ALLOWING, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return finished(command, seconds=220, environment=environment)


@pytest.mark.skipif(not LAUNCHERS, reason="needs mpirun of Open MPI or MPICH")
@pytest.mark.parametrize("program", LAUNCHERS)
def test_a_real_mpirun(program):
    done = mpirun(program, 3, "-c", textwrap.dedent(RANK))
    lines = sorted(line.rsplit(maxsplit=4) for line in done.stdout.splitlines())
    assert [line[1] for line in lines] == ["0", "1", "2"]
    assert len({tuple(line[2:]) for line in lines}) == 1
    assert {line[0] for line in lines} in ({"Open MPI"}, {"MPICH"})


@pytest.mark.skipif(not LAUNCHERS, reason="needs mpirun of Open MPI or MPICH")
@pytest.mark.timeout(240)
def test_horovods_command_line_under_a_real_mpirun(tmp_path):
    record = tmp_path / "record.json"
    flags = "--model=trivial --device=cpu --batch_size=2 --num_batches=2 --num_warmup_batches=1"
    flags += f" --variable_update=horovod --result_json={record}"
    done = mpirun(LAUNCHERS[0], 2, "-m", "cnnbench", *flags.split())
    assert done.stdout.count("total images/sec: ") == 1
    assert done.stderr.count("without Horovod") == 2
    found = json.loads(record.read_text())
    assert found["config"]["variable_update"] == "collective_all_reduce"
    assert found["batch"]["global"] == 4


@pytest.mark.parametrize("local_size", [2, 1])
def test_mpi4py_gathers_the_addresses(monkeypatch, local_size):
    def allgather(address):
        assert address.rpartition(":")[0] == host
        return [address, "other:1"]

    host = "localhost" if local_size == 2 else socket.gethostname()
    mpi = mpi_of(allgather)
    monkeypatch.setattr(rendezvous, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    first, second = exchange_addresses(ranks(0, 2, local_size), None, 5, print)
    assert (first.startswith(f"{host}:"), second) == (True, "other:1")


def test_an_address_of_another_machine_is_refused():
    place = "192.0.2.1:7777"  # which is reserved for documentation
    with pytest.raises(BenchmarkError, match=f"^{place}: rank 0 .* --rendezvous"):
        exchange_addresses(ranks(0, 2), place, 5, print)
