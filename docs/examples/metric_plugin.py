"""A metric: how much longer the slowest of the timed steps takes than the median one."""

from __future__ import annotations

from statistics import median

from cnnbench import RunRecord
from cnnbench.records.metric import Summary, register_metric


def line(summary: Summary) -> str:
    """The line at the end of a run; none without timed steps."""
    ratio = summary.longest_step_ratio
    return "" if ratio is None else f"the longest step takes {ratio:.2f} times the median"


@register_metric(
    "longest_step_ratio",
    "times the median",
    higher_is_better=False,
    threshold=0.2,
    better="smaller",
    worse="larger",
    line=line,
    section="throughput",
)
def longest_step_ratio(record: RunRecord) -> float | None:
    """Longest / median time of a timed step."""
    seconds = record.step_seconds
    return max(seconds) / median(seconds) if seconds else None
