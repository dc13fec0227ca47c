"""Runs the warm-up and the timed loop of a training, of forward passes, or of reading an input."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from cnnbench.base.interrupts import raise_if_interrupted
from cnnbench.base.stats import FEWEST_FOR_P99, RunningSpeed
from cnnbench.base.steady_state import find_steady_state
from cnnbench.base.text import format_duration
from cnnbench.data.copies import ReadCallbacks
from cnnbench.data.prefetch import use_separate_tf_executor
from cnnbench.errors import NonFiniteLossError, informative_line
from cnnbench.machine.facts import with_loaded_libraries
from cnnbench.records.endings import ENDINGS, LoopProgress
from cnnbench.records.measurements import StepSeries
from cnnbench.run.driver.console import DisplayInterval
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.observers.observer import (
    Observer,
    PausingObserver,
    SuspendingObserver,
    TrainingState,
)
from cnnbench.run.driver.shared_interrupts import SharedInterrupts
from cnnbench.run.driver.step_loop import (
    AsyncLoop,
    CoordinatedLoop,
    LoopTimer,
    StepLoop,
    StepTime,
    StuckWorkerDetector,
)
from cnnbench.run.driver.work import LoopWork
from cnnbench.run.runtime.progress import ProcessActivity
from cnnbench.run.step.train_step import CoordinatedStep, StepResult, TrainStep

if TYPE_CHECKING:
    from cnnbench.run.driver.observers.profiles import Probe

# A warm-up without a progress bar prints a line every 60 seconds, to show that it has not stalled.
_SILENT_SECONDS = 60.0

_INTERRUPTED = 1.0 + len(ENDINGS)
"""Number with which an interrupted worker requests the end of the loop.

The chief requests the end by the position of a flag in ENDINGS, from 1. The requests of all workers
are added up. Only the chief sends positions of flags, so the sum is at least `_INTERRUPTED` if any
worker was interrupted.
"""


class StepValues(NamedTuple):
    """The results of one step, on the host.

    Attributes:
      metrics: metrics of the model, in its order; empty if they are not computed.
      skipped, staleness: see `StepResult`.
      worker: the worker that ran the update; "" if all workers contribute to each update.
      stop: see `StepResult`; 0 if all towers are part of one step.
    """

    loss: float
    metrics: tuple[float, ...]
    skipped: bool
    stop: float = 0.0
    staleness: int | None = None
    worker: str = ""


_Loop: TypeAlias = "StepLoop[StepResult, Sequence[StepValues]] | AsyncLoop[Sequence[StepValues]]"


class Training:
    """Runs the steps of one run, and fills the measurements of the run.

    Args:
      interrupts: interrupts of all workers that run their own steps.
      global_step: number of training steps before this run; above 0 after a restore. Warm-up steps
        are included, because they train.
      probes: profilers of warm-up steps.
      observers: called at the events of the training, in this order.

    Attributes:
      loop_seconds: time of the timed loop; 0 before its end.
      global_step: number of training steps so far.
    """

    def __init__(
        self,
        run: RunContext,
        work: LoopWork,
        interrupts: SharedInterrupts,
        *,
        global_step: int = 0,
        probes: Sequence[Probe] = (),
        observers: Sequence[Observer] = (),
    ) -> None:
        self._run, self._work = run, work
        self._group = work.worker_group
        self._interrupts = interrupts
        self._probes = probes
        self._observers = observers
        self._pausing = [each for each in observers if isinstance(each, PausingObserver)]
        self._suspending = [each for each in observers if isinstance(each, SuspendingObserver)]
        self._together = run.plan.params.steps_per_execution
        self._speed = RunningSpeed(run.plan.length.global_batch, run.plan.params.display_perf_ewma)
        self._display = DisplayInterval(run.plan.params.display_every)
        self.loop_seconds = 0.0
        self._timer = LoopTimer()
        self.global_step = self._steps_before_loop = global_step
        self._resumed = global_step > 0
        self._steps = 0
        self._last = StepValues(0.0, (), False)
        # How long the job had waited for input when each execution was launched. Empty unless each
        # worker runs its own step.
        self._waits: list[float] = []
        self._silent_since = time.monotonic()
        self._stopped_early = False
        # Position in ENDINGS (from 1) of the flag that has ended the loop early; 0 if none has.
        self._ending = 0
        self._limits = [
            (position, value, ending)
            for position, (flag, ending) in enumerate(ENDINGS.items(), 1)
            if (value := getattr(run.plan.params, flag)) is not None
        ]

    def run(self, steps: int) -> float | None:
        """Runs the warm-up and `steps` timed steps, with output, checkpoints and evaluations.

        Returns:
          Images/sec of the whole timed loop. None if no total is printed: without steps, or with
          evaluations.
        """
        run, membership = self._run, self._run.membership
        with self._interrupts.sharing_interrupts():
            if not steps:  # The checkpoint already contains the last step.
                return self._finish(0.0, steps)
            loop = self._make_loop()
            for observer in self._observers:
                observer.training_begins(self.global_step, steps)
            self._run_warm_up(loop)
            if self._stopped_early:
                return self._finish(0.0, 0)
            plan = run.plan
            run.console.print_titles(plan.params.loss_type_to_report, plan.step_metrics)
            run.progress_line.start("training", steps, plan.length.global_batch)
            waited = self._input_wait_seconds()
            self._waits = [waited]
            self._steps = steps
            with membership.marking_activity(ProcessActivity.OTHERS):
                # Waits until all processes that share time slices with this process have warmed up.
                membership.turns.wait_for_next_slice()
            if membership.turns.is_interleaved:
                run.measurements.begin_time_slice(membership.turns.seconds)
            with run.watch:
                self._steps_before_loop = self.global_step
                self._timer = LoopTimer()
                self._display = DisplayInterval(plan.params.display_every)
                try:
                    steps = loop.run(steps, self._record_steps, self._check_pause, self._pause)
                    # In a job of several processes, sync_devices would wait for lost processes,
                    # too.
                    if self._group is None and not self._work.workers:
                        tf.test.experimental.sync_devices()
                finally:
                    spent = self._timer.elapsed()
                    figures = spent.record_fields()
                    if self._group is None:
                        figures["input_wait_seconds"] = self._input_wait_seconds() - waited
                    run.measurements.update_record("measured", **figures)
                    run.progress_line.finish()
            self.loop_seconds = spent.wall
            self._record_input_wait(spent.wall)
            if self._work.lag and not plan.work.trains and self._together == 1:
                self._measure_latency()
            membership.activity = ProcessActivity.END
            with membership.marking_activity(ProcessActivity.OTHERS):
                membership.turns.wait_for_next_slice(steps_left=False)
            return self._finish(spent.wall, steps)

    def _measure_latency(self) -> None:
        """Times single batches of a forward-only run, because its timed steps overlap on a GPU."""
        latencies, progress = list[float](), self._run.progress_line
        batches = min(len(self._run.measurements.timed.seconds), FEWEST_FOR_P99)

        def after_latency_step(step: int, spent: StepTime, values: Sequence[StepValues]) -> None:
            self._obey_stop(values[-1])
            latencies.append(spent.seconds)
            progress.update(step)

        progress.start("latency", batches)
        try:
            StepLoop(self._launch_steps, self._read_execution, 0).run(batches, after_latency_step)
        finally:
            self._run.measurements.update_record(latency_seconds=tuple(latencies))
            progress.finish()

    def _input_wait_seconds(self) -> float:
        """Returns the seconds for which steps have waited for input; the mean of async workers."""
        if not self._work.workers:
            return self._work.inputs.wait_seconds
        return fmean(step.inputs.wait_seconds for step in self._work.workers.values())

    def _record_input_wait(self, loop_seconds: float) -> None:
        """Records how long the job has waited for input, if every worker runs its own step.

        A worker that has its batch early waits for the other workers in the all-reduce of the step.
        So each step has waited as long as the worker that has waited longest.
        """
        if self._group is None:
            return
        own = np.diff(self._waits).tobytes()
        by_worker = map(np.frombuffer, self._group.gather_bytes(own))
        waited = min(float(np.max([*by_worker], axis=0).sum()), loop_seconds)
        self._run.measurements.update_record("measured", input_wait_seconds=waited)

    def _make_loop(self) -> _Loop:
        steps, place = self._work.workers, self._run.plan.place
        if not steps:
            return StepLoop(
                self._launch_steps, self._read_execution, self._work.lag, self._together
            )
        names = [str(worker) for worker in place.job.workers]
        lost_tasks = self._run.membership.lost_tasks

        def input_wait_by_worker() -> dict[str, float]:
            return {
                names[shard]: seconds
                for shard, seconds in self._work.inputs.seconds_waiting_by_shard().items()
            }

        stuck = StuckWorkerDetector(self._run.plan.params.stall_timeout, input_wait_by_worker)
        if place.coordinated:
            slots = {
                name: partial(self._schedule_update, step)
                for name, step in steps.items()
                if isinstance(step, CoordinatedStep)
            }
            return CoordinatedLoop(slots, names, self._note_lost_worker, lost_tasks, stuck)
        works = {name: partial(self._run_update, name, step) for name, step in steps.items()}
        return AsyncLoop(
            works, self._note_lost_worker, lost_tasks, stuck, begin=use_separate_tf_executor
        )

    def _run_update(self, worker: str, step: TrainStep, number: int) -> tuple[StepValues, ...]:
        """Runs one update of an asynchronous worker, in the worker's thread."""
        return (self._step_values(step(self._rate_of_update(number)))._replace(worker=worker),)

    def _schedule_update(
        self, step: CoordinatedStep, number: int
    ) -> Callable[[], tuple[StepValues, ...]]:
        """Schedules one update. Returns a function that waits for its values."""
        finish = step.schedule(self._rate_of_update(number))
        return lambda: (self._step_values(finish()),)

    def _rate_of_update(self, number: int) -> float:
        """Returns the learning rate of the asynchronous update with this number, from 1."""
        return self._run.plan.rates.schedule(self._steps_before_loop + number - 1)

    def _note_lost_worker(self, worker: str, error: Exception) -> None:
        self._run.measurements.lost_workers.append(worker)
        self._run.messages.warning(
            f"{worker} is lost; the other workers continue: {informative_line(error)}", "workers"
        )

    def _run_warm_up(self, loop: _Loop) -> None:
        run, measurements = self._run, self._run.measurements
        warm_up = run.plan.length.warm_up
        run.console.lines("Running warm up")
        label = "warm-up, at most" if warm_up.auto else "warm-up"
        run.progress_line.start(label, warm_up.most)
        steady, checks = False, warm_up.steadiness_check_steps

        # The loop pauses before and after each profiled execution, to start and stop the profiler.
        length = self._together
        begins = [(step - 1) // length * length for step, _ in self._probes]
        edges = {edge for begin in begins for edge in (begin, begin + length)}

        def pause(step: int) -> bool:
            nonlocal steady
            probing.close()
            if step and self._check_pause(step) and self._pause(step):
                return True
            for begin, (_, probe) in zip(begins, self._probes, strict=True):
                if begin == step:
                    probing.enter_context(probe)
            if step in checks:
                steady = find_steady_state(measurements.warmup.seconds).reached
                if self._group is not None:
                    steady = self._group.broadcast_chief_bool(steady)
            return steady

        def pause_due(step: int) -> bool:
            return step in checks or step in edges or self._check_pause(step)

        activity = ProcessActivity.OTHERS if self._work.workers else ProcessActivity.STEP
        run.membership.activity = activity
        with ExitStack() as probing:
            pause(0)
            loop.run(warm_up.most, self._record_warmup, pause_due, pause)
        status = "steady" if steady else "limit"
        measurements.update_record(
            warmup_status=status if warm_up.auto else "fixed",
            environment=with_loaded_libraries(measurements.parts.environment),
        )
        measurements.publish_to_parent()
        run.progress_line.finish()
        run.console.lines("Done warm up")

    def _launch_steps(self) -> StepResult:
        """Launches the next execution (one call for one or more steps), with learning rates."""
        group = self._group
        stop = float(self._reached_ending()) if group is not None and group.is_chief else 0.0
        if self._interrupts.pending:
            stop = _INTERRUPTED
        if stop:
            self._work.request_stop(stop)
        steps = range(self.global_step, self.global_step + self._together)
        result = self._work.step(*map(self._run.plan.rates.schedule, steps))
        self._waits.append(self._work.inputs.wait_seconds)
        self.global_step = steps.stop
        return result

    def _record_warmup(self, step: int, spent: StepTime, values: Sequence[StepValues]) -> None:
        """Adds warm-up steps to the measurements, checks their results, and shows the progress."""
        most = self._run.plan.length.warm_up.most
        self._record_execution(self._run.measurements.warmup, spent.seconds, values)
        # Warm-up steps are numbered up to -1 and timed steps from 1, so that the sign of the number
        # shows whether the step is a warm-up step.
        self._check_results(step - 1 - most, values)
        shown = self._run.progress_line.update(step)
        if not shown and time.monotonic() >= self._silent_since + _SILENT_SECONDS:
            remaining = format_duration((most - step) * spent.seconds)
            self._run.messages.notice(f"warm-up step {step} of {most}, {remaining} left")
            self._silent_since = time.monotonic()

    def _record_steps(self, step: int, spent: StepTime, values: Sequence[StepValues]) -> None:
        """Adds timed steps to the measurements, checks their results, and shows the speed."""
        measurements, last = self._run.measurements, values[-1]
        if last.worker:
            measurements.updates.append((last.worker, last.staleness or 0))
        self._record_execution(measurements.timed, spent.seconds, values, spent.cpu_seconds)
        self._speed.add(spent.seconds)
        self._check_results(step, values)
        if self._display.advance_if_due(step) or step == self._together:
            speed = self._speed.current()
            self._run.console.row(step, speed, last.loss, last.metrics)
            for observer in self._observers:
                observer.table_row_printed(step, speed.mean, self._metrics_by_name())
        self._run.progress_line.update(step)

    def _record_execution(
        self,
        series: StepSeries,
        seconds: float,
        values: Sequence[StepValues],
        cpu_seconds: float | None = None,
    ) -> None:
        """Adds the steps of an execution to `series`, with their mean times."""
        measurements = self._run.measurements
        if measurements.parts.startup_seconds.first_step is None:
            first_step = seconds * self._together
            measurements.update_record("startup_seconds", first_step=first_step)
        losses, skipped = zip(*((each.loss, each.skipped) for each in values), strict=True)
        series.add_execution(seconds, *losses, skipped=skipped, cpu_seconds=cpu_seconds)

    def _check_results(self, step: int, values: Sequence[StepValues]) -> None:
        """Raises an error after an interrupt, or after steps with a loss that is not finite."""
        self._last = values[-1]
        # `_launch_steps` has already counted synchronous steps, so only asynchronous updates are
        # counted here.
        if self._last.worker:
            self.global_step += 1
        self._obey_stop(self._last)
        warm_up = self._run.plan.length.warm_up.most
        first = -warm_up or 1
        for number, step_values in enumerate(values, step - len(values) + 1):
            if not math.isfinite(step_values.loss) and not self._run.plan.params.allow_nonfinite:
                advice = self._work.loss_advice(updated=self._resumed or number > first)
                raise NonFiniteLossError(number, step_values.loss, warm_up, advice)

    def _obey_stop(self, values: StepValues) -> None:
        if values.stop >= _INTERRUPTED:
            raise KeyboardInterrupt
        self._ending = self._ending or int(values.stop)
        raise_if_interrupted()

    def _reached_ending(self) -> int:
        """Returns the position in ENDINGS (from 1) of a flag that ends the loop now, or 0.

        Uses the clock of this process.
        """
        # Most runs have no flag that ends the loop early. They skip the reading of the clocks.
        if not self._limits or not self._steps:
            return 0
        loop = LoopProgress(self._timer.elapsed().wall, self._last.loss)
        limits = self._limits
        reached = (position for position, value, end in limits if end.is_reached(value, loop))
        return next(reached, 0)

    def _check_pause(self, step: int) -> bool:
        """Returns whether to pause after this step of the warm-up or of the timed loop."""
        executed = self._executed_steps(step)
        # If each worker runs its own step, the chief's request to end arrives with the result of a
        # step.
        if self._group is None:
            self._ending = self._ending or self._reached_ending()
        return (
            (self._ending > 0 and step < self._steps)
            or (step < self._steps and self._run.membership.turns.is_slice_over())
            or any(any(map(each.needs_pause_after, executed)) for each in self._pausing)
            or any(any(map(each.needs_suspension_after, executed)) for each in self._suspending)
        )

    def _executed_steps(self, step: int) -> range:
        """Returns the global steps of the execution that ends with step `step` of this loop."""
        last = self._steps_before_loop + step
        return range(last - self._together + 1, last + 1)

    def _pause(self, step: int) -> bool:
        """Calls the observers that are due after `step`, and waits for the next time slice.

        Returns whether to end the loop.
        """
        executed = self._executed_steps(step)
        with self._run.membership.marking_activity(ProcessActivity.PAUSE):
            for observer in self._pausing:
                if any(map(observer.needs_pause_after, executed)):
                    state = TrainingState(
                        self.global_step,
                        self._run.plan.rates.schedule(self.global_step - 1),
                        self._last.loss,
                        self._metrics_by_name(),
                        self._speed.current().mean if self._steps else None,
                    )
                    observer.training_paused(state)
            if self._ending and step < self._steps:
                flag = [*ENDINGS][self._ending - 1]
                self._run.measurements.update_record(ended_by=flag)
                self._run.messages.notice(
                    f"--{flag} ended the timed loop after {step} of {self._steps} steps"
                )
                return True
            if step < self._steps and self._run.membership.turns.is_slice_over():
                self._wait_for_slice()
            for observer in self._suspending:
                if any(map(observer.needs_suspension_after, executed)):
                    loop_seconds = self._timer.elapsed().wall if self._steps else None
                    with self._timer.excluded():
                        self._stopped_early |= observer.training_suspended(
                            self.global_step, loop_seconds, self._timer
                        )
            return self._stopped_early

    def _wait_for_slice(self) -> None:
        """Waits while the interleaved processes run their steps. The wait is not timed."""
        membership = self._run.membership
        others = membership.marking_activity(ProcessActivity.OTHERS)
        with self._timer.excluded(), self._run.watch.suspended(), others:
            waited = membership.turns.wait_for_next_slice()
        self._run.measurements.begin_time_slice(membership.turns.seconds, *waited)

    def _metrics_by_name(self) -> dict[str, float]:
        """Metrics of the last step; empty if the step computes none."""
        return dict(zip(self._run.plan.step_metrics, self._last.metrics, strict=False))

    def _finish(self, elapsed: float, steps: int) -> float | None:
        """Calls the observers after the last step. Returns the result of `run`."""
        plan = self._run.plan
        for suspending in self._suspending:
            suspending.steps_ended(self.global_step, elapsed, self._timer)
        for observer in self._observers:
            observer.training_stopped(self.global_step)
        if not steps:
            return None
        total = steps * plan.length.global_batch / elapsed
        for observer in self._observers:
            observer.training_ended(self.global_step, steps, total, self._speed.current().mean)
        return None if plan.work.evaluates else total

    def _read_execution(self, result: StepResult, events: ReadCallbacks) -> list[StepValues]:
        """Waits for the end of an execution, and returns the values of its steps."""
        on_host = self._work.step.copy_result_to_host(result, events)
        if self._together == 1:
            return [self._step_values(on_host)]
        parts = [None if x is None else np.asarray(x) for x in tf.nest.flatten(on_host)]
        rows = ([None if x is None else x[n] for x in parts] for n in range(self._together))
        return [self._step_values(tf.nest.pack_sequence_as(on_host, row)) for row in rows]

    def _step_values(self, result: StepResult) -> StepValues:
        plan, loss = self._run.plan, float(result.loss)
        if not plan.work.trains and math.isfinite(loss):
            loss = 0.0  # There is no loss; tf_cnn_benchmarks prints 0, too.
        names = plan.step_metrics if result.metrics else ()
        return StepValues(
            loss=loss,
            metrics=tuple(float(result.metrics[name]) for name in names),
            skipped=result.skipped is not None and bool(result.skipped),
            stop=0.0 if result.stop is None else float(result.stop),
            staleness=None if result.staleness is None else int(result.staleness),
            worker="" if result.worker is None else str(plan.place.job.workers[int(result.worker)]),
        )
