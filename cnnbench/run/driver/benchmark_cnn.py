"""The driver: from parameters to a run record.

`BenchmarkCNN(Params(model="resnet50", num_gpus=2)).run()` plans the run, has its
TensorFlow parts built (build.py), runs the scenario the parameters ask for
(scenarios.py), and returns the record of what was measured.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cnnbench.base import plugins
from cnnbench.base.interrupts import obey, uninterrupted
from cnnbench.base.terminal import Messages, Progress
from cnnbench.data.dataset import CLOSE_SECONDS, InputSource, close_all
from cnnbench.errors import (
    BenchmarkError,
    FlagError,
    OutOfMemoryError,
    exhausted,
    first_line,
)
from cnnbench.machine import facts as environment
from cnnbench.machine import repository
from cnnbench.machine.checks import parse_quiet
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.machine.watch import Watch
from cnnbench.plan.make import make_plan
from cnnbench.plan.place import Work
from cnnbench.plan.run_plan import Runnable, RunPlan, without_outputs
from cnnbench.records import files
from cnnbench.records.files import check_written, write_text
from cnnbench.records.measurements import Measurements
from cnnbench.records.result_files import RUNS, ResultFiles, run_row
from cnnbench.records.run import EMULATED_GPU, ConditionNote, RunRecord, SkippedRecords
from cnnbench.run.driver import preflight
from cnnbench.run.driver.console import (
    Console,
    ScenarioContext,
    input_lines,
    loss_scaling_lines,
    peak_warning,
    skipped_lines,
    steady_state_notice,
    steps_notice,
    summary_lines,
    warm_up_warning,
)
from cnnbench.run.driver.describe import describe, describe_built, header, run_flags
from cnnbench.run.driver.membership import Membership
from cnnbench.run.runtime import supervisor, tensorflow
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.runtime.activity import Activity, Doing, Standing
from cnnbench.run.runtime.loading import early_import_seconds, load_tensorflow, without_info_lines
from cnnbench.run.runtime.turns import Turns

if TYPE_CHECKING:
    from cnnbench.run.driver.build import BuiltRun
    from cnnbench.run.driver.step_profile import StepProfiler


# TensorFlow's message if there is no memory for a copy on a device.
_NO_ROOM = "Dst tensor is not initialized"


class BenchmarkCNN:
    """One run.

    Args:
      run: the flags, or a plan of them.
      command: words of the command line, for the record.
      explicit_flags: names of the flags that were given, for the record.
      console, messages, progress: write the log, notices and warnings, and the progress line;
        without them nothing is printed.

    Raises:
      FlagError: a parameter that cannot be used.
    """

    def __init__(
        self,
        run: Runnable,
        *,
        command: Sequence[str] = (),
        explicit_flags: Sequence[str] = (),
        console: Console | None = None,
        messages: Messages | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._messages = messages or Messages.silent()
        if isinstance(run, RunPlan):
            plan = run
        else:
            plan = make_plan(run, os.environ, self._messages.notice)
            plan = plan.with_changes(explicit_flags=tuple(explicit_flags))
        self.plan, job = plan, plan.place.job
        if job.serves:
            raise FlagError(
                "job_name", job.task.job, f"{job.task} serves; start it as a command, cnnbench"
            )
        self.record: RunRecord | None = None
        self._console = console or Console.silent()
        self._progress = progress or Progress.silent()
        tell, self._tell_error = self._messages.notice, self._messages.error
        if not job.is_chief:
            # Only the chief prints and writes; a worker prints its own fatal error.
            self.plan = plan = without_outputs(plan)
            self._console, self._progress = Console.silent(), Progress.silent()
            self._messages = Messages.silent()
        self._files = ResultFiles(plan.outputs.result_json, plan.outputs.result_csv, RUNS)
        self._watch: Watch | None = None
        self._turns = Turns()
        self._activity = Activity()
        facts = plan.agreed if job.in_cluster else {}
        self._membership = Membership(plan, tell, self._lost_another, facts, look=self._standing)
        self._sources: list[InputSource] = []
        config = plan.config
        self._measurements = Measurements(
            command=command,
            config=config,
            explicit_flags=plan.explicit_flags,
            subject=repository.of_work(config),
        )
        self._measurements.target = plan.length.target
        self._profiler: StepProfiler | None = None
        if plan.outputs.profile_json is not None:
            self.profiled(plan.outputs.profile_steps)
        if plan.machine.flags.device == "cpu":
            self._check_memory("cpu")
        if (notice := steps_notice(plan)) is not None:
            self._messages.notice(notice)

    def profiled(self, steps: int) -> StepProfiler:
        """Makes `run` profile up to `steps` of the last steps of the warm-up, and returns how."""
        # Late: it loads charts and readers of profiles, which few runs need.
        from cnnbench.run.driver.step_profile import StepProfiler

        self._profiler = StepProfiler(
            self.plan, steps, lambda: sum(source.wait_seconds for source in self._sources)
        )
        return self._profiler

    def run(self) -> RunRecord:
        """Runs to the end and writes the result files that were asked for.

        Returns:
          The record; also in `self.record`, even after an exception.

        Raises:
          UsageError: found only now, such as too few GPUs; no record is written.
          BenchmarkError: the run failed, or an output could not be written; the record holds what
            was measured.
          KeyboardInterrupt: the run was interrupted; the record holds what was measured.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(preflight.held(self.plan, self._files, self._messages))
            # After the record is written, and a program ends while its inputs still wait.
            seconds = 0.0 if supervisor.state.program else CLOSE_SECONDS
            stack.callback(close_all, self._sources, seconds)
            stack.callback(check_written, self._messages.warning)  # after a UsageError
            explain = partial(_as_benchmark_error, self.plan)
            with self._membership.to_the_end(self._end, explain), plugins.reported(BenchmarkError):
                if self.plan.work is Work.INPUT:
                    total = self._measure_input()
                else:
                    built = self.build()
                    from cnnbench.run.driver import scenarios

                    run = self._begin(built.devices)
                    scenario = (
                        scenarios.evaluate if self.plan.work is Work.EVALUATION else scenarios.train
                    )
                    try:
                        total = scenario(run, built)
                    finally:  # not in `_end`: the watchdog's thread must not wait for a library
                        so_far = self._measurements
                        so_far.environment = environment.with_loaded_libraries(so_far.environment)
                    self._note_peak_memory()
                    if self._files.wanted:
                        scenarios.measure_input_alone(run, built)
                    built.close()
                    if self._files.wanted:
                        self._measure_peak_flops(built)
                    if built.manager.workers is not None:
                        built.manager.workers.total(0)  # waits until the chief has measured
                obey()
                record = self._end("ok")  # before the others end, for which this process waits
            for line in (*summary_lines(record.summary()), *input_lines(record)):
                self._messages.notice(line)
            self._judge_figures(record)
            # The last line of a successful run, printed after its results are written.
            if total is not None:
                self._console.footer(total)
            check_written()
            return record

    def share(self) -> None:
        """Makes measurements of a process that is forked afterwards known here, for `lost`."""
        if not self.plan.place.asynchronous:  # else records need workers, too, which are not shared
            self._measurements.share()

    def lost(self, error: BenchmarkError | None) -> None:
        """Writes the record of a process that ended without one; by an interrupt if None."""
        measurements = self._measurements
        measurements.recall()
        if not measurements.written and self._files.holds(measurements.run_id) is None:
            self._end("interrupted" if error is None else "failed", error)

    def longest_step(self) -> float:
        """Seconds of the longest step so far; the first one counts only if it is alone."""
        seconds = [*self._measurements.warmup_step_seconds, *self._measurements.step_seconds]
        return max(seconds[1:] or seconds, default=0.0)

    def build(self) -> BuiltRun:
        """Loads TensorFlow, creates variables and input, and traces the step.

        Raises:
          FlagError: devices or data that are not there.
          BenchmarkError: TensorFlow cannot be loaded.
        """
        devices = self._start()
        from cnnbench.run.driver.build import Assembly

        start = time.perf_counter()
        built = Assembly(self.plan, devices).build(self._console)
        self._measurements.build_seconds = time.perf_counter() - start
        self._sources += built.sources
        describe_built(self._measurements, built)
        for notice in built.notices:
            self._messages.notice(notice)
        calibration = None if built.step is None else built.step.calibration
        if calibration is not None:
            share = f"{calibration.in_8_bits} of {calibration.convolutions} convolutions"
            self._messages.notice(f"{share} compute in 8-bit integers, all other layers in fp32")
        return built

    def _start(self) -> runtime.Devices:
        """Loads TensorFlow, describes the run and prints its header."""
        self._turns = Turns.joined(os.environ)
        self._watch = Watch(
            gpus=self.plan.machine.flags.device != "cpu", starts_with_others=self._turns.taken
        )
        settings = self.plan.machine.of_task(self.plan.place.job)
        self._watch.met(self._membership.meet())
        self._check_steps_left()  # after the handshake, so that the other processes learn of it
        start = time.perf_counter()
        for warning in runtime.export_environment(settings):
            self._messages.warning(warning)
        with without_info_lines():
            tf = load_tensorflow()
            seconds = time.perf_counter() - start + early_import_seconds()
            self._measurements.import_seconds = seconds
            devices = self._membership.join(runtime.configure(settings, self.plan.place.job))
        for notice in devices.notices:
            self._messages.notice(notice)
        if self.plan.machine.flags.device != "cpu":
            self._check_memory(devices.kind)
        if devices.kind == "cpu" and self.plan.params.data_format == "NCHW":
            runtime.check_channels_first(self.plan.numerics.dtype)
        self._warn_of_gaps()
        target = self.plan.length.target
        older = self.plan.params.stop_at_top_1_accuracy
        if older is not None and target and target.metric != "top_1":
            name = self.plan.network.model.name
            self._messages.notice(
                f"--stop_at_top_1_accuracy is the {target.metric} of {name}, as in "
                f"tf_cnn_benchmarks: --stop_at={target}"
            )
        if devices.kind == "gpu" and self.plan.params.precision == "int8":
            reason = (
                "TensorFlow sees a GPU, and --precision=int8 has kernels for CPUs alone; say cpu"
            )
            raise FlagError("device", self.plan.machine.flags.device, reason)
        # Collected before the run, because its own load would be included afterwards.
        self._measurements.environment = facts = environment.collect()
        if self._measurements.subject.warning:
            self._messages.warning(self._measurements.subject.warning)
        has_fp16 = "_fp16" in str(facts.get("cpu_isa"))  # avx512_fp16 or amx_fp16
        if devices.kind == "cpu" and self.plan.params.precision == "fp16" and not has_fp16:
            self._messages.warning(
                "--precision=fp16 runs on a CPU without 16-bit arithmetic of that kind; "
                "bf16 is about ten times faster there"
            )
        if devices.kind == "cpu" and self.plan.place.mode.multi_worker_strategy:
            self._messages.notice("MultiWorkerMirroredStrategy has one device per process on CPUs")
        tf.random.set_seed(self.plan.params.tf_random_seed)
        describe(self._measurements, plan=self.plan, devices=devices)
        assert self._measurements.placement is not None
        device = self._measurements.placement.device
        if device == EMULATED_GPU:
            self._messages.notice(EMULATED_NOTICE)
        self._console.lines(*header(self.plan, devices, tf.__version__, device))
        runtime.reset_peak_memory(devices.kind)
        return devices

    def _measure_input(self) -> float | None:
        """Runs the input pipeline alone."""
        devices = self._start()
        from cnnbench.run.driver import scenarios
        from cnnbench.run.driver.build import Assembly

        start = time.perf_counter()
        inputs = Assembly(self.plan, devices).inputs("train")
        self._measurements.build_seconds = time.perf_counter() - start
        self._sources.append(inputs)
        return scenarios.measure_input(self._begin(devices), inputs)

    def _begin(self, devices: runtime.Devices) -> ScenarioContext:
        """Warns of a machine that is not fit to measure on, before anything is measured."""
        assert self._watch is not None
        flags = run_flags(self.plan, devices, self.plan.length.batch_per_device)
        self._warn(self._watch.before(self._measurements.environment, flags))
        self._turns.wait()  # until the others have started
        self._measurements.publish()
        return ScenarioContext(
            self.plan,
            self._console,
            self._messages,
            self._progress,
            self._measurements,
            self._watch,
            self._membership.gone,
            self._profiler,
            self._turns,
            self._activity,
        )

    def _check_steps_left(self) -> None:
        """Refuses a training that its checkpoint has gone beyond, before TensorFlow is loaded."""
        folder = self.plan.outputs.train_dir
        if folder is not None and self.plan.work.trains and self.plan.place.job.is_chief:
            with contextlib.suppress(BenchmarkError):  # the folder cannot be restored
                path = files.latest(folder)
                if path is not None:
                    self.plan.length.check_steps_left(folder, int(path.rpartition("-")[2]))

    def _check_memory(self, kind: str) -> None:
        """Refuses a run that cannot fit into memory; warns of one that may not."""
        needed = preflight.estimate(self.plan, kind)
        self._measurements.note(estimated_memory_bytes=needed.total)
        there = preflight.memory_of(self.plan, kind)
        if there is not None:
            warning = preflight.check(needed, there, self.plan, refuse=kind == "cpu")
            if warning is not None:
                self._messages.warning(warning)

    def _warn_of_gaps(self) -> None:
        """Warns of files that a data set lacks."""
        if self.plan.params.data_dir is None:
            return
        used = {
            "train": self.plan.work is not Work.EVALUATION,
            "validation": self.plan.length.num_eval_batches > 0,
        }
        for subset in (name for name, is_used in used.items() if is_used):
            for gap in self.plan.network.dataset.gaps(subset, self.plan.params.data_dir):
                self._messages.warning(f"--data_dir={self.plan.params.data_dir}: {gap}")

    def _warn(self, conditions: Sequence[ConditionNote]) -> None:
        quiet = parse_quiet(self.plan.machine.flags.quiet_conditions)
        for condition in conditions:
            if condition.id not in quiet:
                self._messages.warning(str(condition))

    def _judge_figures(self, record: RunRecord) -> None:
        for warning in (warm_up_warning(record), peak_warning(record)):
            if warning is not None:
                self._messages.warning(warning)
        steady = steady_state_notice(record)
        if steady is not None:
            text, is_warning = steady
            (self._messages.warning if is_warning else self._messages.notice)(text)

    def _measure_peak_flops(self, built: BuiltRun) -> None:
        """Measures the peak FLOP rate of the devices; takes seconds on a CPU."""
        if self._measurements.lost_workers:
            return  # TensorFlow takes no new function once a process is gone
        if self.plan.params.precision == "int8" and self.plan.machine.flags.peak_flops is None:
            return  # there is no product of 8-bit integers to measure it by
        peak = tensorflow.peak(
            built.devices.kind,
            built.devices.towers,
            self.plan.numerics.dtype,
            self.plan.machine.flags.peak_flops,
        )
        if peak is not None:
            job = built.devices.job
            if built.devices.kind == "cpu":
                parts = job.machines
            else:
                parts = job.num_workers if job.client_per_worker else 1
            rate, source = peak
            if built.devices.kind == "gpu":  # logical GPUs share the rate of their card
                rate *= len(self.plan.machine.cards) / self.plan.machine.flags.num_gpus
            self._measurements.note(peak_flops_per_sec=rate * parts, peak_flops_source=source)

    def _standing(self) -> Standing:
        """Progress of the run, for the watchdog's thread."""
        job, sources, doing = self.plan.place.job, self._sources, self._activity.doing
        measurements = self._measurements
        warm_up, timed = len(measurements.warmup_step_seconds), len(measurements.step_seconds)
        last = f"step {timed}" if timed else f"warm-up step {warm_up}" if warm_up else "no step"
        waiting = [shard for source in sources for shard in source.waiting()]
        task = job.task
        if doing is Doing.STEP and waiting:
            doing = Doing.INPUT
            task = task if job.client_per_worker else job.workers[waiting[0]]
        batches = sum(source.batches for source in sources)
        return Standing(str(task), warm_up + timed, last, doing, batches)

    def _lost_another(self, message: str) -> None:
        """Writes the record before the watchdog ends this process; runs in its thread."""
        placement = self._measurements.placement
        if not self.plan.place.job.in_cluster and placement is not None and placement.kind == "gpu":
            # This process itself does not respond, not another one.
            silent = (f"{gpu} does not respond" for gpu in runtime.silent_gpus())
            message = "; ".join([message, *silent])
        error = BenchmarkError(message)
        self._end("failed", error)
        self._tell_error(message)

    def _note_peak_memory(self) -> None:
        """Notes peak memory once, before later measurements allocate memory of their own."""
        measurements = self._measurements
        if self._watch is None:
            return  # nothing ran in this process
        if measurements.placement is not None and measurements.measured.peak_memory_bytes is None:
            measurements.note(peak_memory_bytes=runtime.peak_memory(measurements.placement.kind))

    def _end(self, status: str, error: BaseException | None = None) -> RunRecord:
        """Writes the record once: what ends the run afterwards changes no measurement."""
        measurements = self._measurements
        if measurements.written and self.record is not None:
            return self.record
        self._note_peak_memory()
        conditions: Sequence[ConditionNote] = ()
        if self._watch is not None:
            conditions = self._watch.during()
            measurements.conditions = self._watch.record()
            # Energy includes pauses for evaluations, unlike the other figures of the loop.
            if not self.plan.length.eval_steps:
                measurements.note(**self._watch.energy)
        if status == "failed":
            measurements.lost_workers += self._membership.gone().keys()
        skipped = SkippedRecords.together(source.skipped() for source in self._sources)
        measurements.skipped_records = skipped if skipped.count else None
        self.record = record = measurements.record(status, error)
        if status == "ok":
            self._warn(conditions)
        for line in loss_scaling_lines(record):
            self._messages.notice(line)
        for line in skipped_lines(record):
            self._messages.warning(line)
        with uninterrupted():
            self._files.write(record, lambda: [run_row(record)])
            measurements.written = True
            measurements.publish()
            profiler, path = self._profiler, self.plan.outputs.profile_json
            if path and profiler and status == "ok" and profiler.steps and record.step_seconds:
                write_text("profile_json", path, profiler.profile(record).to_json())
        if status != "ok":  # the error that ended the run is being raised and matters more
            check_written(self._messages.warning)
        return record


def _as_benchmark_error(plan: RunPlan, error: Exception) -> BenchmarkError | None:
    """One line for failures of TensorFlow and the machine; None for a defect of cnnbench."""
    if isinstance(error, BenchmarkError):
        return error
    reason = exhausted(error)
    if reason:
        return (OutOfMemoryError if "memory" in reason else BenchmarkError)(reason)
    if isinstance(error, OSError):
        return BenchmarkError(f"{error.strerror or error}: {error.filename or 'a file'}")
    tf: Any = sys.modules.get("tensorflow")
    if not hasattr(tf, "errors"):
        return None  # it could not be loaded
    reason = first_line(error)
    if isinstance(error, tf.errors.ResourceExhaustedError) or _NO_ROOM in reason:
        flags = "--batch_size"
        if plan.params.eval_batch_size:
            flags += " or --eval_batch_size"
        return OutOfMemoryError(f"out of memory: lower {flags} (counted per device); {reason}")
    torn = (tf.errors.OutOfRangeError, tf.errors.DataLossError)
    if plan.machine.flags.xla_cache_dir and isinstance(error, torn):
        reason = f"a file there cannot be read, remove it: {reason}"
        return BenchmarkError(f"--xla_cache_dir={plan.machine.flags.xla_cache_dir}: {reason}")
    if isinstance(error, tf.errors.OpError):
        if "grouped convolutions" in reason:
            reason += "; oneDNN has them: TF_ENABLE_ONEDNN_OPTS=1"
        return BenchmarkError(f"TensorFlow: {type(error).__name__}: {reason}")
    return None
