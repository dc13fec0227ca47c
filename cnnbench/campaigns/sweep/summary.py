"""Results of a sweep: a row per configuration, computed from the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cnnbench.base.document import Row, Text, numeric, table, terminal
from cnnbench.base.stats.descriptive import median
from cnnbench.base.stats.rank_tests import standard_deviation
from cnnbench.base.text.numbers import count, number, percent
from cnnbench.base.text.table import natural_key
from cnnbench.campaigns.processes.outcome import bus_bandwidth, read
from cnnbench.campaigns.sweep.planning import SweepCase, family
from cnnbench.campaigns.sweep.runner import SweepRun
from cnnbench.campaigns.sweep.schema import Limits
from cnnbench.errors import ExitCode
from cnnbench.judge.compare.configuration import Configuration, labels
from cnnbench.judge.compare.judgement import processes_to_find
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import BOUNDS
from cnnbench.judge.metrics.speed import median_step_text
from cnnbench.judge.report.results import ProcessValues
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord

_REPORTED = "in reports"

FOUND = -0.2
"""The change of throughput that a sweep should be able to show in every configuration."""

_MANY = 50
"""Largest number of processes that is advised."""

HELD, VIOLATED, UNKNOWN = "ok", "violated", "unknown"


@dataclass(frozen=True)
class SummaryRow:
    """Results of one configuration.

    Attributes:
      throughputs, bandwidths: images/sec, and bytes/sec of the fastest all-reduce, one per
        successful process.
      batch_size: batch size per device; None if unknown or mixed.
      problems: label, message and log of each failed process.
      verdicts: HELD, VIOLATED or UNKNOWN for each bound, and the same in words.
      reported: name in compare and report; "" for all-reduces, whose rows have names.
      pauses: what the median step of the runs hides, in words; "" if nothing.
    """

    name: str
    throughputs: ProcessValues
    bandwidths: ProcessValues
    batch_size: int | None
    ok: int
    failed: int
    problems: tuple[str, ...]
    verdicts: tuple[tuple[str, str], ...]
    reported: str = ""
    pauses: str = ""


def summarise(cases: Sequence[SweepCase], results: Iterable[SweepRun]) -> tuple[SummaryRow, ...]:
    """The rows, in natural order of their names, from the newest result of each run."""
    by_key: dict[str, list[SweepRun]] = {case.key: [] for case in cases}
    for result in results:
        by_key[result.item.case.key].append(result)
    good = {
        case.key: [read(one.path) for one in by_key[case.key] if one.ended.status == "ok"]
        for case in cases
    }
    names = _names(good)
    rows = [_row(case, by_key[case.key], good[case.key], names[case.key]) for case in cases]
    return tuple(sorted(rows, key=lambda row: natural_key(row.name)))


def _names(good: Mapping[str, Sequence[RunRecord | AllReduceRecord | None]]) -> dict[str, str]:
    """Names of the runs of each case in compare and report, by its key."""
    found = {
        key: next((Configuration.of(one) for one in those if isinstance(one, RunRecord)), None)
        for key, those in good.items()
    }
    titles = labels(one for one in found.values() if one is not None)
    return {key: "" if one is None else titles[one.key] for key, one in found.items()}


def exit_code(rows: Iterable[SummaryRow]) -> ExitCode:
    """REGRESSION if a bound is violated; else FAILED, INCONCLUSIVE (a bound not judged), or OK."""
    listed = list(rows)
    words = {word for row in listed for word, _ in row.verdicts}
    if VIOLATED in words:
        return ExitCode.REGRESSION
    if any(row.failed for row in listed):
        return ExitCode.FAILED
    return ExitCode.INCONCLUSIVE if UNKNOWN in words else ExitCode.OK


def table_text(rows: Sequence[SummaryRow]) -> str:
    """The rows, then the failures."""
    pauses = (f"{row.name}: {row.pauses}" for row in rows if row.pauses)
    failed = (f"failed: {problem}" for row in rows for problem in row.problems)
    # A second name for the configuration is left out in a narrow terminal.
    shown = table(map(_cells, rows), spare=(_REPORTED,))
    return terminal.text_of([[shown, *(Text(one, hanging=6) for one in (*pauses, *failed))]])


def _cells(row: SummaryRow) -> Row:
    return {
        "configuration": row.name,
        "batch": numeric(row.batch_size, "{:.0f}".format),
        "median images/sec": numeric(row.throughputs.median),
        "median bus GB/s": numeric(row.bandwidths.median, scale=1e-9),
        "spread": numeric(
            (row.throughputs if row.throughputs.values else row.bandwidths).spread, percent
        ),
        "runs": f"{row.ok} ok" + (f", {row.failed} failed" if row.failed else ""),
        "bounds": _bounds(row),
        _REPORTED: row.reported,
    }


def advice(
    rows: Iterable[SummaryRow], cases: Sequence[SweepCase], command: Callable[[int], str]
) -> str:
    """Whether `cnnbench compare` would find a large change in every configuration of runs.

    A line with the command, by its number of repeats, that adds the needed processes; "" for fewer
    than two each.
    """
    rows = list(rows)
    measured = [row for row in rows if len(row.throughputs.values) > 1]
    if not measured:
        return ""
    scatters = {
        row.name: standard_deviation([math.log(speed) for speed in row.throughputs.values])
        for row in measured
    }
    name = max(scatters, key=lambda one: scatters[one])
    among = family(cases, RunRecord.kind)
    needed = processes_to_find(FOUND, scatters[name], among)
    fewest = min(len(row.throughputs.values) for row in measured)
    text = f"like processes scatter by at most {percent(math.expm1(scatters[name]))} ({name})"
    change = f"a change of {percent(FOUND, 0)} in every configuration"
    if fewest >= needed:
        return f"{text}: {fewest} of each side find {change}"
    more = count(sum(max(0, needed - row.ok) for row in rows), "process more", "processes more")
    text += f": to find {change}, a comparison needs about {needed} of each side, {more} in all"
    if needed > _MANY:
        return f"{text}; use a quieter machine"
    return f"{text}; a quieter machine, or {command(needed)}"


def _bounds(row: SummaryRow) -> str:
    bad = [text for word, text in row.verdicts if word != HELD]
    return "; ".join(bad) if bad else HELD if row.verdicts else ""


def _row(
    case: SweepCase,
    results: Sequence[SweepRun],
    good: Sequence[RunRecord | AllReduceRecord | None],
    reported: str,
) -> SummaryRow:
    """The row of a case; `good` has records of successful runs, None for an unreadable one."""
    records = [record for record in good if isinstance(record, RunRecord)]
    rates = [bus_bandwidth(record) for record in good if isinstance(record, AllReduceRecord)]
    bad = [result for result in results if result.ended.status != "ok"]
    lost = good.count(None)
    sizes = {record.batch.per_device for record in records if record.batch is not None}
    return SummaryRow(
        name=case.name,
        throughputs=ProcessValues(tuple(s for s in throughputs(records) if s is not None)),
        bandwidths=ProcessValues(tuple(rate for rate in rates if rate is not None)),
        batch_size=sizes.pop() if len(sizes) == 1 else None,
        ok=len(good) - lost,
        failed=len(bad) + lost,
        problems=tuple(
            f"{case.name} #{one.item.repeat}: {one.ended.message} ({one.path.with_suffix('.log')})"
            for one in bad
        ),
        verdicts=tuple(_verdict(*bound, records) for bound in case.entry.bounds.items()),
        reported=reported,
        pauses=median_step_text(records, Policy.threshold),
    )


def _verdict(metric: str, limits: Limits, records: Sequence[RunRecord]) -> tuple[str, str]:
    """The verdict on the median of a metric over processes, and the same in words."""
    values = [value for value in BOUNDS[metric].values(records) if value is not None]
    if not values:
        return UNKNOWN, f"{metric} {UNKNOWN}"
    value, (low, high) = median(values), limits
    text = f"{metric} {number(value)}"
    if low is not None and value < low:
        return VIOLATED, f"{text} below {number(low)}"
    if high is not None and value > high:
        return VIOLATED, f"{text} above {number(high)}"
    # A NaN is within no bound.
    word = VIOLATED if math.isnan(value) else HELD
    return word, f"{text} {word}"
