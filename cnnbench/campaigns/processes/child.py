"""Starts child processes, and stops them after a time-out or when the parent process dies."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cnnbench
from cnnbench.base import message, plugins
from cnnbench.base.interrupts import (
    AT_ONCE,
    LONGEST_WAIT_SECONDS,
    SAME_SECONDS,
    find_grace_announcement,
    interrupt_grace_seconds,
    raise_if_interrupted,
)
from cnnbench.base.terminal import print_notice
from cnnbench.base.text import format_bytes
from cnnbench.campaigns.processes import guard
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.flags.declare import FlagSpec
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS, params_from_values
from cnnbench.flags.params import ACCEPTED
from cnnbench.lab.all_reduce import plan as all_reduce_plan
from cnnbench.machine import repository
from cnnbench.machine.cpu import count_oom_kills
from cnnbench.machine.facts import comparable_fact
from cnnbench.plan import RunPlan
from cnnbench.plan.place import WorkKind
from cnnbench.plan.run_plan import KEY_LENGTH, identity_on_this_machine
from cnnbench.records.codec import encode
from cnnbench.records.files import check_outputs
from cnnbench.records.run import RunRecord
from cnnbench.run.driver import preflight
from cnnbench.run.driver.preflight import (
    RunComputation,
    available_memory,
    batch_size_limits,
    computes_on_cpu,
    estimate_job_memory,
    estimate_memory,
    estimate_run_computation,
)
from cnnbench.run.runtime.supervisor import GUARDED
from cnnbench.variable_mgr.all_reduce.spec import names

_LOOK_SECONDS = 0.1
_LATE = 1.2
_TAIL_BYTES = 8192
_PR_SET_CHILD_SUBREAPER = 36

# Removes the working directory from sys.path, because its files could shadow a package.
_LAUNCH = (
    "import sys; root = sys.argv.pop(1); "
    "sys.path[:] = [path for path in (root, *sys.path) if path]; "
)

COMMAND_LINE = "from cnnbench.__main__ import entry_point; entry_point()"
"""Code for `launcher_code` that runs cnnbench with the command line in sys.argv."""


def launcher_code(code: str) -> str:
    """Extends `code` for ``python -c``: the first argument must be the folder that contains
    cnnbench.

    The extended code adds this folder to sys.path, and `code` finds the remaining arguments in
    sys.argv.
    """
    return _LAUNCH + code


def own_checkout() -> str:
    """Folder of the source checkout from which this cnnbench runs; "" if cnnbench runs from an
    installed package.
    """
    package = Path(os.path.abspath(cnnbench.__file__)).parent
    return "" if (package / "models").is_dir() else str(package.parent)


def own_command_prefix() -> tuple[str, ...]:
    """The first words of a command line that starts the cnnbench of this process again.

    The cnnbench command and its flags are appended to these words.
    """
    script = Path(sys.argv[0])
    if script.name == "cnnbench" and script.is_file():
        # With -m, a checkout in the working directory would shadow the installed package.
        return (sys.executable, str(script.resolve()))
    # If `launcher_code` started this process, the working directory may contain other code.
    if sys.argv[0] == "-c":
        return (sys.executable, "-c", launcher_code(COMMAND_LINE), own_checkout())
    return (sys.executable, "-m", "cnnbench")


@dataclass(frozen=True)
class ProcessResult:
    """Result of a child process: its exit code, time and memory.

    `campaign.add_record_and_status` adds the record of a measurement.

    Attributes:
      code: exit code, or the negative number of the signal that killed the process; None if
        unknown, because its guard was killed too.
      seconds: wall time. For interleaved processes, the total time divided by their number.
      max_rss_bytes: maximum resident memory; None if unknown.
      oom_kills: number of processes that the kernel's OOM killer killed in this time.
      error: the reason why the process could not be started; None if it was started.
      status: ok, failed, timed_out, killed or out_of_memory; "" if the process is not a
        measurement.
      message: the reason for a status other than ok, in one line; otherwise "".
      lost: how a signal from outside or a time-out ended the process (completes the sentence "it
        was ..."); otherwise "".
      document: the record as JSON values. If the process wrote none, a record of the error.
      unusable: content of an invalid record file; None if there is none.
      group: number of the group of processes that were alive at the same time, in the results
        folder.
    """

    code: int | None
    seconds: float
    timed_out: bool = False
    max_rss_bytes: int | None = None
    oom_kills: int = 0
    error: str | None = None
    status: str = ""
    message: str = ""
    lost: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    unusable: bytes | None = None
    group: int = 0

    @cached_property
    def record(self) -> RunRecord:
        """The `document` of a run, decoded to a `RunRecord`."""
        return RunRecord.from_dict(self.document)


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command line of a child process, with its environment, log, folder and processors.

    Attributes:
      words: program and arguments.
      log: file for standard output and standard error. Its content is replaced.
      environment: variables that are added to the variables of this process.
      folder: working directory; None for the working directory of this process.
      cores: processors that the child may use; None for all processors of this process.
    """

    words: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: Path | None = None
    cores: Collection[int] | None = None

    def extra_environment(self) -> dict[str, str]:
        """Environment variables that the child process gets in addition to the variables of this
        process.
        """
        return {GUARDED: "1", **self.environment}


def execute(command: Command, timeout: float) -> ProcessResult:
    """Runs a command in its own process group until the command ends or `timeout` seconds have
    passed.

    On KeyboardInterrupt, the command is stopped, too. Raises BenchmarkError if the log cannot be
    written or the process cannot be started.
    """
    with start_command(command) as child:
        try:
            deadline = time.monotonic() + timeout
            while (seconds := deadline - time.monotonic()) > 0:
                raise_if_interrupted()
                if ended := child.wait(min(seconds, LONGEST_WAIT_SECONDS)):
                    return ended
            return stop_children([child])[0]
        except KeyboardInterrupt:
            stop_children([child], print_notice)
            raise


def stop_children(
    children: Sequence[Child],
    print_announcement: Callable[[str], None] = lambda line: None,
    exit_timeout: float | None = None,
) -> list[ProcessResult]:
    """Interrupts child processes, and kills the processes that still run after `exit_timeout`
    seconds.

    If a child announces in its log that it needs longer, the announcement is passed to
    `print_announcement`, and the child gets that time. On KeyboardInterrupt, all children are
    interrupted again; a second interrupt ends a cnnbench process immediately.
    """
    start = time.monotonic()
    deadline = start + (interrupt_grace_seconds() if exit_timeout is None else exit_timeout)
    for child in children:
        child.interrupt()
    try:
        for child in children:
            while child.wait(_LOOK_SECONDS) is None and time.monotonic() < deadline:
                announcement = find_grace_announcement(log_tail(child.log))
                if announcement is not None and start + int(announcement[1]) + AT_ONCE > deadline:
                    deadline = start + int(announcement[1]) + AT_ONCE
                    print_announcement(announcement.group())
    except KeyboardInterrupt:
        # A child would ignore a second signal that follows the first one too quickly.
        time.sleep(max(0.0, start + _LATE * SAME_SECONDS - time.monotonic()))
        deadline = time.monotonic() + AT_ONCE
        while time.monotonic() < deadline:
            for child in children:
                child.interrupt()
            again = min(deadline, time.monotonic() + _LATE * SAME_SECONDS)
            if all(child.wait(again - time.monotonic()) for child in children):
                break
        raise
    return [child.kill() for child in children]


def start_command(
    command: Command, *, stdout: int | None = None, inherited: int | None = None
) -> Child:
    """Starts a command in its own process group. Raises the same errors as `execute`.

    When the context of the returned child ends, no process of the group remains. If this process is
    killed, a guard process ends the group. `stdout` is a descriptor for standard output instead of
    the log. `inherited` is a descriptor that the command inherits under the same number.
    """
    # Orphaned processes of the command become children of this process, which can wait for them.
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    kills = count_oom_kills()
    ours, theirs = socket.socketpair()
    started = time.monotonic()
    try:
        with theirs, open(command.log, "wb") as output, _restrict_cores(command.cores):
            passed = [theirs.fileno(), *([] if inherited is None else [inherited])]
            numbers = ",".join(map(str, passed))
            leader = subprocess.Popen(
                [sys.executable, "-IS", guard.__file__, "program", numbers, *command.words],
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=output,
                pass_fds=passed,
                start_new_session=True,
                env={**repository.environment_for_git(), **command.extra_environment()},
                cwd=command.folder,
            )
    except BaseException as error:
        ours.close()
        if isinstance(error, OSError):
            message = f"{error.filename or command.words[0]}: {error.strerror or error}"
            raise BenchmarkError(message) from error
        raise
    return Child(command.log, leader, ours, started, kills)


@contextlib.contextmanager
def _restrict_cores(cores: Collection[int] | None) -> Iterator[None]:
    """Context manager: processes that are started in it may use only the processors in `cores`.

    None means no restriction.
    """
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(eq=False)
class Child:
    """A child process that `start_command` has started. Leaving the context kills the process.

    Attributes:
      log: file with the output of the process.
      ended: the result of the process; None as long as it is not known.
    """

    log: Path
    _leader: subprocess.Popen[bytes]
    _link: socket.socket
    _started: float
    _kills: int
    ended: ProcessResult | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills all processes of the command's process group, and waits until they have ended.

        The wait matters because the kernel may need a moment to free their memory. The process id
        of the group is still valid, because its leader has not been reaped yet.
        """
        # ChildProcessError means that all processes have ended.
        with self._link, contextlib.suppress(ChildProcessError):
            self.send_signal(signal.SIGKILL)
            self._leader.wait()
            # The kernel cannot immediately kill a process that waits for a device.
            end = time.monotonic() + AT_ONCE
            while time.monotonic() < end:
                if os.waitpid(-self._leader.pid, os.WNOHANG) == (0, 0):
                    time.sleep(_LOOK_SECONDS / 10)

    def fileno(self) -> int:
        """File descriptor for `select`, which is readable when the process has ended."""
        return self._link.fileno()

    def wait(self, timeout: float) -> ProcessResult | None:
        """Waits for the result of the process. Returns None if the process still runs after
        `timeout`.
        """
        deadline = time.monotonic() + timeout
        while self.ended is None:
            seconds_left = max(0.0, deadline - time.monotonic())
            if select.select([self._link], [], [], min(seconds_left, LONGEST_WAIT_SECONDS))[0]:
                try:
                    report = message.receive(self._link, AT_ONCE)
                except (OSError, EOFError):  # The guard process has died.
                    report = {}
                self.ended = self._result_from_report(report)
            elif not seconds_left:
                break
        return self.ended

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of the command's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader.pid, number)

    def interrupt(self) -> None:
        """Sends SIGTERM to the command's process group, and resumes the group if suspended."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)

    def kill(self) -> ProcessResult:
        """Kills the process if it has not ended. Returns the result, with `timed_out` set."""
        self.send_signal(signal.SIGKILL)
        ended = self.ended or self._result_from_report({"status": int(signal.SIGKILL)})
        self.ended = replace(ended, timed_out=True)
        return self.ended

    def _result_from_report(self, report: Mapping[str, Any]) -> ProcessResult:
        status = report.get("status")
        return ProcessResult(
            code=None if status is None else os.waitstatus_to_exitcode(status),
            seconds=time.monotonic() - self._started,
            max_rss_bytes=report.get("max_rss_bytes"),
            oom_kills=count_oom_kills() - self._kills,
            error=report.get("error"),
        )


def log_tail(log: Path) -> str:
    """The last eight kilobytes of a log file as text; "" if the file cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


# Resolves and checks the flags of child commands without running them.

STORED = {"result_json": "record.json"}
"""Flags of a run or an all-reduce whose record is stored. Some notices depend on these flags."""

# Names of the recorded properties of machine and software that affect measurements.
# Load and free memory are not included, because they vary all the time.
# The commit is not included, because a digest of the source files identifies the code.
_FACTS = (
    "hostname",
    "architecture",
    "cpu_model",
    "logical_cpus",
    "usable_cpus",
    "cpu_affinity",
    "cgroup_cpu_limit",
    "cgroup_memory_limit_bytes",
    "gpu_names",
    "gpu_driver",
    "python_version",
    "tensorflow_package",
    "tensorflow_version",
    "numpy_version",
    "cnnbench_version",
)

NO_TURNS_OF_JOBS = "a job of several processes keeps all of them at work"

OTHER_COMMANDS = ("campaigns/", "judge/", "lab/predict/")
"""Folders of cnnbench that measuring processes do not import."""


@dataclass(frozen=True)
class ResolvedRun:
    """Properties of one run that follow from its resolved flags. The default values mean: unknown.

    Attributes:
      config: all parameters as JSON values, for the record of a run that wrote none.
      notices: lines that the command would print about its flags.
      identity: parameters that distinguish the run from other runs.
      batch_size, global_batch: images per step on one device and on all devices; 0 for all-reduces.
      batch_limits: largest batch per device that should fit into memory, and smallest batch that a
        run refuses; None if unknown.
      batch_unit: number of which the batch per device must be a multiple.
      needed_bytes: estimated memory of all processes together or, on GPUs, of each GPU; 0 for
        all-reduces.
      asynchronous: whether every worker updates the variables independently.
      rows: number of configurations that one process measures; each gets its own verdict.
      work: amount of computation; None for all-reduces.
      parts: files that the plug-ins use; see `plugins.parts`.
      packages: packages that were imported when the flags were resolved, and their folders.
      no_turns: reason why two equal runs cannot run interleaved; None if they can.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    explicit_flags: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 0
    batch_limits: tuple[int, int] | None = None
    batch_unit: int = 1
    global_batch: int = 0
    needed_bytes: int = 0
    asynchronous: bool = False
    rows: int = 1
    work: RunComputation | None = None
    parts: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    no_turns: str | None = None


@cache
def flag_specs_of(command: str) -> Mapping[str, FlagSpec]:
    """Declarations of all flags of the command "run" or "allreduce", by flag name."""
    return {spec.name: spec for spec in ALL_REDUCE_FLAGS} if command == "allreduce" else ACCEPTED


def refuse_sweep_flags(values: Mapping[str, Any]) -> None:
    """Raises FlagError for flags that cannot be used for the runs of a sweep.

    A sweep sets the names of result files. With --train_dir, each training would resume from the
    checkpoint of the previous training.
    """
    for name in ("result_json", "result_csv"):
        if values.get(name) is not None:
            raise FlagError(name, values[name], "is set by the sweep; use --results")
    if values.get("train_dir") and not (values.get("eval") or values.get("forward_only")):
        raise FlagError(
            "train_dir",
            values["train_dir"],
            "cannot be used for training in a sweep: the second process would resume the "
            "training of the first; leave it out, or evaluate with --eval",
        )


def resolved_run_of_plan(plan: RunPlan) -> ResolvedRun:
    """Creates the `ResolvedRun` of a run from its plan.

    Raises FlagError for output files that cannot be written.
    """
    check_outputs(preflight.output_files(plan))
    preflight.prepare_folders(plan)
    return ResolvedRun(
        config=plan.to_json(),
        explicit_flags=plan.explicit_flags,
        notices=plan.notices,
        identity=plan.identity,
        batch_size=plan.length.batch_per_device,
        batch_limits=batch_size_limits(plan),
        batch_unit=plan.input.training.required_batch_multiple,
        global_batch=plan.length.global_batch,
        needed_bytes=estimate_job_memory(plan),
        asynchronous=plan.place.asynchronous,
        work=estimate_run_computation(plan),
        parts=plugins.files_used_by_plugins(plan.config),
        no_turns=_why_not_interleavable(plan),
    )


def _why_not_interleavable(plan: RunPlan) -> str | None:
    """Returns why two processes of a run cannot run interleaved (docs/ab.md); None if they can."""
    if plan.place.job.in_cluster:
        return NO_TURNS_OF_JOBS
    if plan.work.evaluates or plan.work is WorkKind.INPUT:
        return "only training and forward passes have steps that can wait for one another"
    if plan.params.data_dir is not None:
        return "the input pipeline would read ahead while the process waits"
    kind = "cpu" if computes_on_cpu(plan) else "gpu"
    if kind == "gpu" and not plan.params.allow_growth:
        return "on GPUs it needs --allow_growth: the first process would take all of their memory"
    there, needed = available_memory(plan, kind), 2 * estimate_memory(plan, kind).total
    if there is not None and needed > there.available:
        free = format_bytes(there.available)
        return f"two processes take about {format_bytes(needed)}, and {free} is free"
    return None


def environment_identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Selects recorded properties of machine and software that may affect the speed of a run."""
    return {
        **{name: facts[name] for name in _FACTS if name in facts},
        **{name: comparable_fact(name, facts[name]) for name in facts if name.startswith("env_")},
    }


def json_digest(parts: Mapping[str, Any]) -> str:
    """SHA-256 digest of a JSON object, shortened. It does not depend on the order of the keys."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def source_digest() -> str:
    """SHA-256 digest of all Python files of cnnbench that a run may execute, shortened.

    Unlike a commit, it includes uncommitted changes, and it does not depend on documentation.
    """
    digest = hashlib.sha256()
    for package in ("cnnbench", "cnnbench.models", "cnnbench.variable_mgr"):
        spec = find_spec(package)
        folders = [] if spec is None else list(spec.submodule_search_locations or [])
        for folder in map(Path, folders):
            for file in sorted(folder.rglob("*.py")):
                inner = file.relative_to(folder).as_posix()
                if package == "cnnbench" and inner.startswith(OTHER_COMMANDS):
                    continue
                digest.update(f"{package}/{inner}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:KEY_LENGTH]


def resolve_all_reduce(values: Mapping[str, Any]) -> ResolvedRun:
    """Checks the flags of an all-reduce benchmark, given as values by flag name.

    Raises UsageError if a flag is invalid.
    """
    values = {**values, **STORED}
    params = params_from_values(values)
    plan = all_reduce_plan.make_plan(params, tuple(values))
    config = {name: encode(value) for name, value in params.as_dict().items()}
    config["sizes"] = [workload.name for workload in plan.workloads]
    # Without --all_reduce_spec, the benchmark measures all algorithms.
    cases = len(plan.specs or names()) * len(plan.packings) + len(plan.peers)
    return ResolvedRun(
        config=config,
        explicit_flags=tuple(values),
        identity=identity_on_this_machine(config),
        parts=plugins.files_used_by_plugins(config),
        rows=cases * len(plan.workloads) * sum(count > 1 for count in plan.counts),
    )
