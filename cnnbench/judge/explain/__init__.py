"""Explains why one side takes longer, by comparing profiled steps of two sides, without TensorFlow.

`sides` sums their times and finds what exceeds the noise, `causes` recognises reasons, `facts`
lists differences between their records.
"""

from cnnbench.judge.explain.explain import explain

__all__ = ["explain"]
