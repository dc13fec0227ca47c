"""Shows how a metric changes from commit to commit, from the records in a results directory. Does
not import TensorFlow.
"""

from __future__ import annotations

from cnnbench.base.levels import SeriesLevel
from cnnbench.judge.history.reading import Contents, contents
from cnnbench.judge.history.series import (
    HistoryEntry,
    Selection,
    SeriesPoint,
    TimeSeries,
    all_series,
)
from cnnbench.judge.history.steps import LevelChange, Trend, trend
from cnnbench.records.metric import HISTORY as METRICS
from cnnbench.records.metric import Metric

__all__ = [
    "METRICS",
    "Contents",
    "HistoryEntry",
    "LevelChange",
    "Metric",
    "Selection",
    "SeriesLevel",
    "SeriesPoint",
    "TimeSeries",
    "Trend",
    "all_series",
    "contents",
    "trend",
]
