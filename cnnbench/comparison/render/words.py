"""Words and numbers that all formats share."""

from __future__ import annotations

from cnnbench.comparison.comparability import unlike_text
from cnnbench.comparison.metrics import THROUGHPUT, Metric
from cnnbench.comparison.reasons import change_text, count, span_text
from cnnbench.comparison.result import Comparison, Entry, Result
from cnnbench.comparison.verdict import Verdict

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
    """Results of the further metrics that say something, the worst configurations first."""
    telling = (Verdict.FASTER, Verdict.SLOWER, Verdict.FAILED)
    return [
        (entry, result)
        for metric in comparison.metrics[1:]
        for entry in comparison.by_severity()
        for result in entry.results
        if result.metric is metric and result.verdict in telling
    ]


def tally(comparison: Comparison, metric: Metric) -> str:
    """How many configurations have which verdict, the worst first."""
    found = comparison.counts(metric)
    return ", ".join(f"{number} {metric.word(verdict)}" for verdict, number in found.items())


def conditions(comparison: Comparison) -> str:
    """How it was judged, in one sentence."""
    policy, main = comparison.policy, comparison.metrics[0]
    kind = "pairs of runs" if comparison.paired else "one value per process"
    judged = [entry.main.judgement for entry in comparison.entries]
    floors = [one.floor for one in judged if one.floor is not None]
    text = f"{kind}, p <= {policy.alpha:g} after Holm"
    if floors:
        ends = [change_text(one, main, signed=False) for one in (min(floors), max(floors))]
        text += f", floor {ends[0]}" if ends[0] == ends[1] else f", floors {ends[0]} to {ends[1]}"
    measured = any(one.noise is not None for one in judged)
    return text + (", A/A spread measured" if measured else ", A/A spread not measured")


def mean_sentence(comparison: Comparison) -> str | None:
    """The geometric mean of throughput, if there are configurations that it is over."""
    found = comparison.geometric_mean()
    if found is None:
        return None
    mean, number = found
    total = count(len(comparison.entries), "configuration", "configurations")
    of = total if number == len(comparison.entries) else f"{number} of {total}"
    return f"throughput {change_text(mean, THROUGHPUT)} in the geometric mean of {of}"


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
