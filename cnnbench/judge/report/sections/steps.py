"""Sections of a report about the course of processes: step times, memory and CPUs over time, and
the operations of a training step over time (step profiles).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap

from cnnbench.base.charts import (
    LOWER,
    Axis,
    Chart,
    ChartSeries,
    LineChart,
    TimelineChart,
    TimelineSpan,
)
from cnnbench.base.document import (
    ChartGroup,
    Content,
    Paragraph,
    Row,
    make_table,
    numeric_cell,
    prepend_docstring,
)
from cnnbench.base.lazy_numpy import np
from cnnbench.base.stats import FEWEST_FOR_P99, group_by, median
from cnnbench.base.tables import natural_key
from cnnbench.base.text import count_text, format_bytes, integer, milliseconds, percent
from cnnbench.judge.report.results import ReportSubject, RunGroup, newest_groups, start_time_text
from cnnbench.records.profiles import (
    ACTIVITIES,
    COPIES,
    REDUCTION,
    ProfiledSpan,
    StepProfile,
    activity_of_part,
)
from cnnbench.records.run import ResourceUse, RunRecord

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
    """Wall time of every step, in order, with the warm-up on a grey background. Arrows at the edge
    are steps beyond the axis.
    """
    timed = [group for group in results.configured if any(r.step_seconds for r in group.successful)]
    yield from _chart_pairs(timed, _step_charts)
    yield make_table(map(_step_row, timed), hints=_HINTS)


def _chart_pairs(
    groups: Sequence[RunGroup], charts: Callable[[RunGroup], Iterable[Chart]]
) -> Iterator[Content]:
    """Yields a note if only the newest configurations have charts, and their charts."""
    drawn = newest_groups(groups, _DRAWN)
    if len(drawn) < len(groups):
        yield Paragraph(f"The charts are of the newest {_DRAWN} of {integer(len(groups))} rows.")
    found = tuple(chart for group in drawn for chart in charts(group))
    yield ChartGroup(found, pairs=len(found) > len(drawn)) if found else None


def _step_charts(group: RunGroup) -> Iterable[LineChart]:
    """Yields a chart of the step times of a configuration in order. If there are many processes, it
    shows some of them.
    """
    timed = [(f"process {n}", run) for n, run in enumerate(group.successful, 1) if run.step_seconds]
    chosen, note = timed, ""
    if len(timed) > _SHOWN:
        chosen = [timed[round(i * (len(timed) - 1) / (_SHOWN - 1))] for i in range(_SHOWN)]
        note = f"{_SHOWN} of {len(timed)} processes are shown."
    warmup = max(len(record.warmup_step_seconds) for _, record in chosen)
    most = max(float(np.quantile(record.step_seconds, 0.95)) for _, record in chosen)
    yield LineChart(
        title=f"{group.name}: steps in order",
        x=Axis(label="step; up to 0 warm-up"),
        y=Axis(label="step time, ms", zero=True, better=LOWER, limit=_HEADROOM * 1000 * most),
        series=tuple(starmap(_step_series, chosen)),
        shaded=(-warmup + 0.5, 0.5, "warm-up") if warmup else None,
        note=note,
    )


def _step_series(name: str, record: RunRecord) -> ChartSeries:
    seconds = (*record.warmup_step_seconds, *record.step_seconds)
    first, together = 1 - len(record.warmup_step_seconds), record.steps_per_execution
    points = [(float(n * together), 1000 * s) for n, s in enumerate(seconds, first)]
    name = f"{name}, {start_time_text(record.started_at)} UTC"
    return ChartSeries(name=name, points=_thin_out(points), marks=False)


def _thin_out(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
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
        "timed steps": numeric_cell(len(steps)),
        "median of all steps, ms": numeric_cell(middle),
        "90 %, ms": numeric_cell(high),
        # With few steps, the 99th percentile would be the slowest step.
        "99 %, ms": numeric_cell(
            highest if len(steps) >= FEWEST_FOR_P99 else None,
            why="too few timed steps",
        ),
        "slowest, ms": numeric_cell(slowest),
        "within a process": numeric_cell(group.process_values(_relative_iqr).median, percent),
        "between processes": numeric_cell(
            group.process_values("step_seconds").relative_range, percent
        ),
    }


def _relative_iqr(record: RunRecord) -> float | None:
    """Returns the interquartile range of the timed steps over their median."""
    if not record.step_seconds:
        return None
    first, middle, third = np.quantile(record.step_seconds, (0.25, 0.5, 0.75))
    return float((third - first) / middle)


# Shows the memory and CPUs that processes used over time.


@prepend_docstring
def use_section(results: ReportSubject) -> Iterable[Content]:
    """Memory and CPUs of each process, sampled once per second. A leak is memory that grows
    throughout the timed loop; a stall is a time without CPUs in use. The grey background is the
    timed loop of the first process. Growth is the memory at the end of the timed loop minus the
    memory at its start.
    """
    sampled = [group for group in results.configured if any(r.resources for r in group.successful)]
    yield from _chart_pairs(sampled, _resource_charts)
    yield make_table(map(_resource_row, sampled))


def _resource_charts(group: RunGroup) -> Iterable[LineChart]:
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
        curves = []
        for n, of in known[:_SHOWN]:
            if values(of):
                points = tuple(zip(of.seconds, values(of), strict=True))
                curves.append(ChartSeries(name=f"process {n}", points=points, marks=False))
        yield LineChart(
            title=f"{group.name}: {title}",
            x=Axis(label="seconds since the start of the run"),
            y=axis,
            series=tuple(curves),
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


def _resource_row(group: RunGroup) -> Row:
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
        "processes": numeric_cell(len(known)),
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


# Shows one profiled step over time.

_OWN_LANES = (REDUCTION, COPIES)
_MOST_PROFILES = 4
_HINTED = 0.004
"""A span that takes at least this share of the step has a hover text."""


@prepend_docstring
def timeline_section(results: ReportSubject) -> Iterable[Content]:
    """The last profiled step of a process over time (cnnbench run --profile_json, ab, explain). One
    lane shows what a device computes. Reductions, copies between devices and the input pipeline
    have separate lanes. The profiler makes steps longer. The table shows medians over all profiled
    steps. If operations run at the same time, each of them gets a part of that time.
    """
    by_name: dict[str, StepProfile] = {}
    for study in results.studies:
        if isinstance(study, StepProfile) and study.timeline:
            by_name.setdefault(results.profiled[study.record.run_id].name, study)
    for name, profile in list(by_name.items())[:_MOST_PROFILES]:
        yield [_timeline(profile, name)]
        yield make_table(_kind_rows(profile), title=f"{name}: a step by kind")
    if (more := len(by_name) - _MOST_PROFILES) > 0:
        yield f"{count_text(more, 'other profile is', 'other profiles are')} not shown."


def _timeline(profile: StepProfile, title: str) -> TimelineChart:
    """Returns a chart of the last profiled step, with one lane for each device, and separate lanes
    for some activities, such as copies between devices.
    """
    spans = profile.timeline or ()
    least = _HINTED * max((span.end for span in spans), default=0.0)

    def lane(span: ProfiledSpan) -> tuple[str, str]:
        return span.device, kind if (kind := activity_of_part(span)) in _OWN_LANES else ""

    def to_drawn_span(span: ProfiledSpan) -> TimelineSpan:
        words = ", ".join(filter(None, (span.device, span.layer, span.kind, span.direction)))
        hint = f"{words}: {milliseconds(span.end - span.start)} ms"
        kind, shown = ACTIVITIES.index(activity_of_part(span)), span.end - span.start >= least
        return TimelineSpan(span.start * 1e3, span.end * 1e3, kind, hint if shown else "")

    lanes = group_by(spans, lane)
    # In the order of devices; the lane of the input pipeline comes last.
    ordered = sorted(lanes, key=lambda key: (not key[0], natural_key(key[0]), key[1]))
    note = f"The step took {milliseconds(profile.step_seconds[-1])} ms."
    if waited := profile.input_wait_seconds[-1]:
        note += f" Before it the program waited {milliseconds(waited)} ms for its input."
    names = [", ".join(filter(None, key)) or "input pipeline" for key in ordered]
    drawn = [tuple(map(to_drawn_span, lanes[key])) for key in ordered]
    return TimelineChart(
        title=f"{title}: one step",
        x=Axis(label="time from the first operation, ms", zero=True),
        lanes=tuple(zip(names, drawn, strict=True)),
        kinds=ACTIVITIES[:-1],
        note=note,
    )


def _kind_rows(profile: StepProfile) -> Iterable[Row]:
    """Yields a table row for each kind of activity, with its median time in a step, in milliseconds
    and as a share of the median step time.
    """
    kinds, whole = group_by(profile.rows, activity_of_part), median(profile.step_seconds)
    for kind in ACTIVITIES:
        seconds = (row.seconds for row in kinds.get(kind, ()))
        sums = [sum(step) for step in zip(*seconds, strict=True)]
        if any(sums):
            usual = median(sums)
            yield {
                "kind": kind,
                "median ms of a step": numeric_cell(usual, scale=1e3),
                "of the step": numeric_cell(usual / whole, percent),
            }
