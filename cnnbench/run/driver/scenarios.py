"""The scenarios of a run: training, evaluation, forward passes, or only the input.

`ReplicaCheck` compares the copies of variables. If a mode keeps the copies equal, they get the same
updates, so their bits are equal. If copies differ, an update was lost, or a reduction gave
different sums to the devices. No other part of a run would detect this, because checkpoints and
evaluations use only copy 0.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.base.interrupts import delaying_interrupts, raise_if_interrupted
from cnnbench.base.text import number
from cnnbench.data import InputSource
from cnnbench.errors import BenchmarkError, DataError, ReplicaDivergenceError
from cnnbench.plan.run_plan import RunPlan
from cnnbench.plan.setup import card_numbers
from cnnbench.plan.training import round_up_steps
from cnnbench.records import files
from cnnbench.records.files import collecting_write_errors, report_failed_writes
from cnnbench.records.measurements import Measurements
from cnnbench.records.run import InputStage, LossScaling
from cnnbench.run.driver import checkpoints
from cnnbench.run.driver.build import (
    DEVICE_STAGE,
    BuiltRun,
    InputOnlyStep,
    combine_pipelines,
    time_input,
    time_stages,
)
from cnnbench.run.driver.checkpoints import RestoredState, SavedModelExporter
from cnnbench.run.driver.console import RunContext
from cnnbench.run.driver.describe import benchmark_log_parameters
from cnnbench.run.driver.host_metrics import EvaluationPublisher
from cnnbench.run.driver.membership import SharedInterrupts
from cnnbench.run.driver.observers import (
    BenchmarkLog,
    EvaluationSummaries,
    MLPerfLog,
    Observer,
    TrainingState,
    TrainingSummaries,
)
from cnnbench.run.driver.step_loop import LoopTimer
from cnnbench.run.driver.training import Training
from cnnbench.run.observe.graphs import write_graph
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.runtime.supervisor import ProcessActivity
from cnnbench.run.runtime.turns import TimeSlices
from cnnbench.run.step.tracing import TracedFunction
from cnnbench.variable_mgr import towers as tower_variable
from cnnbench.variable_mgr.base import VariableMgr, WorkerGroup
from cnnbench.variable_mgr.towers import TowerVariable

# --check_replica_consistency: compares the copies of every variable.

_DIGEST_BYTES = 16
# On GPUs, TensorFlow compares unsigned integers, but compares signed 32-bit integers on the host.
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


class ReplicaCheck(Observer):
    """Compares the copies of variables before the first step and after every `every` global steps.

    It compares variables in the order of their creation, then optimizer slots. Moving averages of
    batch norm are not compared: a step only updates copy 0, and the other copies are replaced
    before they are read, see `cnnbench.run.step.tower`.

    Each copy is compared on its own device with the copy of tower 0. One bit per copy is sent to
    the host, which reads a variable only if its copies differ. If every worker of a job has its own
    copies, all workers also compare digests of their first copies, and find the same result.

    Args:
      variables: at least one variable; all variables have the same number of copies.
      every: number of global steps between two checks.
      workers: workers with their own copies; None if all copies are in this process.
    """

    def __init__(
        self,
        variables: tuple[TowerVariable, ...],
        every: int,
        measurements: Measurements,
        workers: WorkerGroup | None = None,
    ) -> None:
        self._workers = workers
        self._variables = variables
        self._every = every
        self._measurements = measurements
        self._differing = TracedFunction("the comparison of copies", self._build_tower_comparison)

    def training_begins(self, global_step: int, steps: int) -> None:
        """Checks the initial or restored values. This also traces the comparison."""
        del steps
        self._check_replicas(global_step)

    def needs_pause_after(self, global_step: int) -> bool:
        """Returns True after every --check_replica_consistency global steps."""
        return global_step % self._every == 0

    def training_paused(self, state: TrainingState) -> None:
        """Compares the copies after a step. Raises ReplicaDivergenceError if copies differ."""
        self._check_replicas(state.global_step)

    def _check_replicas(self, global_step: int) -> None:
        differing = np.array([flags.numpy() for flags in self._differing()])
        checks = self._measurements.parts.measured.replica_checks or 0
        self._measurements.update_record("measured", replica_checks=checks + 1)
        # All workers must take part in this exchange, so it precedes any error of this worker.
        error = self._compare_workers(bool(differing.any()), global_step)
        if differing.any():
            raise self._make_divergence_error(differing, global_step)
        if error is not None:
            raise error

    def _compare_workers(
        self, differs_here: bool, global_step: int
    ) -> ReplicaDivergenceError | None:
        """Compares the variables of all workers. Returns an error if they differ, else None."""
        if self._workers is None:
            return None
        own = b"".join(map(_digest_of_variable, self._variables)) + bytes([differs_here])
        of_workers = [(values[:-1], bool(values[-1])) for values in self._workers.gather_bytes(own)]
        first = of_workers[0][0]
        beginning = f"replicas diverged by global step {global_step}: "
        for index, variable in enumerate(self._variables):
            part = slice(index * _DIGEST_BYTES, (index + 1) * _DIGEST_BYTES)
            workers = [str(i) for i, (of, _) in enumerate(of_workers) if of[part] != first[part]]
            if workers:
                names = f"worker{'s' * (len(workers) > 1)} {', '.join(workers)}"
                return ReplicaDivergenceError(
                    f"{beginning}{variable.name} on {names} differs from worker 0"
                )
        worse = [str(i) for i, (_, differs) in enumerate(of_workers) if differs]
        if worse:
            text = f"copies differ within worker {', '.join(worse)}"
            return ReplicaDivergenceError(beginning + text)
        return None

    def _build_tower_comparison(self) -> list[tf.Tensor]:
        """Compares each tower's variables with tower 0's, inside of the traced function.

        Returns a bool tensor ``[variables]`` for each tower except tower 0: True if copies differ.
        """
        differing = []
        for tower in range(1, len(self._variables[0].copies)):
            flags = []
            for variable in self._variables:
                copy = variable.copies[tower]
                with tf.device(copy.device):
                    # The bits are compared, because NaN is unequal to itself, and 0 equal to -0.
                    bits = _BITS[variable.dtype.size]
                    both = (tower_variable.read(v) for v in (copy, variable.primary))
                    mine, first = (tf.bitcast(value, bits) for value in both)
                    flags.append(tf.reduce_any(tf.not_equal(mine, first)))
            with tf.device(self._variables[0].copies[tower].device):
                differing.append(tf.stack(flags))
        return differing

    def _make_divergence_error(self, differing: Any, global_step: int) -> ReplicaDivergenceError:
        """Returns the error for copies that differ. Its message names the first such variable.

        `differing` has the shape [towers - 1, variables].
        """
        index, *other_variables = np.flatnonzero(differing.any(axis=0))
        variable = self._variables[index]
        towers = [int(tower) + 1 for tower in np.flatnonzero(differing[:, index])]
        first = variable.primary.numpy()
        elements, largest = 0, 0.0
        for tower in towers:
            copy = variable.copies[tower].numpy()
            # Bits are compared, because NaN is unequal to itself.
            bits = f"u{first.itemsize}"
            elements = max(elements, int(np.sum(copy.view(bits) != first.view(bits))))
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(copy.astype(np.float64) - first.astype(np.float64))
            largest = max(largest, float(np.max(gap)))
        names = f"tower{'s' * (len(towers) > 1)} {', '.join(map(str, towers))}"
        more = f"; {len(other_variables)} more variables differ" if other_variables else ""
        return ReplicaDivergenceError(
            f"replicas diverged by global step {global_step}: {variable.name} on {names} differs "
            f"from tower 0 in {elements} of {first.size} values, by at most {number(largest)}{more}"
        )


def _digest_of_variable(variable: TowerVariable) -> bytes:
    value = np.ascontiguousarray(variable.primary.numpy())
    return hashlib.blake2b(value.tobytes(), digest_size=_DIGEST_BYTES).digest()


# The scenarios: training, evaluation, measurement of the input alone.


def measure_input(run: RunContext, built: BuiltRun) -> float | None:
    """Times the whole input pipeline and its stages without a network, and closes the pipeline.

    Returns:
      Images/sec of the whole pipeline.
    """
    length, measurements, inputs = run.plan.length, run.measurements, built.inputs
    assert inputs is not None
    turns = run.membership.turns
    # This process is not interleaved with other processes: it keeps its time slice until the end.
    run.membership.turns = TimeSlices()
    try:
        total = Training(run, built).run(length.batches)
    finally:
        run.membership.turns = turns
    # Without a network, the loop only waits for input, so the waiting time is no separate result.
    measurements.update_record("measured", input_wait_seconds=None)
    inputs.close()
    examples = len(measurements.timed.seconds) * length.global_batch
    seconds = measurements.parts.measured.loop_seconds
    assert seconds is not None
    whole = InputStage(name=DEVICE_STAGE, examples=examples, seconds=seconds)
    measurements.update_record(input_stages=(*time_stages(inputs, examples), whole))
    if length.epochs < 1 and inputs.examples_per_epoch <= inputs.spec.shuffle_buffer:
        run.output.messages.notice(
            "the whole data set fits into the shuffle buffer, so its files are read only once "
            "per epoch; to measure this, too, use --num_epochs=1 or more"
        )
    return total


def measure_speed_limits(run: RunContext, built: BuiltRun) -> None:
    """Measures the speed of the input pipeline without training, and the peak FLOP rate.

    A record compares the speed of the run with these limits. The measurement follows the run, and
    takes some seconds on a CPU. If every worker runs its own step, all workers call this function,
    because they read their input at the same time; only the chief measures the peak FLOP rate.
    """
    plan, job, kind = run.plan, built.devices.job, built.devices.kind
    if run.measurements.lost_workers:
        built.close()
        return  # TensorFlow cannot run new functions after a process is lost.
    if plan.params.data_dir is not None and built.inputs is not None:
        _measure_input_speed(run, built, built.inputs)
    built.close()
    if not job.is_chief:
        return
    if plan.params.precision == "int8" and plan.params.peak_flops is None:
        return  # TensorFlow has no 8-bit matrix product with which to measure the peak.
    peak = runtime.peak_flops(
        kind,
        built.devices.job.own_tower_devices,
        plan.numerics.dtype,
        plan.params.peak_flops,
    )
    if peak is None:
        return
    rate, source = peak
    if kind == "cpu":
        parts = job.num_machines
    else:
        parts = job.num_workers if job.client_per_worker else 1
        # Logical GPUs of the same card share the FLOP rate of the card.
        rate *= len(card_numbers(plan.params)) / plan.params.num_gpus
    peak_flops = {"peak_flops_per_sec": rate * parts, "peak_flops_source": source}
    run.measurements.update_record("measured", **peak_flops)


def _measure_input_speed(run: RunContext, built: BuiltRun, inputs: InputSource) -> None:
    """Measures how fast the input pipelines of all workers deliver batches without training."""
    group = built.worker_group
    try:
        own = dataclasses.asdict(time_input(inputs, in_step=not run.plan.place.asynchronous))
    except DataError as error:
        # The timing reads further records, which the run itself has not read.
        own = {"error": str(error)}
    of_workers = [own]
    if group is not None:
        of_workers = [json.loads(text) for text in group.gather_bytes(json.dumps(own).encode())]
    errors = [worker["error"] for worker in of_workers if "error" in worker]
    if errors:
        text = f"the input pipeline alone was not measured: {errors[0]}"
        run.output.messages.warning(text, "pipeline")
        return
    whole = combine_pipelines([InputStage(**worker) for worker in of_workers], in_step=True)
    run.measurements.update_record(input_stages=(whole,))


@contextmanager
def _open_observers(
    run: RunContext, built: BuiltRun
) -> Iterator[tuple[list[Observer], EvaluationPublisher | None]]:
    """A context that creates and closes the observers and the evaluation results of a run."""
    plan, manager, flags = run.plan, built.manager, run.plan.params
    assert manager is not None
    observers: list[Observer] = []
    every = plan.params.check_replica_consistency
    if every and plan.work.trains and manager.replicas_in_sync:
        fewest = 1 if manager.workers is not None else 2
        trained = [v for v in manager.savable_variables().values() if v.primary.trainable]
        compared = tuple(v for v in (*trained, *built.slots.values()) if len(v.copies) >= fewest)
        if compared:
            check = ReplicaCheck(compared, every, run.measurements, manager.workers)
            observers.append(check)
    summarized = flags.summary_verbosity and flags.save_summaries_steps
    if summarized and plan.work.trains and flags.train_dir:
        assert built.step is not None
        assert not isinstance(built.step, InputOnlyStep)
        observers.append(TrainingSummaries(plan, built.step, manager))
    if plan.summarizes_evaluations:
        evaluates_one = not plan.work.trains and files.is_checkpoint_prefix(flags.train_dir or "")
        observers.append(EvaluationSummaries(flags.eval_dir, newest=not evaluates_one))
    if flags.benchmark_log_dir:
        config, facts = run.measurements.parts.config, run.measurements.parts.environment
        parameters = benchmark_log_parameters(plan, built.devices)
        folder, test_id = flags.benchmark_log_dir, flags.benchmark_test_id
        record = run.measurements.make_record("interrupted").to_dict()
        observers.append(BenchmarkLog(folder, config, parameters, facts, test_id, record))
    if flags.ml_perf_compliance_logging and plan.work.trains:
        observers.append(MLPerfLog(plan, run.output.messages.write_unprefixed))
    with ExitStack() as stack:
        for observer in observers:
            stack.callback(observer.close)
        results = None
        if built.evaluator is not None:
            uses = run.output.console, run.measurements, observers, run.output.messages.warning
            results = EvaluationPublisher(built.evaluator.host, *uses)
            stack.enter_context(closing(results))
        yield observers, results


def train(run: RunContext, built: BuiltRun) -> float | None:
    """Runs the training (or the forward passes) of a run whose objects `built` contains.

    Returns:
      Images/sec in the total; None for runs without a total.
    """
    plan, step, manager, flags = run.plan, built.step, built.manager, run.plan.params
    assert step is not None
    assert not isinstance(step, InputOnlyStep)
    assert manager is not None
    assert built.inputs is not None
    with _open_observers(run, built) as (observers, results):
        if flags.graph_file:
            write_graph("graph_file", flags.graph_file, step.graph.as_graph_def())
        restored, steps = _restore_or_initialize(run, built, manager)
        # Only the chief reads the checkpoint, so it sends the step and example counts.
        global_step, examples, steps, *passed_over = built.broadcast_restored_state_and_numbers(
            restored.global_step, restored.examples, steps, *restored.passed_over
        )
        for worker_step in (step, *built.workers.values()):
            worker_step.resume(global_step)
        if plan.work.trains and examples and not built.inputs.synthetic:
            _resume_input(run, built.inputs, examples, passed_over)
        manager.wait_for_assignments(built.inputs.devices)
        probes = [] if run.profiler is None else [*run.profiler.probes(step.graph)]
        files_of_probes = flags.trace_file, flags.tfprof_file, flags.profile_layers
        if any((*files_of_probes, flags.partitioned_graph_file_prefix)):
            # The late import saves most runs the time to load readers of profiles.
            from cnnbench.run.driver.observers import make_warm_up_profilers

            probes += make_warm_up_profilers(plan, step.graph, run.output.messages)
        training = Training(
            run,
            built,
            results=results,
            global_step=global_step,
            probes=probes,
            observers=observers,
        )
        start = step.loss_scale.value
        try:
            total = training.run(steps)
        finally:
            end = step.loss_scale.value
            if start is not None and end is not None:
                run.measurements.update_record(loss_scaling=LossScaling(start=start, end=end))
        if built.exporter is not None:
            _write_saved_model(run, built.exporter)
        return total


def run_evaluation(run: RunContext, built: BuiltRun) -> float | None:
    """Evaluates the newest checkpoint or, with --eval_interval_secs, every new checkpoint.

    Returns:
      Examples/sec of the last evaluation.
    """
    evaluating = (
        _evaluate_new_checkpoints if run.plan.place.job.is_chief else _evaluate_with_the_chief
    )
    with _open_observers(run, built) as (_, results):
        assert results is not None
        return evaluating(run, built, results)


def _restore_or_initialize(
    run: RunContext, built: BuiltRun, manager: VariableMgr
) -> tuple[RestoredState, int]:
    """Initializes the variables, or restores a checkpoint if there is one.

    Returns the state of the checkpoint and the number of steps to run.
    """
    plan = run.plan
    run.output.console.lines("Initializing graph")
    manager.after_initialization()
    if plan.params.train_dir is not None and plan.work.trains:
        files.delete_incomplete_files(plan.params.train_dir)
    path = (
        None
        if plan.params.train_dir is None
        else files.find_latest_checkpoint(plan.params.train_dir)
    )
    if path is None or built.checkpoints is None:
        backbone = plan.params.backbone_model_path
        if plan.work.trains and backbone is not None and plan.place.job.is_chief:
            path = files.find_latest_checkpoint(backbone)
            if path is None:
                raise BenchmarkError(f"no checkpoint in --backbone_model_path={backbone}")
            count = checkpoints.restore_backbone(manager, plan.network.model.backbone, path)
            run.output.messages.notice(f"backbone of {count} variables restored from {path}")
            checkpoints.set_moving_averages_to_weights(manager, built.slots)
        return RestoredState(0, 0, ()), plan.length.batches
    restored = built.checkpoints.restore(path)
    run.output.messages.notice(f"resuming from {path} at global step {restored.global_step}")
    for notice in restored.notices:
        run.output.messages.notice(notice)
    if restored.warning:
        run.output.messages.warning(restored.warning, "nonfinite")
    if not plan.work.trains:
        return restored, plan.length.batches
    for state in _unsaved_state(plan):
        run.output.messages.notice(f"the training continues differently: {state}")
    # As in tf_cnn_benchmarks, --num_batches counts the steps before the checkpoint, too.
    steps = plan.length.batches - restored.global_step
    assert plan.params.train_dir is not None
    plan.length.check_steps_left(plan.params.train_dir, restored.global_step)
    if steps < 1:
        run.output.messages.notice(
            "no training steps remain; only the last evaluation and files follow. To continue the "
            "training, increase --num_batches"
        )
    return restored, round_up_steps(max(0, steps), plan.params.steps_per_execution)


def _unsaved_state(plan: RunPlan) -> Iterator[str]:
    """Says what checkpoints do not contain although the following steps depend on it."""
    if not plan.place.mode.in_sync and plan.place.job.num_towers > 1:
        yield "a checkpoint contains the variables of the first device only, for all devices"
    if plan.params.staged_vars:
        yield "with --staged_vars, the first step uses the saved variables, not those before them"
    if plan.exchange.aggregation.applies_gradients_late:
        yield "with --variable_consistency=relaxed, the first step applies gradients of zero"


def _resume_input(
    run: RunContext, inputs: InputSource, examples: int, passed_over: Sequence[int]
) -> None:
    """Continues the input after the examples that earlier runs have used."""
    plan = run.plan
    # Asynchronous workers have used approximately equal numbers of examples.
    together = plan.length.global_batch * (
        plan.place.job.num_workers if plan.place.asynchronous else 1
    )
    if inputs.resume(-(-examples // together), passed_over):
        # Skipping examples takes time, so this notice explains a long wait for the first batch.
        notice = f"the input continues after the {examples} examples trained on"
    else:
        notice = "the input starts over: its data set cannot be resumed in the middle"
    run.output.messages.notice(notice)


def _evaluate_new_checkpoints(
    run: RunContext, built: BuiltRun, results: EvaluationPublisher
) -> float | None:
    """Evaluates one checkpoint, or all new checkpoints until the training ends, as the chief.

    Returns examples/sec; None after evaluations of several checkpoints.
    """
    assert built.checkpoints is not None
    train_dir = run.plan.params.train_dir
    assert train_dir is not None  # --eval is refused without --train_dir.
    pause = run.plan.params.eval_interval_secs
    interrupts = SharedInterrupts(built.worker_group)
    end = TrainingEndDetector(train_dir, run.plan.params.eval_timeout_secs)
    done: str | None = None
    while True:
        raise_if_interrupted()
        # The status is read first, so that the search finds all checkpoints of an ended training.
        end.read_training_status()
        path = files.find_latest_checkpoint(train_dir)
        if path is None:
            run.output.console.lines(f"Checkpoint not found in {train_dir}")
            if not pause:
                raise BenchmarkError(f"no checkpoint in --train_dir={train_dir}")
        elif path != done:
            try:
                restored = built.checkpoints.restore(path)
            except BenchmarkError:
                if pause and files.find_latest_checkpoint(train_dir) != path:
                    continue  # The training has replaced this checkpoint by a newer checkpoint.
                raise
            built.broadcast_restored_state_and_numbers(restored.global_step)
            run.output.console.lines(f"Successfully loaded model from {path}.")
            if restored.warning:
                run.output.messages.warning(restored.warning, "nonfinite")
            speed = _evaluate_restored(run, built, results, restored.global_step, interrupts)
            if not pause:
                return speed
            # In repeated evaluations, each evaluation reports failed outputs and prints a total.
            report_failed_writes(run.output.messages.warning)
            run.output.console.footer(speed)
            end.restart_time_limit()
            done = path
        if reason := end.explain_end():
            results.publish_all()
            built.broadcast_restored_state_and_numbers(_NO_CHECKPOINT)
            if done is None:
                raise BenchmarkError(f"no checkpoint in --train_dir={train_dir}, and {reason}")
            run.output.messages.notice(f"the evaluation ends: {reason}")
            return None
        wake = time.monotonic() + end.seconds_until_next_search(pause)
        with run.membership.marking_activity(ProcessActivity.OTHERS):
            results.publish_all(wake - time.monotonic())
            time.sleep(max(0.0, wake - time.monotonic()))


def _evaluate_restored(
    run: RunContext,
    built: BuiltRun,
    results: EvaluationPublisher,
    global_step: int,
    interrupts: SharedInterrupts,
) -> float:
    """Evaluates the restored variables and records the result. Returns examples/sec."""
    assert built.evaluator is not None
    assert run.watch is not None
    timer = LoopTimer()
    evaluating = run.membership.marking_activity(ProcessActivity.EVALUATION)
    with run.watch, evaluating, interrupts.sharing_interrupts():
        evaluated = built.evaluator.run(global_step, run.output.console, interrupts)
    results.add(evaluated)
    images = evaluated.evaluation.examples
    run.measurements.update_record(
        "measured", **timer.elapsed().record_fields(), loop_images=images
    )
    if built.exporter is not None:
        _write_saved_model(run, built.exporter)
    return evaluated.evaluation.images_per_sec


_NO_CHECKPOINT = -1
"""Number that is sent instead of a global step if no further evaluation follows."""


class TrainingEndDetector:
    """Determines when an evaluation with --eval_interval_secs stops waiting for checkpoints."""

    def __init__(self, folder: str, timeout: float) -> None:
        """Starts the time limit, --eval_timeout_secs. `timeout` 0 means no limit."""
        self._folder, self._timeout = folder, timeout
        self._since = time.monotonic()
        self._before, self._status, self._is_new = "", "", False

    def read_training_status(self) -> None:
        """Reads the status of the training from a file in the checkpoint folder."""
        self._before, self._status = self._status, files.read_training_status(self._folder)
        self._is_new |= self._status == files.RUNNING

    def restart_time_limit(self) -> None:
        """Records that a new checkpoint was evaluated, which restarts the time limit."""
        self._since = time.monotonic()

    def seconds_until_next_search(self, pause: float) -> float:
        """Returns the seconds until the next search: `pause`, or less near --eval_timeout_secs."""
        remaining = self._since + self._timeout - time.monotonic()
        return min(pause, max(0.0, remaining)) if self._timeout else pause

    def explain_end(self) -> str:
        """Returns why no further checkpoint is expected; "" if a checkpoint may follow."""
        ended = self._status not in ("", files.RUNNING)
        # The first status may be left from an earlier training, which is about to be resumed.
        if ended and (self._is_new or self._before == self._status):
            return f"the training has ended ({self._status})"
        if self._timeout and time.monotonic() - self._since >= self._timeout:
            return f"there was no new checkpoint for --eval_timeout_secs={self._timeout}"
        return ""


def _evaluate_with_the_chief(
    run: RunContext, built: BuiltRun, results: EvaluationPublisher
) -> float | None:
    """Evaluates the same checkpoints as the chief. Returns examples/sec, or None as the chief."""
    assert built.evaluator is not None
    interrupts = SharedInterrupts(built.worker_group)
    while True:
        # The chief waits for a checkpoint, so this worker may wait for the chief for a long time.
        with run.membership.marking_activity(ProcessActivity.OTHERS):
            (global_step,) = built.broadcast_restored_state_and_numbers(0)
        if global_step == _NO_CHECKPOINT:
            return None
        with interrupts.sharing_interrupts():
            evaluated = built.evaluator.run(global_step, run.output.console, interrupts)
        results.add(evaluated)
        if not run.plan.params.eval_interval_secs:
            return evaluated.evaluation.images_per_sec
        results.publish_all(0.0)


def _write_saved_model(run: RunContext, exporter: SavedModelExporter) -> None:
    folder = run.plan.params.export_dir
    assert folder is not None
    with collecting_write_errors("export_dir", folder):
        with delaying_interrupts():
            exporter.write(folder)
        run.output.messages.notice(f"SavedModel written to {folder}")
