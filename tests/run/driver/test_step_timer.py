"""Step timing with a scripted clock and a scripted device.

Tests cnnbench/run/driver/step_loop.py.
"""

from __future__ import annotations

import threading
import time

import pytest

from cnnbench.run.driver.step_loop import StepLoop, StepTime


class Device:
    """A device that needs `work` seconds per step, on which launching takes `enqueue`.

    Reading a result waits for everything that was enqueued when its copy is issued, which is
    `held` real seconds after the call. Time is scripted; every thread has its own.
    """

    def __init__(self, work, enqueue, fetch, held=0.0):
        self.free_at = 0.0
        self.work, self.enqueue, self.fetch, self.held = work, enqueue, fetch, held
        self._own = threading.local()

    @property
    def now(self):
        return getattr(self._own, "now", 0.0)

    @now.setter
    def now(self, now):
        self._own.now = now

    def clocks(self):
        return StepTime(self.now, 0.0)

    def launch(self):
        self.now += self.fetch + self.enqueue
        self.free_at = max(self.free_at, self.now) + self.work
        return self.free_at

    def read(self, launched, events):
        time.sleep(self.held)
        end = self.free_at
        events.issued()
        self.now = max(self.now, end)
        events.arrived(5)
        self.now += 5  # until they have come to the caller
        return end


@pytest.fixture
def run(limits):
    """run(device, lag, steps): the number and the time of each step of a loop."""

    def run(device, lag, steps, **pauses):
        limits(StepTime, now=device.clocks)
        steps_done: list[tuple[int, float]] = []

        def done(step, spent, end):
            device.now = max(device.now, end) if lag else end  # this thread has waited for a reader
            steps_done.append((step, spent.seconds))

        loop = StepLoop(device.launch, device.read, lag)
        return loop.run(steps, done, **pauses), steps_done

    return run


# Copied later, the result of a step would wait for the step behind it, too.
@pytest.mark.parametrize("held", [0.0, 0.03])
def test_with_lag_the_device_never_waits_for_the_host(run, held):
    device = Device(work=10, enqueue=1, fetch=2, held=held)
    _, done = run(device, lag=1, steps=4)
    # The first step includes its launch; from then on the device is busy all the time.
    assert done == [(1, 13), (2, 10), (3, 10), (4, 10)]
    assert device.now == 43


def test_with_lag_a_slow_host_shows_in_the_step_time(run):
    _, done = run(Device(work=1, enqueue=3, fetch=4), lag=1, steps=4)
    assert sum(seconds for _, seconds in done) == 4 * 7 + 1
    assert done[1] == (2, 7)


def test_steps_end_in_order_though_a_later_read_returns_first(limits):
    returned, clock_read = threading.Event(), threading.Event()
    ticks = iter(range(100))

    def now():
        tick = next(ticks)
        if returned.is_set():
            clock_read.set()
        return StepTime(float(tick), 0.0)

    limits(StepTime, now=now)

    def take(handle, events):
        events.issued()
        if handle == 0:
            assert clock_read.wait(30)
        else:
            returned.set()
        return handle

    handles = iter(range(2))
    seen: list[tuple[int, float, int]] = []
    loop = StepLoop(lambda: next(handles), take, 1)
    loop.run(2, lambda step, spent, value: seen.append((step, spent.seconds, value)))
    # The clock was read for the second step first.
    assert seen == [(1, 2.0, 0), (2, pytest.approx(1e-6), 1)]


@pytest.mark.parametrize("lag", [0, 1])
def test_a_pause_happens_with_nothing_in_flight_and_outside_step_times(run, lag):
    device = Device(work=10, enqueue=1, fetch=2)
    in_flight: list[bool] = []

    def pause(step):
        in_flight.append(device.now < device.free_at)
        device.now += 1000
        return step == 6  # which ends the loop

    count, done = run(device, lag, 9, pause_due=lambda step: step % 2 == 0, pause=pause)
    assert in_flight == [False] * 3
    assert count == 6
    assert [step for step, _ in done] == [1, 2, 3, 4, 5, 6]
    assert max(seconds for _, seconds in done) <= 13


@pytest.mark.parametrize("lag", [0, 1])
def test_what_was_launched_before_an_error_is_measured(lag):
    device = Device(work=10, enqueue=1, fetch=0)
    launches = iter(range(3))
    measured: list[int] = []

    def launch():
        next(launches)
        return device.launch()

    loop = StepLoop(launch, device.read, lag)
    with pytest.raises(StopIteration):
        loop.run(5, lambda step, spent, end: measured.append(step))
    assert measured == [1, 2, 3]


def test_an_error_ends_the_loop_and_does_not_wait_for_a_device_that_hangs():
    device = Device(work=10, enqueue=1, fetch=0)
    ended = threading.Event()

    def read(launched, events):
        events.issued()
        assert ended.wait(60)
        return device.read(launched, events)

    def launch():
        if device.free_at:
            raise KeyboardInterrupt
        return device.launch()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        StepLoop(launch, read, 1).run(5, lambda *of: None)
    assert time.monotonic() - began < 30
    ended.set()

    def fail(handle, events):
        raise ArithmeticError(f"step {handle}")

    with pytest.raises(ArithmeticError, match="step 0"):
        StepLoop(lambda: 0, fail, 1).run(5, lambda *_: None)


@pytest.mark.parametrize("lag", [0, 1])
def test_cpu_time_of_a_step_is_without_that_of_pauses(limits, lag):
    clock = [0.0]
    limits(StepTime, now=lambda: StepTime(time.perf_counter(), clock[0]))

    def spend(seconds):
        clock[0] += seconds
        return False

    times: list[StepTime] = []
    StepLoop(
        lambda: spend(0.25) or time.sleep(0.01),
        lambda handle, events: spend(0.5),
        lag,
    ).run(
        4,
        lambda step, spent, value: times.append(spent),
        pause_due=lambda step: True,
        pause=lambda step: spend(1000.0),
    )
    assert [spent.cpu_seconds for spent in times] == [0.75] * 4
    assert all(spent.seconds >= 0.01 for spent in times)


def test_cpu_time_is_that_of_all_threads_whatever_the_wall_time():
    def burn():
        """Computes until the calling thread has used that much CPU time."""
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass

    def both():
        other = threading.Thread(target=burn)
        other.start()
        burn()
        other.join()

    times: list[StepTime] = []
    loop = StepLoop(both, lambda handle, events: handle, 0)
    loop.run(2, lambda step, spent, value: times.append(spent))
    # Twice the time of one thread. On a busy machine the wall time is longer, this is not.
    assert 0.4 <= sum(spent.cpu_seconds for spent in times) < 0.75
