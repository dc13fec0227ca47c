"""Words that several sentences of a comparison share: changes with their intervals, numbers of runs
and what a verdict needs. Whole sentences are written by the modules that decide them. A sentence
has no full stop if something may follow it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.text import NONE, count_text, p_value
from cnnbench.judge.compare.estimate import Estimate, SampleStatistics, from_test_scale
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT
from cnnbench.records.metric import Metric

# Values within sentences.


def change_text(metric: Metric, estimate: Estimate) -> str:
    """A change and, if it is known, its confidence interval: "-0.9 % (-13.9 to +15.6 %)"."""
    if estimate.change is None:
        return NONE
    text, low, high = metric.change_text(estimate.change), estimate.low, estimate.high
    return text if low is None or high is None else f"{text} ({metric.range_text(low, high)})"


def size_text(metric: Metric, estimate: Estimate) -> str:
    """The size and the direction of a change, and its confidence interval: "13.2 % slower (10.1 to
    16.0 %)".
    """
    change, low, high = estimate.change, estimate.low, estimate.high
    assert change is not None
    assert low is not None
    assert high is not None
    size = metric.change_text(abs(change), signed=False)
    least, most = sorted((abs(low), abs(high)))
    ends = metric.range_text(least, most, signed=False)
    return f"{size} {direction(metric, change)} ({ends})"


def known_change_text(metric: Metric, estimate: Estimate) -> str:
    """What is known about a change: its size and direction if the interval excludes no change,
    otherwise the change with its sign; with the interval.
    """
    low, high = estimate.low, estimate.high
    is_certain = low is not None and high is not None and low * high > 0
    return (size_text if is_certain else change_text)(metric, estimate)


def direction(metric: Metric, change: float) -> str:
    """The word for a change that fits the metric, such as "slower"."""
    return metric.better if (change > 0) == metric.higher_is_better else metric.worse


def chance(p: float | None, family: int = 1) -> str:
    """A p-value and, if several configurations were tested, their number."""
    assert p is not None
    text = f"p = {p_value(p)}"
    return text if family < 2 else f"{text} over {family} configurations"


def metric_name(metric: Metric) -> str:
    """The words for a metric: its name, but "CPU time" for `cpu_time`."""
    return "CPU time" if metric is CPU_TIME else metric.name


def labelled(metric: str, change: str) -> str:
    """A change and its metric, which is "" for the speed as the only metric that was judged."""
    return f"{metric} {change}" if metric else change


def scatter_text(scatter: float, metric: Metric, is_named: bool) -> str:
    """How much pairs or processes differ: "4.7 %" or "4.7 % in CPU time"."""
    text = metric.change_text(from_test_scale(scatter, metric), signed=False)
    return f"{text} in {metric_name(metric)}" if is_named else text


def plural(paired: bool) -> str:
    """The word for what is compared."""
    return "pairs" if paired else "processes"


def needed_runs_text(number: int, paired: bool, new_experiment: bool, least: str = "") -> str:
    """A number of pairs (or processes of each side) that a verdict needs. `least` is "at least "
    for a minimum.
    """
    if new_experiment:
        return f"a new experiment of {least}{number} pairs"
    return f"{least}{number} {'pairs' if paired else 'on each side'}"


OPEN_QUESTION = "the threshold of {floor} may be exceeded"


def more_runs_text(more: int, paired: bool) -> str:
    """How many further pairs or processes lead to a verdict, with the verb."""
    if paired:
        return count_text(more, "more pair settles", "more pairs settle")
    return count_text(more, "more process per side settles", "more processes per side settle")


def too_few_text(statistics: SampleStatistics, needed: str, provable: float | None) -> str:
    """There are too few values to prove a change.

    Args:
      needed: what could prove a change (see `needed_runs_text`).
      provable: the change that this could prove; None if unknown.
    """
    base, paired, family = len(statistics.base), statistics.paired, statistics.family
    runs = f"{base} against {count_text(statistics.new, 'process', 'processes')}"
    if paired:
        runs = count_text(base, "pair", "pairs")
    verb = "is" if paired and base == 1 else "are"
    among = f" in only one of {family} configurations" if family > 1 else ""
    text = f"{runs} {verb} too few to prove a change{among}, of whatever size; {needed} could prove"
    if provable is None:
        return f"{text} one"
    return f"{text} one of {statistics.metric.change_text(provable, signed=False)}"


def slow_steps(
    change: float | None, slow: Sequence[str], names: Sequence[str], paired: bool
) -> str:
    """A text about slow steps that are a part of a change of the throughput: "in NEW every third
    step takes 90 ms more; paired change at the median step +0.1 %".

    Args:
      change: change of the speed at the median step; "" is returned if it is None.
      slow: texts about the slow steps of BASE and of NEW; "" for none.
      names: names of BASE and NEW in the text.
      paired: whether the change was estimated within pairs. It then differs from the change of the
        medians over the processes.
    """
    if change is None:
        return ""
    parts = [f"in {name} {steps}" for name, steps in zip(names, slow, strict=True) if steps]
    of = "paired change" if paired else "change"
    return "; ".join([*parts, f"{of} at the median step {THROUGHPUT.change_text(change)}"])
