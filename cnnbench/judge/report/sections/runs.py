"""Sections of a report about the processes that were measured, and about their machine."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING, Any

from cnnbench.base.charts import (
    LOWER,
    Axis,
    Chart,
    ChartSeries,
    DistributionRow,
    LineChart,
    RowChart,
)
from cnnbench.base.document import (
    Answer,
    ChartGroup,
    Content,
    Paragraph,
    Row,
    Table,
    TableCell,
    make_table,
    numeric_cell,
    prepend_docstring,
)
from cnnbench.base.stats import FEWEST_FOR_P99, group_by, median
from cnnbench.base.terminal import natural_key
from cnnbench.base.text import count_text, format_bytes, integer, number, percent
from cnnbench.judge.compare.configuration import DifferenceEffect, fact_rule
from cnnbench.judge.metrics import fact_text, machine_name, readable_fact
from cnnbench.judge.report.results import (
    MOST_LISTED,
    ReportSubject,
    RunGroup,
    newest_groups,
    shown_count_text,
    start_time_text,
)
from cnnbench.judge.report.sections.strategies import titled_strategies
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import parse_start_time
from cnnbench.records.metric import ALL
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import (
    BENCHMARKS,
    ConditionNote,
    ResourceUse,
    RunRecord,
    Subject,
    subject_of_record,
)

if TYPE_CHECKING:
    import numpy as np
else:
    from cnnbench.base import lazy_numpy as np

# Shows step times in order, and their distribution.

_SHOWN = 8
"""Maximum number of processes in a chart."""

_DRAWN = 8
"""Maximum number of configurations with a pair of charts."""

_POINTS = 160
"""Longer curves are divided into this many groups of steps, each drawn as median and maximum."""

_HEADROOM = 1.6
"""The axis of step times ends at this multiple of the 95th percentile."""


@prepend_docstring
def steps_section(results: ReportSubject) -> Iterable[Content]:
    """Wall time of every step. On the left, steps are in order, with the warm-up on a grey
    background. On the right, each process has a box plot of its timed steps: the box contains the
    middle half, the line is the median, whiskers reach from the 1st to the 99th percentile, and
    dots are steps outside of the whiskers. Arrows at an edge are steps beyond the axis.
    """
    timed = [group for group in results.configured if any(r.step_seconds for r in group.successful)]
    yield from _pairs_of_charts(timed, _step_charts)
    yield make_table(map(_step_row, timed), hints=_HINTS)


def _pairs_of_charts(
    groups: Sequence[RunGroup], charts: Callable[[RunGroup], Iterable[Chart]]
) -> Iterator[Content]:
    """Yields the charts of the newest configurations, and which ones these are."""
    drawn = newest_groups(groups, _DRAWN)
    if len(drawn) < len(groups):
        yield Paragraph(f"The charts are of the newest {_DRAWN} of {integer(len(groups))} rows.")
    found = tuple(chart for group in drawn for chart in charts(group))
    yield ChartGroup(found, pairs=True) if found else None


def _step_charts(group: RunGroup) -> tuple[LineChart, RowChart]:
    """Returns two charts for a configuration: step times in order, and the distribution of step
    times. If there are many processes, the charts show some of the processes.
    """
    timed = [(f"process {n}", run) for n, run in enumerate(group.successful, 1) if run.step_seconds]
    chosen, note = timed, ""
    if len(timed) > _SHOWN:
        chosen = [timed[round(i * (len(timed) - 1) / (_SHOWN - 1))] for i in range(_SHOWN)]
        note = f"{_SHOWN} of {len(timed)} processes are shown."
    warmup = max(len(record.warmup_step_seconds) for _, record in chosen)
    most = max(float(np.quantile(record.step_seconds, 0.95)) for _, record in chosen)
    axis = Axis(label="step time, ms", zero=True, better=LOWER, limit=_HEADROOM * 1000 * most)
    series = LineChart(
        title=f"{group.name}: steps in order",
        x=Axis(label="step; up to 0 warm-up"),
        y=axis,
        series=tuple(starmap(_step_series, chosen)),
        shaded=(-warmup + 0.5, 0.5, "warm-up") if warmup else None,
        note=note,
    )
    distribution = RowChart(
        title=f"{group.name}: distribution",
        x=replace(axis, label="time of a timed step, ms"),
        rows=tuple(_step_box(*process, style) for style, process in enumerate(chosen)),
    )
    return series, distribution


def _step_series(name: str, record: RunRecord) -> ChartSeries:
    seconds = (*record.warmup_step_seconds, *record.step_seconds)
    first, together = 1 - len(record.warmup_step_seconds), record.steps_per_execution
    points = [(float(n * together), 1000 * s) for n, s in enumerate(seconds, first)]
    name = f"{name}, {start_time_text(record.started_at)} UTC"
    return ChartSeries(name=name, points=_thin_out_points(points), marks=False)


def _thin_out_points(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Divides steps into at most `_POINTS` groups. Returns the median of each group, and the
    maximum if it is much higher than the median.
    """
    size = math.ceil(len(points) / _POINTS)
    if size == 1:
        return tuple(points)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        middle = median(y for _, y in part)
        kept.append((part[0][0], middle))
        x, highest = max(part, key=lambda point: point[1])
        if highest > 1.2 * middle and x > part[0][0]:
            kept.append((x, highest))
    return tuple(kept)


def _step_box(name: str, record: RunRecord, style: int) -> DistributionRow:
    times = sorted(1000 * seconds for seconds in record.step_seconds)
    low, first, middle, third, high = np.quantile(times, (0.01, 0.25, 0.5, 0.75, 0.99)).tolist()
    beyond = [(value, "") for value in times if value < low or value > high]
    half = f"half of the steps between {number(first)} and {number(third)} ms"
    return DistributionRow(
        label=name,
        values=(*beyond[:3], *beyond[3:][-12:]),
        centre=middle,
        low=low,
        high=high,
        box=(first, third),
        hint=f"{name}: median {number(middle)} ms, {half}",
        style=style,
    )


_HINTS = {
    "within a process": "interquartile range over median",
    "between processes": "from the fastest process to the slowest, over the median",
}


def _step_row(group: RunGroup) -> Row:
    """Returns the row with statistics of the timed steps of all processes of a configuration."""
    steps = [1000 * seconds for record in group.successful for seconds in record.step_seconds]
    middle, high, highest, slowest = np.quantile(steps, (0.5, 0.9, 0.99, 1.0)).tolist()
    return {
        "configuration": group.name,
        "timed steps": numeric_cell(len(steps), integer),
        "median of all steps, ms": numeric_cell(middle),
        "90 %, ms": numeric_cell(high),
        # The cell is empty for few steps, whose 99th percentile would be the slowest step.
        "99 %, ms": numeric_cell(highest if len(steps) >= FEWEST_FOR_P99 else None),
        "slowest, ms": numeric_cell(slowest),
        "within a process": numeric_cell(group.process_values(_quartiles).median, percent),
        "between processes": numeric_cell(
            group.process_values("step_seconds").relative_range, percent
        ),
    }


def _quartiles(record: RunRecord) -> float | None:
    """Returns the interquartile range of the timed steps over their median."""
    if not record.step_seconds:
        return None
    first, middle, third = np.quantile(record.step_seconds, (0.25, 0.5, 0.75))
    return float((third - first) / middle)


# Shows the memory and CPUs that processes used over time.


@prepend_docstring
def resource_use_section(results: ReportSubject) -> Iterable[Content]:
    """Memory and CPUs of each process, sampled once per second. A leak is memory that grows
    throughout the timed loop; a stall is a time without CPUs in use. The grey background is the
    timed loop of the first process. Growth is the memory at the end of the timed loop minus the
    memory at its start.
    """
    sampled = [group for group in results.configured if any(r.resources for r in group.successful)]
    yield from _pairs_of_charts(sampled, _resource_use_charts)
    yield make_table(map(_resource_use_row, sampled))


def _resource_use_charts(group: RunGroup) -> Iterable[LineChart]:
    """Yields charts over time of a configuration's first processes: memory of the host, CPUs and,
    if known, memory of the GPUs.
    """
    known = [
        (n, run.resources) for n, run in enumerate(group.successful, 1) if run.resources is not None
    ]
    _, first = known[0]
    start, end = first.loop_start, first.loop_end
    for title, axis, values in _USES:
        if not values(first):
            continue
        yield LineChart(
            title=f"{group.name}: {title}",
            x=Axis(label="seconds since the start of the run"),
            y=axis,
            series=tuple(
                ChartSeries(
                    name=f"process {n}",
                    points=tuple(zip(of.seconds, values(of), strict=True)),
                    marks=False,
                )
                for n, of in known[:_SHOWN]
                if values(of)
            ),
            shaded=None if start is None or end is None else (start, end, "timed loop"),
            note=f"{_SHOWN} of {len(known)} processes are shown." * (len(known) > _SHOWN),
        )


_USES: tuple[tuple[str, Axis, Callable[[ResourceUse], Sequence[float]]], ...] = (
    (
        "memory of the process",
        Axis(label="resident memory", format="bytes", zero=True),
        lambda of: of.memory_bytes,
    ),
    ("CPUs in use", Axis(label="CPUs", zero=True), lambda of: of.busy_cpus),
    (
        "memory of the fullest GPU",
        Axis(label="memory of tensors", format="bytes", zero=True),
        lambda of: of.device_memory_bytes,
    ),
)


def _resource_use_row(group: RunGroup) -> Row:
    """Returns the row with the memory and CPUs of a configuration: medians over processes."""
    known = [run.resources for run in group.successful if run.resources is not None]
    growths = [growth for of in known if (growth := _memory_growth(of)) is not None]
    growth = median(growths) if growths else None
    shares = [of.sampler_cpu_seconds / of.seconds[-1] for of in known if of.seconds[-1]]
    return {
        "configuration": group.name,
        "most memory": numeric_cell(median(max(of.memory_bytes) for of in known), format_bytes),
        "growth in the timed loop": numeric_cell(growth, _signed_bytes),
        "median of CPUs in use": numeric_cell(median(median(of.busy_cpus) for of in known)),
        "CPU time of the sampler": numeric_cell(max(shares, default=None), percent),
        "processes": numeric_cell(len(known), integer),
    }


def _memory_growth(of: ResourceUse) -> float | None:
    """Returns the bytes by which a process grew during the timed loop; None if unknown."""
    if of.loop_start is None or of.loop_end is None:
        return None
    inside = [
        memory
        for at, memory in zip(of.seconds, of.memory_bytes, strict=True)
        if of.loop_start <= at <= of.loop_end
    ]
    return inside[-1] - inside[0] if inside else None


def _signed_bytes(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{format_bytes(abs(value))}"


# Shows failures, skipped files, the commands of processes, and how to reproduce the results.

_FAILURES = ("configuration", "status", "error", "timed steps", "started (UTC)", "run")
_COMMANDS = (
    *("started (UTC)", "configuration", "status", "images/sec"),
    *("run", "command", "imported from"),
)


def failures_section(results: ReportSubject) -> Iterable[Content]:
    """Yields failed and interrupted runs with their errors, and skipped files with the reason."""
    if failed := [process for process in results.processes if process[1].status != "ok"]:
        yield "These runs have no values in this report, except valid points of all-reduces."
        yield _process_table(failed, _FAILURES)
        if len(failed) > MOST_LISTED:
            yield f"The newest {MOST_LISTED} of {integer(len(failed))} are listed."
    files = (
        {
            "file": TableCell(file.path, kinds="code"),
            "reason": TableCell(file.reason, kinds="prose"),
            "kind": TableCell("a fault", tone="bad") if file.defect else "no fault",
        }
        for file in results.skipped[:MOST_LISTED]
    )
    yield make_table(files, title="Skipped files")


def omitted_section(results: ReportSubject) -> Iterable[Content]:
    """Yields a table of the configurations that other sections leave out, the newest first."""
    groups_before = sorted(results.earlier, key=lambda group: group.latest, reverse=True)
    listed = groups_before[:_MOST_EARLIER]
    which = shown_count_text(len(listed), len(groups_before))
    text = f"Configurations and revisions that the other sections leave out{which}."
    yield text if groups_before else None
    yield make_table(
        {
            "configuration": group.name,
            "median images/sec": numeric_cell(group.throughput.median),
            "processes": numeric_cell(len(group.successful), integer),
            "last started (UTC)": TableCell(f"{group.latest:%Y-%m-%d %H:%M}", kinds="steady"),
        }
        for group in listed
    )


def imported_benchmarks_section(results: ReportSubject) -> Iterable[Content]:
    """Yields a table of imported benchmarks of other programs: medians and ranges."""
    benchmark_groups = [
        group for group in results.configured if group.configuration.kind in BENCHMARKS
    ]
    yield make_table(
        {
            "benchmark": group.name,
            "median": metric.value_text(median(values)),
            "least": metric.value_text(min(values)),
            "most": metric.value_text(max(values)),
            "processes": numeric_cell(len(values), integer),
            "last started (UTC)": TableCell(f"{group.latest:%Y-%m-%d %H:%M}", kinds="steady"),
        }
        for group in benchmark_groups
        for metric in (ALL[group.configuration.kind],)
        if (
            values := [
                value for run in group.successful if (value := metric.value(run)) is not None
            ]
        )
    )


_MOST_EARLIER = 2000


def commands_section(results: ReportSubject) -> Iterable[Content]:
    """Yields a table of all processes with their exact commands or, for imported processes, their
    files, in order of time.
    """
    if processes := results.processes:
        which = shown_count_text(min(len(processes), MOST_LISTED), len(processes))
        imported = any(_imported_file(record) for _, record in processes)
        or_file = " or, if it was imported, the name of its file" if imported else ""
        yield f"Every process with its exact command{or_file}, in order of time{which}."
        yield _process_table(processes, _COMMANDS)


def _process_table(
    processes: Sequence[tuple[str, RunRecord | AllReduceRecord]], titles: Iterable[str]
) -> Table | None:
    rows = (_process_cells(name, record) for name, record in processes[-MOST_LISTED:])
    return make_table({title: cells[title] for title in titles} for cells in rows)


def _process_cells(name: str, record: RunRecord | AllReduceRecord) -> Row:
    steps, speed = "", None
    if isinstance(record, RunRecord):
        steps = f"{record.steps} of {record.config.get('num_batches') or '?'}"
        speed = throughput(record)
    return {
        "configuration": name,
        "status": TableCell(record.status, tone="" if record.status == "ok" else "bad"),
        "error": TableCell(error_text(record), kinds="prose"),
        "timed steps": steps,
        "images/sec": numeric_cell(speed),
        "started (UTC)": TableCell(start_time_text(record.started_at), kinds="steady"),
        "run": TableCell(record.run_id, kinds="code"),
        "command": TableCell(shlex.join(record.command), kinds="command"),
        "imported from": TableCell(_imported_file(record), kinds="code"),
    }


def _imported_file(record: RunRecord | AllReduceRecord) -> str:
    """Returns the name of the file from which a record was imported; "" for other records."""
    imported = record.imported if isinstance(record, RunRecord) else None
    return "" if imported is None else imported.file


def _is_reproducible(record: RunRecord | AllReduceRecord) -> bool:
    """Whether the command of a process is known. Only the tables of cnnbench contain the commands
    of imported processes.
    """
    return bool(record.command) or not _imported_file(record)


def error_text(run: RunRecord | AllReduceRecord) -> str:
    """Returns text with the error of a run that failed or was interrupted."""
    error = run.error
    return "stopped before its end" if error is None else f"{error.type}: {error.message}"


_MOST_UNFOLDED = 12


@prepend_docstring
def reproduction_section(results: ReportSubject) -> Iterable[Content]:
    """To measure the results again, run these commands with the same versions on a machine of the
    same kind. A plus after a commit means uncommitted changes. The section Runs and commands
    contains the command of every process.
    """
    software = group_by(_software_rows(results), lambda row: (*row.values(),))
    if not software:
        return
    yield make_table(
        {**alike[0], "processes": numeric_cell(len(alike), integer)} for alike in software.values()
    )
    commands = sorted(_counted_commands(results), key=lambda command: parse_start_time(command[3]))
    rows: Iterable[Row] = (
        {
            "measures": name,
            "command": TableCell(shlex.join(words), kinds="command"),
            "processes": numeric_cell(processes, integer),
        }
        for name, words, processes, _ in commands
    )
    yield make_table(rows, title="Commands", folded=len(commands) > _MOST_UNFOLDED)


def _software_rows(results: ReportSubject) -> Iterable[Row]:
    for _, record in results.processes:
        if not _is_reproducible(record):
            continue
        ab = getattr(record, "ab", None)
        yield _software_row(
            record.environment, subject_of_record(record.subject, record.config, ab)
        )
    if not results.processes:
        for document in results.strategies:
            yield _software_row(document.environment, document.subject or Subject())


def _software_row(facts: Mapping[str, Any], subject: Subject) -> Row:
    """Returns the table cells with the machine, versions and commits of a process; "" for unknown
    values.
    """
    texts = {name: fact_text(value) for name, value in facts.items()}
    own = Subject(dirty=facts.get("git_dirty") is True, changes=texts.get("git_changes"))
    return {
        "machine": machine_name(texts),
        "cnnbench": texts.get("cnnbench_version", ""),
        "commit of cnnbench": _commit_cell(texts.get("git_commit", ""), own),
        "TensorFlow": texts.get("tensorflow_version", ""),
        "Python": texts.get("python_version", ""),
        "measured in": subject.repository or "",
        "its commit": _commit_cell(subject.revision or "", subject),
    }


def _commit_cell(revision: str, state: Subject) -> TableCell:
    changes = f"+{state.changes or ''}" if revision and state.dirty else ""
    return TableCell(f"{revision}{changes}", kinds="code")


def _names_own_file(words: Sequence[str]) -> bool:
    """Whether a command names a YAML file of its user, such as a suite or a search space, which
    readers of the page do not have.
    """
    return any(word.endswith((".yaml", ".yml")) for word in words)


def _counted_commands(results: ReportSubject) -> Iterable[tuple[str, Sequence[str], int, str]]:
    """Yields, for each command, the name of the measurement, the words of the command, the number
    of processes, and the start time.
    """
    for title, document in titled_strategies(results):
        yield f"modes of {title}", document.command, len(document.processes), document.started_at
    for tuning in results.tunings:
        processes = sum(row.processes for row in tuning.rows) + 2 * tuning.pairs
        name, words = "best flags", tuning.search_command
        if _names_own_file(words):
            name, words = "the best flags found", tuning.command
        yield name, words, processes, tuning.started_at
    by_campaign = {
        process.run_id for document in results.strategies for process in document.processes
    }
    others = (
        process
        for process in results.processes
        if _is_reproducible(process[1]) and process[1].run_id not in by_campaign
    )
    first: dict[str, tuple[str, ...]] = {}

    def campaign_command(
        process: tuple[str, RunRecord | AllReduceRecord],
    ) -> tuple[str, tuple[str, ...]]:
        name, record = process
        place = record.sweep or {}
        sweep = place.get("command")
        is_command = isinstance(sweep, list) and all(isinstance(word, str) for word in sweep)
        words = tuple(sweep) if is_command and sweep else ()
        # The commands of the processes are listed instead.
        if words and not _names_own_file(words):
            return f"suite {place.get('suite')}", words
        # The commands of repeated runs differ only in the name of the output file.
        if isinstance(record, RunRecord):
            return name, first.setdefault(name, record.command)
        return name, record.command

    for (name, words), alike in group_by(others, campaign_command).items():
        starts = (record.started_at for _, record in alike)
        yield name, words, len(alike), min(starts, key=parse_start_time)


# Shows disturbances of the measurements, and properties of the machine and the software.

_UNKNOWN = "unknown"
_MOST_NAMED = 3


def disturbance_answer(results: ReportSubject) -> Answer | None:
    """Returns the answer with the most frequent disturbances, or that there were none; None if no
    conditions were recorded.
    """
    checked, marked, kinds = _count_disturbances(results)
    if not checked:
        return None
    if not marked:
        return Answer("Conditions", "Nothing disturbed the measurements", "good")
    details = (
        f"{name} {phase}: {len(notes)} of {checked}; for example, {notes[0].text}"
        for name, phase, notes in kinds[:_MOST_NAMED]
    )
    verb, of = "was" if marked == 1 else "were", count_text(checked, "process", "processes")
    text = f"{marked} of {of} {verb} disturbed"
    return Answer("Conditions", text, "unsure", tuple(details))


def conditions_section(results: ReportSubject) -> Iterable[Content]:
    """Yields the section about conditions such as load: a table of remarks, the most frequent
    first, and of disturbances by configuration.
    """
    checked, marked, kinds = _count_disturbances(results)
    if not checked:
        return
    processes = count_text(checked, "process", "processes")
    text = f"In {marked} of {processes} something may have distorted the values."
    yield (
        Paragraph(text, "unsure") if marked else Paragraph("No check found a disturbance.", "good")
    )
    yield make_table(
        {
            "condition": name,
            "when": TableCell(phase, kinds="steady"),
            "processes": numeric_cell(len(notes), f"{len(notes)} of {checked}"),
            "for example": TableCell(notes[0].text, kinds="prose"),
            "advice": TableCell(notes[0].advice, kinds="prose"),
        }
        for name, phase, notes in kinds
    )
    good = (group for group in results.configured if group.successful)
    yield make_table(map(_disturbance_row, good), title="During the timed steps")


_PHASES = {"before": "before the steps", "during": "in the timed steps"}


def _count_disturbances(
    results: ReportSubject,
) -> tuple[int, int, list[tuple[str, str, list[ConditionNote]]]]:
    """Returns the number of successful processes that recorded their conditions, the number of
    processes with remarks, and the remarks.

    Remarks are grouped by condition and phase, both as text, with at most one remark per process.
    The most frequent group is first.
    """
    good = (record.conditions for _, record in results.processes if record.status == "ok")
    checked = [condition for condition in good if condition is not None]
    notes = (
        note
        for condition in checked
        for note in {(note.id, note.when): note for note in condition.notes}.values()
    )
    by_kind = group_by(notes, lambda note: (note.id, note.when))
    kinds = [
        (CONDITIONS.get(check, check), _PHASES.get(when, when), notes_of_kind)
        for (check, when), notes_of_kind in by_kind.items()
    ]
    marked = sum(bool(condition.notes) for condition in checked)
    return len(checked), marked, sorted(kinds, key=lambda kind: len(kind[2]), reverse=True)


def _disturbance_row(group: RunGroup) -> Row:
    def most(name: str, text: Callable[[float], str]) -> TableCell:
        loads = group.process_values(lambda run: run.condition(name))
        return numeric_cell(max(loads.values, default=None), text)

    busy = group.process_values(lambda run: run.condition("other_cpus"))
    return {
        "configuration": group.name,
        "CPUs used by others, median": numeric_cell(busy.median),
        "CPUs used by others, at most": most("other_cpus", number),
        "stolen by the hypervisor, at most": most("steal_fraction", percent),
        "throttled, s, at most": most("quota_seconds", number),
        "pages swapped, at most": most("swapped_pages", integer),
        "slowed for heat, times": most("thermal_events", integer),
    }


def environment_section(results: ReportSubject) -> Iterable[Content]:
    """Yields a table of the properties of machine and software that are equal in all runs, and a
    table of all other properties with a row per run.
    """
    described = [(name, record) for name, record in results.processes if record.environment]
    environments = [record.environment for _, record in described]
    names = sorted({name for facts in environments for name in facts}, key=natural_key)
    alike = [name for name in names if _is_same(name, environments)]
    # Properties that affect speed are shown before other properties.
    unlike = [name for name in names if name not in alike]
    unlike.sort(key=lambda name: [*DifferenceEffect].index(fact_rule(name).effect))
    values = ((name, readable_fact(name, environments[0][name])) for name in alike)
    shared: Iterable[Row] = (
        {"fact": name, "value": TableCell(value, kinds="code")} for name, value in values
    )
    yield make_table(shared, title="Alike in all runs" if len(described) > 1 else "")
    yield _mixed_facts_remark(results, unlike)
    runs = []
    for configuration, record in described[-MOST_LISTED:] if unlike else ():
        row: dict[str, TableCell | str] = {
            "started (UTC)": TableCell(start_time_text(record.started_at), kinds="steady"),
            "configuration": configuration,
            "run": record.run_id[:8],
        }
        # A property of an imported record may have the name of one of the columns above.
        for name in unlike:
            row.setdefault(name, readable_fact(name, record.environment.get(name, "")))
        runs.append(row)
    which = shown_count_text(len(runs), len(described)) if runs else ""
    yield make_table(runs, title=f"Different from run to run{which}", folded=True)


def _mixed_facts_remark(results: ReportSubject, unlike: Sequence[str]) -> Paragraph | None:
    """Returns a remark with the recorded properties that affect speed and differ between runs of
    the same configuration; None if there are none.
    """
    groups = [
        [run.environment for run in group.successful if run.environment]
        for group in results.configured
    ]
    deciding = (name for name in unlike if fact_rule(name).effect is DifferenceEffect.BLOCKS)
    differing = [name for name in deciding if not all(_is_same(name, group) for group in groups)]
    message = (
        "Runs of the same configuration differ in properties that affect speed, so their medians "
        f"mix different conditions: {', '.join(differing)}."
    )
    return Paragraph(message, "unsure") if differing else None


def _is_same(name: str, environments: Sequence[Mapping[str, Any]]) -> bool:
    return len({fact_text(facts.get(name, _UNKNOWN), name) for facts in environments}) <= 1
