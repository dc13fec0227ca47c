"""Children that step in turn (interleaved.py): who runs when, and what happens when one is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from forked import PATIENCE, gone, wait_for

from cnnbench.campaigns.processes import interleaved
from cnnbench.campaigns.processes.child import Command
from cnnbench.campaigns.processes.interleaved import execute_interleaved
from cnnbench.run.runtime.turns import GO_ON, WAITS

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(60)

PRELUDE = """
    import os, signal, sys, time
    sys.path.insert(0, ROOT)
    from cnnbench.run.runtime.turns import TimeSlices
    def say(word):
        with open("trace", "a") as file:
            file.write(f"{NAME} {word} {time.monotonic()}\\n")
    with open(NAME, "w") as file:
        file.write(str(os.getpid()))
    turns = TimeSlices.from_environment(os.environ)
    def steps(count):
        turns.wait_for_next_slice()
        say("warm")
        turns.wait_for_next_slice()
        for step in range(count):
            say("step")
            time.sleep(0.01)
            if step < count - 1 and turns.is_slice_over():
                turns.wait_for_next_slice()
        turns.wait_for_next_slice(steps_left=False)
        say("end")
"""


def child(folder, name, body):
    """A command with the functions of PRELUDE; its number goes to the file `name`."""
    names = f"ROOT = {str(ROOT)!r}; NAME = {name!r}\n"
    code = names + textwrap.dedent(PRELUDE) + textwrap.dedent(body)
    command = (sys.executable, "-I", "-S", "-c", code)
    return Command(words=command, log=folder / f"{name}.log", folder=folder)


def trace(folder):
    """What was said, in the order of time: names, words, times."""
    lines = (folder / "trace").read_text().splitlines()
    return [(name, word, float(at)) for name, word, at in map(str.split, lines)]


def test_steps_are_made_in_turn_and_only_by_one_at_a_time(tmp_path):
    commands = [child(tmp_path, "a", "steps(6)"), child(tmp_path, "b", "steps(9)")]
    ended = execute_interleaved(commands, PATIENCE, 0.001)
    assert [one.code for one in ended] == [0, 0], (tmp_path / "a.log").read_text()
    said = trace(tmp_path)
    warm = [("a", "warm"), ("b", "warm")]
    both = [(name, "step") for _ in range(6) for name in "ab"]
    rest = [("b", "step")] * 3
    # A's last word waits for the last step of B.
    assert [one[:2] for one in said] == [*warm, *both, *rest, ("a", "end"), ("b", "end")]
    times = [at for _, _, at in said]
    assert times == sorted(times)
    assert all(second - first >= 0.01 for first, second in pairwise(times[2:16]))
    assert all(gone(int((tmp_path / name).read_text())) for name in "ab")


def test_one_that_never_waits_is_waited_for(tmp_path):
    plain = "time.sleep(0.2); say('alone')"
    ended = execute_interleaved(
        [child(tmp_path, "a", "steps(1)"), child(tmp_path, "b", plain)], PATIENCE, 0.1
    )
    assert [one.code for one in ended] == [0, 0]
    assert [one[:2] for one in trace(tmp_path)][:2] == [("b", "alone"), ("a", "warm")]


def test_waits_do_not_count_as_time_that_a_process_runs(monkeypatch):
    now = 10.0
    monkeypatch.setattr(interleaved.time, "monotonic", lambda: now)
    ours, theirs = socket.socketpair()
    member = interleaved._Member(None, ours)
    now = 12.0
    theirs.sendall(WAITS)
    member.receive_message()
    now = 50.0
    assert (member.used_seconds, member.waits, member.steps_done) == (2.0, True, False)
    member.start_time_slice()
    now = 53.0
    assert (member.used_seconds, member.waits) == (5.0, False)
    assert theirs.recv(1) == GO_ON
    theirs.close()
    member.receive_message()  # the link is closed after the process has ended
    assert member.link is None


def test_an_interrupt_ends_both(tmp_path):
    def interrupt():
        wait_for(tmp_path / "trace")
        os.kill(os.getpid(), signal.SIGINT)

    commands = [child(tmp_path, name, "steps(10000)") for name in "ab"]
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        execute_interleaved(commands, PATIENCE, 0.01)
    thread.join()
    assert all(gone(int((tmp_path / name).read_text())) for name in "ab")


def test_both_die_with_the_process_that_runs_them(tmp_path):
    commands = [child(tmp_path, name, "steps(10000)") for name in "ab"]
    code = f"""
        import sys; sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path, PosixPath
        from cnnbench.campaigns.processes.child import Command
        from cnnbench.campaigns.processes.interleaved import execute_interleaved
        execute_interleaved({commands!r}, 60.0, 0.01)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    wait_for(tmp_path / "trace")
    parent.kill()
    parent.wait()
    assert all(gone(int(wait_for(tmp_path / name))) for name in "ab")


def test_a_program_that_is_not_there(tmp_path):
    missing = Command(words=("/no/such/program",), log=tmp_path / "log")
    ended = execute_interleaved([missing, child(tmp_path, "b", "steps(1)")], PATIENCE, 0.01)
    assert ended[0].error == "/no/such/program: No such file or directory"
    assert ended[1].code == 0
