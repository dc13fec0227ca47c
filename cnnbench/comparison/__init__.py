"""Comparing runs: the policy that `cnnbench compare`, `ab` and the reports share.

Imports no TensorFlow. What others need of it:

* `judge(base, new, policy, paired=False, noise=None) -> Judgement` on plain numbers, one per
  process; `judge_all(cases, policy)` for a suite; `aa_spread(values, policy)` for the noise;
* `load_records(paths) -> Loaded(records, skipped)` from files, folders and patterns;
* `compare_records(base, new, policy) -> Comparison` with a verdict per configuration and
  metric, and an exit code;
* `render(comparison, format) -> str`: table, markdown, json, junit or github.
"""

from __future__ import annotations

from cnnbench.comparison.evidence import Case, aa_spread
from cnnbench.comparison.judging import Judgement, judge, judge_all
from cnnbench.comparison.metrics import METRICS, Metric
from cnnbench.comparison.policy import Policy
from cnnbench.comparison.reasons import processes_needed
from cnnbench.comparison.verdict import Verdict

__all__ = [
    "METRICS",
    "Case",
    "Judgement",
    "Metric",
    "Policy",
    "Verdict",
    "aa_spread",
    "judge",
    "judge_all",
    "processes_needed",
]
