"""The training scenario: warm-up, timed loop, evaluations and checkpoints in between."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from signal import SIGINT, SIGTERM
from statistics import fmean
from types import FrameType
from typing import NamedTuple, Protocol

import tensorflow as tf

from cnnbench.base.interrupts import interrupt
from cnnbench.base.stats.descriptive import FEWEST_FOR_P99, RunningSpeed, total_images_per_sec
from cnnbench.base.text.progress import Progress
from cnnbench.data.source import InputSource
from cnnbench.errors import NonFiniteLossError, first_line
from cnnbench.flags import Params
from cnnbench.records.measurements import Measurements
from cnnbench.run.driver.async_loop import AsyncLoop, CoordinatedLoop, Stuck
from cnnbench.run.driver.checkpoints import Checkpoints
from cnnbench.run.driver.console import Console, Phase
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.host_metrics import Evaluated, Results
from cnnbench.run.driver.loop_time import LoopTimer
from cnnbench.run.driver.observer import Moment, Observer
from cnnbench.run.driver.plan import Plan
from cnnbench.run.driver.probes import Probe
from cnnbench.run.driver.step_timer import StepLoop, StepTime
from cnnbench.run.driver.target import TargetWatch
from cnnbench.run.runtime.activity import Activity, Doing
from cnnbench.run.runtime.turns import Turns
from cnnbench.run.step.loss_scale import LossScale
from cnnbench.run.step.train_step import StepResult
from cnnbench.variable_mgr.worker_group import WorkerGroup


class Values(NamedTuple):
    """A step's results on the host.

    Attributes:
      loss: of the step.
      metrics: the model's, in its order, where they are computed.
      skipped: see `StepResult`.
      staleness: see `StepResult`.
      worker: name of the one that made the update; "" where all take part in each.
      stop: whether a worker of the job was interrupted.
    """

    loss: float
    metrics: tuple[float, ...]
    skipped: bool
    stop: bool = False
    staleness: int | None = None
    worker: str = ""


class Step(Protocol):
    """What `Training` asks of a step that it launches; see `TrainStep`."""

    @property
    def loss_scale(self) -> LossScale:
        """See `TrainStep.loss_scale`."""
        ...

    def set_learning_rate(self, rate: float) -> None:
        """See `TrainStep.set_learning_rate`."""
        ...

    def request_stop(self) -> None:
        """See `TrainStep.request_stop`."""
        ...

    def __call__(self) -> StepResult:
        """See `TrainStep.__call__`."""
        ...

    def on_host(self, result: StepResult) -> StepResult:
        """See `TrainStep.on_host`."""
        ...


class WorkerStep(Protocol):
    """What `Training` asks of the step of one worker that does not wait for others."""

    @property
    def input_wait_seconds(self) -> float:
        """See `TrainStep.input_wait_seconds`."""
        ...

    def set_learning_rate(self, rate: float) -> None:
        """See `TrainStep.set_learning_rate`."""
        ...

    def __call__(self) -> StepResult:
        """See `TrainStep.__call__`."""
        ...


class Training:
    """Runs one training (or forward-only) job and fills its measurements.

    Args:
      params: of output, checkpoints and conditions to stop.
      plan: how many steps of what.
      step: the traced step; with `workers` that of the first of them.
      inputs: for the time spent waiting for them.
      learning_rate: rate of each global step (from 0).
      console, progress: where lines and progress go.
      measurements: filled as steps are done.
      checkpoints: None when nothing is to be saved.
      evaluator, results: None unless the plan has evaluations.
      global_step: of the first step to run; above 0 after a restore. Warm-up steps
        train, so they count.
      around_loop: entered before the timed loop and left after it.
      lag: see StepLoop.
      clock: of step times, in seconds.
      probes: look at steps of the warm-up.
      observers: hear of pauses and evaluations.
      workers: those of a job that each run a step of their own; None for others.
      updaters: steps of workers that do not wait for one another, by name; empty where they do.
      warn: told of a worker that is lost.
      gone: see `AsyncLoop`.
      turns: of this process, where others step in turn with it.
      suspended: entered while others have their turns within the timed loop.
      activity: told what the loop is doing between steps.
    """

    def __init__(
        self,
        params: Params,
        plan: Plan,
        step: Step,
        inputs: InputSource,
        learning_rate: Callable[[int], float],
        console: Console,
        progress: Progress,
        measurements: Measurements,
        checkpoints: Checkpoints | None,
        evaluator: Evaluator | None,
        results: Results | None,
        global_step: int = 0,
        around_loop: AbstractContextManager[object] | None = None,
        lag: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        probes: Sequence[Probe] = (),
        observers: Sequence[Observer] = (),
        workers: WorkerGroup | None = None,
        updaters: Mapping[str, WorkerStep] | None = None,
        warn: Callable[[str], None] = lambda line: None,
        gone: Callable[[], Mapping[str, str]] = dict,
        turns: Turns | None = None,
        suspended: Callable[[], AbstractContextManager[object]] = nullcontext,
        activity: Activity | None = None,
    ) -> None:
        self._activity = Activity() if activity is None else activity
        self._turns = Turns() if turns is None else turns
        self._suspended = suspended
        self._steps = 0
        self._workers = workers
        self._interrupted = False
        self._params = params
        self._plan = plan
        self._step = step
        self._inputs = inputs
        self._learning_rate = learning_rate
        self._console = console
        self._progress = progress
        self._measurements = measurements
        self._checkpoints = checkpoints
        self._evaluator = evaluator
        self._results = results
        self.global_step = global_step
        self._around_loop = nullcontext() if around_loop is None else around_loop
        self._lag = lag
        self._clock = clock
        self._probes = probes
        self._observers = observers
        self._updaters = dict(updaters or {})
        self._warn = warn
        self._gone = gone
        self._speed = RunningSpeed(plan.global_batch, params.display_perf_ewma)
        self._save_directory = params.train_dir if plan.trains else None
        self._before_loop = global_step
        self._timer = LoopTimer()
        self._last_save = time.monotonic()
        self._target = TargetWatch(plan.target, late=params.collect_eval_results_async)
        self._stopped_early = False
        self._last = Values(0.0, (), False)

    def run(self, steps: int) -> float | None:
        """Warms up, runs `steps` timed steps, prints, saves and evaluates.

        Returns:
          Images/sec of the timed loop, everything in it included; None when evaluations
          interrupted it, whose report ends without a total, and without steps.

        Raises:
          NonFiniteLossError: unless allowed.
          DataError: an input record that cannot be used.
        """
        self._measurements.loss_scale_start = self._step.loss_scale.value
        try:
            with self._interrupts_shared():
                return self._run(steps)
        finally:
            self._measurements.loss_scale_end = self._step.loss_scale.value

    def _run(self, steps: int) -> float | None:
        if not steps:
            self._nothing_left()
            return None
        loop = self._make_loop()
        for observer in self._observers:
            observer.begins(self.global_step, steps)
        self._warm_up(loop)
        params = self._params
        shown = params.print_training_accuracy or params.forward_only
        self._console.table_header(
            params.loss_type_to_report, self._plan.model.metric_names if shown else ()
        )
        self._progress.start("training", steps, self._plan.global_batch)
        waited = self._waited()
        self._begin_turns(steps)
        with self._around_loop:
            self._before_loop = self.global_step
            self._timer = LoopTimer()
            try:
                loop.run(steps, self._step_done, self._pause_due, self._pause)
                # Of several processes TensorFlow would look for a master, or for one that is lost.
                if self._workers is None and not self._updaters:
                    tf.test.experimental.sync_devices()
            finally:
                spent = self._timer.loop()
                self._measurements.set_loop_time(*spent)
                self._measurements.input_wait_seconds = self._waited() - waited
                self._progress.finish()
        self._measure_latency()
        self._activity.doing = Doing.END
        with self._activity.during(Doing.OTHERS):
            self._turns.wait(steps_left=False)
        return self._finish(spent.wall)

    def _measure_latency(self) -> None:
        """Runs batches of a forward-only run one at a time, where others were launched ahead."""
        if self._plan.trains or not self._lag:
            return
        batches = min(self._measurements.steps, FEWEST_FOR_P99)

        def done(step: int, spent: StepTime, values: Values) -> None:
            self._check_stop(values)
            self._measurements.add_latency(spent.seconds)
            self._progress.update(step)

        self._progress.start("latency", batches)
        try:
            StepLoop(self._launch, self._read, 0, self._clock).run(batches, done)
        finally:
            self._progress.finish()

    def _begin_turns(self, steps: int) -> None:
        """Waits until the others are warm, too."""
        self._steps = steps
        with self._activity.during(Doing.OTHERS):
            self._turns.wait()
        if self._turns.taken:
            self._measurements.begin_turn(self._turns.seconds)

    def _waited(self) -> float:
        """Seconds spent waiting for input; of workers that wait each by itself, their mean."""
        if not self._updaters:
            return self._inputs.wait_seconds
        return fmean(step.input_wait_seconds for step in self._updaters.values())

    def _make_loop(self) -> StepLoop[StepResult, Values] | AsyncLoop[Values]:
        if not self._updaters:
            return StepLoop(self._launch, self._read, self._lag, self._clock)
        works = {name: partial(self._update, name, step) for name, step in self._updaters.items()}
        names = [str(worker) for worker in self._plan.job.workers]

        def waits() -> dict[str, float]:
            return {names[shard]: seconds for shard, seconds in self._inputs.waiting().items()}

        stuck = Stuck(self._params.stall_timeout, waits)
        if self._plan.coordinated:
            return CoordinatedLoop(works, names, self._lost, self._gone, self._clock, stuck)
        return AsyncLoop(works, self._lost, self._gone, self._clock, stuck)

    def _update(self, worker: str, step: WorkerStep, number: int) -> Values:
        """One update by a worker that does not wait for others; in a thread of its own."""
        step.set_learning_rate(self._learning_rate(self._before_loop + number - 1))
        values = self._values(step())
        return values if values.worker else values._replace(worker=worker)

    def _lost(self, worker: str, error: Exception) -> None:
        self._measurements.lose_worker(worker)
        self._warn(f"{worker} is lost, the others go on: {first_line(error)}")

    def _warm_up(self, loop: StepLoop[StepResult, Values] | AsyncLoop[Values]) -> None:
        warm_up, measurements = self._plan.warm_up, self._measurements
        self._console.phase(Phase.WARM_UP)
        self._progress.start("warm-up, at most" if warm_up.auto else "warm-up", warm_up.most)
        steady = False

        # A probe is entered in the pause before its step and left in the pause after it.
        edges = {step for probe in self._probes for step in (probe.step - 1, probe.step)}

        def pause(step: int) -> bool:
            nonlocal steady
            looking.close()
            for probe in self._probes:
                if probe.step == step + 1:
                    looking.enter_context(probe.look)
            if step in warm_up.checks:
                steady = warm_up.steady(measurements.warmup_step_seconds)
                if self._workers is not None:
                    steady = self._workers.decided(steady)
            return steady

        self._activity.doing = Doing.OTHERS if self._updaters else Doing.STEP
        with ExitStack() as looking:
            pause(0)
            loop.run(warm_up.most, self._warmup_done, (warm_up.checks | edges).__contains__, pause)
        measurements.warmup_status = warm_up.status(steady)
        self._progress.finish()
        self._console.phase(Phase.WARM_UP_DONE)

    @contextmanager
    def _interrupts_shared(self) -> Iterator[None]:
        """Ctrl-C in one worker ends all of them, after the same step; a second one does at once."""
        if self._workers is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def handler(number: int, frame: FrameType | None) -> None:
            if self._interrupted:
                interrupt(number, frame)
            self._interrupted = True

        before = {number: signal.signal(number, handler) for number in (SIGINT, SIGTERM)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def _launch(self) -> StepResult:
        if self._interrupted:
            self._step.request_stop()
        self._step.set_learning_rate(self._learning_rate(self.global_step))
        result = self._step()
        self.global_step += 1
        return result

    def _warmup_done(self, step: int, spent: StepTime, values: Values) -> None:
        self._count(values)
        if step == 1:
            self._measurements.first_step_seconds = spent.seconds
        self._measurements.add_warmup_step(spent.seconds, values.loss, skipped=values.skipped)
        self._check_stop(values)
        # Numbered -W to -1, so that the first timed step is step 1; from the longest
        # warm-up possible where its length is found as it goes.
        self._check_loss(step - 1 - self._plan.warm_up.most, values.loss)
        self._progress.update(step)

    def _step_done(self, step: int, spent: StepTime, values: Values) -> None:
        self._count(values)
        if values.worker:
            self._measurements.add_update(values.worker, values.staleness or 0)
        if self._measurements.first_step_seconds is None:
            self._measurements.first_step_seconds = spent.seconds
        self._measurements.add_step(
            spent.seconds, values.loss, skipped=values.skipped, cpu_seconds=spent.cpu_seconds
        )
        self._speed.add(spent.seconds)
        self._last = values
        self._check_stop(values)
        self._check_loss(step, values.loss)
        if step == 1 or step % self._params.display_every == 0:
            speed = self._speed.current()
            self._console.row(step, speed, values.loss, values.metrics)
            for observer in self._observers:
                observer.displayed(self._before_loop + step, speed.mean)
        self._progress.update(step)

    def _check_stop(self, values: Values) -> None:
        if values.stop:
            raise KeyboardInterrupt

    def _count(self, values: Values) -> None:
        if values.worker:  # otherwise it was counted when it was launched
            self.global_step += 1

    def _check_loss(self, step: int, loss: float) -> None:
        if not math.isfinite(loss) and not self._params.allow_nonfinite:
            raise NonFiniteLossError(step, loss)

    def _pause_due(self, step: int) -> bool:
        return (
            step in self._plan.eval_steps
            or self._save_due(step)
            or (self._results is not None and self._results.ready)
            or self._turn_is_over(step)
            or any(observer.due(step) for observer in self._observers)
        )

    def _turn_is_over(self, step: int) -> bool:
        return step < self._steps and self._turns.due()

    def _let_others(self) -> None:
        """The turns of the others; they are in no step's time, and not in that of the loop."""
        with self._timer.away(), self._suspended(), self._activity.during(Doing.OTHERS):
            waited = self._turns.wait()
        self._measurements.begin_turn(self._turns.seconds, waited.seconds, waited.cpu_seconds)

    def _save_due(self, step: int) -> bool:
        if self._save_directory is None:
            return False
        if self._params.save_model_steps:
            return step % self._params.save_model_steps == 0
        if self._params.save_model_secs:
            return time.monotonic() - self._last_save >= self._params.save_model_secs
        return False

    def _pause(self, step: int) -> bool:
        with self._activity.during(Doing.PAUSE):
            return self._in_pause(step)

    def _in_pause(self, step: int) -> bool:
        if self._save_due(step):
            self._save()
        if self._results is not None:
            self._results.publish()
        due = [observer for observer in self._observers if observer.due(step)]
        if due:
            moment = self._moment()
            for observer in due:
                observer.paused(moment)
        if self._turn_is_over(step):
            self._let_others()
        if step not in self._plan.eval_steps:
            return False
        loop_seconds = self._timer.loop().wall
        with self._timer.away():
            if self._target_reached(loop_seconds):
                self._stopped_early = True
                return True
            self._console.phase(Phase.RESUMING)
            for observer in self._observers:
                observer.resuming(self.global_step)
            return False

    def _target_reached(self, loop_seconds: float) -> bool:
        """Evaluates, unless the evaluation before has reached the target; see `TargetWatch`."""
        if not self._target.reached_before():
            self._console.running_evaluation(self.global_step)
            if not self._target.reached(self._evaluate(loop_seconds)):
                return False
        model, target = self._plan.model, self._plan.target
        assert target is not None
        called = "accuracy" if target.metric == model.top_1_accuracy else target.metric
        self._console.stopping(target, called)
        return True

    def _evaluate(self, loop_seconds: float) -> Evaluated:
        """Evaluates after so many seconds of the timed loop."""
        assert self._evaluator is not None
        assert self._results is not None
        for observer in self._observers:
            observer.evaluating(self.global_step)
        with self._activity.during(Doing.EVALUATION):
            batches = self._plan.num_eval_batches
            found = self._evaluator.run(batches, self.global_step, self._console)
        wall_seconds = self._timer.wall_seconds
        self._results.add(found, loop_seconds=loop_seconds, wall_seconds=wall_seconds)
        return found

    def _moment(self) -> Moment:
        return Moment(
            self.global_step,
            self._learning_rate(self.global_step - 1),
            self._last.loss,
            dict(zip(self._plan.model.metric_names, self._last.metrics, strict=False)),
            self._speed.current().mean,
        )

    def _save(self) -> None:
        assert self._checkpoints is not None
        assert self._save_directory is not None
        with self._activity.during(Doing.CHECKPOINT):
            self._checkpoints.save(self._save_directory, self.global_step)
        self._last_save = time.monotonic()

    def _finish(self, elapsed: float) -> float | None:
        if self._evaluator is not None:
            self._console.phase(Phase.DONE)
            if not self._stopped_early:
                self._console.running_final_evaluation(self.global_step)
                self._evaluate(elapsed)
        if self._save_directory is not None:
            self._save()
        if self._results is not None:
            self._results.finish()
        images = self._measurements.steps * self._plan.global_batch
        total = total_images_per_sec(images, elapsed)
        for observer in self._observers:
            observer.ended(self.global_step, total)
        return None if self._evaluator is not None else total

    def _nothing_left(self) -> None:
        """Does what is due after the last step; a process that died there has made that step."""
        self._timer = LoopTimer()
        if self._evaluator is not None:
            self._console.phase(Phase.DONE)
            self._console.running_final_evaluation(self.global_step)
            self._evaluate(0.0)
        if self._results is not None:
            self._results.finish()

    def _read(self, result: StepResult) -> Values:
        """Waits for the step to be over."""
        return self._values(self._step.on_host(result))

    def _values(self, result: StepResult) -> Values:
        loss = float(result.loss.numpy())
        if not self._plan.trains and math.isfinite(loss):
            loss = 0.0  # what stands there is no loss, and tf_cnn_benchmarks prints 0
        skipped = result.skipped is not None and bool(result.skipped.numpy())
        names = self._plan.model.metric_names if result.metrics else ()
        stop = result.stop is not None and bool(result.stop.numpy())
        metrics = tuple(float(result.metrics[n].numpy()) for n in names)
        staleness = None if result.staleness is None else int(result.staleness.numpy())
        number = None if result.worker is None else int(result.worker.numpy())
        worker = "" if number is None else str(self._plan.job.workers[number])
        return Values(loss, metrics, skipped, stop, staleness, worker)
