"""The section of a report about the operations of a training step over time (step profiles)."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from cnnbench.base.charts import Axis, TimelineChart, TimelineSpan
from cnnbench.base.document import Content, Row, make_table, numeric_cell, prepend_docstring
from cnnbench.base.stats import group_by
from cnnbench.base.tables import natural_key
from cnnbench.base.text import count_text, milliseconds, percent
from cnnbench.judge.report.results import ReportSubject
from cnnbench.records.profiles import (
    ACTIVITIES,
    COPIES,
    REDUCTION,
    ProfiledSpan,
    StepProfile,
    activity_of_part,
)

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
        yield [_timeline_lanes(profile, name)]
        yield make_table(_kind_time_rows(profile), title=f"{name}: a step by kind")
    if (more := len(by_name) - _MOST_PROFILES) > 0:
        yield f"{count_text(more, 'other profile is', 'other profiles are')} not shown."


def _timeline_lanes(profile: StepProfile, title: str) -> TimelineChart:
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
    # Lanes are in the order of devices; the lane of the input pipeline is last.
    ordered = sorted(lanes, key=lambda key: (not key[0], natural_key(key[0]), key[1]))
    note = f"The step took {milliseconds(profile.step_seconds[-1])} ms."
    if waited := profile.input_wait_seconds[-1]:
        note += f" Before it the program waited {milliseconds(waited)} ms for its input."
    return TimelineChart(
        title=f"{title}: one step",
        x=Axis(label="time from the first operation, ms", zero=True),
        lanes=tuple(
            (
                ", ".join(filter(None, key)) or "input pipeline",
                tuple(map(to_drawn_span, lanes[key])),
            )
            for key in ordered
        ),
        kinds=ACTIVITIES[:-1],
        note=note,
    )


def _kind_time_rows(profile: StepProfile) -> Iterable[Row]:
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
