"""Runs the items of a sweep one after the other; every result is written durably at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.processes.child import GRACE_SECONDS, execute
from cnnbench.processes.outcome import Attempt, Outcome, headline, judge, read
from cnnbench.records.codec import encode
from cnnbench.records.load import record_of
from cnnbench.records.place import SweepPlace
from cnnbench.records.subject import with_subject
from cnnbench.sweep.durations import Durations, outlook
from cnnbench.sweep.planning import Item, SweepCase, SweepPlan, ordered
from cnnbench.sweep.schema import Search
from cnnbench.sweep.store import Run, Store
from cnnbench.text.progress import Reporter

NOT_IN_TRIALS = (
    "num_batches",
    "num_epochs",
    "num_warmup_batches",
    "warmup",
    "max_warmup_batches",
    "eval_during_training_every_n_steps",
    "eval_during_training_every_n_epochs",
    "eval_during_training_at_specified_steps",
    "eval_during_training_at_specified_epochs",
    "stop_at",
    "stop_at_top_1_accuracy",
)
"""Flags that a process of few steps, such as a trial of a batch size, replaces or leaves out."""


@dataclass(frozen=True)
class RunResult:
    """The result of one run, of this sweep or of the one that is resumed.

    Attributes:
      status: see `Outcome`.
      path: of its record.
      message: why it is not ok.
    """

    case: SweepCase
    repeat: int
    status: str
    path: Path
    message: str = ""


class _SearchFailed(Exception):
    """A trial failed for another reason than memory."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


def arguments(item: Item, batch_size: int | None = None) -> tuple[str, ...]:
    """Command and flags of an item, without the file of its record.

    Args:
      item: what to run.
      batch_size: replaces that of the flags.
    """
    case = item.case
    flags = list(case.flags)
    if item.repeat == 0:
        assert case.search is not None
        flags = [f for f in flags if f[2:].partition("=")[0] not in NOT_IN_TRIALS]
        flags += [f"--num_batches={case.search.num_batches}", "--num_warmup_batches=1"]
    if batch_size is not None:
        flags = [f for f in flags if not f.startswith("--batch_size=")]
        flags.append(f"--batch_size={batch_size}")
    if case.launch is not None:
        return ("launch", *case.launch.flags, "--", *flags)
    return (case.command, *flags)


class Sweep:
    """One sweep.

    Args:
      plan: what to run.
      store: where results go.
      seed: of the order.
      facts: about this machine, for the records of runs that could not write theirs.
      resume: whether runs with a sound record in the store are done.
      reporter: progress.
      program: what is started, before command and flags.
      grace: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        plan: SweepPlan,
        store: Store,
        *,
        seed: int,
        facts: Mapping[str, Any],
        resume: bool = False,
        reporter: Reporter | None = None,
        program: Sequence[str] = (),
        grace: float = GRACE_SECONDS,
    ) -> None:
        self._plan = plan
        self._store = store
        self._journal = store.journal
        self._seed = seed
        self._facts = facts
        self._resume = resume
        self._reporter = reporter or Reporter()
        self._program = tuple(program)
        self._grace = grace
        self._durations = Durations()
        self._batches: dict[str, int] = {}
        self._trials: dict[tuple[str, int], bool] = {}
        self._given_up: set[str] = set()
        self._results: list[RunResult] = []

    def run(self) -> tuple[RunResult, ...]:
        """Runs everything that is not done.

        Returns:
          The results, of earlier sweeps too when resuming, in the order of the plan.

        Raises:
          KeyboardInterrupt: the child is gone; what it did is not recorded.
          BenchmarkError: results cannot be written.
        """
        self._remember()
        items = ordered(self._plan.cases, self._seed)
        todo = [item for item in items if not self._is_done(item)]
        if len(todo) < len(items):
            self._reporter.notice(f"{len(items) - len(todo)} of {len(items)} runs are done already")
        if todo:
            self._reporter.notice(outlook(todo, self._durations, self._facts))
        self._journal.add(
            "sweep",
            suite=self._plan.suite,
            stamp=self._store.stamp,
            seed=self._seed,
            resumed=self._resume,
            cases=len(self._plan.cases),
            runs=len(todo),
            environment=self._plan.environment,
        )
        done = len(items) - len(todo)
        for position, item in enumerate(todo):
            rest = [(i.case.key, i.repeat == 0) for i in todo[position + 1 :]]
            self._one(item, done + position + 1, len(items), rest)
        self._journal.add("finished", suite=self._plan.suite)
        rank = {case.key: index for index, case in enumerate(self._plan.cases)}
        return tuple(sorted(self._results, key=lambda r: (rank[r.case.key], r.repeat)))

    def _remember(self) -> None:
        """Takes durations, and when resuming also trials of batch sizes, from the journal."""
        for event in self._journal.read():
            key, seconds = event.get("key"), event.get("seconds")
            if event.get("event") in ("end", "searched") and isinstance(seconds, int | float):
                search = event["event"] == "searched"
                self._durations.add(str(key), search, float(seconds), past=True)
            if not self._resume:
                continue
            batch = event.get("batch_size")
            if event.get("event") == "trial" and isinstance(batch, int):
                self._trials[str(key), batch] = event.get("fits") is True
            if event.get("event") == "searched" and isinstance(batch, int):
                self._batches[str(key)] = batch
        last = self._store.last_sweep(self._plan.suite)
        if self._resume and last is not None:
            self._continue(last)

    def _continue(self, last: Mapping[str, Any]) -> None:
        """Continues the previous sweep; warns if its results may not count."""
        if isinstance(last.get("stamp"), str):
            self._store.stamp = last["stamp"]
        then, now = last.get("environment"), self._plan.environment
        if isinstance(then, dict) and then != now:
            names = sorted(n for n in {*then, *now} if then.get(n) != now.get(n))
            self._reporter.warning(
                f"{', '.join(names)} changed since the last sweep; earlier results do not count"
            )

    def _is_done(self, item: Item) -> bool:
        """Whether an earlier sweep has done it; its result is taken over."""
        if not self._resume:
            return False
        case = item.case
        if item.repeat == 0:
            return case.key in self._batches
        for path in reversed(self._store.find(self._run_of(item))):
            record = read(path)
            if record is not None and record.status == "ok":
                self._results.append(RunResult(case, item.repeat, "ok", path))
                return True
        return False

    def _one(self, item: Item, index: int, total: int, rest: list[tuple[str, bool]]) -> None:
        case = item.case
        if case.key in self._given_up:
            return
        self._reporter.started(index, total, item.label)
        started = datetime.now(timezone.utc)
        do = self._measure if item.repeat else self._search
        what = do(item, started)
        seconds = (datetime.now(timezone.utc) - started).total_seconds()
        self._durations.add(case.key, item.repeat == 0, seconds)
        waiting = [pair for pair in rest if pair[0] not in self._given_up]
        self._reporter.ended(index, total, item.label, what, seconds, self._durations.left(waiting))

    def _measure(self, item: Item, started: datetime) -> str:
        batch = self._batches.get(item.case.key)
        target = self._target(item)
        outcome = self._attempt(arguments(item, batch), item, target, started)
        self._commit(outcome, item, target, started)
        if outcome.status != "ok":
            return _problem(outcome)
        return headline(record_of(outcome.document))

    def _search(self, item: Item, started: datetime) -> str:
        """Finds the case's batch size, or fails the case."""
        case = item.case
        assert case.search is not None
        first = Item(case, 1)

        limits = case.resolved.batch_limits

        def fits(batch: int) -> bool:
            if limits is not None and batch >= limits.refused:
                return False  # the run would say the same
            known = self._trials.get((case.key, batch))
            if known is not None:
                return known
            log = self._target(first).with_suffix(f".batch{batch}.log")
            outcome = self._attempt(arguments(item, batch), item, log, started)
            if outcome.status not in ("ok", "out_of_memory"):
                raise _SearchFailed(outcome)
            fitted = outcome.status == "ok"
            self._trials[case.key, batch] = fitted
            self._journal.add("trial", key=case.key, batch_size=batch, fits=fitted)
            return fitted

        try:
            start = limits.fitting if limits is not None else 0
            found = largest_batch(start or case.resolved.batch_size, case.search, fits)
        except _SearchFailed as failure:
            return self._give_up(first, failure.outcome, started)
        if not found:
            found = case.search.multiple_of
            log = self._target(first).with_suffix(f".batch{found}.log")
            outcome = self._attempt(arguments(item, found), item, log, started)
            if outcome.status != "ok":  # else memory that was taken is free again
                return self._give_up(first, outcome, started)
        self._batches[case.key] = found
        seconds = (datetime.now(timezone.utc) - started).total_seconds()
        self._journal.add("searched", key=case.key, batch_size=found, seconds=seconds)
        at_limit = found + case.search.multiple_of > case.search.limit
        return f"{found} per device{', the limit of the search' if at_limit else ''}"

    def _give_up(self, first: Item, outcome: Outcome, started: datetime) -> str:
        self._given_up.add(first.case.key)
        self._commit(outcome, first, self._target(first), started)
        return _problem(outcome)

    def _attempt(
        self, flags: Sequence[str], item: Item, target: Path, started: datetime
    ) -> Outcome:
        """Runs one process; its log goes beside the target."""
        record = self._store.attempt()
        log = target.with_suffix(".log")
        command = (*flags, f"--result_json={record}")
        self._journal.add("start", key=item.case.key, repeat=item.repeat, log=log.name)
        try:
            finished = execute((*self._program, *command), log, item.case.timeout, self._grace)
            attempt = Attempt(
                kind=item.case.command,
                command=("cnnbench", *command),
                config=item.case.resolved.config,
                explicit_flags=item.case.resolved.explicit_flags,
                environment=self._facts,
                started_at=started,
                record=record,
                log=log,
                finished=finished,
            )
            return judge(attempt)
        finally:
            record.unlink(missing_ok=True)

    def _commit(self, outcome: Outcome, item: Item, target: Path, started: datetime) -> None:
        document = self._annotated(outcome.document, item, target)
        if outcome.unusable is not None:
            self._store.keep_unusable(outcome.unusable, target)
        self._store.commit(document, target)
        seconds = (datetime.now(timezone.utc) - started).total_seconds()
        self._journal.add(
            "end",
            key=item.case.key,
            repeat=item.repeat,
            case=item.case.name,
            status=outcome.status,
            seconds=round(seconds, 3),
            record=target.name,
            message=outcome.message,
            max_rss_bytes=outcome.max_rss_bytes,
        )
        self._results.append(
            RunResult(item.case, item.repeat, outcome.status, target, outcome.message)
        )

    def _annotated(self, document: Mapping[str, Any], item: Item, target: Path) -> dict[str, Any]:
        """The record, with the sweep it belongs to, under its final name."""
        case = item.case
        searched = case.search is not None
        place = SweepPlace(
            suite=self._plan.suite,
            case=case.name,
            key=case.key,
            repeat=item.repeat,
            seed=self._seed,
            requested_batch_size=case.resolved.batch_size if searched else None,
        )
        flag = "--result_json="
        command = [
            f"{flag}{target}" if word.startswith(flag) else word for word in document["command"]
        ]
        config = {**document["config"], "result_json": str(target)}
        made = {**document, "command": command, "config": config, "sweep": encode(place)}
        # A plug-in that the suite names may be of a repository of its own.
        own = (document.get("subject") or {}).get("repository")
        if own not in (None, self._plan.subject.repository):
            return made
        return with_subject(made, self._plan.subject)

    def _target(self, item: Item) -> Path:
        """Where the record goes: over a failed one of the same run when resuming."""
        run = self._run_of(item)
        failed = self._store.find(run) if self._resume else []
        return failed[-1] if failed else self._store.path(run)

    def _run_of(self, item: Item) -> Run:
        return Run(f"{self._plan.suite}-{item.case.name}", item.case.key, item.repeat)


def _problem(outcome: Outcome) -> str:
    return f"{outcome.status.replace('_', ' ')}: {outcome.message}"


def largest_batch(start: int, search: Search, fits: Callable[[int], bool]) -> int:
    """The largest batch size that fits: doubles, then bisects.

    A batch is assumed to fit if a larger one does.

    Args:
      start: batch size per device to try first, brought to a multiple.
      search: limit and multiple.
      fits: tries a batch size in a process of its own; an exception ends the search.

    Returns:
      A multiple, within the limit; 0 if none fits.
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
