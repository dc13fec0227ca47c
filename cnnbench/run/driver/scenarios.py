"""Runs the work of a run from the first to the last step, and then measures what limits its speed.

The limits are the input alone, and the peak FLOP rate. A record compares the speed of the run with
them.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from cnnbench.base.interrupts import raise_if_interrupted
from cnnbench.errors import BenchmarkError, DataError
from cnnbench.plan import card_numbers
from cnnbench.records import checkpoints
from cnnbench.records.files import report_failed_writes
from cnnbench.records.input import InputStage
from cnnbench.records.run import LossScaling
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.describe import benchmark_log_parameters
from cnnbench.run.driver.evaluation import EvaluationPublisher
from cnnbench.run.driver.input_speed import DEVICE_STAGE, combine_speeds, time_input, time_stages
from cnnbench.run.driver.observers.benchmark_log import BenchmarkLog, describe_run
from cnnbench.run.driver.observers.checkpoint_saver import CheckpointSaver
from cnnbench.run.driver.observers.evaluations import TrainingEvaluations
from cnnbench.run.driver.observers.mlperf_log import MLPerfLog
from cnnbench.run.driver.observers.observer import OBSERVERS, Observer
from cnnbench.run.driver.observers.replica_check import ReplicaCheck
from cnnbench.run.driver.observers.summaries import EvaluationSummaries, TrainingSummaries
from cnnbench.run.driver.restore import begin, broadcast_from_chief
from cnnbench.run.driver.saved_model import export_weights
from cnnbench.run.driver.shared_interrupts import SharedInterrupts
from cnnbench.run.driver.step_loop import LoopTimer
from cnnbench.run.driver.training import Training
from cnnbench.run.driver.work import (
    EvaluatedTrainingWork,
    EvaluationWork,
    ForwardWork,
    InputWork,
    NetworkWork,
    TrainingWork,
    Work,
)
from cnnbench.run.observe.graphs import write_graph
from cnnbench.run.runtime.devices import Devices
from cnnbench.run.runtime.peak_flops import peak_flops
from cnnbench.run.runtime.progress import ProcessActivity
from cnnbench.run.runtime.turns import TimeSlices

_NO_CHECKPOINT = -1
"""Number that is sent instead of a global step if no further evaluation follows."""


def run_work(run: RunContext, work: Work) -> float | None:
    """Runs the work of a run.

    Returns:
      The speed that the run prints last, in images/sec; None for runs without a total.
    """
    if isinstance(work, InputWork):
        return measure_input(run, work)
    if isinstance(work, EvaluationWork):
        return run_evaluation(run, work)
    return train(run, work)


def measure_input(run: RunContext, work: InputWork) -> float | None:
    """Times the whole input pipeline and its stages without a network, and closes the pipeline.

    Returns:
      Images/sec of the whole pipeline.
    """
    length, measurements, inputs = run.plan.length, run.measurements, work.inputs
    turns = run.membership.turns
    # While this process measures its input, it does not take turns with other processes: it keeps
    # its time slice until the end.
    run.membership.turns = TimeSlices()
    training = Training(run, work, SharedInterrupts(work.worker_group))
    try:
        total = training.run(length.batches)
    finally:
        run.membership.turns = turns
    # Without a network, the loop does nothing but wait for input, so a separate waiting time would
    # say nothing.
    measurements.update_record("measured", input_wait_seconds=None)
    inputs.close()
    examples = len(measurements.timed.seconds) * length.global_batch
    whole = InputStage(name=DEVICE_STAGE, examples=examples, seconds=training.loop_seconds)
    measurements.update_record(input_stages=(*time_stages(inputs, examples), whole))
    if length.epochs < 1 and inputs.examples_per_epoch <= inputs.spec.shuffle_buffer:
        run.messages.notice(
            "the whole data set fits into the shuffle buffer, so its files are read only once "
            "per epoch; to measure this, too, use --num_epochs=1 or more"
        )
    return total


def train(run: RunContext, work: ForwardWork) -> float | None:
    """Runs a training or the forward passes of a network.

    Returns:
      Images/sec in the total; None for runs without a total.
    """
    flags, interrupts = run.plan.params, SharedInterrupts(work.worker_group)
    with ExitStack() as stack:
        observers = stack.enter_context(_opened_observers(run, work))
        if isinstance(work, EvaluatedTrainingWork):
            publisher = EvaluationPublisher(run, work.evaluator.host, observers)
            results = stack.enter_context(closing(publisher))
            evaluations = TrainingEvaluations(run, work, results, interrupts, observers)
            observers = [*observers, evaluations]
        if flags.graph_file:
            write_graph("graph_file", flags.graph_file, work.step.graph.as_graph_def())
        global_step, steps = begin(run, work)
        probes = [] if run.profiler is None else [*run.profiler.probes(work.step.graph)]
        if flags.trace_file or flags.partitioned_graph_file_prefix:
            # Imported only if a profile is made, because readers of profiles load slowly.
            from cnnbench.run.driver.observers.profiles import make_warm_up_profilers

            probes += make_warm_up_profilers(run.plan, run.messages)
        training = Training(
            run, work, interrupts, global_step=global_step, probes=probes, observers=observers
        )
        scale = work.step.loss_scale
        start = scale.value
        try:
            total = training.run(steps)
        finally:
            end = scale.value
            if start is not None and end is not None:
                run.measurements.update_record(loss_scaling=LossScaling(start=start, end=end))
        export_weights(work.exporters, run.messages)
        return total


def run_evaluation(run: RunContext, work: EvaluationWork) -> float | None:
    """Evaluates the newest checkpoint or, with --eval_interval_secs, every new checkpoint.

    Returns:
      Examples/sec of the last evaluation.
    """
    evaluate = _evaluate_as_chief if run.plan.place.job.is_chief else _evaluate_as_worker
    with (
        _opened_observers(run, work) as observers,
        closing(EvaluationPublisher(run, work.evaluator.host, observers)) as results,
    ):
        return evaluate(run, work, results)


def _evaluate_as_chief(
    run: RunContext, work: EvaluationWork, results: EvaluationPublisher
) -> float | None:
    """Evaluates one checkpoint, or all new checkpoints until the training ends, as the chief.

    Returns examples/sec; None after evaluations of several checkpoints.
    """
    folder, pause = work.folder, run.plan.params.eval_interval_secs
    interrupts = SharedInterrupts(work.worker_group)
    end = TrainingEndDetector(folder, run.plan.params.eval_timeout_secs)
    done: str | None = None
    while True:
        raise_if_interrupted()
        # The status is read before the search, so that the search finds every checkpoint of a
        # training that has ended.
        end.read_training_status()
        path = checkpoints.find_latest_checkpoint(folder)
        if path is None:
            run.console.lines(f"Checkpoint not found in {folder}")
            if not pause:
                raise BenchmarkError(f"no checkpoint in --train_dir={folder}")
        elif path != done:
            try:
                restored = work.checkpoints.restore(path)
            except BenchmarkError:
                if pause and checkpoints.find_latest_checkpoint(folder) != path:
                    continue  # The training has already replaced this checkpoint by a newer one.
                raise
            broadcast_from_chief(work, restored.global_step)
            run.console.lines(f"Successfully loaded model from {path}.")
            if restored.warning:
                run.messages.warning(restored.warning, "nonfinite")
            speed = _evaluate_restored(run, work, results, restored.global_step, interrupts)
            if not pause:
                return speed
            # With several evaluations, each reports the outputs that could not be written, and
            # prints its own total.
            report_failed_writes(run.messages.warning)
            run.console.print_footer(speed)
            end.restart_time_limit()
            done = path
        if reason := end.end_reason():
            results.publish_all()
            broadcast_from_chief(work, _NO_CHECKPOINT)
            if done is None:
                raise BenchmarkError(f"no checkpoint in --train_dir={folder}, and {reason}")
            run.messages.notice(f"the evaluation ends: {reason}")
            return None
        wake = time.monotonic() + end.seconds_to_wait(pause)
        with run.membership.marking_activity(ProcessActivity.OTHERS):
            results.publish_all(wake - time.monotonic())
            time.sleep(max(0.0, wake - time.monotonic()))


def _evaluate_restored(
    run: RunContext,
    work: EvaluationWork,
    results: EvaluationPublisher,
    global_step: int,
    interrupts: SharedInterrupts,
) -> float:
    """Evaluates the restored variables and records the result. Returns examples/sec."""
    timer = LoopTimer()
    evaluating = run.membership.marking_activity(ProcessActivity.EVALUATION)
    with run.watch, evaluating, interrupts.sharing_interrupts():
        evaluated = work.evaluator.run(global_step, run.console, interrupts)
    results.add(evaluated)
    images = evaluated.evaluation.examples
    figures = timer.elapsed().record_fields()
    run.measurements.update_record("measured", **figures, loop_images=images)
    export_weights(work.exporters, run.messages)
    return evaluated.evaluation.images_per_sec


def _evaluate_as_worker(
    run: RunContext, work: EvaluationWork, results: EvaluationPublisher
) -> float | None:
    """Evaluates the checkpoints that the chief evaluates. Returns examples/sec, or None as the
    chief.
    """
    interrupts = SharedInterrupts(work.worker_group)
    while True:
        # The chief may wait a long time for a new checkpoint, and this worker for the chief.
        with run.membership.marking_activity(ProcessActivity.OTHERS):
            (global_step,) = broadcast_from_chief(work, 0)
        if global_step == _NO_CHECKPOINT:
            return None
        with interrupts.sharing_interrupts():
            evaluated = work.evaluator.run(global_step, run.console, interrupts)
        results.add(evaluated)
        if not run.plan.params.eval_interval_secs:
            return evaluated.evaluation.images_per_sec
        results.publish_all(0.0)


class TrainingEndDetector:
    """Determines when an evaluation with --eval_interval_secs stops waiting for checkpoints."""

    def __init__(self, folder: str, timeout: float) -> None:
        """Starts the time limit, --eval_timeout_secs. `timeout` 0 means no limit."""
        self._folder, self._timeout = folder, timeout
        self._since = time.monotonic()
        self._before, self._status, self._is_new = "", "", False

    def read_training_status(self) -> None:
        """Reads the status of the training from a file in the checkpoint folder."""
        self._before, self._status = self._status, checkpoints.read_training_status(self._folder)
        self._is_new |= self._status == checkpoints.RUNNING

    def restart_time_limit(self) -> None:
        """Records that a new checkpoint was evaluated, which restarts the time limit."""
        self._since = time.monotonic()

    def seconds_to_wait(self, pause: float) -> float:
        """Returns the seconds until the next search: `pause`, or less near --eval_timeout_secs."""
        remaining = self._since + self._timeout - time.monotonic()
        return min(pause, max(0.0, remaining)) if self._timeout else pause

    def end_reason(self) -> str:
        """Returns why no further checkpoint is expected; "" if a checkpoint may follow."""
        ended = self._status not in ("", checkpoints.RUNNING)
        # The first status that is read may come from an earlier training that is about to be
        # resumed.
        if ended and (self._is_new or self._before == self._status):
            return f"the training has ended ({self._status})"
        if self._timeout and time.monotonic() - self._since >= self._timeout:
            return f"there was no new checkpoint for --eval_timeout_secs={self._timeout}"
        return ""


@contextmanager
def _opened_observers(run: RunContext, work: NetworkWork) -> Iterator[Sequence[Observer]]:
    """A context with the observers that the flags request, in the order of their calls."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(made)) for made in _requested_observers(run, work)]


def _requested_observers(run: RunContext, work: NetworkWork) -> Iterator[Observer]:
    """Creates the observers that the flags request, except evaluations during a training."""
    plan, flags, measured = run.plan, run.plan.params, run.measurements
    if isinstance(work, TrainingWork):
        yield from _training_observers(run, work)
    if plan.summarizes_evaluations:
        evaluates_one = not plan.work.trains and checkpoints.is_checkpoint_prefix(
            flags.train_dir or ""
        )
        yield EvaluationSummaries(flags.eval_dir, newest=not evaluates_one)
    config = measured.parts.config
    if flags.benchmark_log_dir:
        parameters = {**config, **benchmark_log_parameters(plan, work.devices)}
        record = measured.make_record("interrupted").to_dict()
        facts, test_id = measured.parts.environment, flags.benchmark_test_id
        about = describe_run(parameters, facts, test_id, record)
        yield BenchmarkLog(flags.benchmark_log_dir, about)
    if flags.ml_perf_compliance_logging and plan.work.trains:
        yield MLPerfLog(run, run.messages.write_unprefixed, config)
    for make in OBSERVERS.values():
        if (made := make(flags)) is not None:
            yield made


def _training_observers(run: RunContext, work: TrainingWork) -> Iterator[Observer]:
    """Creates the observers that read the variables of a training."""
    plan, flags, manager = run.plan, run.plan.params, work.manager
    if plan.checkpoint_save_folder is not None:
        yield CheckpointSaver(plan.checkpoint_save_folder, run, work.checkpoints)
    every = flags.check_replica_consistency
    if every and manager.replicas_in_sync:
        fewest = 1 if manager.workers is not None else 2
        trained = [v for v in manager.savable_variables().values() if v.primary.trainable]
        compared = tuple(v for v in (*trained, *work.slots.values()) if len(v.copies) >= fewest)
        if compared:
            yield ReplicaCheck(compared, every, run.measurements, manager.workers)
    if flags.summary_verbosity and flags.save_summaries_steps and flags.train_dir:
        yield TrainingSummaries(flags.train_dir, plan, work.step, manager)


def measure_speed_limits(run: RunContext, work: Work) -> None:
    """Measures the speed of the input pipeline without training, and the peak FLOP rate.

    The measurement follows the run, and takes some seconds on a CPU. If every worker runs its own
    step, all workers call this function, because they read their input at the same time; only the
    chief measures the peak FLOP rate.
    """
    lost = bool(run.measurements.lost_workers)
    if run.plan.params.data_dir is not None and isinstance(work, ForwardWork) and not lost:
        _time_input(run, work)
    work.close()
    # After the loss of a process, TensorFlow cannot run new functions, so nothing is measured.
    if work.devices.job.is_chief and not lost:
        _measure_peak(run, work.devices)


def _time_input(run: RunContext, work: ForwardWork) -> None:
    """Measures how fast the input pipelines of all workers deliver batches if no training uses
    them.
    """
    in_step, group = not run.plan.place.asynchronous, work.worker_group
    try:
        own = dataclasses.asdict(time_input(work.inputs, in_step=in_step))
    except DataError as error:
        # The timing reads more records than the run itself; defects in them are not defects of the
        # run.
        own = {"error": str(error)}
    of_workers = [own]
    if group is not None:
        of_workers = [json.loads(text) for text in group.gather_bytes(json.dumps(own).encode())]
    errors = [worker["error"] for worker in of_workers if "error" in worker]
    if errors:
        text = f"the input pipeline alone was not measured: {errors[0]}"
        run.messages.warning(text, "pipeline")
        return
    whole = combine_speeds([InputStage(**worker) for worker in of_workers], in_step=True)
    run.measurements.update_record(input_stages=(whole,))


def _measure_peak(run: RunContext, devices: Devices) -> None:
    """Measures the peak FLOP rate of the whole job, unless --peak_flops or a table contains it."""
    plan, job = run.plan, devices.job
    dtype, given = plan.numerics.dtype, plan.params.peak_flops
    peak = peak_flops(devices.kind, job.own_tower_devices, dtype, given)
    if peak is None:
        return
    rate = peak.flops_per_sec
    if devices.kind == "cpu":
        parts = job.num_machines
    else:
        parts = job.num_workers if job.client_per_worker else 1
        # If a card is divided into logical GPUs, they share its FLOP rate.
        rate *= len(card_numbers(plan.params)) / plan.params.num_gpus
    run.measurements.update_record(
        "measured", peak_flops_per_sec=rate * parts, peak_flops_source=peak.source
    )
