"""Summarises a sweep: one row for each configuration, computed from the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cnnbench.base.document import (
    Answer,
    Paragraph,
    Row,
    Table,
    interval_cell,
    make_table,
    numeric_cell,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.inference import standard_deviation
from cnnbench.base.stats import ValuesByProcess, median
from cnnbench.base.tables import natural_key
from cnnbench.base.text import count_text, first_lines, number, percent
from cnnbench.campaigns.processes import (
    Record,
    ResultsFolder,
    bus_bandwidth,
    read_record,
    store_answer,
)
from cnnbench.campaigns.suite.entries import Limits, SweepCase
from cnnbench.campaigns.sweep import phrases
from cnnbench.campaigns.sweep.plan import count_configurations
from cnnbench.campaigns.sweep.run import SweepResult
from cnnbench.errors import ExitCode
from cnnbench.judge.compare.configuration import Configuration, unique_names
from cnnbench.judge.compare.median_step import median_step_text
from cnnbench.judge.compare.power import processes_to_detect
from cnnbench.judge.metrics.policy import Policy
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.metric import BOUNDS
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord

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
      batch_size: batch size per device; None if unknown.
      problems: label, message and log of each failed process.
      verdicts: HELD, VIOLATED or UNKNOWN for each bound, and a text.
      reported: name of the configuration in compare and report; "" for all-reduces.
      pauses: text about slow steps that the median step does not show; "" if there are none.
      share: median speed as a share of the fastest configuration of the entry; None if the entry
        has no `alternatives`.
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
    share: float | None = None

    @property
    def speeds(self) -> ValuesByProcess:
        """The images/sec of the processes, or the bytes/sec of all-reduces."""
        return self.throughputs if self.throughputs.values else self.bandwidths


def summary_rows(
    cases: Sequence[SweepCase], results: Iterable[SweepResult]
) -> tuple[SummaryRow, ...]:
    """Makes a row for each configuration of a sweep that has results, and for each batch size that
    --find_batch_size has found. Sorts the rows by name.
    """
    by_key: dict[str, list[SweepResult]] = {case.key: [] for case in cases}
    for result in results:
        by_key[result.item.case.key].append(result)
    parts = [
        (case, *part) for case in cases for part in _split_by_batch_size(case, by_key[case.key])
    ]
    configurations = {
        name: Configuration.of(record)
        for _, name, _, records in parts
        for record in [record for record in records if isinstance(record, RunRecord)][:1]
    }
    titles = unique_names(configurations.values())
    reported = {name: titles[value.key] for name, value in configurations.items()}
    rows = [_summary_row(*part, reported.get(part[1], "")) for part in parts]
    medians: dict[str, list[float]] = {}
    for (case, *_), row in zip(parts, rows, strict=True):
        medians.setdefault(case.entry.name, []).append(row.speeds.median or 0.0)
    rows = [
        replace(row, share=row.speeds.median / max(medians[case.entry.name]))
        if case.entry.alternatives and row.speeds.median
        else row
        for (case, *_), row in zip(parts, rows, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: natural_key(row.name)))


def _split_by_batch_size(
    case: SweepCase, results: Sequence[SweepResult]
) -> Iterator[tuple[str, list[SweepResult], list[Record | None]]]:
    """Yields the rows of a configuration: name, failed processes, and the records of the others.

    There are several rows if --find_batch_size has found different batch sizes. Then processes
    without a batch size have a row of their own.
    """
    bad = [result for result in results if result.ended.status != "ok"]
    good = [read_record(result.path) for result in results if result.ended.status == "ok"]
    by_size: dict[int | None, list[Record | None]] = {None: []}
    for record in good:
        batch = record.batch if isinstance(record, RunRecord) else None
        by_size.setdefault(None if batch is None else batch.per_device, []).append(record)
    if len(by_size) > 2:
        good = by_size.pop(None)
        for size, records in by_size.items():
            yield f"{case.name} batch_size={size}", [], records
    if good or bad:
        yield case.name, bad, good


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


def configurations_table(cases: Iterable[SweepCase]) -> Table | None:
    """The configurations of a sweep, each with its number of processes."""
    return make_table(
        {"configuration": case.name, "processes": numeric_cell(case.repeats)} for case in cases
    )


def table_text(rows: Sequence[SummaryRow], refused: Sequence[str] = ()) -> str:
    """The summary of a sweep as text: a table of the configurations, then pauses, failures and the
    lines `refused` about configurations that were left out.
    """
    pauses = (f"{row.name}: {row.pauses}" for row in rows if row.pauses)
    failed = (f"failed: {problem}" for row in rows for problem in row.problems)
    # Narrow terminals omit the column with the names that configurations have in reports.
    shown = make_table(map(_row_cells, rows), spare=(_REPORTED,))
    remarks = (Paragraph(text, hanging=6) for text in (*pauses, *failed, *refused))
    return sections_to_text([[shown, *remarks]])


def _row_cells(row: SummaryRow) -> Row:
    bounds = "; ".join(text for word, text in row.verdicts if word != HELD)
    if row.verdicts and not bounds:
        bounds = HELD
    interval = None if row.share is None else row.speeds.interval
    scale = 1.0 if row.throughputs.values else 1e-9
    return {
        "configuration": row.name,
        "batch": numeric_cell(row.batch_size),
        "median images/sec": numeric_cell(row.throughputs.median),
        "median bus GB/s": numeric_cell(row.bandwidths.median, scale=1e-9),
        ValuesByProcess.INTERVAL: interval_cell(interval, scale=scale),
        "of the fastest": numeric_cell(row.share, percent),
        "spread": numeric_cell(row.speeds.relative_range, percent),
        "runs": f"{row.ok} ok" + (f", {row.failed} failed" if row.failed else ""),
        "bounds": bounds,
        _REPORTED: row.reported,
    }


_MOST_NAMED = 12
"""Maximum number of violated bounds, failures and pauses in the answer of a report."""


def store_summary(
    folder: ResultsFolder, suite: str, rows: Sequence[SummaryRow], refused: Sequence[str] = ()
) -> None:
    """Stores the answer of a sweep in its journal, for reports, whose tables have the speeds.

    `refused` contains lines about configurations that were left out.
    """
    names = [f"{row.name} ({row.reported})" if row.reported else row.name for row in rows]
    bad = [
        f"{name}: {text}"
        for name, row in zip(names, rows, strict=True)
        for word, text in row.verdicts
        if word != HELD
    ]
    words = [word for row in rows for word, _ in row.verdicts]
    violated = sum(any(word == VIOLATED for word, _ in row.verdicts) for row in rows)
    failed = sum(row.failed for row in rows)
    of = count_text(rows, "configuration", "configurations")
    answer, tone = phrases.MEASURED.format(configurations=of), ""
    if violated:
        template = phrases.VIOLATES if violated == 1 else phrases.VIOLATE
        answer, tone = template.format(count=violated, configurations=of), "bad"
    elif failed:
        answer, tone = count_text(failed, "process failed", "processes failed"), "bad"
    elif UNKNOWN in words:
        answer, tone = phrases.UNKNOWN_VALUES, "unsure"
    elif words:
        answer, tone = phrases.ALL_HOLD.format(configurations=of), "good"
    details = [*bad, *(problem for row in rows for problem in row.problems)]
    details += [
        f"{name}: {row.pauses}" for name, row in zip(names, rows, strict=True) if row.pauses
    ]
    details += refused
    shown = first_lines(details, _MOST_NAMED)
    store_answer(folder, Answer(f"Suite {suite}", answer, tone, shown))


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
    more = sum(max(0, needed - row.ok) for row in rows)
    template, processes = phrases.MORE_PROCESSES, needed
    if fewest >= needed:
        template, processes = phrases.DETECTABLE, fewest
    elif needed > _MANY:
        template = phrases.TOO_NOISY
    return template.format(
        scatter=percent(math.expm1(scatters[name])),
        name=name,
        change=percent(FOUND, 0),
        processes=processes,
        more=count_text(more, "process more", "processes more"),
        command=command(needed),
    )


def _summary_row(
    case: SweepCase,
    name: str,
    bad: Sequence[SweepResult],
    good: Sequence[Record | None],
    reported: str,
) -> SummaryRow:
    """Makes one row of the summary of a configuration: `name` is the name of the row.

    `bad` contains failed processes, and `good` the records of the others; None if unreadable.
    """
    records = [record for record in good if isinstance(record, RunRecord)]
    rates = [bus_bandwidth(record) for record in good if isinstance(record, AllReduceRecord)]
    lost = good.count(None)
    sizes = (record.batch.per_device for record in records if record.batch is not None)
    return SummaryRow(
        name=name,
        throughputs=ValuesByProcess(tuple(s for s in throughputs(records) if s is not None)),
        bandwidths=ValuesByProcess(tuple(rate for rate in rates if rate is not None)),
        batch_size=next(sizes, None),
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
        return UNKNOWN, phrases.WITHOUT_VALUE.format(metric=metric, word=UNKNOWN)
    value, (low, high) = median(values), limits
    named = {"metric": metric, "value": number(value)}
    if low is not None and value < low:
        return VIOLATED, phrases.BELOW.format(**named, limit=number(low))
    if high is not None and value > high:
        return VIOLATED, phrases.ABOVE.format(**named, limit=number(high))
    # A median of NaN violates every bound.
    word = VIOLATED if math.isnan(value) else HELD
    return word, phrases.WITHIN.format(**named, word=word)
