"""Words and numbers that all formats share."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cnnbench.compare.comparability import unlike_text
from cnnbench.compare.explain import change_text, span_text
from cnnbench.compare.result import Comparison, Entry, Result
from cnnbench.metrics.policy import Verdict
from cnnbench.metrics.registry import SPEEDS, Metric
from cnnbench.text.numbers import count

MARKS: dict[Verdict, str] = {
    Verdict.FASTER: "+",
    Verdict.SLOWER: "-",
    Verdict.SAME: "=",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_COMPARABLE: "x",
    Verdict.MISSING: "o",
    Verdict.FAILED: "!",
}
"""One sign per verdict, in ASCII, so that no meaning hangs on a colour or a font."""

ENDINGS = {
    0: "no regression",
    1: "a regression",
    3: "undecided",
    4: "the benchmark failed",
}

NONE = "-"


def value_text(value: float | None, metric: Metric, unit: bool = True) -> str:
    """A value with its unit, in digits that differences show in."""
    if value is None:
        return NONE
    if metric.unit == "bytes":
        return f"{value / 2**20:.1f}" + (" MiB" if unit else "")
    if metric.unit == "top-1":
        return f"{value:.4f}"
    digits = 2 if value >= 10 else 3
    if metric.unit == "GB/s" and 0 < value < 1:
        digits -= math.floor(math.log10(value))  # small tensors are reduced slowly
    return f"{value:.{digits}f}" + (f" {metric.unit}" if unit else "")


def change(result: Result) -> str:
    """The estimated change."""
    found = result.judgement.change
    return NONE if found is None else change_text(found, result.metric)


def interval(result: Result) -> str:
    """Its confidence interval."""
    low, high = result.judgement.low, result.judgement.high
    if low is None or high is None:
        return NONE
    return span_text(low, high, result.metric)


def p_value(result: Result) -> str:
    """The p value after Holm."""
    found = result.judgement.p_adjusted
    return NONE if found is None else f"{found:.2g}"


def runs(entry: Entry) -> str:
    """Processes of both sides."""
    return f"{len(entry.base)}+{len(entry.new)}"


def confidence(comparison: Comparison) -> str:
    """Of the intervals, as in "96 %"."""
    return f"{100 * comparison.policy.confidence:.4g} %"


def also(comparison: Comparison) -> list[tuple[Entry, Result]]:
    """Results that say something besides those the comparison is about, the worst first.

    Of further metrics, and of what is only context.
    """
    telling = (Verdict.FASTER, Verdict.SLOWER, Verdict.FAILED)
    return [
        (entry, result)
        for metric in comparison.metrics
        for entry in comparison.by_severity()
        for result in entry.results
        if result.metric is metric
        and result.verdict in telling
        and not (entry.decides and result is entry.main)
    ]


def tally(comparison: Comparison, metric: Metric) -> str:
    """How many configurations have which verdict, the worst first."""
    found = comparison.counts(metric)
    return ", ".join(f"{number} {metric.word(verdict)}" for verdict, number in found.items())


def outcome(comparison: Comparison) -> str:
    """The tally of what the comparison is about, of each kind of measurement."""
    tallies = {metric.name: tally(comparison, metric) for metric in comparison.leading}
    if len(tallies) == 1:
        return next(iter(tallies.values())) or "nothing was compared"
    return "; ".join(f"{name} {found}" for name, found in tallies.items())


def conditions(comparison: Comparison) -> str:
    """How it was judged, in one sentence."""
    kind = "pairs of runs" if comparison.paired else "one value per process"
    text = f"{kind}, p <= {comparison.policy.alpha:g} after Holm"
    told = dict.fromkeys(_floors(comparison, metric) for metric in comparison.leading)
    text += "".join(told)
    judged = [entry.main.judgement for entry in comparison.entries if entry.decides]
    measured = any(one.noise is not None for one in judged)
    return text + (", A/A spread measured" if measured else ", A/A spread not measured")


def _floors(comparison: Comparison, metric: Metric) -> str:
    """The floors of what a metric decided about, or ""."""
    judged = [result.judgement for _, result in comparison.about(metric)]
    floors = [one.floor for one in judged if one.floor is not None]
    if not floors:
        return ""
    ends = [change_text(one, metric, signed=False) for one in (min(floors), max(floors))]
    return f", floor {ends[0]}" if ends[0] == ends[1] else f", floors {ends[0]} to {ends[1]}"


def mean_sentences(comparison: Comparison) -> Iterator[str]:
    """Geometric means of speed, of each kind of measurement that there is one of."""
    for metric in SPEEDS:
        found = comparison.geometric_mean(metric)
        if found is not None:
            mean, number = found
            total = _number(comparison, metric)
            of = count(total, "configuration", "configurations")
            of = of if number == total else f"{number} of {of}"
            yield f"{metric.name} {change_text(mean, metric)} in the geometric mean of {of}"


def _number(comparison: Comparison, metric: Metric) -> int:
    """Configurations of the kind that a metric is of."""
    return sum(entry.configuration.kind in metric.judged for entry in comparison.entries)


def mentions(comparison: Comparison) -> list[str]:
    """Facts that differ without forbidding a verdict, each once, over all configurations."""
    values: dict[str, tuple[set[str], set[str]]] = {}
    for entry in comparison.entries:
        for one in entry.differences:
            if not one.blocks:
                base, new = values.setdefault(one.fact, (set(), set()))
                base.update(one.base)
                new.update(one.new)
    return [
        unlike_text(fact, tuple(sorted(base)), tuple(sorted(new)))
        for fact, (base, new) in values.items()
    ]
