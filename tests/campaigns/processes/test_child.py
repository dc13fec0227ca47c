"""One child and its guard (child.py, guard.py): how it may end, and that nothing of it is left.

Tests cnnbench/campaigns/processes/guard.py.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import forked
import pytest
from forked import PATIENCE, finished, gone, until, wait_for

from cnnbench.base.interrupts import begin_command, conclude_command, handling_signals
from cnnbench.campaigns.processes import child
from cnnbench.campaigns.processes.child import Command
from cnnbench.errors import BenchmarkError

pytestmark = pytest.mark.timeout(60)


def python(code):
    return (sys.executable, "-IS", "-c", textwrap.dedent(code))


def execute(words, log, timeout, **more):
    return child.execute(Command(words=words, log=log, **more), timeout)


ENDS = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(255)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
LEAVES = """
    import signal, sys, time
    def leave(*_): print("good-bye", flush=True); sys.exit(130)
    signal.signal(signal.SIGTERM, leave)
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
"""
HEARS_NOTHING = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("code", "timeout", "status", "said"),
    [
        (ENDS, PATIENCE, 255, ["err", "out"]),
        (KILLED, PATIENCE, -signal.SIGKILL, []),
        (LEAVES, 1.0, 130, ["good-bye", "ready"]),
        (HEARS_NOTHING, 1.0, -signal.SIGKILL, []),
    ],
)
def test_how_a_child_ends(tmp_path, monkeypatch, code, timeout, status, said):
    if code is HEARS_NOTHING:
        monkeypatch.setattr(child, "interrupt_grace_seconds", lambda: -child.AT_ONCE)
    log = tmp_path / "log"
    log.write_text("old")
    ended = execute(python(code), log, timeout)
    assert (ended.code, ended.timed_out, ended.error) == (status, timeout < PATIENCE, None)
    assert sorted(log.read_text().split()) == said
    assert 0 < ended.seconds < PATIENCE


ANNOUNCES = """
    import os, signal, sys, time
    signals = []
    signal.signal(signal.SIGTERM, lambda *_: signals.append(time.monotonic()))
    print("ready", flush=True)
    while not signals:
        time.sleep(0.05)
    print("cnnbench: interrupted; waiting up to {seconds} s for the running step", flush=True)
    while time.monotonic() < signals[0] + {needs} and len(signals) < {most}:
        time.sleep(0.05)
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("needs", "interrupts", "status", "least", "most"),
    [
        (2.5, 0, 130, 2.5, 9.0),  # the time that it asks for
        pytest.param(100.0, 0, -signal.SIGKILL, 4.0, 9.0, marks=pytest.mark.slow),  # no more
        (100.0, 1, None, 1.0, 3.9),
    ],
)
def test_a_child_has_the_time_that_it_announces(
    tmp_path, monkeypatch, capsys, needs, interrupts, status, least, most
):
    monkeypatch.setattr(child, "interrupt_grace_seconds", lambda: 1.0)
    log = tmp_path / "log"
    code = ANNOUNCES.format(seconds=2, needs=needs, most=2 if interrupts else 9)
    with child.Child(Command(words=python(code), log=log)) as one:
        until(lambda: "ready" in log.read_text(), PATIENCE)
        began = time.monotonic()
        if interrupts:
            threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
            with pytest.raises(KeyboardInterrupt):
                child.stop_children([one], print)
            ended = one.kill()
            status = 130
        else:
            (ended,) = child.stop_children([one], print)
        assert (ended.code, ended.timed_out) == (status, True)
        assert least <= time.monotonic() - began < most
    assert capsys.readouterr().out.startswith("interrupted; waiting up to 2 s for the running step")


class Dropping:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_that_python_drops_ends_a_child(tmp_path):
    begun = time.monotonic()
    with handling_signals():
        begin_command()
        Dropping()
        with pytest.raises(KeyboardInterrupt):
            execute(python("import time; time.sleep(600)"), tmp_path / "log", 600)
        conclude_command()
    assert time.monotonic() - begun < PATIENCE


def test_quick_interrupts_are_not_one_to_a_child(tmp_path):
    """A cnnbench takes two signals within a second for one, sent to it and to its group."""
    code = """
        import signal, sys, time
        signals = []
        signal.signal(signal.SIGTERM, lambda *_: signals.append(time.monotonic()))
        print("ready", flush=True)
        while not signals or signals[-1] - signals[0] < 1.0:
            time.sleep(0.05)
        print("at once", flush=True)
    """
    log = tmp_path / "log"
    with child.Child(Command(words=python(code), log=log)) as one:
        until(lambda: "ready" in log.read_text(), PATIENCE)
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            child.stop_children([one])
    assert "at once" in log.read_text()


def test_an_interrupt_of_a_guard_is_for_its_child(tmp_path):
    code = """
        import os, signal, sys, time
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
        print("ready", flush=True)
        time.sleep(60)
    """
    log = tmp_path / "log"
    with child.Child(Command(words=python(code), log=log)) as one:
        until(lambda: "ready" in log.read_text(), PATIENCE)
        one.send_signal(signal.SIGUSR1)
        assert one.wait(PATIENCE).code == 7


def test_the_wait_for_children_ends_with_a_child_or_a_link(tmp_path):
    ours, theirs = socket.socketpair()
    sleeps = Command(words=python("import time; time.sleep(600)"), log=tmp_path / "sleeps")
    ends = Command(words=python("pass"), log=tmp_path / "ends")
    with ours, theirs, child.Child(sleeps) as one, child.Child(ends) as other:
        until(lambda: other in child.wait_for_any([one, other], PATIENCE, [ours]))
        assert (one.ended, other.ended.code) == (None, 0)
        assert child.wait_for_any([one, other], 0.1, [ours]) == []
        theirs.sendall(b"x")
        assert child.wait_for_any([one, other], PATIENCE, [ours]) == [ours]


def test_what_cannot_be_started(tmp_path):
    ended = execute(("/no/such/program", "x"), tmp_path / "log", PATIENCE)
    assert ended.code is None
    assert ended.error == "/no/such/program: No such file or directory"
    with pytest.raises(BenchmarkError, match=r"none/log: No such file"):
        execute(python("pass"), tmp_path / "none" / "log", PATIENCE)


def test_grandchildren_end_with_the_child(tmp_path):
    code = f"""
        import subprocess, sys
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(other.pid))
    """
    ended = execute(python(code), tmp_path / "log", PATIENCE)
    assert ended.code == 0
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_killed_child_is_gone_when_its_context_is_left(tmp_path):
    code = """
        import os, time
        kept = os.urandom(1 << 20) * 400  # the kernel frees this memory after the kill
        print(os.getpid(), flush=True)
        time.sleep(600)
    """
    log = tmp_path / "log"
    with child.Child(Command(words=python(code), log=log)):
        pid = int(wait_for(log))
    assert not os.path.exists(f"/proc/{pid}")


def test_a_guard_that_is_killed_takes_the_child_along(tmp_path):
    code = f"""
        import os, signal, time
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    """
    ended = execute(python(code), tmp_path / "log", PATIENCE)
    assert ended.code is None
    assert gone(int((tmp_path / "pid").read_text()))


def test_what_the_child_inherits(tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT", "kept")
    code = """
        import os
        print(sorted(int(n) for n in os.listdir("/proc/self/fd"))[:4], repr(os.read(0, 1)))
        print(os.environ['KEPT'], os.environ['ADDED'], os.getcwd())
        print(open('/proc/self/oom_score_adj').read())
    """
    log = tmp_path / "log"
    execute(python(code), log, PATIENCE, environment={"ADDED": "a=b"}, folder=tmp_path)
    files, variables, score, *_ = log.read_text().splitlines()
    # Neither the link nor standard input; the fourth is the listing itself.
    assert files == "[0, 1, 2, 3] b''"
    assert variables == f"kept a=b {tmp_path.resolve()}"
    assert "ADDED" not in os.environ
    # When memory runs out, the child is ended before its parent.
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:
        assert int(score) >= max(int(file.read()), 500)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux restricts processors")
def test_a_child_has_the_processors_that_it_gets(tmp_path):
    ours, log = os.sched_getaffinity(0), tmp_path / "log"
    asks = python("import os; print(*sorted(os.sched_getaffinity(0)))")
    for cores in (None, {max(ours)}):
        execute(asks, log, PATIENCE, cores=cores)
        assert {*map(int, log.read_text().split())} == (cores or ours)
    assert os.sched_getaffinity(0) == ours


def test_garbage_of_its_parent_closes_nothing_of_a_forked_child(tmp_path):
    code = f"""
        import gc, os, pathlib, sys
        import forked
        from cnnbench.campaigns.processes import child

        class Garbage:
            def __init__(self):
                self.itself, self.file = self, open(os.devnull)

        def program():
            read, write = os.pipe()  # may get the number of the file
            gc.collect()
            os.write(write, b"x")
            print(os.read(read, 1))

        gc.disable()
        Garbage()
        forked.cnnbench = program
        forked.fork_children()
        log = pathlib.Path({str(tmp_path / "log")!r})
        child.execute(child.Command(words=(sys.executable, "run"), log=log), {PATIENCE})
    """
    helpers = {"PYTHONPATH": os.path.dirname(forked.__file__)}
    finished((sys.executable, "-c", textwrap.dedent(code)), environment=helpers)
    assert (tmp_path / "log").read_text() == "b'x'\n"


def parent(tmp_path):
    """A process that executes a child which sleeps; both process numbers."""
    sleeps = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); "
    sleeps += "time.sleep(600)"
    code = f"""
        import pathlib, signal, sys
        from cnnbench.campaigns.processes.child import Command, execute
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        words, log = (sys.executable, "-c", {sleeps!r}), pathlib.Path({str(tmp_path / "log")!r})
        try:
            execute(Command(words=words, log=log), 600)
        except KeyboardInterrupt:
            sys.exit(130)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    return process, int(wait_for(tmp_path / "pid"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 130)])
def test_the_child_does_not_outlive_its_parent(tmp_path, number, code):
    process, sleeper = parent(tmp_path)
    os.kill(process.pid, number)
    assert process.wait(PATIENCE) == code
    assert gone(sleeper)


def test_a_process_does_not_get_the_repository_of_a_hook(tmp_path, monkeypatch):
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_SSH_COMMAND"):
        monkeypatch.setenv(name, "x")
    log = tmp_path / "log"
    assert execute(("env",), log, 20.0).code == 0
    given = {line.partition("=")[0] for line in log.read_text().splitlines()}
    assert given & {"GIT_DIR", "GIT_INDEX_FILE", "GIT_SSH_COMMAND"} == {"GIT_SSH_COMMAND"}
