"""Runs the child processes of commands that measure repeatedly, such as ``cnnbench ab``.

Such a series of processes is called a campaign. A generator (`ProcessRequests`) yields batches of
requested processes and receives their results. Its decisions depend only on these results and its
seed. Results that are already in the results directory are not measured again, so a generator that
is restarted continues where an earlier session ended. `Campaign` handles everything else: time
limits, interleaving of processes, repeats after a process was killed from outside, progress,
interrupts, and the journal.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias, TypeVar

from cnnbench.base import plugins
from cnnbench.base.child import exit_manner, exit_sentence
from cnnbench.base.files import SCRATCH_OF_PARENT, parse_json, read_json
from cnnbench.base.interrupts import (
    SIGNALS,
    delaying_interrupts,
    raise_if_interrupted,
)
from cnnbench.base.terminal import ChildProcessReporter, silence_warnings
from cnnbench.base.text import fatal_message, notice_line, number, to_plain_line
from cnnbench.campaigns.processes.child import Command, ProcessResult, execute, log_tail
from cnnbench.campaigns.processes.identity import CampaignIdentity, CodeChangedError
from cnnbench.campaigns.processes.interleaved import execute_interleaved
from cnnbench.campaigns.processes.journal import LOST, PROCESS, STARTED, digest, is_record_of
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.errors import ExitCode, is_out_of_memory, memory_ran_out
from cnnbench.machine.checks import parse_silenced_conditions
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import encode, json_text
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.result_files import record_from_json
from cnnbench.records.run import ErrorInfo, KilledProcess, RunRecord, Subject

# Records of ended processes. Without a valid record, cnnbench makes a record of the error.

Record: TypeAlias = RunRecord | AllReduceRecord

_MESSAGE_LENGTH = 500

# Signals that the kernel, a scheduler or a person sends to a process.
# Other signals, such as SIGSEGV, are caused by the process itself.
_SENT_FROM_OUTSIDE = (signal.SIGKILL, *SIGNALS)


@dataclass(frozen=True, kw_only=True)
class BenchmarkCommand(Command):
    """The command line of a child process that measures and writes a record to the file `record`.

    If the process leaves no record, `blank` is used (see `blank_record`).
    """

    record: Path
    blank: Record

    def extra_environment(self) -> dict[str, str]:
        """Returns the environment variables of `Command.extra_environment`, and a variable with the
        process's temporary folder.
        """
        return {
            **super().extra_environment(),
            SCRATCH_OF_PARENT: os.path.realpath(self.record.parent),
        }


def blank_record(kind: str, command: Sequence[str], resolved: ResolvedRun | Record) -> Record:
    """Creates a record without measurements, for a process that leaves no record of its own.

    `kind` is "run" or "allreduce". `resolved` contains the flags for the record.
    """
    make = RunRecord if kind == RunRecord.kind else AllReduceRecord
    return make(
        run_id=uuid.uuid4().hex,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        status="interrupted",
        command=tuple(command),
        config=resolved.config,
        explicit_flags=resolved.explicit_flags,
    )


def add_record_and_status(
    command: BenchmarkCommand, ended: ProcessResult, facts: Mapping[str, Any]
) -> ProcessResult:
    """Adds the record and the status of a process to its result. Failures raise no exception.

    `facts` describes this machine. It is used if the process left no record.
    """
    document, defect, unusable = _read_child_record(command)
    problem = _failure_of_process(
        ended, document, defect, log_tail(command.log) or full_disk_error_line(command.log)
    )
    if problem is None:
        assert document is not None
        return replace(ended, status="ok", document=document)
    status, error, lost = problem
    if document is None:
        record = replace(command.blank, status="failed", error=error, environment=facts)
        document = record.to_dict()
    elif document["status"] != "failed" or ended.timed_out:
        document = {**document, "status": "failed", "error": encode(error)}
    return replace(
        ended,
        status=status,
        # An exception without a message is reported by its type.
        message=to_plain_line(error.message) or to_plain_line(error.type) or "unknown error",
        lost=lost,
        document=document,
        unusable=unusable,
    )


def read_record(path: Path) -> Record | None:
    """Reads the record in a file. Returns None if the file contains no valid record."""
    try:
        return record_from_json(read_json(path))
    except (ValueError, RecursionError):
        return None


def bus_bandwidth(record: AllReduceRecord) -> float | None:
    """The highest bus bandwidth in an all-reduce record, in bytes/sec as nccl-tests defines it."""
    rates = [point.bus_bandwidth for point in record.points]
    return max((rate for rate in rates if rate is not None), default=None)


def main_result_text(record: Record) -> str:
    """The main result of a successful process as text for a progress line: "ok 512 images/sec"."""
    if isinstance(record, AllReduceRecord):
        rate = bus_bandwidth(record)
        return "ok" if rate is None else f"ok up to {number(rate / 1e9)} GB/s"
    speed = throughput(record)
    return "ok" if speed is None else f"ok {number(speed)} images/sec"


def _failure_of_process(
    ended: ProcessResult, document: Mapping[str, Any] | None, defect: str | None, tail: str
) -> tuple[str, ErrorInfo, str] | None:
    """The status, the error and `ProcessResult.lost` of a failed process; None if the process
    succeeded.
    """
    if ended.timed_out:
        text = f"killed after {ended.seconds:.0f} s; {last_output_text(tail)}"
        return "timed_out", _error_info("TimedOut", text), "ended by its time-out"
    if ended.error is not None:
        return "failed", _error_info("NotStarted", ended.error), ""
    if ended.code is None:
        text = f"{exit_sentence('the process', None)}; {last_output_text(tail)}"
        return "killed", _error_info("Killed", text), "killed with its guard"
    if ended.code < 0:
        return _failure_by_signal(-ended.code, ended.oom_kills, tail)
    if document is not None and document["status"] == "failed":
        error = ErrorInfo(**{k: str(document["error"][k]) for k in ("type", "message")})
        full = is_out_of_memory(error.type, error.message)
        return ("out_of_memory" if full else "failed"), error, ""
    is_interrupted = document is not None and document["status"] == "interrupted"
    # A process that is interrupted early writes no record: only its exit code shows the interrupt.
    if is_interrupted or ended.code == ExitCode.INTERRUPTED:
        error = _error_info("Interrupted", "interrupted by an external signal")
        return "killed", error, "interrupted by a signal"
    if ended.code != 0:
        text = f"ended {exit_manner(ended.code)}; {last_output_text(tail)}"
        return "failed", _error_info("ExitStatus", text), ""
    if defect is not None:
        return "failed", _error_info("UnusableRecord", defect), ""
    return None


def _failure_by_signal(code: int, oom_kills: int, tail: str) -> tuple[str, ErrorInfo, str]:
    manner = exit_manner(-code)
    if text := memory_ran_out(code, oom_kills, tail):
        lost = "killed by the OOM killer (SIGKILL)" if code == signal.SIGKILL else ""
        return "out_of_memory", _error_info("OutOfMemory", text), lost
    text = f"ended {manner}; {fatal_message(tail) or last_output_text(tail)}"
    lost = f"{'killed' if code == signal.SIGKILL else 'ended'} {manner}"
    return "killed", _error_info("Killed", text), lost if code in _SENT_FROM_OUTSIDE else ""


def _read_child_record(
    command: BenchmarkCommand,
) -> tuple[dict[str, Any] | None, str | None, bytes | None]:
    """Reads the record that a child process has written.

    Returns the record, the reason why it cannot be used, and the invalid content of the file.
    Missing values are None.
    """
    try:
        data = command.record.read_bytes()
    except FileNotFoundError:
        return None, "no record was written", None
    except OSError as error:
        return None, f"the record cannot be read: {error.strerror}", None
    try:
        document = parse_json(data)
        record = record_from_json(document)
        if record.kind != command.blank.kind:
            raise ValueError(f"of the kind {record.kind!r}")
    except RecursionError:
        return None, "not a valid record: nested too deeply", data
    except ValueError as error:
        return None, f"not a valid record: {error}", data
    return document, None, None


def _error_info(kind: str, message: str) -> ErrorInfo:
    return ErrorInfo(type=kind, message=" ".join(message.split())[:_MESSAGE_LENGTH])


def full_disk_error_line(log: Path) -> str:
    """An error message if no space is left on the disk with a process's log; otherwise ""."""
    with contextlib.suppress(OSError):
        if not os.statvfs(log.parent).f_bavail:
            return f"{log.parent}: {os.strerror(errno.ENOSPC)}"
    return ""


def last_output_text(tail: str) -> str:
    """Quotes the last line of a process's output, given the end of its log, for error messages."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    # Ignores the lines "at /FILE", which cnnbench prints after an error message of a plug-in.
    lines = [line for line in lines if not line.startswith(notice_line("at /"))]
    return f"last log line: {lines[-1]}" if lines else "no output"


# Runs the processes of a campaign, interleaved or one after the other.

_Case = TypeVar("_Case")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class ProcessRequest:
    """A process that a campaign should run, with the paths of its record and other outputs.

    Attributes:
      name: name in the journal, unique in a folder.
      label: name in progress lines.
      command: command of the process, which writes its record to a temporary file.
      key: two processes with equal keys take approximately the same time.
      target: path at which the record is stored; None to store it only if the process fails.
      failed: path for the record if a process of the batch fails; by default, `target`.
      answers: final statuses. If a process has another status, a later session runs it again.
      leaves: path of an additional required output, which the process writes to the `unfinished`
        path.
      place: function that adds the process's place in the campaign to its record, given the earlier
        attempts of its batch.
      facts: additional keys of the process's event in the journal.
    """

    name: str
    label: str
    command: BenchmarkCommand
    key: Hashable = None
    target: Path | None = None
    failed: Path | None = None
    answers: Sequence[str] = ("ok",)
    leaves: Path | None = None
    place: Callable[[Mapping[str, Any], Sequence[KilledProcess]], Mapping[str, Any]] = (
        lambda document, lost: document
    )
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RequestBatch:
    """Processes that a campaign should run, interleaved or one after the other, with their limits.

    Attributes:
      folder: results directory. Its journal gets the events.
      requests: processes, in the order in which they run or get their first time slice.
      later_keys: keys of the processes that will probably follow.
      timeout: seconds for each process, excluding its waits.
      turn_seconds: length of a time slice of simultaneous processes; 0 to run one process after
        another.
      name, label: names of the whole batch in the journal and in progress lines.
      sides: names of the processes if the batch is only valid as a whole; otherwise empty.
      repeats: number of further attempts if processes were killed from outside.
      most_repeats: number of further attempts for all batches of the folder together.
    """

    folder: ResultsFolder
    requests: Sequence[ProcessRequest]
    later_keys: Sequence[Hashable] = ()
    timeout: float
    turn_seconds: float = 0.0
    name: str = ""
    label: str = ""
    sides: Sequence[str] = ()
    repeats: int = 0
    most_repeats: int = 0


ProcessRequests: TypeAlias = Generator[RequestBatch, Sequence[ProcessResult], _Result]
"""A generator that requests processes and receives their results; see `Campaign.run_requests`."""


def run_process(
    folder: ResultsFolder,
    request: ProcessRequest,
    timeout: float,
    later_keys: Sequence[Hashable] = (),
) -> ProcessRequests[ProcessResult]:
    """Requests a single process of a campaign, and returns its result; see `RequestBatch`."""
    (ended,) = yield RequestBatch(
        folder=folder, requests=[request], later_keys=later_keys, timeout=timeout
    )
    return ended


def ordered_rounds(
    cases: Iterable[_Case],
    repeats: int,
    seed: int | None,
    is_due: Callable[[_Case, int], bool] = lambda case, at: at > 0,
) -> list[tuple[_Case, int]]:
    """The order in which a campaign measures its cases, as pairs of a case and a round number.

    Round 0 comes first (for example, searches for a batch size), then round 1 to `repeats`.
    `is_due` says whether a case takes part in a round. `seed` shuffles each round; None keeps the
    order of the cases.
    """
    cases, generator, order = tuple(cases), random.Random(seed), []
    for at in range(repeats + 1):
        due_cases = [case for case in cases if is_due(case, at)]
        if seed is not None:
            generator.shuffle(due_cases)
        order += [(case, at) for case in due_cases]
    return order


def measure_in_rounds(
    order: Sequence[tuple[str, int]],
    measure: Callable[[str, int, Sequence[Hashable]], ProcessRequests[bool]],
) -> ProcessRequests[None]:
    """Calls `measure` for each case and round in `order`, which `ordered_rounds` has determined.

    `measure` gets the name of a case, the number of the round, and the keys (case, whether the
    round is 0) of the processes that will probably follow. It returns whether the case takes part
    in later rounds.
    """
    out: set[str] = set()
    for place, (case, at) in enumerate(order, start=1):
        if case not in out:
            later_keys = [(later, not when) for later, when in order[place:] if later not in out]
            if not (yield from measure(case, at, later_keys)):
                out.add(case)


class Campaign:
    """Runs requested processes, with pauses of `cool_down` seconds, and prints their progress.

    `facts` describes this machine, for records of processes that write none. The remaining time is
    estimated from wall times by key. The code in `identity` must not change during the campaign.
    """

    def __init__(
        self,
        reporter: ChildProcessReporter,
        facts: Mapping[str, Any] | None = None,
        cool_down: float = 0.0,
        identity: CampaignIdentity | None = None,
    ) -> None:
        self.reporter = reporter
        self.facts = facts or {}
        self.cool_down = cool_down
        self.identity = identity
        self._first: dict[str, object] = {}
        self._warned = {""}
        self._known: dict[Hashable, list[float]] = {}
        self._now: list[float] = []
        self._done = 0

    def run_requests(self, requests: ProcessRequests[_Result]) -> _Result:
        """Runs all processes that the generator `requests` yields, and returns its result.

        Raises CodeChangedError if the code was changed, and BenchmarkError if results cannot be
        written. On KeyboardInterrupt, all processes have been ended and complete batches have been
        stored. Exceptions are raised in the generator, at the yield of the batch.
        """
        try:
            batch = next(requests)
            while True:
                try:
                    ended = self._run_missing_processes(batch)
                except BaseException as error:
                    batch = requests.throw(error)
                else:
                    batch = requests.send(ended)
        except StopIteration as end:
            result: _Result = end.value
            return result

    def _run_missing_processes(self, batch: RequestBatch) -> list[ProcessResult]:
        """Runs the processes of a batch that have no stored result. Returns the results of all
        processes of the batch.
        """
        raise_if_interrupted()
        folder = batch.folder
        earlier = {
            request.name: _completed_result(folder, request) if folder.resume else None
            for request in batch.requests
        }
        done = {name: ended for name, ended in earlier.items() if ended is not None}
        if batch.sides and len(done) < len(earlier):
            # An incomplete batch continues at its first missing process, which keeps the order.
            # If the processes run interleaved, or one has failed, the whole batch is run again.
            first = itertools.takewhile(done.__contains__, () if batch.turn_seconds else earlier)
            done = {name: done[name] for name in first if folder.pending_record_path(name).exists()}
        self._done += len(done)
        for request in (request for request in batch.requests if request.name in done):
            self.add_process_seconds(request.key, done[request.name].seconds)
        todo: Sequence[ProcessRequest] = [
            request for request in batch.requests if request.name not in done
        ]
        while todo:
            done |= self._run_and_store(batch, todo)
            todo = batch.requests if self._prepare_rerun_if_killed(batch, done) else ()
        if batch.sides:
            failed = any(ended.message for ended in done.values())
            with delaying_interrupts():  # An interrupt must not leave a batch partly stored.
                for request in batch.requests:
                    pending, target = (
                        folder.pending_record_path(request.name),
                        request.failed if failed else request.target,
                    )
                    if target is not None and pending.exists():
                        folder.move(pending, target)
        return [done[request.name] for request in batch.requests]

    def _run_and_store(
        self, batch: RequestBatch, requests: Sequence[ProcessRequest]
    ) -> dict[str, ProcessResult]:
        """Runs the processes in `requests`, interleaved or one after the other, and stores their
        records.
        """
        in_turn = batch.turn_seconds if len(requests) > 1 else 0.0
        groups = [requests] if in_turn else [[request] for request in requests]
        done: dict[str, ProcessResult] = {}
        for at, group in enumerate(groups):
            later = [
                *(request.key for later_group in groups[at + 1 :] for request in later_group),
                *batch.later_keys,
            ]
            keys = [*(request.key for request in group), *later]
            if self._done and self.cool_down:
                time.sleep(self.cool_down)
            label = group[0].label if len(group) == 1 else batch.label
            total = self._done + len(keys)
            self.reporter.show_started(self._done + 1, total, label, self._estimated_seconds(keys))
            commands = [request.command for request in group]
            batch.folder.add_journal_note(STARTED, names=[request.name for request in group])
            for command in commands:
                with batch.folder.converting_write_errors(command.log):
                    command.log.parent.mkdir(exist_ok=True)
            try:
                ended = self.run(commands, batch.timeout, in_turn)
            finally:
                for command in commands:
                    command.record.unlink(missing_ok=True)
            number = batch.folder.next_group_number()
            named: dict[str, dict[str, str]] = {}
            # All records are stored before the first event, so that a kill loses no record.
            for request, end in zip(group, ended, strict=True):
                own = replace(end, group=number)
                done[request.name], named[request.name] = self._store_record(batch, request, own)
            for place, (request, end) in enumerate(zip(group, ended, strict=True), start=1):
                _add_process_end_to_journal(
                    batch.folder, request, done[request.name], named[request.name]
                )
                if request.target is None and not batch.sides:
                    batch.folder.remove(batch.folder.pending_record_path(request.name))
                self._done += 1
                self._now.append(end.seconds)
                self.add_process_seconds(request.key, end.seconds)
                outcome = end.message or main_result_text(record_from_json(end.document))
                seconds = self._estimated_seconds([*(other.key for other in group[place:]), *later])
                self.reporter.report_ended(
                    self._done, total, request.label, outcome, end.seconds, seconds
                )
        return done

    def _store_record(
        self, batch: RequestBatch, request: ProcessRequest, ended: ProcessResult
    ) -> tuple[ProcessResult, dict[str, str]]:
        """Stores the record of an ended process in the results folder.

        If the batch is only valid as a whole, the record is pending until all processes have ended.
        Also returns the path and the digest of a record that later sessions read, for the journal.
        """
        folder = batch.folder
        lost = [
            process
            for attempt in folder.killed_processes.get(batch.name, ())
            for process in attempt
        ]
        ended = replace(ended, document=request.place(ended.document, lost))
        target = request.target
        if batch.sides:
            target = folder.pending_record_path(request.name)
        elif ended.status not in request.answers:
            target = request.failed or target
        # A pending record remains until the journal contains the end of its process.
        target = target or folder.pending_record_path(request.name)
        if request.failed is not None and not ended.message and not batch.sides:
            folder.remove(request.failed)  # An earlier attempt that failed may have left a record.
        if request.leaves is not None:
            folder.move_finished(request.leaves)
        if ended.unusable is not None:
            folder.write(target.with_suffix(".unusable"), ended.unusable)
        data = json_text(ended.document).encode("ascii")
        folder.write(target, data)
        if request.target is None:
            return ended, {}
        # The pending record of a batch will be at its target.
        path = request.target if batch.sides else target
        return ended, {"record": str(path.relative_to(folder.folder)), "sha256": digest(data)}

    def _prepare_rerun_if_killed(
        self, batch: RequestBatch, results: Mapping[str, ProcessResult]
    ) -> bool:
        """Whether a batch must run again, because processes were killed from outside.

        If so, the records and logs of the failed attempt are renamed.
        """
        failed = [request for request in batch.requests if results[request.name].status != "ok"]
        if (
            not batch.repeats
            or not failed
            or not all(results[request.name].lost for request in failed)
        ):
            return False
        names = [request.name for request in batch.requests]
        sides = dict(zip(names, batch.sides, strict=True))
        lost = [
            KilledProcess(side=sides[request.name], how=results[request.name].lost)
            for request in failed
        ]
        lost.sort(key=lambda process: process.side)
        folder = batch.folder
        attempts = folder.killed_processes.setdefault(batch.name, [])
        again = (
            len(attempts) < batch.repeats
            and folder.number_of_repeated_attempts < batch.most_repeats
        )
        number = len(attempts) + 1
        aside = {
            path: path.with_stem(f"{request.name}-lost-{number}")
            for request in batch.requests
            for path in (folder.pending_record_path(request.name), request.command.log)
        }
        folder.journal.add(LOST, pair=batch.name, names=names, lost=encode(lost), again=again)
        if again:
            attempts.append(lost)
            for path, target in aside.items():
                folder.move(path, target)
            hows = " and ".join(f"{process.side.upper()} was {process.how}" for process in lost)
            self.reporter.notice(f"{batch.label} is measured again: {hows}")
        return again

    def run(
        self, commands: Sequence[BenchmarkCommand], timeout: float, turn_seconds: float = 0.0
    ) -> list[ProcessResult]:
        """Runs processes until they end, and returns their results. Failures raise no exception.

        A process may run for `timeout` seconds, not including its waits. Simultaneous processes
        run in time slices of `turn_seconds`; 0 runs one after the other. On KeyboardInterrupt, all
        processes have been ended. Raises CodeChangedError if the code has changed since the
        campaign began, or between two processes.
        """
        if self.identity is not None:
            self.identity.raise_if_code_changed()
        if not turn_seconds:
            return [
                self._add_record_and_check_code(command, execute(command, timeout))
                for command in commands
            ]
        start = time.monotonic()
        ended = execute_interleaved(commands, timeout, turn_seconds)
        share = (time.monotonic() - start) / len(commands)
        return [
            replace(self._add_record_and_check_code(command, result), seconds=share)
            for command, result in zip(commands, ended, strict=True)
        ]

    def _add_record_and_check_code(
        self, command: BenchmarkCommand, ended: ProcessResult
    ) -> ProcessResult:
        """Adds the record of a process to its result. Prints a warning if its commit is unknown.

        Raises CodeChangedError if the state of the code differs from the state in an earlier
        process.
        """
        result = add_record_and_status(command, ended, self.facts)
        record = record_from_json(result.document)
        subject = record.subject or Subject()
        # The key contains the version, because versions of cnnbench record the code differently.
        version = record.environment.get("cnnbench_version")
        place = repr(
            (
                command.folder,
                version,
                subject.repository,
                *plugins.plugin_files_of_flags(record.config),
            )
        )
        state = (subject.revision, subject.dirty, subject.changes)
        if self._first.setdefault(place, state) != state:
            raise CodeChangedError.for_changed_code(f"repository {subject.repository}")
        if subject.unknown_commit_warning not in self._warned:
            self._warned.add(subject.unknown_commit_warning)
            silence_warnings(parse_silenced_conditions(record.config.get("quiet_conditions", "")))
            self.reporter.warning(subject.unknown_commit_warning, "commit")
        return result

    def add_process_seconds(self, key: Hashable, seconds: float) -> None:
        """Stores the wall time of a process, to estimate the time of processes with this key."""
        if seconds:
            self._known.setdefault(key, []).append(seconds)

    def mean_process_seconds(self, key: Hashable) -> float | None:
        """Mean wall time in seconds of the processes with this key; None if there are none."""
        return fmean(self._known[key]) if key in self._known else None

    def _estimated_seconds(self, keys: Iterable[Hashable]) -> float | None:
        """Estimated seconds of processes with these keys; None if no process has ended yet.

        For a key without a wall time, the mean of this session is used.
        """
        total = 0.0
        for key in keys:
            known = self._known.get(key) or self._now
            if not known:
                return None
            total += fmean(known) + self.cool_down
        return total


def _completed_result(folder: ResultsFolder, request: ProcessRequest) -> ProcessResult | None:
    """The stored result of a process that an earlier session completed; None if there is no such
    result.
    """
    event = folder.last_process_events.get(request.name, {})
    seconds, group = float(event.get("seconds", 0.0)), int(event.get("group", 0))
    if not request.answers or request.name not in folder.started_processes:
        return None
    if request.leaves is not None and not request.leaves.exists():
        return None
    status = str(event.get("status", ""))
    if request.target is None and status in request.answers:
        return ProcessResult(0, seconds, status=status, group=group)
    for path in (request.target, folder.pending_record_path(request.name)):
        # If a process was killed before the event, nothing names its record.
        if path is None or ("sha256" in event and not is_record_of(event, path)):
            continue
        record = read_record(path)
        if record is not None:
            status = "ok" if record.status == "ok" else str(event.get("status", ""))
            text, document = str(event.get("problem", "")), record.to_dict()
            if status in request.answers:
                text = "" if status == "ok" else text
                return ProcessResult(
                    0, seconds, status=status, message=text, document=document, group=group
                )
    return None


def _add_process_end_to_journal(
    folder: ResultsFolder,
    request: ProcessRequest,
    ended: ProcessResult,
    record_named: Mapping[str, str],
) -> None:
    record = record_from_json(ended.document)
    folder.journal.add(
        PROCESS,
        name=request.name,
        status=ended.status,
        seconds=round(ended.seconds, 3),
        images_per_sec=throughput(record) if isinstance(record, RunRecord) else None,
        problem=ended.message,
        group=ended.group,
        **record_named,
        **request.facts,
    )
