"""Updates of several threads: their number, pauses, times, and workers that fail.

Tests cnnbench/run/driver/step_loop.py.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter

import pytest
from forked import until

from cnnbench.errors import BenchmarkError
from cnnbench.run.driver import step_loop
from cnnbench.run.driver.step_loop import AsyncLoop, CoordinatedLoop, StepTime, StuckWorkerDetector

SECONDS = 20.0


class Workers:
    """Workers that note what they are asked to do; the others wait for those that shall fail."""

    def __init__(self, names="ab", fail=()):
        self.lock = threading.Lock()
        self.made: list[tuple[str, int]] = []
        self.under_way = 0
        self.fail = dict(fail)  # by worker: at which of its updates
        self.failed = threading.Semaphore(0)
        self.lost: list[tuple[str, str]] = []
        self.loop = AsyncLoop({name: self.worker(name) for name in names}, self.told)

    def worker(self, name):
        def update(number):
            with self.lock:
                self.under_way += 1
                mine = sum(who == name for who, _ in self.made)
            try:
                if name not in self.fail and self.fail and mine == 5:
                    assert self.failed.acquire(timeout=SECONDS)
                if self.fail.get(name) == mine:
                    self.failed.release()
                    raise OSError(f"{name} is gone")
                with self.lock:
                    self.made.append((name, number))
                return name
            finally:
                with self.lock:
                    self.under_way -= 1

        return update

    def told(self, worker, error):
        self.lost.append((worker, str(error)))

    def run(self, steps, **pauses):
        done = []
        count = self.loop.run(steps, lambda *one: done.append(one), **pauses)
        return count, done


def test_every_update_is_made_once_and_counted_in_order():
    workers = Workers("abc")
    count, done = workers.run(200)
    assert count == 200
    assert [step for step, _, _ in done] == list(range(1, 201))
    assert sorted(number for _, number in workers.made) == list(range(1, 201))
    assert Counter(name for _, _, name in done) == Counter(name for name, _ in workers.made)


def test_every_worker_makes_an_update_in_the_first_run_that_is_long_enough():
    workers = Workers("abc")
    workers.run(3)
    assert {name for name, _ in workers.made} == set("abc")
    workers = Workers("abc")
    assert workers.run(2)[0] == 2
    assert workers.run(0) == (0, [])
    assert workers.run(5)[0] == 5
    assert {name for name, _ in workers.made} == set("abc")


def test_in_a_pause_nothing_is_under_way_and_no_update_is_ahead():
    workers = Workers("abc")
    paused = []

    def pause(step):
        assert workers.under_way == 0
        assert sorted(number for _, number in workers.made) == list(range(1, step + 1))
        paused.append(step)
        return False

    asked = []

    def due(step):
        asked.append(step)
        return step % 7 == 0 or step == 1

    workers.run(21, pause_due=due, pause=pause)
    assert paused == [1, 7, 14, 21]
    assert asked == list(range(1, 22))


def test_times_are_distances_between_ends_without_pauses(limits):
    """Wall time, and CPU time of all workers."""
    ticks = itertools.count()
    limits(StepTime, now=lambda: StepTime(float(tick := next(ticks)), 0.25 * tick))

    def pause(step):
        for _ in range(100):
            next(ticks)
        return False

    _, done = Workers().run(10, pause_due=(5).__eq__, pause=pause)
    # The clock ticks once per reading: at the begin, and at the end of each update.
    assert [spent for _, spent, _ in done] == [StepTime(1.0, 0.25)] * 10


@pytest.mark.parametrize("at", [0, 3])
def test_a_worker_that_fails_is_left_behind_and_its_update_made_by_another(at):
    workers = Workers("ab", {"b": at})
    count, done = workers.run(40)
    assert count == len(done) == 40
    assert sorted(number for _, number in workers.made) == list(range(1, 41))
    assert sum(name == "b" for _, _, name in done) == at
    assert workers.lost == [("b", "b is gone")]
    assert workers.loop.remaining_workers == ("a",)
    assert workers.run(5)[0] == 5


def test_without_workers_the_loop_fails_and_says_why():
    workers = Workers("ab", {"a": 4, "b": 2})
    with pytest.raises(BenchmarkError, match=r"^all workers are lost: ") as error:
        workers.run(40)
    assert all(f"{name}: {name} is gone" in str(error.value) for name in "ab")
    assert len(workers.made) == 6


def test_what_cnnbench_refuses_ends_the_loop():
    def update(number):
        raise BenchmarkError("no such record")

    loop = AsyncLoop({"a": update, "b": lambda number: number}, lambda *lost: None)
    with pytest.raises(BenchmarkError, match="no such record"):
        loop.run(1000, lambda *one: None)
    assert loop.remaining_workers == ("a", "b")


def test_an_error_of_the_caller_ends_the_threads():
    workers = Workers()
    before = set(threading.enumerate())

    def done(step, seconds, values):
        if step == 5:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        workers.loop.run(1000, done)
    until(lambda: set(threading.enumerate()) <= before)  # those of other tests may have ended
    assert workers.under_way == 0


def test_an_interrupt_does_not_wait_for_a_worker_that_hangs():
    """The record is written afterwards, and a supervisor waits ten seconds for it."""
    free = threading.Event()
    loop = AsyncLoop(
        {"a": lambda number: "a", "b": lambda number: free.wait(SECONDS)}, lambda *one: None
    )

    def done(step, seconds, values):
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        loop.run(10, done)
    assert time.monotonic() - began < SECONDS / 2
    free.set()


def test_a_worker_that_hangs_can_be_given_up():
    stuck, free = threading.Event(), threading.Event()

    def hang(number):
        stuck.set()
        assert free.wait(SECONDS)
        return "late"

    lost = []
    loop = AsyncLoop(
        {"a": lambda number: "a", "b": hang},
        lambda *one: lost.append(one),
        lambda: {"b": "does not answer"} if stuck.is_set() else {},
    )
    done = []
    loop.run(10, lambda step, seconds, values: done.append(values))
    assert done == ["a"] * 10
    assert [worker for worker, _ in lost] == ["b"]
    free.set()
    assert loop.run(5, lambda step, seconds, values: done.append(values)) == 5
    assert "late" not in done


class TestStuck:
    def test_one_that_does_not_end_is_found_and_others_are_not(self):
        stuck = StuckWorkerDetector(10.0)
        assert stuck.find_stuck_workers({"a": 1, "b": 2}, 1.0) == {}
        for number in range(3, 11):
            assert stuck.find_stuck_workers({"a": 100, "b": number}, 1.0) == {}
        assert stuck.find_stuck_workers({"a": 100, "b": 12}, 1.5) == {}
        assert stuck.find_stuck_workers({"a": 100, "b": 13}, 1.0) == {"a": 10.5}

    @pytest.fixture
    def soon(self, limits):
        limits(step_loop, _ASK_SECONDS=0.02)

    @pytest.mark.parametrize("waits", [True, False])
    def test_the_others_go_on_without_a_stuck_worker(self, soon, waits):
        hang, told = threading.Event(), []

        def update(number):
            return threading.Event().wait(0.01)

        def stuck(number):
            return hang.wait(SECONDS) if number > 6 else update(number)

        waiting = {"a": 1.0} if waits else {}
        loop = AsyncLoop(
            {"a": stuck, "b": update},
            lambda worker, error: told.append((worker, str(error))),
            stuck=StuckWorkerDetector(0.3, lambda: waiting),
        )
        numbers = []
        assert loop.run(100, lambda step, seconds, values: numbers.append(step)) == 100
        hang.set()
        ((worker, reason),) = told
        assert worker == "a"
        what = "its input" if waits else "the end of a step"
        assert re.match(rf"no progress for \d+ s \(--stall_timeout\), waits for {what}", reason)

    def test_a_stuck_update_of_a_coordinator_ends_the_loop(self, soon):
        hang = threading.Event()

        def update(number):
            return (lambda: hang.wait(SECONDS)) if number > 5 else lambda: True

        waiting = {"worker:0": 0.0, "worker:1": SECONDS}
        loop = CoordinatedLoop(
            {"slot": update},
            ["worker:0", "worker:1"],
            lambda worker, error: None,
            stuck=StuckWorkerDetector(0.05, lambda: waiting),
        )
        with pytest.raises(BenchmarkError, match=r"stuck: worker:1: no progress .* its input"):
            loop.run(9, lambda *_: None)
        hang.set()
