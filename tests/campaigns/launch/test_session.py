"""A job ends as a whole, in whatever way one of its processes ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from forked import PATIENCE, gone

from cnnbench.base.jobs.ports import ReservedPorts
from cnnbench.campaigns.launch.session import JobSession, Launch, Patience
from cnnbench.campaigns.launch.tasks import JobLayout, shares_of_cores, task_flags
from cnnbench.errors import BenchmarkError

FAKE = Path(__file__).with_name("fake_task.py")
# The fakes do not notice the loss of others by themselves.
QUICK = Patience(after_success=3.0, after_failure=0.5, after_loss=0.5, after_signal=1.0)
# Those that ignore signals need not be waited for.
NONE = Patience(after_success=0.3, after_failure=0.3, after_loss=0.3, after_signal=0.3)

pytestmark = pytest.mark.timeout(90)


class Jobs:
    """Runs jobs of fakes, and looks for what is left of them."""

    def __init__(self, folder):
        self.folder = folder
        self.shown = []
        self.seen = []

    def session(
        self,
        do="",
        *,
        layout=None,
        program=(sys.executable, "-IS", str(FAKE)),
        patience=QUICK,
        **of,
    ):
        layout = layout or JobLayout(workers=2, ps=1)
        flags = (f"--do={do}", f"--pids={self.folder}")

        @contextlib.contextmanager
        def made():
            with ReservedPorts(layout.size) as ports:
                launch = Launch(
                    job=layout.job(ports.numbers),
                    command=lambda job: (*program, *task_flags(job, flags, None)),
                    variables=lambda job: {},
                    logs=self.folder,
                    **of,
                )
                yield JobSession(launch, self.shown.append, patience)

        return made()

    def run(self, *arguments, **of):
        with self.session(*arguments, **of) as session:
            status = session.run()
        self.check_that_nothing_is_left()
        return status

    def check_that_nothing_is_left(self, tasks=3):
        files = [path for path in self.folder.iterdir() if ":" in path.name]
        assert len(files) == tasks
        for file in files:
            process, port = map(int, file.read_text().split())
            assert gone(process)
            with socket.create_server(("", port)):  # nobody listens there
                pass
            file.unlink()

    def log(self, task):
        return (self.folder / f"{task.replace(':', '-')}.log").read_text()


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path)


def test_success(jobs, capfdbinary):
    assert jobs.run() == 0
    out, err = capfdbinary.readouterr()
    assert out == b"chief\xff\r 1\n\n 2 no end"  # byte for byte, and nothing else
    assert err == b""
    assert "[worker:0] to stderr  [31mred [0m" in jobs.shown
    for task in ("worker:1", "ps:0"):
        assert sum(line.startswith(f"[{task}] to stdout") for line in jobs.shown) == 1
        assert "\x1b[31mred" in jobs.log(task)
    assert len(jobs.shown) == 5


def test_a_controller_is_the_chief(jobs, capfdbinary):
    with jobs.session(layout=JobLayout(workers=1, controller=True)) as session:
        assert session.run() == 0
    assert capfdbinary.readouterr().out.startswith(b"chief")
    assert "to stdout" in jobs.log("worker:0")
    jobs.check_that_nothing_is_left(tasks=2)


@pytest.mark.parametrize(
    ("do", "status", "lines"),
    [
        ("worker:0=2", 2, ["worker:0 ended with exit status 2"]),
        ("worker:0=kill", 4, ["worker:0 was ended by SIGKILL"]),
        ("worker:1=abort", 4, ["worker:1 was ended by SIGABRT: Check failed: a == b; "]),
        ("ps:0=3", 4, ["ps:0 ended with exit status 3"]),
        # The chief does not end by itself, and then not even on request.
        ("worker:1=kill,worker:0=sleep", 4, ["worker:1 was ended by SIGKILL"]),
        ("worker:1=4,worker:0=ignore", 4, ["worker:0 did not end", "worker:1 ended with exit"]),
        # The chief has ended, another does not.
        ("ps:0=ignore", 4, ["ps:0 did not end and was killed"]),
    ],
)
def test_one_that_fails_ends_all(jobs, do, status, lines):
    assert jobs.run(do, patience=NONE if "ignore" in do else QUICK) == status
    errors = [line for line in jobs.shown if line.startswith("cnnbench: error: ")]
    for line in lines:
        (found,) = [error for error in errors if line in error]
        assert ".log" in found


def test_the_others_go_on_without_a_worker_that_the_job_spares(jobs):
    spares = {"spares": lambda task, state: task.job == "worker"}
    assert jobs.run("worker:1=kill", **spares) == 0
    (line,) = [line for line in jobs.shown if line.startswith("cnnbench: error: ")]
    assert "worker:1 was ended by SIGKILL" in line
    assert jobs.run("worker:1=kill,ps:0=3", **spares) == 4


def test_a_program_that_is_not_there(jobs):
    with jobs.session(program=("/no/such/program",)) as session:
        assert session.run() == 4
    assert any("worker:0 was not started: /no/such/program: No such" in line for line in jobs.shown)


def test_logs_that_cannot_be_written(tmp_path):
    with Jobs(tmp_path / "nowhere").session() as session:
        with pytest.raises(BenchmarkError, match=r"worker-0\.log: No such file"):
            session.run()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_affinity(jobs):
    layout = JobLayout(workers=2)
    with jobs.session(layout=layout, cores=shares_of_cores(2)) as session:
        assert session.run() == 0
    cores = sorted(os.sched_getaffinity(0))
    (line,) = [line for line in jobs.shown if "to stdout" in line]
    assert line == f"[worker:1] to stdout {cores[len(cores) // 2 :]}"


LAUNCHER = """
    import pathlib, sys
    sys.path[:0] = {path!r}
    from cnnbench.cli.commands import interrupt_on_signals
    from test_session import Jobs
    interrupt_on_signals()
    with Jobs(pathlib.Path({folder!r})).session("worker:0={chief},ps:0={ps}") as session:
        try:
            session.run()
        except KeyboardInterrupt:
            sys.exit(130)
"""


@contextlib.contextmanager
def launched(folder, chief, ps):
    """A process that runs a job which does not end by itself."""
    own = (str(FAKE.parent), str(FAKE.parents[2] / "helpers"))
    path = [*own, *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    code = textwrap.dedent(LAUNCHER.format(path=path, folder=str(folder), chief=chief, ps=ps))
    with subprocess.Popen([sys.executable, "-c", code], cwd=FAKE.parents[3]) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            logs = [folder / f"{task}.log" for task in ("worker-0", "worker-1", "ps-0")]
            while not all(log.exists() and "to stderr" in log.read_text() for log in logs):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("number", "deed"), [(signal.SIGTERM, "sleep"), (signal.SIGINT, "ignore")])
def test_an_interrupt_ends_all_and_lets_the_chief_write(tmp_path, number, deed):
    with launched(tmp_path, deed, deed) as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == 130
    assert deed == "ignore" or "interrupted" in Jobs(tmp_path).log("worker:0")
    Jobs(tmp_path).check_that_nothing_is_left()


def test_nothing_outlives_a_launch_that_is_killed(tmp_path):
    with launched(tmp_path, "ignore", "ignore") as process:
        process.kill()
        process.wait(PATIENCE)
    Jobs(tmp_path).check_that_nothing_is_left()
