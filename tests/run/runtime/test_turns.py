"""The turns of one process, as it sees them."""

import os
import signal
import socket
import threading

import pytest

from cnnbench.base.interrupts import begin_command, conclude_command, handling_signals
from cnnbench.run.runtime import turns as module
from cnnbench.run.runtime.turns import GO_ON, VARIABLE, WAITS, WAITS_AFTER_STEPS, TimeSlices


def test_who_is_alone_never_waits():
    turns = TimeSlices.from_environment({})
    assert not turns.is_interleaved
    assert not turns.is_slice_over()
    assert turns.wait_for_next_slice() == (0.0, 0.0)


def test_a_turn_lasts_as_long_as_the_parent_says():
    ours, theirs = socket.socketpair()
    descriptor = theirs.detach()
    environ = {VARIABLE: f"{descriptor}:0.25", "OTHER": "x"}
    turns = TimeSlices.from_environment(environ)
    assert environ == {"OTHER": "x"}  # processes that this one starts have no turns
    assert not os.get_inheritable(descriptor)
    now = 100.0
    turns._clock = lambda: now
    said = []

    def parent():
        nonlocal now
        said.append(ours.recv(1))
        now = 103.0
        ours.sendall(GO_ON)

    thread = threading.Thread(target=parent)
    thread.start()
    assert turns.wait_for_next_slice()[0] == 3.0
    thread.join()
    assert said == [WAITS]
    assert not turns.is_slice_over()
    now = 103.25
    assert turns.is_slice_over()
    with ours:
        ours.sendall(GO_ON)
        turns.wait_for_next_slice(steps_left=False)
        assert ours.recv(1) == WAITS_AFTER_STEPS


def test_without_its_parent_it_goes_on_alone():
    ours, theirs = socket.socketpair()
    turns = TimeSlices(theirs, 0.1)
    assert turns.is_interleaved
    ours.close()
    turns.wait_for_next_slice()
    assert not turns.is_interleaved
    assert not turns.is_slice_over()
    assert turns.wait_for_next_slice() == (0.0, 0.0)


@pytest.mark.timeout(60)
def test_a_signal_that_came_just_before_a_wait_ends_it(limits):
    """Here another thread takes the signal, so that it does not interrupt the read either."""
    limits(module, LONGEST_WAIT_SECONDS=0.05)
    ours, theirs = socket.socketpair()
    heard, turn_was_given = threading.Event(), threading.Event()

    def parent():
        ours.recv(1)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        if not heard.wait(10.0):
            turn_was_given.set()
            ours.sendall(GO_ON)

    thread = threading.Thread(target=parent)
    with handling_signals():
        begin_command()
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            TimeSlices(theirs, 0.1).wait_for_next_slice()
        heard.set()
        thread.join()
        conclude_command()
    assert not turn_was_given.is_set()
