"""Runs a benchmark in this process, from its flags to its record.

`BenchmarkCNN(Params(model="resnet50", num_gpus=2)).run()` plans the run, starts its devices,
builds its work (build.py), trains, evaluates or reads input as the flags request (scenarios.py),
and returns the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cnnbench.base import plugins
from cnnbench.base.interrupts import delaying_interrupts, raise_if_interrupted
from cnnbench.base.terminal import MessageWriter, ProgressLine, silence_warnings
from cnnbench.data.dataset import CLOSE_SECONDS, InputSource, close_inputs
from cnnbench.errors import (
    BenchmarkError,
    FlagError,
    OutOfMemoryError,
    UsageError,
    exhausted,
    informative_line,
    is_out_of_memory,
)
from cnnbench.machine import facts as environment
from cnnbench.machine import repository
from cnnbench.machine.checks import parse_silenced
from cnnbench.machine.cpu import LIBRARY
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.machine.watch import ConditionMonitor, ProcessUseSampler
from cnnbench.plan import (
    Runnable,
    RunPlan,
    WorkKind,
    check_flags,
    join_job,
    resolve,
    without_outputs,
)
from cnnbench.records.checkpoints import write_training_status
from cnnbench.records.files import report_failed_writes, write_text
from cnnbench.records.input import SkippedRecords
from cnnbench.records.measurements import Measurements
from cnnbench.records.result_files import RUNS, ResultFiles, run_row
from cnnbench.records.run import (
    EMULATED_GPU,
    Batch,
    Cluster,
    ConditionNote,
    ModelInfo,
    Placement,
    RunRecord,
    TaskAddress,
    WorkerShare,
    device_kind_for_record,
)
from cnnbench.run.driver import preflight
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.describe import header_lines, machine_check_flags
from cnnbench.run.driver.estimates import check_memory
from cnnbench.run.driver.membership import JobMembership
from cnnbench.run.driver.notices import print_notices
from cnnbench.run.runtime import supervisor
from cnnbench.run.runtime.convolutions import (
    check_nchw_support,
    resolve_conv_gradients,
    resolve_data_format,
)
from cnnbench.run.runtime.devices import (
    Devices,
    configure_devices,
    find_unresponsive_gpus,
    read_peak_memory,
    reset_peak_memory,
    set_environment,
    tensor_bytes_by_gpu,
)
from cnnbench.run.runtime.loading import early_import_seconds, load_tensorflow
from cnnbench.run.runtime.native_log import without_info_lines
from cnnbench.run.runtime.progress import ProcessActivity, ProcessProgress
from cnnbench.run.runtime.turns import TimeSlices

if TYPE_CHECKING:
    from cnnbench.run.driver.step_profile import StepProfiler
    from cnnbench.run.driver.work import Work
    from cnnbench.variable_mgr.workers import WorkerGroup

# TensorFlow's error message if a device has too little memory for a copy.
_COPY_OUT_OF_MEMORY = "Dst tensor is not initialized"


def _long_run_notice(plan: RunPlan) -> str:
    """Returns a notice if a run has unusually many steps, perhaps by mistake; otherwise ""."""
    warm_up, timed, length = plan.length.warm_up.most, plan.length.batches, plan.length
    evaluated = length.eval_batches * (len(length.eval_steps) + 1) * plan.work.trains
    if warm_up <= 1000 and max(timed, evaluated) <= 1_000_000:
        return ""
    steps = f"{warm_up} warm-up steps, {timed} timed steps, {evaluated} evaluation steps"
    return f"a long run: up to {steps}"


class BenchmarkCNN(RunContext):
    """One run of a benchmark in this process.

    Args:
      run: the flags, or a plan that was made from flags.
      command: words of the command line, for the record.
      explicit_flags: names of the flags that the user has set, for the record.
      console, messages, progress: write the log, the notices and warnings, and the progress line.
        Without these objects, nothing is printed.
      measurements: an object that the run fills; by default a new object, with `command`.

    Attributes:
      sources: open inputs.
      record: the record, after it has been written.

    Raises:
      FlagError: a parameter is invalid.
    """

    record: RunRecord | None = None
    _skipped_in_job: SkippedRecords | None = None

    def __init__(
        self,
        run: Runnable,
        *,
        command: Sequence[str] = (),
        explicit_flags: Sequence[str] = (),
        console: Console | None = None,
        messages: MessageWriter | None = None,
        progress: ProgressLine | None = None,
        measurements: Measurements | None = None,
    ) -> None:
        messages = messages or MessageWriter.silent()
        if not isinstance(run, RunPlan):
            run = resolve(join_job(check_flags(run), os.environ, messages.notice))
            run = run.with_changes(explicit_flags=tuple(explicit_flags))
        plan = run
        job = plan.place.job
        if job.is_server_only:
            reason = f"{job.task} is a server; start it with cnnbench run"
            raise FlagError("job_name", job.task.job, reason)
        tell = messages.notice
        lost = partial(self._write_failure, tell_error=messages.error)
        silence_warnings(parse_silenced(plan.params.quiet_conditions))
        if not job.is_chief:
            # In a job, only the chief prints and writes results. A worker prints only its own fatal
            # error.
            plan = without_outputs(plan)
            console, progress, messages = None, None, MessageWriter.silent()
        config = plan.config
        facts = plan.job_facts_to_agree_on if job.in_cluster else {}
        self._use = ProcessUseSampler()
        super().__init__(
            plan,
            console or Console.silent(),
            messages,
            progress or ProgressLine.silent(),
            ResultFiles(plan.params.result_json, plan.params.result_csv, RUNS),
            measurements or Measurements(command=command),
            ConditionMonitor(use=self._use),
            JobMembership(plan, tell, lost, facts, read_progress=self._read_progress),
        )
        self.measurements.update_config(**plan.given.as_dict())
        self.measurements.update_config(**config)
        self.measurements.update_record(
            explicit_flags=tuple(plan.explicit_flags),
            subject=repository.measured_code(config),
            target=plan.length.target,
        )
        self.measurements.checkpoint_save_folder = plan.checkpoint_save_folder
        self.measurements.publish_to_parent()
        if plan.place.asynchronous:
            # The record needs the updates of each worker, for which the memory shared with the
            # parent has no space.
            self.measurements.stop_sharing_with_parent()
        self.sources: list[InputSource] = []
        if plan.params.profile_json is not None:
            self.profile_warm_up_steps(plan.params.profile_steps)
        if plan.params.device == "cpu":
            check_memory(plan, self.measurements, messages, "cpu")
        if notice := _long_run_notice(plan):
            messages.notice(notice)

    def profile_warm_up_steps(self, steps: int) -> StepProfiler:
        """Requests a profile of at most the last `steps` warm-up steps, and returns the profiler.

        `run` then makes the profile.
        """
        # This module is imported only here, because charts and readers of profiles load slowly and
        # most runs do not need them.
        from cnnbench.run.driver.step_profile import StepProfiler

        self.profiler = StepProfiler(
            self.plan, steps, lambda: sum(source.wait_seconds for source in self.sources)
        )
        return self.profiler

    def run(self) -> RunRecord:
        """Runs the benchmark to its end, and writes the requested result files.

        Returns:
          The record. It is also in `self.record`, even after an exception.

        Raises:
          UsageError: a flag cannot be used on this machine. No record is written.
          BenchmarkError: the run failed, or an output could not be written; see `self.record`.
          KeyboardInterrupt: the run was interrupted. The record contains the measurements.
        """
        messages, measurements = self.messages, self.measurements
        with contextlib.ExitStack() as stack:
            stack.enter_context(preflight.locked_outputs(self.plan, self.files, messages))
            # Callbacks run in reverse order, so inputs are closed after the record is written. A
            # command does not wait for their threads, because the process ends anyway.
            seconds = 0.0 if supervisor.state.program else CLOSE_SECONDS
            stack.callback(close_inputs, self.sources, seconds)
            # A UsageError ends the run before the normal report of failed writes, so they are also
            # reported here.
            stack.callback(report_failed_writes, messages.warning)
            self._use.start(measurements.use_samples.append)
            stack.callback(self._use.close)
            explain = partial(to_benchmark_error, self.plan)
            end = self.membership.reporting_end(self._write_once, explain)
            with end, plugins.reporting_plugin_errors(BenchmarkError):
                # While the run is built, a plug-in's error counts as wrong usage; later, it counts
                # as a failed run.
                with plugins.reporting_plugin_errors(UsageError):
                    work = self.build()
                total = self._run_work(work)
                raise_if_interrupted()
                record = self._write_once("ok")
            print_notices(record, messages)
            # The total must be the last line of a successful run, so it is printed after the
            # results are written.
            if total is not None:
                self.console.print_footer(total)
            report_failed_writes()
            return record

    def build(self) -> Work:
        """Starts the devices, creates variables and input, and traces the step.

        Raises:
          FlagError: devices or data do not exist.
          BenchmarkError: TensorFlow cannot be loaded.
        """
        devices = self._start_devices()
        from cnnbench.run.driver.build import build

        start = time.perf_counter()
        work = build(self.plan, devices, self.console)
        self.measurements.update_record("startup_seconds", build=time.perf_counter() - start)
        self.sources += work.sources
        work.record_sizes(self.measurements)
        for notice in dict.fromkeys(work.notices):
            self.messages.notice(notice)
        for name, warning in work.warnings.items():
            self.messages.warning(warning, name)
        return work

    def _start_devices(self) -> Devices:
        """Connects the processes of the job, and starts the devices of the run."""
        plan = self.plan
        self.membership.turns = turns = TimeSlices.from_environment(os.environ)
        gpus = plan.params.device != "cpu"
        self.watch.start(gpus=gpus, starts_with_others=turns.is_interleaved)
        self.watch.set_peers(self.membership.connect())
        if plan.checkpoint_save_folder is not None and plan.place.job.is_chief:
            # This check comes after the handshake; otherwise, the other processes would wait for
            # this process and not receive its error.
            preflight.check_steps_left(plan, plan.checkpoint_save_folder)
        devices = _open_devices(self)
        if devices.kind == "gpu":
            self._use.device_memory = lambda: max(tensor_bytes_by_gpu("current"), default=0)
        return devices

    def _run_work(self, work: Work) -> float | None:
        """Runs the work and measures its limits. Returns the speed that the run prints last."""
        from cnnbench.run.driver import scenarios

        measurements, group = self.measurements, work.worker_group
        flags = machine_check_flags(self.plan, work.devices, self.plan.length.batch_per_device)
        self._warn_of(self.watch.check_before_run(measurements.parts.environment, flags))
        # Waits until all processes that share time slices with this process have started.
        self.membership.turns.wait_for_next_slice()
        measurements.publish_to_parent()
        try:
            total = scenarios.run_work(self, work)
        finally:
            # `_write_once` does not list the loaded libraries, because it may run during a
            # hang. So they are listed here.
            facts = environment.with_loaded_libraries(measurements.parts.environment)
            measurements.update_record(environment=facts)
        self._record_memory()
        recorded = self.files.is_requested
        if group is not None:
            recorded = group.broadcast_chief_bool(recorded)
        if recorded and self.plan.work is not WorkKind.INPUT:
            scenarios.measure_speed_limits(self, work)
        work.close()
        if group is not None:
            # This exchange also makes the other workers wait until the chief has finished its
            # measurements.
            self._skipped_in_job = self._gather_skipped(group)
        return total

    def _gather_skipped(self, group: WorkerGroup) -> SkippedRecords:
        """Returns the records that the inputs of all workers have skipped so far."""
        own = json.dumps(dataclasses.asdict(self._own_skipped()))
        of_workers = map(json.loads, group.gather_bytes(own.encode()))
        return SkippedRecords.combined(SkippedRecords(**fields) for fields in of_workers)

    def _own_skipped(self) -> SkippedRecords:
        return SkippedRecords.combined(source.skipped() for source in self.sources)

    def _warn_of(self, conditions: Sequence[ConditionNote]) -> None:
        for condition in conditions:
            self.messages.warning(str(condition), condition.id)

    def _read_progress(self) -> ProcessProgress:
        """Returns the number of finished steps and the current activity, for the watchdog."""
        job, sources, doing = self.plan.place.job, self.sources, self.membership.activity
        measurements = self.measurements
        warm_up, timed = len(measurements.warmup.losses), len(measurements.timed.losses)
        last = f"step {timed}" if timed else "no step"
        if warm_up and not timed:
            last = f"warm-up step {warm_up}"
        waiting = [shard for source in sources for shard in source.seconds_waiting_by_shard()]
        task = job.task
        if doing is ProcessActivity.STEP and waiting:
            doing = ProcessActivity.INPUT
            task = task if job.client_per_worker else job.workers[waiting[0]]
        batches = sum(source.batches for source in sources)
        return ProcessProgress(str(task), warm_up + timed, last, doing, batches)

    def _write_failure(self, message: str, tell_error: Callable[[str], None]) -> None:
        """Writes the record of a run that cannot continue, before the watchdog ends this process.

        `message` names the lost process. The method runs in the watchdog's thread.
        """
        placement = self.measurements.parts.placement
        if not self.plan.place.job.in_cluster and placement is not None and placement.kind == "gpu":
            # If the job has only one process, a GPU may have caused the stall, so GPUs that do not
            # respond are named.
            silent = (f"{gpu} does not respond" for gpu in find_unresponsive_gpus())
            message = "; ".join([message, *silent])
        error = BenchmarkError(message)
        self._write_once("failed", error)
        if self.plan.checkpoint_save_folder is not None:
            write_training_status(self.plan.checkpoint_save_folder, "failed")
        tell_error(message)

    def _record_memory(self) -> None:
        """Records peak memory once, before later measurements allocate more memory."""
        parts = self.measurements.parts
        # Without a placement, the run ended before TensorFlow was loaded, so there is no memory to
        # record.
        if parts.placement is not None and parts.measured.peak_memory_bytes is None:
            peak = read_peak_memory(parts.placement.kind)
            self.measurements.update_record("measured", peak_memory_bytes=peak)

    def _write_once(self, status: str, error: BaseException | None = None) -> RunRecord:
        """Writes the record, unless it is written already. Later errors do not change the
        measurements.
        """
        measurements = self.measurements
        if measurements.written and self.record is not None:
            return self.record
        self._record_memory()
        self._use.close()
        conditions = self.watch.check_timed_loop()
        measurements.update_record(conditions=self.watch.observed_conditions())
        # The energy would include the pauses for evaluations, so it is recorded only for runs
        # without evaluations.
        if not self.plan.length.eval_steps:
            measurements.update_record("measured", **self.watch.energy)
        if status == "failed":
            measurements.lost_workers += self.membership.lost_tasks().keys()
        skipped = self._skipped_in_job or self._own_skipped()
        measurements.update_record(skipped_records=skipped if skipped.count else None)
        self.record = record = measurements.make_record(status, error)
        if isinstance(error, OutOfMemoryError) and measurements.can_halve_batch:
            return record  # A smaller batch is tried, and that attempt is recorded.
        if status == "ok":
            self._warn_of(conditions)
        with delaying_interrupts():
            flags = self.plan.changed_flags(record.config)
            self.files.write(record, lambda: [run_row(record, flags)])
            measurements.written = True
            measurements.publish_to_parent()
            profiler, path = self.profiler, self.plan.params.profile_json
            if path and profiler and status == "ok" and profiler.steps and record.step_seconds:
                write_text("profile_json", path, profiler.profile(record).to_json())
        if status != "ok":
            print_notices(record, self.messages)
            # The error that ended the run is raised by the caller. Outputs that cannot be written
            # cause only warnings.
            report_failed_writes(self.messages.warning)
        return record


def _open_devices(run: RunContext) -> Devices:
    """Loads TensorFlow, connects the devices of the job, and prints the header of the run.

    Raises:
      FlagError: the devices do not exist, or do not support a flag.
      BenchmarkError: TensorFlow cannot be loaded, or a process of the job is missing.
    """
    plan, messages, measurements = run.plan, run.messages, run.measurements
    settings = plan.process_flags
    start = time.perf_counter()
    for warning in set_environment(settings):
        messages.warning(warning, "variables")
    with without_info_lines():
        tf = load_tensorflow()
        seconds = time.perf_counter() - start + sum(early_import_seconds)
        measurements.update_record("startup_seconds", import_=seconds)
        devices = configure_devices(settings, plan.place.job)
        devices = run.membership.connect_tensorflow(devices)
    for notice in devices.notices:
        messages.notice(notice)
    _check_devices(run, devices)
    # The load of the machine is recorded now, because the run itself will add load.
    measurements.update_record(environment=environment.collect())
    _warn_of_setup(run, devices)
    tf.random.set_seed(plan.params.tf_random_seed)
    _record_setup(run, devices)
    device = device_kind_for_record(devices.kind, measurements.parts.environment)
    if device == EMULATED_GPU:
        messages.notice(EMULATED_NOTICE)
    config = measurements.parts.config
    run.console.lines(*header_lines(plan, devices, tf.__version__, device, config))
    reset_peak_memory(devices.kind)
    return devices


def _check_devices(run: RunContext, devices: Devices) -> None:
    """Raises FlagError for flags or a checkpoint that cannot be used. Warns of missing files."""
    plan, messages = run.plan, run.messages
    if plan.params.device != "cpu":
        check_memory(plan, run.measurements, messages, devices.kind)
    if devices.kind == "cpu" and plan.params.data_format == "NCHW":
        check_nchw_support(plan.numerics.dtype)
    dataset, data = plan.network.dataset, plan.params.data_dir
    if data is not None:
        for subset in plan.work.subsets:
            for gap in dataset.file_notices(subset, data):
                messages.warning(f"--data_dir={data}: {gap}", "files")
    target = plan.length.target
    older = plan.params.stop_at_top_1_accuracy
    if older is not None and target and target.metric != "top_1":
        messages.notice(
            f"for {plan.network.model.name}, --stop_at_top_1_accuracy means {target.metric}, "
            f"as in tf_cnn_benchmarks; --stop_at={target} has the same effect"
        )
    folder = plan.params.train_dir
    if folder is not None and plan.work is not WorkKind.INPUT and devices.job.is_chief:
        # Imported late, because this module loads TensorFlow.
        from cnnbench.run.driver.stored_checkpoint import check_old_checkpoint

        check_old_checkpoint(folder, plan.network.spec)


def _warn_of_setup(run: RunContext, devices: Devices) -> None:
    """Warns of code whose commit is unknown, and of flags that CPUs support only badly."""
    plan, messages = run.plan, run.messages
    facts, subject = run.measurements.parts.environment, run.measurements.parts.subject
    if subject is not None and subject.unknown_commit_warning:
        messages.warning(subject.unknown_commit_warning, "commit")
    if devices.kind != "cpu":
        return
    # The instruction sets with fp16 arithmetic are avx512_fp16 and amx_fp16.
    if plan.numerics.dtype == "float16" and "_fp16" not in str(facts.get("cpu_isa")):
        messages.warning(
            "--precision=fp16 runs on a CPU without fp16 arithmetic; "
            "bf16 is about ten times faster there",
            "fp16",
        )
    if plan.place.mode.uses_worker_strategy:
        messages.notice("on CPUs, MultiWorkerMirroredStrategy supports only one device per process")


def _record_setup(run: RunContext, devices: Devices) -> None:
    """Records what is known before the first step: model, placement, batch size and flags."""
    plan, measurements = run.plan, run.measurements
    job, spec = plan.place.job, plan.network.spec
    measurements.update_record(
        model=ModelInfo(
            name=plan.network.model.name,
            parameters=spec.parameters,
            trainable_parameters=spec.trainable_parameters,
            forward_flops_per_image=spec.forward_flops_per_image,
            training_flops_per_image=spec.training_flops_per_image,
            recomputed_flops_per_image=plan.recomputed_flops,
        ),
        placement=Placement(
            device=device_kind_for_record(devices.kind, measurements.parts.environment),
            devices=devices.job.own_tower_devices,
            num_towers=job.num_towers,
            num_workers=job.num_workers,
            variable_update=plan.place.mode.name,
            # The record contains the all-reduce that is used; the header contains the all-reduce
            # that was requested.
            all_reduce=plan.reduction_names(on_gpu=devices.kind == "gpu"),
        ),
        batch=Batch(
            per_device=plan.length.batch_per_device,
            global_=plan.length.global_batch,
            requested_per_device=measurements.requested_batch,
        ),
    )
    if job.in_cluster:
        tasks = tuple(TaskAddress(task=str(t), address=job.address(t)) for t in job.tasks)
        workers = tuple(WorkerShare(task=str(w), steps=0, images=0) for w in job.workers)
        measurements.update_record(cluster=Cluster(tasks=tasks, workers=workers))
    by_library = resolve_conv_gradients(plan, devices.kind) == LIBRARY
    measurements.update_config(
        device=devices.kind,
        data_format=resolve_data_format(plan.params.data_format, devices.kind),
        conv_gradients=LIBRARY if by_library else "fastest",
        num_intra_threads=devices.intra_threads,
        num_inter_threads=devices.inter_threads,
        datasets_num_private_threads=devices.input_threads,
    )


def to_benchmark_error(plan: RunPlan, error: Exception) -> BenchmarkError | None:
    """Converts an exception of TensorFlow or the operating system to an error with a short message.

    Returns None for a defect of cnnbench.
    """
    if isinstance(error, BenchmarkError):
        return error
    reason = exhausted(error)
    if reason:
        place = plugins.plugin_location_of_error(error)
        text = f"{place}: {reason}" if place else reason
        return (OutOfMemoryError if "memory" in reason else BenchmarkError)(text)
    if isinstance(error, OSError):
        return BenchmarkError(f"{error.strerror or error}: {error.filename or 'unknown file'}")
    tf: Any = sys.modules.get("tensorflow")
    if not hasattr(tf, "errors"):
        return None  # Without TensorFlow, the error cannot come from it.
    reason = informative_line(error)
    if isinstance(error, tf.errors.ResourceExhaustedError) or _COPY_OUT_OF_MEMORY in reason:
        flags = "--batch_size"
        if plan.params.eval_batch_size:
            flags += " or --eval_batch_size"
        return OutOfMemoryError(f"out of memory: lower {flags} (counted per device); {reason}")
    torn = (tf.errors.OutOfRangeError, tf.errors.DataLossError)
    if plan.params.xla_cache_dir and isinstance(error, torn):
        reason = f"a file in this folder cannot be read; remove the file: {reason}"
        return BenchmarkError(f"--xla_cache_dir={plan.params.xla_cache_dir}: {reason}")
    if isinstance(error, tf.errors.OpError):
        if "grouped convolutions" in reason:
            reason += "; oneDNN supports grouped convolutions: set TF_ENABLE_ONEDNN_OPTS=1"
        full = is_out_of_memory(type(error).__name__, reason)
        kind = OutOfMemoryError if full else BenchmarkError
        return kind(f"TensorFlow: {type(error).__name__}: {reason}")
    return None
