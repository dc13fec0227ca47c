"""The sentences of a history: about level changes, noise, points, machines and commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from cnnbench.base.levels import MIN_SERIES, TWO_MACHINES
from cnnbench.base.stats import group_by
from cnnbench.base.text import count_text, first_few, first_lines
from cnnbench.judge.compare.configuration import IMPORTED
from cnnbench.judge.compare.notes import imported_note
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

MOST_NAMED = 5
"""Maximum number of things of one kind that an answer names."""

_MOST_SERIES, _MOST_FACTS = 2, 4
"""If a level change occurs in only some of the time series, at most so many are named. At most so
many properties are named that changed with the level.
"""

# Level changes. In the output, they are called steps.


def time_text(point: SeriesPoint) -> str:
    """The start time of a point's first run: "2026-01-31 12:00"."""
    return point.started.strftime("%Y-%m-%d %H:%M")


def levels_text(step: LevelChange, metric: Metric, unit: bool = True) -> str:
    """The levels before and after a change, with the unit or without."""
    before = metric.value_text(step.before.value, unit=False)
    return f"{before} -> {metric.value_text(step.after.value, unit=unit)}"


def step_text(step: LevelChange, metric: Metric) -> str:
    """A sentence about a level change: whether it is a regression or a gain, its size, the levels
    before and after, and the points between which the level changed.
    """
    word, latest = "worse" if step.worse else "better", step.latest.short_title
    if step.is_trend:
        place = f"a trend from {step.earliest.short_title} to {latest}"
    else:
        before, after = step.last_good.short_title, step.first_bad.short_title
        place = f"last without {before}, first with {after}"
        if step.worse:
            place = f"last good {before}, first bad {after}"
        if step.earliest is not step.latest:
            place += f" (95 %: between {step.range_start.short_title} and {latest})"
    change = metric.change_text(step.change)
    text = f"{word}: {change} (levels {levels_text(step, metric)}); {place}"
    return "; ".join(filter(None, (text, undone_text(step), _slow_steps_text(step))))


def range_text(step: LevelChange) -> str:
    """The points between which the level changed; "" if they are neighbours."""
    latest = step.latest.short_title
    if step.is_trend:
        return f"trend from {step.earliest.short_title} to {latest}"
    return "" if step.earliest is step.latest else f"{step.range_start.short_title} and {latest}"


def _slow_steps_text(step: LevelChange) -> str:
    if step.slow is None:
        return ""
    return f"{'then' if step.worse else 'before'} {step.slow.text}"


def step_note(step: LevelChange) -> str:
    """A note on a level change: slow training steps, and properties of the run that changed at the
    same commit, which a table does not show; "" if there are none.
    """
    changes = []
    for fact in step.facts:
        before, after = (readable_fact(fact.fact, value) for value in (fact.before, fact.after))
        changes.append(f"{fact.fact} {before} -> {after}")
    listed = "; ".join(first_lines(changes, _MOST_FACTS))
    changed = f"changed there too: {listed}" if changes else ""
    return "; ".join(filter(None, (_slow_steps_text(step), changed)))


def undone_text(step: LevelChange) -> str:
    """Where a change was undone, such as "undone at 1a2b3c4"; "" if it was not undone."""
    if step.stands:
        return ""
    return "undone since" if step.undone is None else f"undone at {step.undone.short_title}"


def _series_names(named_trends: Sequence[Trend], all_trends: Sequence[Trend]) -> str:
    """The names of some of the time series: the only name, "all 5 series", or "3 of 5 series (a; b;
    c)".
    """
    names = [trend.series.configuration for trend in named_trends]
    count = len(all_trends)
    if len(names) == 1:
        return names[0]
    if len(names) < count:
        return f"{len(names)} of {count} series ({first_few(names, _MOST_SERIES)})"
    return "both series" if len(names) == 2 else f"all {len(names)} series"


def _change_range(shared: SharedStep | SharedOutlier, metric: Metric) -> str:
    """The smallest and the largest change in a group of level changes or outliers; a single number
    if they are equal.
    """
    ends = shared.smallest, shared.largest
    texts = {metric.change_text(end) for end in ends}
    return texts.pop() if len(texts) == 1 else metric.range_text(*ends)


def shared_step_text(shared: SharedStep, all_trends: Sequence[Trend], metric: Metric) -> str:
    """A sentence about level changes that one commit caused in one or more time series, with the
    names of the time series.
    """
    (trend, step), *others = shared.steps
    if not others:
        return f"{trend.series.configuration}: {step_text(step, metric)}"
    names = _series_names([trend for trend, _ in shared.steps], all_trends)
    change, point = _change_range(shared, metric), shared.first_bad.short_title
    text = f"{'worse' if step.worse else 'better'} in {names} at {point}: {change}"
    last = {one.last_good.short_title for _, one in shared.steps}
    before = ""
    if len(last) == 1:
        before = f"last {'good' if step.worse else 'without'} {last.pop()}"
    return "; ".join(filter(None, (text, before, undone_text(step))))


# Time series without level changes, noise, and points.

MORE_POINTS = f"steps are looked for from {MIN_SERIES} on"


def outlier_text(shared: SharedOutlier, all_trends: Sequence[Trend], metric: Metric) -> str:
    """A text about outliers at the same point, with the names of the time series."""
    names = _series_names([all_trends[place] for place in shared.series], all_trends)
    place = f"{shared.point.short_title}, {time_text(shared.point)} UTC"
    return f"{names}: {_change_range(shared, metric)} at {place}"


def values_text(metric: Metric) -> str:
    """A text that says which values a history shows, and whether higher values are better."""
    better = "higher" if metric.higher_is_better else "lower"
    return f"{metric.title}, median over the processes of a point; {better} is better"


def no_value_text(point: SeriesPoint) -> str:
    """A text about a point whose runs have no value, with their error; "" for other points."""
    if point.values:
        return ""
    text, error = f"no value, {count_text(point.runs, 'run', 'runs')}", point.runs[0].error
    return f"{text}: {error}" if error else text


def no_step_text(trend: Trend, metric: Metric) -> str:
    """Why a time series has no level changes, and which noise could hide or imitate level changes;
    "" if there is nothing to say.
    """
    parts = []
    if not trend.enough:
        parts = [f"{count_text(trend.series.points, 'point', 'points')}; {MORE_POINTS}"]
    elif not trend.steps:
        parts = ["no step"]
    return "; ".join([*parts, *noise_texts(trend, metric)])


def noise_texts(trend: Trend, metric: Metric) -> list[str]:
    """Texts about recognized kinds of noise in a time series, because of which a level change is
    found only after more points are measured, and about an earlier network.
    """
    texts = []
    if states := trend.noise.states:
        change, runs = metric.change_text(states.change), f"{states.runs} of {states.total} runs"
        text = f"noise of two states: {change} in {runs}, alternating"
        if states.kind == TWO_MACHINES:
            text = f"two machines: {change} on {', '.join(states.hosts)} ({runs})"
        texts.append(f"{text}; a step of about this size needs more points")
    if correlation := trend.noise.correlation:
        text = f"neighbouring points are correlated ({correlation:.1f}): a step needs more points, "
        texts.append(f"{text}and its place is less certain")
    if trend.series.before:
        texts.append(f"another network before: {trend.series.before}, not compared")
    return texts


def lasting(regressions: int, gains: int) -> str:
    """How many changes have not been undone."""
    texts = [
        count_text(regressions, "regression has", "regressions have") if regressions else "",
        count_text(gains, "gain has", "gains have") if gains else "",
    ]
    return ", ".join(f"{text} not been undone" for text in texts if text)


# Remarks.


def history_remarks(
    trends: Sequence[Trend], metric: Metric, commits: CommitGraph | None
) -> list[str]:
    """Sentences about the machines, imported measurements and commits of all time series. `commits`
    is None without --git.
    """
    points = [(trend.series.machine, point) for trend in trends for point in trend.series.points]
    machines = group_by(points, itemgetter(0))
    texts = []
    if len(machines) > 1:
        shares = []
        for name, of in machines.items():
            different = {point.name for _, point in of}
            shares.append(f"{count_text(len(different), 'point', 'points')} on {name}")
        listed = first_few(shares, MOST_NAMED)
        texts.append(f"{len(machines)} machines are not compared with each other: {listed}.")
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
        values = [f"{metric.value_text(point.value)} at {point.short_title}" for point in last]
        measured = f"{' and '.join(values)} ({trend.series.configuration})"
        yield f"{name} is a merge. Before it, its branches had {measured}."
    elif commits.is_same_or_descendant(after, before) is False:
        text = f"{name} does not contain {step.last_good.short_title}, the point before it: the "
        yield f"{text}step is a difference between two branches."


def other_metric_remarks(trends: Sequence[Trend], other: Metric) -> list[str]:
    """Sentences about the level changes of another metric, for a history whose own metric has none.
    `trends` are the time series of the other metric.
    """
    texts = []
    for trend in trends:
        for step in (step for step in trend.steps if step.stands):
            text = f"only {other.name} has a step: {step_text(step, other)}"
            texts.append(f"{trend.series.configuration}: {text}; --metric={other.name} shows it.")
    return texts


def accepted_commit_remarks(trends: Sequence[Trend], rules: Rules) -> list[str]:
    """A sentence about accepted commits that neither the time series nor the repository of the
    current folder contains; [] if there are none.
    """
    measured = {point.runs[0].commit for trend in trends for point in trend.series.points}
    text = rules.unknown_commits_text(measured)
    return [f"{text}."] if text else []
