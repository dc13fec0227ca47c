"""How a measuring process ends, as its parent and a shell see it; real processes, forked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from covering import slow_if
from forked import Forked, Server, cnnbench, gone, until

from cnnbench.run.runtime import supervisor
from cnnbench.run.runtime.supervisor import GUARDED

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="supervision needs Linux"),
]

HEAD = """
import contextlib, os, signal, sys, time
from cnnbench.base.interrupts import begin_command
from cnnbench.run.runtime import supervisor

def lost(error):
    print("lost:", error, flush=True)
"""
TAIL = """
    {body}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    try:
        time.sleep(0.2)
    except KeyboardInterrupt:
        print("interrupted again", flush=True)
    supervisor.announce_exit_code(130)
    sys.exit(130)
"""

PROGRAM = f"""{HEAD}
signal.signal(signal.SIGINT, signal.default_int_handler)
begin_command()
print("before", flush=True)
{{before}}
with supervisor.forks_allowed():
    supervisor.fork_supervised(lost)
try:
    print("child", os.getpid(), os.getppid(), flush=True){TAIL}"""
# Not in one sleep: a signal just before it would be heard after it.
WAIT = "for _ in range(600): time.sleep(0.1)"


class Program(Forked):
    """A process that runs some code, and what it prints."""

    def __init__(self, code, folder, environment, server):
        self.out, self._err = folder / "out", folder / "err"
        self._seen = 0
        super().__init__(code, (), self.out, self._err, None, environment, server=server)

    def communicate(self):
        """What it has printed, besides the lines of `child_of`, when it has ended."""
        self.wait(60)
        return self.out.read_text()[self._seen :], self._err.read_text()

    def child_of(self):
        """The process that it supervises."""
        until(lambda: self.out.read_text().count("\n") >= 2)
        before, line, *_ = self.out.read_text().splitlines(keepends=True)
        self._seen = len(before + line)
        assert before == "before\n"
        _, child, parent = line.split()
        assert int(parent) == self.pid
        return int(child)


@pytest.fixture(scope="session")
def server():
    """Forks processes that have loaded what `HEAD` imports."""
    made = Server(HEAD)
    yield made
    made.close()


@pytest.fixture
def execute(server, tmp_path):
    """execute(CODE, NAME=VALUE...): a process; all of its group is killed at the end."""
    started = []

    def execute(code, **environment):
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Program(code, folder, environment, server))
        return started[-1]

    yield execute
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def program(body, before=""):
    return textwrap.dedent(PROGRAM).format(body=body, before=before)


@pytest.fixture
def start(execute):
    """Starts a supervised program."""

    def start(body, before="", **environment):
        return execute(program(body, before), **environment)

    return start


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("supervisor.announce_exit_code(1); sys.exit(1)", 1, None),
        ("supervisor.announce_exit_code(3); os.kill(os.getpid(), signal.SIGSEGV)", 3, None),
        ("os._exit(1)", 4, "a native library ended the process with exit code 1"),
        ("os._exit(0)", 4, "a native library ended the process with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 4, "ended by SIGSEGV: native code crashed"),
        ("os.abort()", 4, "ended by SIGABRT: native code gave up"),
        (
            # As TensorFlow does, it lets no Python run.
            "import ctypes\n    with supervisor.limited_connection_time(0.2): "
            "ctypes.PyDLL(None).sleep(60)",
            4,
            "ended by SIGALRM: the other processes of the job did not connect within",
        ),
        (
            "with supervisor.limited_connection_time(0.1): pass\n    time.sleep(0.3); "
            "supervisor.announce_exit_code(0)",
            0,
            None,
        ),
    ],
)
def test_what_python_says_passes_and_all_else_is_told(start, body, code, words):
    process = start(body)
    out, err = process.communicate()
    assert process.returncode == code
    assert out.count("before") == 1  # what was buffered is written once
    if words is None:
        assert err == ""
        assert "lost" not in out
    else:
        (line,) = err.splitlines()
        assert line.startswith(f"cnnbench: error: {words}")
        assert f"lost: {words}" in out


TRY = """
with supervisor.forks_allowed():
    prepare = lambda: print("prepared", flush=True)
    supervisor.fork_supervised(lost, prepare, should_retry=lambda: {retries})
print("attempt", supervisor.state.attempt, flush=True)
"""


@pytest.mark.parametrize(
    ("end", "retries", "attempts", "code"),
    [
        ("supervisor.exit_without_cleanup(supervisor.RETRY)", False, 3, 0),
        ("os.write(2, b'std::bad_alloc\\n'); os.abort()", True, 3, 0),
        ("os.write(2, b'std::bad_alloc\\n'); os.abort()", False, 1, 4),
        ("os.abort()", True, 1, 4),
        ("os._exit(4)", True, 1, 4),
        ("supervisor.announce_exit_code(4); os._exit(4)", True, 1, 4),
    ],
)
def test_an_attempt_without_memory_is_followed_by_another(end, retries, attempts, code, execute):
    text = HEAD + TRY.format(retries=retries)
    text += f"if supervisor.state.attempt < 2: {end}\nsupervisor.announce_exit_code(0); os._exit(0)"
    process = execute(text)
    out, _ = process.communicate()
    assert process.returncode == code
    lines = out.splitlines()
    assert lines.count("prepared") == attempts
    assert [x for x in lines if "attempt" in x] == [f"attempt {n}" for n in range(attempts)]
    assert ("lost" in out) == (code == 4 and "announce" not in end)


ANOTHER = """
from cnnbench.base import plugins
read, write = os.pipe()
if not os.fork():
    with plugins.containing_plugin_code("another"):
        os.closerange(0, 3)
        os.write(write, b".")
        time.sleep(60)
os.read(read, 1)
"""


def test_what_another_process_runs_is_not_named(start):
    process = start("os.abort()", before=ANOTHER)
    _, err = process.communicate()
    assert err.startswith("cnnbench: error: ended by SIGABRT: native code gave up")


@pytest.mark.parametrize(
    ("number", "to_group"),
    slow_if(
        lambda case: case[0] not in (signal.SIGINT, signal.SIGUSR2),
        [
            *((signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, True)),
            *((signal.SIGINT, False), (signal.SIGQUIT, True), (signal.SIGQUIT, False)),
            *((signal.SIGUSR1, True), (signal.SIGUSR1, False), (signal.SIGUSR2, True)),
        ],
    ),
)
def test_a_signal_interrupts_the_child_once(start, number, to_group):
    process = start(WAIT)
    process.child_of()
    (os.killpg if to_group else os.kill)(process.pid, number)
    out, err = process.communicate()
    assert process.returncode == 130
    assert (out, err) == ("interrupted\n", "")


HASTY = "from cnnbench.base import interrupts; interrupts.SHORTEST_GRACE = 2.0"
# A native call that no signal interrupts and that lets no Python run.
NATIVE = """
    import ctypes, struct
    native, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    native.pthread_mutex_lock(lock)
    with {block}:
        print("locked", flush=True)
        native.pthread_mutex_timedlock(lock, struct.pack("ll", int(time.time()) + {seconds}, 0))
"""
ENDLESS = NATIVE.format(block="contextlib.nullcontext()", seconds=100)
WRITING = NATIVE.format(block="interrupts.delaying_interrupts()", seconds=4)


@pytest.mark.parametrize(
    ("body", "before", "guarded", "pauses", "seconds", "announced"),
    slow_if(
        lambda case: (case[0], case[2], case[3]) != (ENDLESS, "", []),
        [
            (ENDLESS, HASTY, "", [], 2, "2 s for the running step to end"),
            (ENDLESS, HASTY, "1", [], 2, "2 s for the running step to end"),
            (ENDLESS, "", "", [1.5], 1.5, "10 s for the running step to end"),
            (WRITING, HASTY, "", [], 3.5, "62 s for the record or the checkpoint to be written"),
        ],
    ),
    ids=["one signal", "of a campaign", "a second signal", "one while writing"],
)
def test_a_native_call_is_ended(start, body, before, guarded, pauses, seconds, announced):
    process = start(body, before, **{GUARDED: guarded})
    child = process.child_of()
    until(lambda: "locked\n" in process.out.read_text())
    time.sleep(0.2)  # into the call
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    for pause in pauses:
        time.sleep(pause)
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    out = out.replace("locked\n", "")
    assert process.returncode == 130
    assert seconds - 1.0 < time.monotonic() - began < seconds + 5.0
    line = (
        f"cnnbench: interrupted; waiting up to {announced} (a second signal ends the run at once)"
    )
    if body is WRITING:
        assert (out, err.splitlines()) == ("interrupted\n", [line])
    else:
        assert (out, err.splitlines()) == ("lost: None\n", [line, "cnnbench: error: interrupted"])
    assert gone(child)


def test_a_child_whose_handler_a_library_removes_is_interrupted(start):
    process = start("signal.signal(15, signal.SIG_DFL); signal.raise_signal(15)")
    out, err = process.communicate()
    assert (process.returncode, err) == (130, "cnnbench: error: interrupted\n")
    assert "lost: None" in out


def test_a_suspended_child_is_interrupted(start):
    process = start(WAIT)
    os.kill(process.child_of(), signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "interrupted\n", "")


@pytest.mark.slow
def test_an_ignored_signal_ends_nothing(start):
    ignored = f"signal.signal(signal.SIGHUP, signal.SIG_IGN); {HASTY}"
    process = start("time.sleep(3); supervisor.announce_exit_code(0)", ignored)
    process.child_of()
    os.killpg(process.pid, signal.SIGHUP)
    assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_a_child_does_not_outlive_its_parent(start):
    process = start(WAIT)
    child = process.child_of()
    process.kill()
    process.wait(30)
    assert gone(child)


FATAL = "F0000 00:00:1795490572.139305    7 device_event_mgr.cc:228] {}"
OLD_FATAL = "2026-11-24 10:00:00.139305: F tensorflow/core/tensor.cc:84] Check failed: {}"


@pytest.mark.parametrize(
    ("line", "held", "told"),
    [
        (FATAL.format("Check failed: a == b (1 vs. 2)"), False, "Check failed: a == b (1 vs. 2)"),
        (OLD_FATAL.format("ok \x1b[2J"), True, "Check failed: ok  [2J"),
        (FATAL.format("Unexpected Event status: 1"), False, "a GPU failed: Unexpected Event st"),
    ],
)
def test_the_reason_is_what_native_code_said(start, line, held, told):
    body = f"""
    from cnnbench.run.runtime.native_log import without_info_lines
    with without_info_lines() if {held} else contextlib.nullcontext():
        os.write(2, {line.encode()!r} + b"\\n*** stack ***\\n    @ 0x7f31 f()\\n")
        os.abort()"""
    process = start(body)
    out, err = process.communicate()
    assert process.returncode == 4
    *log, last = err.splitlines()
    assert last.startswith(f"cnnbench: error: ended by SIGABRT: {told}")
    assert f"lost: ended by SIGABRT: {told}" in out
    shown = line.replace("\x1b", " ")
    assert log == [f"cnnbench: {one}" for one in (shown, "*** stack ***", "@ 0x7f31 f()")]


@pytest.mark.parametrize("guarded", ["", "1"])
def test_openblas_without_memory_is_one_line(start, guarded):
    said = "OpenBLAS error: Memory allocation still failed after 10 retries, giving up."
    process = start(f"os.write(2, {said.encode()!r} + b'\\n'); os._exit(1)", **{GUARDED: guarded})
    _, err = process.communicate()
    reason = said.removeprefix("OpenBLAS error: ")
    error = f"error: a native library ended the process with exit code 1: {reason}"
    assert (process.returncode, err) == (
        (1, f"cnnbench: {said}\n") if guarded else (4, f"cnnbench: {error}\n")
    )


def test_output_of_native_code_is_not_waited_for_at_the_end(start):
    body = """
    import subprocess
    os.write(2, b"early\\n")
    subprocess.Popen(["sleep", "30"])  # keeps standard error open
    supervisor.announce_exit_code(0)
    sys.exit(0)"""
    began = time.monotonic()
    process = start(body)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "cnnbench: early\n")
    assert time.monotonic() - began < 25


@pytest.mark.parametrize("end", ["os.abort()", "supervisor.announce_exit_code(0); sys.exit(0)"])
def test_lines_of_native_code_get_the_prefix_once_and_half_a_line_is_kept(start, end):
    body = f"""
    for part in (b"E0000 on", b"e\\n\\ncnnbench: notice\\n", b"##vso[x]\\n\\xff ha", b"lf"):
        os.write(2, part)
        time.sleep(0.1)
    {end}"""
    _, err = start(body).communicate()
    lines = ["E0000 one", "notice", "# #vso[x]", r"\xff half"]
    assert err.splitlines()[:4] == [f"cnnbench: {line}" for line in lines]
    assert len(err.splitlines()) == 4 + ("abort" in end)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("signal.setitimer(signal.ITIMER_REAL, 0.1); time.sleep(9)", -signal.SIGALRM),
    ],
)
def test_a_crash_that_another_process_records_passes_through(start, body, code):
    process = start(body, **{GUARDED: "1"})
    out, err = process.communicate()
    assert (process.returncode, err) == (code, "")
    assert "lost" not in out


def test_the_parent_takes_no_turns():
    """The process that assigns them learns that the child needs no further one."""
    body = "os.close(int(os.environ.pop('CNNBENCH_TURNS').partition(':')[0])); time.sleep(60)"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        turns = {"CNNBENCH_TURNS": f"{theirs.fileno()}:1"}
        process = subprocess.Popen(
            [sys.executable, "-c", program(body)],
            stdout=subprocess.DEVNULL,
            env={**os.environ, **turns},
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
        try:
            theirs.close()
            ours.settimeout(30)
            assert ours.recv(1) == b""
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "allreduce"])
def test_a_real_run_that_tensorflow_ends(tmp_path, command):
    record = tmp_path / "record.json"
    flags = {"run": ("--model=trivial", "--num_batches=1"), "allreduce": ("--sizes=4K",)}[command]
    out, err = tmp_path / "out", tmp_path / "err"
    words = [command, *flags, "--device=cpu", f"--result_json={record}"]
    process = Forked(cnnbench, words, out, err, environment={"TF_XLA_FLAGS": "--bogus"})
    assert process.wait(110) == 4
    *others, last = err.read_text().splitlines()
    assert last.startswith("cnnbench: error: a native library ended the process with exit code")
    assert "Unknown flag in TF_XLA_FLAGS: --bogus" in "\n".join(others)
    document = json.loads(record.read_text())
    assert document["status"] == "failed"
    assert document["error"]["type"] == "NativeDeathError"


DYING = """
import os
{loaded}
from cnnbench.models import LearningRateSpec, Model, register_model

class Dying(Model):
    name, dataset, image_size, batch_size = "dying", "imagenet", 8, 2
    learning_rate = LearningRateSpec(0.1)

    def __init__(self):
        {made}

    def build(self, net, images):
        {built}
        return net.logits(net.flatten(images))

    def loss(self, outputs, labels):
        {run}
        return super().loss(outputs, labels)

register_model("dying", "imagenet", Dying)
"""
CRASH = "import ctypes; ctypes.string_at(0)"
FORK = "os.chdir('/'); os.fork()"


@pytest.mark.parametrize(
    ("command", "parts", "code", "told_of"),
    slow_if(
        lambda case: case[1] not in ({"loaded": "os.abort()"}, {"built": CRASH}),
        [
            ("models", {"loaded": "os._exit(0)"}, 4, "{}own.py ended the process with exit code 0"),
            (
                *("run", {"loaded": "os.abort()"}, 4),
                "ended by SIGABRT in {}own.py: native code gave up",
            ),
            ("run", {"made": "os._exit(1)"}, 4, "{}own.py ended the process with exit code 1"),
            (
                *("run", {"built": "os.abort()"}, 4),
                "ended by SIGABRT in FOLDER/own.py:13: Dying.build(): native code gave",
            ),
            (
                *("run", {"built": CRASH}, 4),
                "ended by SIGSEGV in FOLDER/own.py:13: Dying.build(): native code crashed",
            ),
            (
                *("run", {"run": "os._exit(3)"}, 4),
                "FOLDER/own.py:17: Dying.loss() ended the process with exit code 3",
            ),
            ("run", {"made": FORK, "built": FORK, "run": FORK}, 0, ""),
        ],
    ),
)
def test_a_plug_in_that_ends_or_copies_the_process(tmp_path, command, parts, code, told_of):
    source = DYING.format(**dict.fromkeys(("loaded", "made", "built", "run"), "pass") | parts)
    (tmp_path / "own.py").write_text(source)
    flags = ("--model=dying", "--device=cpu", "--num_batches=1", "--num_warmup_batches=0")
    flags += ("--peak_flops=1e12", "--result_json=r.json")
    words = [command, "--plugin=own.py", *(flags if command == "run" else ())]
    out, err = tmp_path / "out", tmp_path / "err"
    assert Forked(cnnbench, words, out, err, tmp_path).wait(100) == code
    told = [line for line in err.read_text().splitlines() if "error: " in line]
    begin = f"cnnbench: error: {told_of.format('--plugin=')}".replace("FOLDER", str(tmp_path))
    assert [line.startswith(begin) for line in told] == [True] * bool(told_of)
    assert (tmp_path / "r.json").exists() == ("run" in parts)
    if "run" not in parts:
        assert out.read_text() == ""


@pytest.mark.slow
def test_a_record_that_cannot_be_written_after_a_crash_is_warned_of(tmp_path):
    crash = "import shutil; shutil.rmtree('lost'); os.abort()"
    (tmp_path / "own.py").write_text(DYING.format(loaded="", made="pass", built="pass", run=crash))
    (tmp_path / "lost").mkdir()
    flags = ("--plugin=own.py", "--model=dying", "--device=cpu", "--result_json=lost/r.json")
    out, err = tmp_path / "out", tmp_path / "err"
    assert Forked(cnnbench, ["run", *flags], out, err, tmp_path).wait(100) == 4
    reason = f"there is no folder {tmp_path}/lost"
    reason += " (--quiet_conditions=outputs silences this)"
    assert f"cnnbench: warning: --result_json=lost/r.json: {reason}\n" in err.read_text()


PLANNED = f"""{HEAD}
with supervisor.forks_allowed():
    {{first}}
    supervisor.fork_before_plugins()
    supervisor.fork_before_plugins()
    begin_command()
    {{planned}}
    supervisor.fork_supervised(lost)
try:
    print("measures", os.getpid(), flush=True){TAIL}"""


NUMPY = "supervisor.fork_before_plugins()"


@pytest.mark.parametrize(
    ("first", "planned", "body", "code", "words"),
    [
        ("", "os._exit(0)", "", 4, "a native library ended the process with exit code 0"),
        (NUMPY, "", "os._exit(0)", 4, "a native library ended the process with exit code 0"),
        (NUMPY, "", "supervisor.announce_exit_code(3); sys.exit(3)", 3, ""),
        ("", "", "os.killpg(0, signal.SIGTERM); time.sleep(30)", 130, ""),
        (NUMPY, "", "os.killpg(0, signal.SIGTERM); time.sleep(30)", 130, ""),
    ],
)
def test_planning_and_measuring_have_a_parent_each(first, planned, body, code, words, execute):
    process = execute(PLANNED.format(first=first, planned=planned, body=body))
    out, err = process.communicate()
    assert process.returncode == code
    told = err.splitlines()
    assert [line.startswith(f"cnnbench: error: {words}") for line in told] == [True] * bool(words)
    assert out.count("lost: ") == (words != "" and not planned)
    assert out.count("interrupted") == (code == 130)


def test_nothing_forks_once_the_program_is_over():
    def lost(error):
        raise AssertionError(error)

    with supervisor.forks_allowed():
        pass
    parent = os.getpid()
    supervisor.fork_supervised(lost)
    assert os.getpid() == parent


GENERATING = """
import tensorflow as tf
from cnnbench.run.runtime import supervisor

import sys
import tempfile
tempfile.tempdir = "temporary"
sys.path.insert(0, ".")
from code_of_data import absolute
next(iter(tf.data.Dataset.range(3).map(absolute)))
supervisor.exit_without_cleanup(4)
"""


def test_generated_code_is_removed_where_no_exit_handler_runs(tmp_path):
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    source = "def absolute(x):\n    if x < 0:\n        x = -x\n    return x\n"
    (tmp_path / "code_of_data.py").write_text(source)
    with Forked(GENERATING, (), tmp_path / "out", tmp_path / "err", tmp_path) as process:
        assert process.wait(60) == 4, (tmp_path / "err").read_text()
    assert [*scratch.iterdir()] == []
