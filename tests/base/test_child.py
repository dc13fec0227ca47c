"""What forked and spawned children have in common: their message, their end, and its text."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from forked import finished, gone, wait_for

from cnnbench.base import message
from cnnbench.base.child import ChildProcess, StopLadder, exit_manner, exit_sentence, fork_child
from cnnbench.base.interrupts import SAME_SECONDS

pytestmark = pytest.mark.timeout(60)

SECONDS = 20.0
"""In which a process does what takes a fraction of one."""


@pytest.fixture
def link() -> Iterator[tuple[ChildProcess, socket.socket]]:
    """A child that is this process, and its end of the link."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ChildProcess(os.getpid(), ours), theirs


def test_the_message_of_a_child_is_known_when_it_has_arrived(
    link: tuple[ChildProcess, socket.socket],
) -> None:
    child, theirs = link
    assert child.read_report() is None
    assert select.select([child], [], [], 0.0)[0] == []
    theirs.sendall(message.pack({"code": 3}))
    assert select.select([child], [], [], SECONDS)[0] == [child]
    assert child.read_report(SECONDS) == {"code": 3}
    theirs.sendall(message.pack({"code": 4}))
    assert child.read_report(SECONDS) == {"code": 3}


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", message.pack([1, 2]), b"\0\0\0\1x", b"\xff" * 8], ids=repr
)
def test_a_child_that_ends_without_a_message(
    link: tuple[ChildProcess, socket.socket], data: bytes
) -> None:
    child, theirs = link
    theirs.sendall(data)
    theirs.close()
    assert child.read_report(SECONDS) == {}


ALONE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(flush=True)
signal.pause()
"""
WITH_ANOTHER = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
other = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(600)"])
print(flush=True)
sys.exit(7 if other.wait() == -signal.SIGTERM else 1)
"""


@pytest.mark.parametrize(("code", "leads_group"), [(ALONE, False), (WITH_ANOTHER, True)])
def test_signals_go_to_the_child_or_to_its_group(code: str, leads_group: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    ours, theirs = socket.socketpair()
    with process, ours, theirs:
        assert process.stdout is not None
        process.stdout.read(1)
        child = ChildProcess(process.pid, ours, leads_group=leads_group)
        try:
            child.send_signal(signal.SIGSTOP)
            child.interrupt()
            assert process.wait(SECONDS) == 7
            child.interrupt()  # it has ended, which is no error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_forked_child_has_a_link() -> None:
    child, link = fork_child()
    if child is None:
        try:
            link.sendall(message.pack({"pid": os.getpid()}))
        finally:
            os._exit(5)
    with link:
        assert child.read_report(SECONDS) == {"pid": child.pid}
        assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_child_ends_with_its_parent(tmp_path):
    code = f"""
        import os, signal, time
        from cnnbench.base.child import fork_child
        child, link = fork_child()
        if child is None:
            link.sendall(b"1")
            time.sleep(600)
        link.recv(1)
        with open({str(tmp_path / "pid")!r}, "w") as file:
            file.write(str(child.pid))
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)]) as parent:
        child = int(wait_for(tmp_path / "pid"))
        parent.kill()
    assert gone(child)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to an ancestor")
def test_orphans_can_be_waited_for():
    code = """
        import os
        from cnnbench.base.child import adopt_orphans
        adopt_orphans()
        read, write = os.pipe()
        if not os.fork():
            orphan = os.fork()
            if orphan:
                os.write(write, str(orphan).encode())
            os._exit(0 if orphan else 3)
        os.wait()
        print(os.waitstatus_to_exitcode(os.waitpid(int(os.read(read, 32)), 0)[1]))
    """
    assert finished((sys.executable, "-c", textwrap.dedent(code))).stdout == "3\n"


def test_a_child_has_its_time_from_the_first_interrupt():
    ladder = StopLadder(5.0)
    assert ladder.deadline == math.inf
    assert not ladder.interrupt(100.0)
    assert not ladder.interrupt(100.9)  # the same interrupt, which arrives twice
    assert ladder.deadline == 105.0
    assert not ladder.allow(5.0)
    assert not ladder.allow(3.0)
    assert ladder.deadline == 105.0
    assert ladder.allow(8.0)
    assert ladder.deadline == 108.0
    # A tenth of the time within which interrupts are the same one.
    assert not ladder.allow(8.0 + 0.095 * SAME_SECONDS)
    assert ladder.allow(8.0 + 0.105 * SAME_SECONDS)


def test_a_second_interrupt_is_noticed():
    ladder = StopLadder(60.0)
    assert not ladder.interrupt(0.0)
    assert ladder.interrupt(1.5)
    assert ladder.interrupt(9.0)


@pytest.mark.parametrize(
    ("code", "manner", "sentence"),
    [
        (3, "with exit code 3", "ps:0 ended with exit code 3"),
        (0, "with exit code 0", "ps:0 ended with exit code 0"),
        (-11, "by SIGSEGV", "ps:0 was ended by SIGSEGV"),
        (-40, "by signal 40", "ps:0 was ended by signal 40"),
    ],
)
def test_the_end_of_a_process_as_text(code: int, manner: str, sentence: str) -> None:
    assert exit_manner(code) == manner
    assert exit_sentence("ps:0", code) == sentence


def test_a_process_whose_guard_was_killed() -> None:
    assert exit_sentence("ps:0", None) == "ps:0 was killed together with its guard"
