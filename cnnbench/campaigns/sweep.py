"""Plans and runs a suite of configurations for ``cnnbench sweep``, and summarises the results.

The results directory contains a record and a log for each run, and a journal. The names of records
contain the key of the configuration and the number of the repeat.
"""

from __future__ import annotations

import math
import re
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cnnbench.base.document import (
    Answer,
    Paragraph,
    Row,
    make_table,
    numeric_cell,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.inference import standard_deviation
from cnnbench.base.stats import ValuesByProcess, median
from cnnbench.base.terminal import natural_key
from cnnbench.base.text import (
    count_text,
    first_few,
    format_duration,
    labels_from_config,
    number,
    percent,
    unknown_key_message,
)
from cnnbench.campaigns.launch import flags_to_arguments, resolve_run, run_command_words
from cnnbench.campaigns.processes.answers import store_answer
from cnnbench.campaigns.processes.campaign import (
    BenchmarkCommand,
    Campaign,
    ProcessRequest,
    ProcessRequests,
    Record,
    blank_record,
    bus_bandwidth,
    measure_in_rounds,
    ordered_rounds,
    read_record,
    run_process,
)
from cnnbench.campaigns.processes.child import (
    ProcessResult,
    ResolvedRun,
    environment_identity,
    flag_specs_of,
    json_digest,
    refuse_sweep_flags,
    resolve_all_reduce,
    source_digest,
)
from cnnbench.campaigns.processes.journal import PROCESS
from cnnbench.campaigns.processes.results_dir import CampaignKind, ResultsFolder
from cnnbench.campaigns.suite import (
    AUTO,
    BatchSizeSearch,
    Limits,
    Suite,
    SweepCase,
    expand_entry,
)
from cnnbench.errors import DataError, ExitCode, FlagError, UsageError
from cnnbench.flags import args_from_values, parse_flag_texts
from cnnbench.flags.declare import RunPart, names_of_flags
from cnnbench.flags.params import FLAGS, REMOVED
from cnnbench.flags.parse import load_plugin_flags_from_texts
from cnnbench.judge.compare.configuration import Configuration, unique_configuration_names
from cnnbench.judge.compare.judgement import processes_to_decide, processes_to_detect
from cnnbench.judge.metrics import Policy, median_step_text
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import encode
from cnnbench.records.metric import BOUNDS
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord, Subject, SweepPlace, add_subject

# Plans a suite: configurations, repeats and order. All flags are checked before the first run.


class SweepPlan(NamedTuple):
    """The configurations of a sweep, and notices to print before the first run.

    The cases are in the order of the suite file.
    """

    suite: str
    cases: tuple[SweepCase, ...]
    notices: tuple[str, ...]
    subject: Subject = Subject()


def plan_sweep(
    suite: Suite,
    facts: Mapping[str, Any],
    flags_for_all: Mapping[str, str] | None = None,
    pattern: str | None = None,
    subject: Subject | None = None,
) -> SweepPlan:
    """Expands all entries of a suite to configurations, and checks all flags.

    Raises UsageError with file, line and valid values.

    Args:
      facts: properties of this machine, which are part of the keys (like `subject.revision`).
      flags_for_all: texts of flags by name. They are added to all configurations whose command has
        the flag.
      pattern: regular expression that the names must match. Other configurations are not checked,
        because their flags may not work on this machine.
    """
    flags_for_all = flags_for_all or {}
    subject = (subject or Subject()).with_labels(labels_from_config(flags_for_all)) or Subject()
    state = {"revision": subject.revision, "changes": subject.changes, "sources": source_digest()}
    known = {name: value for name, value in state.items() if value is not None}
    environment = {**environment_identity(facts), **known}
    configurations: list[SweepCase] = []
    notices: list[str] = []
    for entry in suite.entries:
        expanded, unset = expand_entry(entry)
        if unset is not None:
            notices.append(f"{entry.name}: left out, because {unset}")
        configurations += expanded
    if not configurations:
        raise UsageError(f"{suite.file}: no entry is left to run; {'; '.join(notices)}")
    cases: dict[str, SweepCase] = {}
    for configuration in _filter_configurations(configurations, pattern):
        case = _resolve_case(configuration, environment, flags_for_all, notices)
        if case.key in cases:
            raise configuration.entry.node.error(
                f'"{case.name}" is the same run as "{cases[case.key].name}"; their records '
                "could not be distinguished"
            )
        cases[case.key] = case
    listed = tuple(dict.fromkeys(notices))
    return SweepPlan(suite.name, _set_repeats(cases.values()), listed, subject)


def _filter_configurations(
    configurations: Sequence[SweepCase], pattern: str | None
) -> list[SweepCase]:
    try:
        expression = re.compile(pattern or "")
    except re.error as error:
        raise FlagError("filter", pattern, f"is not a regular expression: {error}") from None
    chosen = [
        configuration for configuration in configurations if expression.search(configuration.name)
    ]
    if not chosen:
        names = [f'"{configuration.name}"' for configuration in configurations]
        raise FlagError("filter", pattern, f"matches none of {first_few(names, 5, ', ')}")
    return chosen


def count_configurations(cases: Iterable[SweepCase], command: str) -> int:
    """The number of configurations of `command` (run or allreduce), which are judged together.

    `cnnbench compare` corrects p-values for this number.
    """
    return sum(case.resolved.rows for case in cases if case.entry.command == command)


def _set_repeats(cases: Collection[SweepCase]) -> tuple[SweepCase, ...]:
    """Sets the number of processes of each case; by default, as many as a verdict needs."""
    commands = {case.entry.command for case in cases}
    needed = {name: processes_to_decide(count_configurations(cases, name)) for name in commands}
    return tuple(
        replace(case, repeats=case.entry.repeats or needed[case.entry.command]) for case in cases
    )


class SweepItem(NamedTuple):
    """One process of a configuration in a sweep, or the search for the configuration's batch size.

    Repeats are numbered from 1. Number 0 is the search.
    """

    case: SweepCase
    repeat: int

    @property
    def label(self) -> str:
        """Name of the process in progress lines, such as "resnet50 num_gpus=2 #3"."""
        if self.repeat == 0:
            return f"{self.case.name}: largest batch"
        if self.case.repeats == 1:
            return self.case.name
        return f"{self.case.name} #{self.repeat}"

    @property
    def duration_key(self) -> tuple[str, bool]:
        """Key that is equal for processes with about the same duration: the case, and whether the
        process searches for a batch size.
        """
        return self.case.key, self.repeat == 0


def ordered_items(cases: Sequence[SweepCase], seed: int) -> tuple[SweepItem, ...]:
    """The processes of a sweep in order: searches for batch sizes, then rounds of all cases.

    The seed shuffles each round.
    """
    most = max((case.repeats for case in cases), default=0)

    def is_due(case: SweepCase, repeat: int) -> bool:
        return repeat <= case.repeats if repeat else case.entry.search is not None

    return tuple(
        SweepItem(case, repeat) for case, repeat in ordered_rounds(cases, most, seed, is_due)
    )


def _resolve_case(
    configuration: SweepCase,
    environment: Mapping[str, Any],
    flags_for_all: Mapping[str, str],
    notices: list[str],
) -> SweepCase:
    """Checks and resolves the flags of a configuration. Adds notices about flags to `notices`."""
    entry = configuration.entry
    known = flag_specs_of(entry.command)
    if entry.command == "run" and configuration.nodes.keys() - known.keys():
        load_plugin_flags_from_texts({name: [text] for name, text in configuration.flags.items()})
    for name, node in configuration.nodes.items():
        if name not in known:
            removed = f"--{name} was removed; {REMOVED[name]}" if name in REMOVED else ""
            raise node.error(removed or unknown_key_message(name, known))
    for name, text in flags_for_all.items():
        if name in configuration.varied:
            reason = f'is what "{entry.name}" varies; choose with --filter'
            raise FlagError(name, text, reason)
    own = {name: text for name, text in flags_for_all.items() if name in known}
    flags = {**configuration.flags, **own}
    only_of_runs = (
        ("bounds", entry.bounds),
        ("max_batch_search", entry.search),
        ("launch", entry.launch),
    )
    for name, value in only_of_runs if entry.command != "run" else ():
        if value:
            raise entry.node.error(f"{entry.name}: {name} needs command: run")
    resolved = _resolve_flags(configuration, flags)
    notices += [f"{configuration.name}: {notice}" for notice in resolved.notices]
    search = entry.search
    if search is not None and resolved.batch_size > search.limit:
        raise entry.node.error(
            f"{configuration.name}: limit {search.limit} of max_batch_search is below the batch "
            f"size with which the search starts, {resolved.batch_size}"
        )
    parts = {
        "command": entry.command,
        "config": resolved.identity,
        "search": search and vars(search),
        "environment": environment,
    }
    return replace(configuration, flags=flags, resolved=resolved, key=json_digest(parts))


def _resolve_flags(configuration: SweepCase, flags: Mapping[str, str]) -> ResolvedRun:
    """Resolves the flags of a configuration. Errors name the line of the flag in the suite file."""
    entry = configuration.entry
    try:
        values = parse_flag_texts(flags, flag_specs_of(entry.command))
        refuse_sweep_flags(values)
        if entry.command == "allreduce":
            return resolve_all_reduce(values)
        return resolve_run(args_from_values(values), entry.launch)
    except FlagError as error:
        node = configuration.nodes.get(error.flag, entry.node)
        raise node.error(f"{configuration.name}: {error}") from None
    except (UsageError, DataError) as error:
        raise entry.node.error(f"{configuration.name}: {error}") from None


# Runs the processes of a sweep, and estimates how long they take.

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
NOT_IN_TRIALS = names_of_flags(FLAGS, RunPart.LENGTH | RunPart.WARM_UP | RunPart.EVALUATIONS)
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
        run_command_words(entry.launch, words)
        if entry.command == "run"
        else (entry.command, *words)
    )


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs the processes of a sweep. A resumed sweep does not repeat successful runs.

    Attributes:
      program: arguments that start cnnbench.
      command: command line of the sweep, for the records.
    """

    plan: SweepPlan
    store: ResultsFolder
    campaign: Campaign
    seed: int
    program: Sequence[str]
    command: Sequence[str]

    @cached_property
    def record_timestamp(self) -> str:
        """The time in the file names of records: the start of the sweep's first session."""
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
        earlier = self.store.earlier if self.store.resume else ()
        mine = (event for event in earlier if event.get("suite") == self.plan.suite)
        return [now, *(str(event["stamp"]) for event in mine if "stamp" in event)][-1]

    def run(self) -> list[SweepResult]:
        """Runs all processes without a successful record. Returns the results of all processes."""
        counts = {"cases": len(self.plan.cases), "runs": len(self.items_to_run())}
        self.store.add_session_start(suite=self.plan.suite, stamp=self.record_timestamp, **counts)
        return self.campaign.run_requests(
            self._sweep_requests(ordered_items(self.plan.cases, self.seed))
        )

    def items_to_run(self) -> list[SweepItem]:
        """The processes without a successful record. Prints their number and estimated duration."""
        for event in self.store.earlier:
            if event.get("event") == PROCESS and event.get("repeat"):
                self.campaign.add_process_seconds((event["key"], False), event["seconds"])
        items = ordered_items(self.plan.cases, self.seed)
        todo = [item for item in items if self._earlier_record(item) is None]
        if len(todo) < len(items):
            of = count_text(items, "run is", "runs are")
            done = f"{len(items) - len(todo)} of {of} done already"
            self.campaign.reporter.notice(done)
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
        records = (_successful_record(self._record_path(item.case, repeat)) for repeat in repeats)
        return next((record for record in records if record), None)

    def _sweep_requests(self, items: Sequence[SweepItem]) -> ProcessRequests[list[SweepResult]]:
        """Requests the processes in order. If the search for a case's batch size fails, skips the
        case.
        """
        runs: list[SweepResult] = []
        cases = {case.key: case for case in self.plan.cases}
        batches: dict[str, int] = {}

        def measure(key: str, repeat: int, later_keys: Sequence[Hashable]) -> ProcessRequests[bool]:
            item = SweepItem(cases[key], repeat)
            if repeat:
                target = self._record_path(item.case, repeat)
                ended = yield from self._run_item(item, batches.get(key), target, later_keys)
                runs.append(SweepResult(item, target, ended))
                return True
            batch: int | SweepResult | None = self.earlier_batch_size(item.case)
            # A batch size from an earlier session is kept, even if less memory is free now.
            if batch is None:
                batch = yield from self._search_batch_size(item, later_keys)
            if isinstance(batch, SweepResult):
                runs.append(batch)
                return False
            batches[key] = batch
            return True

        yield from measure_in_rounds([(item.case.key, item.repeat) for item in items], measure)
        return runs

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
            place=lambda document, lost: self._add_sweep_placement(document, item, path),
            facts={
                **{"key": case.key, "case": case.name, "repeat": item.repeat},
                **({"batch_size": batch_size} if trial else {}),
            },
        )
        return run_process(self.store, request, case.entry.timeout, later_keys)

    def _add_sweep_placement(
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
        good = [path for path in there if _successful_record(path)]
        label = f"{self.plan.suite}-{case.name}"
        own = folder / record_file_name(label, case.key, repeat, self.record_timestamp)
        return [own, *there, *good][-1]


def _successful_record(path: Path) -> Record | None:
    """Reads the record in a file. Returns None if the run was not successful."""
    record = read_record(path)
    return record if record is not None and record.status == "ok" else None


def search_largest_batch(start: int, search: BatchSizeSearch) -> Generator[int, bool, int]:
    """Generator that searches for the largest batch size that fits into memory.

    The generator yields sizes to try and is sent whether they fit. It doubles the size from `start`
    on, then bisects, and returns the largest size that fits, or 0. If a batch size fits, all
    smaller sizes are assumed to fit.
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
    text = f"{count_text(len(runs), 'process', 'processes')} of "
    text += count_text(len(cases), "configuration", "configurations")
    automatic = {case.repeats for case in cases.values() if case.entry.repeats is None}
    if automatic:
        text += f", {' or '.join(map(str, sorted(automatic)))} of each (repeats: {AUTO})"
    guesses = [_estimated_seconds(item, campaign) for item in runs]
    known = [guess for guess in guesses if guess is not None]
    if len(known) < len(runs) or not runs:
        return f"{text}; their duration is known after the first"
    basis = (
        "as before"
        if all(campaign.mean_process_seconds(item.duration_key) for item in runs)
        else "a first guess"
    )
    searches = len(todo) - len(runs)
    besides = (
        f", and {count_text(searches, 'search', 'searches')} for batch sizes" if searches else ""
    )
    return f"{text}: about {format_duration(sum(known))}, {basis}{besides}"


def _estimated_seconds(item: SweepItem, campaign: Campaign) -> float | None:
    known = campaign.mean_process_seconds(item.duration_key)
    if known is not None:
        return known
    work = item.case.resolved.work
    return _REDUCING_SECONDS if work is None else work.estimate_seconds(campaign.facts)


# Summarises a sweep: one row for each configuration, computed from the records.

_REPORTED = "in reports"

FOUND = -0.2
"""Relative change of throughput that a sweep should be able to detect in every configuration."""

_MANY = 50
"""Advice suggests at most this number of processes."""

HELD, VIOLATED, UNKNOWN = "ok", "violated", "unknown"


@dataclass(frozen=True)
class SummaryRow:
    """Results of one configuration of a sweep: a row of the summary.

    Attributes:
      throughputs, bandwidths: for each successful process, images/sec, or bytes/sec of the fastest
        all-reduce.
      batch_size: batch size per device; None if unknown or mixed.
      problems: label, message and log of each failed process.
      verdicts: HELD, VIOLATED or UNKNOWN for each bound, and a text.
      reported: name of the configuration in compare and report; "" for all-reduces.
      pauses: text about slow steps that the median step does not show; "" if there are none.
    """

    name: str
    throughputs: ValuesByProcess
    bandwidths: ValuesByProcess
    batch_size: int | None
    ok: int
    failed: int
    problems: tuple[str, ...]
    verdicts: tuple[tuple[str, str], ...]
    reported: str = ""
    pauses: str = ""


def summary_rows(
    cases: Sequence[SweepCase], results: Iterable[SweepResult]
) -> tuple[SummaryRow, ...]:
    """Makes a row for each configuration of a sweep from its results. Sorts the rows by name."""
    by_key: dict[str, list[SweepResult]] = {case.key: [] for case in cases}
    for result in results:
        by_key[result.item.case.key].append(result)
    good = {
        case.key: [read_record(run.path) for run in by_key[case.key] if run.ended.status == "ok"]
        for case in cases
    }
    configurations = {
        key: Configuration.of(record)
        for key, records in good.items()
        for record in [record for record in records if isinstance(record, RunRecord)][:1]
    }
    titles = unique_configuration_names(configurations.values())
    reported = {key: titles[value.key] for key, value in configurations.items()}
    rows = [
        _summary_row(case, by_key[case.key], good[case.key], reported.get(case.key, ""))
        for case in cases
    ]
    return tuple(sorted(rows, key=lambda row: natural_key(row.name)))


def exit_code(rows: Iterable[SummaryRow]) -> ExitCode:
    """The exit code of a sweep: REGRESSION if a value violates a bound of the suite.

    Otherwise FAILED if a process failed, INCONCLUSIVE if a value is unknown, or OK.
    """
    listed = list(rows)
    words = {word for row in listed for word, _ in row.verdicts}
    if VIOLATED in words:
        return ExitCode.REGRESSION
    if any(row.failed for row in listed):
        return ExitCode.FAILED
    return ExitCode.INCONCLUSIVE if UNKNOWN in words else ExitCode.OK


def table_text(rows: Sequence[SummaryRow]) -> str:
    """The summary of a sweep as text: a table of the configurations, then pauses and failures."""
    pauses = (f"{row.name}: {row.pauses}" for row in rows if row.pauses)
    failed = (f"failed: {problem}" for row in rows for problem in row.problems)
    # Narrow terminals omit the column with the names that configurations have in reports.
    shown = make_table(map(_row_cells, rows), spare=(_REPORTED,))
    return sections_to_text([[shown, *(Paragraph(text, hanging=6) for text in (*pauses, *failed))]])


def _row_cells(row: SummaryRow) -> Row:
    bad = [text for word, text in row.verdicts if word != HELD]
    return {
        "configuration": row.name,
        "batch": numeric_cell(row.batch_size, "{:.0f}".format),
        "median images/sec": numeric_cell(row.throughputs.median),
        "median bus GB/s": numeric_cell(row.bandwidths.median, scale=1e-9),
        "spread": numeric_cell(
            (row.throughputs if row.throughputs.values else row.bandwidths).relative_range, percent
        ),
        "runs": f"{row.ok} ok" + (f", {row.failed} failed" if row.failed else ""),
        "bounds": "; ".join(bad) if bad else HELD if row.verdicts else "",
        _REPORTED: row.reported,
    }


_MOST_NAMED = 3


def store_summary(folder: ResultsFolder, suite: str, rows: Sequence[SummaryRow]) -> None:
    """Stores the summary of a sweep in its journal, for reports."""
    bad = [f"{row.name}: {text}" for row in rows for word, text in row.verdicts if word != HELD]
    words = [word for row in rows for word, _ in row.verdicts]
    violated = sum(any(word == VIOLATED for word, _ in row.verdicts) for row in rows)
    failed = sum(row.failed for row in rows)
    of = count_text(rows, "configuration", "configurations")
    answer, tone = f"{of} measured", ""
    if violated:
        verb = "violates" if violated == 1 else "violate"
        answer, tone = f"{violated} of {of} {verb} a bound", "bad"
    elif failed:
        answer, tone = count_text(failed, "process failed", "processes failed"), "bad"
    elif UNKNOWN in words:
        answer, tone = "Values for bounds are unknown", "unsure"
    elif words:
        answer, tone = f"All bounds of {of} hold", "good"
    details = [*bad, *(problem for row in rows for problem in row.problems)]
    details += [f"{row.name}: {row.pauses}" for row in rows if row.pauses]
    more = [f"and {len(details) - _MOST_NAMED} more"] if len(details) > _MOST_NAMED else []
    store_answer(
        folder,
        Answer(f"Suite {suite}", answer, tone, (*details[:_MOST_NAMED], *more)),
        "What cnnbench sweep printed; each row is a configuration.",
        map(_row_cells, rows),
        details if more else (),
    )


def detection_advice(
    rows: Iterable[SummaryRow], cases: Sequence[SweepCase], command: Callable[[int], str]
) -> str:
    """Says whether `cnnbench compare` could detect a large change in every configuration.

    If not, the text contains the command that adds the necessary processes; `command` makes it from
    a number of repeats. The text is "" if a configuration has fewer than two processes.
    """
    rows = list(rows)
    measured = [row for row in rows if len(row.throughputs.values) > 1]
    if not measured:
        return ""
    scatters = {
        row.name: standard_deviation([math.log(speed) for speed in row.throughputs.values])
        for row in measured
    }
    name = max(scatters, key=lambda flag: scatters[flag])
    among = count_configurations(cases, RunRecord.kind)
    needed = processes_to_detect(FOUND, scatters[name], among)
    fewest = min(len(row.throughputs.values) for row in measured)
    text = f"equal processes differ by at most {percent(math.expm1(scatters[name]))} ({name})"
    change = f"a change of {percent(FOUND, 0)} in every configuration"
    if fewest >= needed:
        return f"{text}: {fewest} processes of BASE and of NEW find {change}"
    if needed > _MANY:
        return f"{text}: {change} is found on a quieter machine, not by more processes"
    more = count_text(
        sum(max(0, needed - row.ok) for row in rows), "process more", "processes more"
    )
    text += f": to find {change}, a comparison needs about {needed} processes of BASE and of NEW, "
    return f"{text}{more} in all; a quieter machine, or {command(needed)}"


def _summary_row(
    case: SweepCase,
    results: Sequence[SweepResult],
    good: Sequence[RunRecord | AllReduceRecord | None],
    reported: str,
) -> SummaryRow:
    """Makes the summary of one configuration of a sweep from its results.

    `good` contains the records of successful runs; None if unreadable.
    """
    records = [record for record in good if isinstance(record, RunRecord)]
    rates = [bus_bandwidth(record) for record in good if isinstance(record, AllReduceRecord)]
    bad = [result for result in results if result.ended.status != "ok"]
    lost = good.count(None)
    sizes = {record.batch.per_device for record in records if record.batch is not None}
    return SummaryRow(
        name=case.name,
        throughputs=ValuesByProcess(tuple(s for s in throughputs(records) if s is not None)),
        bandwidths=ValuesByProcess(tuple(rate for rate in rates if rate is not None)),
        batch_size=sizes.pop() if len(sizes) == 1 else None,
        ok=len(good) - lost,
        failed=len(bad) + lost,
        problems=tuple(
            f"{case.name} #{run.item.repeat}: {run.ended.message} ({run.path.with_suffix('.log')})"
            for run in bad
        ),
        verdicts=tuple(_bound_verdict(*bound, records) for bound in case.entry.bounds.items()),
        reported=reported,
        pauses=median_step_text(records, Policy.threshold),
    )


def _bound_verdict(metric: str, limits: Limits, records: Sequence[RunRecord]) -> tuple[str, str]:
    """Whether the median of a metric over all processes is within `limits`, and a text about it."""
    values = [value for value in BOUNDS[metric].values(records) if value is not None]
    if not values:
        return UNKNOWN, f"{metric} {UNKNOWN}"
    value, (low, high) = median(values), limits
    text = f"{metric} {number(value)}"
    if low is not None and value < low:
        return VIOLATED, f"{text} below {number(low)}"
    if high is not None and value > high:
        return VIOLATED, f"{text} above {number(high)}"
    # A median of NaN violates every bound.
    word = VIOLATED if math.isnan(value) else HELD
    return word, f"{text} {word}"
