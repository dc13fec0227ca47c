"""Execution of the items of a sweep, and how long that takes; results are written at once.

The results directory has one record per run, a log beside each, and a journal. The records alone
determine what is done: their names hold key and repeat. A child writes to a file below ``.sweep``;
its record gets its final name only after the child has ended and its record has been checked, so
that the output of an orphaned process is never read.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.base.text.numbers import count, duration
from cnnbench.campaigns.launch.tasks import command_words, run_words
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.processes.outcome import Measuring, blank_record, headline, read
from cnnbench.campaigns.processes.question import Question
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.sweep.planning import Item, SweepPlan, ordered
from cnnbench.campaigns.sweep.schema import AUTO, BatchSizeSearch
from cnnbench.flags.declare import named
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import RunPart
from cnnbench.records.codec import encode
from cnnbench.records.files import remove_abandoned
from cnnbench.records.load import record_of
from cnnbench.records.parts import SweepPlace
from cnnbench.records.subject import with_subject

JOURNAL = "sweep.jsonl"
_PRIVATE = ".sweep"
_NAME_LENGTH = 120
_NAME = re.compile(r"(?P<label>.+)\.(?P<key>[0-9a-f]{12})\.r(?P<repeat>\d+)\.(?P<stamp>[\dTZ]{22})")


class Store(ResultsFolder):
    """A results directory, locked by one sweep at a time and made if missing."""

    command = "sweep"
    noun = "sweep"

    def __init__(
        self, folder: str, question: Question | None = None, *, resume: bool = False
    ) -> None:
        super().__init__(
            folder, question, resume=resume, shared=True, journal=JOURNAL, folders=(_PRIVATE,)
        )
        self._private = self.folder / _PRIVATE
        self.stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
        # What earlier sweeps did not finish.
        for path in self._private.glob("*.part"):
            with contextlib.suppress(OSError):
                path.unlink()
        for place in (self.folder, self._private):
            remove_abandoned(place)

    def find(self, key: str, repeat: int) -> list[Path]:
        """Records of a run, oldest first, valid or not; repeats are counted from 1."""
        found = []
        for path in self.folder.glob(f"*.{key}.r{repeat}.*.json"):
            match = _NAME.fullmatch(path.stem)
            if match is not None:
                found.append((match["stamp"], path))
        return [path for _, path in sorted(found)]

    def path(self, label: str, key: str, repeat: int) -> Path:
        """Path of a new record of a run; the label is for people who look at the directory."""
        label = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", label)[:_NAME_LENGTH].strip("-.") or "run"
        return self.folder / f"{label}.{key}.r{repeat}.{self.stamp}.json"

    def attempt(self) -> Path:
        """A new path for a child to write its record to."""
        return self._private / f"{os.getpid()}-{secrets.token_hex(6)}.part"


NOT_IN_TRIALS = named(FLAGS, RunPart.LENGTH | RunPart.WARM_UP | RunPart.EVALUATIONS)
"""Flags that a process of few steps, such as a trial of a batch size, replaces or omits."""

_REDUCING_SECONDS = 20.0
"""Estimate for a process of all-reduces: a few sizes and algorithms on two CPU cores."""


@dataclass(frozen=True)
class SweepRun:
    """A process of this sweep or of the one that is resumed, of which only the status is known."""

    item: Item
    path: Path
    ended: Ended


class _SearchFailed(Exception):
    """A trial failed for a reason other than memory."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.message)
        self.ended = ended


def arguments(item: Item, batch_size: int | None = None) -> tuple[str, ...]:
    """Command and flags of an item, without the file of its record."""
    case = item.case
    flags: dict[str, object] = {**case.flags}
    if item.repeat == 0:
        assert case.search is not None
        flags = {name: text for name, text in flags.items() if name not in NOT_IN_TRIALS}
        flags |= {"num_batches": case.search.num_batches, "num_warmup_batches": 1}
    if batch_size is not None:
        flags.pop("batch_size", None)
        flags["batch_size"] = batch_size
    words = command_words(flags)
    return run_words(case.launch, words) if case.command == "run" else (case.command, *words)


class Sweep:
    """One sweep in an order from a seed; with `resume`, valid records in the store are kept."""

    def __init__(
        self,
        plan: SweepPlan,
        store: Store,
        campaign: Campaign,
        *,
        seed: int,
        resume: bool = False,
        program: Sequence[str] = (),
        command: Sequence[str] = (),
    ) -> None:
        self._plan = plan
        self._store = store
        self._journal = store.journal
        self._campaign = campaign
        self._reporter = campaign.reporter
        self._seed = seed
        self._resume = resume
        self._program = tuple(program)
        self._command = tuple(command) or None
        self._batches: dict[str, int] = {}
        self._trials: dict[tuple[str, int], bool] = {}
        self._started = 0.0
        self._runs: list[SweepRun] = []

    def run(self) -> tuple[SweepRun, ...]:
        """Runs all items that are not done; returns all results, in the order of the plan."""
        self._remember()
        items = ordered(self._plan.cases, self._seed)
        todo = [item for item in items if not self._is_done(item)]
        if len(todo) < len(items):
            self._reporter.notice(f"{len(items) - len(todo)} of {len(items)} runs are done already")
        if todo:
            self._reporter.notice(outlook(todo, self._campaign))
        self._store.begin(
            suite=self._plan.suite,
            stamp=self._store.stamp,
            seed=self._seed,
            resumed=self._resume,
            cases=len(self._plan.cases),
            runs=len(todo),
        )
        self._campaign.expect((item.duration_key for item in todo), len(items) - len(todo))
        for item in todo:
            if self._campaign.expects(item.duration_key):
                self._one(item)
        self._journal.add("finished", suite=self._plan.suite)
        rank = {case.key: index for index, case in enumerate(self._plan.cases)}
        return tuple(sorted(self._runs, key=lambda r: (rank[r.item.case.key], r.item.repeat)))

    def _remember(self) -> None:
        """Reads durations and, when resuming, trials of batch sizes from the journal."""
        for event in self._journal.read():
            key, seconds = event.get("key"), event.get("seconds")
            if event.get("event") in ("end", "searched") and isinstance(seconds, int | float):
                searched = event["event"] == "searched"
                self._campaign.remember((str(key), searched), float(seconds))
            if not self._resume:
                continue
            batch = event.get("batch_size")
            if event.get("event") == "trial" and isinstance(batch, int):
                self._trials[str(key), batch] = event.get("fits") is True
            if event.get("event") == "searched" and isinstance(batch, int):
                self._batches[str(key)] = batch
            stamp = event.get("stamp")
            if event.get("suite") == self._plan.suite and isinstance(stamp, str):
                self._store.stamp = stamp

    def _is_done(self, item: Item) -> bool:
        """Whether an earlier sweep has run the item; its result is then taken over."""
        if not self._resume:
            return False
        case = item.case
        if item.repeat == 0:
            return case.key in self._batches
        for path in reversed(self._store.find(case.key, item.repeat)):
            record = read(path)
            if record is not None and record.status == "ok":
                self._runs.append(SweepRun(item, path, Ended(0, 0.0, status="ok")))
                return True
        return False

    def _one(self, item: Item) -> None:
        self._campaign.begin(item.label)
        self._started = time.monotonic()
        told = self._measure(item) if item.repeat else self._search(item)
        self._campaign.end(item.label, told, self._seconds)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _measure(self, item: Item) -> str:
        target = self._target(item)
        ended = self._attempt(item, self._batches.get(item.case.key), target.with_suffix(".log"))
        return self._commit(ended, item, target)

    def _search(self, item: Item) -> str:
        """Searches the case's batch size, or fails the case."""
        case = item.case
        assert case.search is not None
        first = Item(case, 1)
        target = self._target(first)

        def attempt(batch: int) -> Ended:
            return self._attempt(item, batch, target.with_suffix(f".batch{batch}.log"))

        fitting, refused = case.resolved.batch_limits or (0, None)

        def fits(batch: int) -> bool:
            if refused is not None and batch >= refused:
                return False  # the run would refuse it too
            known = self._trials.get((case.key, batch))
            if known is not None:
                return known
            ended = attempt(batch)
            if ended.status not in ("ok", "out_of_memory"):
                raise _SearchFailed(ended)
            fitted = ended.status == "ok"
            self._trials[case.key, batch] = fitted
            self._journal.add("trial", key=case.key, batch_size=batch, fits=fitted)
            return fitted

        try:
            found = largest_batch(fitting or case.resolved.batch_size, case.search, fits)
        except _SearchFailed as failure:
            return self._give_up(failure.ended, first, target)
        if not found:
            found = case.search.multiple_of
            ended = attempt(found)
            if ended.status != "ok":  # otherwise more memory is free by now
                return self._give_up(ended, first, target)
        self._batches[case.key] = found
        self._journal.add("searched", key=case.key, batch_size=found, seconds=self._seconds)
        at_limit = found + case.search.multiple_of > case.search.limit
        return f"{found} per device{', the limit of the search' if at_limit else ''}"

    def _give_up(self, ended: Ended, first: Item, target: Path) -> str:
        self._campaign.drop((first.case.key, False))
        return self._commit(ended, first, target)

    def _attempt(self, item: Item, batch_size: int | None, log: Path) -> Ended:
        """Runs one process with a batch size; None for that of the flags."""
        case, record = item.case, self._store.attempt()
        words = (*arguments(item, batch_size), *command_words({"result_json": record}))
        self._journal.add("start", key=case.key, repeat=item.repeat, log=log.name)
        command = Measuring(
            words=(*self._program, *words),
            log=log,
            record=record,
            blank=blank_record(case.command, ("cnnbench", *words), case.resolved),
        )
        try:
            (ended,) = self._campaign.run([command], case.timeout)
        finally:
            record.unlink(missing_ok=True)
        return ended

    def _commit(self, ended: Ended, item: Item, target: Path) -> str:
        """Stores the record of a process; returns its main result, or its error."""
        if ended.unusable is not None:
            self._store.write(target.with_suffix(".unusable"), ended.unusable)
        self._store.keep(self._annotated(ended.document, item, target), target)
        self._journal.add(
            "end",
            key=item.case.key,
            repeat=item.repeat,
            case=item.case.name,
            status=ended.status,
            seconds=round(self._seconds, 3),
            record=target.name,
            message=ended.message,
            max_rss_bytes=ended.max_rss_bytes,
        )
        self._runs.append(SweepRun(item, target, ended))
        if ended.status == "ok":
            return headline(record_of(ended.document))
        return f"{ended.status.replace('_', ' ')}: {ended.message}"

    def _annotated(self, document: Mapping[str, Any], item: Item, target: Path) -> dict[str, Any]:
        case = item.case
        searched = case.search is not None
        place = SweepPlace(
            suite=self._plan.suite,
            case=case.name,
            key=case.key,
            repeat=item.repeat,
            seed=self._seed,
            requested_batch_size=case.resolved.batch_size if searched else None,
            command=self._command,
        )
        flag = "--result_json="
        command = [
            f"{flag}{target}" if word.startswith(flag) else word for word in document["command"]
        ]
        config = {**document["config"], "result_json": str(target)}
        made = {**document, "command": command, "config": config, "sweep": encode(place)}
        # A plug-in that the suite names may be of a repository of its own, and code may be edited.
        return made if document.get("subject") else with_subject(made, self._plan.subject)

    def _target(self, item: Item) -> Path:
        """Path of the record; replaces a failed one of the same run when resuming."""
        key, repeat = item.case.key, item.repeat
        failed = self._store.find(key, repeat) if self._resume else []
        label = f"{self._plan.suite}-{item.case.name}"
        return failed[-1] if failed else self._store.path(label, key, repeat)


def largest_batch(start: int, search: BatchSizeSearch, fits: Callable[[int], bool]) -> int:
    """The largest batch size that fits (0 if none): doubles from `start`, then bisects.

    A batch is assumed to fit if a larger one does. An exception of `fits` ends the search.
    """
    unit, most = search.multiple_of, search.limit // search.multiple_of
    good, bad = 0, max(1, min(start // unit, most))
    while fits(bad * unit):
        if bad == most:
            return most * unit
        good, bad = bad, min(2 * bad, most)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle * unit):
            good = middle
        else:
            bad = middle
    return good * unit


def outlook(todo: Sequence[Item], campaign: Campaign) -> str:
    """Number of processes, and estimated minutes, from earlier sweeps in the directory or FLOPs."""
    runs = [item for item in todo if item.repeat]
    cases = {item.case.key: item.case for item in todo}
    text = f"{count(len(runs), 'process', 'processes')} of "
    text += count(len(cases), "configuration", "configurations")
    automatic = {case.repeats for case in cases.values() if case.is_auto}
    if automatic:
        text += f", {' or '.join(map(str, sorted(automatic)))} of each (repeats: {AUTO})"
    guesses = [_seconds(item, campaign) for item in runs]
    known = [one for one in guesses if one is not None]
    if len(known) < len(runs) or not runs:
        return f"{text}; their duration is known after the first"
    basis = (
        "as before"
        if all(campaign.seconds_of(item.duration_key) for item in runs)
        else "a first guess"
    )
    searches = len(todo) - len(runs)
    besides = f", and {count(searches, 'search', 'searches')} for batch sizes" if searches else ""
    return f"{text}: about {duration(sum(known))}, {basis}{besides}"


def _seconds(item: Item, campaign: Campaign) -> float | None:
    known = campaign.seconds_of(item.duration_key)
    if known is not None:
        return known
    work = item.case.resolved.work
    return _REDUCING_SECONDS if work is None else work.seconds(campaign.facts)
