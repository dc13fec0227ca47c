"""How a metric developed over commits: a results directory is the database.

Imports no TensorFlow. `contents` reads a directory, `all_series` sorts its runs into
points per commit, `trend` finds the steps between them.
"""

from __future__ import annotations

from cnnbench.judge.history.entries import Contents, Entry, contents
from cnnbench.judge.history.series import Selection, Series, SeriesPoint, all_series
from cnnbench.judge.history.steps import Level, Step, Trend, trend
from cnnbench.judge.metrics.registry import HISTORY as METRICS
from cnnbench.judge.metrics.registry import Metric

__all__ = [
    "METRICS",
    "Contents",
    "Entry",
    "Level",
    "Metric",
    "Selection",
    "Series",
    "SeriesPoint",
    "Step",
    "Trend",
    "all_series",
    "contents",
    "trend",
]
