"""What `cnnbench run` does after it has parsed its flags.

The command imports this module late, so that misspelled flags are refused at once.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cnnbench.base.job import PS
from cnnbench.base.shared import SharedValue
from cnnbench.base.terminal import (
    MessageWriter,
    ProgressLine,
    is_terminal,
    print_result,
    silence_warnings,
)
from cnnbench.base.text import format_duration
from cnnbench.errors import BenchmarkError, ExitCode, OutOfMemoryError, exhausted, text_of
from cnnbench.flags import ONLY_CHECK, SPECS, ParsedArgs, nondefault_identity
from cnnbench.machine.checks import parse_silenced
from cnnbench.plan import (
    RunPlan,
    check_flags,
    facts_to_agree_on,
    join_job,
    plan_before_plugins,
    resolve,
    without_batch_size_search,
)
from cnnbench.records.checkpoints import write_training_status
from cnnbench.records.files import report_failed_writes
from cnnbench.records.measurements import Measurements
from cnnbench.records.result_files import RUNS, ResultFiles, run_row
from cnnbench.run.driver import describe
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.notices import print_notices
from cnnbench.run.runtime.devices import register_early_setup
from cnnbench.run.runtime.supervisor import RETRY, exit_without_cleanup, fork_supervised, state

_FIND = "find_batch_size"


class RunProcess:
    """A process of `cnnbench run`, with its measurements so far. `argv` is its command line."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self._measurements = measurements = Measurements(command=["cnnbench", *argv])
        self._written = written = _SharedTexts()

        def start_sharing() -> None:
            measurements.start_sharing_with_forks()
            written.start_sharing_with_forks()

        complete = partial(_rescue_record, measurements)
        self._fork = partial(
            fork_supervised,
            complete,
            start_sharing,
            measurements.longest_execution,
            lambda: measurements.can_halve_batch,
        )

    def prepare_plugins(self, args: ParsedArgs) -> None:
        """Prepares the process for plug-ins that run TensorFlow operations when they are loaded."""
        if not args.given.get(ONLY_CHECK):
            params = args.params
            if params.find_batch_size:  # Each attempt is a run without this flag.
                params = params.replace(find_batch_size=False)
            plan = partial(plan_before_plugins, params, explicit=tuple(args.given))
            register_early_setup(self._fork, params, plan)

    def run(self, args: ParsedArgs) -> ExitCode:
        """Runs the benchmark that the flags describe. Returns `ExitCode.OK`; a failure raises."""
        fork, measurements = self._fork, self._measurements
        self.prepare_plugins(args)
        progress = ProgressLine(sys.stderr, args.params.progress)
        messages = _AttemptMessages(self._written)
        if args.given.get(ONLY_CHECK):
            print_result(_describe_plan(args, messages))
            return ExitCode.OK
        if args.params.find_batch_size:
            args = _fork_attempt(args, fork, measurements, messages)
        plan = check_flags(args)
        for notice in plan.notices:
            messages.notice(notice)
        job = plan.place.job
        keeps_variables = job.is_server_only and job.task.job == PS
        plan = join_job(plan, os.environ, messages.notice)
        if keeps_variables:  # A ps task needs only the flags with addresses.
            return serve_devices(plan, facts_to_agree_on({}, ()), messages)
        plan = resolve(plan)
        if not self._argv and is_terminal(sys.stderr):
            messages.notice(_default_run_text(plan))
        if job.is_server_only:
            return serve_devices(plan, plan.job_facts_to_agree_on, messages)
        _run_benchmark(plan, fork, measurements, messages, progress)
        return ExitCode.OK


def _run_benchmark(
    plan: RunPlan,
    fork: Callable[[], None],
    measurements: Measurements,
    messages: MessageWriter,
    progress: ProgressLine,
) -> None:
    """Runs a planned benchmark. With --find_batch_size, ends the process if memory runs out."""
    # This import is late, because invalid flags should be refused without waiting for it.
    from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN

    try:
        benchmark = BenchmarkCNN(
            plan,
            measurements=measurements,
            console=Console(sys.stdout),
            messages=messages,
            progress=progress,
        )
        try:
            fork()
        except (RuntimeError, OSError) as error:  # No thread or process can be started.
            _rescue_record(measurements, BenchmarkError(exhausted(error) or text_of(error)))
            raise
        benchmark.run()
    except OutOfMemoryError as error:
        if measurements.can_halve_batch:
            messages.notice(str(error))
            exit_without_cleanup(RETRY)
        raise


class _SharedTexts:
    """Texts that the attempts of --find_batch_size have written, each with the number of its first
    attempt. Before the first fork, it stores nothing.
    """

    def __init__(self) -> None:
        self._shared: SharedValue | None = None

    def start_sharing_with_forks(self) -> None:
        """Starts to share the texts with all processes that are forked later."""
        self._shared = self._shared or SharedValue()

    def add(self, text: str) -> bool:
        """Adds a text of this attempt. Returns whether no earlier attempt has written it."""
        if self._shared is None:
            return True
        attempts = self._shared.get() or {}
        first = attempts.setdefault(text, state.attempt)
        self._shared.set(attempts)
        return bool(first == state.attempt)


class _AttemptMessages(MessageWriter):
    """Writes the messages of a run, except those of earlier attempts of --find_batch_size."""

    def __init__(self, written: _SharedTexts) -> None:
        super().__init__()
        self._written = written

    def notice(self, text: str) -> None:
        """Writes a notice unless an earlier attempt has written it."""
        if self._written.add(text):
            super().notice(text)

    def warning(self, text: str, name: str) -> None:
        """Writes a warning unless an earlier attempt has written one of the same name. The numbers
        in the text may be different in each attempt.
        """
        if self._written.add(f"warning {name}"):
            super().warning(text, name)


def _fork_attempt(
    args: ParsedArgs, fork: Callable[[], None], measurements: Measurements, messages: MessageWriter
) -> ParsedArgs:
    """Forks a process for an attempt of --find_batch_size. In the new process, returns the flags of
    the attempt.

    Each attempt has half the batch of the previous attempt, rounded down if the batch must be even.
    """
    args, plan = without_batch_size_search(args)
    requested, unit = plan.length.batch_per_device, plan.input.training.required_batch_multiple
    measurements.requested_batch, measurements.smallest_batch = requested, unit
    fork()
    # A process can be forked only by the program `cnnbench` and on Linux.
    if state.link is None:
        return args.including({_FIND: True})  # The plan of the run refuses --find_batch_size.
    if not state.attempt:
        return args
    attempts = (state.attempt - 1, state.attempt)
    before, batch = (max(1, (requested >> n) // unit) * unit for n in attempts)
    messages.notice(f"--batch_size={before} does not fit into memory: trying {batch}")
    whole = {"global_batch_size": 0} if "global_batch_size" in args.given else {}
    return args.including({"batch_size": batch, **whole})


def _rescue_record(measurements: Measurements, error: BenchmarkError | None) -> None:
    """Writes the record of a forked process that ended without a record. If `error` is None, it was
    interrupted.
    """
    measurements.copy_published_values()
    config = measurements.parts.config  # `config` is empty until the run is planned.
    files = ResultFiles(config.get("result_json"), config.get("result_csv"), RUNS)
    if (
        measurements.written
        or not config
        or files.read_document_of_run(measurements.parts.run_id) is not None
    ):
        return
    record = measurements.make_record("interrupted" if error is None else "failed", error)
    if measurements.checkpoint_save_folder is not None:
        write_training_status(measurements.checkpoint_save_folder, record.status)
    files.write(record, lambda: [run_row(record, nondefault_identity(record.config))])
    messages = MessageWriter()
    silence_warnings(parse_silenced(config.get("quiet_conditions", "")))
    print_notices(record, messages)
    report_failed_writes(messages.warning)


def _describe_plan(args: ParsedArgs, messages: MessageWriter) -> str:
    """Describes a planned run and every given flag with its value. Prints notices."""
    find = args.params.find_batch_size
    if find:
        args, _ = without_batch_size_search(args)
    plan, lines = check_flags(args), []
    for notice in plan.notices:
        messages.notice(notice)
    job = plan.place.job
    if not (job.is_server_only and job.task.job == PS):  # A ps task builds no network.
        plan = resolve(plan)
        lines = [
            *describe.network_lines(plan),
            f"Devices:     {plan.params.num_gpus}",
        ]
        lines += describe.update_lines(plan)
    specs = [SPECS[name] for name in plan.explicit_flags if name in SPECS]
    given = plan.params.replace(find_batch_size=find)
    flags = (f"--{spec.name}={spec.text(getattr(given, spec.name))}" for spec in specs)
    return "\n".join([*lines, *flags])


# Rough estimates: seconds to load TensorFlow, FLOP/s of a core, bytes of input per second.
_START_SECONDS, _CORE_FLOPS, _INPUT_BYTES = 10.0, 2e10, 5e8


def _default_run_text(plan: RunPlan) -> str:
    """Describes a run for which no flags are given, with its estimated duration on CPUs."""
    network, length = plan.network, plan.length
    images = length.global_batch * length.training_steps
    shapes = [[n for n in example.shape if isinstance(n, int)] for example in network.examples]
    size = sum(4 * math.prod(shape) for shape in shapes)
    cores = os.cpu_count() or 1
    seconds = _START_SECONDS + images * size / _INPUT_BYTES
    seconds += images * network.spec.training_flops_per_image / (_CORE_FLOPS * cores)
    return (
        f"no flags: trains {network.model.name} on synthetic {network.dataset.name}, "
        f"{length.warm_up.least} warm-up and {length.batches} timed steps of "
        f"{length.global_batch} images; about {format_duration(seconds)} on idle CPUs, less on a "
        "GPU. "
        "cnnbench run --help lists the flags, cnnbench models the networks; Ctrl-C ends it"
    )


def serve_devices(plan: RunPlan, facts: Mapping[str, str], messages: MessageWriter) -> ExitCode:
    """Runs a TensorFlow server, whose devices the chief of a job uses, until the job ends.

    Returns `ExitCode.OK`; raises if the chief fails or is interrupted. Nothing is written to
    standard output. `facts` must be equal in all processes.
    """
    from cnnbench.run.driver.membership import JobMembership

    fork_supervised()
    job = plan.place.job
    name = str(job.task)
    membership = JobMembership(
        plan,
        lambda line: messages.notice(f"{name}: {line}"),
        lambda line: messages.error(f"{name}: {line}"),
        facts,
    )
    how = membership.serve_until_run_ends()
    if how.code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if how.code != ExitCode.OK:
        raise BenchmarkError(f"{name}: {job.chief} failed: {how.reason}")
    return ExitCode.OK
