"""Processes of a sweep, and how long they take; results are written at once.

The results directory has one record per run, a log beside each, and a journal. Names of records
hold key and repeat.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.base.text.numbers import count, duration
from cnnbench.campaigns.launch.tasks import command_words, run_words
from cnnbench.campaigns.processes.campaign import Campaign, Request, RequestBatch, RunPolicy
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.processes.outcome import Measuring, Record, blank_record, read
from cnnbench.campaigns.processes.question import Question
from cnnbench.campaigns.processes.results_dir import PROCESS, ResultsFolder
from cnnbench.campaigns.sweep.planning import Item, SweepCase, SweepPlan, ordered
from cnnbench.campaigns.sweep.schema import AUTO, BatchSizeSearch
from cnnbench.flags.declare import named
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import RunPart
from cnnbench.records.codec import encode
from cnnbench.records.files import remove_abandoned
from cnnbench.records.parts import SweepPlace
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import with_subject

_NAME_LENGTH = 120
_NAME = re.compile(r"(?P<label>.+)\.(?P<key>[0-9a-f]{12})\.r(?P<repeat>\d+)\.(?P<stamp>[\dTZ]{22})")


class Store(ResultsFolder):
    """A results directory, locked by one sweep at a time and made if missing."""

    command = "sweep"
    noun = "sweep"
    file = "sweep.jsonl"
    shared = True
    kept = (f"*.{'[0-9a-f]' * 12}.r[0-9]*.*",)

    def __init__(
        self, folder: str, question: Question | None = None, *, resume: bool = False
    ) -> None:
        super().__init__(folder, question, resume=resume)
        self.stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
        remove_abandoned(self.folder)

    def log(self, name: str) -> Path:
        """Log file of a process, beside its record."""
        return self.folder / f"{name}.log"

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


def arguments(item: Item, batch_size: int | None = None) -> tuple[str, ...]:
    """Command and flags of an item, without the file of its record."""
    entry = item.case.entry
    flags: dict[str, object] = {**item.case.flags}
    if item.repeat == 0:
        assert entry.search is not None
        flags = {name: text for name, text in flags.items() if name not in NOT_IN_TRIALS}
        flags |= {"num_batches": entry.search.num_batches, "num_warmup_batches": 1}
    if batch_size is not None:
        flags.pop("batch_size", None)
        flags["batch_size"] = batch_size
    words = command_words(flags)
    return run_words(entry.launch, words) if entry.command == "run" else (entry.command, *words)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One sweep in an order from a seed; a store to resume keeps its valid records.

    Attributes:
      program: what starts cnnbench.
      command: the command line of the sweep, for its records.
    """

    plan: SweepPlan
    store: Store
    campaign: Campaign
    seed: int
    program: Sequence[str]
    command: Sequence[str]

    def run(self) -> list[SweepRun]:
        """Runs all items that are not done; returns all results."""
        for event in self.store.earlier:
            if self.store.resume and event.get("suite") == self.plan.suite:
                self.store.stamp = event.get("stamp", self.store.stamp)
        counts = {"cases": len(self.plan.cases), "runs": len(self.left())}
        self.store.begin(suite=self.plan.suite, stamp=self.store.stamp, **counts)
        return self.campaign.follow(self._policy(ordered(self.plan.cases, self.seed)))

    def left(self) -> list[Item]:
        """The items that are not done, in their order; a notice has their number and duration."""
        for event in self.store.earlier:
            if event.get("event") == PROCESS and event.get("repeat"):
                self.campaign.remember((event["key"], False), event["seconds"])
        items = ordered(self.plan.cases, self.seed)
        left = [item for item in items if self._earlier(item) is None]
        if len(left) < len(items):
            done = f"{len(items) - len(left)} of {len(items)} runs are done already"
            self.campaign.reporter.notice(done)
        if left:
            self.campaign.reporter.notice(outlook(left, self.campaign))
        return left

    def known_batch(self, case: SweepCase) -> int | None:
        """The batch size that a search in an earlier session has found; None without one."""
        earlier = None if case.entry.search is None else self._earlier(Item(case, 0))
        if isinstance(earlier, RunRecord) and earlier.batch is not None:
            return earlier.batch.per_device
        return None

    def _earlier(self, item: Item) -> Record | None:
        """The record of a successful run of an item, or after a search, by an earlier session."""
        repeats = [item.repeat] if item.repeat else range(1, item.case.repeats + 1)
        records = (_good(self._target(item.case, repeat)) for repeat in repeats)
        return next((one for one in records if one), None)

    def _policy(self, items: Sequence[Item]) -> RunPolicy[list[SweepRun]]:
        """Runs the items in their order; a case whose search fails is not run."""
        runs: list[SweepRun] = []
        batches: dict[str, int] = {}
        given_up: set[str] = set()
        for at, item in enumerate(items):
            key = item.case.key
            if key in given_up:
                continue
            then = [one.duration_key for one in items[at + 1 :] if one.case.key not in given_up]
            if item.repeat:
                target = self._target(item.case, item.repeat)
                (ended,) = yield self._batch(item, batches.get(key), target, then)
                runs.append(SweepRun(item, target, ended))
                continue
            known = self.known_batch(item.case)
            if known is not None:
                batches[key] = known  # less memory may be free by now
                continue
            found = yield from self._search(item, then)
            if isinstance(found, SweepRun):
                given_up.add(key)
                runs.append(found)
            else:
                batches[key] = found
        return runs

    def _search(self, item: Item, then: Sequence[Hashable]) -> RunPolicy[int | SweepRun]:
        """Searches the case's batch size; the process that failed if it was not found."""
        case, bounds = item.case, item.case.entry.search
        assert bounds is not None
        target = self._target(case, 1)
        fitting, refused = case.resolved.batch_limits or (0, None)
        answers = ("ok", "out_of_memory")
        search = largest_batch(fitting or case.resolved.batch_size, bounds)
        try:
            batch = next(search)
            while True:
                fits = False
                if refused is None or batch < refused:  # else the run would refuse it too
                    later = [item.duration_key, *then]
                    (ended,) = yield self._batch(item, batch, target, later, answers)
                    if ended.status not in answers:
                        return SweepRun(Item(case, 1), target, ended)
                    fits = ended.status == "ok"
                batch = search.send(fits)
        except StopIteration as end:
            found: int = end.value
        if not found:  # otherwise more memory is free by now
            found = bounds.multiple_of
            (ended,) = yield self._batch(item, found, target, then, name=f"{target.stem}.smallest")
            if ended.status != "ok":
                return SweepRun(Item(case, 1), target, ended)
        at_limit = found + bounds.multiple_of > bounds.limit
        text = f"{found} per device{', the limit of the search' if at_limit else ''}"
        self.campaign.reporter.notice(f"{item.label}: {text}")
        return found

    def _batch(
        self,
        item: Item,
        batch_size: int | None,
        target: Path,
        then: Sequence[Hashable],
        answers: Sequence[str] = ("ok",),
        name: str = "",
    ) -> RequestBatch:
        """A process with a batch size; None for that of the flags.

        `target` takes the record, that of a trial of a search only if it fails; see `Request` for
        the others.
        """
        case, trial = item.case, item.repeat == 0
        log = target.with_suffix(f".batch{batch_size}.log" if trial else ".log")
        kept = log.with_suffix(".json")
        record = self.store.unfinished(kept)
        words = (*arguments(item, batch_size), *command_words({"result_json": record}))
        request = Request(
            name=name or log.stem,
            label=f"{item.label}, {batch_size}" if trial else item.label,
            command=Measuring(
                words=(*self.program, *words),
                log=log,
                record=record,
                blank=blank_record(case.entry.command, ("cnnbench", *words), case.resolved),
            ),
            key=item.duration_key,
            target=None if trial else target,
            failed=target,
            answers=answers,
            place=lambda document, lost: self._annotated(document, item, kept),
            facts={
                **{"key": case.key, "case": case.name, "repeat": item.repeat},
                **({"batch_size": batch_size} if trial else {"record": target.name}),
            },
        )
        return RequestBatch(
            folder=self.store, requests=[request], then=then, timeout=case.entry.timeout
        )

    def _annotated(self, document: Mapping[str, Any], item: Item, target: Path) -> dict[str, Any]:
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
        # A plug-in that the suite names may be of a repository of its own, and code may be edited.
        return made if document.get("subject") else with_subject(made, self.plan.subject)

    def _target(self, case: SweepCase, repeat: int) -> Path:
        """Path of the record of a run: when resuming, of one that is there."""
        there = self.store.find(case.key, repeat) if self.store.resume else []
        label = f"{self.plan.suite}-{case.name}"
        good = [path for path in there if _good(path)]
        return [*there, *good][-1] if there else self.store.path(label, case.key, repeat)


def _good(path: Path) -> Record | None:
    """The record of a successful run in a file; None without one."""
    record = read(path)
    return record if record is not None and record.status == "ok" else None


def largest_batch(start: int, search: BatchSizeSearch) -> Generator[int, bool, int]:
    """The largest batch size that fits (0 if none): doubles from `start`, then bisects.

    Yields sizes to try, and gets whether they fit. A batch is assumed to fit if a larger one does.
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


def outlook(todo: Sequence[Item], campaign: Campaign) -> str:
    """Number of processes, and estimated minutes, from earlier sweeps in the directory or FLOPs."""
    runs = [item for item in todo if item.repeat]
    cases = {item.case.key: item.case for item in todo}
    text = f"{count(len(runs), 'process', 'processes')} of "
    text += count(len(cases), "configuration", "configurations")
    automatic = {case.repeats for case in cases.values() if case.entry.repeats is None}
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
