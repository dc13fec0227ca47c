"""Compares the runs of BASE with the runs of NEW statistically, for `cnnbench compare`, `cnnbench
ab` and reports. Does not import TensorFlow.

`compare_records` returns a verdict for each configuration and metric, and an exit code. `Criteria`
says by what. `judge` compares two lists of numbers, one number per process.
`cnnbench.judge.report.comparison` turns a comparison into blocks, and `renderers` writes them.
"""

from __future__ import annotations

from cnnbench.judge.compare.compare import compare_records
from cnnbench.judge.compare.criteria import Criteria
from cnnbench.judge.compare.estimate import Samples
from cnnbench.judge.compare.judgement import Case, Judgement, Verdict, judge, judge_all
from cnnbench.judge.compare.power import processes_needed
from cnnbench.judge.compare.result import Comparison
from cnnbench.judge.compare.verdicts import ComparedConfiguration, MetricResult
from cnnbench.judge.metrics.judged import DEFAULT_METRICS
from cnnbench.judge.metrics.policy import Policy
from cnnbench.records.load import Loaded, SkippedFile, load_records
from cnnbench.records.metric import METRICS, Metric

__all__ = [
    "DEFAULT_METRICS",
    "METRICS",
    "Case",
    "ComparedConfiguration",
    "Comparison",
    "Criteria",
    "Judgement",
    "Loaded",
    "Metric",
    "MetricResult",
    "Policy",
    "Samples",
    "SkippedFile",
    "Verdict",
    "compare_records",
    "judge",
    "judge_all",
    "load_records",
    "processes_needed",
]
