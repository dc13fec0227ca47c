"""The driver: from parameters to a run record.

`BenchmarkCNN(Params(model="resnet50", num_gpus=2)).run()` plans the run, has its
TensorFlow parts built (build.py), runs the scenario the parameters ask for
(training.py or evaluation.py), and returns the record of what was measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cnnbench.driver.console import Console, Phase
from cnnbench.driver.describe import describe, header, run_flags
from cnnbench.driver.learning_rate import make_schedule
from cnnbench.driver.notices import (
    input_lines,
    loss_scaling_lines,
    peak_warning,
    steady_state_notice,
    summary_lines,
    warm_up_warning,
)
from cnnbench.driver.plan import COMPUTE_DTYPES, Plan, make_plan
from cnnbench.errors import (
    BenchmarkError,
    DataError,
    FlagError,
    OutOfMemoryError,
    UsageError,
    first_line,
)
from cnnbench.flags import Params, validate
from cnnbench.machine import facts as environment
from cnnbench.machine.checks import Condition, parse_quiet
from cnnbench.machine.watch import Watch
from cnnbench.observe import outputs
from cnnbench.records.measurements import Measurements
from cnnbench.records.result_files import ResultFiles
from cnnbench.records.run import InputStage, RunRecord
from cnnbench.records.tables import RUNS, run_row
from cnnbench.runtime import peak_flops
from cnnbench.runtime import tensorflow as runtime
from cnnbench.runtime.native import uninterrupted, without_info_lines
from cnnbench.text.progress import Messages, Progress

if TYPE_CHECKING:
    from cnnbench.driver.build import BuiltRun
    from cnnbench.driver.observer import Observer


class BenchmarkCNN:
    """One run.

    Args:
      params: what to run.
      command: argv for the record.
      explicit_flags: names of the parameters that were given, for the record.
      console: where the report goes; silent by default.
      messages: where notices go; silent by default.
      progress: live progress; none by default.

    Raises:
      FlagError: a parameter that cannot be used.
    """

    def __init__(
        self,
        params: Params,
        *,
        command: Sequence[str] = (),
        explicit_flags: Sequence[str] = (),
        console: Console | None = None,
        messages: Messages | None = None,
        progress: Progress | None = None,
    ) -> None:
        validate(params)
        self.params = params
        self.plan: Plan = make_plan(params)
        self.record: RunRecord | None = None
        self._settings = runtime.Settings.of(params)
        self._console = console or Console.silent()
        self._messages = messages or Messages.silent()
        self._progress = progress or Progress.silent()
        self._files = ResultFiles(
            params.result_json,
            params.result_csv,
            RUNS,
            params.train_dir if self.plan.trains else None,
        )
        self._watch: Watch | None = None
        self._measurements = Measurements(
            command=command, config=self.plan.resolved(params), explicit_flags=explicit_flags
        )

    def run(self) -> RunRecord:
        """Runs to the end and writes the result files that were asked for.

        Returns:
          The record; also in `self.record`, there even when this raises.

        Raises:
          UsageError: found only now, such as too few GPUs; no record is written.
          BenchmarkError: the run failed; the record holds what was measured.
          KeyboardInterrupt: likewise.
        """
        self._files.prepare()
        outputs.prepare(self.params)
        try:
            total = self._run()
        except UsageError:
            raise
        except KeyboardInterrupt:
            self._end("interrupted")
            raise
        except Exception as error:
            failure = _as_benchmark_error(error)
            self._end("failed", failure or error)
            if failure is None or failure is error:
                raise
            raise failure from error
        record = self._end("ok")
        for line in (*summary_lines(record.summary()), *input_lines(record)):
            self._messages.notice(line)
        self._judge_figures(record)
        # The last line of a run that has succeeded, results written and all.
        if total is not None:
            self._console.footer(total)
        return record

    def build(self) -> BuiltRun:
        """Loads TensorFlow, creates variables and input, and traces the step.

        Raises:
          FlagError: devices or data that are not there.
          BenchmarkError: TensorFlow cannot be loaded.
        """
        devices = self._start()
        from cnnbench.driver.build import assemble

        start = time.perf_counter()
        built = assemble(self.params, self.plan, devices, self._console)
        self._measurements.build_seconds = time.perf_counter() - start
        return built

    def _start(self) -> runtime.Devices:
        """Loads TensorFlow, describes the run and prints its header."""
        self._watch = Watch(gpus=self.params.device != "cpu")
        start = time.perf_counter()
        for warning in runtime.export_environment(self._settings):
            self._messages.warning(warning)
        with without_info_lines():
            tf = runtime.load_tensorflow()
            self._measurements.import_seconds = time.perf_counter() - start
            devices = runtime.configure(self._settings)
        for notice in devices.notices:
            self._messages.notice(notice)
        self._warn_of_gaps()
        if devices.kind == "cpu" and self.params.precision == "fp16":
            self._messages.warning(
                "--precision=fp16 runs on a CPU without 16-bit arithmetic of that kind; "
                "bf16 is about ten times faster there"
            )
        tf.random.set_seed(self.params.tf_random_seed)
        # Before the run: afterwards the load would be our own.
        self._measurements.environment = environment.collect()
        describe(self._measurements, params=self.params, plan=self.plan, devices=devices)
        self._console.header(header(self.params, self.plan, devices, tf.__version__))
        runtime.reset_peak_memory(devices.kind)
        return devices

    def _run(self) -> float | None:
        """Returns the images/sec of the last lines; None for runs that end without them."""
        if self.params.input_only:
            return self._measure_input()
        built = self.build()
        assert self._watch is not None
        facts = self._measurements.environment
        self._warn(self._watch.before(facts, run_flags(self.params, self.plan, built.devices)))
        try:
            with ExitStack() as stack:
                observers = self._observers(built)
                for observer in observers:
                    stack.callback(observer.close)
                work = self._evaluate if self.params.eval else self._train
                total = work(built, observers)
            if self._files.wanted:
                self._measure_input_alone(built)
        finally:
            built.close()
        if self._files.wanted:
            self._measure_peak_flops(built)
        return total

    def _measure_input(self) -> float | None:
        """A run of the input pipeline alone."""
        devices = self._start()
        from cnnbench.driver.build import make_inputs
        from cnnbench.driver.input_only import DEVICE_STAGE, InputStep, time_stages
        from cnnbench.driver.training import Training

        assert self._watch is not None
        params, plan, measurements = self.params, self.plan, self._measurements
        start = time.perf_counter()
        with make_inputs(params, plan, devices, "train") as inputs:
            measurements.build_seconds = time.perf_counter() - start
            self._warn(
                self._watch.before(measurements.environment, run_flags(params, plan, devices))
            )
            training = Training(
                params,
                plan,
                InputStep(inputs),
                inputs,
                lambda step: 0.0,
                self._console,
                self._progress,
                measurements,
                checkpoints=None,
                evaluator=None,
                around_loop=self._watch,
            )
            total = training.run(plan.num_batches)
            measurements.input_wait_seconds = None  # nothing but the input was waited for
            inputs.close()
            examples = plan.num_batches * plan.global_batch
            assert measurements.loop_seconds is not None
            whole = InputStage(
                name=DEVICE_STAGE, examples=examples, seconds=measurements.loop_seconds
            )
            measurements.input_stages = [*time_stages(inputs, examples), whole]
            if plan.num_epochs < 1 and inputs.examples_per_epoch <= inputs.spec.shuffle_buffer:
                self._messages.notice(
                    "the whole set fits into the shuffle buffer, so its files are read once per "
                    "epoch: --num_epochs=1 or more measures that too"
                )
        return total

    def _measure_input_alone(self, built: BuiltRun) -> None:
        """What the pipeline gives when nothing else is at work; takes seconds."""
        if self.params.data_dir is None or built.inputs is None:
            return
        from cnnbench.driver.input_only import time_whole

        try:
            self._measurements.input_stages = [time_whole(built.inputs)]
        except DataError as error:  # of a record that the run itself did not come to
            self._messages.warning(f"the input pipeline alone was not measured: {error}")

    def _observers(self, built: BuiltRun) -> list[Observer]:
        from cnnbench.driver.benchmark_log import BenchmarkLog
        from cnnbench.driver.mlperf_log import MLPerfLog
        from cnnbench.driver.summaries import EvaluationSummaries, TrainingSummaries

        params = self.params
        observers: list[Observer] = []
        if outputs.summarizes_training(params):
            assert built.step is not None
            observers.append(TrainingSummaries(params, built.step, built.manager))
        if outputs.summarizes_evaluations(params):
            observers.append(EvaluationSummaries(params.eval_dir))
        if params.benchmark_log_dir:
            config, facts = self._measurements.config, self._measurements.environment
            folder, test_id = params.benchmark_log_dir, params.benchmark_test_id
            observers.append(BenchmarkLog(folder, config, facts, test_id))
        if params.ml_perf_compliance_logging and self.plan.trains:
            warm_up = params.num_learning_rate_warmup_epochs
            first = math.ceil(warm_up * self.plan.train_examples / self.plan.global_batch)
            rate = self._schedule()(first)
            observers.append(MLPerfLog(params, self.plan, rate, self._messages.plain))
        return observers

    def _train(self, built: BuiltRun, observers: Sequence[Observer]) -> float | None:
        from cnnbench.driver.probes import make_probes
        from cnnbench.driver.training import Training
        from cnnbench.observe.graphs import write_graph

        params, plan = self.params, self.plan
        assert built.step is not None
        assert built.inputs is not None
        if params.graph_file:
            write_graph("graph_file", params.graph_file, built.step.graph.as_graph_def())
        global_step, steps = self._initialize(built)
        built.step.resume(global_step)
        training = Training(
            params,
            plan,
            built.step,
            built.inputs,
            self._schedule(),
            self._console,
            self._progress,
            self._measurements,
            built.checkpoints,
            built.evaluator,
            global_step,
            self._watch,
            lag=1 if built.devices.kind == "gpu" else 0,
            probes=make_probes(params, plan, built.step.graph, self._messages),
            observers=observers,
        )
        total = training.run(steps)
        self._export(built)
        return total

    def _schedule(self) -> Callable[[int], float]:
        """The learning rate of every step."""
        plan = self.plan
        return make_schedule(
            self.params,
            plan.model.learning_rate,
            plan.global_batch,
            plan.train_examples,
            plan.training_steps,
        )

    def _initialize(self, built: BuiltRun) -> tuple[int, int]:
        """Restores a checkpoint if there is one; returns its global step and the steps to run."""
        from cnnbench.driver import checkpoint_folder

        params, plan = self.params, self.plan
        self._console.phase(Phase.INITIALIZING)
        built.manager.after_initialization()
        if params.train_dir is not None and plan.trains:
            checkpoint_folder.clean(params.train_dir)
        path = None if params.train_dir is None else checkpoint_folder.latest(params.train_dir)
        if path is None or built.checkpoints is None:
            if plan.trains and params.backbone_model_path is not None:
                self._restore_backbone(built, params.backbone_model_path)
            return 0, plan.num_batches
        restored = built.checkpoints.restore(path)
        self._messages.notice(f"resuming from {path} at global step {restored.global_step}")
        for notice in restored.notices:
            self._messages.notice(notice)
        if not plan.trains:
            return restored.global_step, plan.num_batches
        if params.data_dir is not None:
            self._messages.notice("the input starts over; its position is not in checkpoints")
        # As in tf_cnn_benchmarks, --num_batches counts from the first run on.
        steps = plan.num_batches - restored.global_step
        if steps < 1:
            raise FlagError(
                "num_batches",
                plan.num_batches,
                f"the checkpoint in --train_dir={params.train_dir} is at step "
                f"{restored.global_step} already; ask for more batches or for another directory",
            )
        return restored.global_step, steps

    def _export(self, built: BuiltRun) -> None:
        if built.exporter is not None and self.params.export_dir is not None:
            built.exporter.write(self.params.export_dir)
            self._messages.notice(f"SavedModel written to {self.params.export_dir}")

    def _restore_backbone(self, built: BuiltRun, given: str) -> None:
        from cnnbench.driver import checkpoint_folder, checkpoints

        path = checkpoint_folder.latest(given)
        if path is None:
            raise BenchmarkError(f"no checkpoint in --backbone_model_path={given}")
        count = checkpoints.restore_backbone(built.manager, self.plan.model.backbone, path)
        self._messages.notice(f"backbone of {count} variables restored from {path}")

    def _evaluate(self, built: BuiltRun, observers: Sequence[Observer]) -> float | None:
        from cnnbench.driver import checkpoint_folder

        assert built.evaluator is not None
        assert built.checkpoints is not None
        assert self._watch is not None
        train_dir = self.params.train_dir
        assert train_dir is not None  # validated
        pause = self.params.eval_interval_secs
        done: str | None = None
        while True:
            path = checkpoint_folder.latest(train_dir)
            if path is None:
                self._console.checkpoint_not_found(train_dir)
                if not pause:
                    raise BenchmarkError(f"no checkpoint in --train_dir={train_dir}")
            elif path != done:
                try:
                    restored = built.checkpoints.restore(path)
                except BenchmarkError:
                    if pause and checkpoint_folder.latest(train_dir) != path:
                        continue  # the training that goes on has deleted it for a newer one
                    raise
                self._console.checkpoint_loaded(path)
                start = time.perf_counter()
                with self._watch:
                    result = built.evaluator.run(
                        self.plan.num_eval_batches, restored.global_step, self._console
                    )
                self._measurements.add_evaluation(result)
                for observer in observers:
                    observer.evaluated(result)
                self._measurements.loop_seconds = time.perf_counter() - start
                self._measurements.loop_images = result.examples
                self._export(built)
                if not pause:
                    return result.images_per_sec
                # Evaluations that go on for ever end each with its own total.
                self._console.footer(result.images_per_sec)
                done = path
            time.sleep(pause)

    def _warn_of_gaps(self) -> None:
        """Warns of files that a data set lacks: a part of one can be measured, but not unawares."""
        if self.params.data_dir is None:
            return
        used = {"train": not self.params.eval, "validation": self.plan.num_eval_batches > 0}
        for subset in (name for name, is_used in used.items() if is_used):
            gap = self.plan.dataset.gap(subset, self.params.data_dir)
            if gap is not None:
                self._messages.warning(gap)

    def _warn(self, conditions: Sequence[Condition]) -> None:
        quiet = parse_quiet(self.params.quiet_conditions)
        for condition in conditions:
            if condition.id not in quiet:
                self._messages.warning(str(condition))

    def _look_back(self) -> tuple[Condition, ...]:
        """What happened on the machine during the timed loop, for the record too."""
        if self._watch is None:
            return ()
        conditions, measurements = self._watch.during(), self._measurements
        measurements.conditions = self._watch.record()
        energy = self._watch.energy
        # The pauses for evaluations are in it, and in no other figure of the loop.
        if energy is not None and not self.plan.eval_steps:
            measurements.cpu_energy_joules = energy.cpu_joules
            measurements.gpu_energy_joules = energy.gpu_joules
            measurements.energy_source = energy.source
        return conditions

    def _judge_figures(self, record: RunRecord) -> None:
        for warning in (warm_up_warning(record), peak_warning(record)):
            if warning is not None:
                self._messages.warning(warning)
        steady = steady_state_notice(record)
        if steady is not None:
            text, is_warning = steady
            (self._messages.warning if is_warning else self._messages.notice)(text)

    def _measure_peak_flops(self, built: BuiltRun) -> None:
        """What the devices could do at most; takes seconds on a CPU."""
        peak = peak_flops.peak(
            built.devices.kind,
            built.devices.towers,
            COMPUTE_DTYPES[self.params.precision],
            self.params.peak_flops,
        )
        if peak is not None:
            self._measurements.peak_flops_per_sec = peak.flops_per_sec
            self._measurements.peak_flops_source = peak.source

    def _end(self, status: str, error: BaseException | None = None) -> RunRecord:
        measurements = self._measurements
        if measurements.placement is not None:
            measurements.peak_memory_bytes = runtime.peak_memory(measurements.placement.device)
        conditions = self._look_back()
        self.record = record = measurements.record(status, error)
        if status == "ok":
            self._warn(conditions)
        for line in loss_scaling_lines(record):
            self._messages.notice(line)
        try:
            with uninterrupted():
                self._files.write(record, lambda: [run_row(record)])
        except BenchmarkError as failure:
            if status == "ok":
                raise
            # What ended the run matters more, and is on its way up.
            self._messages.warning(str(failure))
        return record


def _as_benchmark_error(error: Exception) -> BenchmarkError | None:
    """One line for the failures of TensorFlow and the machine; None for a defect of ours."""
    if isinstance(error, BenchmarkError):
        return error
    if isinstance(error, OSError):
        return BenchmarkError(f"{error.strerror or error}: {error.filename or 'a file'}")
    import tensorflow as tf

    if isinstance(error, tf.errors.ResourceExhaustedError):
        return OutOfMemoryError(
            f"out of memory: lower --batch_size (it counts per device); {first_line(error)}"
        )
    if isinstance(error, tf.errors.OpError):
        return BenchmarkError(f"TensorFlow: {type(error).__name__}: {first_line(error)}")
    return None
