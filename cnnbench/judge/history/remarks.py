"""Describes level changes, noise, machines and commits of time series in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from cnnbench.base.levels import TWO_MACHINES
from cnnbench.base.stats import group_by
from cnnbench.base.text import count_text, first_few, first_lines, item_count
from cnnbench.judge.compare.configuration import IMPORTED
from cnnbench.judge.compare.notes import imported_note
from cnnbench.judge.history import phrases
from cnnbench.judge.history.series import SeriesPoint
from cnnbench.judge.history.steps import (
    LevelChange,
    SharedOutlier,
    SharedStep,
    Trend,
    shared_steps,
)
from cnnbench.judge.metrics.measurement import readable_fact
from cnnbench.judge.metrics.rules import Rules
from cnnbench.machine.repository import CommitGraph
from cnnbench.records.metric import Metric

_MOST_FACTS = 4


def time_text(point: SeriesPoint) -> str:
    """Returns text with the start time of a point's first run: "2026-01-31 12:00"."""
    return point.started.strftime("%Y-%m-%d %H:%M")


def levels_text(step: LevelChange, metric: Metric, unit: bool = True) -> str:
    """Returns text with the levels before and after a change, with the unit or without."""
    before = metric.value_text(step.before.value, unit=False)
    after = metric.value_text(step.after.value, unit=unit)
    return phrases.LEVELS.format(before=before, after=after)


def step_text(step: LevelChange, metric: Metric) -> str:
    """Returns a sentence about a level change: whether it is a regression or a gain, its size, the
    levels before and after, and the points between which the level changed.
    """
    template = phrases.BETWEEN_WITHOUT_AND_WITH
    if step.worse:
        template = phrases.BETWEEN_GOOD_AND_BAD
    place = template.format(before=step.last_good.short_title, after=step.first_bad.short_title)
    if step.is_trend:
        place = phrases.TREND.format(**_range(step))
    elif step.earliest is not step.latest:
        place = phrases.IN_RANGE.format(place=place, **_range(step))
    text = (phrases.WORSE if step.worse else phrases.BETTER).format(
        change=metric.change_text(step.change), levels=levels_text(step, metric), place=place
    )
    return "; ".join(filter(None, (text, undone_text(step), _slow_steps_text(step))))


def _range(step: LevelChange) -> dict[str, str]:
    """Returns the names of the points between which the level changed."""
    first = step.earliest if step.is_trend else step.range_start
    return {"first": first.short_title, "last": step.latest.short_title}


def range_text(step: LevelChange) -> str:
    """Returns text with the points between which the level changed; "" if they are neighbours."""
    if step.is_trend:
        return phrases.TREND_RANGE.format(**_range(step))
    return "" if step.earliest is step.latest else phrases.RANGE.format(**_range(step))


def _slow_steps_text(step: LevelChange) -> str:
    if step.slow is None:
        return ""
    template = phrases.THEN_SLOW_STEPS if step.worse else phrases.SLOW_STEPS_BEFORE
    return template.format(steps=step.slow.text)


def step_note(step: LevelChange) -> str:
    """Returns text with what a table of level changes does not show: slow training steps, and
    properties that changed, too; "" if there is nothing to say.
    """
    facts = [
        phrases.CHANGED_FACT.format(
            fact=fact.fact,
            before=readable_fact(fact.fact, fact.before),
            after=readable_fact(fact.fact, fact.after),
        )
        for fact in step.facts
    ]
    listed = "; ".join(first_lines(facts, _MOST_FACTS))
    changed = phrases.CHANGED_FACTS.format(facts=listed) if facts else ""
    return "; ".join(filter(None, (_slow_steps_text(step), changed)))


def undone_text(step: LevelChange) -> str:
    """Returns text that says where a change was undone, such as "undone at 1a2b3c4"; "" if the
    change was not undone.
    """
    if step.stands:
        return ""
    if step.undone is None:
        return phrases.UNDONE
    return phrases.UNDONE_AT.format(point=step.undone.short_title)


def series_names_text(named_trends: Sequence[Trend], all_trends: Sequence[Trend]) -> str:
    """Returns text that names some of the time series: the only name, "all 5 series", or "3 of 5
    series (a; b; c)".
    """
    names = [trend.series.configuration for trend in named_trends]
    return phrases.named_series(names, item_count(all_trends))


def change_range_text(shared: SharedStep | SharedOutlier, metric: Metric) -> str:
    """Returns text with the smallest and the largest change in a group of level changes or
    outliers; a single number if they are equal.
    """
    ends = shared.smallest, shared.largest
    texts = {metric.change_text(end) for end in ends}
    return texts.pop() if len(texts) == 1 else metric.range_text(*ends)


def shared_step_text(shared: SharedStep, all_trends: Sequence[Trend], metric: Metric) -> str:
    """Returns a sentence about level changes that one commit caused in one or more time series,
    with the names of the time series.
    """
    (trend, step), *others = shared.steps
    if not others:
        finding = step_text(step, metric)
        return phrases.OF_SERIES.format(series=trend.series.configuration, finding=finding)
    text = (phrases.WORSE_IN_SERIES if step.worse else phrases.BETTER_IN_SERIES).format(
        series=series_names_text([trend for trend, _ in shared.steps], all_trends),
        point=shared.first_bad.short_title,
        change=change_range_text(shared, metric),
    )
    last = {change.last_good.short_title for _, change in shared.steps}
    before = ""
    if len(last) == 1:
        template = phrases.LAST_GOOD if step.worse else phrases.LAST_WITHOUT
        before = template.format(point=last.pop())
    return "; ".join(filter(None, (text, before, undone_text(step))))


def no_step_text(trend: Trend, metric: Metric) -> str:
    """Returns text that says why a time series has no level changes, and which noise could hide or
    imitate level changes; "" if there is nothing to say.
    """
    parts = []
    if not trend.enough:
        points = count_text(trend.series.points, "point", "points")
        parts = [phrases.FEW_POINTS.format(points=points)]
    elif not trend.steps:
        parts = [phrases.NO_STEP]
    return "; ".join([*parts, *noise_texts(trend, metric)])


def noise_texts(trend: Trend, metric: Metric) -> list[str]:
    """Returns texts about recognized kinds of noise in a time series, because of which a level
    change is found only after more points are measured, and about an earlier network.
    """
    texts = []
    states = trend.noise.states
    if states:
        on_machines = states.kind == TWO_MACHINES
        template = phrases.TWO_MACHINES if on_machines else phrases.TWO_STATES
        text = template.format(
            change=metric.change_text(states.change),
            hosts=", ".join(states.hosts),
            runs=states.runs,
            total=states.total,
        )
        texts.append(text)
    if correlation := trend.noise.correlation:
        texts.append(phrases.CORRELATED.format(correlation=correlation))
    if trend.series.before:
        texts.append(phrases.OTHER_NETWORK.format(network=trend.series.before))
    return texts


def other_metric_remarks(trends: Sequence[Trend], other: Metric) -> list[str]:
    """Returns sentences about the level changes of another metric, for a history whose own metric
    has none. `trends` are the time series of the other metric.
    """
    return [
        phrases.ONLY_OTHER_METRIC.format(
            series=trend.series.configuration,
            metric=other.name,
            change=step_text(step, other),
        )
        for trend in trends
        for step in trend.steps
        if step.stands
    ]


def accepted_commit_remarks(trends: Sequence[Trend], rules: Rules) -> list[str]:
    """Returns a sentence about accepted commits that neither the time series nor the repository of
    the current folder contains; [] if there are none.
    """
    measured = {point.runs[0].commit for trend in trends for point in trend.series.points}
    text = rules.unknown_commits_text(measured)
    return [f"{text}."] if text else []


def history_remarks(
    trends: Sequence[Trend], metric: Metric, commits: CommitGraph | None
) -> list[str]:
    """Returns sentences about the machines, imported measurements and commits of all time series.
    `commits` is None without --git.
    """
    points = [(trend.series.machine, point) for trend in trends for point in trend.series.points]
    machines = group_by(points, itemgetter(0))
    texts = []
    if len(machines) > 1:
        distinct = ((name, {point.name for _, point in of}) for name, of in machines.items())
        shares = [
            phrases.ON_MACHINE.format(points=count_text(len(of), "point", "points"), machine=name)
            for name, of in distinct
        ]
        listed = first_few(shares, phrases.MOST_NAMED)
        texts.append(phrases.MACHINES.format(count=len(machines), machines=listed))
    flags = [run.configuration.flags for _, point in points for run in point.runs]
    programs = [of.get(IMPORTED) for of in flags]
    unknown = {name for of in flags if IMPORTED in of for name in of if of[name] is None}
    if imported := imported_note(programs, unknown):
        texts.append(imported)
    if commits is None:
        return texts
    for shared in shared_steps(trends):
        texts += _branch_sentences(*shared.steps[0], metric, commits)
    measured = dict.fromkeys(point.commit for _, point in points if point.commit)
    return [*texts, *commits.commit_remarks([*measured])]


def _branch_sentences(
    trend: Trend, step: LevelChange, metric: Metric, commits: CommitGraph
) -> Iterator[str]:
    """Yields a sentence if a level change is at a merge commit or between two branches. For a
    merge, the sentence contains the values that were measured on the merged branches.
    """
    before, after = step.last_good.runs[0].commit, step.first_bad.runs[0].commit
    last = []
    for parent in commits.parents(after):
        within = [
            p
            for p in trend.series.points
            if commits.is_same_or_descendant(parent, p.runs[0].commit)
        ]
        last += [max(within, key=lambda p: commits.places[p.runs[0].commit])] if within else []
    name = step.first_bad.short_title
    if len(last) > 1:
        values = " and ".join(
            phrases.VALUE_AT.format(value=metric.value_text(point.value), point=point.short_title)
            for point in last
        )
        series = trend.series.configuration
        yield phrases.MERGE.format(point=name, values=values, series=series)
    elif commits.is_same_or_descendant(after, before) is False:
        before_it = step.last_good.short_title
        yield phrases.OTHER_BRANCH.format(point=name, before=before_it)
