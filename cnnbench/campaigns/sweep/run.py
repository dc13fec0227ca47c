"""Runs the processes of a sweep, and estimates how long they take.

The results directory contains a record and a log for each run, and a journal. The names of records
contain the key of the configuration and the number of the repeat.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cnnbench.base.text import count_text, format_duration
from cnnbench.campaigns.launch import flags_to_arguments, run_command_words
from cnnbench.campaigns.processes import (
    PROCESS,
    BenchmarkCommand,
    Campaign,
    CampaignKind,
    ProcessRequest,
    ProcessRequests,
    ProcessResult,
    Record,
    ResultsFolder,
    blank_record,
    read_record,
    run_process,
)
from cnnbench.campaigns.suite.entries import SweepCase
from cnnbench.campaigns.sweep import phrases
from cnnbench.campaigns.sweep.plan import SweepItem, SweepPlan, ordered_items
from cnnbench.records.codec import encode
from cnnbench.records.run import SweepPlace
from cnnbench.records.subject import add_subject

_NAME_LENGTH = 120
_NAME = re.compile(r".+\.[0-9a-f]{12}\.r\d+\.[\dTZ]{22}")


SWEEP = CampaignKind(command="sweep", noun="sweep", shared=True, log="{}.log", pending="{}.pending")
"""Kind of campaign for sweeps. A folder contains records and logs, possibly of several suites."""


def find_records(folder: Path, key: str, repeat: int) -> list[Path]:
    """Paths of the records of a configuration's process, oldest first. Some may be invalid.

    `key` is the key of the configuration. Repeats start at 1.
    """
    named = [
        path for path in folder.glob(f"*.{key}.r{repeat}.*.json") if _NAME.fullmatch(path.stem)
    ]
    return sorted(named, key=lambda path: path.stem.rpartition(".")[2])


def record_file_name(label: str, case_key: str, repeat: int, timestamp: str) -> str:
    """File name for a new record. The label only helps people who look at the folder."""
    label = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", label)[:_NAME_LENGTH].strip("-.") or "run"
    return f"{label}.{case_key}.r{repeat}.{timestamp}.json"


_REDUCING_SECONDS = 20.0
"""Estimated seconds of an all-reduce process: a few sizes and algorithms on two CPU cores."""


class SweepResult(NamedTuple):
    """Result of one process of a sweep. If an earlier session ran the process, only its status is
    known.
    """

    item: SweepItem
    path: Path
    ended: ProcessResult


def command_of_item(item: SweepItem) -> tuple[str, ...]:
    """Command and flags of one process of a sweep, without the flag for its record."""
    entry = item.case.entry
    words = flags_to_arguments(item.case.flags)
    return (
        run_command_words(item.case.launch, words)
        if entry.command == "run"
        else (entry.command, *words)
    )


@dataclass(frozen=True)
class Sweep:
    """Runs the processes of a sweep. A resumed sweep does not repeat successful runs.

    Attributes:
      program: arguments that start cnnbench.
      command: command line of the sweep, for the records.
      results: results of the processes that have ended, in order.
    """

    plan: SweepPlan
    store: ResultsFolder
    campaign: Campaign
    seed: int
    program: Sequence[str]
    command: Sequence[str]
    results: list[SweepResult] = field(default_factory=list)

    @cached_property
    def record_timestamp(self) -> str:
        """The time in the file names of records: the start of the sweep's first session."""
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
        earlier = self.store.earlier if self.store.resume else ()
        mine = (event for event in earlier if event.get("suite") == self.plan.suite)
        return [now, *(str(event["stamp"]) for event in mine if "stamp" in event)][-1]

    def run(self) -> None:
        """Runs all processes without a successful record. Adds the results to `results`."""
        counts = {"cases": len(self.plan.cases), "runs": len(self.announce_items())}
        self.store.add_session_start(suite=self.plan.suite, stamp=self.record_timestamp, **counts)
        self.campaign.run_requests(self._sweep_requests())

    def announce_items(self) -> list[SweepItem]:
        """The processes without a successful record. Prints their number and estimated duration."""
        for event in self.store.earlier:
            if event.get("event") == PROCESS:
                self.campaign.add_process_seconds(event["key"], event["seconds"])
        items = ordered_items(self.plan.cases, self.seed)
        todo = [
            item for item in items if not _read_if_ok(self._record_path(item.case, item.repeat))
        ]
        if len(todo) < len(items):
            of = count_text(items, "run is", "runs are")
            done = len(items) - len(todo)
            self.campaign.reporter.notice(phrases.DONE.format(done=done, runs=of))
        if todo:
            self.campaign.reporter.notice(duration_text(todo, self.campaign))
        return todo

    def _sweep_requests(self) -> ProcessRequests[None]:
        """Yields the processes to run, in order."""
        items = ordered_items(self.plan.cases, self.seed)
        for place, item in enumerate(items, start=1):
            target = self._record_path(item.case, item.repeat)
            later_keys = [later.case.key for later in items[place:]]
            ended = yield from self._run_item(item, target, later_keys)
            self.results.append(SweepResult(item, target, ended))

    def _run_item(
        self, item: SweepItem, target: Path, later_keys: Sequence[Hashable]
    ) -> ProcessRequests[ProcessResult]:
        """Runs one process of a sweep. The record is written to `target`.

        For `later_keys`, see `RequestBatch`.
        """
        case, log = item.case, target.with_suffix(".log")
        record = self.store.unfinished_path(target)
        words = (*command_of_item(item), *flags_to_arguments({"result_json": record}))
        request = ProcessRequest(
            name=log.stem,
            label=item.label,
            command=BenchmarkCommand(
                words=(*self.program, *words),
                log=log,
                record=record,
                blank=blank_record(case.entry.command, ("cnnbench", *words), case.resolved),
            ),
            key=case.key,
            target=target,
            place=lambda document, lost: self._add_placement(document, item, target),
            facts={"key": case.key, "case": case.name, "repeat": item.repeat},
        )
        return run_process(self.store, request, case.entry.timeout, later_keys)

    def _add_placement(
        self, document: Mapping[str, Any], item: SweepItem, target: Path
    ) -> dict[str, Any]:
        case = item.case
        place = SweepPlace(
            suite=self.plan.suite,
            case=case.name,
            key=case.key,
            repeat=item.repeat,
            seed=self.seed,
            command=tuple(self.command),
        )
        flag = "--result_json="
        command = [
            f"{flag}{target}" if word.startswith(flag) else word for word in document["command"]
        ]
        config = {**document["config"], "result_json": str(target)}
        made = {**document, "command": command, "config": config, "sweep": encode(place)}
        # The code that the record names has priority, because files may change during the sweep.
        return made if document.get("subject") else add_subject(made, self.plan.subject)

    def _record_path(self, case: SweepCase, repeat: int) -> Path:
        """Path for the record of a process. In a resumed sweep, the record may already exist."""
        folder = self.store.folder
        there = find_records(folder, case.key, repeat) if self.store.resume else []
        good = [path for path in there if _read_if_ok(path)]
        label = f"{self.plan.suite}-{case.name}"
        own = folder / record_file_name(label, case.key, repeat, self.record_timestamp)
        return [own, *there, *good][-1]


def _read_if_ok(path: Path) -> Record | None:
    """Reads the record in a file. Returns None if the run was not successful."""
    record = read_record(path)
    return record if record is not None and record.status == "ok" else None


def duration_text(todo: Sequence[SweepItem], campaign: Campaign) -> str:
    """The number of processes of a sweep and their estimated duration, as text.

    Estimates are from earlier sweeps in the directory, or from FLOPs.
    """
    cases = {item.case.key: item.case for item in todo}
    counted = {
        "processes": count_text(todo, "process", "processes"),
        "configurations": count_text(len(cases), "configuration", "configurations"),
    }
    counts = phrases.COUNTS.format(**counted)
    automatic = {case.repeats for case in cases.values() if case.entry.repeats is None}
    if automatic:
        repeats = " or ".join(map(str, sorted(automatic)))
        counts = phrases.AUTOMATIC_COUNTS.format(**counted, repeats=repeats)
    guesses = [_estimated_seconds(item, campaign) for item in todo]
    known = [guess for guess in guesses if guess is not None]
    if len(known) < len(todo) or not todo:
        return phrases.UNKNOWN_DURATION.format(counts=counts)
    as_before = all(campaign.mean_process_seconds(item.case.key) for item in todo)
    template = phrases.AS_BEFORE if as_before else phrases.FIRST_GUESS
    return template.format(counts=counts, duration=format_duration(sum(known)))


def _estimated_seconds(item: SweepItem, campaign: Campaign) -> float | None:
    known = campaign.mean_process_seconds(item.case.key)
    if known is not None:
        return known
    work = item.case.resolved.work
    return _REDUCING_SECONDS if work is None else work.estimate_seconds(campaign.facts)
