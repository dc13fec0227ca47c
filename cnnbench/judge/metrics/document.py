"""Tables of docs/metrics.md: ``python -m cnnbench.judge.metrics.document docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cnnbench.base.terminal import markdown_table, rewrite
from cnnbench.base.text import binary
from cnnbench.judge.metrics.measurement import Policy
from cnnbench.records.metric import ALL, RUN, Metric

_HEADER = ("metric", "unit", "value", "better", "counts from", "")


def tables() -> dict[str, str]:
    """A table of the metrics of runs, and one of those of all-reduces, by name."""
    return {
        "runs": _table(metric for metric in ALL.values() if RUN in metric.kinds),
        "reductions": _table(metric for metric in ALL.values() if RUN not in metric.kinds),
    }


def _table(metrics: Iterable[Metric]) -> str:
    return markdown_table(_HEADER, ["---"] * len(_HEADER), [*map(_row, metrics)])


def _row(metric: Metric) -> tuple[str, ...]:
    judged = {*metric.judged.values()}
    if not judged and not metric.followed:  # no metric, but said of others
        return f"`{metric.name}`", metric.unit, metric.about, "", "", "in the record only"
    better = "higher" if metric.higher_is_better else "lower"
    key = metric.key
    remarks = [
        "by default" if metric.by_default else "",
        "exit code 1 by default" if metric.gates else "",
        *(f"`--metrics={name}`" for name in judged - {metric.name}),
        "" if judged else "not in `--metrics`",
        "" if metric.followed else "not in `--metric`",
        f"`{key}` in the record" if key not in ("", metric.name) else "",
        "not in the record" if not key else "",
    ]
    found = ", ".join(filter(None, remarks))
    return f"`{metric.name}`", metric.unit, metric.about, better, _threshold(metric), found


def _threshold(metric: Metric) -> str:
    if metric.threshold is None:
        return f"`--threshold`, {metric.change_text(Policy.threshold, signed=False)}"
    if metric.threshold == 0:
        return "any change"
    least = f" and {binary(metric.least)}" if metric.least else ""
    return metric.change_text(metric.threshold, signed=False) + least


if __name__ == "__main__":
    for name, table in tables().items():
        rewrite(sys.argv[1:], name, table)
