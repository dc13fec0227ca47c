"""Launches and times steps, including several steps in flight.

On the CPU, a traced step has finished when its call returns. So the time of a step begins before
its input is fetched, and ends when its loss has been read. On a GPU, the call only enqueues
kernels. The next step is launched while a step runs (`lag=1`), so the device always has work. The
time of a step is the interval between two completions. The loss of a step depends on all of its
weight updates, so the step has finished when its loss has been read.

A second thread reads the results of a step, because the read waits for the step. The read must not
wait for the next step, too. So the next step is launched after the read has reported that later
launches cannot delay it (`cnnbench.data.copies.ScalarReader`). Results remain on the device of
the step: a function that returns tensors on the host would return only when they are copied, and
the device would be idle until the next launch. A step ends when its values arrive on the host,
which the read reports.

The CPU time of a step is the CPU time of all threads of this process in the same interval
(CLOCK_PROCESS_CPUTIME_ID). This clock is read immediately before and after the wall clock.

With asynchronous updates, every worker has a thread, which gets the numbers of its updates from the
loop. A run has an exact number of updates, for any distribution over the workers. Before a pause,
the loop issues no more updates and waits for the updates in flight, so variables do not change
during a pause.

The workers' threads measure the ends of updates. The time of an update is the interval since the
end of the previous update of any worker. Its CPU time is the CPU time of all threads of this
process in the same interval.
"""

from __future__ import annotations

import queue
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from cnnbench.base.interrupts import raise_if_interrupted
from cnnbench.data.copies import ReadCallbacks
from cnnbench.errors import BenchmarkError, informative_line
from cnnbench.run.runtime.progress import ProcessActivity, stall_time_limit

# Part 1: the loop of synchronous steps. It launches the next step early, to keep a GPU busy.

Handle = TypeVar("Handle")
Values = TypeVar("Values")


RESOLUTION = 1e-6
"""Minimum duration of a step, in seconds."""


class StepTime(NamedTuple):
    """The wall time of a step and the CPU time of this process's threads (user and system).

    Both are seconds: of a step, or readings of the clocks.
    """

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> StepTime:
        """Reads both clocks."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: StepTime, steps: int = 1) -> StepTime:
        """Returns the mean time per step, for `steps` steps between `start` and this reading."""
        cpu_seconds = self.cpu_seconds - start.cpu_seconds
        return StepTime((self.seconds - start.seconds) / steps, cpu_seconds / steps)


def never_pause(step: int) -> bool:
    """The pause condition of a loop without pauses: returns False after every step."""
    del step
    return False


class StepLoop(Generic[Handle, Values]):
    """Runs and times steps: launches executions, and reads results `lag` executions later.

    An execution is one call that runs one or more steps.

    Attributes:
      launch: fetches input and starts one execution. Returns a handle on its results.
      read: returns the values for a handle, when the execution has finished. Executions that are
        launched before `read` calls `issued` may delay it. An execution ends when `read` calls
        `arrived` or, without this call, when `read` returns.
      lag: 1 if executions are launched while the previous execution runs, on asynchronous devices.
        0 if an execution has finished when `launch` returns, or must finish before the next launch.
      together: number of steps in an execution. It must divide the number of steps of `run`.
    """

    def __init__(
        self,
        launch: Callable[[], Handle],
        read: Callable[[Handle, ReadCallbacks], Values],
        lag: int,
        together: int = 1,
    ) -> None:
        self.launch = launch
        self.read = read
        self.lag = lag
        self.together = together

    def run(
        self,
        steps: int,
        on_steps_done: Callable[[int, StepTime, Values], None],
        pause_due: Callable[[int], bool] = never_pause,
        pause: Callable[[int], bool] = never_pause,
    ) -> int:
        """Runs `steps` steps, or fewer if `pause` ends the loop. Returns the number of steps.

        Args:
          on_steps_done: called after each execution, in order. Its arguments are the number (from
            1) of the last step, the mean time of the steps, and the values.
          pause_due: returns whether to call `pause` after the step with this number, which is the
            last step of an execution.
          pause: called when no step is in flight; not part of a step's time. If it returns True,
            the loop ends.
        """
        if self.lag:
            return self._run_lagged(steps, on_steps_done, pause_due, pause)
        for step in range(self.together, steps + 1, self.together):
            start = StepTime.now()
            values, end = self._read_and_time(self.launch(), lambda: None)
            on_steps_done(step, end.since(start, self.together), values)
            if pause_due(step) and pause(step):
                return step
        return steps

    def _run_lagged(
        self,
        steps: int,
        on_steps_done: Callable[[int, StepTime, Values], None],
        pause_due: Callable[[int], bool],
        pause: Callable[[int], bool],
    ) -> int:
        """Implements `run` with one execution in flight while the previous results are read."""
        start = StepTime.now()

        def finish(step: int, reading: Future[tuple[Values, StepTime]]) -> None:
            nonlocal start
            values, end = reading.result()
            # Steps end in order, but the thread of a later step may have read its clocks first.
            end = StepTime(
                max(end.seconds, start.seconds + RESOLUTION),
                max(end.cpu_seconds, start.cpu_seconds),
            )
            on_steps_done(step, end.since(start, self.together), values)
            start = end

        # Two threads are needed, because a read starts while the read of the previous step is still
        # waiting.
        threads = ThreadPoolExecutor(2, "cnnbench-reader")
        try:
            before: Future[tuple[Values, StepTime]] | None = None
            for step in range(self.together, steps + 1, self.together):
                issued = threading.Event()
                try:
                    handle = self.launch()
                except Exception:
                    if before is not None:
                        # The previous execution has ended without an error, so its time is
                        # recorded.
                        finish(step - self.together, before)
                    raise
                reading = threads.submit(self._read_and_time, handle, issued.set)
                if before is not None:
                    finish(step - self.together, before)
                before = reading
                is_due = pause_due(step)
                if is_due or step == steps:
                    finish(step, reading)
                    before = None
                    if is_due and pause(step):
                        return step
                    start = StepTime.now()
                issued.wait()
        finally:
            # The threads are not joined, because a read from a GPU may never return after an error.
            threads.shutdown(wait=False)
        return steps

    def _read_and_time(
        self, handle: Handle, on_read_issued: Callable[[], None]
    ) -> tuple[Values, StepTime]:
        """Waits for the values of an execution. Also returns wall and CPU time of its end."""
        ages: list[float] = []
        try:
            values = self.read(handle, ReadCallbacks(on_read_issued, ages.append))
        finally:
            # Without this call, an error in `read` would make the loop wait forever.
            on_read_issued()
        now = StepTime.now()
        return values, now._replace(seconds=now.seconds - ages[0]) if ages else now


class LoopTime(NamedTuple):
    """Seconds of a loop: wall time, and user and system CPU time of all threads of this process.

    The kernel measures the sum of user and system time exactly. It estimates their shares by
    sampling at timer ticks.
    """

    wall: float
    user: float
    system: float

    @classmethod
    def now(cls) -> LoopTime:
        """Reads the three clocks."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.perf_counter(), usage.ru_utime, usage.ru_stime)

    def since(self, start: LoopTime) -> LoopTime:
        """Returns the seconds from the reading `start` to this reading."""
        return LoopTime(self.wall - start.wall, self.user - start.user, self.system - start.system)

    def record_fields(self) -> dict[str, float]:
        """Returns the seconds under the names of fields of a record (see `Measured`)."""
        names = ("loop_seconds", "loop_user_seconds", "loop_system_seconds")
        return dict(zip(names, self, strict=True))


class LoopTimer:
    """Times a loop, which starts when the timer is created."""

    def __init__(self) -> None:
        self._start = LoopTime.now()
        self._began = self._start.wall

    def elapsed(self) -> LoopTime:
        """Returns the loop's time so far, without excluded blocks. Undefined inside a block."""
        return LoopTime.now().since(self._start)

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """A context that excludes its block, such as an evaluation, from the time of the loop."""
        before = self.elapsed()
        try:
            yield
        finally:
            self._start = LoopTime.now().since(before)

    @property
    def elapsed_seconds(self) -> float:
        """Wall seconds since the beginning of the loop, including excluded blocks."""
        return LoopTime.now().wall - self._began


# Part 2: the loop of asynchronous updates, in which workers do not wait for each other.

_ASK_SECONDS = 1.0
_SHORTEST = 1e-9
"""Minimum seconds of an update: with a coarse clock, two updates may end at the same time."""


class _UpdateOutcome(NamedTuple):
    """A message from a worker's thread: the values of an update, or the error that ended it."""

    worker: str
    end: StepTime
    number: int = 0
    values: object = None
    error: Exception | None = None


class StuckWorkerDetector:
    """Detects workers whose current update takes too long.

    Adds up the time between calls in which the same update is in flight. The caller limits the time
    per call, so that time during which this process was stopped is mostly excluded.

    Args:
      limit: seconds, as in `stall_time_limit`.
      input_wait_by_worker: returns the seconds for which each worker has been waiting for input.
    """

    def __init__(
        self, limit: float = 0.0, input_wait_by_worker: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        self._limit = limit
        self.input_wait_by_worker = input_wait_by_worker
        self._waited: dict[tuple[str, int], float] = {}
        self._experienced: set[str] = set()
        self._longest = 0.0

    def find_stuck_workers(
        self, in_flight: Mapping[str, int], seconds_since_last_call: float
    ) -> dict[str, float]:
        """Returns the workers whose current update takes too long, with its seconds so far.

        Args:
          in_flight: number of the current update, for each worker that runs an update.
          seconds_since_last_call: time since the previous call.
        """
        for (worker, number), waited in self._waited.items():
            if in_flight.get(worker) != number:
                self._longest = max(self._longest, waited if worker in self._experienced else 0.0)
                self._experienced.add(worker)
        self._waited = {
            key: self._waited.get(key, 0.0) + seconds_since_last_call for key in in_flight.items()
        }
        return {
            worker: waited
            for (worker, _), waited in self._waited.items()
            if waited > stall_time_limit(self._limit, self._longest, worker in self._experienced)
        }


class AsyncLoop(Generic[Values]):
    """Distributes asynchronous updates over workers, with the same methods as `StepLoop`.

    If an update fails, its worker is lost. The other workers continue, and another worker repeats
    the update. Errors of cnnbench itself (such as unreadable data) end the loop instead.

    Args:
      workers: functions by name. A function runs the update with the given number, from 1, and
        returns its values. Each function is called in its own thread.
      lost: called for each lost worker, in the thread that runs the loop.
      lost_workers: returns workers that will never return from an update, such as stopped
        processes, and the reasons. It is called once a second.
      stuck: finds workers that respond, but will never return from an update. It is also called
        once a second.
      begin: called before a worker's first update, in the worker's thread.
    """

    def __init__(
        self,
        workers: Mapping[str, Callable[[int], Any]],
        lost: Callable[[str, Exception], None],
        lost_workers: Callable[[], Mapping[str, str]] = dict,
        stuck: StuckWorkerDetector | None = None,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._stuck = StuckWorkerDetector() if stuck is None else stuck
        self._begin_thread = begin
        self._workers = dict(workers)
        self._report_lost = lost
        self._lost_workers = lost_workers
        self._last_check = 0.0
        self._errors: dict[str, Exception] = {}
        self._outcomes: queue.SimpleQueue[_UpdateOutcome] = queue.SimpleQueue()
        self._changed = threading.Condition()
        # The following attributes describe the current call of `run`. Only a thread that holds the
        # lock of `_changed` accesses them.
        self._running = 0  # Counts calls of `run`, so that threads of earlier calls end.
        self._limit = self._next = 0
        self._to_repeat: list[int] = []
        self._in_flight: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._pause_due: Callable[[int], bool] = never_pause
        self._pauses: set[int] = set()
        self._all_started = False

    @property
    def remaining_workers(self) -> tuple[str, ...]:
        """The names of the workers that are not lost."""
        return tuple(name for name in self._workers if name not in self._errors)

    def run(
        self,
        steps: int,
        on_steps_done: Callable[[int, StepTime, Values], None],
        pause_due: Callable[[int], bool] = never_pause,
        pause: Callable[[int], bool] = never_pause,
    ) -> int:
        """Runs `steps` updates, or fewer if `pause` ends the loop. Returns the number of updates.

        In the first call, every worker runs at least one update (if there are enough updates),
        because a worker's first update is slow.

        Args:
          on_steps_done: called after each update, in order. Its arguments are the number (from 1),
            the time and the values.
          pause_due: returns whether to call `pause` after this number of updates. It is called once
            for each number, in order, from any thread.
          pause: called when no update is in flight; not part of an update's time. If it returns
            True, the loop ends.

        Raises:
          BenchmarkError: all workers are lost, or cnnbench raised this error in one of them.
        """
        last = StepTime.now()
        self._start_threads(steps, pause_due)
        try:
            for step in range(1, steps + 1):
                outcome = self._wait_for_outcome(step)
                spent, last = outcome.end.since(last), outcome.end
                spent = spent._replace(seconds=max(spent.seconds, _SHORTEST))
                on_steps_done(step, spent, outcome.values)  # type: ignore[arg-type]
                if step in self._pauses:
                    if pause(step):
                        return step
                    last = StepTime.now()
                    with self._changed:
                        later = (number for number in self._pauses if number > step)
                        self._limit = min(later, default=steps)
                        self._changed.notify_all()
            return steps
        finally:
            # The threads are asked to end, but not joined, because an update may hang.
            with self._changed:
                self._running += 1
                self._changed.notify_all()

    def _start_threads(self, steps: int, pause_due: Callable[[int], bool]) -> None:
        with self._changed:
            self._running += 1
            self._limit, self._next = steps, 1
            self._to_repeat.clear()
            self._in_flight.clear()
            self._pauses.clear()
            self._pause_due = pause_due
            if not self._all_started and steps >= len(self.remaining_workers):
                self._all_started = True
                self._first = {
                    name: number for number, name in enumerate(self.remaining_workers, 1)
                }
                self._next = len(self._first) + 1
                self._plan_pauses(1, len(self._first))
        for name in self.remaining_workers:
            arguments = name, self._running
            threading.Thread(target=self._run_updates, args=arguments, daemon=True).start()

    def _plan_pauses(self, first: int, last: int) -> None:
        """Determines after which of the updates `first` to `last` the loop pauses."""
        for number in range(first, last + 1):
            if self._pause_due(number):
                self._pauses.add(number)
                self._limit = min(self._limit, number)

    def _run_updates(self, worker: str, run: int) -> None:
        """Runs updates in a worker's thread, until the `run`-th call of `AsyncLoop.run` ends."""
        self._begin_thread()
        while True:
            try:
                started = self._start_update(worker, run)
                if started is None:
                    return
                number, finish = started
                values = finish()
            except Exception as error:
                self._outcomes.put(_UpdateOutcome(worker, StepTime(0.0, 0.0), error=error))
                return
            with self._changed:
                if self._running != run or self._in_flight.pop(worker, None) != number:
                    return  # This call of `run` has ended, or the worker was removed.
                self._outcomes.put(_UpdateOutcome(worker, StepTime.now(), number, values))

    def _start_update(self, worker: str, run: int) -> tuple[int, Callable[[], Values]] | None:
        """Waits until a worker may run an update. Returns its number, and what runs it."""
        number = self._wait_for_number(worker, run)
        return None if number is None else (number, partial(self._workers[worker], number))

    def _wait_for_number(self, worker: str, run: int) -> int | None:
        """Waits until a worker may run an update. Returns the update's number; None at the end."""
        with self._changed:
            while True:
                if self._running != run or worker in self._errors:
                    return None
                number = self._take_number(worker)
                if number is not None:
                    self._in_flight[worker] = number
                    return number
                self._changed.wait()

    def _take_number(self, worker: str) -> int | None:
        """Returns the number of the worker's next update; None before a pause or the end."""
        if self._first.get(worker, self._limit + 1) <= self._limit:
            return self._first.pop(worker)
        if self._to_repeat and self._to_repeat[0] <= self._limit:
            return self._to_repeat.pop(0)
        if self._next > self._limit:
            return None
        number = self._next
        self._next += 1
        self._plan_pauses(number, number)
        return number

    def _wait_for_outcome(self, step: int) -> _UpdateOutcome:
        """Waits for the `step`-th update that ends, and returns it. Removes workers that fail."""
        del step
        while True:
            raise_if_interrupted()
            passed = time.monotonic() - self._last_check
            if passed >= _ASK_SECONDS:
                self._last_check += passed
                for worker, why in self._lost_workers().items():
                    self._remove_worker(worker, ConnectionError(why))
                with self._changed:
                    in_flight = dict(self._in_flight)
                for worker, seconds in self._stuck.find_stuck_workers(
                    in_flight, min(passed, 2 * _ASK_SECONDS)
                ).items():
                    self._handle_stuck(worker, seconds)
            try:
                outcome = self._outcomes.get(timeout=_ASK_SECONDS)
            except queue.Empty:
                continue
            if outcome.error is None:
                return outcome
            self._handle_failure(outcome.worker, outcome.error)

    def _handle_stuck(self, worker: str, seconds: float) -> None:
        doing = (
            ProcessActivity.INPUT
            if worker in self._stuck.input_wait_by_worker()
            else ProcessActivity.STEP
        )
        reason = f"no progress for {seconds:.0f} s (--stall_timeout), waits for {doing.value}"
        self._remove_worker(worker, TimeoutError(reason))

    def _handle_failure(self, worker: str, error: Exception) -> None:
        if isinstance(error, BenchmarkError):
            raise error
        self._remove_worker(worker, error)

    def _remove_worker(self, worker: str, error: Exception) -> None:
        with self._changed:
            if worker in self._errors:
                return
            self._errors[worker] = error
            for number in (self._in_flight.pop(worker, None), self._first.pop(worker, None)):
                if number is not None:
                    self._to_repeat = sorted([*self._to_repeat, number])
            self._changed.notify_all()
        if not self.remaining_workers:
            reasons = "; ".join(
                f"{name}: {informative_line(why)}" for name, why in self._errors.items()
            )
            raise BenchmarkError(f"all workers are lost: {reasons}") from error
        self._report_lost(worker, error)


class CoordinatedLoop(AsyncLoop[Values]):
    """Passes updates to a coordinator of tf.distribute, which runs each update on an idle worker.

    The coordinator repeats updates of lost workers on other workers, so these updates do not fail.
    Any other failure ends the loop.

    With one worker, the coordinator runs updates in the order in which they were scheduled, so each
    update is reported with its own number, even if the thread of a later one is faster. With
    several workers, updates have no other order than that of their ends.

    Args:
      slots: functions by name. Each function schedules the update with the given number, and
        returns a function that waits for the values. Updates are scheduled in the order of their
        numbers.
      lost, lost_workers: see `AsyncLoop`; their arguments and results are workers.
      stuck: see `AsyncLoop`. It detects stuck slots, but its `input_wait_by_worker` returns
        seconds by worker.
    """

    def __init__(
        self,
        slots: Mapping[str, Callable[[int], Callable[[], Values]]],
        workers: Sequence[str],
        lost: Callable[[str, Exception], None],
        lost_workers: Callable[[], Mapping[str, str]] = dict,
        stuck: StuckWorkerDetector | None = None,
    ) -> None:
        super().__init__(slots, lost, lost_workers, stuck)
        self._remaining_workers = list(workers)
        self._in_order = len(workers) == 1
        self._scheduling = threading.Lock()
        self._early: dict[int, _UpdateOutcome] = {}
        self._ends: deque[StepTime] = deque()

    def _start_update(self, worker: str, run: int) -> tuple[int, Callable[[], Values]] | None:
        """Schedules the next update. Returns its number, and what waits for it."""
        with self._scheduling:
            number = self._wait_for_number(worker, run)
            return None if number is None else (number, self._workers[worker](number))

    def _wait_for_outcome(self, step: int) -> _UpdateOutcome:
        """Waits for the update with the number `step` if there is one worker, else for any.

        The times of ends are in the order in which results arrived: if a later update's result was
        first, the earlier update had ended before.
        """
        if not self._in_order:
            return super()._wait_for_outcome(step)
        while step not in self._early:
            outcome = super()._wait_for_outcome(step)
            self._early[outcome.number] = outcome
            self._ends.append(outcome.end)
        return self._early.pop(step)._replace(end=self._ends.popleft())

    def _handle_stuck(self, worker: str, seconds: float) -> None:
        """Ends the loop after a stuck update, because only TensorFlow knows its worker."""
        waits = [
            name
            for name, waited in self._stuck.input_wait_by_worker().items()
            if waited > seconds / 2
        ]
        suspects = ", ".join(waits) or f"one of {', '.join(self._remaining_workers)}"
        doing = ProcessActivity.INPUT if waits else ProcessActivity.STEP
        reason = f"no progress for {seconds:.0f} s (--stall_timeout), waits for {doing.value}"
        error = BenchmarkError(f"stuck: {suspects}: {reason}")
        self._cancel_updates(error)
        raise error

    def _handle_failure(self, worker: str, error: Exception) -> None:
        del worker  # `worker` is only a slot: any worker may run its update.
        self._cancel_updates(error)
        raise error

    def _cancel_updates(self, error: Exception) -> None:
        """Stops waiting for updates in flight, which may never end."""
        with self._changed:
            self._errors = dict.fromkeys(self._workers, error)

    def _remove_worker(self, worker: str, error: Exception) -> None:
        if worker not in self._remaining_workers:
            return
        self._remaining_workers.remove(worker)
        if not self._remaining_workers:
            self._cancel_updates(error)
            raise BenchmarkError(
                f"all workers are lost: {worker}: {informative_line(error)}"
            ) from error
        self._report_lost(worker, error)
