"""Tables, words and numbers shared by all formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from cnnbench.base.document import TableCell, numeric
from cnnbench.base.text import NONE, count, number_of
from cnnbench.judge.compare.comparability import unlike_text
from cnnbench.judge.compare.judgement import Level, Verdict
from cnnbench.judge.compare.result import ComparedConfiguration, Comparison, MetricResult
from cnnbench.judge.metrics.measurement import SPEEDS, THROUGHPUT
from cnnbench.records.metric import ALL, Metric

Rows: TypeAlias = list[tuple[ComparedConfiguration, MetricResult]]


# ASCII, so that no meaning depends on a colour or a font.
_MARKS: dict[Verdict, str] = {
    Verdict.FASTER: "+",
    Verdict.SLOWER: "-",
    Verdict.SAME: "=",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_MEASURED: "?",
    Verdict.CHANGED_WORK: "#",
    Verdict.NOT_COMPARABLE: "x",
    Verdict.MISSING: "o",
    Verdict.FAILED: "!",
}
_TONES = {Level.ERROR: "bad", Level.WARNING: "unsure"}
_OWN_TONES = {Verdict.FASTER: "good", Verdict.CHANGED_WORK: "unsure"}

_ENDINGS = {
    0: "no regression",
    1: "a regression",
    3: "undecided",
    4: "the benchmark failed",
    130: "interrupted",
}

_SHOWN = (Verdict.FASTER, Verdict.SLOWER, Verdict.FAILED, Verdict.NOT_MEASURED)
"""Verdicts on further metrics that tables have."""

_SPREAD = "as is what differs within the A/A spread"


def ending(comparison: Comparison) -> str:
    """The meaning of the exit code."""
    code = comparison.exit_code
    if code == 0 and replace(comparison, ends_with=None).exit_code:
        return "an A/A measurement, whatever the verdict"
    if code == 1 and not any(
        result.verdict is Verdict.SLOWER and comparison.is_regression(entry, result)
        for entry in comparison.entries
        for result in entry.results
    ):
        return Verdict.CHANGED_WORK.value
    return _ENDINGS[code]


def confidence(comparison: Comparison) -> str:
    """Confidence of the intervals, as in "96 %"."""
    return f"{100 * comparison.policy.confidence:.4g} %"


def tone(comparison: Comparison, entry: ComparedConfiguration, result: MetricResult) -> str:
    """The tone of a verdict, as of a cell: by its level unless it has one of its own."""
    own = _OWN_TONES.get(result.verdict)
    return own or _TONES.get(comparison.level(entry, result), "")


def explained(result: MetricResult) -> str:
    """The word for a verdict and its reason, unless the reason has the word."""
    reason = result.judgement.reason
    return reason if f" {result.word}" in reason[:40] else f"{result.word}: {reason}"


def tables(comparison: Comparison) -> list[tuple[Metric, Rows]]:
    """A table per leading metric, the worst row first; then of further metrics and context.

    The latter have only the results that are neither inconclusive nor the same.
    """
    leading = comparison.leading
    further = [
        (entry, result)
        for entry in comparison.by_severity()
        for result in entry.results
        if result.verdict in _SHOWN and not (entry.decides and result.metric in leading)
    ]
    by_metric = (
        (metric, [row for row in further if row[1].metric is metric])
        for metric in comparison.metrics
    )
    return [
        *((metric, comparison.about(metric)) for metric in leading),
        *((metric, rows) for metric, rows in by_metric if rows),
    ]


def titles(comparison: Comparison) -> tuple[str, str]:
    """Titles of the columns with the change and its interval.

    A change within pairs is not the change of the medians beside it.
    """
    change = "paired change" if comparison.paired else "change"
    return change, f"{confidence(comparison)} interval"


def row(
    comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> dict[str, TableCell]:
    """Cells of a table; base and new are medians over processes, p is that after Holm.

    Where the CPU time decided about the throughput, change, interval and p are those of the CPU
    time, and the first says so.
    """
    decisive = entry.decided_by(result)
    judgement, metric = decisive.judgement, decisive.metric
    change, interval = titles(comparison)
    low, high = judgement.low, judgement.high
    ends = NONE if low is None or high is None else metric.range_text(low, high)
    value = partial(result.metric.value_text, unit=False)
    of = "" if decisive is result else "CPU time "
    runs = f"{number_of(entry.base_runs)}+{number_of(entry.new_runs)}"
    return {
        "verdict": verdict(comparison, entry, result),
        "configuration": TableCell(entry.name),
        "base": numeric(result.judgement.base_median, value),
        "new": numeric(result.judgement.new_median, value),
        change: numeric(judgement.change, lambda found: of + metric.change_text(found)),
        interval: numeric(low, ends),
        "p": numeric(judgement.p_adjusted, "{:.2g}".format),
        "runs": numeric(len(entry.runs), runs),
    }


def verdict(
    comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> TableCell:
    """Mark and word, as in "- slower"."""
    mark = _MARKS[result.verdict]
    return TableCell(f"{mark} {result.word}", tone=tone(comparison, entry, result))


def tally(comparison: Comparison, metric: Metric) -> str:
    """Number of configurations per verdict, the worst first: "1 slower, 2 same"."""
    found = (one for one in comparison.summary.tallies if one.metric == metric.name)
    return ", ".join(f"{one.configurations} {one.verdict.word(metric)}" for one in found)


def outcome(comparison: Comparison) -> str:
    """The tally of each metric that was asked for."""
    tallies = {metric.name: tally(comparison, metric) for metric in comparison.asked}
    if len(tallies) == 1:
        return next(iter(tallies.values())) or "nothing was compared"
    return "; ".join(f"{name} {found}" for name, found in tallies.items())


def conditions(comparison: Comparison) -> str:
    """A sentence on how the sides were compared."""
    text = "Compared by one value per process"
    if comparison.paired:
        text = "Compared in pairs: a change is the centre of those within pairs, not of the medians"
    for floors in dict.fromkeys(
        filter(None, map(partial(_floors, comparison), comparison.leading))
    ):
        text += f"; changes under {_floors_text(*floors)} are ignored"
    judged = [entry.main.judgement for entry in comparison.deciding]
    measured = any(one.noise is not None for one in judged)
    return f"{text}, {_SPREAD}." if measured else f"{text}."


def _floors(comparison: Comparison, metric: Metric) -> tuple[float, float, str] | None:
    """The smallest and the largest floor of a leading metric, and what shows them; None without."""
    judged = [result.judgement for _, result in comparison.about(metric)]
    floors = [one.floor for one in judged if one.floor is not None]
    return (min(floors), max(floors), "" if metric.relative else metric.name) if floors else None


def _floors_text(low: float, high: float, name: str) -> str:
    """The floors of metrics, as in "3.0 to 5.0 %"; `name` of one whose changes are no shares."""
    metric = ALL[name] if name else THROUGHPUT
    if metric.shows(high - low):
        return metric.range_text(low, high, signed=False)
    return metric.change_text(low, signed=False)


def mean_sentences(comparison: Comparison) -> Iterator[str]:
    """Geometric means of the changes of several configurations, one per speed."""
    for metric in SPEEDS:
        found = comparison.means.get(metric.name)
        if found is not None and found.configurations > 1:
            of = count(found.of, "configuration", "configurations")
            of = of if found.configurations == found.of else f"{found.configurations} of {of}"
            yield f"{metric.name} {metric.change_text(found.change)} in the geometric mean of {of}"


def mentions(comparison: Comparison) -> list[str]:
    """Facts that differ without blocking a verdict, over all configurations."""
    values: dict[str, tuple[set[str], set[str]]] = {}
    for entry in comparison.entries:
        for one in entry.differences:
            if not one.blocks:
                base, new = values.setdefault(one.fact, (set(), set()))
                base.update(one.base)
                new.update(one.new)
    # Subjects are meant to differ, and in a checkout of cnnbench with them its commit.
    revision = values.get("subject_revision")
    return [
        unlike_text(fact, tuple(sorted(base)), tuple(sorted(new)))
        for fact, (base, new) in values.items()
        if not fact.startswith("subject_") and (fact != "git_commit" or (base, new) != revision)
    ]
