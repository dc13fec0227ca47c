"""Calls at a port are answered until a meeting is over, and the main thread waits for a result.

Tests cnnbench/base/meeting.py.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from typing import ClassVar

import pytest

from cnnbench.base import meeting
from cnnbench.base.interrupts import begin_command, conclude_command, handling_signals
from cnnbench.base.meeting import Meeting
from cnnbench.base.message import pack, receive

pytestmark = pytest.mark.timeout(60)

SECONDS = 20.0
"""In which a thread does what takes tenths."""


@pytest.fixture
def listener():
    with socket.create_server(("localhost", 0)) as server:
        yield server


def call(port, value=None):
    link = socket.create_connection(("localhost", port), SECONDS)
    if value is not None:
        link.sendall(pack(value))
    return link


def test_calls_are_answered_at_the_same_time_until_the_meeting_is_over(listener):
    port, both = listener.getsockname()[1], threading.Barrier(2, timeout=SECONDS)

    def answer(link):
        value = receive(link, SECONDS)
        both.wait()
        link.sendall(pack(value + 1))
        return False

    with Meeting(print) as held:
        held.answer_in_thread(listener, answer, most=2)
        with call(port, 1) as first, call(port, 2) as second:
            assert (receive(first, SECONDS), receive(second, SECONDS)) == (2, 3)
            assert first.recv(1) == b""  # it was closed
    with pytest.raises(ConnectionRefusedError):
        call(port)


def test_a_connection_is_kept_if_its_answer_says_so(listener):
    port, kept = listener.getsockname()[1], []

    def answer(link):
        kept.append(link)
        return True

    with Meeting(print) as held:
        held.answer_in_thread(listener, answer, most=1)
        link = call(port)
        deadline = time.monotonic() + SECONDS
        while not kept and time.monotonic() < deadline:
            time.sleep(0.01)
    with link, kept[0]:
        kept[0].sendall(pack("later"))
        assert receive(link, SECONDS) == "later"


def test_too_many_calls_are_refused(listener):
    port, entered, go_on = listener.getsockname()[1], threading.Event(), threading.Event()

    def answer(link):
        entered.set()
        go_on.wait(SECONDS)
        return False

    with Meeting(print) as held:
        held.answer_in_thread(listener, answer, most=1)
        with call(port) as first:
            assert entered.wait(SECONDS)
            with call(port) as second:
                assert second.recv(1) == b""
            go_on.set()
            assert first.recv(1) == b""


@pytest.mark.parametrize("error", [EOFError, KeyError, TimeoutError, ValueError])
def test_an_answer_that_fails_ends_only_its_call(listener, error, capfd):
    port, calls = listener.getsockname()[1], []

    def answer(link):
        calls.append(link)
        raise error

    with Meeting(print) as held:
        held.answer_in_thread(listener, answer, most=8)
        for count in (1, 2):
            with call(port) as link:
                assert link.recv(1) == b""
            assert len(calls) == count
    assert capfd.readouterr().err == ""


def test_a_call_is_repeated_until_it_succeeds_or_the_meeting_is_over(limits):
    limits(meeting, RETRY_SECONDS=0.01)
    counts = {"succeeds": 0, "never": 0}

    def count(name, enough):
        with held.changed:
            counts[name] += 1
            held.changed.notify_all()
        return counts[name] >= enough

    with Meeting(print) as held:
        held.repeat(lambda: count("succeeds", 3))
        held.repeat(lambda: count("never", 10**9))
        assert held.wait(lambda: counts["never"] > 10, SECONDS, str)
    after = counts["never"]
    time.sleep(0.1)
    assert counts["succeeds"] == 3
    assert counts["never"] <= after + 1


class Recording(threading.Event):
    """An event that waits for no time limit, and notes the limits."""

    limits: ClassVar[list[float]] = []

    def wait(self, timeout=None):
        if timeout is None:
            return super().wait()
        self.limits.append(timeout)
        return False


def test_the_pauses_between_calls_double_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(threading, "Event", Recording)
    monkeypatch.setattr(Recording, "limits", [])
    results = iter([False] * 7 + [True])

    def call():
        done = next(results)
        if done:
            with held.changed:
                held.changed.notify_all()
        return done

    with Meeting(print) as held:
        held.repeat(call)
        assert held.wait(lambda: len(Recording.limits) == 7, SECONDS, str)
    assert Recording.limits == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1])


def test_a_pause_between_calls_can_be_ended(limits):
    limits(meeting, RETRY_SECONDS=3600.0, _FIRST_PAUSE_SECONDS=3600.0)
    calls = []

    def call():
        with held.changed:
            calls.append("call")
            held.changed.notify_all()
        return len(calls) == 3

    with Meeting(print) as held:
        soon = held.repeat(call)
        for count in (1, 2, 3):
            assert held.wait(lambda count=count: len(calls) == count, SECONDS, str)
            soon.set()


def test_the_main_thread_waits_and_reports_what_is_missing(limits):
    said = []
    with Meeting(said.append) as held:
        assert not held.wait(lambda: False, 0.02, str)
    assert said == []  # The first report is after some seconds.
    limits(meeting, REPORT_SECONDS=0.1)
    with Meeting(said.append) as held:
        start = time.monotonic()
        assert not held.wait(lambda: False, 0.5, lambda: "worker:1")
        assert 0.5 <= time.monotonic() - start < SECONDS
        assert {*said} == {"waiting for worker:1"}
        assert len(said) <= 5
        done = threading.Event()

        def end():
            with held.changed:
                done.set()
                held.changed.notify_all()

        threading.Timer(0.1, end).start()
        assert held.wait(done.is_set, SECONDS, str)


class Dropping:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_that_python_drops_ends_the_wait():
    with handling_signals():
        begin_command()
        Dropping()
        with Meeting(print) as held, pytest.raises(KeyboardInterrupt):
            held.wait(lambda: False, SECONDS, str)
        conclude_command()
