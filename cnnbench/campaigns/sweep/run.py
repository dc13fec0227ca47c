"""Runs the processes of a sweep, and estimates how long they take.

The results directory contains a record and a log for each run, and a journal. The names of records
contain the key of the configuration and the number of the repeat.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    Rounds,
    blank_record,
    read_record,
    run_process,
)
from cnnbench.campaigns.suite.entries import BatchSizeSearch, SweepCase
from cnnbench.campaigns.sweep import phrases
from cnnbench.campaigns.sweep.plan import SweepItem, SweepPlan, ordered_items
from cnnbench.flags import ACCEPTED, FLAGS, RunPart, names_of_flags
from cnnbench.records.codec import encode
from cnnbench.records.run import RunRecord, SweepPlace
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


_BATCH = names_of_flags(FLAGS, RunPart.BATCH)
NOT_IN_TRIALS = names_of_flags(
    ACCEPTED.values(), RunPart.LENGTH | RunPart.WARM_UP | RunPart.EVALUATIONS
)
"""Flags that are replaced or omitted in a process with few steps, such as a trial of a batch size.
"""

_REDUCING_SECONDS = 20.0
"""Estimated seconds of an all-reduce process: a few sizes and algorithms on two CPU cores."""


class SweepResult(NamedTuple):
    """Result of one process of a sweep. If an earlier session ran the process, only its status is
    known.
    """

    item: SweepItem
    path: Path
    ended: ProcessResult


def command_of_item(item: SweepItem, batch_size: int | None = None) -> tuple[str, ...]:
    """Command and flags of one process of a sweep, without the flag for its record."""
    entry = item.case.entry
    flags: dict[str, object] = {**item.case.flags}
    if item.repeat == 0:
        assert entry.search is not None
        flags = {name: text for name, text in flags.items() if name not in NOT_IN_TRIALS}
        flags |= {"num_batches": entry.search.num_batches, "num_warmup_batches": 1}
    if batch_size is not None:
        flags = {name: text for name, text in flags.items() if name not in _BATCH}
        flags["batch_size"] = batch_size
    words = flags_to_arguments(flags)
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
            if event.get("event") == PROCESS and event.get("repeat"):
                self.campaign.add_process_seconds((event["key"], False), event["seconds"])
        items = ordered_items(self.plan.cases, self.seed)
        todo = [item for item in items if self._earlier_record(item) is None]
        if len(todo) < len(items):
            of = count_text(items, "run is", "runs are")
            done = len(items) - len(todo)
            self.campaign.reporter.notice(phrases.DONE.format(done=done, runs=of))
        if todo:
            self.campaign.reporter.notice(duration_text(todo, self.campaign))
        return todo

    def earlier_batch_size(self, case: SweepCase) -> int | None:
        """The batch size that a search in an earlier session found for a case; None if there is
        none.
        """
        earlier = None if case.entry.search is None else self._earlier_record(SweepItem(case, 0))
        if isinstance(earlier, RunRecord) and earlier.batch is not None:
            return earlier.batch.per_device
        return None

    def _earlier_record(self, item: SweepItem) -> Record | None:
        """The record of a process that an earlier session ran successfully; None if there is no
        such record.
        """
        repeats = [item.repeat] if item.repeat else range(1, item.case.repeats + 1)
        records = (_read_if_ok(self._record_path(item.case, repeat)) for repeat in repeats)
        return next((record for record in records if record), None)

    def _sweep_requests(self) -> ProcessRequests[None]:
        """Yields the processes to run, in order. If the search for a case's batch size fails, skips
        the case.
        """
        cases = {case.key: case for case in self.plan.cases}
        batches: dict[str, int] = {}
        items = ordered_items(self.plan.cases, self.seed)
        rounds = Rounds([(item.case.key, item.repeat) for item in items])
        for key, repeat, later_keys in rounds:
            item = SweepItem(cases[key], repeat)
            if repeat:
                target = self._record_path(item.case, repeat)
                ended = yield from self._run_item(item, batches.get(key), target, later_keys)
                self.results.append(SweepResult(item, target, ended))
                continue
            batch: int | SweepResult | None = self.earlier_batch_size(item.case)
            # A batch size from an earlier session is kept, even if less memory is free now.
            if batch is None:
                batch = yield from self._search_batch_size(item, later_keys)
            if isinstance(batch, SweepResult):
                self.results.append(batch)
                rounds.left_out.add(key)
            else:
                batches[key] = batch

    def _search_batch_size(
        self, item: SweepItem, later_keys: Sequence[Hashable]
    ) -> ProcessRequests[int | SweepResult]:
        """Searches for the largest batch size of a case. If no batch size works, returns the failed
        run.
        """
        case, bounds = item.case, item.case.entry.search
        assert bounds is not None
        bounds = replace(bounds, multiple_of=math.lcm(bounds.multiple_of, case.resolved.batch_unit))
        target = self._record_path(case, 1)
        fitting, refused = case.resolved.batch_limits or (0, None)
        answers = ("ok", "out_of_memory")
        search = search_largest_batch(fitting or case.resolved.batch_size, bounds)
        try:
            batch = next(search)
            while True:
                fits = False
                # A batch size of `refused` or more is not tried, because a run would refuse it.
                if refused is None or batch < refused:
                    later = [item.duration_key, *later_keys]
                    ended = yield from self._run_item(item, batch, target, later, answers)
                    if ended.status not in answers:
                        return SweepResult(SweepItem(case, 1), target, ended)
                    fits = ended.status == "ok"
                batch = search.send(fits)
        except StopIteration as end:
            images: int = end.value
        # The smallest batch size is tried again, because more memory may be free now.
        if not images:
            images = bounds.multiple_of
            ended = yield from self._run_item(
                item, images, target, later_keys, name=f"{target.stem}.smallest"
            )
            if ended.status != "ok":
                return SweepResult(SweepItem(case, 1), target, ended)
        at_limit = images + bounds.multiple_of > bounds.limit
        text = f"{images} per device{', the limit of the search' if at_limit else ''}"
        self.campaign.reporter.notice(f"{item.label}: {text}")
        return images

    def _run_item(
        self,
        item: SweepItem,
        batch_size: int | None,
        target: Path,
        later_keys: Sequence[Hashable],
        answers: Sequence[str] = ("ok",),
        name: str = "",
    ) -> ProcessRequests[ProcessResult]:
        """Runs one process of a sweep. `batch_size` is None for the batch size in the flags.

        The record is written to `target`. For trials of a search, it is only written after a
        failure. For the other arguments, see `ProcessRequest`.
        """
        case, trial = item.case, item.repeat == 0
        log = target.with_suffix(f".batch{batch_size}.log" if trial else ".log")
        path = log.with_suffix(".json")
        record = self.store.unfinished_path(path)
        words = (*command_of_item(item, batch_size), *flags_to_arguments({"result_json": record}))
        request = ProcessRequest(
            name=name or log.stem,
            label=f"{item.label}, {batch_size}" if trial else item.label,
            command=BenchmarkCommand(
                words=(*self.program, *words),
                log=log,
                record=record,
                blank=blank_record(case.entry.command, ("cnnbench", *words), case.resolved),
            ),
            key=item.duration_key,
            target=None if trial else target,
            failed=target,
            answers=answers,
            place=lambda document, lost: self._add_placement(document, item, path),
            facts={
                **{"key": case.key, "case": case.name, "repeat": item.repeat},
                **({"batch_size": batch_size} if trial else {}),
            },
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
            requested_batch_size=case.resolved.batch_size if case.entry.search else None,
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


def search_largest_batch(start: int, search: BatchSizeSearch) -> Generator[int, bool, int]:
    """Searches for the largest batch size that fits into memory: yields sizes to try, is sent
    whether each fits, and returns the largest size that fits, or 0.

    It doubles the size from `start` on, then bisects. If a batch size fits, all smaller sizes are
    assumed to fit.
    """
    unit, most = search.multiple_of, search.limit // search.multiple_of
    good, bad = 0, max(1, min(start // unit, most))
    while (yield bad * unit):
        if bad == most:
            return most * unit
        good, bad = bad, min(2 * bad, most)
    while bad - good > 1:
        middle = (good + bad) // 2
        if (yield middle * unit):
            good = middle
        else:
            bad = middle
    return good * unit


def duration_text(todo: Sequence[SweepItem], campaign: Campaign) -> str:
    """The number of processes of a sweep and their estimated duration, as text.

    Estimates are from earlier sweeps in the directory, or from FLOPs.
    """
    runs = [item for item in todo if item.repeat]
    cases = {item.case.key: item.case for item in todo}
    counted = {
        "processes": count_text(len(runs), "process", "processes"),
        "configurations": count_text(len(cases), "configuration", "configurations"),
    }
    counts = phrases.COUNTS.format(**counted)
    automatic = {case.repeats for case in cases.values() if case.entry.repeats is None}
    if automatic:
        repeats = " or ".join(map(str, sorted(automatic)))
        counts = phrases.AUTOMATIC_COUNTS.format(**counted, repeats=repeats)
    guesses = [_estimated_seconds(item, campaign) for item in runs]
    known = [guess for guess in guesses if guess is not None]
    if len(known) < len(runs) or not runs:
        return phrases.UNKNOWN_DURATION.format(counts=counts)
    as_before = all(campaign.mean_process_seconds(item.duration_key) for item in runs)
    template = phrases.AS_BEFORE if as_before else phrases.FIRST_GUESS
    text = template.format(counts=counts, duration=format_duration(sum(known)))
    searches = len(todo) - len(runs)
    if not searches:
        return text
    counted_searches = count_text(searches, "search", "searches")
    return phrases.WITH_SEARCHES.format(text=text, searches=counted_searches)


def _estimated_seconds(item: SweepItem, campaign: Campaign) -> float | None:
    known = campaign.mean_process_seconds(item.duration_key)
    if known is not None:
        return known
    work = item.case.resolved.work
    return _REDUCING_SECONDS if work is None else work.estimate_seconds(campaign.facts)
