"""Step timing with a scripted clock and a scripted device."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future

import pytest

from cnnbench.driver.step_timer import StepLoop


class Device:
    """A device that needs `work` seconds per step, on which launching takes `enqueue`."""

    def __init__(self, work: float, enqueue: float, fetch: float) -> None:
        self.now = 0.0
        self.free_at = 0.0
        self.work, self.enqueue, self.fetch = work, enqueue, fetch
        self.launched: list[float] = []

    def clock(self) -> float:
        return self.now

    def launch(self) -> float:
        self.now += self.fetch + self.enqueue
        self.launched.append(self.now)
        self.free_at = max(self.free_at, self.now) + self.work
        return self.free_at

    def read(self, ready_at: float) -> float:
        self.now = max(self.now, ready_at)
        return ready_at


class Now(Executor):
    """Reads when the result is asked for: one clock, no threads."""

    class Later(Future):
        def __init__(self, work) -> None:
            self.work = work

        def result(self, timeout=None):
            return self.work()

    def submit(self, function, *arguments):
        return self.Later(lambda: function(*arguments))


def run(device: Device, lag: int, steps: int, **pauses):
    done: list[tuple[int, float]] = []
    loop = StepLoop(device.launch, device.read, lag, device.clock, Now)
    count = loop.run(steps, lambda step, seconds, _: done.append((step, seconds)), **pauses)
    return count, done


def test_without_lag_a_step_is_input_launch_and_work() -> None:
    count, done = run(Device(work=10, enqueue=1, fetch=2), lag=0, steps=3)
    assert count == 3
    assert done == [(1, 13), (2, 13), (3, 13)]


def test_with_lag_the_device_never_waits_for_the_host() -> None:
    device = Device(work=10, enqueue=1, fetch=2)
    _, done = run(device, lag=1, steps=4)
    # The first step includes its launch; from then on the device is busy all the time.
    assert done == [(1, 13), (2, 10), (3, 10), (4, 10)]
    assert device.now == 43


def test_with_lag_a_slow_host_shows_in_the_step_time() -> None:
    _, done = run(Device(work=1, enqueue=3, fetch=4), lag=1, steps=4)
    assert sum(seconds for _, seconds in done) == 4 * 7 + 1
    assert done[1] == (2, 7)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_pause_happens_with_nothing_in_flight_and_outside_step_times(lag: int) -> None:
    device = Device(work=10, enqueue=1, fetch=2)
    in_flight: list[bool] = []

    def pause(step: int) -> bool:
        in_flight.append(device.now < device.free_at)
        device.now += 1000
        return False

    _, done = run(device, lag, 4, pause_due=lambda step: step % 2 == 0, pause=pause)
    assert in_flight == [False, False]
    assert [step for step, _ in done] == [1, 2, 3, 4]
    assert max(seconds for _, seconds in done) <= 13


@pytest.mark.parametrize("lag", [0, 1])
def test_a_pause_can_end_the_loop(lag: int) -> None:
    count, done = run(
        Device(work=1, enqueue=1, fetch=1),
        lag,
        10,
        pause_due=lambda step: step == 3,
        pause=lambda step: True,
    )
    assert count == 3
    assert [step for step, _ in done] == [1, 2, 3]


@pytest.mark.parametrize("lag", [0, 1])
def test_values_reach_their_own_step(lag: int) -> None:
    values = iter(range(100))
    seen: list[tuple[int, int]] = []
    loop = StepLoop(lambda: next(values), lambda handle: handle * 10, lag)
    loop.run(5, lambda step, _, value: seen.append((step, value)))
    assert seen == [(1, 0), (2, 10), (3, 20), (4, 30), (5, 40)]


def test_results_are_read_on_a_thread_of_their_own_and_before_the_next_launch() -> None:
    main = threading.current_thread()
    launched: list[int] = []
    read: list[tuple[int, bool]] = []
    reading = threading.Event()

    def launch() -> int:
        if launched:
            # The copy of the last result was asked for before this step goes off.
            assert reading.wait(30)
            reading.clear()
        launched.append(len(launched))
        return launched[-1]

    def take(handle: int) -> int:
        reading.set()
        read.append((handle, threading.current_thread() is main))
        return handle

    assert StepLoop(launch, take, 1).run(6, lambda *_: None) == 6
    assert read == [(i, False) for i in range(6)]


def test_an_error_while_reading_ends_the_loop() -> None:
    def fail(handle: int) -> int:
        raise ArithmeticError(f"step {handle}")

    with pytest.raises(ArithmeticError, match="step 0"):
        StepLoop(lambda: 0, fail, 1).run(5, lambda *_: None)


def test_zero_steps() -> None:
    assert run(Device(1, 1, 1), 1, 0) == (0, [])


def test_an_unknown_lag_is_refused() -> None:
    with pytest.raises(ValueError, match="lag is 2"):
        StepLoop(lambda: 0, lambda handle: handle, 2)
