"""A step in time: the operations of every device, from profiles of steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from cnnbench.base.charts import Axis, Lane, Lanes, Span
from cnnbench.base.text.numbers import count, number, percent
from cnnbench.base.text.table import natural_key
from cnnbench.judge.report.document import (
    Block,
    Charts,
    Section,
    TableColumn,
    Text,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import ReportSubject
from cnnbench.records.step_profile import (
    COPIES,
    FORWARD,
    HOST,
    INPUT,
    REDUCTION,
    REST,
    TO_INPUT,
    TO_KERNEL,
    UPDATE,
    ProfiledPart,
    ProfiledSpan,
    StepProfile,
)

_OTHER, _IDLE = "other", "no operation"
_KINDS = (FORWARD, TO_INPUT, TO_KERNEL, UPDATE, REDUCTION, INPUT, COPIES, _OTHER)
_OWN_LANES = (REDUCTION, COPIES)
_MOST = 4
_HINTED = 0.004
"""Least share of the step of a span with a hint."""


def timeline(results: ReportSubject) -> Section | None:
    """For each configuration, a chart with a lane for each device, and the time by kind."""
    found: dict[str, StepProfile] = {}
    for one in results.profiles:
        if one.timeline:
            found.setdefault(results.profiled[one.record.run_id].name, one)
    if not found:
        return None
    text = (
        "The last profiled step of a process (cnnbench run --profile_json, ab, explain): a lane "
        "for what a device computes, and lanes of their own for reductions, for copies between "
        "devices and for the input pipeline. The profiler makes steps longer. The table "
        "has medians over all profiled steps; of operations side by side each has its part."
    )
    blocks: list[Block | None] = [Text(text=text)]
    for name, profile in list(found.items())[:_MOST]:
        blocks += [
            Charts(charts=(chart(profile, name),)),
            table(_COLUMNS, _times(profile), title=f"{name}: a step by kind"),
        ]
    if len(found) > _MOST:
        more = count(len(found) - _MOST, "other profile is", "other profiles are")
        blocks.append(Text(text=f"{more} not shown."))
    return section("timeline", "One step in time", *blocks)


def chart(profile: StepProfile, title: str) -> Lanes:
    """The lanes of the last profiled step."""
    spans = profile.timeline or ()
    longest = max((span.end for span in spans), default=0.0)
    lanes: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    for one in spans:
        kind = _kind(one)
        hint = ""
        if one.end - one.start >= _HINTED * longest:
            words = (one.device, one.layer, one.kind, one.direction)
            took = f"{number((one.end - one.start) * 1e3)} ms"
            hint = f"{', '.join(filter(None, words))}: {took}"
        own = kind if kind in _OWN_LANES else ""
        span = Span(one.start * 1e3, one.end * 1e3, _KINDS.index(kind), hint)
        lanes[one.device, own].append(span)
    # Devices in order, the input pipeline last.
    ordered = sorted(lanes, key=lambda key: (not key[0], natural_key(key[0]), key[1]))
    note = f"The step took {number(profile.step_seconds[-1] * 1e3)} ms."
    if waited := profile.input_wait_seconds[-1]:
        note += f" Before it the program waited {number(waited * 1e3)} ms for its input."
    return Lanes(
        title=f"{title}: one step",
        x=Axis(label="time from the first operation, ms", zero=True),
        lanes=tuple(
            Lane(label=", ".join(filter(None, key)) or "input pipeline", spans=tuple(lanes[key]))
            for key in ordered
        ),
        kinds=_KINDS,
        note=note,
    )


def _kind(part: ProfiledSpan | ProfiledPart) -> str:
    if part.direction == HOST:
        return _IDLE
    if part.layer == REST:
        return part.kind if part.kind in (REDUCTION, COPIES, UPDATE) else _OTHER
    return part.direction if part.direction in _KINDS else _OTHER


def _times(profile: StepProfile) -> Iterable[tuple[str, float, float]]:
    """Kinds with the median of their seconds in a step, and that as a share of the median step."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * len(profile.step_seconds))
    for row in profile.rows:
        for step, seconds in enumerate(row.seconds):
            sums[_kind(row)][step] += seconds
    whole = median(profile.step_seconds)
    for kind in (*_KINDS, _IDLE):
        if any(sums[kind]):
            yield kind, median(sums[kind]), median(sums[kind]) / whole


_COLUMNS: tuple[TableColumn[tuple[str, float, float]], ...] = (
    TableColumn("kind", lambda one: one[0]),
    numeric("median ms of a step", lambda one: one[1], scale=1e3),
    numeric("of the step", lambda one: one[2], percent),
)
