"""Runs the child processes of commands that measure repeatedly, such as ``cnnbench ab``.

Such a series of processes is called a campaign. A generator (`ProcessRequests`) yields batches of
requested processes and receives their results. Its decisions depend only on these results and on
its seed. Results that are already in the results directory are not measured again, so a generator
that is restarted continues where an earlier session ended.

`Campaign` runs the generator, and handles everything else: time limits, interleaving of processes,
repeats after a process was killed from outside, progress, interrupts, records and the journal.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias, TypeVar

from cnnbench.base import plugins
from cnnbench.base.interrupts import delaying_interrupts, raise_if_interrupted
from cnnbench.base.terminal import ChildProcessReporter, silence_warnings
from cnnbench.campaigns.processes.child import ProcessResult, execute
from cnnbench.campaigns.processes.identity import CampaignIdentity, CodeChangedError
from cnnbench.campaigns.processes.interleaved import execute_interleaved
from cnnbench.campaigns.processes.journal import LOST, PROCESS, STARTED, digest, is_record_of
from cnnbench.campaigns.processes.outcome import (
    BenchmarkCommand,
    Record,
    add_record_and_status,
    main_result_text,
    read_record,
)
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.errors import BenchmarkError
from cnnbench.machine.checks import parse_silenced
from cnnbench.records.codec import encode, json_text
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import KilledProcess, RunRecord
from cnnbench.records.subject import Subject

_Case = TypeVar("_Case", bound=Hashable)
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
      standing: how far the campaign is, for the line that a terminal shows while a process runs; if
        empty, the number and the label of the process.
      sides: names of the processes if the batch is only valid as a whole; otherwise empty.
      repeated_if_killed: whether the batch runs once more if its processes were killed from
        outside.
    """

    folder: ResultsFolder
    requests: Sequence[ProcessRequest]
    later_keys: Sequence[Hashable] = ()
    timeout: float
    turn_seconds: float = 0.0
    name: str = ""
    label: str = ""
    standing: str = ""
    sides: Sequence[str] = ()
    repeated_if_killed: bool = False


ProcessRequests: TypeAlias = Generator[RequestBatch, Sequence[ProcessResult], _Result]
"""A generator that requests processes and receives their results; see `Campaign.run_requests`."""


def run_process(
    folder: ResultsFolder,
    request: ProcessRequest,
    timeout: float,
    later_keys: Sequence[Hashable] = (),
    standing: str = "",
) -> ProcessRequests[ProcessResult]:
    """Yields a single process of a campaign to run, and returns its result; see `RequestBatch`."""
    (ended,) = yield RequestBatch(
        folder=folder,
        requests=[request],
        later_keys=later_keys,
        timeout=timeout,
        standing=standing,
    )
    return ended


def measure_process(
    folder: ResultsFolder,
    request: ProcessRequest,
    timeout: float,
    later_keys: Sequence[Hashable] = (),
    standing: str = "",
) -> ProcessRequests[RunRecord]:
    """Yields a single process to run, like `run_process`, and returns the record of its run.

    Raises BenchmarkError if the process failed.
    """
    ended = yield from run_process(folder, request, timeout, later_keys, standing)
    if ended.message:
        raise BenchmarkError(f"process {request.name} failed: {ended.message}")
    return ended.record


def make_rounds(
    cases: Iterable[_Case],
    repeats: int,
    seed: int,
    is_due: Callable[[_Case, int], bool] = lambda case, at: True,
) -> list[tuple[_Case, int]]:
    """Creates the order in which a campaign measures its cases: in rounds, numbered from 1 to
    `repeats`. Returns pairs of a case and the number of its round.

    `is_due` says whether a case takes part in a round. `seed` shuffles each round.
    """
    cases, generator, order = tuple(cases), random.Random(seed), []
    for at in range(1, repeats + 1):
        due_cases = [case for case in cases if is_due(case, at)]
        generator.shuffle(due_cases)
        order += [(case, at) for case in due_cases]
    return order


class Campaign:
    """Runs requested processes, with pauses of `cool_down` seconds, and prints their progress.

    `facts` describes this machine, for records of processes that write none; if not given, the
    facts in `identity`. The code in `identity` must not change during the campaign. The remaining
    time is estimated from wall times by key.
    """

    def __init__(
        self,
        reporter: ChildProcessReporter,
        facts: Mapping[str, Any] | None = None,
        cool_down: float = 0.0,
        identity: CampaignIdentity | None = None,
    ) -> None:
        self.reporter = reporter
        self.facts = facts or ({} if identity is None else identity.facts)
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
                    ended = self._run_missing(batch)
                except BaseException as error:
                    batch = requests.throw(error)
                else:
                    batch = requests.send(ended)
        except StopIteration as end:
            result: _Result = end.value
            return result

    def _run_missing(self, batch: RequestBatch) -> list[ProcessResult]:
        """Runs the processes of a batch that have no stored result. Returns the results of all
        processes of the batch.
        """
        raise_if_interrupted()
        folder = batch.folder
        earlier = {one.name: _stored_result(folder, one) for one in batch.requests}
        done = {name: ended for name, ended in earlier.items() if ended is not None}
        if batch.sides and len(done) < len(earlier):
            # An incomplete batch continues at its first missing process, which keeps the order.
            # If the processes run interleaved, or one has failed, the whole batch is run again.
            first = itertools.takewhile(done.__contains__, () if batch.turn_seconds else earlier)
            done = {name: done[name] for name in first if folder.pending_record_path(name).exists()}
        self._done += len(done)
        for request in batch.requests:
            if request.name in done:
                self.add_process_seconds(request.key, done[request.name].seconds)
        todo: Sequence[ProcessRequest] = [one for one in batch.requests if one.name not in done]
        while todo:
            # Processes without time slices run one after the other.
            in_turn = batch.turn_seconds and len(todo) > 1
            groups = [todo] if in_turn else [[request] for request in todo]
            for place, group in enumerate(groups, start=1):
                later = [request.key for others in groups[place:] for request in others]
                done |= self._run_group(batch, group, [*later, *batch.later_keys])
            again = _retry_if_killed(batch, done, self.reporter.notice)
            todo = batch.requests if again else ()
        if batch.sides:
            failed = any(ended.message for ended in done.values())
            # An interrupt must not leave the results of a batch of processes partly stored.
            with delaying_interrupts():
                for request in batch.requests:
                    pending = folder.pending_record_path(request.name)
                    target = request.failed if failed else request.target
                    if target is not None and pending.exists():
                        folder.move(pending, target)
        return [done[request.name] for request in batch.requests]

    def _run_group(
        self, batch: RequestBatch, group: Sequence[ProcessRequest], later_keys: Sequence[Hashable]
    ) -> dict[str, ProcessResult]:
        """Runs a process, or several interleaved processes, and stores their records."""
        folder, commands = batch.folder, [request.command for request in group]
        if self._done and self.cool_down:
            time.sleep(self.cool_down)
        keys = [*(request.key for request in group), *later_keys]
        total = self._done + len(keys)
        label = group[0].label if len(group) == 1 else batch.label
        folder.add_journal_note(STARTED, names=[request.name for request in group])
        for command in commands:
            with folder.converting_write_errors(command.log):
                command.log.parent.mkdir(exist_ok=True)
        place, left = self._done + 1, self._estimated_seconds(keys)
        try:
            self.reporter.show_started(place, total, label, left, batch.standing)
            ended = self.run(commands, batch.timeout, batch.turn_seconds if len(group) > 1 else 0.0)
        finally:
            self.reporter.hide()
            for command in commands:
                command.record.unlink(missing_ok=True)
        # All records are stored before the first event, so that a kill loses no record.
        stored = [
            _store_result(batch, request, end) for request, end in zip(group, ended, strict=True)
        ]
        for place, (request, (end, event)) in enumerate(zip(group, stored, strict=True), start=1):
            folder.journal.add(PROCESS, **event)
            if request.target is None and not batch.sides:
                folder.remove(folder.pending_record_path(request.name))
            self._done += 1
            self._now.append(end.seconds)
            self.add_process_seconds(request.key, end.seconds)
            outcome = end.message or main_result_text(end.decoded)
            left = self._estimated_seconds(keys[place:])
            self.reporter.report_ended(self._done, total, request.label, outcome, end.seconds, left)
        return {request.name: end for request, (end, _) in zip(group, stored, strict=True)}

    def run(
        self, commands: Sequence[BenchmarkCommand], timeout: float, turn_seconds: float = 0.0
    ) -> list[ProcessResult]:
        """Runs processes until they end, and returns their results, with the records. Failures
        raise no exception. Prints a warning if the measured commit is unknown.

        A process may run for `timeout` seconds, not including its waits. Simultaneous processes
        run in time slices of `turn_seconds`; 0 runs one after the other. On KeyboardInterrupt, all
        processes have been ended. Raises CodeChangedError if the code has changed since the
        campaign began, or between two processes.
        """
        if self.identity is not None:
            self.identity.raise_if_code_changed()
        start = time.monotonic()
        together = execute_interleaved(commands, timeout, turn_seconds) if turn_seconds else []
        share = (time.monotonic() - start) / len(commands)
        results = []
        for at, command in enumerate(commands):
            ended = together[at] if together else execute(command, timeout)
            result = add_record_and_status(command, ended, self.facts)
            self._check_code(command, result.decoded)
            results.append(replace(result, seconds=share) if together else result)
        return results

    def _check_code(self, command: BenchmarkCommand, record: Record) -> None:
        """Prints a warning if the commit of a process is unknown.

        Raises CodeChangedError if the state of the code differs from the state in an earlier
        process.
        """
        subject = record.subject or Subject()
        # The key contains the version, because versions of cnnbench record the code differently.
        version = record.environment.get("cnnbench_version")
        files = plugins.plugin_files_of_flags(record.config)
        place = repr((command.folder, version, subject.repository, *files))
        state = (subject.revision, subject.dirty, subject.changes)
        if self._first.setdefault(place, state) != state:
            raise CodeChangedError(f"repository {subject.repository}")
        if subject.unknown_commit_warning not in self._warned:
            self._warned.add(subject.unknown_commit_warning)
            silence_warnings(parse_silenced(record.config.get("quiet_conditions", "")))
            self.reporter.warning(subject.unknown_commit_warning, "commit")

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


def _stored_result(folder: ResultsFolder, request: ProcessRequest) -> ProcessResult | None:
    """The result of a process that an earlier session completed; None if there is no such result,
    or if this session does not resume.
    """
    if not (folder.resume and request.answers and request.name in folder.started_processes):
        return None
    if request.leaves is not None and not request.leaves.exists():
        return None
    event = folder.last_process_events.get(request.name, {})
    status, text = str(event.get("status", "")), str(event.get("problem", ""))
    seconds = float(event.get("seconds", 0.0))
    if request.target is None and status in request.answers:
        return ProcessResult(0, seconds, status=status)
    for path in (request.target, folder.pending_record_path(request.name)):
        # If a process was killed before the event, nothing names its record.
        if path is None or ("sha256" in event and not is_record_of(event, path)):
            continue
        record = read_record(path)
        if record is None:
            continue
        if record.status == "ok":
            status, text = "ok", ""
        if status in request.answers:
            document = record.to_dict()
            return ProcessResult(0, seconds, status=status, message=text, document=document)
    return None


def _store_result(
    batch: RequestBatch, request: ProcessRequest, ended: ProcessResult
) -> tuple[ProcessResult, dict[str, Any]]:
    """Stores the record of an ended process in the results folder.

    If the batch is only valid as a whole, the record is pending until all processes have ended.
    Returns the result with the record as it was stored, and the process's event for the journal,
    with the path and the digest of a record that later sessions read.
    """
    folder = batch.folder
    lost = folder.killed_processes.get(batch.name, ())
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
    record = ended.decoded
    event: dict[str, Any] = {
        "name": request.name,
        "status": ended.status,
        "seconds": round(ended.seconds, 3),
        "images_per_sec": throughput(record) if isinstance(record, RunRecord) else None,
        "problem": ended.message,
    }
    if request.target is not None:
        # The pending record of a batch will be at its target.
        path = request.target if batch.sides else target
        event |= {"record": str(path.relative_to(folder.folder)), "sha256": digest(data)}
    return ended, {**event, **request.facts}


def _retry_if_killed(
    batch: RequestBatch, results: Mapping[str, ProcessResult], notice: Callable[[str], None]
) -> bool:
    """Whether a batch must run again, because processes were killed from outside for the first
    time.

    If so, the records and logs of the failed attempt are renamed, and `notice` prints why.
    `results` contains the results of all processes of the batch by name.
    """
    failed = [request for request in batch.requests if results[request.name].status != "ok"]
    killed = bool(failed) and all(results[one.name].lost for one in failed)
    if not (killed and batch.repeated_if_killed):
        return False
    names = [request.name for request in batch.requests]
    sides = dict(zip(names, batch.sides, strict=True))
    lost = [KilledProcess(side=sides[one.name], how=results[one.name].lost) for one in failed]
    lost.sort(key=lambda process: process.side)
    folder = batch.folder
    again = batch.name not in folder.killed_processes
    folder.journal.add(LOST, pair=batch.name, names=names, lost=encode(lost), again=again)
    if again:
        folder.killed_processes[batch.name] = lost
        for request in batch.requests:
            for path in (folder.pending_record_path(request.name), request.command.log):
                folder.move(path, path.with_stem(f"{request.name}-lost"))
        hows = " and ".join(f"{process.side.upper()} was {process.how}" for process in lost)
        notice(f"{batch.label} is measured again: {hows}")
    return again
