"""The watchdog names what is gone, stands still or is stuck; peers and clock are simulated.

Tests cnnbench/run/watchdog.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time

import pytest

from cnnbench.base.job import Job, Task
from cnnbench.base.message import pack, unpack
from cnnbench.run import watchdog
from cnnbench.run.runtime.progress import LONG, ProcessActivity, ProcessProgress
from cnnbench.run.watchdog import CLOSED, SILENT, RunEnding, Watchdog

pytestmark = pytest.mark.timeout(60)

ENDED, STOPPED = 5.0, 36.0
"""Seconds in which the loss of a process that has ended, or is stopped, is named."""

SECONDS = 20.0
"""In which a thread does what takes tenths."""

PERIOD, STALL = 2.0, 100.0


class Line:
    """One end of a connection; counts what is sent."""

    def __init__(self, end):
        self.end = end
        self.sent = 0

    def send(self, data):
        self.sent += len(unpack(data)[0])
        return self.end.send(data)

    def __getattr__(self, name):
        return getattr(self.end, name)


class Process:
    """A task of a simulated job, which has a watchdog without a thread."""

    def __init__(self, cluster, task, lines, look, spares, up):
        self.cluster, self.task, self.lines = cluster, task, lines
        self.runs = True
        self.messages, self.codes = [], []
        self.next = 0.0
        self.dog = Watchdog(
            cluster.job(task),
            self.messages.append,
            leave=self.leave,
            tolerates_loss=spares,
            read_progress=look,
            stall_timeout=STALL,
            clock=lambda: cluster.now,
        )
        self.dog.adopt_connections(lines)
        if up:
            self.dog.announce_server_ready()

    def leave(self, code):
        self.codes.append(code)
        self.end()

    def end(self):
        """As by SIGKILL: the kernel closes its connections."""
        self.runs = False
        for line in self.lines.values():
            line.end.close()

    def stop(self):
        self.runs = False

    def go_on(self):
        self.runs = True

    def turn(self):
        """One pass of the loop in the thread of the watchdog."""
        if self.runs and (self.dog.read_messages(0) or self.cluster.now >= self.next):
            self.next = self.cluster.now + PERIOD
            self.dog.send_and_check_progress()


class Cluster:
    """A job of so many tasks in simulated time; the chief is worker 0."""

    def __init__(
        self, tasks, collective=False, looks=None, spares=lambda task, closed: False, late=()
    ):
        workers = tasks if collective else tasks - 1
        self._job = Job(
            task=Task("worker"),
            worker_addresses=tuple(f"w{n}:1" for n in range(workers)),
            ps_addresses=() if collective else ("ps:1",),
            client_per_worker=collective,
        )
        self.now = 1000.0
        pairs = {task: socket.socketpair() for task in self._job.peers}
        ends = {Task("worker"): {task: Line(pair[0]) for task, pair in pairs.items()}}
        ends |= {task: {Task("worker"): Line(pair[1])} for task, pair in pairs.items()}
        looks = looks or {}
        self.processes = {
            task: Process(self, task, ends[task], looks.get(task), spares, task not in late)
            for task in self._job.tasks
        }
        self.chief = self.processes[Task("worker")]

    def job(self, task):
        return dataclasses.replace(self._job, task=task)

    @property
    def sent(self):
        return sum(line.sent for one in self.processes.values() for line in one.lines.values())

    def run(self, seconds):
        """Lets time pass; returns early when nobody is left."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            for one in self.processes.values():
                one.turn()

    def named(self, task):
        return f"{task} ({self._job.address(task)})"

    def close(self):
        for one in self.processes.values():
            one.end()


@pytest.fixture
def cluster(limits):
    limits(watchdog, _LINGER_SECONDS=0.0)  # all processes are in one thread
    with contextlib.ExitStack() as stack:

        def make(*arguments, **of):
            made = Cluster(*arguments, **of)
            stack.callback(made.close)
            made.run(10)
            return made

        yield make


@pytest.mark.parametrize("tasks", [2, 64])
def test_messages_are_linear_in_the_number_of_tasks(cluster, tasks):
    job = cluster(tasks)
    before, periods = job.sent, 10
    job.run(periods * PERIOD)
    assert job.sent - before == periods * 2 * (tasks - 1)
    assert not any(one.messages for one in job.processes.values())


CHIEF, OTHER, THIRD = Task("worker"), Task("worker", 1), Task("ps")


@pytest.mark.parametrize(
    ("victims", "fate", "named"),
    [
        ([CHIEF], "stop", [CHIEF]),
        ([OTHER], "end", [OTHER]),
        ([OTHER, THIRD], "stop", [OTHER, THIRD]),
        ([OTHER, THIRD], "end", [OTHER, THIRD]),
        ([CHIEF, OTHER], "end", [CHIEF]),  # the others have no connection with OTHER
    ],
)
def test_all_name_those_that_are_lost_in_time(cluster, victims, fate, named):
    job = cluster(6)
    for victim in victims:
        getattr(job.processes[victim], fate)()
    job.run(STOPPED if fate == "stop" else ENDED)
    state = SILENT if fate == "stop" else CLOSED
    listed = "; ".join(f"{job.named(victim)}: {state}" for victim in named)
    for task, one in job.processes.items():
        expected = [] if task in victims else [f"lost {listed}"]
        assert one.messages == expected, task
        assert one.codes == [4] * len(expected)


@pytest.mark.parametrize("victim", [CHIEF, OTHER])
def test_a_process_that_has_said_why_it_ends_is_lost_for_that(cluster, victim):
    job = cluster(3)
    job.processes[victim].dog.announce_end(RunEnding(4, "no space left"), lost=True)
    job.run(1)
    job.processes[victim].end()
    job.run(ENDED)
    others = [one for task, one in job.processes.items() if task != victim]
    assert {text for one in others for text in one.messages} == {
        f"lost {job.named(victim)}: no space left"
    }
    first = job.chief if victim != CHIEF else others[0]
    assert first.dog.lost_tasks == {victim: "no space left"}


def test_workers_that_fail_in_one_step_leave_when_all_have_said_why(cluster):
    """Also those that have no connection with one another; else a late one misses their servers."""
    job = cluster(3, collective=True)
    tasks = list(job.processes)
    for task in tasks:
        assert not job.chief.dog.have_ended()
        job.processes[task].dog.announce_end(RunEnding(4, f"{task} diverged"), lost=True)
        job.run(1)
    for task, one in job.processes.items():
        assert one.dog.have_ended()
        others = {other: f"{other} diverged" for other in tasks if other != task}
        assert one.dog.explain_error(0.0) == others


def test_causes_of_an_error_are_waited_for(cluster):
    """The chief tells the others who has ended, since they have no connection with it."""
    job = cluster(4, collective=True)
    _, first, second, third = job.processes
    own, other = job.chief.dog, job.processes[third].dog
    begin = time.monotonic()
    assert own.explain_error(0.1) == {}
    assert time.monotonic() - begin >= 0.1
    job.processes[first].end()
    own.read_messages(0)
    assert own.explain_error(SECONDS) == {first: CLOSED}
    waiting = threading.Timer(0.1, other.read_messages, [0])
    waiting.start()
    begin = time.monotonic()
    assert other.explain_error(SECONDS) == {first: CLOSED}
    assert time.monotonic() - begin < SECONDS
    waiting.join()
    job.processes[second].dog.announce_end(RunEnding(4, "diverged"), lost=True)
    own.read_messages(0)
    assert own.explain_error(SECONDS) == {first: CLOSED, second: "diverged"}


def test_a_process_that_is_silent_for_five_seconds_explains_an_error(cluster):
    job, chief, other = pair(cluster)
    for seconds, silent in ((5.0, {}), (0.01, {THIRD: SILENT})):
        job.now += seconds - 3.0 if seconds > 3.0 else seconds
        chief.dog.read_messages(0)
        job.now += 3.0 if seconds > 3.0 else 0.0
        chief.dog.send_and_check_progress()
        assert chief.dog.explain_error(0.0) == silent
    other.turn()
    chief.dog.read_messages(0)
    assert chief.dog.explain_error(0.0) == {}
    assert chief.messages == []


def test_a_loss_that_the_job_has_survived_explains_no_later_error(cluster):
    job = cluster(4, spares=lambda task, closed: task == OTHER)
    job.processes[OTHER].end()
    job.run(ENDED)
    assert job.chief.dog.lost_tasks == {OTHER: f"w1:1: {CLOSED}"}
    job.processes[THIRD].end()
    job.chief.dog.read_messages(0)
    assert job.chief.dog.explain_error(SECONDS) == {THIRD: CLOSED}


def test_a_pause_of_half_a_minute_is_no_loss(cluster):
    job = cluster(3)
    for victim in (OTHER, CHIEF):
        job.processes[victim].stop()
        job.run(27)
        job.processes[victim].go_on()
        job.run(10)
    assert not any(one.messages for one in job.processes.values())


def test_messages_that_mean_nothing_do_no_harm(cluster):
    job = cluster(3)
    deep, infinite = b"[" * 99_999, b'{"end": [Infinity, 1]}'
    for word in (b"{}", deep, b'{"up": 1}', b'{"end": []}', infinite, b"7"):
        framed = len(word).to_bytes(4, "big") + word
        job.chief.lines[OTHER].end.send(framed)
        job.processes[OTHER].lines[Task("worker")].end.send(framed)
    job.run(2 * STOPPED)
    assert not any(one.messages for one in job.processes.values())


@pytest.mark.parametrize("lost", [False, True])
def test_an_end_that_was_told_is_no_loss(cluster, lost):
    job = cluster(3)
    other = job.processes[OTHER]
    other.dog.announce_end(RunEnding(4, "why"), lost=lost)
    other.turn()
    other.end()
    job.run(PERIOD - 0.5)  # time for others that fail for the same reason to report it
    assert job.chief.messages == []
    job.run(PERIOD)
    assert job.chief.messages == ([f"lost {job.named(OTHER)}: why"] if lost else [])


def test_nothing_is_a_loss_after_the_end(cluster):
    job = cluster(3)
    job.chief.dog.announce_end(RunEnding(4, "some reason"))
    job.processes[OTHER].end()
    job.run(STOPPED)
    assert job.chief.messages == []
    assert job.processes[THIRD].dog.wait_for_run_end() == RunEnding(4, "some reason")


def test_the_end_waits_for_the_slow_and_not_for_the_stopped(cluster):
    job = cluster(3)
    job.processes[OTHER].stop()
    job.chief.dog.announce_end(RunEnding(0))
    job.processes[THIRD].dog.announce_end(RunEnding(0))
    job.run(20)
    assert not job.chief.dog.have_ended()
    job.run(16)
    assert job.chief.dog.have_ended()
    assert (job.chief.messages, job.chief.dog.lost_tasks) == ([], {})


def test_the_others_go_on_without_a_task_that_is_spared(cluster):
    job = cluster(4, spares=lambda task, closed: (task, closed) == (OTHER, False))
    job.processes[OTHER].stop()
    job.run(STOPPED)
    assert job.chief.dog.lost_tasks == {OTHER: f"w1:1: {SILENT}"}
    job.processes[THIRD].end()
    job.run(ENDED)
    assert job.chief.messages == [f"lost {job.named(THIRD)}: {CLOSED}"]


def test_a_server_waits_for_its_chief_to_leave(cluster):
    job = cluster(2)
    server = job.processes[THIRD].dog
    begin = time.monotonic()
    server.wait_for_chief_to_leave(0.1)
    assert time.monotonic() - begin >= 0.1
    job.chief.end()
    server.read_messages(0)
    begin = time.monotonic()
    server.wait_for_chief_to_leave(SECONDS)
    assert time.monotonic() - begin < SECONDS


@pytest.mark.parametrize("comes", [True, False])
def test_workers_start_their_servers_when_all_can(cluster, comes):
    """One that is lost before is named: afterwards TensorFlow lets no thread of Python run."""
    tasks = [CHIEF, OTHER, Task("worker", 2)]
    job = cluster(3, collective=True, late=tasks)
    last = job.processes[tasks[-1]]
    starts = {
        task: threading.Thread(target=job.processes[task].dog.announce_ready_together)
        for task in tasks
    }
    for task in tasks[:-1]:
        starts[task].start()
    job.run(60)
    assert all(starts[task].is_alive() for task in tasks[:-1])
    if comes:
        starts[last.task].start()
    else:
        last.end()
    for _ in range(int(SECONDS * 100)):
        job.run(1)
        if not any(start.is_alive() for start in starts.values()) or job.chief.codes:
            break
        time.sleep(0.01)
    lost = [] if comes else [f"lost {job.named(last.task)}: {CLOSED}"]
    assert job.chief.messages == lost
    for task in tasks[:-1]:
        # What is lost ends the process.
        for peer in job.processes[task].dog._peers.values():
            peer.up = True
        job.processes[task].dog.wait_for_servers()
        starts[task].join()


@pytest.mark.parametrize("stopped", [CHIEF, OTHER])
def test_one_that_was_stopped_for_too_long_hears_why_the_job_has_ended(cluster, stopped):
    job = cluster(3)
    one, third = job.processes[stopped], job.processes[THIRD]
    one.stop()
    job.run(60)
    message = f"lost {job.named(stopped)}: {SILENT}"
    assert (third.messages, third.codes) == ([message], [4])
    one.go_on()
    job.run(10)
    assert (one.messages, one.codes) == ([message], [4])
    assert one.dog.explain_error(0.0) == {stopped: SILENT}


def test_a_stop_of_all_is_no_loss(cluster):
    job = cluster(3)
    for one in job.processes.values():
        one.stop()  # as by the scheduler of the machines
    job.run(2 * LONG * STALL)
    for one in job.processes.values():
        one.go_on()
    job.run(40)
    assert job.chief.messages == []
    job.processes[OTHER].end()
    job.run(10)
    assert job.chief.messages == [f"lost {job.named(OTHER)}: {CLOSED}"]


# The bounds themselves: the chief looks, and its clock stands still meanwhile.


def pair(cluster):
    """The chief and another task of a job, whose last message the chief has just read."""
    job = cluster(2)
    other = job.processes[THIRD]
    other.dog.send_and_check_progress()
    job.chief.dog.read_messages(0)
    return job, job.chief, other


def test_a_task_is_lost_when_it_has_been_silent_for_longer_than_thirty_seconds(cluster):
    job, chief, _ = pair(cluster)
    began = job.now
    while job.now < began + 30.0:
        job.now += 2.0
        chief.dog.send_and_check_progress()
    assert chief.messages == []
    job.now += 0.01
    chief.dog.send_and_check_progress()
    assert chief.messages == [f"lost {job.named(THIRD)}: {SILENT}"]


def test_a_server_that_has_not_started_is_waited_for_until_the_end_of_the_patience(limits):
    job = Cluster(2, late=[THIRD])
    job.processes[THIRD].stop()
    end = job.now + watchdog.PATIENCE
    for job.now in (*(end - 2.0 * k for k in range(300, 0, -1)), end - 0.01):
        job.chief.dog.send_and_check_progress()
    assert job.chief.messages == []
    limits(watchdog, _LINGER_SECONDS=0.0)
    job.now = end
    job.chief.dog.send_and_check_progress()
    why = "its server has not started"
    assert job.chief.messages == [f"waited 600 s for {job.named(THIRD)}: {why}"]
    job.close()


@pytest.mark.parametrize(
    ("job", "period"), [(Job(task=CHIEF, worker_addresses=("a:1", "b:1")), 2.0), (Job(), 10.0)]
)
def test_a_process_that_was_stopped_is_not_stuck(job, period):
    now = [0.0]
    lost: list[str] = []
    loop = Loop(Task("localhost"))
    dog = Watchdog(
        job,
        lost.append,
        read_progress=loop,
        stall_timeout=STALL,
        clock=lambda: now[0],
        leave=lambda code: None,
    )
    dog.adopt_connections({})
    dog.send_and_check_progress()
    while now[0] < STALL - 3 * period:
        now[0] += period
        dog.send_and_check_progress()
    now[0] += 3600.0
    dog.send_and_check_progress()
    assert lost == []
    for _ in range(3):
        now[0] += period
        dog.send_and_check_progress()
    assert len(lost) == 1


def test_without_a_limit_nothing_is_stuck():
    now = [0.0]
    lost: list[str] = []
    loop = Loop(Task("localhost"))
    dog = Watchdog(Job(), lost.append, read_progress=loop, clock=lambda: now[0])
    dog.adopt_connections({})
    for now[0] in (0.0, 5.0, 10.0):
        dog.send_and_check_progress()
    assert lost == []


# Progress.


class Loop:
    """How far a worker has come, set by the test."""

    def __init__(self, task):
        self.task, self.steps, self.doing, self.batches = task, 3, ProcessActivity.STEP, 3

    def __call__(self):
        last = f"step {self.steps}"
        return ProcessProgress(str(self.task), self.steps, last, self.doing, self.batches)


@pytest.fixture
def loops(cluster):
    """A job of three workers with a loop each."""
    tasks = [Task("worker", n) for n in range(3)]
    loops = {task: Loop(task) for task in tasks}
    return cluster(3, collective=True, looks=loops), loops


def messages(job):
    return {message for one in job.processes.values() for message in one.messages}


@pytest.mark.parametrize(
    ("culprit", "doing", "steps"),
    [
        (CHIEF, ProcessActivity.INPUT, 3),
        (OTHER, ProcessActivity.STEP, 2),
        (OTHER, ProcessActivity.CHECKPOINT, 3),
    ],
)
def test_the_one_that_the_others_wait_for_is_named(loops, culprit, doing, steps):
    job, by_task = loops
    job.run(10)
    by_task[culprit].doing, by_task[culprit].steps = doing, steps
    limit = STALL * (LONG if doing is ProcessActivity.CHECKPOINT else 1)
    job.run(limit - 20)
    assert not messages(job)
    job.run(40)
    (message,) = messages(job)
    assert message.startswith(f"stuck: {job.named(culprit)}: no progress for {limit / 10:.0f}"[:-1])
    assert message.endswith(f"after step {steps}, waits for {doing.value} (--stall_timeout=100)")
    assert all(one.codes == [4] for one in job.processes.values())


@pytest.mark.parametrize("behind", [(), (CHIEF, OTHER)])
def test_all_that_have_made_the_fewest_steps_are_named(loops, behind):
    job, by_task = loops
    for task in behind:
        by_task[task].steps = 2
    job.run(STALL + 10)
    (message,) = messages(job)
    named = [task for task in job.processes if f"{job.named(task)}: no progress" in message]
    assert named == [*(behind or job.processes)]
    assert "; all are at the same step" in message


def test_a_job_in_which_one_moves_or_may_wait_for_long_is_not_stuck(loops):
    job, by_task = loops
    for _ in range(2):  # an evaluation: no steps, but batches
        by_task[OTHER].doing = ProcessActivity.EVALUATION
        by_task[OTHER].batches += 1
        job.run(0.6 * LONG * STALL)
    by_task[OTHER].doing = ProcessActivity.OTHERS
    job.run(LONG * STALL + 10)
    assert not messages(job)


def test_a_process_that_drives_all_names_the_worker_that_it_waits_for(cluster):
    loop = Loop(OTHER)
    loop.doing = ProcessActivity.INPUT
    job = cluster(3, looks={CHIEF: loop})
    job.run(STALL)
    (message,) = messages(job)
    assert message.startswith(f"stuck: {job.named(OTHER)}: no progress for 10")


# With threads; test_stuck.py has real processes.


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_a_record_that_cannot_be_written_holds_up_nothing(cluster, limits, fault):
    limits(watchdog, WRITING_SECONDS=0.3)
    job = cluster(2)

    def lost(message):
        if fault == "raises":
            raise OSError(message)
        time.sleep(5)

    job.chief.dog._lost = lost
    job.processes[THIRD].end()
    job.run(10)
    assert job.chief.codes == [4]


@pytest.mark.parametrize("closes", [True, False])
def test_the_chief_leaves_when_the_others_have_read_why(limits, closes):
    """A process that ends while messages are unread resets its connections."""
    limits(watchdog, _LINGER_SECONDS=SECONDS if closes else 0.3)
    job = Job(task=CHIEF, worker_addresses=("a:1", "b:1"), client_per_worker=True)
    codes: list[int] = []
    dog = Watchdog(job, lambda message: None, leave=codes.append)
    own, other = socket.socketpair()
    with own, other:
        dog.adopt_connections({OTHER: own})
        reporting = threading.Thread(target=dog._fail_and_end, args=("why",), daemon=True)
        reporting.start()
        assert b"why" in other.recv(1000)
        if closes:
            other.sendall(pack({"up": True, "standing": None}))
            reporting.join(0.3)
            assert codes == []
            other.close()
        reporting.join(SECONDS)
    assert codes == [4]


def test_the_thread_sends_once_a_period_until_the_other_has_ended(limits):
    period = 0.1
    limits(watchdog, PERIOD=period)
    job = Job(task=CHIEF, worker_addresses=("a:1", "b:1"), client_per_worker=True)
    dog = Watchdog(job, lambda message: None, leave=lambda code: None)
    own, other = socket.socketpair()

    def receive(count):
        """Receives messages that tell the progress, while the other sends one hundred a second."""
        end = time.monotonic() + SECONDS
        while count > 0:
            assert time.monotonic() < end
            other.sendall(pack({"up": True, "standing": None}))
            with contextlib.suppress(TimeoutError):
                count -= other.recv(10_000).count(b"standing")

    with own, other:
        other.settimeout(0.01)
        before = set(threading.enumerate())
        begin = time.monotonic()
        dog.start({OTHER: own})
        (thread,) = set(threading.enumerate()) - before
        assert thread.daemon
        receive(4)
        assert time.monotonic() - begin >= 3 * period
        dog.announce_end(RunEnding(0, ""))
        receive(2)  # the other has not ended
        other.close()
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert own.fileno() == -1
