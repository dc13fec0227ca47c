"""Processes of a sweep, and how long they take; results are written at once.

The results directory has one record per run, a log beside each, and a journal. Names of records
hold key and repeat.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.base.text.numbers import count, duration
from cnnbench.campaigns.launch.tasks import command_words, run_words
from cnnbench.campaigns.processes.campaign import Campaign, Request, RequestBatch, RunPolicy
from cnnbench.campaigns.processes.child import Ended
from cnnbench.campaigns.processes.outcome import Measuring, blank_record, read
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
from cnnbench.records.subject import with_subject

_NAME_LENGTH = 120
_NAME = re.compile(r"(?P<label>.+)\.(?P<key>[0-9a-f]{12})\.r(?P<repeat>\d+)\.(?P<stamp>[\dTZ]{22})")


class Store(ResultsFolder):
    """A results directory, locked by one sweep at a time and made if missing."""

    command = "sweep"
    noun = "sweep"
    file = "sweep.jsonl"
    shared = True

    def __init__(
        self, folder: str, question: Question | None = None, *, resume: bool = False
    ) -> None:
        super().__init__(folder, question, resume=resume)
        self.stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
        for path in self.folder.glob("*.part"):  # what earlier sweeps did not finish
            with contextlib.suppress(OSError):
                path.unlink()
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
        self._campaign = campaign
        self._seed = seed
        self._resume = resume
        self._program = tuple(program)
        self._command = tuple(command) or None
        self._batches: dict[str, int] = {}
        self._runs: list[SweepRun] = []

    def run(self) -> tuple[SweepRun, ...]:
        """Runs all items that are not done; returns all results, in the order of the plan."""
        for event in self._store.earlier:
            if event.get("event") == PROCESS and event.get("repeat"):
                self._campaign.remember((event["key"], False), event["seconds"])
            if self._resume and event.get("suite") == self._plan.suite:
                self._store.stamp = event["stamp"]
        items = ordered(self._plan.cases, self._seed)
        todo = [item for item in items if not self._is_done(item)]
        if len(todo) < len(items):
            done = f"{len(items) - len(todo)} of {len(items)} runs are done already"
            self._campaign.reporter.notice(done)
        if todo:
            self._campaign.reporter.notice(outlook(todo, self._campaign))
        counts = {"cases": len(self._plan.cases), "runs": len(todo)}
        self._store.begin(suite=self._plan.suite, stamp=self._store.stamp, **counts)
        self._campaign.follow(self._policy(items))
        rank = {case.key: index for index, case in enumerate(self._plan.cases)}
        return tuple(sorted(self._runs, key=lambda r: (rank[r.item.case.key], r.item.repeat)))

    def _is_done(self, item: Item) -> bool:
        """Whether an earlier session has run the item, or all that a search is for."""
        case = item.case
        repeats = [item.repeat] if item.repeat else range(1, case.repeats + 1)
        return all(self._is_ok(self._target(case, repeat)) for repeat in repeats)

    @staticmethod
    def _is_ok(path: Path) -> bool:
        record = read(path)
        return record is not None and record.status == "ok"

    def _policy(self, items: Sequence[Item]) -> RunPolicy[None]:
        """Runs the items in their order; a case whose search fails is not run."""
        given_up: set[str] = set()
        for at, item in enumerate(items):
            if item.case.key in given_up:
                continue
            then = [one.duration_key for one in items[at + 1 :] if one.case.key not in given_up]
            if item.repeat == 0:
                found = yield from self._search(item, then)
                if not found:
                    given_up.add(item.case.key)
                continue
            batch = self._batches.get(item.case.key)
            target = self._target(item.case, item.repeat)
            request = self._request(item, batch, item.label, target.with_suffix(".log"), target)
            yield from self._run(item, request, then)

    def _run(self, item: Item, request: Request, then: Sequence[Hashable]) -> RunPolicy[bool]:
        """Runs a process, which is a result of the sweep; whether it succeeded."""
        (ended,) = yield self._batch(item, request, then)
        assert request.failed is not None
        self._runs.append(SweepRun(item, request.failed, ended))
        return ended.status == "ok"

    def _batch(self, item: Item, request: Request, then: Sequence[Hashable]) -> RequestBatch:
        return RequestBatch(
            folder=self._store, requests=[request], then=then, timeout=item.case.timeout
        )

    def _search(self, item: Item, then: Sequence[Hashable]) -> RunPolicy[bool]:
        """Searches the case's batch size; whether it was found. Else the case has failed."""
        case = item.case
        assert case.search is not None
        target = self._target(case, 1)
        fitting, refused = case.resolved.batch_limits or (0, None)

        def trial(batch: int, *answers: str) -> Request:
            log = target.with_suffix(f".batch{batch}.log")
            label = f"{item.label}, {batch}"
            made = self._request(item, batch, label, log, None)
            return replace(made, failed=target, answers=("ok", *answers))

        first = Item(case, 1)
        search = largest_batch(fitting or case.resolved.batch_size, case.search)
        found, fits = 0, None
        with contextlib.suppress(StopIteration):
            while True:
                batch = next(search) if fits is None else search.send(fits)
                fits = False
                if refused is None or batch < refused:  # else the run would refuse it too
                    request = trial(batch, "out_of_memory")
                    (ended,) = yield self._batch(item, request, [item.duration_key, *then])
                    if ended.status not in request.answers:
                        self._runs.append(SweepRun(first, target, ended))
                        return False
                    fits = ended.status == "ok"
                    found = max(found, batch) if fits else found
        if not found:  # otherwise more memory is free by now
            found = case.search.multiple_of
            last = replace(trial(found), name=f"{target.stem}.smallest")
            (ended,) = yield self._batch(item, last, then)
            if ended.status != "ok":
                self._runs.append(SweepRun(first, target, ended))
                return False
        self._batches[case.key] = found
        at_limit = found + case.search.multiple_of > case.search.limit
        text = f"{found} per device{', the limit of the search' if at_limit else ''}"
        self._campaign.reporter.notice(f"{item.label}: {text}")
        return True

    def _request(
        self, item: Item, batch_size: int | None, label: str, log: Path, target: Path | None
    ) -> Request:
        """A process with a batch size; None for that of the flags."""
        case, record = item.case, log.with_suffix(".part")
        words = (*arguments(item, batch_size), *command_words({"result_json": record}))
        facts = {"key": case.key, "case": case.name, "repeat": item.repeat}
        facts |= {"batch_size": batch_size} if target is None else {"record": target.name}
        return Request(
            name=log.stem,
            label=label,
            command=Measuring(
                words=(*self._program, *words),
                log=log,
                record=record,
                blank=blank_record(case.command, ("cnnbench", *words), case.resolved),
            ),
            key=item.duration_key,
            target=target,
            failed=target,
            place=lambda document, lost: self._annotated(document, item, target or log),
            facts=facts,
        )

    def _annotated(self, document: Mapping[str, Any], item: Item, target: Path) -> dict[str, Any]:
        case = item.case
        searched = case.search is not None
        target = target.with_suffix(".json")
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

    def _target(self, case: SweepCase, repeat: int) -> Path:
        """Path of the record of a run: when resuming, of one that is there."""
        there = self._store.find(case.key, repeat) if self._resume else []
        label = f"{self._plan.suite}-{case.name}"
        good = [path for path in there if self._is_ok(path)]
        return [*there, *good][-1] if there else self._store.path(label, case.key, repeat)


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
